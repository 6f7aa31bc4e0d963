/* Tiles of quantised weights (decode_quant.h) times the staged row of one token.
 *
 * Codes become bf16 without arithmetic. A bf16 whose upper eight bits are zero is its lower eight bits times 2^-133: up
 * to 127 it is subnormal, which the tensor cores multiply exactly, and above that the code's highest bit is the lowest
 * of the exponent. So a code is masked out of its word and is then a factor of the product. Codes are stored with an
 * offset; the offset times the row is subtracted, as the value that sums begin with. The row is multiplied by 2^64
 * before, so that all sums are normal numbers of f32, and what leaves the warp by what is left.
 *
 * One token has two of the eight columns of the mma. Four groups of 32 columns of K take two each: their sums stay
 * apart in one accumulator, and a lane applies the scales of one group. */
#ifndef NMLP_CUDA_DECODE_DECODE_QUANT_CUH
#define NMLP_CUDA_DECODE_DECODE_QUANT_CUH

#include <cuda_fp16.h>

#include "cuda/decode/decode_block.cuh"
#include "cuda/decode/decode_quant.h"

namespace {

const float STAGED_SCALE = 0x1p64f;

enum {
    GROUP_COLS = 32,
    GROUPS = NMLP_CUDA_DECODE_GROUPS,
    GROUPS_TOGETHER = 4,
    GROUP_SETS = GROUPS / GROUPS_TOGETHER,
    GROUP_STEPS = GROUP_COLS / 16
};

__device__ __forceinline__ void load_words(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* c = a b + start; the compiler may move it. */
__device__ __forceinline__ void mma_from(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                         const float *start) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(start[0]), "f"(start[1]), "f"(start[2]),
          "f"(start[3]));
}

/* Codes of a step of 16 columns of a group times the row. */
__device__ __forceinline__ void add_columns(float (&sum)[4], const uint32_t (&codes)[4], const uint32_t (&row)[4],
                                            int step, const float *before) {
    mma_from(sum, codes, row[2 * step], row[2 * step + 1], before);
}

/* The lane's part of the row for a tile, and the sums of the offset. They stay where several tiles meet the same
 * columns. */
struct staged_tile {
    uint32_t part[GROUPS][4]; /* zero in lanes whose columns of the mma belong to other groups */
    float start[GROUP_SETS][4];
    const __nv_bfloat16 *from; /* NULL: none */
    int format;
};

/* Minus the offset, as codes of rows g and g + 8 are: those of Q4's second are 16 times as large. */
__device__ __forceinline__ void begin_sums(staged_tile &b, int format) {
    const uint32_t above = format == NMLP_CUDA_DECODE_Q4 ? 0x80088008u : 0x80808080u;
    const uint32_t below = 0x80808080u;
    const uint32_t offset[4] = {above, below, above, below};
    b.format = format;
    const float none[4] = {0, 0, 0, 0};
    float sum[GROUP_SETS][GROUP_STEPS][4];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int step = 0; step < GROUP_STEPS; step++)
            add_columns(sum[g / GROUPS_TOGETHER][step], offset, b.part[g], step,
                        g % GROUPS_TOGETHER ? sum[g / GROUPS_TOGETHER][step] : none);
#pragma unroll
    for (int set = 0; set < GROUP_SETS; set++)
#pragma unroll
        for (int i = 0; i < 4; i++) b.start[set][i] = sum[set][0][i] + sum[set][1][i];
}

/* Columns from `cols` on are not there. */
__device__ __forceinline__ void stage_tile(staged_tile &b, const __nv_bfloat16 *x, int x_pitch, int cols, int format) {
    const int lane = threadIdx.x & 31;
    const uint32_t row = shared_address(x) + ((lane >> 2 & 1) * x_pitch + (lane & 3) * 8) * 2;
    if (b.from == x && b.format == format) return;
    if (cols < NMLP_CUDA_DECODE_TILE_COLS) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
#pragma unroll
            for (int i = 0; i < 4; i++) b.part[g][i] = 0;
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        load_staged(b.part[g], row + g * GROUP_COLS * 2, lane >> 3 == g % GROUPS_TOGETHER && g * GROUP_COLS < cols);
    b.from = x;
    begin_sums(b, format);
}

/* A tile in registers: its stage is free again. */
struct quant_tile {
    uint32_t words[GROUPS][4]; /* of Q4 the first half */
    float scale[2][GROUP_SETS];
};

