/* Reproducible pseudo-random numbers: SplitMix64. The same seed gives the same sequence on every machine. */
#ifndef NMLP_BASE_RNG_H
#define NMLP_BASE_RNG_H

#include <stdint.h>

typedef struct nmlp_rng {
    uint64_t state;
} nmlp_rng;

void nmlp_rng_seed(nmlp_rng *rng, uint64_t seed);
uint64_t nmlp_rng_next(nmlp_rng *rng);
double nmlp_rng_uniform(nmlp_rng *rng);           /* [0,1) */
double nmlp_rng_normal(nmlp_rng *rng);            /* mean 0, variance 1 */
int64_t nmlp_rng_below(nmlp_rng *rng, int64_t n); /* 0..n-1 */

#endif
