#include "engine/batch_cpu.h"

#include <string.h>

#include "base/ints.h"
#include "engine/forward_cpu.h"
#include "engine/kv_pool.h"

struct nmlp_cpu_batch {
    nmlp_cpu_forward forward;                  /* with a cache in pages */
    nmlp_kv_pool *pools[NMLP_CPU_CACHE_KINDS]; /* NULL: no layer is of that kind */
    nmlp_cpu_rows *rows;                       /* [sequences of a step] */
};

static void copy_page(void *ctx, int32_t to, int32_t from, int64_t n) {
    const nmlp_cpu_cache_part *part = ctx;
    (void)n; /* positions are strewn over the page */
    memcpy(part->memory + part->page_step_bytes * (size_t)to, part->memory + part->page_step_bytes * (size_t)from,
           part->page_step_bytes);
}

/* The largest window of all layers, 0 without one; *n_all counts the layers that see all positions. */
static int64_t find_window(const nmlp_config *c, int64_t *n_all) {
    int64_t window = 0;
    *n_all = 0;
    for (int64_t l = 0; l < c->n_layers; l++) {
        window = nmlp_max(window, nmlp_config_window(c, l));
        *n_all += nmlp_config_window(c, l) == 0;
    }
    return window;
}

/* Each sequence of the full context fits as often as the positions say, though its last page is not full. With a window
 * no sequence holds more than that and a step, however long it is. */
static int64_t count_pages(const nmlp_batch_options *o, const nmlp_kv_pool_options *pool) {
    int64_t whole = nmlp_min(o->max_sequences, o->positions / o->context);
    int64_t held = nmlp_kv_pool_held_most(pool) / pool->page;
    int64_t n = nmlp_max(nmlp_ceil_div(o->positions, pool->page), whole * nmlp_ceil_div(o->context, pool->page));
    return nmlp_min(n, o->max_sequences * held);
}

/* What the pools of both kinds are asked for; n_pages 0: there is no such layer. */
static void describe_pools(const nmlp_cpu_weights *w, const nmlp_batch_options *o,
                           nmlp_kv_pool_options pools[NMLP_CPU_CACHE_KINDS]) {
    int64_t n_all;
    int64_t window = find_window(&w->model->config, &n_all);
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) {
        pools[i] = (nmlp_kv_pool_options){.page = nmlp_kv_page_size(w->kernels),
                                          .max_sequences = o->max_sequences,
                                          .context = o->context,
                                          .window = i == NMLP_CPU_CACHE_WINDOW ? window : 0,
                                          .span = NMLP_ATTENTION_SPAN,
                                          .step = o->max_rows,
                                          .copy = copy_page};
        bool wanted = i == NMLP_CPU_CACHE_WINDOW ? window > 0 : n_all > 0;
        pools[i].n_pages = wanted ? count_pages(o, &pools[i]) : 0;
    }
}

nmlp_status nmlp_cpu_batch_create(nmlp_cpu_batch **out, const nmlp_cpu_weights *w, const nmlp_batch_options *o,
                                  nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_kv_pool_options pools[NMLP_CPU_CACHE_KINDS];
    int64_t n_pages[NMLP_CPU_CACHE_KINDS];
    int64_t max_texts = nmlp_min(o->max_sequences, o->max_rows);
    *out = NULL;
    nmlp_cpu_batch *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    describe_pools(w, o, pools);
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) n_pages[i] = pools[i].n_pages;
    nmlp_cpu_cache cache = nmlp_cpu_cache_of_pages(w, o->context, pools[0].page, n_pages);
    NMLP_TRY(nmlp_cpu_forward_init(&b->forward, w, &cache, o->max_rows, max_texts, false, err));
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) {
        pools[i].ctx = &b->forward.cache.parts[i];
        if (n_pages[i] > 0) NMLP_TRY(nmlp_kv_pool_create(&b->pools[i], &pools[i], err));
    }
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
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) nmlp_kv_pool_destroy(b->pools[i]);
    nmlp_cpu_forward_fini(&b->forward);
    nmlp_mem_free(b->rows);
    nmlp_mem_free(b);
}

