#include "text/unigram.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

static const double unknown_penalty = 10;

struct nmlp_unigram_node {
    double score; /* of the best cut that ends here */
    size_t begin; /* of its last part */
    const nmlp_unigram_entry *entry;
    bool reached;
};

nmlp_status nmlp_unigram_init(nmlp_unigram *unigram, size_t n, nmlp_err *err) {
    *unigram = (nmlp_unigram){0};
    unigram->entries = nmlp_mem_new(n, sizeof *unigram->entries, err);
    if (!unigram->entries) return NMLP_E_NOMEM;
    unigram->n_entries = n;
    return NMLP_OK;
}

void nmlp_unigram_fini(nmlp_unigram *unigram) {
    nmlp_mem_free(unigram->entries);
    *unigram = (nmlp_unigram){0};
}

static int compare_entries(const void *a, const void *b) {
    const nmlp_unigram_entry *left = a;
    const nmlp_unigram_entry *right = b;
    int order = memcmp(left->text, right->text, left->len < right->len ? left->len : right->len);
    if (order) return order;
    return (left->len > right->len) - (left->len < right->len);
}

void nmlp_unigram_sort(nmlp_unigram *unigram, double lowest) {
    unigram->unknown_score = lowest - unknown_penalty;
    if (unigram->single_precision) unigram->unknown_score = (double)(float)unigram->unknown_score;
    qsort(unigram->entries, unigram->n_entries, sizeof *unigram->entries, compare_entries);
    size_t at = 0;
    for (uint32_t byte = 0; byte <= 256; byte++) {
        while (at < unigram->n_entries &&
               (!unigram->entries[at].len || (unsigned char)unigram->entries[at].text[0] < byte))
            at++;
        unigram->first[byte] = (uint32_t)at;
    }
}

void nmlp_unigram_scratch_fini(nmlp_unigram_scratch *scratch) {
    nmlp_mem_free(scratch->nodes);
    nmlp_mem_free(scratch->parts);
    *scratch = (nmlp_unigram_scratch){0};
}

/* The first of entries[low..high) whose byte `depth` is `byte` or more; those that end before come first. */
static size_t lower_bound(const nmlp_unigram *u, size_t low, size_t high, size_t depth, unsigned byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const nmlp_unigram_entry *e = &u->entries[middle];
        if (e->len <= depth || (unsigned char)e->text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void offer(const nmlp_unigram *u, nmlp_unigram_node *node, double score, size_t begin,
                  const nmlp_unigram_entry *entry) {
    if (u->single_precision) score = (double)(float)score;
    if (node->reached && score <= node->score) return;
    *node = (nmlp_unigram_node){.score = score, .begin = begin, .entry = entry, .reached = true};
}

/* Offers all entries that start at `at`; true when one of them is exactly one character. */
static bool offer_entries(const nmlp_unigram *u, nmlp_unigram_node *nodes, const char *text, size_t len, size_t at,
                          size_t char_bytes) {
    bool has_char = false;
    unsigned char byte = (unsigned char)text[at];
    size_t low = u->first[byte];
    size_t high = u->first[byte + 1];
    for (size_t depth = 1; low < high; depth++) {
        const nmlp_unigram_entry *e = &u->entries[low];
        if (e->len == depth) { /* the shortest comes first */
            offer(u, &nodes[at + depth], nodes[at].score + e->score, at, e);
            if (depth == char_bytes) has_char = true;
        }
        if (at + depth >= len) break;
        byte = (unsigned char)text[at + depth];
        low = lower_bound(u, low, high, depth, byte);
        high = lower_bound(u, low, high, depth, byte + 1u);
    }
    return has_char;
}

nmlp_status nmlp_unigram_cut(const nmlp_unigram *unigram, nmlp_unigram_scratch *scratch, const char *text, size_t len,
                             size_t *n, nmlp_err *err) {
    void *memory = scratch->nodes;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&memory, &scratch->nodes_capacity, len + 1, sizeof *scratch->nodes, err));
    scratch->nodes = memory;
    memory = scratch->parts;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&memory, &scratch->parts_capacity, len + 1, sizeof *scratch->parts, err));
    scratch->parts = memory;
    nmlp_unigram_node *nodes = scratch->nodes;
    memset(nodes, 0, (len + 1) * sizeof *nodes);
    for (size_t at = 0; at < len;) {
        uint32_t c;
        int bytes = nmlp_utf8_decode(text + at, len - at, &c);
        size_t char_bytes = bytes > 0 ? (size_t)bytes : 1;
        if (!offer_entries(unigram, nodes, text, len, at, char_bytes))
            offer(unigram, &nodes[at + char_bytes], nodes[at].score + unigram->unknown_score, at, NULL);
        at += char_bytes;
    }
    size_t count = 0;
    for (size_t end = len; end > 0; end = nodes[end].begin, count++)
        scratch->parts[count] = (nmlp_unigram_part){.begin = nodes[end].begin, .end = end, .entry = nodes[end].entry};
    for (size_t i = 0; i < count / 2; i++) {
        nmlp_unigram_part part = scratch->parts[i];
        scratch->parts[i] = scratch->parts[count - 1 - i];
        scratch->parts[count - 1 - i] = part;
    }
    *n = count;
    return NMLP_OK;
}
