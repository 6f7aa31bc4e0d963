/* How far a changed model is from the dense one on held-out windows: what ranks and refits are chosen by. */
#ifndef NMLP_COMPRESS_RANKS_HELDOUT_H
#define NMLP_COMPRESS_RANKS_HELDOUT_H

#include "base/process_group.h"
#include "base/status.h"
#include "compress/times.h"
#include "compress/calibrate/calib_text.h"
#include "engine/session.h"

typedef struct nmlp_loss {
    double kl;        /* mean KL divergence from the dense model's next-token distribution, nats */
    double nll;       /* mean negative log-likelihood of the next token */
    int64_t n_tokens; /* scored */
} nmlp_loss;

typedef struct nmlp_heldout {
    const nmlp_process_group *group;   /* borrowed; NULL: this process alone */
    const nmlp_calib_windows *windows; /* borrowed, those of all processes */
    int64_t hidden;
    int64_t n_layers;
    int64_t n_probe;  /* windows whose layer inputs are kept */
    int64_t step;     /* positions 0, step, 2 step, ... of a window are scored, all but its last */
    int64_t n_scored; /* of a window */
    float *reference; /* [windows, n_scored, H]: the dense model's last hidden states, final norm applied */
    float **inputs;   /* [n_layers]: [n_probe*context, H] dense hidden states in front of each layer */
    float *logits;    /* [n_cached, n_scored, V] of the dense model, as many windows as fit into a fixed size */
    int64_t n_cached;
    nmlp_compress_times *times; /* borrowed, may be NULL */
    nmlp_loss dense;
} nmlp_heldout;

typedef struct nmlp_heldout_options {
    int64_t n_probe;
    int64_t step;                    /* at least 1: how many positions share one that is scored */
    const nmlp_process_group *group; /* that shares the windows, and calls this together */
    nmlp_compress_times *times;
} nmlp_heldout_options;

/* Runs the dense model over the held-out windows (there must be some); for the first `n_probe` windows it keeps the
 * input of each layer, so that a change in a layer is measured without running the layers below. */
nmlp_status nmlp_heldout_create(nmlp_heldout *heldout, const nmlp_engine *dense, const nmlp_calib_windows *windows,
                                const nmlp_heldout_options *options, nmlp_err *err);
void nmlp_heldout_destroy(nmlp_heldout *heldout);
/* Forgets the inputs of layers: from now on measurements begin at the first one. */
void nmlp_heldout_end_probes(nmlp_heldout *heldout);

/* What replaces the model's own MLPs during a measurement, one layer at a time: never more than one layer's
 * factors are in memory. */
typedef struct nmlp_mlp_overrides {
    void *ctx;
    bool (*changes)(const void *ctx, int64_t layer);                 /* else the layer runs as it is */
    nmlp_status (*install)(void *ctx, int64_t layer, nmlp_err *err); /* into the engine */
    void (*remove)(void *ctx, int64_t layer);                        /* out again; also after a failed install */
} nmlp_mlp_overrides;

/* Loss with another embedding, table [V,H], in front of the engine's layers, on the first n_windows windows. */
nmlp_status nmlp_heldout_measure_embedding(const nmlp_heldout *heldout, const nmlp_engine *engine, const float *table,
                                           int64_t n_windows, nmlp_loss *loss, nmlp_err *err);

/* Loss of the engine with these overrides (NULL: as it is) on the first n_windows windows. Layers below `from_layer`
 * must be dense; with from_layer above 0, n_windows is at most n_probe. */
nmlp_status nmlp_heldout_measure(const nmlp_heldout *heldout, const nmlp_engine *engine, int64_t from_layer,
                                 int64_t n_windows, const nmlp_mlp_overrides *overrides, nmlp_loss *loss,
                                 nmlp_err *err);

/* The same by all processes of the group together, each with some of the windows. */
nmlp_status nmlp_heldout_measure_shared(const nmlp_heldout *heldout, const nmlp_engine *engine, int64_t n_windows,
                                        const nmlp_mlp_overrides *overrides, nmlp_loss *loss, nmlp_err *err);

/* Loss of hidden states behind the last layer, which the caller made, with logits by `head` (NULL: the engine's), by
 * all processes of the group together: rows [windows*context, H] are those of nmlp_group_share of the held-out windows.
 */
nmlp_status nmlp_heldout_score(const nmlp_heldout *heldout, const nmlp_engine *engine, const float *rows,
                               const nmlp_linear *head, nmlp_loss *loss, nmlp_err *err);
/* Loss of the dense model's own last hidden states with logits by another head. */
nmlp_status nmlp_heldout_score_head(const nmlp_heldout *heldout, const nmlp_engine *engine, const nmlp_linear *head,
                                    nmlp_loss *loss, nmlp_err *err);

#endif
