/* The consumer warps in phases that read quantised tiles. */
#ifndef NMLP_CUDA_DECODE_DECODE_CONSUMER_QUANT_CUH
#define NMLP_CUDA_DECODE_DECODE_CONSUMER_QUANT_CUH

#include "cuda/decode/decode_block.cuh"
#include "cuda/decode/decode_quant.cuh"

namespace {

/* A phase as its warps need it again and again, in registers. */
struct quant_phase {
    int n_matrices;
    int format[2];
    int tiles[2];  /* of a unit */
    bool together; /* a warp's tiles of both matrices meet the same columns */
    int n_stages;  /* of the ring */
    int stage_bytes;
};

__device__ __forceinline__ quant_phase quant_phase_of(const nmlp_cuda_decode_program &prog,
                                                      const nmlp_cuda_decode_phase *ph, const phase_input &in) {
    const int WARPS = NMLP_CUDA_DECODE_CONSUMER_WARPS;
    quant_phase q = {ph->n_matrices,
                     {ph->op[0].format, ph->op[1].format},
                     {n_tiles(in.len[0]), n_tiles(in.len[1])},
                     false,
                     prog.n_stages,
                     prog.stage_elems * 2};
    asm volatile("" : "+r"(q.n_stages), "+r"(q.stage_bytes)); /* not read from the arguments each time */
    q.together = q.n_matrices == 2 && ph->same_x && q.format[0] == NMLP_CUDA_DECODE_Q4 &&
                 q.format[1] == NMLP_CUDA_DECODE_Q4 && q.tiles[0] == q.tiles[1] && q.tiles[0] % WARPS == 0 &&
                 q.tiles[0] + WARPS <= q.n_stages;
    return q;
}

template <int FORMAT>
__device__ __forceinline__ void take_tile(quant_tile &w, const block_memory &mem, const ring_cursor &at,
                                          const quant_phase &q) {
    mbar_wait(&mem.sh->full[at.stage], at.parity);
    load_tile<FORMAT>(w, reinterpret_cast<const unsigned char *>(mem.ring) + at.stage * q.stage_bytes);
    warp_arrive(&mem.sh->empty[at.stage]);
}

template <int FORMAT>
__device__ __forceinline__ void multiply_one(float (&acc)[2], staged_tile &staged, const block_memory &mem,
                                             const ring_cursor &at, const quant_phase &q, const __nv_bfloat16 *x,
                                             int x_pitch, int cols) {
    quant_tile w;
    take_tile<FORMAT>(w, mem, at, q);
    stage_tile(staged, x, x_pitch, cols, FORMAT);
    multiply_tile<FORMAT>(acc, w, staged);
}

/* The warp's tiles of matrix m of a unit. */
__device__ __forceinline__ void multiply_matrix(float (&acc)[2], staged_tile &staged, const block_memory &mem,
                                                consumer &at, const quant_phase &q, const phase_input &in, int m) {
    const int n = m ? q.tiles[1] : q.tiles[0];
    const int format = m ? q.format[1] : q.format[0];
    for (; at.skip < n; at.skip += NMLP_CUDA_DECODE_CONSUMER_WARPS) {
        const int k0 = at.skip * NMLP_CUDA_DECODE_TILE_COLS;
        const __nv_bfloat16 *const x = mem.x + (m ? in.second : 0) + k0;
        const int cols = (m ? in.len[1] : in.len[0]) - k0;
        if (format == NMLP_CUDA_DECODE_Q4)
            multiply_one<NMLP_CUDA_DECODE_Q4>(acc, staged, mem, at.ring, q, x, in.x_pitch, cols);
        else
            multiply_one<NMLP_CUDA_DECODE_Q8>(acc, staged, mem, at.ring, q, x, in.x_pitch, cols);
        at.ring.advance(NMLP_CUDA_DECODE_CONSUMER_WARPS, q.n_stages);
    }
    at.skip -= n;
}

/* Units up to `end`, of quantised matrices. */
__device__ __forceinline__ void multiply_quant_units(int u, int end, staged_tile &staged, const block_memory &mem,
                                                     consumer &at, const quant_phase &q, const phase_input &in) {
#pragma unroll 1
    for (; u < end; u++, at.n_done++) {
        float *here = await_sums(mem, at);
#pragma unroll 1 /* code that stays in the instruction cache */
        for (int m = 0; m < q.n_matrices; m++) {
            float acc[2] = {0, 0};
            multiply_matrix(acc, staged, mem, at, q, in, m);
            put_quant_sums(here + m * WARP_SUMS, acc, m ? q.format[1] : q.format[0]);
        }
        warp_arrive(&mem.sh->sums_full[at.n_done & 1]);
    }
}

/* The same of Q4, tiles of both matrices at a time: one waits while the other is multiplied. */
__device__ __forceinline__ void multiply_quant_units_together(int u, int end, staged_tile &staged,
                                                              const block_memory &mem, consumer &at,
                                                              const quant_phase &q, const phase_input &in) {
    ring_cursor second = at.ring;
    second.advance_far(q.tiles[0], q.n_stages);
#pragma unroll 1
    for (; u < end; u++, at.n_done++) {
        float acc[2][2] = {};
#pragma unroll 1
        for (int tile = at.skip; tile < q.tiles[0]; tile += NMLP_CUDA_DECODE_CONSUMER_WARPS) {
            const int k0 = tile * NMLP_CUDA_DECODE_TILE_COLS;
            quant_tile w[2];
            take_tile<NMLP_CUDA_DECODE_Q4>(w[0], mem, at.ring, q);
            take_tile<NMLP_CUDA_DECODE_Q4>(w[1], mem, second, q);
            stage_tile(staged, mem.x + k0, in.x_pitch, in.len[0] - k0, NMLP_CUDA_DECODE_Q4);
            multiply_tile<NMLP_CUDA_DECODE_Q4>(acc[0], w[0], staged);
            multiply_tile<NMLP_CUDA_DECODE_Q4>(acc[1], w[1], staged);
            at.ring.advance(NMLP_CUDA_DECODE_CONSUMER_WARPS, q.n_stages);
            second.advance(NMLP_CUDA_DECODE_CONSUMER_WARPS, q.n_stages);
        }
        at.ring.advance_far(q.tiles[0], q.n_stages);
        second.advance_far(q.tiles[0], q.n_stages);
        float *here = await_sums(mem, at);
        put_quant_sums(here, acc[0], NMLP_CUDA_DECODE_Q4);
        put_quant_sums(here + WARP_SUMS, acc[1], NMLP_CUDA_DECODE_Q4);
        warp_arrive(&mem.sh->sums_full[at.n_done & 1]);
    }
}

} // namespace

#endif
