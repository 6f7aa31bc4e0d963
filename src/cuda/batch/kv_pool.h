/* The KV pool's bookkeeping on the host: which page of device memory holds which positions of which sequence.
 *
 * Keys and values of all sequences lie in one pool of pages of NMLP_CUDA_PAGE_POSITIONS positions. A sequence has a
 * block table: page numbers, in order. Pages may be shared by sequences that begin alike (a count per page); a shared
 * page is never written: who appends to one first gets a copy (copy on write). No device memory is touched here. */
#ifndef NMLP_CUDA_BATCH_KV_POOL_H
#define NMLP_CUDA_BATCH_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "cuda/layout.h"

typedef struct nmlp_cuda_kv_pool {
    int64_t n_pages;
    int64_t n_free;
    int32_t *free_pages; /* [n_pages] a stack */
    int32_t *n_users;    /* [n_pages] sequences that hold the page */
    int64_t max_sequences;
    int64_t table_pages;   /* most pages of one sequence */
    int32_t *tables;       /* [max_sequences, table_pages] */
    int64_t *n_held;       /* [max_sequences] pages in the table */
    int64_t changed_begin; /* sequences whose table changed since the device last got it; empty: begin >= end */
    int64_t changed_end;
} nmlp_cuda_kv_pool;

/* A page that the device must copy before the next step: `from` < 0, none. */
typedef struct nmlp_cuda_page_copy {
    int32_t from;
    int32_t to;
} nmlp_cuda_page_copy;

nmlp_status nmlp_cuda_kv_pool_init(nmlp_cuda_kv_pool *pool, int64_t positions, int64_t max_sequences, int64_t context,
                                   nmlp_err *err);
void nmlp_cuda_kv_pool_fini(nmlp_cuda_kv_pool *pool);

/* Pages for positions `length`..`end`-1 of a sequence that holds `length` tokens. false, changing nothing: there are
 * too few. */
bool nmlp_cuda_kv_pool_reserve(nmlp_cuda_kv_pool *pool, int32_t sequence, int64_t length, int64_t end,
                               nmlp_cuda_page_copy *copy);
/* Gives back the pages past the first `length` positions. */
void nmlp_cuda_kv_pool_truncate(nmlp_cuda_kv_pool *pool, int32_t sequence, int64_t length);
/* `child`, which holds no page, shares the pages of the first `length` positions of `parent`. */
void nmlp_cuda_kv_pool_share(nmlp_cuda_kv_pool *pool, int32_t parent, int64_t length, int32_t child);

#endif
