#include "engine/forward_cpu.h"

#include <string.h>

#include "base/file.h"
#include "base/ints.h"
#include "base/pages.h"
#include "engine/rope_table.h"
#include "model/model_shard.h"
#include "tensor/quant.h"

enum { EMBED_RELEASE_ROWS = 32, EMBED_ROWS = 2 }; /* before the table is released; at a time */

/* ---- memory ---- */

static int kind_of(const nmlp_cpu_weights *w, const nmlp_cpu_cache *cache, int64_t layer) {
    bool apart = cache->page > 0 && nmlp_config_window(&w->model->config, layer) > 0;
    return apart ? NMLP_CPU_CACHE_WINDOW : NMLP_CPU_CACHE_ALL;
}

static nmlp_kv kv_of(const nmlp_cpu_weights *w, const nmlp_cpu_cache *cache, int64_t layer, const nmlp_cpu_rows *rows) {
    const nmlp_config *c = &w->model->config;
    int kind = kind_of(w, cache, layer);
    const nmlp_cpu_cache_part *part = &cache->parts[kind];
    int64_t place = cache->page > 0 ? w->layers[layer].place_in_pages : layer;
    return (nmlp_kv){.kernels = w->kernels,
                     .len = cache->len,
                     .n_heads = c->n_kv_heads,
                     .head_dim = c->head_dim,
                     .memory = part->memory ? part->memory + cache->layer_step_bytes * (size_t)place : NULL,
                     .pages = rows->pages[kind],
                     .page = cache->page,
                     .page_step_bytes = part->page_step_bytes};
}

nmlp_cpu_cache nmlp_cpu_cache_of_pages(const nmlp_cpu_weights *w, int64_t len, int64_t page,
                                       const int64_t n_pages[NMLP_CPU_CACHE_KINDS]) {
    static const int32_t some_page = 0;
    nmlp_cpu_cache cache = {.len = len, .page = page};
    nmlp_kv kv = kv_of(w, &cache, 0, &(nmlp_cpu_rows){.pages = {&some_page, &some_page}});
    cache.layer_step_bytes = nmlp_kv_bytes(&kv);
    for (int64_t l = 0; l < w->model->config.n_layers; l++)
        cache.parts[kind_of(w, &cache, l)].page_step_bytes += cache.layer_step_bytes;
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++)
        cache.parts[i].bytes = cache.parts[i].page_step_bytes * (size_t)n_pages[i];
    return cache;
}

nmlp_cpu_cache nmlp_cpu_cache_of_text(const nmlp_cpu_weights *w, int64_t len) {
    nmlp_cpu_cache cache = {.len = len};
    nmlp_kv kv = kv_of(w, &cache, 0, &(nmlp_cpu_rows){0});
    cache.layer_step_bytes = nmlp_kv_bytes(&kv);
    cache.parts[NMLP_CPU_CACHE_ALL].bytes = cache.layer_step_bytes * (size_t)w->model->config.n_layers;
    return cache;
}

size_t nmlp_cpu_cache_bytes(const nmlp_cpu_cache *cache) {
    size_t bytes = 0;
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) bytes += cache->parts[i].bytes;
    return bytes;
}

/* Of a layer's keys, or of its queries. */
static nmlp_rotation rotation_of(const nmlp_cpu_forward *f, int64_t layer, bool queries) {
    const nmlp_config *c = &f->weights->model->config;
    const nmlp_rope_config *rope = nmlp_config_rope(c, layer);
    if (!rope) return (nmlp_rotation){0};
    const float *angles = rope == &c->local_rope ? f->rope_local : queries ? f->rope_query : f->rope;
    return (nmlp_rotation){.angles = angles, .dim = c->rope_dim};
}

/* Whether attention stores keys and values of its own rows: for few of them a job of its own is not worth it. */
static bool stores_itself(const nmlp_config *c, const nmlp_cpu_rows *rows) {
    return rows->n * (c->n_heads / c->n_kv_heads) <= NMLP_ATTENTION_FEW_ROWS;
}

