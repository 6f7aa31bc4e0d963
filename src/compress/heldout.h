/* How far a changed model is from the dense one on held-out windows: the judge of ranks and refits. */
#ifndef NMLP_COMPRESS_HELDOUT_H
#define NMLP_COMPRESS_HELDOUT_H

#include "base/status.h"
#include "compress/windows.h"
#include "engine/engine.h"

typedef struct nmlp_loss {
    double kl;        /* mean KL divergence from the dense model's next-token distribution, nats */
    double nll;       /* mean negative log-likelihood of the next token */
    int64_t n_tokens; /* scored: all but the first of each window */
} nmlp_loss;

typedef struct nmlp_heldout {
    const nmlp_windows *windows; /* borrowed */
    int64_t hidden;
    int64_t n_layers;
    int64_t n_probe;  /* windows whose layer inputs are kept */
    float *reference; /* [tokens, H]: the dense model's last hidden states, final norm applied */
    float **inputs;   /* [n_layers]: [n_probe*context, H] dense hidden states in front of each layer */
    nmlp_loss dense;
} nmlp_heldout;

/* Runs the dense model over the held-out windows (there must be some); for the first `n_probe` windows it keeps the input of each
 * layer, so that a change in a layer is measured without running the layers below. */
nmlp_status nmlp_heldout_create(nmlp_heldout *heldout, const nmlp_engine *dense, const nmlp_windows *windows,
                                int64_t n_probe, nmlp_err *err);
void nmlp_heldout_destroy(nmlp_heldout *heldout);

/* Loss of the engine as it is now on the first n_windows windows. Layers below `from_layer` must be dense; with from_layer above 0, n_windows
 * is at most n_probe. */
nmlp_status nmlp_heldout_measure(const nmlp_heldout *heldout, const nmlp_engine *engine, int64_t from_layer,
                                 int64_t n_windows, nmlp_loss *loss, nmlp_err *err);

#endif
