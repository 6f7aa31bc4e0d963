#include <immintrin.h>

#include "bench/probe_internal.h"

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

/* Four streams with prefetch: what reads fastest from memory, and no slower than one from caches. */
uint64_t nmlp_probe_loop_read_avx512(const void *data, size_t bytes) {
    const char *at = data;
    size_t part = bytes / 4;
    __m512i acc[4] = {{0}};
    for (size_t i = 0; i < part; i += 128) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            const char *line = at + j * part + i;
            acc[j] = _mm512_xor_si512(acc[j], _mm512_load_si512(line));
            acc[j] = _mm512_xor_si512(acc[j], _mm512_load_si512(line + 64));
            _mm_prefetch(line + 2048, _MM_HINT_T0);
            _mm_prefetch(line + 2048 + 64, _MM_HINT_T0);
        }
    }
    __m512i all = _mm512_xor_si512(_mm512_xor_si512(acc[0], acc[1]), _mm512_xor_si512(acc[2], acc[3]));
    return (uint64_t)_mm512_reduce_or_epi64(all);
}
