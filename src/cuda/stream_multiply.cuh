/* The multiplying warps: tiles of the ring times the staged rows. */
#ifndef NMLP_CUDA_STREAM_MULTIPLY_CUH
#define NMLP_CUDA_STREAM_MULTIPLY_CUH

#include "cuda/stream_block.cuh"

namespace {

/* 32 columns of the staged rows, as the mma's B for two steps of k. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void load_rows(uint4 (&x)[NT], const __nv_bfloat16 *at, int x_pitch, int g, int s) {
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int token = SPLIT ? g >> 1 : i * 8 + g;
        int row = SPLIT ? (g & 1) * s + token : token;
        x[i] = make_uint4(0, 0, 0, 0);
        if (token < s) x[i] = *reinterpret_cast<const uint4 *>(at + row * x_pitch);
    }
}

/* Adds one tile: 16 rows of W times the staged rows. Within 32 columns a lane takes 8 neighbours of both operands, so the columns reach the mma
 * in another order than in memory, the same for both. Two sets of sums keep the tensor cores from waiting for themselves. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void multiply_tile(float (&acc)[NT][2][4], const __nv_bfloat16 *x, int x_pitch, const __nv_bfloat16 *w,
                                              int cols, int s) {
    const int g = (threadIdx.x & 31) >> 2;
    const int t = threadIdx.x & 3;
    const int w_pitch = NMLP_CUDA_TILE_COLS;
    const int n_blocks = cols / 32;
    w += g * w_pitch + t * 8;
    x += t * 8;
#pragma unroll 4
    for (int b = 0; b < n_blocks; b++) {
        uint4 xv[NT];
        uint4 lo = *reinterpret_cast<const uint4 *>(w + b * 32);
        uint4 hi = *reinterpret_cast<const uint4 *>(w + b * 32 + 8 * w_pitch);
        load_rows<NT, SPLIT>(xv, x + b * 32, x_pitch, g, s);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            mma(acc[i][0], lo.x, hi.x, lo.y, hi.y, xv[i].x, xv[i].y);
            mma(acc[i][1], lo.z, hi.z, lo.w, hi.w, xv[i].z, xv[i].w);
        }
    }
}

/* A warp's part of a unit's sums, [token][16 rows]. */
template <int NT, bool SPLIT>
__device__ __forceinline__ void put_sums(float *to, const float (&acc)[NT][2][4], int s) {
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float c[4];
#pragma unroll
        for (int j = 0; j < 4; j++) c[j] = acc[i][0][j] + acc[i][1][j];
        if (SPLIT) {
            if (t >= s) return;
            to[t * 16 + g] = c[0] + c[1];
            to[t * 16 + g + 8] = c[2] + c[3];
        } else {
            float *at = to + (i * 8 + t * 2) * 16 + g;
            at[0] = c[0];
            at[16] = c[1];
            at[8] = c[2];
            at[24] = c[3];
        }
    }
}

template <int NT, bool SPLIT>
__device__ void multiply_phase(const nmlp_cuda_program &prog, const nmlp_cuda_phase *ph, const unit_range units,
                               const block_memory &mem, consumer &at, int n_keys, int phase) {
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
            consumer_sync();
            stage_input<SPLIT>(ph, mem.x, s, piece, n_keys, sh);
            staged = piece;
            if (warp == 0) NOTE_CLOCK(phase, 1);
        }
        const int start = piece * k_chunk;
        const int len[2] = {min(k_of0 - start, k_chunk), min(k_of1 - start, k_chunk)};
        float *here = mem.sums + (at.n_done & 1) * shape<NT, SPLIT>::sums + warp * 2 * shape<NT, SPLIT>::warp_sums;
        int i = at.skip;
#pragma unroll 1 /* code that stays in the instruction cache */
        for (int m = 0; m < n_matrices; m++) {
            float acc[NT][2][4] = {};
            const int n = n_tiles(m ? len[1] : len[0]);
            for (; i < n; i += NMLP_CUDA_CONSUMER_WARPS) {
                const int k0 = i * NMLP_CUDA_TILE_COLS;
                mbar_wait(&sh->full[at.ring.slot], at.ring.parity);
                if (warp == 0 && u == units.begin) NOTE_CLOCK(phase, 2);
                multiply_tile<NT, SPLIT>(acc, mem.x + (m ? second : 0) + k0, x_pitch, mem.ring + at.ring.slot * TILE_ELEMS,
                                         min(NMLP_CUDA_TILE_COLS, (m ? len[1] : len[0]) - k0), s);
                warp_arrive(&sh->empty[at.ring.slot]);
                at.ring.advance(NMLP_CUDA_CONSUMER_WARPS, prog.n_slots);
            }
            i -= n;
            if (m == 0) mbar_wait(&sh->sums_empty[at.n_done & 1], (at.n_done >> 1 & 1) ^ 1);
            put_sums<NT, SPLIT>(here + m * shape<NT, SPLIT>::warp_sums, acc, s);
        }
        at.skip = i;
        warp_arrive(&sh->sums_full[at.n_done & 1]);
        if (--left == 0) {
            left = units.groups;
            piece++;
        }
    }
    if (warp == 0) NOTE_CLOCK(phase, 3);
}

} // namespace

#endif
