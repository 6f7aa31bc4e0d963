/* What the warps of a block of batch.cu share: its shared memory, its rectangles of a phase. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_BLOCK_CUH
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_BLOCK_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/mlp/mlp_rows32_sm80.h"
#include "cuda/decode/decode_ring.cuh"

namespace {

enum {
    WARPS = 8, /* that multiply */
    COPIER = WARPS,
    THREADS = (WARPS + 1) * 32,
    GROUP = NMLP_CUDA_BATCH_GROUP,
    BLOCK = NMLP_CUDA_BATCH_BLOCK,
    PIECE_BYTES = NMLP_CUDA_BATCH_PIECE_BYTES,
    TOKEN_PITCH = GROUP + 4, /* floats; the lanes that write a piece of sums then meet all banks */
    X_REGISTERS = 8          /* of 16 bytes, for one slot's rows */
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
    uint64_t full[NMLP_CUDA_BATCH_SLOTS_MAX];
    uint64_t empty[NMLP_CUDA_BATCH_SLOTS_MAX];
    uint64_t sums_free; /* all warps have read them */
    uint32_t set;
};

struct block_memory {
    shared_head *sh;
    float *sums; /* [WARPS][groups][tokens][TOKEN_PITCH] */
    unsigned char *ring;
};

/* A rectangle of a phase. */
struct part {
    int row;    /* first of W */
    int number; /* along N */
    int split;
    int first[2]; /* slot along K, per factor */
    int n[2];
};

/* Rectangle `i` of the phase. */
__device__ __forceinline__ part part_at(const nmlp_cuda_batch_phase &ph, int i) {
    part p;
    p.split = 0;
    for (; i >= ph.n_row_parts; i -= ph.n_row_parts) p.split++;
    p.number = i;
    p.row = i * ph.groups * GROUP;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        p.first[m] = ph.split_first[m][p.split];
        p.n[m] = ph.split_first[m][p.split + 1] - p.first[m];
    }
    return p;
}

/* Slots of a rectangle come in turns of TURN of the first factor and TURN of the second, so that no warp's next slot is
 * more than eight away: a barrier tells this round of the ring from the one before, no more. */
enum { TURN = WARPS / 2 };

/* Place in that order of slot `i` along K of factor `m`; with one factor that is i. */
__device__ __forceinline__ int place_of(const part &p, int m, int i) {
    const int turn = i / TURN * TURN;
    return i + (m ? min(turn + (int)TURN, p.n[0]) : min(turn, p.n[1]));
}

__device__ __forceinline__ int first_part(const nmlp_cuda_batch_phase &ph) {
    const int i = (int)blockIdx.x - ph.first_block;
    return i < 0 ? i + (int)gridDim.x : i;
}

__device__ __forceinline__ int n_parts(const nmlp_cuda_batch_phase &ph) { return ph.n_row_parts * ph.n_splits; }

} // namespace

#endif
