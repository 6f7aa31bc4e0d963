/* Tiles of quantised weights (decode_quant.h) times the staged rows: codes become bf16 exactly, products are summed in
 * f32 by groups of columns that share a scale, and the scale is applied to the sum. */
#ifndef NMLP_CUDA_DECODE_DECODE_QUANT_CUH
#define NMLP_CUDA_DECODE_DECODE_QUANT_CUH

#include <cuda_fp16.h>

#include "cuda/decode/decode_block.cuh"
#include "cuda/decode/decode_quant.h"

namespace {

/* bf16 pairs: 128 + n has the bits 0x4300 | n for n below 128. */
__device__ __forceinline__ uint32_t nibbles_as_bf16(uint32_t word, int reg) {
    return (word >> (4 * reg) & 0x000f000fu) | 0x43004300u;
}

__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Register `reg` of the mma from a word of Q4: (128 + q + 8) - 136. */
__device__ __forceinline__ uint32_t q4_pair(uint32_t word, int reg) {
    return fma_bf16x2(nibbles_as_bf16(word, reg), 0x3f803f80u, 0xc308c308u);
}

/* From the two words of Q8: 16 (128 + high) - 2304, a multiple of 16, and 128 + low; the sum is q. */
__device__ __forceinline__ uint32_t q8_pair(uint32_t low, uint32_t high, int reg) {
    const uint32_t above = fma_bf16x2(nibbles_as_bf16(high, reg), 0x41804180u, 0xc510c510u);
    return fma_bf16x2(nibbles_as_bf16(low, reg), 0x3f803f80u, above);
}

__device__ __forceinline__ void load_words(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* Sums of codes, times the scales of rows g and g + 8. */
__device__ __forceinline__ void add_scaled(float (&to)[4], const float (&sum)[4], float scale, float scale_below) {
    to[0] = fmaf(sum[0], scale, to[0]);
    to[1] = fmaf(sum[1], scale, to[1]);
    to[2] = fmaf(sum[2], scale_below, to[2]);
    to[3] = fmaf(sum[3], scale_below, to[3]);
}

/* As mma, but the compiler may move it: codes of the next columns are converted while it runs. */
__device__ __forceinline__ void mma_free(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The lane's part of half a tile of the staged rows; columns that are not there are zero. */
struct staged_half {
    uint32_t part[TILE_BLOCKS / 2][2][4];
};

__device__ __forceinline__ void load_staged_half(staged_half &b, const __nv_bfloat16 *x, int x_pitch, int half,
                                                 int cols, int s) {
    const int lane = threadIdx.x & 31;
    const uint32_t row = shared_address(x) + ((lane >> 2) * x_pitch + (lane & 3) * 8) * 2;
    b = {};
#pragma unroll
    for (int i = 0; i < TILE_BLOCKS / 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int col = (half * (TILE_BLOCKS / 2) + i) * TILE_BLOCK + j * 32;
            load_staged(b.part[i][j], row + col * 2, lane < 8 * s && col < cols);
        }
}

__device__ __forceinline__ void multiply_q4(float (&acc)[4], const unsigned char *tile, const __nv_bfloat16 *x,
                                            int x_pitch, int cols, int s) {
    const int lane = threadIdx.x & 31;
    const uint32_t base = shared_address(tile);
    const uint32_t scales_at = base + NMLP_CUDA_DECODE_Q4_CODES + (lane >> 2) * NMLP_CUDA_DECODE_GROUPS * 2;
    uint32_t scales[2][4]; /* eight f16 of row g, and of row g + 8 */
    uint32_t words[TILE_BLOCKS][4];
    staged_half b[2];
#pragma unroll
    for (int block = 0; block < TILE_BLOCKS; block++) load_words(words[block], base + (block * 32 + lane) * 16);
    load_staged_half(b[0], x, x_pitch, 0, cols, s);
    load_words(scales[0], scales_at);
    load_words(scales[1], scales_at + 8 * NMLP_CUDA_DECODE_GROUPS * 2);
    load_staged_half(b[1], x, x_pitch, 1, cols, s);
#pragma unroll
    for (int block = 0; block < TILE_BLOCKS; block++) {
        const float2 above = __half22float2(*reinterpret_cast<const __half2 *>(&scales[0][block]));
        const float2 below = __half22float2(*reinterpret_cast<const __half2 *>(&scales[1][block]));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t(&columns)[4] = b[block / 2].part[block % 2][half];
            float sum[4] = {};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t w = words[block][2 * half + i];
                mma_free(sum, q4_pair(w, 0), q4_pair(w, 1), q4_pair(w, 2), q4_pair(w, 3), columns[2 * i],
                         columns[2 * i + 1]);
            }
            add_scaled(acc, sum, half ? above.y : above.x, half ? below.y : below.x);
        }
    }
}

__device__ __forceinline__ void multiply_q8(float (&acc)[4], const unsigned char *tile, const __nv_bfloat16 *x,
                                            int x_pitch, int cols, int s) {
    const int lane = threadIdx.x & 31;
    const uint32_t base = shared_address(tile);
    const float *const scales = reinterpret_cast<const float *>(tile + NMLP_CUDA_DECODE_Q8_CODES);
    float sum[4][4] = {};
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t words[TILE_BLOCKS][4];
        staged_half b;
#pragma unroll
        for (int i = 0; i < TILE_BLOCKS; i++) load_words(words[i], base + ((part * TILE_BLOCKS + i) * 32 + lane) * 16);
        load_staged_half(b, x, x_pitch, part, cols, s);
#pragma unroll
        for (int i = 0; i < TILE_BLOCKS; i++) {
            const uint32_t(&columns)[4] = b.part[i / 2][i % 2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t low = words[i][2 * j], high = words[i][2 * j + 1];
                mma_free(sum[i % 2 * 2 + j], q8_pair(low, high, 0), q8_pair(low, high, 1), q8_pair(low, high, 2),
                         q8_pair(low, high, 3), columns[2 * j], columns[2 * j + 1]);
            }
        }
    }
    float all[4];
#pragma unroll
    for (int i = 0; i < 4; i++) all[i] = sum[0][i] + sum[1][i] + (sum[2][i] + sum[3][i]);
    add_scaled(acc, all, scales[lane >> 2], scales[(lane >> 2) + 8]);
}

__device__ __forceinline__ void multiply_quantised(float (&acc)[4], int format, const __nv_bfloat16 *stage,
                                                   const __nv_bfloat16 *x, int x_pitch, int cols, int s) {
    const unsigned char *const tile = reinterpret_cast<const unsigned char *>(stage);
    if (format == NMLP_CUDA_DECODE_Q4)
        multiply_q4(acc, tile, x, x_pitch, cols, s);
    else
        multiply_q8(acc, tile, x, x_pitch, cols, s);
}

} // namespace

#endif
