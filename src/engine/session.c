#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/ints.h"
#include "base/mem.h"
#include "base/pages.h"
#include "engine/rope_table.h"
#include "engine/session_internal.h"

enum { EMBED_RELEASE_ROWS = 32 };

struct nmlp_session {
    const nmlp_cpu_weights *weights;
    int64_t context;
    int64_t chunk;
    int64_t length;
    int64_t rows_embedded;
    bool observed;
    nmlp_observer observer;
    float *rope; /* [context, D] */
    char *cache; /* keys and values, layer after layer */
    size_t cache_bytes;
    float *hidden; /* [chunk, H] residual stream */
    float *normed; /* [chunk, H] */
    float *mixed;  /* [chunk, max(q_dim, H)] attention output, then MLP output */
    float *q;      /* [chunk, n_heads*D] */
    float *k_rows; /* [chunk, n_kv_heads*D] before they go to the cache */
    float *v_rows;
    float *gate; /* [chunk, I], observed sessions only */
    float *up;
    float *act;
    float *last_row; /* [H] final hidden state of the last token */
    float *logits;   /* [V] */
    void *floats;    /* all of the above */
    size_t floats_bytes;
    void *workspace; /* in huge pages: the matmuls of a chunk walk through it again and again */
    size_t workspace_bytes;
};

static nmlp_kv kv_shape(const nmlp_cpu_weights *w, int64_t context) {
    const nmlp_config *c = &w->model->config;
    return (nmlp_kv){.kernels = w->kernels, .len = context, .n_heads = c->n_kv_heads, .head_dim = c->head_dim};
}

static nmlp_kv kv_of(const nmlp_session *s, int64_t layer) {
    nmlp_kv kv = kv_shape(s->weights, s->context);
    kv.memory = s->cache + nmlp_kv_bytes(&kv) * (size_t)layer;
    return kv;
}

static nmlp_attention attention_shape(const nmlp_session *s, int64_t n) {
    const nmlp_config *c = &s->weights->model->config;
    return (nmlp_attention){.s = n,
                            .kv = kv_shape(s->weights, s->context),
                            .n_heads = c->n_heads,
                            .scale = 1.0f / sqrtf((float)c->head_dim)};
}

/* One workspace serves every kernel of the pass, since they run one after the other. */
static size_t workspace_bytes(const nmlp_session *s) {
    const nmlp_cpu_weights *w = s->weights;
    int n_threads = nmlp_pool_threads(w->pool);
    nmlp_attention shape = attention_shape(s, s->chunk);
    size_t bytes = nmlp_attention_workspace_bytes(&shape, n_threads);
    bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(w->lm_head, s->chunk, n_threads));
    for (int64_t l = 0; l < w->model->config.n_layers; l++) {
        const nmlp_cpu_layer *layer = &w->layers[l];
        bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(layer->q, s->chunk, n_threads));
        bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(layer->k, s->chunk, n_threads));
        bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(layer->v, s->chunk, n_threads));
        bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(layer->o, s->chunk, n_threads));
        bytes = nmlp_max_size(bytes, nmlp_mlp_workspace_bytes(layer->mlp, s->chunk, n_threads));
        if (s->observed)
            bytes = nmlp_max_size(bytes, nmlp_mlp_observed_workspace_bytes(layer->mlp, s->chunk, n_threads));
    }
    return bytes;
}

static nmlp_status new_cache(nmlp_session *s, nmlp_err *err) {
    s->cache_bytes = nmlp_session_cache_bytes(s->weights, s->context);
    s->cache = nmlp_pages_new(s->cache_bytes, err);
    return s->cache ? NMLP_OK : NMLP_E_NOMEM;
}

/* Rows x cols floats of the session's memory. */
struct buffer {
    float **at;
    int64_t rows;
    int64_t cols;
};