static nmlp_attention attention_of(const nmlp_cpu_forward *f, int64_t layer, const nmlp_cpu_rows *rows) {
    const nmlp_config *c = &f->weights->model->config;
    int64_t q_dim = c->n_heads * c->head_dim;
    nmlp_attention attention = {.out = f->mixed + rows->row * q_dim,
                                .q = f->q + rows->row * q_dim,
                                .rope = rotation_of(f, layer, true),
                                .kv = kv_of(f->weights, &f->cache, layer, rows),
                                .s = rows->n,
                                .first_pos = rows->first,
                                .n_heads = c->n_heads,
                                .window = nmlp_config_window(c, layer),
                                .scale = (float)c->score_scale,
                                .softcap = (float)c->score_softcap};
    if (!stores_itself(c, rows)) return attention;
    int64_t kv_dim = c->n_kv_heads * c->head_dim;
    attention.k = f->k_rows + rows->row * kv_dim;
    attention.v = f->v_rows + rows->row * kv_dim;
    attention.k_rope = rotation_of(f, layer, false);
    return attention;
}

/* One workspace serves every kernel of the pass, since they run one after the other. */
static size_t workspace_bytes(const nmlp_cpu_forward *f) {
    const nmlp_cpu_weights *w = f->weights;
    int n_threads = nmlp_pool_threads(w->pool);
    nmlp_attention shape = attention_of(f, 0, &(nmlp_cpu_rows){.n = f->chunk});
    size_t bytes = nmlp_attention_workspace_bytes(&shape, n_threads);
    bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(w->lm_head, f->chunk, n_threads));
    for (int64_t l = 0; l < w->model->config.n_layers; l++) {
        const nmlp_cpu_layer *layer = &w->layers[l];
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
            const nmlp_cpu_projection *p = &layer->attention[i];
            if (!p->out) continue; /* of a layer that does not stay in memory: the first one is like it */
            bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(p->out, f->chunk, n_threads));
            if (p->in) bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(p->in, f->chunk, n_threads));
        }
        if (layer->experts) {
            bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(layer->router, f->chunk, n_threads));
            for (int64_t e = 0; e < w->model->config.n_experts; e++)
                bytes = nmlp_max_size(bytes, nmlp_mlp_workspace_bytes(layer->experts[e], f->chunk, n_threads));
            continue;
        }
        for (int64_t s = 0; s < layer->n_slices; s++)
            bytes = nmlp_max_size(bytes, nmlp_mlp_workspace_bytes(layer->slices[s], f->chunk, n_threads));
        if (layer->split)
            bytes = nmlp_max_size(bytes, nmlp_cpu_split_workspace_bytes(layer->split, f->chunk, n_threads));
        if (!layer->mlp) continue;
        bytes = nmlp_max_size(bytes, nmlp_mlp_workspace_bytes(layer->mlp, f->chunk, n_threads));
        if (f->observed)
            bytes = nmlp_max_size(bytes, nmlp_mlp_observed_workspace_bytes(layer->mlp, f->chunk, n_threads));
    }
    return bytes;
}

/* Rows x cols floats. */
struct buffer {
    float **at;
    int64_t rows;
    int64_t cols;
};

/* All in one block of huge pages: matmuls write columns of many rows at a time, each row in another small page. */
static nmlp_status new_floats(nmlp_cpu_forward *f, const struct buffer buffers[], int n, nmlp_err *err) {
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes;
        if (nmlp_mul_overflows((size_t)buffers[i].rows, (size_t)buffers[i].cols * sizeof(float), &bytes) ||
            nmlp_add_overflows(total, bytes + NMLP_ALIGN_BYTES, &total))
            return nmlp_fail(err, NMLP_E_NOMEM, "a buffer of %lld x %lld floats does not fit",
                             (long long)buffers[i].rows, (long long)buffers[i].cols);
    }
    f->floats_bytes = total;
    f->floats = nmlp_pages_new(total, err);
    if (!f->floats) return NMLP_E_NOMEM;
    char *next = f->floats;
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)(buffers[i].rows * buffers[i].cols) * sizeof(float);
        *buffers[i].at = bytes > 0 ? (float *)next : NULL;
        next += (bytes + NMLP_ALIGN_BYTES - 1) / NMLP_ALIGN_BYTES * NMLP_ALIGN_BYTES;
    }
    return NMLP_OK;
}

