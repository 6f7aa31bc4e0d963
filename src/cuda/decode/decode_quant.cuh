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

/* The lane's part of 64 columns of the staged rows; columns that are not there are zero. */
struct staged_block {
    uint32_t part[2][4];
};

__device__ __forceinline__ staged_block load_block(const __nv_bfloat16 *x, int x_pitch, int block, int cols, int s) {
    const int lane = threadIdx.x & 31;
    const uint32_t row = shared_address(x) + ((lane >> 2) * x_pitch + (lane & 3) * 8) * 2;
    staged_block b = {};
    for (int half = 0; half < 2; half++)
        load_staged(b.part[half], row + (block * TILE_BLOCK + half * 32) * 2,
                    lane < 8 * s && block * TILE_BLOCK < cols);
    return b;
}

__device__ __forceinline__ void multiply_q4(float (&acc)[4], const unsigned char *tile, const __nv_bfloat16 *x,
                                            int x_pitch, int cols, int s) {
    const int lane = threadIdx.x & 31;
    const uint32_t base = shared_address(tile);
    const uint32_t scales_at = base + NMLP_CUDA_DECODE_Q4_CODES + (lane >> 2) * NMLP_CUDA_DECODE_GROUPS * 2;
    uint32_t scales[2][4]; /* eight f16 of row g, and of row g + 8 */
    load_words(scales[0], scales_at);
    load_words(scales[1], scales_at + 8 * NMLP_CUDA_DECODE_GROUPS * 2);
#pragma unroll
    for (int block = 0; block < TILE_BLOCKS; block++) {
        uint32_t words[4];
        if (block * TILE_BLOCK >= cols) break;
        load_words(words, base + (block * 32 + lane) * 16);
        const staged_block b = load_block(x, x_pitch, block, cols, s);
        const float2 above = __half22float2(*reinterpret_cast<const __half2 *>(&scales[0][block]));
        const float2 below = __half22float2(*reinterpret_cast<const __half2 *>(&scales[1][block]));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum[4] = {};
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t w = words[2 * half + i];
                mma(sum, q4_pair(w, 0), q4_pair(w, 1), q4_pair(w, 2), q4_pair(w, 3), b.part[half][2 * i],
                    b.part[half][2 * i + 1]);
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
    float sum[2][4] = {};
#pragma unroll
    for (int block = 0; block < TILE_BLOCKS; block++) {
        if (block * TILE_BLOCK >= cols) break;
        const staged_block b = load_block(x, x_pitch, block, cols, s);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t words[4];
            load_words(words, base + ((2 * block + half) * 32 + lane) * 16);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t low = words[2 * i], high = words[2 * i + 1];
                mma(sum[half], q8_pair(low, high, 0), q8_pair(low, high, 1), q8_pair(low, high, 2),
                    q8_pair(low, high, 3), b.part[half][2 * i], b.part[half][2 * i + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sum[0][i] += sum[1][i];
    add_scaled(acc, sum[0], scales[lane >> 2], scales[(lane >> 2) + 8]);
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