/* All in one block of huge pages: matmuls write columns of many rows at a time, each row in another small page. */
static nmlp_status new_floats(nmlp_session *s, const struct buffer buffers[], int n, nmlp_err *err) {
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes;
        if (nmlp_mul_overflows((size_t)buffers[i].rows, (size_t)buffers[i].cols * sizeof(float), &bytes) ||
            nmlp_add_overflows(total, bytes + NMLP_ALIGN_BYTES, &total))
            return nmlp_fail(err, NMLP_E_NOMEM, "a buffer of %lld x %lld floats does not fit",
                             (long long)buffers[i].rows, (long long)buffers[i].cols);
    }
    s->floats_bytes = total;
    s->floats = nmlp_pages_new(total, err);
    if (!s->floats) return NMLP_E_NOMEM;
    char *next = s->floats;
    for (int i = 0; i < n; i++) {
        size_t bytes = (size_t)(buffers[i].rows * buffers[i].cols) * sizeof(float);
        *buffers[i].at = bytes > 0 ? (float *)next : NULL;
        next += (bytes + NMLP_ALIGN_BYTES - 1) / NMLP_ALIGN_BYTES * NMLP_ALIGN_BYTES;
    }
    return NMLP_OK;
}

static nmlp_status new_buffers(nmlp_session *s, nmlp_err *err) {
    const nmlp_config *c = &s->weights->model->config;
    int64_t q_dim = c->n_heads * c->head_dim;
    int64_t kv_dim = c->n_kv_heads * c->head_dim;
    int64_t inside = s->observed ? c->intermediate : 0;
    const struct buffer buffers[] = {
        {&s->rope, s->context, c->head_dim},
        {&s->hidden, s->chunk, c->hidden},
        {&s->normed, s->chunk, c->hidden},
        {&s->mixed, s->chunk, nmlp_max(q_dim, c->hidden)},
        {&s->q, s->chunk, q_dim},
        {&s->k_rows, s->chunk, kv_dim},
        {&s->v_rows, s->chunk, kv_dim},
        {&s->last_row, 1, c->hidden},
        {&s->logits, 1, c->vocab},
        {&s->gate, s->chunk, inside},
        {&s->up, s->chunk, inside},
        {&s->act, s->chunk, inside},
    };
    NMLP_RETURN_IF_FAILED(new_floats(s, buffers, sizeof buffers / sizeof buffers[0], err));
    s->workspace_bytes = workspace_bytes(s);
    s->workspace = nmlp_pages_new(s->workspace_bytes, err);
    return s->workspace ? NMLP_OK : NMLP_E_NOMEM;
}

nmlp_status nmlp_session_create_cpu(nmlp_session **out, const nmlp_cpu_weights *w, int64_t context, int64_t chunk,
                                    bool observed, nmlp_err *err) {
    const nmlp_config *c = &w->model->config;
    nmlp_status st = NMLP_OK;
    *out = NULL;
    if (context < 1 || context > c->max_positions)
        return nmlp_fail(err, NMLP_E_LIMIT, "a context of %lld tokens was asked for; the model takes 1 to %lld",
                         (long long)context, (long long)c->max_positions);
    nmlp_session *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    s->weights = w;
    s->context = context;
    s->chunk = chunk > 0 ? chunk : NMLP_CHUNK_DEFAULT;
    if (s->chunk > context) s->chunk = context;
    s->observed = observed;
    NMLP_TRY(new_cache(s, err));
    NMLP_TRY(new_buffers(s, err));
    nmlp_rope_table(s->rope, &c->rope, context, c->head_dim);
    *out = s;
out:
    if (st != NMLP_OK) {
        nmlp_fail_context(err, "a session of %lld tokens (%.1f MB of cache)", (long long)context,
                          1e-6 * (double)nmlp_session_cache_bytes(w, context));
        nmlp_session_destroy(s);
    }
    return st;
}

void nmlp_session_destroy(nmlp_session *s) {
    if (!s) return;
    nmlp_pages_free(s->workspace, s->workspace_bytes);
    nmlp_pages_free(s->cache, s->cache_bytes);
    nmlp_pages_free(s->floats, s->floats_bytes);
    nmlp_mem_free(s);
}

const nmlp_cpu_weights *nmlp_session_weights(const nmlp_session *s) { return s->weights; }

void nmlp_session_set_observer(nmlp_session *s, const nmlp_observer *observer) {
    s->observer = observer ? *observer : (nmlp_observer){0};
}

int64_t nmlp_session_context(const nmlp_session *s) { return s->context; }
int64_t nmlp_session_chunk(const nmlp_session *s) { return s->chunk; }
int64_t nmlp_session_length(const nmlp_session *s) { return s->length; }

