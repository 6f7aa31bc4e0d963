/* Fused MLP of 5 to 32 rows in one persistent launch, on clusters of four thread blocks (sm_90a).
 *
 * The MLP is up to four GEMMs Y [S,N] = X [S,K] W^T, S <= 32, bound by reading W once:
 *
 *   basis        X V^T             low rank only; results go to all clusters through L2
 *   gate_up      silu(gate) * up   results stay in the cluster's shared memory (distributed shared memory)
 *   down_split_k act W^T           K is split over clusters: each has the columns of act it computed; partial sums meet
 *                                  in L2, as f32, or packed two to a word above 16 rows
 *   down         inner W^T         low rank only: down's second factor
 *
 * Tiling. Rows of W are divided over clusters; of a cluster's rows each block takes a quarter of K. So a block loads a
 * quarter of X, keeps it in shared memory, and partial sums are reduced in the cluster's shared memory (st.async with
 * transaction barriers), never in L2. The mma is m16n8k16 with X as A and rows of W as B: an "n8 tile" is 8 rows of W.
 *
 * Warps. 4 producer warps keep a ring buffer of stages full (TMA boxes of some n8 tiles by 64 columns, 128-byte
 * swizzle), GEMM after GEMM, never waiting for another block. 8 consumer warps own a share of the stages each, wait on
 * the stage's full barrier, multiply, release its empty barrier, then run the epilogue: exchange, activation, store.
 *
 * Between clusters there is no grid barrier: a consumer polls the very words it needs. bf16 pairs lie in an exchange
 * buffer filled with a word no result can have (two copies: a launch uses one and clears the other); partial sums carry
 * a bit that alternates from launch to launch (f32: the lowest mantissa bit, cleared by the reader).
 *
 * Columns of X and W are padded with zeros to multiples of 64. Same input, same bits. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_H
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/layout.h"
#include "cuda/residual.h"

enum {
    NMLP_CUDA_MLP_CLUSTER4_BLOCKS = 4,         /* of a cluster */
    NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS = 8, /* of a block, that multiply */
    NMLP_CUDA_MLP_CLUSTER4_PRODUCER_WARPS = 4, /* warps that copy */
    NMLP_CUDA_MLP_CLUSTER4_STAGES_MAX = 48,
    NMLP_CUDA_MLP_CLUSTER4_N8 = 8, /* rows: n of the mma */
    NMLP_CUDA_MLP_CLUSTER4_N8_MAX =
        6, /* of a stage: what registers hold sums for; code for more does not stay in the instruction cache */
    NMLP_CUDA_MLP_CLUSTER4_COLS = 64,         /* of a stage */
    NMLP_CUDA_MLP_CLUSTER4_X_SKEW_BYTES = 16, /* added to rows of X, so that eight rows meet all banks */
    NMLP_CUDA_MLP_CLUSTER4_REDUCE_BYTES =
        1024, /* per token, in the place of X: where warps add what clusters have of a part */
    NMLP_CUDA_MLP_CLUSTER4_MAPS_MAX = 5, /* basis, gate, up, and two for down */
};

typedef enum nmlp_cuda_mlp_cluster4_kind {
    NMLP_CUDA_MLP_CLUSTER4_BASIS,
    NMLP_CUDA_MLP_CLUSTER4_GATE_UP,
    NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K,
    NMLP_CUDA_MLP_CLUSTER4_DOWN
} nmlp_cuda_mlp_cluster4_kind;

/* Rows a product reads; the part's are in the cluster's shared memory. */
typedef struct nmlp_cuda_mlp_cluster4_input {
    const void *x; /* bf16 [S, pitch]; where it is in a set, of set 0 */
    int32_t pitch;
    int32_t k;           /* columns */
    int32_t from_before; /* there before the launch, in no set */
} nmlp_cuda_mlp_cluster4_input;

typedef struct nmlp_cuda_mlp_cluster4_product {
    const void *map[2]; /* of W for TMA, boxes of box_n8 by 64 columns; the second: up, where the first
                           is gate */
    nmlp_cuda_mlp_cluster4_input in[2];
    int32_t kind;
    int32_t n_factors;
    int32_t same_x;       /* both factors read the same rows */
    int32_t n;            /* results that are not padding */
    int32_t rows;         /* with padding, a multiple of 8 */
    int32_t blocks;       /* of 64 columns: K, of the longer factor; of the part: what a cluster has */
    int32_t cluster_rows; /* of a cluster; of the part: all */
    int32_t
        n_passes; /* a cluster's rows in turns of row_warps * stage_n8 n8 tiles; of the part: the rows of 32 warps */
    int32_t stage_n8;
    int32_t box_n8;
    int32_t row_shift;  /* log2 of row_warps: warps that differ in rows */
    int32_t side_shift; /* log2 of row_warps * n_factors; the others differ in K */
    void *out;          /* bf16 words [S, out_pitch] of set 0, or f32 in the last */
    int32_t out_pitch;
    int32_t last;
} nmlp_cuda_mlp_cluster4_product;

typedef struct nmlp_cuda_mlp_cluster4_program {
    nmlp_cuda_mlp_cluster4_product product[4];
    int32_t n_products;
    int32_t s;
    int32_t n_clusters;
    int32_t n_sources; /* clusters that have columns of the part */
    int32_t window;    /* columns of the part a cluster has */
    int32_t n_stages;
    int32_t stage_bytes;
    int32_t sums_bytes;
    int32_t x_bytes;
    int32_t act_pitch;   /* bytes */
    int32_t n_in_flight; /* stages being copied at a time, at most */
    unsigned *tickets;   /* every block of a launch takes one, which tells launches apart */
    char *exchange;      /* set 0, then set 1 */
    int64_t set_bytes;   /* a multiple of 16 */
    char *maps;          /* all of them, one after the other */
    int32_t n_maps;
    nmlp_cuda_row_scale scale;   /* of the MLP's input */
    nmlp_cuda_residual residual; /* what its result is added to */
    void *parts; /* [n8 tiles of rows][n_sources][tokens by 8, as registers hold them]: f32, or two in a word
                    (mlp_cluster4_sm90_packed.h) */
} nmlp_cuda_mlp_cluster4_program;

#ifdef __cplusplus
extern "C" {
#endif

/* 8, 16 or 32. */
int32_t nmlp_cuda_mlp_cluster4_tokens(int32_t s);
size_t nmlp_cuda_mlp_cluster4_shared_bytes(const nmlp_cuda_mlp_cluster4_program *p);
/* Clusters that are resident together with that much shared memory per block; 0 where the code or the chip has none. */
int nmlp_cuda_mlp_cluster4_clusters(size_t shared_bytes);
/* Returns a cudaError_t. */
int nmlp_cuda_mlp_cluster4_launch(const nmlp_cuda_mlp_cluster4_program *p, void *stream);

#ifdef __cplusplus
}
#endif

#endif
