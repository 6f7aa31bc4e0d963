/* What the files about tasks share. */
#ifndef NMLP_EVAL_TASK_INTERNAL_H
#define NMLP_EVAL_TASK_INTERNAL_H

#include "base/json.h"
#include "base/str.h"
#include "eval/task.h"

/* {id, question, choices[], gold}, which every task understands. */
extern const nmlp_task_layout nmlp_layout_ours;

/* The value at "a.b" below object, or NULL. */
const nmlp_json *nmlp_json_at(const nmlp_json *object, const char *path);
/* The list of "a.b[].c" ("a.b") and, in *tail, what is taken from each element ("c", or "" for the element itself). */
const nmlp_json *nmlp_json_list_at(const nmlp_json *object, const char *path, const char **tail);

/* Whether every place the layout names is in the row: 1; otherwise the share of them that are. */
double nmlp_layout_match(const nmlp_task_layout *layout, const nmlp_json *row);

/* A row read by a layout: the caller's memory, cleared by each read. */
typedef struct nmlp_task_fields {
    nmlp_str question;
    nmlp_str choices[NMLP_CHOICES_MAX];
    size_t n_choices;
    int64_t gold; /* -1 when a second file holds it */
} nmlp_task_fields;

void nmlp_fields_init(nmlp_task_fields *fields);
void nmlp_fields_fini(nmlp_task_fields *fields);
nmlp_status nmlp_fields_read(nmlp_task_fields *fields, const nmlp_task_layout *layout, const nmlp_json *row,
                             nmlp_err *err);

#endif
