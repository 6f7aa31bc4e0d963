/* The matmul with AVX2. */
#include "trainium/sim/matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { VLEN = 8, MR = 6 };

#define VEC __m256
#define V_ZERO _mm256_setzero_ps()
#define V_SET1(s) _mm256_set1_ps(s)
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define MATMUL_NAME nmlp_sim_matmul_avx2
#include "trainium/sim/matmul_body.h"

#else
typedef int nmlp_sim_matmul_avx2_unused;
#endif
