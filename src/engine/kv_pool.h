/* Which page of KV memory holds which tokens. One pool of pages serves all sequences of a batch; this file knows
 * numbers of pages and token ids, not what lies in them.
 *
 * A full page stays known by its tokens and by the page before it: the pages form a tree in which a path spells a text.
 * A new sequence shares the pages of its beginning that are there already. A page is written only by a sequence that
 * has it alone; others get a copy first. Pages that no sequence uses stay in the tree until their memory is needed: the
 * least recently used goes first.
 *
 * Where rows see a window of positions only, a sequence lets go of pages behind it. Such a page stays in the tree while
 * there is memory; without it the pages after it spell no text any more and leave the tree.
 *
 * All memory is allocated when the pool is created. One owner at a time. */
#ifndef NMLP_ENGINE_KV_POOL_H
#define NMLP_ENGINE_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_kv_pool nmlp_kv_pool;

typedef struct nmlp_kv_pool_options {
    int64_t page; /* positions of a page */
    int64_t n_pages;
    int64_t max_sequences;
    int64_t context; /* most positions of one sequence */
    int64_t window;  /* most positions that a row sees, itself the last; 0: all before it */
    int64_t span;    /* with a window: positions are read from multiples of this on, itself a multiple of the page */
    int64_t step;    /* with a window: most tokens appended at once */
    /* Copies the first n positions of a page; called before a sequence writes into a page that it shares. */
    void (*copy)(void *ctx, int32_t to, int32_t from, int64_t n);
    void *ctx;
} nmlp_kv_pool_options;

nmlp_status nmlp_kv_pool_create(nmlp_kv_pool **out, const nmlp_kv_pool_options *options, nmlp_err *err);
void nmlp_kv_pool_destroy(nmlp_kv_pool *pool);

/* Sequences are numbered by the caller, below max_sequences; `open` takes a closed one. It then holds the first
 * *n_shared tokens of `ids`, at most n-1. */
void nmlp_kv_pool_open(nmlp_kv_pool *pool, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_shared);
void nmlp_kv_pool_close(nmlp_kv_pool *pool, int32_t sequence);
/* Returns the tokens left: `length`, or none where a window has let go of what the next row would see. That is never so
 * where at most NMLP_KV_POOL_REWIND tokens are missing of the most that the sequence has had. */
int64_t nmlp_kv_pool_truncate(nmlp_kv_pool *pool, int32_t sequence, int64_t length);
enum { NMLP_KV_POOL_REWIND = 64 };
/* A closed number becomes a sequence that shares the first `length` tokens of `parent`. False, changing nothing, where
 * a window has let go of them. */
bool nmlp_kv_pool_fork(nmlp_kv_pool *pool, int32_t parent, int64_t length, int32_t child);

/* Pages for n more tokens, all of them the sequence's own to write. NMLP_E_LIMIT, changing nothing, when there are not
 * enough. With a window: for so many of them as the sequence ever holds. */
nmlp_status nmlp_kv_pool_reserve(nmlp_kv_pool *pool, int32_t sequence, int64_t n, nmlp_err *err);
/* Tokens that were written into reserved pages. */
void nmlp_kv_pool_append(nmlp_kv_pool *pool, int32_t sequence, const int32_t *ids, int64_t n);

int64_t nmlp_kv_pool_length(const nmlp_kv_pool *pool, int32_t sequence);
/* The sequence's pages in the order of its positions, reserved ones included, -1 for those behind the window; valid
 * until the next call on the pool that names this sequence. */
const int32_t *nmlp_kv_pool_pages(const nmlp_kv_pool *pool, int32_t sequence);

typedef struct nmlp_kv_pool_counts {
    int64_t n_pages;
    int64_t n_free;
    int64_t n_cached; /* of closed sequences, free to be reused */
    int64_t n_used;
} nmlp_kv_pool_counts;
/* The most positions that one sequence holds at a time, its last page full. */
int64_t nmlp_kv_pool_held_most(const nmlp_kv_pool_options *options);
nmlp_kv_pool_counts nmlp_kv_pool_count(const nmlp_kv_pool *pool);

#endif