static nmlp_status make_shares(nmlp_cpu_forward *f, nmlp_err *err) {
    const nmlp_process_group *group = f->weights->tensor_group;
    if (!group) return NMLP_OK;
    f->split.workspace = f->workspace;
    f->split.first = nmlp_mem_new((size_t)group->size + 1, sizeof *f->split.first, err);
    if (!f->split.first) return NMLP_E_NOMEM;
    f->vocab_first = nmlp_mem_new((size_t)group->size + 1, sizeof *f->vocab_first, err);
    if (!f->vocab_first) return NMLP_E_NOMEM;
    for (int k = 0; k <= group->size; k++)
        f->vocab_first[k] = nmlp_model_shard_vocab(f->weights->model->config.vocab, k, group->size);
    return NMLP_OK;
}

/* Columns behind the v of factorised attention matrices: most of a layer. */
static int64_t inner_columns(const nmlp_cpu_weights *w) {
    int64_t most = 0;
    for (int64_t l = 0; l < w->model->config.n_layers; l++) {
        const nmlp_cpu_projection *p = w->layers[l].attention;
        int64_t qkv = 0;
        for (int i = 0; i < NMLP_ATTENTION_O; i++) qkv += p[i].in ? p[i].rank : 0;
        most = nmlp_max(most, nmlp_max(qkv, p[NMLP_ATTENTION_O].rank));
    }
    return most;
}

static nmlp_status new_buffers(nmlp_cpu_forward *f, nmlp_err *err) {
    const nmlp_config *c = &f->weights->model->config;
    int64_t q_dim = c->n_heads * c->head_dim;
    int64_t kv_dim = c->n_kv_heads * c->head_dim;
    int64_t inside = f->observed ? c->intermediate : 0;
    nmlp_cpu_split_columns split = nmlp_cpu_split_measure(f->weights);
    const struct buffer buffers[] = {
        {&f->rope, f->cache.len, c->rope_dim},
        {&f->rope_query, c->rope.query_growth != 0 ? f->cache.len : 0, c->rope_dim},
        {&f->rope_local, c->features->local_theta > 0 ? f->cache.len : 0, c->rope_dim},
        {&f->hidden, f->chunk, c->hidden},
        {&f->normed, f->chunk, c->hidden},
        {&f->mixed, f->chunk, nmlp_max(q_dim, c->hidden)},
        {&f->q, f->chunk, q_dim},
        {&f->k_rows, f->chunk, kv_dim},
        {&f->v_rows, f->chunk, kv_dim},
        {&f->inner, f->chunk, inner_columns(f->weights)},
        {&f->gate, f->chunk, inside},
        {&f->up, f->chunk, inside},
        {&f->act, f->chunk, inside},
        {&f->split.message, f->chunk, split.message},
        {&f->split.thin[0], f->chunk, split.thin[0]},
        {&f->split.thin[1], f->chunk, split.thin[1]},
        {&f->split.gate, f->chunk, split.inner},
        {&f->split.up, f->chunk, split.inner},
        {&f->experts.scores, f->chunk, c->n_experts},
        {&f->experts.in, f->chunk, c->n_experts > 0 ? c->hidden : 0},
        {&f->experts.out, f->chunk, c->n_experts > 0 ? c->hidden : 0},
    };
    NMLP_RETURN_IF_FAILED(new_floats(f, buffers, sizeof buffers / sizeof buffers[0], err));
    f->workspace_bytes = workspace_bytes(f);
    f->workspace = nmlp_pages_new(f->workspace_bytes, err);
    f->attention = nmlp_mem_new((size_t)f->max_texts, sizeof *f->attention, err);
    if (c->n_experts > 0) {
        f->experts.workspace = f->workspace;
        f->experts.tokens = nmlp_mem_new((size_t)f->chunk, sizeof *f->experts.tokens, err);
        f->experts.choices = nmlp_mem_new((size_t)(f->chunk * c->experts_per_token), sizeof *f->experts.choices, err);
        if (!f->experts.tokens || !f->experts.choices) return NMLP_E_NOMEM;
    }
    return f->workspace && f->attention ? make_shares(f, err) : NMLP_E_NOMEM;
}

