/* The matmul for any CPU; fmaf keeps it equal to the vector versions. */
#include <math.h>

#include "base/cpu.h"
#include "trainium/sim/matmul.h"

enum { VLEN = 4, MR = 8 };

typedef struct vec4 {
    float x[VLEN];
} vec4;

static inline vec4 set1(float x) { return (vec4){{x, x, x, x}}; }
static inline vec4 load(const float *p) { return (vec4){{p[0], p[1], p[2], p[3]}}; }
static inline void store(float *p, vec4 v) {
    for (int i = 0; i < VLEN; i++) p[i] = v.x[i];
}
static inline vec4 fma4(vec4 a, vec4 b, vec4 c) {
    for (int i = 0; i < VLEN; i++) c.x[i] = fmaf(a.x[i], b.x[i], c.x[i]);
    return c;
}

#define VEC vec4
#define V_ZERO set1(0.0f)
#define V_SET1(s) set1(s)
#define V_LOAD(p) load(p)
#define V_STORE(p, v) store(p, v)
#define V_FMA(a, b, c) fma4(a, b, c)
#define MATMUL_NAME nmlp_sim_matmul_generic
#include "trainium/sim/matmul_body.h"

nmlp_sim_matmul_fn *nmlp_sim_matmul_choose(void) {
#if defined(__x86_64__)
    const nmlp_cpu *cpu = nmlp_cpu_get();
    if (cpu->avx512) return nmlp_sim_matmul_avx512;
    if (cpu->avx2_fma) return nmlp_sim_matmul_avx2;
#endif
    return nmlp_sim_matmul_generic;
}