void nmlp_session_truncate(nmlp_session *s, int64_t length) {
    if (length >= 0 && length < s->length) s->length = length;
}

size_t nmlp_session_cache_bytes(const nmlp_cpu_weights *w, int64_t context) {
    nmlp_kv kv = kv_shape(w, context);
    return nmlp_kv_bytes(&kv) * (size_t)w->model->config.n_layers;
}

/* A piece of a chunk that stands at consecutive positions: rows row..row+n-1 at positions first..first+n-1. */
struct run {
    int64_t row;
    int64_t n;
    int64_t first;
};

struct placing {
    nmlp_session *session;
    nmlp_kv kv;
    const struct run *run;
    int64_t first_group; /* of positions that share cache lines */
};

/* Rotates keys to their positions and stores them and values, while they are in cache. */
static void place_groups(void *arg, int64_t begin, int64_t end, int thread) {
    const struct placing *placing = arg;
    const nmlp_session *s = placing->session;
    const struct run *run = placing->run;
    int64_t row_dim = placing->kv.n_heads * placing->kv.head_dim;
    int64_t first = nmlp_max(run->first, (placing->first_group + begin) * NMLP_KV_GROUP);
    int64_t last = (placing->first_group + end) * NMLP_KV_GROUP;
    int64_t n = (last < run->first + run->n ? last : run->first + run->n) - first;
    int64_t row = run->row + first - run->first;
    (void)thread;
    nmlp_rope(s->k_rows + row * row_dim, s->rope, n, first, placing->kv.n_heads, placing->kv.head_dim, NULL);
    nmlp_kv_store(&placing->kv, s->k_rows + row * row_dim, s->v_rows + row * row_dim, first, n);
}

/* Lets the queries of one run look at its keys and values and at what earlier runs left before them. */
static void attend(nmlp_session *s, int64_t l, const struct run *run) {
    const nmlp_cpu_weights *w = s->weights;
    int64_t q_dim = w->model->config.n_heads * w->model->config.head_dim;
    struct placing placing = {.session = s, .kv = kv_of(s, l), .run = run, .first_group = run->first / NMLP_KV_GROUP};
    int64_t n_groups = (run->first + run->n - 1) / NMLP_KV_GROUP - placing.first_group + 1;
    nmlp_pool_for(w->pool, n_groups, 1, place_groups, &placing);
    nmlp_attention attention = attention_shape(s, run->n);
    attention.first_pos = run->first;
    attention.out = s->mixed + run->row * q_dim;
    attention.q = s->q + run->row * q_dim;
    attention.rope = s->rope;
    attention.kv = placing.kv;
    nmlp_attention_run(&attention, s->workspace, w->pool);
}

static void run_attention(nmlp_session *s, int64_t l, float *rows, const struct run *runs, int64_t n_runs, int64_t n) {
    const nmlp_cpu_weights *w = s->weights;
    const nmlp_config *c = &w->model->config;
    const nmlp_cpu_layer *layer = &w->layers[l];
    float eps = (float)c->rms_eps;
    const nmlp_linear *const qkv[] = {layer->q, layer->k, layer->v};
    float *const rows_of[] = {s->q, s->k_rows, s->v_rows};
    nmlp_fused norm = {.norm = layer->attention_norm, .norm_eps = eps};
    nmlp_fused residual = {.add = true};
    nmlp_linear_run_all(qkv, rows_of, 3, rows, n, &norm, s->workspace, w->pool);
    if (layer->q_norm) nmlp_rmsnorm(s->q, s->q, layer->q_norm, eps, n * c->n_heads, c->head_dim, w->pool);
    if (layer->k_norm) nmlp_rmsnorm(s->k_rows, s->k_rows, layer->k_norm, eps, n * c->n_kv_heads, c->head_dim, w->pool);
    for (int64_t i = 0; i < n_runs; i++) attend(s, l, &runs[i]);
    nmlp_linear_run_all((const nmlp_linear *const[]){layer->o}, &rows, 1, s->mixed, n, &residual, s->workspace,
                        w->pool);
}

