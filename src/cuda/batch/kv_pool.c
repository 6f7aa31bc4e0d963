#include "cuda/batch/kv_pool.h"

#include "base/mem.h"

static int64_t pages_for(int64_t positions) {
    return (positions + NMLP_CUDA_PAGE_POSITIONS - 1) / NMLP_CUDA_PAGE_POSITIONS;
}

nmlp_status nmlp_cuda_kv_pool_init(nmlp_cuda_kv_pool *pool, int64_t positions, int64_t max_sequences, int64_t context,
                                   nmlp_err *err) {
    *pool = (nmlp_cuda_kv_pool){.n_pages = pages_for(positions) + max_sequences, /* a page begun per sequence */
                                .max_sequences = max_sequences,
                                .table_pages = pages_for(context)};
    size_t n_pages = (size_t)pool->n_pages;
    pool->free_pages = nmlp_mem_new(n_pages, sizeof *pool->free_pages, err);
    pool->n_users = nmlp_mem_new(n_pages, sizeof *pool->n_users, err);
    pool->tables = nmlp_mem_new((size_t)max_sequences * (size_t)pool->table_pages, sizeof *pool->tables, err);
    pool->n_held = nmlp_mem_new((size_t)max_sequences, sizeof *pool->n_held, err);
    if (!pool->free_pages || !pool->n_users || !pool->tables || !pool->n_held) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < pool->n_pages; i++) pool->free_pages[i] = (int32_t)(pool->n_pages - 1 - i);
    pool->n_free = pool->n_pages;
    return NMLP_OK;
}

void nmlp_cuda_kv_pool_fini(nmlp_cuda_kv_pool *pool) {
    nmlp_mem_free(pool->free_pages);
    nmlp_mem_free(pool->n_users);
    nmlp_mem_free(pool->tables);
    nmlp_mem_free(pool->n_held);
    *pool = (nmlp_cuda_kv_pool){0};
}

static int32_t *table_of(nmlp_cuda_kv_pool *pool, int32_t sequence) {
    return pool->tables + sequence * pool->table_pages;
}

static void mark_changed(nmlp_cuda_kv_pool *pool, int32_t sequence) {
    bool none = pool->changed_begin >= pool->changed_end;
    if (none || sequence < pool->changed_begin) pool->changed_begin = sequence;
    if (none || sequence >= pool->changed_end) pool->changed_end = sequence + 1;
}

static int32_t take_page(nmlp_cuda_kv_pool *pool) {
    int32_t page = pool->free_pages[--pool->n_free];
    pool->n_users[page] = 1;
    return page;
}

static void drop_page(nmlp_cuda_kv_pool *pool, int32_t page) {
    if (--pool->n_users[page] == 0) pool->free_pages[pool->n_free++] = page;
}

bool nmlp_cuda_kv_pool_reserve(nmlp_cuda_kv_pool *pool, int32_t sequence, int64_t length, int64_t end,
                               nmlp_cuda_page_copy *copy) {
    int32_t *table = table_of(pool, sequence);
    int64_t wanted = pages_for(end);
    int64_t last = length / NMLP_CUDA_PAGE_POSITIONS; /* the page that the next token goes to */
    bool begun = length % NMLP_CUDA_PAGE_POSITIONS != 0;
    bool copies = begun && end > length && pool->n_users[table[last]] > 1;
    int64_t more = wanted > pool->n_held[sequence] ? wanted - pool->n_held[sequence] : 0;
    *copy = (nmlp_cuda_page_copy){.from = -1};
    if (more + copies > pool->n_free) return false;
    if (copies) {
        *copy = (nmlp_cuda_page_copy){.from = table[last], .to = take_page(pool)};
        drop_page(pool, table[last]);
        table[last] = copy->to;
    }
    for (int64_t i = 0; i < more; i++) table[pool->n_held[sequence]++] = take_page(pool);
    if (copies || more) mark_changed(pool, sequence);
    return true;
}

void nmlp_cuda_kv_pool_truncate(nmlp_cuda_kv_pool *pool, int32_t sequence, int64_t length) {
    const int32_t *table = table_of(pool, sequence);
    int64_t kept = pages_for(length);
    while (pool->n_held[sequence] > kept) drop_page(pool, table[--pool->n_held[sequence]]);
}

void nmlp_cuda_kv_pool_share(nmlp_cuda_kv_pool *pool, int32_t parent, int64_t length, int32_t child) {
    const int32_t *from = table_of(pool, parent);
    int32_t *to = table_of(pool, child);
    int64_t n = pages_for(length);
    for (int64_t i = 0; i < n; i++) {
        to[i] = from[i];
        pool->n_users[from[i]]++;
    }
    pool->n_held[child] = n;
    if (n) mark_changed(pool, child);
}