size_t nmlp_cpu_batch_cache_bytes(const nmlp_cpu_weights *w, int64_t positions) {
    int64_t page = nmlp_kv_page_size(w->kernels);
    int64_t n = nmlp_ceil_div(positions, page);
    nmlp_cpu_cache cache = nmlp_cpu_cache_of_pages(w, positions, page, (int64_t[NMLP_CPU_CACHE_KINDS]){n, n});
    return nmlp_cpu_cache_bytes(&cache);
}

void nmlp_cpu_batch_open(nmlp_cpu_batch *b, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached) {
    *n_cached = n > 0 ? n - 1 : 0;
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) {
        int64_t n_shared;
        if (!b->pools[i]) continue;
        nmlp_kv_pool_open(b->pools[i], sequence, ids, n, &n_shared);
        *n_cached = nmlp_min(*n_cached, n_shared);
    }
    *n_cached = nmlp_cpu_batch_truncate(b, sequence, *n_cached);
}

void nmlp_cpu_batch_close(nmlp_cpu_batch *b, int32_t sequence) {
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++)
        if (b->pools[i]) nmlp_kv_pool_close(b->pools[i], sequence);
}

/* Layers of both kinds hold the same text: where one has let go of it, the other does too. */
int64_t nmlp_cpu_batch_truncate(nmlp_cpu_batch *b, int32_t sequence, int64_t length) {
    for (int i = NMLP_CPU_CACHE_KINDS - 1; i >= 0; i--)
        if (b->pools[i]) length = nmlp_kv_pool_truncate(b->pools[i], sequence, length);
    return length;
}

nmlp_status nmlp_cpu_batch_fork(nmlp_cpu_batch *b, int32_t parent, int64_t length, int32_t child, nmlp_err *err) {
    for (int i = NMLP_CPU_CACHE_KINDS - 1; i >= 0; i--) {
        if (!b->pools[i] || nmlp_kv_pool_fork(b->pools[i], parent, length, child)) continue;
        return nmlp_fail(err, NMLP_E_LIMIT, "the first %lld tokens of the sequence lie behind the model's window",
                         (long long)length);
    }
    return NMLP_OK;
}

static int64_t length_of(const nmlp_cpu_batch *b, int32_t sequence) {
    return nmlp_kv_pool_length(b->pools[b->pools[0] ? 0 : 1], sequence);
}

nmlp_status nmlp_cpu_batch_reserve(nmlp_cpu_batch *b, int32_t sequence, int64_t n, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS && st == NMLP_OK; i++)
        if (b->pools[i]) st = nmlp_kv_pool_reserve(b->pools[i], sequence, n, err);
    /* What the first pool gave goes back. */
    if (st != NMLP_OK) nmlp_cpu_batch_truncate(b, sequence, length_of(b, sequence));
    return st;
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
        b->rows[i] = (nmlp_cpu_rows){.row = n, .n = items[i].n, .first = length_of(b, items[i].sequence)};
        for (int kind = 0; kind < NMLP_CPU_CACHE_KINDS; kind++)
            if (b->pools[kind]) b->rows[i].pages[kind] = nmlp_kv_pool_pages(b->pools[kind], items[i].sequence);
        n += items[i].n;
    }
    for (int64_t l = 0; l < c->n_layers; l++) {
        nmlp_cpu_forward_attention(f, l, f->hidden, b->rows, n_items, n);
        nmlp_cpu_forward_mlp(f, l, f->hidden, n);
    }
    for (int64_t i = 0; i < n_items; i++)
        for (int kind = 0; kind < NMLP_CPU_CACHE_KINDS; kind++)
            if (b->pools[kind]) nmlp_kv_pool_append(b->pools[kind], items[i].sequence, items[i].ids, items[i].n);
    give_logits(b, items, n_items);
    give_hidden(b, items, n_items);
    if (f->status != NMLP_OK && err) *err = f->err;
    return f->status;
}
