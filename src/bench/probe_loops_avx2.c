#include <immintrin.h>

#include "bench/probe_internal.h"

enum { CHAINS = 12 };

double nmlp_probe_loop_fma_avx2(int64_t n) {
    __m256 acc[CHAINS];
    __m256 x = _mm256_set1_ps(0.999f);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_set1_ps((float)i);
    for (int64_t at = 0; at < n; at++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm256_fmadd_ps(acc[i], x, x);
    }
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    volatile float sink = _mm256_cvtss_f32(acc[0]);
    (void)sink;
    return (double)n * CHAINS * 16.0;
}