/* Step by step, for those who look on. */
static void run_observed_mlp(nmlp_session *s, int64_t l, float *rows, int64_t n) {
    const nmlp_cpu_weights *w = s->weights;
    const nmlp_config *c = &w->model->config;
    const nmlp_cpu_layer *layer = &w->layers[l];
    const nmlp_observer *o = &s->observer;
    nmlp_rmsnorm(s->normed, rows, layer->mlp_norm, (float)c->rms_eps, n, c->hidden, w->pool);
    if (o->mlp_input) o->mlp_input(o->ctx, l, s->normed, n);
    if (o->mlp_inside && s->observed) {
        nmlp_mlp_run_observed(layer->mlp, s->mixed, s->normed, n, s->gate, s->up, s->act, s->workspace, w->pool);
        o->mlp_inside(o->ctx, l, s->gate, s->up, s->act, n);
    } else {
        nmlp_mlp_run(layer->mlp, s->mixed, s->normed, n, s->workspace, w->pool);
    }
    if (o->mlp_output) o->mlp_output(o->ctx, l, s->mixed, n);
    nmlp_add(rows, s->mixed, n * c->hidden, w->pool);
}

static void run_mlp(nmlp_session *s, int64_t l, float *rows, int64_t n) {
    const nmlp_cpu_weights *w = s->weights;
    const nmlp_cpu_layer *layer = &w->layers[l];
    const nmlp_observer *o = &s->observer;
    nmlp_fused fused = {.norm = layer->mlp_norm, .norm_eps = (float)w->model->config.rms_eps, .add = true};
    if (o->mlp_input || o->mlp_inside || o->mlp_output)
        run_observed_mlp(s, l, rows, n);
    else
        nmlp_mlp_run_fused(layer->mlp, rows, rows, n, &fused, s->workspace, w->pool);
}

void nmlp_session_run_layer(nmlp_session *s, int64_t layer, float *rows, int64_t first, int64_t n) {
    run_attention(s, layer, rows, &(struct run){.n = n, .first = first}, 1, n);
    run_mlp(s, layer, rows, n);
}

void nmlp_session_run_attention(nmlp_session *s, int64_t layer, float *rows, int64_t first, int64_t n,
                                float *mlp_input) {
    const nmlp_cpu_weights *w = s->weights;
    const nmlp_config *c = &w->model->config;
    run_attention(s, layer, rows, &(struct run){.n = n, .first = first}, 1, n);
    nmlp_rmsnorm(mlp_input, rows, w->layers[layer].mlp_norm, (float)c->rms_eps, n, c->hidden, w->pool);
}

static nmlp_status check_ids(const nmlp_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    int64_t vocab = s->weights->model->config.vocab;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return nmlp_fail(err, NMLP_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld", ids[i],
                             (long long)i, (long long)vocab);
    }
    return NMLP_OK;
}

static void embed(nmlp_session *s, const int32_t *ids, int64_t n, float *rows) {
    const nmlp_view *table = &s->weights->model->embedding;
    int64_t h = table->shape[1];
    for (int64_t i = 0; i < n; i++) {
        nmlp_to_f32(rows + i * h, nmlp_view_row(table, ids[i]), table->dtype, (size_t)h);
        /* Every row touched brings up to 2 MB around it; after a long text all of the table would stay. */
        if (++s->rows_embedded % EMBED_RELEASE_ROWS == 0) nmlp_file_map_release(table->data, nmlp_view_bytes(table));
    }
}

nmlp_status nmlp_session_embed(nmlp_session *s, const int32_t *ids, int64_t n, float *rows, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_ids(s, ids, n, err));
    embed(s, ids, n, rows);
    return NMLP_OK;
}

void nmlp_session_final_norm(nmlp_session *s, const float *rows, int64_t n, float *out) {
    const nmlp_cpu_weights *w = s->weights;
    const nmlp_config *c = &w->model->config;
    nmlp_rmsnorm(out, rows, w->final_norm, (float)c->rms_eps, n, c->hidden, w->pool);
}

