#include "base/rng.h"

#include <math.h>

void nmlp_rng_seed(nmlp_rng *rng, uint64_t seed) { rng->state = seed; }

uint64_t nmlp_rng_next(nmlp_rng *rng) {
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

double nmlp_rng_uniform(nmlp_rng *rng) { return (double)(nmlp_rng_next(rng) >> 11) * 0x1p-53; }

double nmlp_rng_normal(nmlp_rng *rng) {
    const double two_pi = 6.283185307179586;
    double radius = sqrt(-2.0 * log(1.0 - nmlp_rng_uniform(rng)));
    return radius * cos(two_pi * nmlp_rng_uniform(rng));
}

int64_t nmlp_rng_below(nmlp_rng *rng, int64_t n) { return (int64_t)(nmlp_rng_next(rng) % (uint64_t)n); }
