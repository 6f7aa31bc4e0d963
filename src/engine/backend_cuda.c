/* CUDA's table. */
#include <math.h>

#include "base/mem.h"
#include "cuda/cuda.h"
#include "cuda/layout.h"
#include "engine/backend.h"
#include "engine/kv_pool.h"
#include "engine/rope_table.h"

struct weights {
    const nmlp_model *model;
    nmlp_cuda_engine *engine;
};

/* One sequence is a session, whose decode step is one launch; several are a batch over pages, which sequences that
 * begin alike share as on the CPU. */
struct batch {
    const struct weights *weights;
    nmlp_cuda_session *session;
    nmlp_cuda_batch *device;
    nmlp_kv_pool *pool;
    int64_t context;
    nmlp_status copied; /* not NMLP_OK: a page could not be copied, for the reason in copy_err */
    nmlp_err copy_err;
    nmlp_cuda_batch_item *items;     /* [max_sequences] of a step */
    nmlp_cuda_batch_choice *choices; /* [max_sequences] */
};

struct scorer {
    nmlp_cuda_scorer *device;
    nmlp_cuda_text *texts; /* [tokens] */
    float *logprobs;       /* [tokens] of all texts, one after the other */
};

static nmlp_status probe(nmlp_err *err) {
    nmlp_cuda_info info;
    return nmlp_cuda_probe(&info, err);
}

static nmlp_status peak(double *bytes_per_second, double *flop_per_second, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_cuda_copy_rate(bytes_per_second, err));
    return nmlp_cuda_matmul_rate(flop_per_second, err);
}

/* ---- weights ---- */

static void weights_destroy(void *weights) {
    struct weights *w = weights;
    if (!w) return;
    nmlp_cuda_engine_destroy(w->engine);
    nmlp_mem_free(w);
}

static nmlp_status weights_create(void **out, const nmlp_model *model, const nmlp_engine_options *o, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    struct weights *w = nmlp_mem_new(1, sizeof *w, err);
    if (!w) return NMLP_E_NOMEM;
    w->model = model;
    if (!o->skip_finite_check) NMLP_TRY(nmlp_model_check_finite(model, o->pool, o->progress, err));
    NMLP_TRY(nmlp_cuda_engine_create(&w->engine, model, o->progress, err));
    *out = w;
out:
    if (st != NMLP_OK) weights_destroy(w);
    return st;
}

static const char *weights_name(const void *weights) {
    return nmlp_cuda_engine_name(((const struct weights *)weights)->engine);
}

static size_t cache_bytes(const void *weights, int64_t positions) {
    const nmlp_config *c = &((const struct weights *)weights)->model->config;
    const size_t bf16_bytes = 2;
    return 2 * bf16_bytes * (size_t)(c->n_layers * c->n_kv_heads * c->head_dim) * (size_t)positions;
}

/* cos|sin of every position [positions, D]; NULL: no memory. */
static float *new_rope(const nmlp_config *c, int64_t positions, nmlp_err *err) {
    float *rope = nmlp_mem_new((size_t)positions * (size_t)c->head_dim, sizeof *rope, err);
    if (rope) nmlp_rope_table_fill(rope, &c->rope, positions, c->head_dim);
    return rope;
}

/* ---- batches ---- */

static void batch_destroy(void *batch) {
    struct batch *b = batch;
    if (!b) return;
    nmlp_cuda_session_destroy(b->session);
    nmlp_cuda_batch_destroy(b->device);
    nmlp_kv_pool_destroy(b->pool);
    nmlp_mem_free(b->items);
    nmlp_mem_free(b->choices);
    nmlp_mem_free(b);
}

static void copy_page(void *ctx, int32_t to, int32_t from, int64_t n) {
    struct batch *b = ctx;
    (void)n; /* positions are strewn over the page */
    if (b->copied == NMLP_OK) b->copied = nmlp_cuda_batch_copy_page(b->device, to, from, &b->copy_err);
}

/* Whether all pages that were to be copied since the last question were. */
static nmlp_status check_copies(struct batch *b, nmlp_err *err) {
    nmlp_status st = b->copied;
    if (st != NMLP_OK && err) *err = b->copy_err;
    b->copied = NMLP_OK;
    return st;
}

