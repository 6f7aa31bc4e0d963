/* The matmul with AVX-512. */
#include "trainium/sim/matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { VLEN = 16, MR = 12 };

#define VEC __m512
#define V_ZERO _mm512_setzero_ps()
#define V_SET1(s) _mm512_set1_ps(s)
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define MATMUL_NAME nmlp_sim_matmul_avx512
#include "trainium/sim/matmul_body.h"

#else
typedef int nmlp_sim_matmul_avx512_unused;
#endif
