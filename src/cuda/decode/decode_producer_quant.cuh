/* The producer warp of programs with quantised matrices. Their tiles are small, so one lane that fills stage after
 * stage is too slow: a lane fills those of each consumer warp, and all go on to the next tile together. No lane waits
 * at a barrier by itself: the hardware would suspend the warp, and with it lanes whose stages are free. What is in
 * flight is bounded by the ring. */
#ifndef NMLP_CUDA_DECODE_DECODE_PRODUCER_QUANT_CUH
#define NMLP_CUDA_DECODE_DECODE_PRODUCER_QUANT_CUH

#include "cuda/decode/decode_producer.cuh"
#include "cuda/decode/decode_quant.h"

namespace {

#if __CUDA_ARCH__ >= 900
enum { FILLERS = NMLP_CUDA_DECODE_CONSUMER_WARPS };
const uint32_t FILLER_LANES = (1u << FILLERS) - 1;
#else
enum { FILLERS = 1 }; /* copying takes all lanes */
const uint32_t FILLER_LANES = 0xffffffffu;
#endif

/* What a lane passes on next: a tile, a stage with nothing in it (producer_end_step), or nothing any more. */
enum fill_kind { FILL_TILE, FILL_EMPTY, FILL_NONE };

/* A matrix of a phase, in registers. */
struct fill_source {
    const nmlp_cuda_decode_operand *op;
    const unsigned char *tiles; /* NULL: bf16 */
    int tile_bytes;
    int k;
    int row_tiles; /* of 16 rows: all of K */
};

/* Where a lane stands in the program. */
struct fill_place {
    fill_source source[2];
    int n_matrices;
    int n;
    int k_chunk;
    int groups;  /* units of a piece of K */
    int n_units; /* left */
    int piece;
    int group;
    int step;
    int phase;
    int skip; /* tiles of the unit until its next */
};

/* Stages of a lane: every FILLERS-th. */
struct filler {
    int number;
    ring_cursor at;
    fill_place place;
    fill_kind next;
};

__device__ __forceinline__ fill_source source_of(const nmlp_cuda_decode_operand *op) {
    return {op, static_cast<const unsigned char *>(op->tiles), nmlp_cuda_decode_tile_bytes(op->format), op->k,
            n_tiles(op->k)};
}

__device__ __forceinline__ void enter_phase(const nmlp_cuda_decode_program &prog, fill_place &p) {
    const nmlp_cuda_decode_phase *const ph = phase_at(prog, p.phase);
    p.n_units = 0;
    if (ph->kind != NMLP_CUDA_DECODE_MATMUL) return;
    const unit_range units = my_units(ph);
    p.source[0] = source_of(&ph->op[0]);
    p.source[1] = source_of(&ph->op[1]);
    p.n_matrices = ph->n_matrices;
    p.n = ph->n;
    p.k_chunk = ph->k_chunk;
    p.groups = units.groups;
    p.n_units = units.end - units.begin;
    p.piece = units.begin / units.groups;
    p.group = units.begin - p.piece * units.groups;
}

/* The maps of a later phase start for TMA. */
__device__ __forceinline__ void prefetch_maps_ahead(const nmlp_cuda_decode_program &prog, const filler &c) {
    const int ahead = c.place.phase + MAPS_AHEAD;
    if (c.number < 2 && ahead < prog.n_phases && phase_at(prog, ahead)->op[c.number].format == 0)
        prefetch_map(phase_at(prog, ahead)->op[c.number].map);
}

/* Of matrix m in the unit's piece of K. */
__device__ __forceinline__ int tiles_of(const fill_place &p, int m) {
    return n_tiles(min(p.source[m].k - p.piece * p.k_chunk, p.k_chunk));
}

__device__ __forceinline__ void next_unit(fill_place &p) {
    p.n_units--;
    if (++p.group < p.groups) return;
    p.group = 0;
    p.piece++;
}

/* Whether the step, which has just ended, leaves a stage of the lane to be passed on empty. Its place is then that of
 * the next step. */
__device__ __forceinline__ bool owes_empty(filler &c) {
    if (FILLERS == 1) return c.at.stage % NMLP_CUDA_DECODE_CONSUMER_WARPS != 0;
    const int rest = (c.number - c.place.skip) & (FILLERS - 1);
    c.place.skip = c.number;
    return rest != 0 && c.number >= rest;
}

/* Goes to the lane's next tile. */
__device__ __forceinline__ fill_kind find_next(const nmlp_cuda_decode_program &prog, const block_memory &mem,
                                               filler &c) {
    fill_place &p = c.place;
    for (;;) {
        for (; p.n_units > 0; next_unit(p)) {
            const int tiles = tiles_of(p, 0) + (p.n_matrices == 2 ? tiles_of(p, 1) : 0);
            if (p.skip < tiles) return FILL_TILE;
            p.skip -= tiles;
        }
        prefetch_maps_ahead(prog, c);
        NOTE_CLOCK(p.phase, 6);
        if (++p.phase == prog.n_phases) {
            if (++p.step == prog.n_steps) return FILL_NONE;
            p.phase = 0;
            enter_phase(prog, p);
            if (owes_empty(c)) return FILL_EMPTY;
        } else {
            enter_phase(prog, p);
        }
    }
}

/* By one lane, or where copying takes all of them by the whole warp. */
__device__ __forceinline__ void fill_tile(const fill_place &p, __nv_bfloat16 *stage, uint64_t *full, int lane) {
    const int of_first = tiles_of(p, 0);
    const bool second = p.skip >= of_first;
    const fill_source source = second ? p.source[1] : p.source[0];
    const int start = p.piece * p.k_chunk;
    const int k0 = start + (second ? p.skip - of_first : p.skip) * NMLP_CUDA_DECODE_TILE_COLS;
    if (source.tiles) {
        const int64_t number = (int64_t)p.group * source.row_tiles + k0 / NMLP_CUDA_DECODE_TILE_COLS;
        fill_stage_flat(stage, full, source.tiles + number * source.tile_bytes, source.tile_bytes, lane);
        return;
    }
    const int row = p.group * NMLP_CUDA_DECODE_TILE_ROWS;
    const tile_source from = {source.op->map,
                              static_cast<const __nv_bfloat16 *>(source.op->weight),
                              source.k,
                              row,
                              min(NMLP_CUDA_DECODE_TILE_ROWS, p.n - row),
                              k0,
                              min(NMLP_CUDA_DECODE_TILE_COLS, min(source.k, start + p.k_chunk) - k0)};
    fill_stage<true>(stage, full, from, lane);
}

__device__ __forceinline__ bool may_fill(const block_memory &mem, const filler &c) {
    return mbar_test(&mem.sh->empty[c.at.stage], c.at.parity ^ 1);
}

__device__ __forceinline__ void fill_next(const nmlp_cuda_decode_program &prog, const block_memory &mem, filler &c,
                                          int lane) {
    uint64_t *const full = &mem.sh->full[c.at.stage];
    if (c.next == FILL_TILE) {
        fill_tile(c.place, mem.ring + c.at.stage * prog.stage_elems, full, lane);
        c.place.skip += FILLERS;
    } else {
        fill_stage_empty(full, lane);
    }
    c.at.advance(FILLERS, prog.n_stages);
}

__device__ void produce_quantised(const nmlp_cuda_decode_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    const int number = FILLERS == 1 ? 0 : lane;
    if (number >= FILLERS) return;
    filler c = {number, {number, 0}, {}, FILL_TILE};
    c.place.skip = number;
    enter_phase(prog, c.place);
    do {
        const bool owes = FILLERS == 1 && c.next == FILL_EMPTY && owes_empty(c); /* several in a row */
        if (!owes && c.next != FILL_NONE) c.next = find_next(prog, mem, c);
        bool waits = c.next != FILL_NONE;
        while (__any_sync(FILLER_LANES, waits))
            if (waits && may_fill(mem, c)) {
                fill_next(prog, mem, c, FILLERS == 1 ? lane : 0);
                waits = false;
            }
    } while (__any_sync(FILLER_LANES, c.next != FILL_NONE));
}

} // namespace

#endif
