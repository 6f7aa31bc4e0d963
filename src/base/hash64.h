/* XXH64 (xxHash, 64 bit): tells files apart, keeps no secrets. `xxhsum -H64` prints the same number for seed 0. */
#ifndef NMLP_BASE_HASH64_H
#define NMLP_BASE_HASH64_H

#include <stddef.h>
#include <stdint.h>

uint64_t nmlp_hash64(const void *bytes, size_t len, uint64_t seed);

/* The same in pieces: begin, add any number of times, end gives the number of all bytes together. */
typedef struct nmlp_hash64_state {
    uint64_t lane[4];
    uint64_t seed;
    uint64_t total_bytes;
    unsigned char rest[32]; /* bytes that do not fill a stripe yet */
    size_t n_rest;
} nmlp_hash64_state;

void nmlp_hash64_begin(nmlp_hash64_state *state, uint64_t seed);
void nmlp_hash64_add(nmlp_hash64_state *state, const void *bytes, size_t len);
uint64_t nmlp_hash64_end(const nmlp_hash64_state *state);

#endif