static void fill_ropes(nmlp_cpu_forward *f) {
    const nmlp_config *c = &f->weights->model->config;
    int64_t len = f->cache.len;
    nmlp_rope_table_fill(f->rope, &c->rope, len, c->rope_dim);
    if (f->rope_local) nmlp_rope_table_fill(f->rope_local, &c->local_rope, len, c->rope_dim);
    if (f->rope_query) {
        memcpy(f->rope_query, f->rope, (size_t)(len * c->rope_dim) * sizeof *f->rope);
        nmlp_rope_table_grow(f->rope_query, &c->rope, len, c->rope_dim);
    } else {
        f->rope_query = f->rope;
    }
}

nmlp_status nmlp_cpu_forward_init(nmlp_cpu_forward *f, const nmlp_cpu_weights *w, const nmlp_cpu_cache *cache,
                                  int64_t chunk, int64_t max_texts, bool observed, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *f =
        (nmlp_cpu_forward){.weights = w, .cache = *cache, .chunk = chunk, .max_texts = max_texts, .observed = observed};
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) {
        nmlp_cpu_cache_part *part = &f->cache.parts[i];
        if (part->bytes > 0 && !(part->memory = nmlp_pages_new(part->bytes, err))) NMLP_TRY(NMLP_E_NOMEM);
    }
    NMLP_TRY(new_buffers(f, err));
    fill_ropes(f);
out:
    if (st != NMLP_OK) {
        nmlp_fail_context(err, "%lld tokens at a time and %.1f MB of cache", (long long)chunk,
                          1e-6 * (double)nmlp_cpu_cache_bytes(cache));
        nmlp_cpu_forward_fini(f);
    }
    return st;
}

void nmlp_cpu_forward_fini(nmlp_cpu_forward *f) {
    nmlp_mem_free(f->vocab_first);
    nmlp_mem_free(f->split.first);
    nmlp_mem_free(f->attention);
    nmlp_mem_free(f->experts.tokens);
    nmlp_mem_free(f->experts.choices);
    nmlp_pages_free(f->workspace, f->workspace_bytes);
    for (int i = 0; i < NMLP_CPU_CACHE_KINDS; i++) nmlp_pages_free(f->cache.parts[i].memory, f->cache.parts[i].bytes);
    nmlp_pages_free(f->floats, f->floats_bytes);
    *f = (nmlp_cpu_forward){0};
}

/* ---- what comes next ---- */

enum { AHEAD_ROWS = 16 }; /* of a pass that is bound by memory */

/* The first weights of some matrices of an attention, which read the same rows. */
static nmlp_pool_ahead projection_ahead(const nmlp_cpu_projection projections[], int n) {
    const nmlp_linear *first[NMLP_ATTENTION_MATRICES];
    int n_first = 0;
    for (int i = 0; i < n; i++)
        if (projections[i].in || projections[i].rank == 0)
            first[n_first++] = projections[i].in ? projections[i].in : projections[i].out;
    return nmlp_linear_ahead(first, n_first);
}

/* A layer's first weights, or after the last layer the head's. */
static nmlp_pool_ahead layer_ahead(const nmlp_cpu_weights *w, int64_t l) {
    if (l == w->model->config.n_layers) return nmlp_linear_ahead((const nmlp_linear *const[]){w->lm_head}, 1);
    if (!w->layers[l].attention[NMLP_ATTENTION_O].out) return (nmlp_pool_ahead){.n_parts = 0}; /* not in memory */
    return projection_ahead(w->layers[l].attention, NMLP_ATTENTION_O);
}

/* Before a job of n rows: the weights of the one after it. */
static void set_ahead(const nmlp_cpu_forward *f, int64_t n, const nmlp_pool_ahead *ahead) {
    nmlp_pool_set_ahead(f->weights->pool, n <= AHEAD_ROWS ? ahead : NULL);
}

/* ---- the pass ---- */

struct embedding {
    const nmlp_model *model;
    const int32_t *ids;
    float *rows;
};

static void embed_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct embedding *e = arg;
    const nmlp_view *table = &e->model->embedding;
    float scale = (float)e->model->config.embedding_scale;
    int64_t h = table->shape[1];
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        nmlp_quant_row_to_f32(e->rows + i * h, table, e->ids[i]);
        if (scale != 1.0f) nmlp_multiply(e->rows + i * h, e->rows + i * h, scale, h, NULL);
    }
}

