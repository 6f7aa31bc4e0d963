/* What the warps of a block of mlp_rows32_sm80.cu share: its shared memory, its tiles of a phase. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_BLOCK_CUH
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_BLOCK_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/mlp/mlp_rows32_sm80.h"
#include "cuda/decode/decode_ring.cuh"

namespace {

enum {
    WARPS = 8, /* that multiply */
    PRODUCER = WARPS,
    THREADS = (WARPS + 1) * 32,
    M16 = NMLP_CUDA_MLP_ROWS32_M16,
    K64 = NMLP_CUDA_MLP_ROWS32_K64,
    TILE_BYTES = NMLP_CUDA_MLP_ROWS32_PIECE_BYTES,
    TOKEN_PITCH = M16 + 4, /* floats; the lanes that write a piece of sums then meet all banks */
    X_REGISTERS = 8        /* of 16 bytes, for one stage's rows */
};

const uint32_t unwritten = (uint32_t)NMLP_CUDA_UNWRITTEN;

/* NT times 8 tokens. */
template <int NT> struct shape {
    static const int tokens = NT * 8;
    static const int groups_max = NT == 4 ? 4 : NT == 2 ? 5 : 8; /* what registers hold sums for */
    static const int blocks_k_max =
        X_REGISTERS / 2 / NT; /* a block of 64 columns takes two registers of 16 bytes per 8 tokens */
    static const int group_sums = tokens * TOKEN_PITCH; /* floats of one warp and group */
};

struct shared_head {
    uint64_t full[NMLP_CUDA_MLP_ROWS32_STAGES_MAX];
    uint64_t empty[NMLP_CUDA_MLP_ROWS32_STAGES_MAX];
    uint64_t sums_free; /* all warps have read them */
    uint32_t set;
};

struct block_memory {
    shared_head *sh;
    float *sums; /* [WARPS][groups][tokens][TOKEN_PITCH] */
    unsigned char *ring;
};

/* A tile of a phase. */
struct block_tile {
    int row;    /* first of W */
    int number; /* along N */
    int split;
    int first[2]; /* stage along K, per factor */
    int n[2];
};

/* Tile `i` of the phase. */
__device__ __forceinline__ block_tile tile_at(const nmlp_cuda_mlp_rows32_phase &ph, int i) {
    block_tile p;
    p.split = 0;
    for (; i >= ph.n_row_tiles; i -= ph.n_row_tiles) p.split++;
    p.number = i;
    p.row = i * ph.groups * M16;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        p.first[m] = ph.split_first[m][p.split];
        p.n[m] = ph.split_first[m][p.split + 1] - p.first[m];
    }
    return p;
}

/* Stages of a tile come in turns of FACTOR_RUN of the first factor and FACTOR_RUN of the second, so that no warp's
 * next stage is more than eight away: a barrier tells this round of the ring from the one before, no more. */
enum { FACTOR_RUN = WARPS / 2 };

/* Place in that order of stage `i` along K of factor `m`; with one factor that is i. */
__device__ __forceinline__ int place_of(const block_tile &p, int m, int i) {
    const int run = i / FACTOR_RUN * FACTOR_RUN;
    return i + (m ? min(run + (int)FACTOR_RUN, p.n[0]) : min(run, p.n[1]));
}

__device__ __forceinline__ int first_tile(const nmlp_cuda_mlp_rows32_phase &ph) {
    const int i = (int)blockIdx.x - ph.first_block;
    return i < 0 ? i + (int)gridDim.x : i;
}

__device__ __forceinline__ int n_tiles(const nmlp_cuda_mlp_rows32_phase &ph) { return ph.n_row_tiles * ph.n_splits; }

} // namespace

#endif
