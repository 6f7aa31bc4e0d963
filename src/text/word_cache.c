#include "text/word_cache.h"

#include <string.h>

#include "base/mem.h"

enum { SLOTS_MIN = 256, SLOTS_MAX = 1 << 15, TEXT_BYTES_MIN = 2048, PIECE_MAX_BYTES = 64 };

struct nmlp_word_slot {
    uint32_t tag; /* of the hash; 0: free */
    uint32_t bytes_at;
    uint32_t ids_at;
    uint16_t n_ids;
    uint16_t len;
};

nmlp_status nmlp_word_cache_init(nmlp_word_cache *cache, size_t text_bytes, nmlp_err *err) {
    *cache = (nmlp_word_cache){0};
    if (text_bytes < TEXT_BYTES_MIN) return NMLP_OK;
    size_t n_slots = SLOTS_MIN;
    while (n_slots < SLOTS_MAX && n_slots < text_bytes / 8) n_slots *= 2;
    cache->slots = nmlp_mem_new(n_slots, sizeof *cache->slots, err);
    if (!cache->slots) return NMLP_E_NOMEM;
    cache->n_slots = n_slots;
    return NMLP_OK;
}

void nmlp_word_cache_fini(nmlp_word_cache *cache) {
    nmlp_mem_free(cache->slots);
    nmlp_mem_free(cache->bytes);
    nmlp_mem_free(cache->ids);
    *cache = (nmlp_word_cache){0};
}

static uint64_t hash_piece(const char *piece, size_t len) {
    uint64_t h = len * 0x9E3779B97F4A7C15u;
    uint64_t block;
    while (len >= sizeof block) {
        memcpy(&block, piece, sizeof block);
        h = (h ^ block) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        piece += sizeof block;
        len -= sizeof block;
    }
    block = 0;
    memcpy(&block, piece, len);
    h = (h ^ block) * 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

static uint32_t tag_of(uint64_t hash) { return (uint32_t)(hash >> 32) | 1u; }

static nmlp_word_slot *find_slot(const nmlp_word_cache *cache, const char *piece, size_t len, uint64_t hash) {
    for (size_t i = hash & (cache->n_slots - 1);; i = (i + 1) & (cache->n_slots - 1)) {
        nmlp_word_slot *slot = &cache->slots[i];
        if (!slot->tag) return slot;
        if (slot->tag == tag_of(hash) && slot->len == len && memcmp(cache->bytes + slot->bytes_at, piece, len) == 0)
            return slot;
    }
}

bool nmlp_word_cache_get(const nmlp_word_cache *cache, const char *piece, size_t len, nmlp_word *word) {
    *word = (nmlp_word){0};
    if (!cache->n_slots || len > PIECE_MAX_BYTES) return false;
    word->hash = hash_piece(piece, len);
    const nmlp_word_slot *slot = find_slot(cache, piece, len, word->hash);
    if (!slot->tag) return false;
    word->ids = cache->ids + slot->ids_at;
    word->n_ids = slot->n_ids;
    return true;
}

nmlp_status nmlp_word_cache_put(nmlp_word_cache *cache, const char *piece, size_t len, const nmlp_word *word,
                                nmlp_err *err) {
    if (cache->n_used >= cache->n_slots / 2 || len > PIECE_MAX_BYTES) return NMLP_OK;
    void *bytes = cache->bytes;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&bytes, &cache->bytes_capacity, cache->bytes_len + len, 1, err));
    cache->bytes = bytes;
    void *ids = cache->ids;
    NMLP_RETURN_IF_FAILED(
        nmlp_mem_grow(&ids, &cache->ids_capacity, cache->ids_len + word->n_ids, sizeof *cache->ids, err));
    cache->ids = ids;
    *find_slot(cache, piece, len, word->hash) = (nmlp_word_slot){.tag = tag_of(word->hash),
                                                                 .bytes_at = (uint32_t)cache->bytes_len,
                                                                 .ids_at = (uint32_t)cache->ids_len,
                                                                 .n_ids = (uint16_t)word->n_ids,
                                                                 .len = (uint16_t)len};
    memcpy(cache->bytes + cache->bytes_len, piece, len);
    memcpy(cache->ids + cache->ids_len, word->ids, word->n_ids * sizeof *word->ids);
    cache->bytes_len += len;
    cache->ids_len += word->n_ids;
    cache->n_used++;
    return NMLP_OK;
}
