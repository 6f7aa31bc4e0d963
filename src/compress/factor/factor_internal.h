/* What the first pass keeps while it works, and how the processes of a group make the statistics of a layer. */
#ifndef NMLP_COMPRESS_FACTOR_FACTOR_INTERNAL_H
#define NMLP_COMPRESS_FACTOR_FACTOR_INTERNAL_H

#include "base/mem.h"
#include "compress/calibrate/expert_sample.h"
#include "compress/calibrate/hidden_states.h"
#include "compress/factor/factor_pass.h"

typedef struct nmlp_factor_buffers {
    float *x, *y;                  /* [T,H], T tokens of this process */
    float *weights;                /* [calibration tokens of all processes] */
    double *squares;               /* [calibration windows of all processes,3,I] */
    double *gate2, *slope2, *act2; /* [I] of the layer that this process factorises */
    double *weights_of_rows;       /* [2,I] of gate, then of up */
    double *input;                 /* [H,H] of that layer */
    double *output;                /* [slices,H,H] */
    double *spent;                 /* [H,H] a Gram matrix on its way to another process */
    double *w[NMLP_MLP_MATRICES];  /* of the MLP that is factorised, meanwhile */
    const nmlp_kernels *kernels;
    nmlp_expert_sampler sampler; /* of a model with experts */
    float *attention_x;          /* [T,H], where attentions take part, and what follows */
    float *attention_mixed;      /* [T,Q], Q = n_heads * D */
    double *mixed_gram;          /* [Q,Q] */
    bool *attention_done;        /* [L] found in the work folder; NULL: none takes part */
} nmlp_factor_buffers;

nmlp_status nmlp_factor_buffers_new(nmlp_factor_buffers *buffers, nmlp_arena *arena, const nmlp_factor_pass *pass,
                                    nmlp_err *err);

/* Means over the calibration tokens of all processes, of layer l whose inputs, outputs and squares of this one are in
 * `buffers`, for process `owner`: gate2, slope2, act2 and the Gram matrices. residual [T,H]: the stream behind it. */
nmlp_status nmlp_factor_gather_statistics(const nmlp_factor_pass *pass, int64_t layer, nmlp_factor_buffers *buffers,
                                          const float *residual, int owner, nmlp_err *err);

/* Gram of rows [T,width] of calibration tokens, with what keeps single tokens from deciding, for process `owner`; the
 * rows are spent. */
nmlp_status nmlp_factor_gram(const nmlp_factor_pass *pass, nmlp_factor_buffers *buffers, const float *residual,
                             double *gram, float *rows, int64_t width, int owner, nmlp_err *err);

/* Path of the factors of a block's MLP `index`, or of its attention. */
enum { NMLP_FACTOR_PATH_MAX = 4096 };
nmlp_status nmlp_factor_path(const nmlp_factor_pass *pass, int64_t block, int64_t index,
                             char path[NMLP_FACTOR_PATH_MAX], nmlp_err *err);

/* factor_attention.c: attentions, by one process. */
nmlp_status nmlp_factor_attention_buffers(const nmlp_factor_pass *pass, nmlp_factor_buffers *buffers, nmlp_arena *arena,
                                          const nmlp_factor_file *factor_files, nmlp_err *err);
/* What the attention of a layer is factorised by, where it is still to do. */
nmlp_layer_taps nmlp_factor_attention_taps(const nmlp_factor_buffers *buffers, int64_t layer);
/* Writes the factors of a block whose taps are filled; residual [T,H]: the stream behind its layer. b->input and
 * b->output are spent. */
nmlp_status nmlp_factor_attention_write(const nmlp_factor_pass *pass, int64_t block, nmlp_factor_buffers *buffers,
                                        const float *residual, nmlp_err *err);

#endif
