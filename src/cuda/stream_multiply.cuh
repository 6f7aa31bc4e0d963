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

/* Adds one tile: 16 rows of W times the staged rows. Two sets of sums keep the tensor cores from waiting for themselves. */
__device__ __forceinline__ void multiply_tile(float (&acc)[2][4], const __nv_bfloat16 *x, int x_pitch, const __nv_bfloat16 *w, int cols, int s) {
    const int lane = threadIdx.x & 31;
    const int n_blocks = cols / TILE_BLOCK;
    const uint32_t w_row = shared_address(w) + (lane & 15) * TILE_BLOCK * 2;
    const uint32_t x_row = shared_address(x) + ((lane >> 2) * x_pitch + (lane & 3) * 8) * 2;
    const bool has_row = lane < 8 * s;
    const uint32_t swizzle = (uint32_t)((lane >> 4) ^ (lane & 7));
#pragma unroll 4
    for (int b = 0; b < n_blocks; b++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t wv[2][4];
            uint32_t xv[4] = {};
#pragma unroll
            for (int j = 0; j < 2; j++)
                load_matrices(wv[j], w_row + b * (NMLP_CUDA_UNIT_ROWS * TILE_BLOCK * 2) + ((swizzle ^ (half * 4 + j * 2)) << 4));
            load_staged(xv, x_row + (b * TILE_BLOCK + half * 32) * 2, has_row);
            mma(acc[0], wv[0][0], wv[0][1], wv[0][2], wv[0][3], xv[0], xv[1]);
            mma(acc[1], wv[1][0], wv[1][1], wv[1][2], wv[1][3], xv[2], xv[3]);
        }
    }
}

/* A warp's part of a unit's sums, [token][16 rows]: both halves of each. */
__device__ __forceinline__ void put_sums(float *to, const float (&acc)[2][4], int s) {
    int g = (threadIdx.x & 31) >> 2;
    int t = threadIdx.x & 3;
    if (t >= s) return;
    to[t * 16 + g] = acc[0][0] + acc[1][0] + (acc[0][1] + acc[1][1]);
    to[t * 16 + g + 8] = acc[0][2] + acc[1][2] + (acc[0][3] + acc[1][3]);
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
            float acc[2][4] = {};
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
