/* Compression of a model's MLPs, and of its attentions where asked: statistics, factors, ranks, refit, checkpoint. The
 * one header users of this folder need. */
#ifndef NMLP_COMPRESS_COMPRESS_H
#define NMLP_COMPRESS_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/process_group.h"
#include "base/progress.h"
#include "base/status.h"
#include "compress/budget/survey.h"
#include "compress/ranks/heldout.h"
#include "compress/ranks/search.h"
#include "compress/times.h"
#include "engine/engine.h"

typedef struct nmlp_compress_options {
    bool attention;                /* q, k, v and o take part beside the MLPs */
    double ratio;                  /* fraction of the parameters of what takes part to remove, between 0 and 1 */
    double budget_ms;              /* above 0: time of all MLPs for one token instead of a ratio */
    nmlp_cost_line time;           /* of the target, with budget_ms */
    const nmlp_layer_ranks *ranks; /* [L] chosen already, instead of a ratio; NULL: searched for */
    int64_t tile;                  /* ranks are multiples of it */
    bool adaptive;                 /* else uniform ranks */
    bool refit;
    bool whiten;        /* else plain SVD */
    bool row_weights;   /* SwiGLU weights on the rows of gate and up */
    bool token_weights; /* tokens count by the inverse of their residual stream's size */
    bool shrink;
    double cap; /* largest share of a token in the statistics; 0: none */
    nmlp_joint_mode joint;
    int64_t slices; /* of the intermediate width, each factorised by itself for tensor parallelism; 1: whole */
    int rounds;     /* of probing again around the best ranks; -1: 2, or 0 for large models */
    int64_t calib_tokens;
    int64_t heldout_tokens; /* -1: 8192, or 2048 for large models */
    int64_t context;        /* tokens in a window */
    const char *calib_name; /* for config.json */
    const char *made_by;    /* the command that asked for this, for config.json; NULL: not said */
    bool resume;
    const char *work_dir; /* NULL: "<out_dir>.work"; with ".partial" behind it while in use */
    bool keep_work;       /* leave it for other budgets (with `resume`), which then skip the statistics */
    const nmlp_progress *progress;
    const nmlp_process_group *group; /* processes that do this together, on one file system; the first one writes the
                                      * output. NULL: this one alone. The result is the same */
} nmlp_compress_options;

nmlp_compress_options nmlp_compress_defaults(void);
/* Rank granularity that suits CPUs: finer for small models, whose ranks are small. */
int64_t nmlp_compress_cpu_tile(const nmlp_config *config);

/* A forward pass of such a model is expensive: its search sees fewer tokens. */
bool nmlp_compress_is_large(const nmlp_config *config);

typedef struct nmlp_compress_report {
    int64_t n_layers;
    int64_t slices;          /* at least 1; ranks are those of a slice */
    nmlp_layer_ranks *ranks; /* [n_blocks] of MLPs, then of attentions where they take part */
    int64_t n_blocks;
    double *nmse;       /* [L, NMLP_MLP_MATRICES] relative error of each matrix on calibration data before the refit */
    int64_t curve_step; /* ranks between two points of a curve: a multiple of the tile */
    int64_t curve_points;   /* ranks 0, step, 2 step, ... up to the full rank */
    double *curve;          /* [L, NMLP_MLP_MATRICES, points] the error at those ranks, of the basis that was used */
    double *attention_nmse; /* [L, NMLP_ATTENTION_MATRICES] as nmse; NULL: attentions took no part */
    double *layer_error;    /* [L] relative held-out error of the residual stream after the layer; NaN without refit */
    double *layer_error_before;                              /* [L] the same had this layer not been refitted */
    int64_t params_before, params_after;                     /* of the model */
    int64_t mlp_params_before, mlp_params_after;             /* of its MLP matrices */
    int64_t attention_params_before, attention_params_after; /* of q, k, v and o */
    int64_t bytes_before, bytes_after;
    bool heldout_measured; /* held-out losses below were measured */
    nmlp_loss dense;
    nmlp_loss factored; /* with the chosen ranks, before the refit */
    nmlp_loss final;
    char chosen[64]; /* name of the winning candidate */
    int n_candidates;
    bool refit_kept;
    double time_before_ms, time_after_ms; /* by the cost table; 0 with a parameter budget */
    int64_t calib_tokens, heldout_tokens;
    nmlp_compress_times times;
} nmlp_compress_report;

void nmlp_compress_report_fini(nmlp_compress_report *report);
/* Share of the parameters of what took part that is removed. */
double nmlp_compress_removed(const nmlp_compress_report *report);

/* Compresses the engine's model, calibrated on the token ids of a text, into the directory `out_dir`. The old directory
 * stays until the new one is complete. While working, "<out_dir>.work.partial" holds finished layers. A run that failed
 * or was killed goes on from there with `resume`, to the same bytes; what does not fit this model, text and these
 * options is made again, with a note to `progress`. */
nmlp_status nmlp_compress_run(nmlp_engine *engine, const int32_t *ids, int64_t n_ids, const char *out_dir,
                              const nmlp_compress_options *options, nmlp_compress_report *report, nmlp_err *err);

/* What ranks and bits cost this model on held-out text, with the factors and the survey itself in the work folder,
 * which `options` must name and which is kept: nmlp_compress_run finds the factors there. Ranks are probed at
 * `options->ratio`. */
nmlp_status nmlp_compress_survey(nmlp_engine *engine, const int32_t *ids, int64_t n_ids,
                                 const nmlp_compress_options *options, nmlp_loss_survey *survey, nmlp_err *err);

#endif
