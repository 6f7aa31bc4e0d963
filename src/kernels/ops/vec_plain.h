/* What vec_body.h asks of an instruction set, for those without instructions of their own for it. */
#ifndef NMLP_KERNELS_OPS_VEC_PLAIN_H
#define NMLP_KERNELS_OPS_VEC_PLAIN_H

#include <stdbool.h>

#include "kernels/ops/vec_lanes.h"

static inline lanes at_most(lanes x, lanes bound) { return choose(x > bound, bound, x); }
static inline lanes at_least(lanes x, lanes bound) { return choose(x < bound, bound, x); }

/* Of numbers below 2^22: 1.5 * 2^23 pushes the fraction out. */
static inline lanes nearest_integer(lanes x) { return (x + 12582912.0f) - 12582912.0f; }

/* No lane is larger, or NaN. */
static inline bool all_at_most(lanes x, float bound) {
    for (int i = 0; i < LANES; i++)
        if (!(x[i] <= bound)) return false;
    return true;
}

static inline lanes reciprocal(lanes x) { return 1.0f / x; }

/* In two steps, so that subnormal results and infinity come out as they should. Unsigned: a NaN's n is no number. */
static inline lanes times_power(lanes p, lanes n) {
    n = at_most(n, (lanes){0} + 252.0f); /* beyond infinity already, and both halves are exponents */
    int_lanes power = (int_lanes)(n + 12582912.0f) - 0x4b400000; /* 1.5 * 2^23: the low bits are n */
    int_lanes half = power >> 1;
    uint_lanes first = (uint_lanes)(half + 127) << 23;
    uint_lanes second = (uint_lanes)(power - half + 127) << 23;
    return p * (lanes)first * (lanes)second;
}

#endif