/* The batch over pages of a device; a page begun per sequence comes on top of what the positions fill. */
static nmlp_status create_paged(struct batch *b, const nmlp_batch_options *limits, const float *rope, nmlp_err *err) {
    const nmlp_kv_pool_options pool = {.page = NMLP_CUDA_PAGE_POSITIONS,
                                       .n_pages = nmlp_cuda_divide_up(limits->positions, NMLP_CUDA_PAGE_POSITIONS) +
                                                  limits->max_sequences,
                                       .max_sequences = limits->max_sequences,
                                       .context = limits->context,
                                       .copy = copy_page,
                                       .ctx = b};
    const nmlp_cuda_batch_options options = {.context = limits->context,
                                             .n_pages = pool.n_pages,
                                             .max_sequences = limits->max_sequences,
                                             .max_rows = limits->max_rows,
                                             .rope = rope};
    NMLP_RETURN_IF_FAILED(nmlp_kv_pool_create(&b->pool, &pool, err));
    return nmlp_cuda_batch_create(&b->device, b->weights->engine, &options, err);
}

static nmlp_status batch_create(void **out, const void *weights, const nmlp_batch_options *limits, nmlp_err *err) {
    const struct weights *w = weights;
    nmlp_status st = NMLP_OK;
    *out = NULL;
    struct batch *b = nmlp_mem_new(1, sizeof *b, err);
    float *rope = new_rope(&w->model->config, limits->context, err);
    if (!b || !rope) NMLP_TRY(NMLP_E_NOMEM);
    b->weights = w;
    b->context = limits->context;
    b->items = nmlp_mem_new((size_t)limits->max_sequences, sizeof *b->items, err);
    b->choices = nmlp_mem_new((size_t)limits->max_sequences, sizeof *b->choices, err);
    if (!b->items || !b->choices) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(limits->max_sequences == 1 ? nmlp_cuda_session_create(&b->session, w->engine, limits->context, rope, err)
                                        : create_paged(b, limits, rope, err));
    *out = b;
out:
    nmlp_mem_free(rope);
    if (st != NMLP_OK) batch_destroy(b);
    return st;
}

static void close_sequence(void *batch, int32_t sequence) {
    struct batch *b = batch;
    if (b->session) {
        nmlp_cuda_session_truncate(b->session, 0);
        return;
    }
    nmlp_cuda_batch_set_length(b->device, sequence, 0);
    nmlp_kv_pool_close(b->pool, sequence);
}

static nmlp_status open_sequence(void *batch, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached,
                                 nmlp_err *err) {
    struct batch *b = batch;
    *n_cached = 0;
    if (b->session) {
        close_sequence(b, sequence);
        return NMLP_OK;
    }
    nmlp_kv_pool_open(b->pool, sequence, ids, n, n_cached);
    nmlp_cuda_batch_set_length(b->device, sequence, *n_cached);
    nmlp_status st = check_copies(b, err);
    if (st != NMLP_OK) close_sequence(b, sequence);
    return st;
}

static int64_t truncate_sequence(void *batch, int32_t sequence, int64_t length) {
    struct batch *b = batch;
    if (b->session) {
        nmlp_cuda_session_truncate(b->session, length);
        return length;
    }
    nmlp_cuda_batch_set_length(b->device, sequence, length);
    return nmlp_kv_pool_truncate(b->pool, sequence, length);
}

static nmlp_status fork_sequence(void *batch, int32_t parent, int64_t length, int32_t child, nmlp_err *err) {
    struct batch *b = batch;
    if (b->session) return nmlp_fail(err, NMLP_E_LIMIT, "a batch of one sequence has no room for another");
    nmlp_kv_pool_fork(b->pool, parent, length, child);
    nmlp_cuda_batch_set_length(b->device, child, length);
    return NMLP_OK;
}

/* A session has room for the whole context. */
static nmlp_status reserve(void *batch, int32_t sequence, int64_t n, nmlp_err *err) {
    struct batch *b = batch;
    if (b->session) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_kv_pool_reserve(b->pool, sequence, n, err));
    return check_copies(b, err);
}

