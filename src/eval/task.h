/* A multiple-choice task as data: how a row of a file becomes a question with choices, and how these become prompts.
 *
 * A layout names the places in a row, a path being keys joined by dots ("question.stem"), with [] for every element of
 * a list
 * ("question.choices[].text"). The prompts are templates (template.h) over {question} and {choice}. Built-in tasks are
 * a table (task_builtin.c); users write the same as JSON (docs/evaluation.md). Immutable once made. */
#ifndef NMLP_EVAL_TASK_H
#define NMLP_EVAL_TASK_H

#include <stddef.h>

#include "base/mem.h"
#include "base/status.h"

enum { NMLP_TASK_LAYOUTS_MAX = 8, NMLP_CHOICES_MAX = 32 };

typedef enum nmlp_gold_kind {
    NMLP_GOLD_INDEX,      /* a number from 0, or a string of one */
    NMLP_GOLD_INDEX1,     /* the same from 1 */
    NMLP_GOLD_LABEL,      /* one of the labels, or without them a letter: A or a is the first */
    NMLP_GOLD_LABELS_FILE /* line i of a second file holds the index (from 0) of row i */
} nmlp_gold_kind;

typedef enum nmlp_choices_kind {
    NMLP_CHOICES_LIST,    /* choices[0] is the path of a list */
    NMLP_CHOICES_FIELDS,  /* each is a template */
    NMLP_CHOICES_LETTERS, /* choices[0] is a template giving "a ) x , b ) y , ..., e ) z" (MathQA) */
    NMLP_CHOICES_PAREN    /* the same giving "... (A) x (B) y" (ARC's CSV) */
} nmlp_choices_kind;

typedef struct nmlp_task_layout {
    const char *name;
    const char *question; /* template over the row's paths */
    nmlp_choices_kind choices_kind;
    const char *choices[NMLP_CHOICES_MAX];
    size_t n_choices;
    nmlp_gold_kind gold_kind;
    const char *gold;   /* path */
    const char *labels; /* path of a list, or NULL */
    const char *id;     /* path, or NULL; rows may lack it */
    const char *clean;  /* filter for the finished question and each choice, or NULL */
} nmlp_task_layout;

typedef struct nmlp_task {
    const char *name;
    const char *context;      /* template: what the model reads */
    const char *continuation; /* template: what it is scored on */
    const char *length;       /* template: its UTF-8 bytes are what acc_norm divides by */
    nmlp_task_layout layouts[NMLP_TASK_LAYOUTS_MAX];
    size_t n_layouts;
} nmlp_task;

/* A built-in one, or NULL. */
const nmlp_task *nmlp_task_find(const char *name);
/* The i-th built-in one, or NULL past the end. */
const nmlp_task *nmlp_task_at(size_t i);

/* Reads a task file; strings live in the arena. Our own row format is always understood too. */
nmlp_status nmlp_task_load(nmlp_task *task, nmlp_arena *arena, const char *path, nmlp_err *err);
nmlp_status nmlp_task_parse(nmlp_task *task, nmlp_arena *arena, const char *json, size_t len, const char *origin,
                            nmlp_err *err);

#endif
