/* What the roles of a block share: who does what, its part of a phase, its shared memory. */
#ifndef NMLP_CUDA_DECODE_DECODE_BLOCK_CUH
#define NMLP_CUDA_DECODE_DECODE_BLOCK_CUH

#include "cuda/decode/decode_program.h"
#include "cuda/decode/decode_input.cuh"
#include "cuda/decode/decode_ring.cuh"

namespace {

/* Warps 0..7 multiply, one finishes what they summed, one copies. */
enum { FINISHER = NMLP_CUDA_CONSUMER_WARPS, COPIER, THREADS = (COPIER + 1) * 32 };

/* Sums of one warp and matrix, and of one unit; there is room for two units. */
enum { WARP_SUMS = NMLP_CUDA_S_MAX * NMLP_CUDA_UNIT_ROWS, UNIT_SUMS = NMLP_CUDA_CONSUMER_WARPS * 2 * WARP_SUMS };

#ifdef NMLP_CUDA_CLOCKS
__device__ void note_clock(const nmlp_cuda_program &prog, int phase, int event, long long begin) {
    if ((threadIdx.x & 31) == 0 && prog.clocks)
        prog.clocks[((int64_t)blockIdx.x * prog.n_phases + phase) * NMLP_CUDA_CLOCK_EVENTS + event] = clock64() - begin;
}
#define NOTE_CLOCK(phase, event) note_clock(prog, phase, event, mem.sh->begin_clock)
#else
#define NOTE_CLOCK(phase, event) (void)0
#endif

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Where a multiplying warp stands; it takes every CONSUMER_WARPS-th tile. */
struct consumer {
    ring_cursor ring;
    unsigned n_done; /* units */
    int skip;        /* tiles until the next of its own */
};

/* The block's part of a phase, the same for every role. */
__device__ __forceinline__ unit_range my_units(const nmlp_cuda_phase *ph) {
    unit_range r;
    r.groups = (ph->n + NMLP_CUDA_UNIT_ROWS - 1) / NMLP_CUDA_UNIT_ROWS;
    unsigned n_units = (unsigned)r.groups * (unsigned)ph->n_chunks;
    r.begin = (int)(n_units * blockIdx.x / gridDim.x);
    r.end = (int)(n_units * (blockIdx.x + 1) / gridDim.x);
    return r;
}

__device__ __forceinline__ const nmlp_cuda_phase *phase_at(const nmlp_cuda_program &prog, int i) {
    return i < NMLP_CUDA_FIRST_PHASES ? prog.first + i : prog.phases + i;
}

/* Where things lie in the block's shared memory. */
struct block_memory {
    shared_head *sh;
    float *sums;
    __nv_bfloat16 *x;
    __nv_bfloat16 *ring;
};

enum { TILE_ELEMS = NMLP_CUDA_UNIT_ROWS * NMLP_CUDA_TILE_COLS };

/* Of a piece of K; the narrower matrix of two may have none left of it. */
__device__ __forceinline__ int n_tiles(int cols) {
    return (max(cols, 0) + NMLP_CUDA_TILE_COLS - 1) / NMLP_CUDA_TILE_COLS;
}

} // namespace

#endif
