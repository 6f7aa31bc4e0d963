/* XXH64 (xxHash, 64 bit): tells files apart, keeps no secrets. `xxhsum -H64` prints the same number for seed 0. */
#ifndef NMLP_BASE_HASH64_H
#define NMLP_BASE_HASH64_H

#include <stddef.h>
#include <stdint.h>

uint64_t nmlp_hash64(const void *bytes, size_t len, uint64_t seed);

#endif
