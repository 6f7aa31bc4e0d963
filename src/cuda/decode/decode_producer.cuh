/* The producer warp: tiles of weights into the ring, phase after phase, never waiting for the grid. */
#ifndef NMLP_CUDA_DECODE_DECODE_PRODUCER_CUH
#define NMLP_CUDA_DECODE_DECODE_PRODUCER_CUH

#include "cuda/decode/decode_block.cuh"

namespace {

/* Where the producer warp stands. Copies in flight are kept few: requests queue in L2, and what other warps ask for
 * (inputs, keys) waits behind them. */
struct producer {
    ring_cursor at;
    ring_cursor landing; /* the oldest tile in flight */
    int in_flight;
};

__device__ __forceinline__ __nv_bfloat16 *acquire_stage(const nmlp_cuda_decode_program &prog, const block_memory &mem,
                                                        producer &c) {
    shared_head *sh = mem.sh;
    if (c.in_flight == prog.n_in_flight) {
        mbar_wait(&sh->full[c.landing.stage], c.landing.parity);
        c.landing.advance(1, prog.n_stages);
    } else {
        c.in_flight++;
    }
    mbar_wait(&sh->empty[c.at.stage], c.at.parity ^ 1);
    return mem.ring + c.at.stage * TILE_ELEMS;
}

__device__ void produce_phase(const nmlp_cuda_decode_program &prog, const nmlp_cuda_decode_phase *ph,
                              const block_memory &mem, producer &c) {
    const int lane = threadIdx.x & 31;
    const unit_range units = my_units(ph);
    const __nv_bfloat16 *const w0 = static_cast<const __nv_bfloat16 *>(ph->op[0].weight);
    const __nv_bfloat16 *const w1 = static_cast<const __nv_bfloat16 *>(ph->op[1].weight);
    const void *const map0 = ph->op[0].map;
    const void *const map1 = ph->op[1].map;
    const int k_of0 = ph->op[0].k;
    const int k_of1 = ph->op[1].k;
    const int n = ph->n;
    const int n_matrices = ph->n_matrices;
    const int k_chunk = ph->k_chunk;
    int piece = units.begin / units.groups;
    int group = units.begin - piece * units.groups;
    for (int u = units.begin; u < units.end; u++) {
        const int start = piece * k_chunk;
        const int len0 = min(k_of0 - start, k_chunk);
        const int tiles0 = n_tiles(len0);
        const int tiles = tiles0 + (n_matrices == 2 ? n_tiles(min(k_of1 - start, k_chunk)) : 0);
        const int rows = min(NMLP_CUDA_DECODE_TILE_ROWS, n - group * NMLP_CUDA_DECODE_TILE_ROWS);
        for (int i = 0; i < tiles; i++) {
            const bool second = i >= tiles0;
            const int k = second ? k_of1 : k_of0;
            const int k0 = start + (second ? i - tiles0 : i) * NMLP_CUDA_DECODE_TILE_COLS;
            const int cols = min(NMLP_CUDA_DECODE_TILE_COLS, min(k, start + k_chunk) - k0);
            __nv_bfloat16 *stage = acquire_stage(prog, mem, c);
            const tile_source from = {
                second ? map1 : map0, second ? w1 : w0, k, group * NMLP_CUDA_DECODE_TILE_ROWS, rows, k0, cols};
            fill_stage<true>(stage, &mem.sh->full[c.at.stage], from, lane);
            c.at.advance(1, prog.n_stages);
        }
        if (++group == units.groups) {
            group = 0;
            piece++;
        }
    }
}

/* Every step begins with a tile of warp 0, so that sums are made in the same order in every step: stages until there
 * are passed on empty. */
__device__ void producer_end_step(const nmlp_cuda_decode_program &prog, const block_memory &mem, producer &c) {
    while (c.at.stage % NMLP_CUDA_DECODE_CONSUMER_WARPS != 0) {
        acquire_stage(prog, mem, c);
        fill_stage_empty(&mem.sh->full[c.at.stage], threadIdx.x & 31);
        c.at.advance(1, prog.n_stages);
    }
}

/* Maps are loaded so many phases before their use. */
enum { MAPS_AHEAD = 3 };

/* The first of them, each by another consumer warp, which has nothing to do yet. */
__device__ __forceinline__ void prefetch_first_map(const nmlp_cuda_decode_program &prog, int warp) {
    if (warp < 2 * MAPS_AHEAD && warp / 2 < prog.n_phases && (threadIdx.x & 31) == 0)
        prefetch_map(phase_at(prog, warp / 2)->op[warp % 2].map);
}

__device__ void produce(const nmlp_cuda_decode_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    producer c = {{0, 0}, {0, 0}, 0};
    for (int step = 0; step < prog.n_steps; step++) {
        for (int i = 0; i < prog.n_phases; i++) {
            const nmlp_cuda_decode_phase *ph = phase_at(prog, i);
            if (ph->kind == NMLP_CUDA_DECODE_MATMUL) produce_phase(prog, ph, mem, c);
            if (lane < 2 && i + MAPS_AHEAD < prog.n_phases) prefetch_map(phase_at(prog, i + MAPS_AHEAD)->op[lane].map);
            NOTE_CLOCK(i, 6);
        }
        if (step + 1 < prog.n_steps) producer_end_step(prog, mem, c);
    }
}

} // namespace

#endif