__device__ __forceinline__ float2 halves_of(uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}

template <int FORMAT> __device__ __forceinline__ void load_tile(quant_tile &w, const void *tile) {
    const int lane = threadIdx.x & 31;
    const uint32_t base = shared_address(tile);
    const int loads = FORMAT == NMLP_CUDA_DECODE_Q4 ? GROUPS / 2 : GROUPS;
#pragma unroll
    for (int i = 0; i < loads; i++) load_words(w.words[i], base + (i * 32 + lane) * 16);
    if (FORMAT == NMLP_CUDA_DECODE_Q4) {
        uint32_t pair[2];
        asm volatile("ld.shared.v2.b32 {%0,%1}, [%2];"
                     : "=r"(pair[0]), "=r"(pair[1])
                     : "r"(base + NMLP_CUDA_DECODE_Q4_CODES + lane * 8)
                     : "memory");
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float2 of = halves_of(pair[half]);
            w.scale[half][0] = of.x;
            w.scale[half][1] = of.y;
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; half++)
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(w.scale[half][0])
                         : "r"(base + NMLP_CUDA_DECODE_Q8_CODES + ((lane >> 2) + half * 8) * 4)
                         : "memory");
    }
}

/* Registers of a step of 16 columns for the mma. */
__device__ __forceinline__ void q4_codes(uint32_t (&a)[4], uint32_t word) {
    const uint32_t later = word >> 8;
    a[0] = word & 0x000f000fu;
    a[1] = word & 0x00f000f0u;
    a[2] = later & 0x000f000fu;
    a[3] = later & 0x00f000f0u;
}

__device__ __forceinline__ void q8_codes(uint32_t (&a)[4], uint32_t first, uint32_t second) {
    a[0] = first & 0x00ff00ffu;
    a[1] = __byte_perm(first, 0, 0x4341);
    a[2] = second & 0x00ff00ffu;
    a[3] = __byte_perm(second, 0, 0x4341);
}

/* Adds the tile's products to the lane's part of rows g and g + 8. */
template <int FORMAT>
__device__ __forceinline__ void multiply_tile(float (&acc)[2], const quant_tile &w, const staged_tile &b) {
    const float none[4] = {0, 0, 0, 0};
    float sum[GROUP_SETS][GROUP_STEPS][4];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
        for (int step = 0; step < GROUP_STEPS; step++) {
            const int set = g / GROUPS_TOGETHER;
            const int number = g * GROUP_STEPS + step;
            uint32_t a[4];
            if (FORMAT == NMLP_CUDA_DECODE_Q4)
                q4_codes(a, w.words[number / 4][number % 4]);
            else
                q8_codes(a, w.words[number / 2][number % 2 * 2], w.words[number / 2][number % 2 * 2 + 1]);
            const float *const begin = step ? none : b.start[set];
            add_columns(sum[set][step], a, b.part[g], step, g % GROUPS_TOGETHER ? sum[set][step] : begin);
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float of[GROUP_SETS];
#pragma unroll
        for (int set = 0; set < GROUP_SETS; set++)
            of[set] = (sum[set][0][2 * half] + sum[set][1][2 * half]) +
                      (sum[set][0][2 * half + 1] + sum[set][1][2 * half + 1]);
        if (FORMAT == NMLP_CUDA_DECODE_Q4)
            acc[half] = fmaf(of[1], w.scale[half][1], fmaf(of[0], w.scale[half][0], acc[half]));
        else
            acc[half] = fmaf(of[0] + of[1], w.scale[half][0], acc[half]);
    }
}

/* A warp's part of a unit's sums, [16 rows]. */
__device__ __forceinline__ void put_quant_sums(float *to, const float (&acc)[2], int format) {
    const int lane = threadIdx.x & 31;
    const float below = format == NMLP_CUDA_DECODE_Q4 ? 0x1p65f : 0x1p69f;
    float sum[2] = {acc[0] * 0x1p69f, acc[1] * below};
#pragma unroll
    for (int d = 1; d < GROUPS_TOGETHER; d *= 2)
#pragma unroll
        for (int half = 0; half < 2; half++) sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], d);
    if (lane % GROUPS_TOGETHER == 0) to[lane / GROUPS_TOGETHER] = sum[0];
    if (lane % GROUPS_TOGETHER == 1) to[lane / GROUPS_TOGETHER + 8] = sum[1];
}

} // namespace

#endif