/* The device learns where the next n tokens of a sequence, and those before, lie. */
static void show_pages(struct batch *b, int32_t sequence, int64_t n) {
    int64_t end = nmlp_kv_pool_length(b->pool, sequence) + n;
    nmlp_cuda_batch_set_pages(b->device, sequence, nmlp_kv_pool_pages(b->pool, sequence),
                              nmlp_cuda_divide_up(end, NMLP_CUDA_PAGE_POSITIONS));
}

/* Rows whose logits are wanted run one at a time: as decoding does, with activations of 16 bits of mantissa. */
static nmlp_status run_item(nmlp_cuda_session *session, const nmlp_step_item *item, int64_t vocab, nmlp_err *err) {
    if (item->choose) nmlp_cuda_session_set_sampling(session, item->choose->temperature, item->choose->seed);
    int64_t done = item->n_logits > 0 ? item->n - item->n_logits + 1 : item->n;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_session_append(session, item->ids, done, err));
    for (int64_t i = 0; i < item->n_logits; i++) {
        if (i > 0) NMLP_RETURN_IF_FAILED(nmlp_cuda_session_append(session, item->ids + done++, 1, err));
        NMLP_RETURN_IF_FAILED(nmlp_cuda_session_last_logits(session, item->logits + i * vocab, err));
    }
    return NMLP_OK;
}

static nmlp_status step(void *batch, const nmlp_step_item *items, int64_t n_items, nmlp_err *err) {
    struct batch *b = batch;
    if (b->session) return run_item(b->session, &items[0], b->weights->model->config.vocab, err);
    for (int64_t i = 0; i < n_items; i++) {
        const nmlp_sampling *choose = items[i].choose;
        show_pages(b, items[i].sequence, items[i].n);
        b->items[i] = (nmlp_cuda_batch_item){.sequence = items[i].sequence,
                                             .ids = items[i].ids,
                                             .n = items[i].n,
                                             .n_logits = items[i].n_logits,
                                             .logits = items[i].logits,
                                             .choose = choose != NULL,
                                             .temperature = choose ? choose->temperature : 0,
                                             .seed = choose ? choose->seed : 0};
    }
    NMLP_RETURN_IF_FAILED(nmlp_cuda_batch_step(b->device, b->items, n_items, err));
    for (int64_t i = 0; i < n_items; i++) nmlp_kv_pool_append(b->pool, items[i].sequence, items[i].ids, items[i].n);
    return NMLP_OK;
}

/* ---- choosing on the device ---- */

static bool can_choose(const nmlp_sampling *s) {
    return nmlp_sampling_is_plain(s) && (s->temperature == 0 || (s->top_k == 0 && s->top_p == 1 && s->min_p == 0));
}

/* Steps that may run ahead: as many as asked for, if every sequence gets pages for them. */
static int64_t pages_ahead(struct batch *b, const nmlp_choice_item *items, int64_t n_items, int64_t more) {
    nmlp_err ignored;
    if (more > NMLP_CUDA_BATCH_AHEAD) more = NMLP_CUDA_BATCH_AHEAD;
    for (int64_t i = 0; i < n_items; i++) {
        int64_t room = b->context - nmlp_kv_pool_length(b->pool, items[i].sequence);
        if (room < more) more = room;
    }
    for (int64_t i = 0; i < n_items && more > 0; i++)
        if (reserve(b, items[i].sequence, more, &ignored) != NMLP_OK) more = 0;
    for (int64_t i = 0; i < n_items && more > 0; i++) show_pages(b, items[i].sequence, more);
    return more;
}

static nmlp_status choose(void *batch, nmlp_choice_item *items, int64_t n_items, int64_t more, nmlp_err *err) {
    struct batch *b = batch;
    if (b->session) return nmlp_cuda_session_next(b->session, more, &items[0].id, err);
    more = pages_ahead(b, items, n_items, more);
    for (int64_t i = 0; i < n_items; i++) b->choices[i].sequence = items[i].sequence;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_batch_choose(b->device, b->choices, n_items, more, err));
    for (int64_t i = 0; i < n_items; i++) items[i].id = b->choices[i].id;
    return NMLP_OK;
}

