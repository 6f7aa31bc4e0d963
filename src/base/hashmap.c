#include "base/hashmap.h"

#include <string.h>

#include "base/mem.h"

struct nmlp_hashmap_slot {
    const void *key; /* NULL: free */
    uint32_t key_len;
    uint32_t hash;
    uint32_t value;
};

void nmlp_hashmap_init(nmlp_hashmap *map) { *map = (nmlp_hashmap){0}; }

void nmlp_hashmap_fini(nmlp_hashmap *map) {
    nmlp_mem_free(map->slots);
    *map = (nmlp_hashmap){0};
}

/* FNV-1a with a final mix: keys are short and there are no adversaries with a stake in collisions. */
static uint32_t hash_bytes(const void *key, size_t len) {
    const unsigned char *bytes = key;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++) h = (h ^ bytes[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ (h >> 32));
}

static nmlp_hashmap_slot *find_slot(const nmlp_hashmap *map, const void *key, size_t key_len, uint32_t hash) {
    size_t i = hash & (map->n_slots - 1);
    for (;;) {
        nmlp_hashmap_slot *slot = &map->slots[i];
        if (!slot->key) return slot;
        if (slot->hash == hash && slot->key_len == key_len && memcmp(slot->key, key, key_len) == 0) return slot;
        i = (i + 1) & (map->n_slots - 1);
    }
}

nmlp_status nmlp_hashmap_reserve(nmlp_hashmap *map, size_t n, nmlp_err *err) {
    size_t n_slots = 16;
    while (n_slots / 2 < n) {
        if (nmlp_mul_overflows(n_slots, 2, &n_slots))
            return nmlp_fail(err, NMLP_E_NOMEM, "a map of %zu keys does not fit in memory", n);
    }
    if (n_slots <= map->n_slots) return NMLP_OK;
    nmlp_hashmap grown = {.slots = nmlp_mem_new(n_slots, sizeof(nmlp_hashmap_slot), err), .n_slots = n_slots};
    if (!grown.slots) return NMLP_E_NOMEM;
    for (size_t i = 0; i < map->n_slots; i++) {
        nmlp_hashmap_slot *slot = &map->slots[i];
        if (slot->key) *find_slot(&grown, slot->key, slot->key_len, slot->hash) = *slot;
    }
    grown.n_used = map->n_used;
    nmlp_mem_free(map->slots);
    *map = grown;
    return NMLP_OK;
}

nmlp_status nmlp_hashmap_put(nmlp_hashmap *map, const void *key, size_t key_len, uint32_t value, nmlp_err *err) {
    if (key_len > UINT32_MAX) return nmlp_fail(err, NMLP_E_ARG, "a map key of %zu bytes is too long", key_len);
    NMLP_RETURN_IF_FAILED(nmlp_hashmap_reserve(map, map->n_used + 1, err));
    uint32_t hash = hash_bytes(key, key_len);
    nmlp_hashmap_slot *slot = find_slot(map, key, key_len, hash);
    if (!slot->key) map->n_used++;
    *slot = (nmlp_hashmap_slot){.key = key, .key_len = (uint32_t)key_len, .hash = hash, .value = value};
    return NMLP_OK;
}

bool nmlp_hashmap_get(const nmlp_hashmap *map, const void *key, size_t key_len, uint32_t *value) {
    if (!map->n_slots) return false;
    const nmlp_hashmap_slot *slot = find_slot(map, key, key_len, hash_bytes(key, key_len));
    if (!slot->key) return false;
    *value = slot->value;
    return true;
}
