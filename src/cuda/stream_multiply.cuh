/* The multiplying warps: tiles of the ring times the staged rows. */
#ifndef NMLP_CUDA_STREAM_MULTIPLY_CUH
#define NMLP_CUDA_STREAM_MULTIPLY_CUH

#include "cuda/stream_block.cuh"

namespace {

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

/* A lane's part of 32 columns of the staged rows: column g of the mma is row g, the high half of token g/2 or the low one. Lanes of columns past the last
 * token ask for nothing, which leaves shared memory to the weights. */
__device__ __forceinline__ void load_staged(uint32_t (&r)[4], uint32_t at, bool wanted) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.b32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]) : "r"(at), "r"((uint32_t)wanted) : "memory");
}

/* Sums of a warp: several sets, so that the tensor cores do not wait for themselves. */
enum { SUM_SETS = 4 };

struct tile_sums {
    float set[SUM_SETS][4];
};

/* Where a lane finds its parts of a tile and of the staged rows. */
struct tile_place {
    uint32_t w_row;
    uint32_t swizzle;
    uint32_t x_row;
    bool has_row;
};

/* N neighbouring blocks of columns: all is asked for before the first product. */
template <int N>
__device__ __forceinline__ void multiply_blocks(tile_sums &sums, const tile_place &at, int first) {
    uint32_t wv[N][4][4];
    uint32_t xv[N][2][4];
#pragma unroll
    for (int b = 0; b < N; b++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_matrices(wv[b][i], at.w_row + (first + b) * (NMLP_CUDA_UNIT_ROWS * TILE_BLOCK * 2) + ((at.swizzle ^ (i * 2)) << 4));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            xv[b][half][0] = xv[b][half][1] = xv[b][half][2] = xv[b][half][3] = 0;
            load_staged(xv[b][half], at.x_row + ((first + b) * TILE_BLOCK + half * 32) * 2, at.has_row);
        }
    }
#pragma unroll
    for (int b = 0; b < N; b++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            mma(sums.set[i], wv[b][i][0], wv[b][i][1], wv[b][i][2], wv[b][i][3], xv[b][i / 2][i % 2 * 2], xv[b][i / 2][i % 2 * 2 + 1]);
}

/* Adds one tile: 16 rows of W times the staged rows. */
__device__ __forceinline__ void multiply_tile(tile_sums &sums, const __nv_bfloat16 *x, int x_pitch, const __nv_bfloat16 *w, int cols, int s) {
    const int lane = threadIdx.x & 31;
    const tile_place at = {shared_address(w) + (lane & 15) * TILE_BLOCK * 2, (uint32_t)((lane >> 4) ^ (lane & 7)),
                           shared_address(x) + ((lane >> 2) * x_pitch + (lane & 3) * 8) * 2, lane < 8 * s};
    if (cols == NMLP_CUDA_TILE_COLS) {
        multiply_blocks<2>(sums, at, 0);
        multiply_blocks<2>(sums, at, 2);
        return;
    }
#pragma unroll 1
    for (int b = 0; b < cols / TILE_BLOCK; b++) multiply_blocks<1>(sums, at, b);
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

__device__ void multiply_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const unit_range units,
                               const block_memory &mem, consumer &at, int phase) {
    const int warp = threadIdx.x >> 5;
    const int s = prog.s;
    const int n_matrices = ph->n_matrices;
    const int k_chunk = ph->k_chunk;
    const int k_of0 = ph->op[0].k;
    const int k_of1 = ph->op[1].k;
    const int second = ph->same_x ? 0 : k_chunk; /* where matrix 1 finds its rows */
    const int x_pitch = (n_matrices == 2 && second ? 2 : 1) * k_chunk + NMLP_CUDA_ROW_SKEW;
    shared_head *sh = mem.sh;
    int staged = -1;
    int piece = units.begin / units.groups;
    int left = (piece + 1) * units.groups - units.begin; /* units of this piece */
    for (int u = units.begin; u < units.end; u++, at.n_done++) {
        if (piece != staged) {
            if (staged >= 0) consumer_sync(); /* all are done with the piece before */
            stage_input(ph, mem.x, s, piece, staged < 0, sh);
            staged = piece;
            if (warp == 0) NOTE_CLOCK(phase, 1);
        }
        const int start = piece * k_chunk;
        const int len[2] = {min(k_of0 - start, k_chunk), min(k_of1 - start, k_chunk)};
        const sums_place sums = place_of_unit(at.n_done, s);
        float *here = mem.sums + sums.at + warp * 2 * s * NMLP_CUDA_UNIT_ROWS;
        int i = at.skip;
#pragma unroll 1 /* code that stays in the instruction cache */
        for (int m = 0; m < n_matrices; m++) {
            tile_sums acc = {};
            const int n = n_tiles(m ? len[1] : len[0]);
            for (; i < n; i += NMLP_CUDA_CONSUMER_WARPS) {
                const int k0 = i * NMLP_CUDA_TILE_COLS;
                mbar_wait(&sh->full[at.ring.slot], at.ring.parity);
                if (warp == 0 && u == units.begin) NOTE_CLOCK(phase, 2);
                multiply_tile(acc, mem.x + (m ? second : 0) + k0, x_pitch, mem.ring + at.ring.slot * TILE_ELEMS,
                              min(NMLP_CUDA_TILE_COLS, (m ? len[1] : len[0]) - k0), s);
                warp_arrive(&sh->empty[at.ring.slot]);
                at.ring.advance(NMLP_CUDA_CONSUMER_WARPS, prog.n_slots);
            }
            i -= n;
            if (m == 0) mbar_wait(&sh->sums_empty[sums.slot], sums.parity ^ 1);
            put_sums(here + m * s * NMLP_CUDA_UNIT_ROWS, acc, s);
        }
        at.skip = i;
        warp_arrive(&sh->sums_full[sums.slot]);
        if (--left == 0) {
            left = units.groups;
            piece++;
        }
    }
    if (warp == 0) NOTE_CLOCK(phase, 3);
}

} // namespace

#endif
