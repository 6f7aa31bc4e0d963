/* The MLP of 5 to 32 rows in one launch, as data for its kernel (batch.cu): where quad.h has no clusters or too little
 * shared memory.
 *
 * Phases are matmuls Y [S,N] = X [S,K] W^T, one after the other; one block per multiprocessor. A phase is cut into
 * rectangles: `groups` times 16 rows of W by one of `n_splits` runs of K. A block takes a rectangle (more where there
 * are more than blocks), as slots of `groups` * 16 rows by `blocks_k` * 64 columns. One warp brings slots into a ring
 * in shared memory, phase after phase, never waiting for another block. Eight warps multiply, each slots of its own: a
 * warp reads the columns of X it needs straight into registers, as the mma takes them, so rows of W are the only thing
 * in shared memory. When a rectangle is done the eight add up what they have, in one order, and write it.
 *
 * Blocks do not meet. What one phase writes for the next is words of 32 bits (two bf16, or one f32 where runs of K
 * meet) in memory that was set to a word no result has (NMLP_CUDA_UNWRITTEN); a reader asks until there is none of
 * these. There are two sets of that memory: a launch uses one and clears the other.
 *
 * Columns of X and W are padded with zeros to multiples of 64. Same input, same bits. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_H
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_H

#include <stddef.h>
#include <stdint.h>

enum {
    NMLP_CUDA_BATCH_ROWS_MAX = 32,
    NMLP_CUDA_BATCH_PHASES_MAX = 4,
    NMLP_CUDA_BATCH_SLOTS_MAX = 48,
    NMLP_CUDA_BATCH_SPLITS_MAX = 8,
    NMLP_CUDA_BATCH_GROUP = 16, /* rows: m of the mma */
    NMLP_CUDA_BATCH_BLOCK = 64, /* columns that lie together */
    NMLP_CUDA_BATCH_PIECE_BYTES = NMLP_CUDA_BATCH_GROUP * NMLP_CUDA_BATCH_BLOCK * 2,
    NMLP_CUDA_UNWRITTEN = -1 /* two bf16 or one f32 with all bits set: a NaN that arithmetic does not make */
};

typedef struct nmlp_cuda_batch_factor {
    const void *weight; /* bf16 [N, k] */
    const void *map;    /* of it, for Hopper's copy engine: boxes of a slot */
    const void *x;      /* bf16 [S, x_pitch]; of set 0 */
    int32_t x_pitch;
    int32_t k;           /* a multiple of 64 */
    int32_t from_before; /* x was there before the launch, and is in no set */
} nmlp_cuda_batch_factor;

typedef struct nmlp_cuda_batch_phase {
    nmlp_cuda_batch_factor f[2]; /* the second: up, where the first is gate */
    int32_t n_factors;
    int32_t n; /* N */
    int32_t groups;
    int32_t blocks_k;
    int32_t n_row_parts; /* rectangles along N */
    int32_t n_splits;    /* and along K */
    int16_t split_first[2][NMLP_CUDA_BATCH_SPLITS_MAX +
                           1]; /* per factor, the slot along K each split begins with; the last: where they end */
    int32_t pairs_inverse;     /* 2^16 / (groups * 8), rounded up: to divide by pairs of rows of a rectangle */
    int32_t split_pairs;       /* pairs of results, of all tokens, that each split finishes */
    int32_t first_block;       /* that takes rectangle 0 */
    void *out; /* bf16 words [S, out_pitch] of set 0, columns to a multiple of 64; or, in the last phase, f32 */
    int32_t out_pitch;
    int32_t last;
    void *parts; /* f32 words [row parts][splits][factors][S][16 * groups] of set 0, where n_splits > 1 */
} nmlp_cuda_batch_phase;

typedef struct nmlp_cuda_batch_program {
    nmlp_cuda_batch_phase phase[NMLP_CUDA_BATCH_PHASES_MAX];
    int32_t n_phases;
    int32_t s;
    int32_t n_slots;
    int32_t slot_bytes;
    int32_t sums_bytes;  /* of all warps */
    int32_t n_under_way; /* slots being copied at a time, at most */
    unsigned *tickets;   /* every block of a launch takes one, which tells launches apart */
    char *exchange;      /* set 0, then set 1 */
    int64_t set_bytes;   /* a multiple of 16 */
} nmlp_cuda_batch_program;

#ifdef __cplusplus
extern "C" {
#endif

/* Most groups of a rectangle for s rows, and most blocks_k. */
int32_t nmlp_cuda_batch_groups_max(int32_t s);
int32_t nmlp_cuda_batch_blocks_k_max(int32_t s);
/* Shared memory for the sums of rectangles of that many groups. */
size_t nmlp_cuda_batch_sums_bytes(int32_t s, int32_t groups);
size_t nmlp_cuda_batch_shared_bytes(const nmlp_cuda_batch_program *p);
/* Once per device: allows that much shared memory. Both return a cudaError_t. */
int nmlp_cuda_batch_prepare(size_t shared_bytes);
int nmlp_cuda_batch_launch(const nmlp_cuda_batch_program *p, int grid, void *stream);

#ifdef __cplusplus
}
#endif

#endif
