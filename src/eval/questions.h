/* A data set ready to be scored: for every choice the text the model reads and the text it is scored on. */
#ifndef NMLP_EVAL_QUESTIONS_H
#define NMLP_EVAL_QUESTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"
#include "eval/rows.h"
#include "eval/task.h"

typedef struct nmlp_question_choice {
    const char *context; /* the same pointer for all choices where the task's context does not name the choice */
    const char *continuation;
    int64_t norm_bytes; /* what acc_norm divides by; > 0 */
} nmlp_question_choice;

typedef struct nmlp_question {
    int64_t line; /* in its file */
    nmlp_question_choice *choices;
    int64_t n_choices;
    int64_t gold;
} nmlp_question;

typedef struct nmlp_questions {
    nmlp_arena arena;
    nmlp_question *items;
    size_t n;
    size_t capacity;
    const nmlp_task_layout *layout; /* which of the task's the file has; the task must outlive this */
} nmlp_questions;

typedef struct nmlp_questions_options {
    const char *labels_path; /* second file of a layout that needs one; NULL: "<data>-labels.lst" beside the data */
    int64_t limit;           /* read only the first rows; 0: all */
} nmlp_questions_options;

/* The first row decides the layout; every row read must then be sound, or the call fails naming file, line and reason.
 */
nmlp_status nmlp_questions_load(nmlp_questions *questions, const nmlp_task *task, const char *path,
                                const nmlp_questions_options *options, nmlp_err *err);
/* The same from opened rows. */
nmlp_status nmlp_questions_read(nmlp_questions *questions, const nmlp_task *task, nmlp_task_rows *rows,
                                const nmlp_questions_options *options, nmlp_err *err);
void nmlp_questions_free(nmlp_questions *questions);

#endif
