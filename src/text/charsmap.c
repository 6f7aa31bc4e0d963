#include "text/charsmap.h"

#include <string.h>

#include "base/mem.h"

static uint32_t read_u32(const unsigned char *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Four bytes with the size of the trie, the trie, the strings. */
nmlp_status nmlp_charsmap_init(nmlp_charsmap *map, const void *data, size_t len, nmlp_err *err) {
    const unsigned char *bytes = data;
    *map = (nmlp_charsmap){0};
    if (!len) return NMLP_OK;
    uint32_t trie_bytes = len < 4 ? 0 : read_u32(bytes);
    if (len < 4 || trie_bytes % 4 || trie_bytes > len - 4)
        return nmlp_fail(err, NMLP_E_FORMAT, "precompiled charsmap of %zu bytes is malformed", len);
    map->n_units = trie_bytes / 4;
    map->strings_len = len - 4 - trie_bytes;
    map->units = nmlp_mem_new(map->n_units, sizeof *map->units, err);
    map->strings = nmlp_mem_new(map->strings_len + 1, 1, err);
    if (!map->units || !map->strings) {
        nmlp_charsmap_fini(map);
        return NMLP_E_NOMEM;
    }
    for (size_t i = 0; i < map->n_units; i++) map->units[i] = read_u32(bytes + 4 + 4 * i);
    memcpy(map->strings, bytes + 4 + trie_bytes, map->strings_len); /* the block ends with a NUL of ours */
    return NMLP_OK;
}

void nmlp_charsmap_fini(nmlp_charsmap *map) {
    nmlp_mem_free(map->units);
    nmlp_mem_free(map->strings);
    *map = (nmlp_charsmap){0};
}

/* Fields of a unit of the double array. */
static uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
static uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
static bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
static uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }

bool nmlp_charsmap_find(const nmlp_charsmap *map, const char *text, size_t len, nmlp_charsmap_match which,
                        size_t *prefix_len, const char **replacement) {
    bool found = false;
    if (!map->n_units) return false;
    size_t node = offset_of(map->units[0]);
    for (size_t i = 0; i < len && text[i]; i++) {
        unsigned char byte = (unsigned char)text[i];
        node ^= byte;
        if (node >= map->n_units || label_of(map->units[node]) != byte) break;
        uint32_t unit = map->units[node];
        node ^= offset_of(unit);
        if (!has_leaf(unit) || node >= map->n_units) continue;
        uint32_t value = value_of(map->units[node]);
        if (value >= map->strings_len) continue;
        *prefix_len = i + 1;
        *replacement = map->strings + value;
        found = true;
        if (which == NMLP_CHARSMAP_SHORTEST) break;
    }
    return found;
}
