#include <immintrin.h>

#include "probe_int.h"

enum { CHAINS = 16 };

double nmlp_probe_loop_fma_avx512(int64_t n) {
    __m512 acc[CHAINS];
    __m512 x = _mm512_set1_ps(0.999f);
    for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_set1_ps((float)i);
    for (int64_t at = 0; at < n; at++) {
#pragma GCC unroll 16
        for (int i = 0; i < CHAINS; i++) acc[i] = _mm512_fmadd_ps(acc[i], x, x);
    }
    for (int i = 1; i < CHAINS; i++) acc[0] = _mm512_add_ps(acc[0], acc[i]);
    volatile float sink = _mm512_cvtss_f32(acc[0]);
    (void)sink;
    return (double)n * CHAINS * 32.0;
}

uint64_t nmlp_probe_loop_read_avx512(const void *data, size_t bytes) {
    const char *at = data;
    __m512i acc[4] = {{0}};
    for (size_t i = 0; i < bytes; i += 512) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) acc[j & 3] = _mm512_xor_si512(acc[j & 3], _mm512_load_si512(at + i + 64 * (size_t)j));
        _mm_prefetch(at + i + 4096, _MM_HINT_T0);
    }
    __m512i all = _mm512_xor_si512(_mm512_xor_si512(acc[0], acc[1]), _mm512_xor_si512(acc[2], acc[3]));
    return (uint64_t)_mm512_reduce_or_epi64(all);
}
