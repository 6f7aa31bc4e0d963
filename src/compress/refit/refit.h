/* The second pass: layer by layer, with the activations of the model compressed so far, every factor is fitted again so
 * that the residual stream comes back to where the dense model has it. A refit is kept only where it lowers the error
 * on held-out tokens. */
#ifndef NMLP_COMPRESS_REFIT_REFIT_H
#define NMLP_COMPRESS_REFIT_REFIT_H

#include "base/progress.h"
#include "base/status.h"
#include "compress/factor/layer_file.h"
#include "compress/calibrate/hidden_states.h"
#include "compress/calibrate/window_share.h"
#include "engine/engine.h"

typedef struct nmlp_refit_job {
    nmlp_engine *engine;
    const nmlp_window_share *share; /* of the windows; every process of its group calls this */
    const nmlp_block *blocks;       /* [n_blocks] */
    int64_t n_blocks;
    const nmlp_factor_file *factor_files; /* [n_blocks] */
    const nmlp_layer_ranks *ranks;        /* [n_blocks] of a slice */
    int64_t slices;                       /* with factors of their own; 1: whole matrices */
    bool refit_down;                      /* else without down and o: down needs a Gram matrix of all neurons */
    bool token_weights;                   /* tokens count by the inverse of their residual stream's size */
    const nmlp_progress *progress;
    nmlp_compress_times *times; /* may be NULL */
    const char *work_dir;
    uint64_t fingerprint;
} nmlp_refit_job;

enum { NMLP_REFIT_ONLY = -1, NMLP_REFIT_ATTENTION = -2 };
/* Path of the finished file of one of a layer's MLPs (an expert, or NMLP_REFIT_ONLY) or of its attention, refitted or
 * as factorised: an interrupted run must not mix them up. */
nmlp_status nmlp_refit_path(char *path, size_t path_bytes, const char *work_dir, int64_t layer, int64_t expert,
                            bool refitted, nmlp_err *err);

/* Writes one layer file for each MLP and each factorised attention; those already there are kept and only run through.
 * Several processes run their windows and sum the statistics of a layer together; one of them solves for its matrices
 * and writes its file. */
nmlp_status nmlp_refit_run(const nmlp_refit_job *job, nmlp_err *err);

#endif
