/* The consumer warps: tiles of the ring times the staged rows. */
#ifndef NMLP_CUDA_DECODE_DECODE_CONSUMER_CUH
#define NMLP_CUDA_DECODE_DECODE_CONSUMER_CUH

#include "cuda/decode/decode_block.cuh"
#include "cuda/decode/decode_consumer_quant.cuh"

namespace {

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Sums of a warp: several sets, so that the tensor cores do not wait for themselves. */
enum { SUM_SETS = 4 };

struct tile_sums {
    float set[SUM_SETS][4];
};

/* Half a tile in registers, as the mma takes it. */
enum { HALF_BLOCKS = TILE_BLOCKS / 2 };

struct half_tile {
    uint32_t part[HALF_BLOCKS][4][4];
};

__device__ __forceinline__ void load_half(half_tile &w, const __nv_bfloat16 *tile, int half) {
    const int lane = threadIdx.x & 31;
    const uint32_t row = shared_address(tile) + (lane & 15) * TILE_BLOCK * 2 +
                         half * HALF_BLOCKS * NMLP_CUDA_DECODE_TILE_ROWS * TILE_BLOCK * 2;
    const uint32_t swizzle = (uint32_t)((lane >> 4) ^ (lane & 7));
#pragma unroll
    for (int b = 0; b < HALF_BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_matrices(w.part[b][i],
                          row + b * (NMLP_CUDA_DECODE_TILE_ROWS * TILE_BLOCK * 2) + ((swizzle ^ (i * 2)) << 4));
}

/* Adds the first `cols` columns of half a tile: 16 rows of W times the staged rows. */
__device__ __forceinline__ void multiply_half(tile_sums &sums, const half_tile &w, const __nv_bfloat16 *x, int x_pitch,
                                              int cols, int s) {
    const int lane = threadIdx.x & 31;
    const uint32_t x_row = shared_address(x) + ((lane >> 2) * x_pitch + (lane & 3) * 8) * 2;
    uint32_t xv[HALF_BLOCKS][2][4] = {};
#pragma unroll
    for (int b = 0; b < HALF_BLOCKS; b++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            load_staged(xv[b][half], x_row + (b * TILE_BLOCK + half * 32) * 2, lane < 8 * s && b * TILE_BLOCK < cols);
#pragma unroll
    for (int b = 0; b < HALF_BLOCKS; b++) {
        if (b * TILE_BLOCK >= cols) break;
#pragma unroll
        for (int i = 0; i < 4; i++)
            mma(sums.set[i], w.part[b][i][0], w.part[b][i][1], w.part[b][i][2], w.part[b][i][3],
                xv[b][i / 2][i % 2 * 2], xv[b][i / 2][i % 2 * 2 + 1]);
    }
}

/* A warp's part of a unit's sums, [token][16 rows]: both halves of each. */
__device__ __forceinline__ void put_sums(float *to, const tile_sums &sums, int s) {
    const int g = (threadIdx.x & 31) >> 2;
    const int t = threadIdx.x & 3;
    if (t >= s) return;
    float sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = sums.set[0][i] + sums.set[1][i] + (sums.set[2][i] + sums.set[3][i]);
    to[t * 16 + g] = sum[0] + sum[1];
    to[t * 16 + g + 8] = sum[2] + sum[3];
}

/* See producer_end_step. The step's tiles end before tile `rest` of eight; stages of that warp and those after it are
 * empty. */
__device__ __forceinline__ void consumer_end_step(const block_memory &mem, consumer &at, int n_stages) {
    const int warp = threadIdx.x >> 5;
    const int rest = (warp - at.skip) & (NMLP_CUDA_DECODE_CONSUMER_WARPS - 1);
    at.skip = warp;
    if (rest == 0 || warp < rest) return;
    mbar_wait(&mem.sh->full[at.ring.stage], at.ring.parity);
    warp_arrive(&mem.sh->empty[at.ring.stage]);
    at.ring.advance(NMLP_CUDA_DECODE_CONSUMER_WARPS, n_stages);
}

/* Units up to `end`, of bf16. `held`: the first tile's first half is in w already. */
template <bool QUANTISED>
__device__ __forceinline__ void multiply_units(const nmlp_cuda_decode_program &prog, const nmlp_cuda_decode_phase *ph,
                                               int u, int end, const block_memory &mem, consumer &at,
                                               const phase_input &in, half_tile &w, bool held, int phase) {
    const bool notes = (threadIdx.x >> 5) == 0;
    const int s = prog.s;
    const int n_matrices = ph->n_matrices;
    const int stage_elems = QUANTISED ? prog.stage_elems : (int)TILE_ELEMS;
    shared_head *sh = mem.sh;
#pragma unroll 1
    for (; u < end; u++, at.n_done++) {
        float *here = await_sums(mem, at);
#pragma unroll 1 /* code that stays in the instruction cache */
        for (int m = 0; m < n_matrices; m++) {
            tile_sums acc = {};
            const int len = m ? in.len[1] : in.len[0];
            const int n = n_tiles(len);
            for (; at.skip < n; at.skip += NMLP_CUDA_DECODE_CONSUMER_WARPS) {
                const int k0 = at.skip * NMLP_CUDA_DECODE_TILE_COLS;
                const __nv_bfloat16 *const tile = mem.ring + at.ring.stage * stage_elems;
                const __nv_bfloat16 *const x = mem.x + (m ? in.second : 0) + k0;
                half_tile rest;
                if (!held) mbar_wait(&sh->full[at.ring.stage], at.ring.parity);
                if (notes) NOTE_CLOCK(phase, 2);
                if (!held) load_half(w, tile, 0);
                load_half(rest, tile, 1);
                multiply_half(acc, w, x, in.x_pitch, len - k0, s);
                multiply_half(acc, rest, x + NMLP_CUDA_DECODE_TILE_COLS / 2, in.x_pitch,
                              len - k0 - NMLP_CUDA_DECODE_TILE_COLS / 2, s);
                held = false;
                warp_arrive(&sh->empty[at.ring.stage]);
                at.ring.advance(NMLP_CUDA_DECODE_CONSUMER_WARPS, prog.n_stages);
            }
            at.skip -= n;
            put_sums(here + m * WARP_SUMS, acc, s);
        }
        warp_arrive(&sh->sums_full[at.n_done & 1]);
    }
}

/* HOLDS: there are registers for half a tile while the input is waited for. QUANTISED: some phases read quantised
 * tiles, of all of their matrices and for one token. */
template <bool HOLDS, bool QUANTISED>
__device__ void multiply_phase(const nmlp_cuda_decode_program &prog, const nmlp_cuda_decode_phase *ph,
                               const unit_range units, const block_memory &mem, consumer &at, int phase) {
    const bool quantised = QUANTISED && ph->op[0].format;
    int u = units.begin;
    for (int piece = u / units.groups; u < units.end; piece++) {
        const bool first = u == units.begin;
        half_tile w;
        bool held = false;           /* the next tile's first half is in w: it was there before the input */
        if (!first) consumer_sync(); /* all are done with the piece before */
        stage_input(ph, mem.x, quantised ? STAGED_SCALE : 1.0f, prog.s, piece, first, mem.sh, [&]() {
            if (!HOLDS || QUANTISED || at.skip >= n_tiles(input_of(ph, piece).len[0]) ||
                !mbar_is_done(&mem.sh->full[at.ring.stage], at.ring.parity))
                return;
            load_half(w, mem.ring + at.ring.stage * TILE_ELEMS, 0);
            held = true;
        });
        if ((threadIdx.x >> 5) == 0) NOTE_CLOCK(phase, 1);
        const int end = min(units.end, (piece + 1) * units.groups);
        const phase_input in = input_of(ph, piece);
        if (!quantised) {
            multiply_units<QUANTISED>(prog, ph, u, end, mem, at, in, w, held, phase);
        } else {
            const quant_phase q = quant_phase_of(prog, ph, in);
            staged_tile staged = {};
            if (q.together)
                multiply_quant_units_together(u, end, staged, mem, at, q, in);
            else
                multiply_quant_units(u, end, staged, mem, at, q, in);
        }
        u = end;
    }
    if ((threadIdx.x >> 5) == 0) NOTE_CLOCK(phase, 3);
}

} // namespace

#endif