/* Most rows are in no cache and in no page table yet, so threads share the waiting. */
void nmlp_cpu_forward_embed(nmlp_cpu_forward *f, const int32_t *ids, int64_t n, float *rows) {
    const nmlp_view *table = &f->weights->model->embedding;
    int64_t h = table->shape[1];
    for (int64_t done = 0; done < n;) {
        int64_t some = nmlp_min(n - done, EMBED_RELEASE_ROWS - f->rows_embedded % EMBED_RELEASE_ROWS);
        struct embedding embedding = {.model = f->weights->model, .ids = ids + done, .rows = rows + done * h};
        nmlp_pool_for(f->weights->pool, some, EMBED_ROWS, embed_rows, &embedding);
        done += some;
        f->rows_embedded += some;
        /* Every row touched brings up to 2 MB around it; after a long text all of the table would stay. */
        if (f->rows_embedded % EMBED_RELEASE_ROWS == 0) nmlp_file_map_release(table->data, nmlp_view_bytes(table));
    }
}

/* Keys and values of some texts on their way to the cache, in units of positions that share cache lines. */
struct storing {
    const nmlp_cpu_forward *f;
    int64_t layer;
    const nmlp_cpu_rows *texts;
};

static int64_t units_of(const nmlp_config *c, const nmlp_cpu_rows *rows) {
    if (stores_itself(c, rows)) return 0;
    return (rows->first + rows->n - 1) / NMLP_KV_GROUP - rows->first / NMLP_KV_GROUP + 1;
}

/* Rotates keys to their positions and stores them and values, while they are in cache. */
static void store_unit(const struct storing *s, const nmlp_cpu_rows *rows, int64_t unit) {
    const nmlp_cpu_forward *f = s->f;
    nmlp_kv kv = kv_of(f->weights, &f->cache, s->layer, rows);
    int64_t row_dim = kv.n_heads * kv.head_dim;
    int64_t begin = (rows->first / NMLP_KV_GROUP + unit) * NMLP_KV_GROUP;
    int64_t first = nmlp_max(rows->first, begin);
    int64_t n = nmlp_min(rows->first + rows->n, begin + NMLP_KV_GROUP) - first;
    int64_t row = rows->row + first - rows->first;
    nmlp_rotation rope = rotation_of(f, s->layer, false);
    nmlp_rope(f->k_rows + row * row_dim, &rope, n, first, kv.n_heads, kv.head_dim, NULL);
    nmlp_kv_store(&kv, f->k_rows + row * row_dim, f->v_rows + row * row_dim, first, n);
}

static void store_units(void *arg, int64_t begin, int64_t end, int thread) {
    const struct storing *s = arg;
    const nmlp_config *config = &s->f->weights->model->config;
    int64_t text = 0, before = 0; /* units of the texts before it */
    (void)thread;
    for (int64_t at = begin; at < end; at++) {
        while (at - before >= units_of(config, &s->texts[text])) before += units_of(config, &s->texts[text++]);
        store_unit(s, &s->texts[text], at - before);
    }
}

/* q, k and v of rows [n,H]: the dense ones and the v of the others read the normed rows together, then each u reads
 * what its v made. */
static void project_rows(nmlp_cpu_forward *f, const nmlp_cpu_layer *layer, const float *rows, int64_t n) {
    const nmlp_cpu_weights *w = f->weights;
    float *const rows_of[] = {f->q, f->k_rows, f->v_rows};
    const nmlp_linear *first[NMLP_ATTENTION_O];
    float *made[NMLP_ATTENTION_O], *inner[NMLP_ATTENTION_O] = {0}, *next = f->inner;
    int n_first = 0;
    for (int i = 0; i < NMLP_ATTENTION_O; i++) {
        const nmlp_cpu_projection *p = &layer->attention[i];
        if (p->rank > 0 && !p->in) {
            inner[i] = inner[0];
            continue;
        }
        if (p->in) inner[i] = next;
        first[n_first] = p->in ? p->in : p->out;
        made[n_first++] = p->in ? inner[i] : rows_of[i];
        if (p->in) next += n * p->rank;
    }
    nmlp_fused norm = {.norm = layer->attention_norm, .norm_eps = (float)w->model->config.rms_eps};
    nmlp_linear_run_all(first, made, n_first, rows, n, &norm, f->workspace, w->pool);
    for (int i = 0; i < NMLP_ATTENTION_O; i++)
        if (inner[i]) nmlp_linear_run(layer->attention[i].out, rows_of[i], inner[i], n, f->workspace, w->pool);
}

