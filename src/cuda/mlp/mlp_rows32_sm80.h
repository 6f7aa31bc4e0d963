/* Fused MLP of 5 to 32 rows in one persistent launch, on any chip from sm_80: the fallback of mlp_cluster4_sm90.
 *
 * The MLP is a list of phases, each a GEMM Y [S,N] = X [S,K] W^T; one thread block per multiprocessor. A phase is cut
 * into tiles of `groups` * 16 rows of W by one of `n_splits` ranges of K (split-K). A block takes a tile (more where
 * there are more tiles than blocks) and walks it in stages of `groups` * 16 rows by `blocks_k` * 64 columns.
 *
 * Warps. One producer warp fills a ring buffer of stages (TMA on sm_90, cp.async before), phase after phase, never
 * waiting for another block. Eight consumer warps take stages of their own: each loads the columns of X it needs
 * straight into registers as the mma's B operand, so shared memory holds weights only. When a tile is done the eight
 * partial sums are added in a fixed order and stored.
 *
 * There is no grid barrier. What one phase hands to the next is 32-bit words (two bf16, or one f32 of split-K) in an
 * exchange buffer filled with a value no result can have (NMLP_CUDA_UNWRITTEN); a reader polls until it is gone. There
 * are two copies of the buffer: a launch uses one and clears the other.
 *
 * Columns of X and W are padded with zeros to multiples of 64. Same input, same bits. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_H
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_H

#include <stddef.h>
#include <stdint.h>

enum {
    NMLP_CUDA_MLP_ROWS_MAX = 32,
    NMLP_CUDA_MLP_ROWS32_PHASES_MAX = 4,
    NMLP_CUDA_MLP_ROWS32_STAGES_MAX = 48,
    NMLP_CUDA_MLP_ROWS32_SPLITS_MAX = 8,
    NMLP_CUDA_MLP_ROWS32_M16 = 16, /* rows: m of the mma */
    NMLP_CUDA_MLP_ROWS32_K64 = 64, /* columns that lie together */
    NMLP_CUDA_MLP_ROWS32_PIECE_BYTES = NMLP_CUDA_MLP_ROWS32_M16 * NMLP_CUDA_MLP_ROWS32_K64 * 2,
    NMLP_CUDA_UNWRITTEN = -1 /* two bf16 or one f32 with all bits set: a NaN that arithmetic does not make */
};

typedef struct nmlp_cuda_mlp_rows32_factor {
    const void *weight; /* bf16 [N, k] */
    const void *map;    /* of it, for TMA: boxes of a stage */
    const void *x;      /* bf16 [S, x_pitch]; of set 0 */
    int32_t x_pitch;
    int32_t k;           /* a multiple of 64 */
    int32_t from_before; /* x was there before the launch, and is in no set */
} nmlp_cuda_mlp_rows32_factor;

typedef struct nmlp_cuda_mlp_rows32_phase {
    nmlp_cuda_mlp_rows32_factor f[2]; /* the second: up, where the first is gate */
    int32_t n_factors;
    int32_t n; /* N */
    int32_t groups;
    int32_t blocks_k;
    int32_t n_row_tiles; /* tiles along N */
    int32_t n_splits;    /* and along K */
    int16_t split_first[2][NMLP_CUDA_MLP_ROWS32_SPLITS_MAX +
                           1]; /* per factor, the stage along K each split begins with; the last: where they end */
    int32_t pairs_inverse;     /* 2^16 / (groups * 8), rounded up: to divide by pairs of rows of a tile */
    int32_t split_pairs;       /* pairs of results, of all tokens, that each split finishes */
    int32_t first_block;       /* that takes tile 0 */
    void *out; /* bf16 words [S, out_pitch] of set 0, columns to a multiple of 64; or, in the last phase, f32 */
    int32_t out_pitch;
    int32_t last;
    void *parts; /* f32 words [row parts][splits][factors][S][16 * groups] of set 0, where n_splits > 1 */
} nmlp_cuda_mlp_rows32_phase;

typedef struct nmlp_cuda_mlp_rows32_program {
    nmlp_cuda_mlp_rows32_phase phase[NMLP_CUDA_MLP_ROWS32_PHASES_MAX];
    int32_t n_phases;
    int32_t s;
    int32_t n_stages;
    int32_t stage_bytes;
    int32_t sums_bytes;  /* of all warps */
    int32_t n_in_flight; /* stages being copied at a time, at most */
    unsigned *tickets;   /* every block of a launch takes one, which tells launches apart */
    char *exchange;      /* set 0, then set 1 */
    int64_t set_bytes;   /* a multiple of 16 */
} nmlp_cuda_mlp_rows32_program;

#ifdef __cplusplus
extern "C" {
#endif

/* Most groups of a tile for s rows, and most blocks_k. */
int32_t nmlp_cuda_mlp_rows32_groups_max(int32_t s);
int32_t nmlp_cuda_mlp_rows32_blocks_k_max(int32_t s);
/* Shared memory for the sums of tiles of that many groups. */
size_t nmlp_cuda_mlp_rows32_sums_bytes(int32_t s, int32_t groups);
size_t nmlp_cuda_mlp_rows32_shared_bytes(const nmlp_cuda_mlp_rows32_program *p);
/* Once per device: allows that much shared memory. Both return a cudaError_t. */
int nmlp_cuda_mlp_rows32_prepare(size_t shared_bytes);
int nmlp_cuda_mlp_rows32_launch(const nmlp_cuda_mlp_rows32_program *p, int grid, void *stream);

#ifdef __cplusplus
}
#endif

#endif
