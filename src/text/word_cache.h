/* Remembers the ids of pieces met before during one encode: text repeats itself, and a hit costs one hash. Bounded;
 * pieces that come after it is full are not remembered. */
#ifndef NMLP_TEXT_WORD_CACHE_H
#define NMLP_TEXT_WORD_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_word_slot nmlp_word_slot;
typedef struct nmlp_word_cache {
    nmlp_word_slot *slots;
    size_t n_slots; /* a power of two, or 0: remembers nothing */
    size_t n_used;
    unsigned char *bytes; /* the pieces */
    size_t bytes_len, bytes_capacity;
    int32_t *ids;
    size_t ids_len, ids_capacity;
} nmlp_word_cache;

/* Sized for a text of text_bytes. */
nmlp_status nmlp_word_cache_init(nmlp_word_cache *cache, size_t text_bytes, nmlp_err *err);
void nmlp_word_cache_fini(nmlp_word_cache *cache);

typedef struct nmlp_word {
    const int32_t *ids; /* valid until the next put */
    size_t n_ids;
    uint64_t hash; /* for the put that follows a miss */
} nmlp_word;

/* False on a miss; word->hash is set either way. */
bool nmlp_word_cache_get(const nmlp_word_cache *cache, const char *piece, size_t len, nmlp_word *word);
nmlp_status nmlp_word_cache_put(nmlp_word_cache *cache, const char *piece, size_t len, const nmlp_word *word,
                                nmlp_err *err);

#endif
