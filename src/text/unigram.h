/* Unigram language model: the cut of a text with the highest sum of scores. */
#ifndef NMLP_TEXT_UNIGRAM_H
#define NMLP_TEXT_UNIGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_unigram_entry {
    const char *text; /* borrowed */
    uint32_t len;
    int32_t id;
    double score;
} nmlp_unigram_entry;

/* Immutable once sorted; shareable. */
typedef struct nmlp_unigram {
    nmlp_unigram_entry *entries; /* [n_entries] sorted by text */
    size_t n_entries;
    uint32_t first[257]; /* entries that start with byte b: first[b]..first[b+1] */
    double unknown_score;
    bool single_precision; /* sums are floats, as in sentencepiece itself */
} nmlp_unigram;

/* Room for n entries; fill entries[0..n) and sort. Characters without an entry score less than `lowest`. */
nmlp_status nmlp_unigram_init(nmlp_unigram *unigram, size_t n, nmlp_err *err);
void nmlp_unigram_sort(nmlp_unigram *unigram, double lowest);
void nmlp_unigram_fini(nmlp_unigram *unigram);

/* One part of the best cut: text[begin..end); entry NULL: a character without one. */
typedef struct nmlp_unigram_part {
    size_t begin, end;
    const nmlp_unigram_entry *entry;
} nmlp_unigram_part;

typedef struct nmlp_unigram_node nmlp_unigram_node;
typedef struct nmlp_unigram_scratch {
    nmlp_unigram_node *nodes;
    size_t nodes_capacity;
    nmlp_unigram_part *parts;
    size_t parts_capacity;
} nmlp_unigram_scratch;

void nmlp_unigram_scratch_fini(nmlp_unigram_scratch *scratch);

/* The parts of valid UTF-8 in order: scratch->parts[0..*n). */
nmlp_status nmlp_unigram_cut(const nmlp_unigram *unigram, nmlp_unigram_scratch *scratch, const char *text, size_t len,
                             size_t *n, nmlp_err *err);

#endif