/* The embedded rows of one chunk through all layers and out. `label` is what on_rows hears of the first row. */
static void run_chunk(nmlp_session *s, const struct run *runs, int64_t n_runs, int64_t n, int64_t label,
                      nmlp_rows_fn *on_rows, void *ctx) {
    const nmlp_config *c = &s->weights->model->config;
    for (int64_t l = 0; l < c->n_layers; l++) {
        run_attention(s, l, s->hidden, runs, n_runs, n);
        run_mlp(s, l, s->hidden, n);
    }
    s->length = runs[n_runs - 1].first + runs[n_runs - 1].n;
    if (on_rows) {
        nmlp_session_final_norm(s, s->hidden, n, s->normed);
        memcpy(s->last_row, s->normed + (n - 1) * c->hidden, (size_t)c->hidden * sizeof *s->last_row);
        on_rows(ctx, s, s->normed, label, n);
    } else { /* only the last token's logits can be asked for */
        nmlp_session_final_norm(s, s->hidden + (n - 1) * c->hidden, 1, s->last_row);
    }
}

nmlp_status nmlp_session_append(nmlp_session *s, const int32_t *ids, int64_t n, nmlp_rows_fn *on_rows, void *ctx,
                                nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_ids(s, ids, n, err));
    if (n > s->context - s->length) {
        nmlp_fail(err, NMLP_E_LIMIT, "%lld tokens do not fit: the context holds %lld, %lld are used", (long long)n,
                  (long long)s->context, (long long)s->length);
        nmlp_fail_hint(err, "shorten the text or raise `context` (this model takes up to %lld)",
                       (long long)s->weights->model->config.max_positions);
        return NMLP_E_LIMIT;
    }
    for (int64_t done = 0; done < n; done += s->chunk) {
        struct run run = {.n = n - done < s->chunk ? n - done : s->chunk, .first = s->length};
        embed(s, ids + done, run.n, s->hidden);
        run_chunk(s, &run, 1, run.n, run.first, on_rows, ctx);
    }
    return NMLP_OK;
}

static nmlp_status check_segments(const nmlp_session *s, const nmlp_segment *segments, int64_t n, nmlp_err *err) {
    int64_t known = s->length;
    for (int64_t i = 0; i < n; i++) {
        const nmlp_segment *segment = &segments[i];
        if (segment->n < 0 || segment->first < 0 || segment->first > known)
            return nmlp_fail(err, NMLP_E_ARG, "segment %lld begins at position %lld; positions below %lld are filled",
                             (long long)i, (long long)segment->first, (long long)known);
        if (segment->n > s->context - segment->first)
            return nmlp_fail(err, NMLP_E_LIMIT, "segment %lld ends at position %lld; the context holds %lld",
                             (long long)i, (long long)(segment->first + segment->n), (long long)s->context);
        NMLP_RETURN_IF_FAILED(check_ids(s, segment->ids, segment->n, err));
        known = segment->first + segment->n;
    }
    return NMLP_OK;
}

nmlp_status nmlp_session_run_packed(nmlp_session *s, const nmlp_segment *segments, int64_t n_segments,
                                    nmlp_rows_fn *on_rows, void *ctx, nmlp_err *err) {
    enum { RUNS_MAX = 128 }; /* runs of one chunk; more only make it end early */
    int64_t hidden = s->weights->model->config.hidden;
    int64_t i = 0, used = 0, label = 0;
    NMLP_RETURN_IF_FAILED(check_segments(s, segments, n_segments, err));
    while (i < n_segments) {
        struct run runs[RUNS_MAX];
        int64_t n_runs = 0, n = 0;
        while (i < n_segments && n < s->chunk && n_runs < RUNS_MAX) {
            const nmlp_segment *segment = &segments[i];
            int64_t take = segment->n - used < s->chunk - n ? segment->n - used : s->chunk - n;
            if (take > 0) {
                embed(s, segment->ids + used, take, s->hidden + n * hidden);
                runs[n_runs++] = (struct run){.row = n, .n = take, .first = segment->first + used};
            }
            n += take;
            used += take;
            if (used == segment->n) {
                i++;
                used = 0;
            }
        }
        if (n > 0) run_chunk(s, runs, n_runs, n, label, on_rows, ctx);
        label += n;
    }
    return NMLP_OK;
}

void nmlp_session_logits(nmlp_session *s, const float *rows, int64_t n, float *logits) {
    nmlp_linear_run(s->weights->lm_head, logits, rows, n, s->workspace, s->weights->pool);
}

void nmlp_session_give_last_logits(nmlp_session *s, float *logits) { nmlp_session_logits(s, s->last_row, 1, logits); }

const float *nmlp_session_last_logits(nmlp_session *s) {
    nmlp_session_give_last_logits(s, s->logits);
    return s->logits;
}