static void project(nmlp_cpu_forward *f, int64_t l, const float *rows, int64_t n) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_cpu_layer *layer = &w->layers[l];
    const nmlp_config *c = &w->model->config;
    const nmlp_observer *o = &f->observer;
    float eps = (float)c->rms_eps;
    if (o->attention_input && layer->attention_norm) {
        nmlp_rmsnorm(f->normed, rows, layer->attention_norm, eps, n, c->hidden, w->pool);
        o->attention_input(o->ctx, l, f->normed, n);
    } else if (o->attention_input) {
        o->attention_input(o->ctx, l, rows, n);
    }
    nmlp_pool_ahead ahead = projection_ahead(&layer->attention[NMLP_ATTENTION_O], 1);
    if (layer->mlp) { /* while attention reads no weights */
        nmlp_pool_ahead later = nmlp_mlp_ahead(layer->mlp);
        nmlp_pool_ahead_then(&ahead, &later);
    }
    set_ahead(f, n, &ahead);
    project_rows(f, layer, rows, n);
    int64_t d = c->head_dim;
    bool per_head = c->features->qk_norm == NMLP_QK_NORM_HEAD;
    int64_t q_rows = per_head ? c->n_heads : 1, k_rows = per_head ? c->n_kv_heads : 1;
    if (layer->q_norm) nmlp_rmsnorm(f->q, f->q, layer->q_norm, eps, n * q_rows, c->n_heads * d / q_rows, w->pool);
    if (layer->k_norm)
        nmlp_rmsnorm(f->k_rows, f->k_rows, layer->k_norm, eps, n * k_rows, c->n_kv_heads * d / k_rows, w->pool);
}

/* Lets the queries of texts look at their keys and values and at what is before them. */
static void attend(nmlp_cpu_forward *f, int64_t layer, const nmlp_cpu_rows *texts, int64_t n) {
    nmlp_pool *pool = f->weights->pool;
    struct storing storing = {.f = f, .layer = layer, .texts = texts};
    int64_t n_units = 0;
    for (int64_t i = 0; i < n; i++) {
        n_units += units_of(&f->weights->model->config, &texts[i]);
        f->attention[n - 1 - i] = attention_of(f, layer, &texts[i]); /* the last, often the longest, first */
    }
    nmlp_pool_for(pool, n_units, 1, store_units, &storing);
    nmlp_attention_run_all(f->attention, n, f->workspace, pool);
}

/* y [S,H] joins the residual stream. */
static void add_whole(nmlp_cpu_forward *f, const float *norm_post, float *rows, float *y, int64_t n) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_config *c = &w->model->config;
    if (norm_post) nmlp_rmsnorm(y, y, norm_post, (float)c->rms_eps, n, c->hidden, w->pool);
    if (c->residual_scale != 1) nmlp_multiply(y, y, (float)c->residual_scale, n * c->hidden, w->pool);
    nmlp_add(rows, y, n * c->hidden, w->pool);
}

/* The same of what attention or MLP computed; where processes share the model, it is a part of a sum. Every process has
   all of the stream then, so norms need no message of their own. */
static void add_residual(nmlp_cpu_forward *f, const float *norm_post, float *rows, float *y, int64_t n) {
    const nmlp_cpu_weights *w = f->weights;
    if (f->status == NMLP_OK) f->status = nmlp_group_sum_f32(w->tensor_group, y, n * w->model->config.hidden, &f->err);
    add_whole(f, norm_post, rows, y, n);
}

/* Whether outputs may be added to the residual stream as they are computed. */
static bool adds_plainly(const nmlp_cpu_forward *f, const float *norm_post) {
    const nmlp_cpu_weights *w = f->weights;
    return !norm_post && w->model->config.residual_scale == 1 && !w->tensor_group;
}

