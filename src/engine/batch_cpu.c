#include "engine/batch_cpu.h"

#include <string.h>

#include "base/ints.h"
#include "engine/forward_cpu.h"
#include "engine/kv_pool.h"

struct nmlp_cpu_batch {
    nmlp_cpu_forward forward; /* with a cache in pages */
    nmlp_kv_pool *pool;
    nmlp_cpu_rows *rows; /* [sequences of a step] */
};

static void copy_page(void *ctx, int32_t to, int32_t from, int64_t n) {
    const nmlp_cpu_cache *cache = &((nmlp_cpu_batch *)ctx)->forward.cache;
    (void)n; /* positions are strewn over the page */
    memcpy(cache->memory + cache->page_step_bytes * (size_t)to, cache->memory + cache->page_step_bytes * (size_t)from,
           cache->page_step_bytes);
}

/* Each sequence of the full context fits as often as the positions say, though its last page is not full. */
static int64_t count_pages(const nmlp_batch_options *o, int64_t page) {
    int64_t whole = nmlp_min(o->max_sequences, o->positions / o->context);
    return nmlp_max(nmlp_ceil_div(o->positions, page), whole * nmlp_ceil_div(o->context, page));
}

nmlp_status nmlp_cpu_batch_create(nmlp_cpu_batch **out, const nmlp_cpu_weights *w, const nmlp_batch_options *o,
                                  nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int64_t page = nmlp_kv_page_size(w->kernels);
    int64_t n_pages = count_pages(o, page);
    int64_t max_texts = nmlp_min(o->max_sequences, o->max_rows);
    *out = NULL;
    nmlp_cpu_batch *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    nmlp_cpu_cache cache = nmlp_cpu_cache_shape(w, o->context, page, n_pages);
    nmlp_kv_pool_options pool = {.page = page,
                                 .n_pages = n_pages,
                                 .max_sequences = o->max_sequences,
                                 .context = o->context,
                                 .copy = copy_page,
                                 .ctx = b};
    NMLP_TRY(nmlp_cpu_forward_init(&b->forward, w, &cache, o->max_rows, max_texts, false, err));
    NMLP_TRY(nmlp_kv_pool_create(&b->pool, &pool, err));
    b->rows = nmlp_mem_new((size_t)max_texts, sizeof *b->rows, err);
    if (!b->rows) NMLP_TRY(NMLP_E_NOMEM);
    *out = b;
out:
    if (st != NMLP_OK) {
        nmlp_fail_context(err, "a batch of %lld sequences and %lld positions", (long long)o->max_sequences,
                          (long long)o->positions);
        nmlp_cpu_batch_destroy(b);
    }
    return st;
}

void nmlp_cpu_batch_destroy(nmlp_cpu_batch *b) {
    if (!b) return;
    nmlp_kv_pool_destroy(b->pool);
    nmlp_cpu_forward_fini(&b->forward);
    nmlp_mem_free(b->rows);
    nmlp_mem_free(b);
}

size_t nmlp_cpu_batch_cache_bytes(const nmlp_cpu_weights *w, int64_t positions) {
    int64_t page = nmlp_kv_page_size(w->kernels);
    return nmlp_cpu_cache_shape(w, positions, page, nmlp_ceil_div(positions, page)).bytes;
}

void nmlp_cpu_batch_open(nmlp_cpu_batch *b, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached) {
    nmlp_kv_pool_open(b->pool, sequence, ids, n, n_cached);
}

void nmlp_cpu_batch_close(nmlp_cpu_batch *b, int32_t sequence) { nmlp_kv_pool_close(b->pool, sequence); }

void nmlp_cpu_batch_truncate(nmlp_cpu_batch *b, int32_t sequence, int64_t length) {
    nmlp_kv_pool_truncate(b->pool, sequence, length);
}

void nmlp_cpu_batch_fork(nmlp_cpu_batch *b, int32_t parent, int64_t length, int32_t child) {
    nmlp_kv_pool_fork(b->pool, parent, length, child);
}

nmlp_status nmlp_cpu_batch_reserve(nmlp_cpu_batch *b, int32_t sequence, int64_t n, nmlp_err *err) {
    return nmlp_kv_pool_reserve(b->pool, sequence, n, err);
}

/* Rows whose logits lie one after the other are multiplied together: the head is the largest matrix. */
static void give_logits(nmlp_cpu_batch *b, const nmlp_step_item *items, int64_t n_items) {
    nmlp_cpu_forward *f = &b->forward;
    int64_t hidden = f->weights->model->config.hidden, vocab = f->weights->model->config.vocab;
    float *wanted = f->mixed; /* free after the last layer, [chunk, H] at least */
    int64_t n = 0, done = 0;
    for (int64_t i = 0; i < n_items; i++) {
        int64_t end = b->rows[i].row + b->rows[i].n;
        memcpy(wanted + n * hidden, f->hidden + (end - items[i].n_logits) * hidden,
               (size_t)(items[i].n_logits * hidden) * sizeof *wanted);
        n += items[i].n_logits;
    }
    if (n == 0) return;
    nmlp_cpu_forward_final_norm(f, wanted, n, f->normed);
    for (int64_t i = 0; i < n_items;) {
        float *logits = items[i].logits;
        int64_t some = 0;
        for (; i < n_items && (items[i].n_logits == 0 || some == 0 || items[i].logits == logits + some * vocab); i++) {
            if (some == 0) logits = items[i].logits;
            some += items[i].n_logits;
        }
        if (some > 0) nmlp_cpu_forward_logits(f, f->normed + done * hidden, some, logits);
        done += some;
    }
}

static void give_hidden(nmlp_cpu_batch *b, const nmlp_step_item *items, int64_t n_items) {
    nmlp_cpu_forward *f = &b->forward;
    int64_t hidden = f->weights->model->config.hidden;
    for (int64_t i = 0; i < n_items; i++) {
        if (!items[i].hidden) continue;
        nmlp_cpu_forward_final_norm(f, f->hidden + (b->rows[i].row + b->rows[i].n - 1) * hidden, 1, f->normed);
        memcpy(items[i].hidden, f->normed, (size_t)hidden * sizeof *f->normed);
    }
}

nmlp_status nmlp_cpu_batch_step(nmlp_cpu_batch *b, const nmlp_step_item *items, int64_t n_items, nmlp_err *err) {
    nmlp_cpu_forward *f = &b->forward;
    const nmlp_config *c = &f->weights->model->config;
    int64_t n = 0;
    for (int64_t i = 0; i < n_items; i++) {
        nmlp_cpu_forward_embed(f, items[i].ids, items[i].n, f->hidden + n * c->hidden);
        b->rows[i] = (nmlp_cpu_rows){.row = n,
                                     .n = items[i].n,
                                     .first = nmlp_kv_pool_length(b->pool, items[i].sequence),
                                     .pages = nmlp_kv_pool_pages(b->pool, items[i].sequence)};
        n += items[i].n;
    }
    for (int64_t l = 0; l < c->n_layers; l++) {
        nmlp_cpu_forward_attention(f, l, f->hidden, b->rows, n_items, n);
        nmlp_cpu_forward_mlp(f, l, f->hidden, n);
    }
    for (int64_t i = 0; i < n_items; i++) nmlp_kv_pool_append(b->pool, items[i].sequence, items[i].ids, items[i].n);
    give_logits(b, items, n_items);
    give_hidden(b, items, n_items);
    if (f->status != NMLP_OK && err) *err = f->err;
    return f->status;
}