static int64_t steps_ahead(const void *batch) {
    const struct batch *b = batch;
    return b->session ? 0 : nmlp_cuda_batch_steps_ahead(b->device);
}

/* ---- scoring ---- */

static void scorer_destroy(void *scorer) {
    struct scorer *s = scorer;
    if (!s) return;
    nmlp_cuda_scorer_destroy(s->device);
    nmlp_mem_free(s->texts);
    nmlp_mem_free(s->logprobs);
    nmlp_mem_free(s);
}

static nmlp_status scorer_create(void **out, const void *weights, int64_t positions, nmlp_err *err) {
    const struct weights *w = weights;
    nmlp_status st = NMLP_OK;
    float *rope = NULL;
    *out = NULL;
    struct scorer *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    rope = new_rope(&w->model->config, positions, err);
    if (!rope) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(nmlp_cuda_scorer_create(&s->device, w->engine, positions, rope, err));
    size_t most = (size_t)nmlp_cuda_scorer_tokens(s->device);
    s->texts = nmlp_mem_new(most, sizeof *s->texts, err);
    s->logprobs = nmlp_mem_new(most, sizeof *s->logprobs, err);
    if (!s->texts || !s->logprobs) NMLP_TRY(NMLP_E_NOMEM);
    *out = s;
out:
    nmlp_mem_free(rope);
    if (st != NMLP_OK) scorer_destroy(s);
    return st;
}

static int64_t scorer_tokens(const void *scorer) {
    return nmlp_cuda_scorer_tokens(((const struct scorer *)scorer)->device);
}

/* Every text whole: side by side they cost less than telling apart what they share. */
static int64_t scorer_rows(const nmlp_score_text *text, const nmlp_score_text *before) {
    (void)before;
    return text->n - 1;
}

static nmlp_status add_up(const nmlp_score_text *text, const float *logprob, nmlp_err *err) {
    *text->loglik = 0;
    for (int64_t t = text->score; t < text->n; t++) *text->loglik += (double)logprob[t - 1];
    if (isfinite(*text->loglik)) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_NUMERIC,
                     "the log-probability of a token between positions %lld and %lld is not finite",
                     (long long)text->score, (long long)text->n);
}

static nmlp_status scorer_run(void *scorer, const nmlp_score_text *texts, int64_t n, nmlp_score_on_rows *on_rows,
                              void *ctx, nmlp_err *err) {
    struct scorer *s = scorer;
    int64_t n_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        s->texts[i] = (nmlp_cuda_text){.ids = texts[i].ids, .n = texts[i].n, .logprob = s->logprobs + n_rows};
        n_rows += texts[i].n - 1;
    }
    NMLP_RETURN_IF_FAILED(nmlp_cuda_scorer_run(s->device, s->texts, n, err));
    for (int64_t i = 0; i < n; i++) NMLP_RETURN_IF_FAILED(add_up(&texts[i], s->texts[i].logprob, err));
    return on_rows(ctx, n_rows) ? NMLP_OK : nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped");
}

const nmlp_backend *nmlp_backend_cuda(void) {
    static const nmlp_backend table = {
        .name = "cuda",
        .step_rows = 2048,
        .probe = probe,
        .peak = peak,
        .weights_create = weights_create,
        .weights_destroy = weights_destroy,
        .weights_name = weights_name,
        .cache_bytes = cache_bytes,
        .batch_create = batch_create,
        .batch_destroy = batch_destroy,
        .open = open_sequence,
        .close = close_sequence,
        .truncate = truncate_sequence,
        .fork = fork_sequence,
        .reserve = reserve,
        .step = step,
        .can_choose = can_choose,
        .choose = choose,
        .steps_ahead = steps_ahead,
        .scorer_create = scorer_create,
        .scorer_destroy = scorer_destroy,
        .scorer_tokens = scorer_tokens,
        .scorer_rows = scorer_rows,
        .scorer_run = scorer_run,
    };
    return &table;
}