static void mix(nmlp_cpu_forward *f, int64_t l, float *rows, int64_t n) {
    const nmlp_cpu_layer *layer = &f->weights->layers[l];
    const nmlp_observer *o = &f->observer;
    nmlp_fused residual = {.add = true};
    const nmlp_cpu_projection *out = &layer->attention[NMLP_ATTENTION_O];
    const float *mixed = f->mixed;
    if (o->attention_mixed) o->attention_mixed(o->ctx, l, f->mixed, n);
    nmlp_pool_ahead ahead = layer->mlp ? nmlp_mlp_ahead(layer->mlp) : (nmlp_pool_ahead){.n_parts = 0};
    set_ahead(f, n, &ahead);
    if (out->in) {
        nmlp_linear_run(out->in, f->inner, f->mixed, n, f->workspace, f->weights->pool);
        mixed = f->inner;
    }
    if (!adds_plainly(f, layer->attention_norm_post)) {
        nmlp_linear_run(out->out, f->normed, mixed, n, f->workspace, f->weights->pool);
        add_residual(f, layer->attention_norm_post, rows, f->normed, n);
        return;
    }
    nmlp_linear_run_all((const nmlp_linear *const[]){out->out}, &rows, 1, mixed, n, &residual, f->workspace,
                        f->weights->pool);
}

void nmlp_cpu_forward_attention(nmlp_cpu_forward *f, int64_t l, float *rows, const nmlp_cpu_rows *texts, int64_t n,
                                int64_t s) {
    project(f, l, rows, s);
    attend(f, l, texts, n);
    mix(f, l, rows, s);
}

void nmlp_cpu_forward_attention_in_turn(nmlp_cpu_forward *f, int64_t l, float *rows, const nmlp_cpu_rows *pieces,
                                        int64_t n, int64_t s) {
    project(f, l, rows, s);
    for (int64_t i = 0; i < n; i++) attend(f, l, &pieces[i], 1);
    mix(f, l, rows, s);
}

void nmlp_cpu_forward_mlp_input(nmlp_cpu_forward *f, int64_t l, const float *rows, int64_t n, float *out) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_config *c = &w->model->config;
    const float *norm = w->layers[l].mlp_norm;
    if (norm)
        nmlp_rmsnorm(out, rows, norm, (float)c->rms_eps, n, c->hidden, w->pool);
    else
        memcpy(out, rows, (size_t)(n * c->hidden) * sizeof *out);
}

void nmlp_cpu_forward_add_mlp(nmlp_cpu_forward *f, int64_t l, float *rows, float *y, int64_t n) {
    add_residual(f, f->weights->layers[l].mlp_norm_post, rows, y, n);
}

/* Step by step, for those who look on. */
static void run_observed_mlp(nmlp_cpu_forward *f, int64_t l, float *rows, int64_t n) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_cpu_layer *layer = &w->layers[l];
    const nmlp_observer *o = &f->observer;
    nmlp_cpu_forward_mlp_input(f, l, rows, n, f->normed);
    if (o->mlp_input) o->mlp_input(o->ctx, l, f->normed, n);
    if (o->mlp_inside && f->observed) {
        float *y = o->inputs_only ? NULL : f->mixed;
        nmlp_mlp_run_observed(layer->mlp, y, f->normed, n, f->gate, f->up, f->act, f->workspace, w->pool);
        o->mlp_inside(o->ctx, l, f->gate, f->up, f->act, n);
        if (!y) return;
    } else {
        nmlp_mlp_run(layer->mlp, f->mixed, f->normed, n, f->workspace, w->pool);
    }
    if (o->mlp_output) o->mlp_output(o->ctx, l, f->mixed, n);
    add_residual(f, layer->mlp_norm_post, rows, f->mixed, n);
}

static void run_experts(nmlp_cpu_forward *f, int64_t l, float *rows, int64_t n) {
    const nmlp_observer *o = &f->observer;
    nmlp_cpu_forward_mlp_input(f, l, rows, n, f->normed);
    if (o->mlp_input) o->mlp_input(o->ctx, l, f->normed, n);
    if (o->inputs_only) return;
    nmlp_cpu_experts_run(&f->experts, f->weights, l, f->mixed, f->normed, n);
    if (o->mlp_output) o->mlp_output(o->ctx, l, f->mixed, n);
    nmlp_cpu_forward_add_mlp(f, l, rows, f->mixed, n);
}

