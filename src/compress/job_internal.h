/* The state of a compression under way, and its steps in the order in which they run. */
#ifndef NMLP_COMPRESS_JOB_INTERNAL_H
#define NMLP_COMPRESS_JOB_INTERNAL_H

#include "compress/calibrate/window_share.h"
#include "compress/compress.h"
#include "compress/factor/layer_file.h"
#include "compress/job_folders.h"
#include "compress/work.h"

enum { NMLP_COMPRESS_PATH_MAX_BYTES = 4096 };

/* What a search may cost. */
typedef struct nmlp_compress_effort {
    int rounds;
    int64_t heldout_tokens;
    int64_t probe_tokens;
    int64_t score_step; /* of so many positions one is scored: the head of a large model is large too */
} nmlp_compress_effort;

typedef struct nmlp_compress_job {
    int blas_threads; /* what OpenBLAS is given back at the end */
    nmlp_engine *engine;
    const nmlp_model *model;
    const nmlp_compress_options *options; /* with every choice made */
    nmlp_compress_options chosen;
    nmlp_compress_report *report;
    nmlp_calib_windows windows;
    nmlp_window_share share;
    nmlp_job_folders folders;
    nmlp_compress_fingerprint fingerprint;
    nmlp_block *blocks; /* [n_blocks] MLPs of all layers, then their attentions where they take part */
    int64_t n_blocks;
    nmlp_factor_file *factor_files; /* [n_blocks] */
    nmlp_layer_file *finished;      /* [L, n_mlps], then those of attentions [L], without data where they stay dense */
    int64_t n_mlps;                 /* at most of a layer */
    nmlp_heldout heldout;
    nmlp_cost cost;
    double budget;
} nmlp_compress_job;

const nmlp_compress_effort *nmlp_compress_effort_of(const nmlp_config *config);
/* Refuses what the options alone, or this model, rule out. */
nmlp_status nmlp_compress_options_check(const nmlp_model *model, const nmlp_compress_options *options, nmlp_err *err);

/* Sets `cost` and `budget`: time or parameters. */
nmlp_status nmlp_compress_budget_set(nmlp_compress_job *job, nmlp_err *err);
/* What no ranks can satisfy is refused before hours of work. */
nmlp_status nmlp_compress_ranks_check(const nmlp_compress_job *job, nmlp_err *err);
/* Fills the report's ranks and losses, from the work folder where they are there. */
nmlp_status nmlp_compress_ranks_find(nmlp_compress_job *job, nmlp_err *err);
/* What ranks and bits cost, from the work folder where it is there. */
nmlp_status nmlp_compress_survey_make(nmlp_compress_job *job, nmlp_loss_survey *survey, nmlp_err *err);

/* Makes and opens `finished`. */
nmlp_status nmlp_compress_finish(nmlp_compress_job *job, nmlp_err *err);
/* The finished attention of a layer. */
nmlp_layer_file *nmlp_compress_finished_attention(const nmlp_compress_job *job, int64_t layer);
/* NULL: it stays as it is. */
const nmlp_layer_ranks *nmlp_compress_attention_ranks(const nmlp_compress_job *job, int64_t layer);

nmlp_status nmlp_compress_report_init(nmlp_compress_report *report, int64_t n_layers, bool attention, nmlp_err *err);
/* Errors of matrices and layers, and the curves of matrices. */
nmlp_status nmlp_compress_report_fill(nmlp_compress_job *job, nmlp_err *err);
/* Writes the checkpoint; the report then has its sizes. */
nmlp_status nmlp_compress_write(nmlp_compress_job *job, nmlp_err *err);

#endif
