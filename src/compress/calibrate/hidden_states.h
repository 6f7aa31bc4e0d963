/* Hidden states of all windows, moved through the model one layer at a time, with what calibration wants to know about
 * each MLP. */
#ifndef NMLP_COMPRESS_CALIBRATE_HIDDEN_STATES_H
#define NMLP_COMPRESS_CALIBRATE_HIDDEN_STATES_H

#include "base/status.h"
#include "compress/times.h"
#include "compress/calibrate/calib_text.h"
#include "engine/session.h"

typedef struct nmlp_hidden_states {
    const nmlp_calib_windows *windows; /* borrowed */
    int64_t hidden;
    float *rows;                /* [T,H] residual stream before the next layer */
    nmlp_compress_times *times; /* borrowed, may be NULL */
} nmlp_hidden_states;

/* Starts at the embedding. */
nmlp_status nmlp_hidden_states_create(nmlp_hidden_states *stream, const nmlp_engine *engine,
                                      const nmlp_calib_windows *windows, nmlp_compress_times *times, nmlp_err *err);
void nmlp_hidden_states_destroy(nmlp_hidden_states *stream);

/* What a pass through one layer leaves; every pointer may be NULL. */
typedef struct nmlp_layer_taps {
    float *x;               /* [T,H] MLP input */
    float *y;               /* [T,H] MLP output */
    double *squares;        /* [n_calib,3,I] += sums over each calibration window: f(gate)^2 with f the activation,
                             * (up * f'(gate))^2, and (f(gate) * up)^2 */
    float *attention_x;     /* [T,H] input of q, k and v */
    float *attention_mixed; /* [T, n_heads*D] input of o */
} nmlp_layer_taps;

/* Runs `layer` over all windows; `progress_base` is the number of tokens done before, of `progress_total`. Non-finite
 * values are refused, naming layer and tensor. */
typedef struct nmlp_hidden_states_progress {
    const nmlp_progress *progress;
    const char *stage;
    double done;
    double total;
} nmlp_hidden_states_progress;

nmlp_status nmlp_hidden_states_run_layer(nmlp_hidden_states *stream, const nmlp_engine *engine, int64_t layer,
                                         const nmlp_layer_taps *taps, nmlp_hidden_states_progress *progress,
                                         nmlp_err *err);

/* Only up to the MLP of `layer`: stream->rows become the stream in front of it, taps->x (must be there) [T,H] what it
 * sees. */
nmlp_status nmlp_hidden_states_run_attention(nmlp_hidden_states *stream, const nmlp_engine *engine, int64_t layer,
                                             const nmlp_layer_taps *taps, nmlp_hidden_states_progress *progress,
                                             nmlp_err *err);

/* Adds outputs y [T,H] of the layer's MLP to the stream as the layer does; y is spent. */
nmlp_status nmlp_hidden_states_add_mlp(nmlp_hidden_states *stream, const nmlp_engine *engine, int64_t layer, float *y,
                                       nmlp_err *err);

/* Refuses NaN and Inf in rows [S,H] of `tensor` in `layer`. */
nmlp_status nmlp_check_rows(const float *rows, int64_t s, int64_t h, int64_t layer, const char *tensor, nmlp_err *err);

#endif
