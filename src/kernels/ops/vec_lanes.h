/* Vectors of 16 floats in the compiler's own notation: one register with AVX-512, two with AVX2, four with SSE. */
#ifndef NMLP_KERNELS_OPS_VEC_LANES_H
#define NMLP_KERNELS_OPS_VEC_LANES_H

#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

typedef float lanes __attribute__((vector_size(64)));
typedef int32_t int_lanes __attribute__((vector_size(64)));
typedef uint32_t uint_lanes __attribute__((vector_size(64)));
typedef uint16_t short_lanes __attribute__((vector_size(32)));

static inline lanes load(const float *x) {
    lanes v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* n < 16 values and `fill` behind them. */
static inline lanes load_part(const float *x, int64_t n, float fill) {
    float part[LANES];
    for (int j = 0; j < LANES; j++) part[j] = fill;
    for (int64_t j = 0; j < n; j++) part[j] = x[j];
    return load(part);
}

static inline void store(float *x, lanes v) { memcpy(x, &v, sizeof v); }

static inline lanes choose(int_lanes mask, lanes yes, lanes no) {
    return (lanes)((mask & (int_lanes)yes) | (~mask & (int_lanes)no));
}

#endif
