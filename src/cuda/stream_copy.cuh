/* The copying warp: tiles of weights into the ring, phase after phase, never waiting for the grid. */
#ifndef NMLP_CUDA_STREAM_COPY_CUH
#define NMLP_CUDA_STREAM_COPY_CUH

#include "cuda/stream_block.cuh"

namespace {

/* Goes through the block's tiles in the order in which the multiplying warps take them. */
struct tile_walk {
    int step;
    int phase;
    int unit;
    int end; /* of the phase's units */
    int groups;
    int piece;
    int group;
    int tile; /* of the unit's */
    int tiles0;
    int tiles;
    const void *map[2]; /* of the phase, as all below */
    const __nv_bfloat16 *weight[2];
    int k[2];
    int n;
    int n_matrices;
    int k_chunk;
};

__device__ __forceinline__ void begin_unit(tile_walk &w) {
    const int start = w.piece * w.k_chunk;
    w.tile = 0;
    w.tiles0 = n_tiles(min(w.k[0] - start, w.k_chunk));
    w.tiles = w.tiles0 + (w.n_matrices == 2 ? n_tiles(min(w.k[1] - start, w.k_chunk)) : 0);
}

/* To the first phase from w.phase on in which the block has units; the step ends without one at phase n_phases. */
__device__ void enter_phase(const nmlp_cuda_program &prog, tile_walk &w) {
    for (; w.phase < prog.n_phases; w.phase++) {
        const nmlp_cuda_phase *ph = phase_at(prog, w.phase);
        if (ph->kind != NMLP_CUDA_MATMUL) continue;
        const unit_range units = my_units(ph);
        if (units.begin == units.end) continue;
        w.unit = units.begin;
        w.end = units.end;
        w.groups = units.groups;
        w.piece = units.begin / units.groups;
        w.group = units.begin - w.piece * units.groups;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            w.map[m] = ph->op[m].map;
            w.weight[m] = static_cast<const __nv_bfloat16 *>(ph->op[m].weight);
            w.k[m] = ph->op[m].k;
        }
        w.n = ph->n;
        w.n_matrices = ph->n_matrices;
        w.k_chunk = ph->k_chunk;
        begin_unit(w);
        return;
    }
}

__device__ __forceinline__ tile_walk begin_walk(const nmlp_cuda_program &prog) {
    tile_walk w;
    w.step = 0;
    w.phase = 0;
    enter_phase(prog, w);
    return w;
}

/* False: there are no more. */
__device__ __forceinline__ bool next_tile(const nmlp_cuda_program &prog, tile_walk &w, tile_source &from) {
    if (w.phase >= prog.n_phases) return false; /* the block has none at all, or had the last */
    if (w.tile == w.tiles) {
        if (++w.group == w.groups) {
            w.group = 0;
            w.piece++;
        }
        if (++w.unit == w.end) {
            w.phase++;
            enter_phase(prog, w);
            if (w.phase >= prog.n_phases) {
                if (++w.step == prog.n_steps) return false;
                w.phase = 0;
                enter_phase(prog, w);
            }
        } else {
            begin_unit(w);
        }
    }
    const bool second = w.tile >= w.tiles0;
    const int start = w.piece * w.k_chunk;
    const int k = second ? w.k[1] : w.k[0];
    from.map = second ? w.map[1] : w.map[0];
    from.data = second ? w.weight[1] : w.weight[0];
    from.pitch = k;
    from.row = w.group * NMLP_CUDA_UNIT_ROWS;
    from.rows = min(NMLP_CUDA_UNIT_ROWS, w.n - from.row);
    from.col = start + (second ? w.tile - w.tiles0 : w.tile) * NMLP_CUDA_TILE_COLS;
    from.cols = min(NMLP_CUDA_TILE_COLS, min(k, start + w.k_chunk) - from.col);
    w.tile++;
    return true;
}

/* Asks L2 for tiles the ring has no room for yet, so that memory stays busy while the block waits for input. */
struct tiles_ahead {
    tile_walk walk;
    int n; /* beyond the one being copied */
};

__device__ __forceinline__ tiles_ahead begin_ahead(const nmlp_cuda_program &prog) {
    tiles_ahead ahead = {begin_walk(prog), 0};
    tile_source skipped;
    while (ahead.n < prog.n_under_way && next_tile(prog, ahead.walk, skipped)) ahead.n++; /* those are copied at once */
    return ahead;
}

/* One tile has been copied. */
__device__ __forceinline__ void fetch_ahead(const nmlp_cuda_program &prog, tiles_ahead &ahead, int lane) {
    const int AT_ONCE = 2; /* nearly caught up: no burst of requests */
    tile_source from;
    ahead.n--;
    for (int i = 0; i < AT_ONCE && ahead.n < prog.n_ahead && next_tile(prog, ahead.walk, from); i++, ahead.n++) prefetch_tile(from, lane);
}

/* Copies under way are kept few: requests queue in L2, and what other warps ask for waits behind them. */
__device__ void copy_weights(const nmlp_cuda_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    shared_head *sh = mem.sh;
    ring_cursor at = {0, 0};
    ring_cursor landing = {0, 0}; /* the oldest tile under way */
    int under_way = 0;
    if (lane < 2) prefetch_map(phase_at(prog, 0)->op[lane].map);
    if (lane < 2 && prog.n_phases > 1) prefetch_map(phase_at(prog, 1)->op[lane].map);
    tile_walk walk = begin_walk(prog);
    tiles_ahead ahead = begin_ahead(prog);
    tile_source from;
    while (next_tile(prog, walk, from)) {
        if (under_way == prog.n_under_way) {
            mbar_wait(&sh->full[landing.slot], landing.parity);
            landing.advance(1, prog.n_slots);
        } else {
            under_way++;
        }
        mbar_wait(&sh->empty[at.slot], at.parity ^ 1);
        fill_slot(mem.ring + at.slot * TILE_ELEMS, &sh->full[at.slot], from, lane);
        at.advance(1, prog.n_slots);
        fetch_ahead(prog, ahead, lane);
        if (walk.tile == walk.tiles && walk.unit + 1 == walk.end) NOTE_CLOCK(walk.phase, 6);
    }
}

} // namespace

#endif
