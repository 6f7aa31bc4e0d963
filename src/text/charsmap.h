/* The normalisation table of sentencepiece ("precompiled charsmap"): a double-array trie from byte strings to
 * replacements. Read-only once opened; every index into it is checked. */
#ifndef NMLP_TEXT_CHARSMAP_H
#define NMLP_TEXT_CHARSMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_charsmap {
    uint32_t *units; /* [n_units] of the trie */
    size_t n_units;
    char *strings; /* replacements, each NUL-ended */
    size_t strings_len;
} nmlp_charsmap;

/* Copies what it needs. Empty data gives a table that replaces nothing. */
nmlp_status nmlp_charsmap_init(nmlp_charsmap *map, const void *data, size_t len, nmlp_err *err);
void nmlp_charsmap_fini(nmlp_charsmap *map);

typedef enum nmlp_charsmap_match { NMLP_CHARSMAP_SHORTEST, NMLP_CHARSMAP_LONGEST } nmlp_charsmap_match;

/* The replacement for a prefix of the text: its bytes and those of the prefix. False: none. */
bool nmlp_charsmap_find(const nmlp_charsmap *map, const char *text, size_t len, nmlp_charsmap_match which,
                        size_t *prefix_len, const char **replacement);

#endif
