/* Byte-pair encoding: joins neighbouring symbols, lowest rank first and leftmost among equals, until no pair has a
 * rank. */
#ifndef NMLP_TEXT_BPE_H
#define NMLP_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_bpe_slot nmlp_bpe_slot;

/* Immutable once filled; shareable. */
typedef struct nmlp_bpe {
    nmlp_bpe_slot *slots; /* pair -> rank, open addressing */
    size_t n_slots;       /* a power of two */
    uint32_t *merged;     /* [n_merges] rank -> id of the joined symbol */
    size_t n_merges;
} nmlp_bpe;

/* Room for n_merges merges of ranks 0..n_merges-1. */
nmlp_status nmlp_bpe_init(nmlp_bpe *bpe, size_t n_merges, nmlp_err *err);
void nmlp_bpe_fini(nmlp_bpe *bpe);
/* A pair given twice keeps the later rank. */
void nmlp_bpe_put(nmlp_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);

/* Memory for long pieces; one for each thread, grown as needed. */
typedef struct nmlp_bpe_node nmlp_bpe_node;
typedef struct nmlp_bpe_scratch {
    nmlp_bpe_node *nodes;
    size_t nodes_capacity;
    uint64_t *heap;
    size_t heap_capacity;
    size_t heap_len;
} nmlp_bpe_scratch;

void nmlp_bpe_scratch_fini(nmlp_bpe_scratch *scratch);

/* Joins ids[0..n) in place and returns the new length in *n. n log n in time; n < 2^31. */
nmlp_status nmlp_bpe_merge(const nmlp_bpe *bpe, nmlp_bpe_scratch *scratch, int32_t *ids, size_t *n, nmlp_err *err);

#endif
