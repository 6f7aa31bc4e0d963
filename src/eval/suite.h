/* A suite: several data sets found in one folder, run on a model, results side by side with other models'. */
#ifndef NMLP_EVAL_SUITE_H
#define NMLP_EVAL_SUITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json_write.h"
#include "base/progress.h"
#include "base/status.h"
#include "engine/engine.h"
#include "eval/result.h"
#include "eval/state.h"
#include "text/tokenizer.h"

enum { NMLP_SUITE_ITEMS_MAX = 16, NMLP_SUITE_FILES_MAX = 8, NMLP_SUITE_MODELS_MAX = 16 };

typedef struct nmlp_suite_item {
    const char *name; /* of a preset or a task */
    bool is_ppl;
    const char
        *files[NMLP_SUITE_FILES_MAX]; /* where its data may be below the folder, NULL-ended; the first there is taken */
} nmlp_suite_item;

typedef struct nmlp_suite {
    const char *name;
    const char *about;
    nmlp_suite_item items[NMLP_SUITE_ITEMS_MAX];
    size_t n_items;
} nmlp_suite;

/* paper: the nine data sets of the NeuronMLP paper. all: ARC-Easy too. NULL: unknown. */
const nmlp_suite *nmlp_suite_find(const char *name);

typedef struct nmlp_suite_options {
    const char *data_dir;
    int64_t limit;          /* questions of each task; 0: all */
    int64_t max_tokens;     /* of each text; 0: all */
    int64_t ctx;            /* 0: the presets' */
    bool bos;               /* of texts */
    nmlp_bos task_bos;      /* of questions */
    nmlp_eval_state *state; /* results already had are taken from here, new ones put here; may be NULL */
    const nmlp_progress *progress;
} nmlp_suite_options;

/* One model's results. */
typedef struct nmlp_suite_row {
    const char *model; /* name for the table; borrowed */
    nmlp_provenance provenance;
    nmlp_eval_cell cells[NMLP_SUITE_ITEMS_MAX]; /* as the suite's items; absent ones say why in their note */
} nmlp_suite_row;

nmlp_status nmlp_suite_run(nmlp_suite_row *row, const nmlp_suite *suite, const nmlp_engine *engine,
                           const nmlp_tokenizer *tokenizer, const nmlp_suite_options *options, nmlp_err *err);

/* Mean over the tasks that were run; NaN where none was. */
double nmlp_suite_mean_acc(const nmlp_suite_row *row, const nmlp_suite *suite, bool norm);

typedef enum nmlp_table_format { NMLP_TABLE_TEXT, NMLP_TABLE_MARKDOWN, NMLP_TABLE_CSV } nmlp_table_format;

/* Data sets down, models (at most NMLP_SUITE_MODELS_MAX) across. CSV has plain numbers and the standard errors; the
 * others percentages. */
void nmlp_suite_table(nmlp_str *out, const nmlp_suite *suite, const nmlp_suite_row *rows, size_t n_rows,
                      nmlp_table_format format);
/* Members of an open object: suite, models[]. */
void nmlp_suite_put(nmlp_json_writer *w, const nmlp_suite *suite, const nmlp_suite_row *rows, size_t n_rows);

#endif
