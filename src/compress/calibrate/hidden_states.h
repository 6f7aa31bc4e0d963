/* Hidden states of all windows, moved through the model one layer at a time, with what calibration wants to know about
 * each MLP. */
#ifndef NMLP_COMPRESS_CALIBRATE_HIDDEN_STATES_H
#define NMLP_COMPRESS_CALIBRATE_HIDDEN_STATES_H

#include "base/status.h"
#include "compress/times.h"
#include "compress/calibrate/windows.h"
#include "engine/session.h"

typedef struct nmlp_stream {
    const nmlp_windows *windows; /* borrowed */
    int64_t hidden;
    float *rows;       /* [T,H] residual stream before the next layer */
    nmlp_times *times; /* borrowed, may be NULL */
} nmlp_stream;

/* Starts at the embedding. */
nmlp_status nmlp_stream_create(nmlp_stream *stream, const nmlp_engine *engine, const nmlp_windows *windows,
                               nmlp_times *times, nmlp_err *err);
void nmlp_stream_destroy(nmlp_stream *stream);

/* What a pass through one layer leaves; every pointer may be NULL. */
typedef struct nmlp_taps {
    float *x;       /* [T,H] MLP input */
    float *y;       /* [T,H] MLP output */
    double *silu2;  /* [I] sums over calibration tokens: silu(gate)^2 */
    double *slope2; /* [I] (up * silu'(gate))^2 */
    double *act2;   /* [I] (silu(gate) * up)^2 */
} nmlp_taps;

/* Runs `layer` over all windows; `progress_base` is the number of tokens done before, of `progress_total`. Non-finite
 * values are refused, naming layer and tensor. */
typedef struct nmlp_stream_progress {
    const nmlp_progress *progress;
    const char *stage;
    double done;
    double total;
} nmlp_stream_progress;

nmlp_status nmlp_stream_run_layer(nmlp_stream *stream, const nmlp_engine *engine, int64_t layer, const nmlp_taps *taps,
                                  nmlp_stream_progress *progress, nmlp_err *err);

/* Only up to the MLP of `layer`: stream->rows become the stream in front of it, mlp_input [T,H] what it sees. */
nmlp_status nmlp_stream_run_attention(nmlp_stream *stream, const nmlp_engine *engine, int64_t layer, float *mlp_input,
                                      nmlp_stream_progress *progress, nmlp_err *err);

/* Refuses NaN and Inf in rows [S,H] of `tensor` in `layer`. */
nmlp_status nmlp_check_rows(const float *rows, int64_t s, int64_t h, int64_t layer, const char *tensor, nmlp_err *err);

#endif
