/* Weights on the device: bf16 matrices with padded rows, and matrices that share their input laid one under the other.
 * What is quantised is there twice: as bf16 for prompts and batches, and as tiles for decode programs. */
#ifndef NMLP_CUDA_WEIGHTS_H
#define NMLP_CUDA_WEIGHTS_H

#include "cuda/device.h"
#include "tensor/factors.h"

typedef struct nmlp_cuda_matrix {
    void *data;     /* bf16 [n,k] */
    void *map;      /* tensor_map.h */
    void *tiles;    /* the same quantised, for decode programs (decode_quant.h); NULL: none */
    int32_t format; /* of tiles: nmlp_cuda_decode_format */
    int32_t n;
    int32_t k; /* padded */
} nmlp_cuda_matrix;

/* Gate and up each as the matrix that ends in I; `basis` holds the factors before them, gate's rows first, up's from
 * `up_start` on (0: one basis for both). A dense matrix has rank 0 and reads the MLP's input. */
typedef struct nmlp_cuda_mlp_weights {
    nmlp_cuda_matrix basis; /* n 0: gate and up are dense */
    int32_t gate_rank;
    int32_t up_rank;
    int32_t up_start;
    nmlp_cuda_matrix gate; /* [I, H or rank] */
    nmlp_cuda_matrix up;
    nmlp_cuda_matrix down_basis; /* [r, I], n 0: dense */
    nmlp_cuda_matrix down;       /* [H, I or r] */
} nmlp_cuda_mlp_weights;

/* Each takes memory from `block` and, once it is committed, uploads. */
nmlp_status nmlp_cuda_upload_matrix(nmlp_cuda_matrix *out, nmlp_cuda_arena *arena, const nmlp_view *const *parts,
                                    int n_parts, nmlp_err *err);
/* f32, padded with zeros; *out NULL where a view has no data. Parts are concatenated. */
nmlp_status nmlp_cuda_upload_vector(float **out, nmlp_cuda_arena *arena, const nmlp_view *const *parts, int n_parts,
                                    nmlp_err *err);
nmlp_status nmlp_cuda_upload_mlp(nmlp_cuda_mlp_weights *out, nmlp_cuda_arena *arena, const nmlp_factors *gate,
                                 const nmlp_factors *up, const nmlp_factors *down, nmlp_err *err);
size_t nmlp_cuda_matrix_bytes(const nmlp_cuda_matrix *m);
/* What a decode step reads of it. */
size_t nmlp_cuda_matrix_step_bytes(const nmlp_cuda_matrix *m);
size_t nmlp_cuda_mlp_weights_bytes(const nmlp_cuda_mlp_weights *w);
size_t nmlp_cuda_mlp_weights_step_bytes(const nmlp_cuda_mlp_weights *w);

#endif
