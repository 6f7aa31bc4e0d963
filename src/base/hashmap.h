/* A map from byte strings to 32-bit numbers, open addressing. Keys are borrowed, not copied. */
#ifndef NMLP_BASE_HASHMAP_H
#define NMLP_BASE_HASHMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_hashmap_slot nmlp_hashmap_slot;
typedef struct nmlp_hashmap {
    nmlp_hashmap_slot *slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n_used;
} nmlp_hashmap;

void nmlp_hashmap_init(nmlp_hashmap *map);
void nmlp_hashmap_fini(nmlp_hashmap *map);
/* Makes room for n keys, so that puts up to there cannot fail. */
nmlp_status nmlp_hashmap_reserve(nmlp_hashmap *map, size_t n, nmlp_err *err);
/* Adds or replaces. */
nmlp_status nmlp_hashmap_put(nmlp_hashmap *map, const void *key, size_t key_len, uint32_t value, nmlp_err *err);
bool nmlp_hashmap_get(const nmlp_hashmap *map, const void *key, size_t key_len, uint32_t *value);

#endif