/* One slice after the other: they see the same rows, and their outputs add up. */
static void run_slices(nmlp_cpu_forward *f, int64_t l, float *rows, int64_t n) {
    const nmlp_cpu_layer *layer = &f->weights->layers[l];
    const nmlp_observer *o = &f->observer;
    nmlp_fused sum = {.add = true};
    nmlp_cpu_forward_mlp_input(f, l, rows, n, f->normed);
    if (o->mlp_input) o->mlp_input(o->ctx, l, f->normed, n);
    nmlp_mlp_run(layer->slices[0], f->mixed, f->normed, n, f->workspace, f->weights->pool);
    for (int64_t s = 1; s < layer->n_slices; s++)
        nmlp_mlp_run_fused(layer->slices[s], f->mixed, f->normed, n, &sum, f->workspace, f->weights->pool);
    if (o->mlp_output) o->mlp_output(o->ctx, l, f->mixed, n);
    nmlp_cpu_forward_add_mlp(f, l, rows, f->mixed, n);
}

static void run_split(nmlp_cpu_forward *f, int64_t l, float *rows, int64_t n) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_cpu_layer *layer = &w->layers[l];
    nmlp_fused norm = {.norm = layer->mlp_norm, .norm_eps = (float)w->model->config.rms_eps};
    if (f->status == NMLP_OK)
        f->status = nmlp_cpu_split_run(&f->split, w, layer->split, f->mixed, rows, n, &norm, &f->err);
    add_whole(f, layer->mlp_norm_post, rows, f->mixed, n);
}

void nmlp_cpu_forward_mlp(nmlp_cpu_forward *f, int64_t l, float *rows, int64_t n) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_cpu_layer *layer = &w->layers[l];
    const nmlp_observer *o = &f->observer;
    nmlp_fused fused = {.norm = layer->mlp_norm, .norm_eps = (float)w->model->config.rms_eps, .add = true};
    nmlp_pool_ahead ahead = layer_ahead(w, l + 1);
    set_ahead(f, n, &ahead);
    if (layer->experts)
        run_experts(f, l, rows, n);
    else if (layer->n_slices > 0)
        run_slices(f, l, rows, n);
    else if (layer->split)
        run_split(f, l, rows, n);
    else if (o->mlp_input || o->mlp_inside || o->mlp_output)
        run_observed_mlp(f, l, rows, n);
    else if (adds_plainly(f, layer->mlp_norm_post))
        nmlp_mlp_run_fused(layer->mlp, rows, rows, n, &fused, f->workspace, w->pool);
    else {
        fused.add = false;
        nmlp_mlp_run_fused(layer->mlp, f->mixed, rows, n, &fused, f->workspace, w->pool);
        add_residual(f, layer->mlp_norm_post, rows, f->mixed, n);
    }
}

void nmlp_cpu_forward_final_norm(nmlp_cpu_forward *f, const float *rows, int64_t n, float *out) {
    const nmlp_config *c = &f->weights->model->config;
    nmlp_rmsnorm(out, rows, f->weights->final_norm, (float)c->rms_eps, n, c->hidden, f->weights->pool);
}

/* Each process has rows of the head: a part of every row of logits [S,V]. */
static void gather_logits(nmlp_cpu_forward *f, const float *rows, int64_t n, float *logits) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_process_group *group = w->tensor_group;
    const nmlp_config *c = &w->model->config;
    for (int64_t i = 0; i < n && f->status == NMLP_OK; i++) {
        float *row = logits + i * c->vocab;
        nmlp_linear_run(w->lm_head, row + f->vocab_first[group->rank], rows + i * c->hidden, 1, f->workspace, w->pool);
        f->status = nmlp_group_gather(group, row, sizeof *row, f->vocab_first, &f->err);
    }
}

void nmlp_cpu_forward_logits(nmlp_cpu_forward *f, const float *rows, int64_t n, float *logits) {
    const nmlp_cpu_weights *w = f->weights;
    const nmlp_config *c = &w->model->config;
    nmlp_pool_ahead ahead = layer_ahead(w, 0);
    set_ahead(f, n, &ahead);
    if (w->tensor_group)
        gather_logits(f, rows, n, logits);
    else
        nmlp_linear_run(w->lm_head, logits, rows, n, f->workspace, w->pool);
    if (c->logit_divisor != 1) nmlp_multiply(logits, logits, (float)(1 / c->logit_divisor), n * c->vocab, w->pool);
    if (c->logit_softcap > 0)
        nmlp_softcap(logits, (float)(1 / c->logit_softcap), (float)c->logit_softcap, n * c->vocab, w->pool);
}
