/* Blocks of 6 x 64 f32 in 24 AVX-512 accumulators, for many rows: 10 loads for 24 multiply-adds, where 12 x 32 takes 14
 * and is slower as soon as anything else wants the load ports. Weights of 2 bytes are widened first. */
#include "kernels/isa/avx512/block_avx512.h"
#include "kernels/isa/avx512/gemm_quant_avx512.h"

enum { MR = 6, STRIPS = 4, WIDTH = STRIPS * NMLP_STRIP };

INLINE void dispatch(const nmlp_gemm_microtile *p, int strips) {
    switch (p->rows) {
    case 1: sum_f32(p, (extent){1, strips, WIDTH}); return;
    case 2: sum_f32(p, (extent){2, strips, WIDTH}); return;
    case 3: sum_f32(p, (extent){3, strips, WIDTH}); return;
    case 4: sum_f32(p, (extent){4, strips, WIDTH}); return;
    case 5: sum_f32(p, (extent){5, strips, WIDTH}); return;
    default: sum_f32(p, (extent){MR, strips, WIDTH}); return;
    }
}

static void block_f32(const nmlp_gemm_microtile *p) {
    if (p->strips == STRIPS)
        dispatch(p, STRIPS);
    else
        dispatch(p, STRIPS / 2);
}

static void widen(float *dst, const void *src, nmlp_dtype dtype, int64_t n) {
    const char *from = src;
    for (int64_t i = 0; i < n; i += 2 * NMLP_STRIP, dst += 2 * NMLP_STRIP, from += NMLP_LINE_BYTES) {
        if (dtype == NMLP_DTYPE_BF16) {
            _mm512_store_ps(dst, even_of(from));
            _mm512_store_ps(dst + NMLP_STRIP, odd_of(from));
        } else {
            _mm512_store_ps(dst, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)from)));
            _mm512_store_ps(dst + NMLP_STRIP, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(from + 32))));
        }
    }
}

const nmlp_gemm nmlp_gemm_avx512 = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(float),
    .microkernel = {[NMLP_DTYPE_F32] = block_f32,
                    [NMLP_DTYPE_Q8] = nmlp_gemm_q8_64,
                    [NMLP_DTYPE_Q4] = nmlp_gemm_q4_64,
                    [NMLP_DTYPE_Q4M] = nmlp_gemm_q4m_64},
    .widen = widen,
};
