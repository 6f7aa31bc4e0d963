/* The CPU's table. */
#include "engine/backend.h"
#include "engine/score_cpu.h"
#include "engine/session_internal.h"

/* A session for each open sequence. */
struct batch {
    const nmlp_cpu_weights *weights;
    nmlp_batch_options limits;
    nmlp_session **sessions; /* [max_sequences] */
    int64_t n_open;
};

static nmlp_status probe(nmlp_err *err) {
    (void)err;
    return NMLP_OK;
}

static nmlp_status weights_create(void **out, const nmlp_model *model, const nmlp_engine_options *options,
                                  nmlp_err *err) {
    nmlp_cpu_weights *weights;
    nmlp_status st = nmlp_cpu_weights_create(&weights, model, options, err);
    *out = weights;
    return st;
}

static void weights_destroy(void *weights) { nmlp_cpu_weights_destroy(weights); }

static const char *weights_name(const void *weights) {
    return nmlp_kernels_name(((const nmlp_cpu_weights *)weights)->kernels);
}

static size_t cache_bytes(const void *weights, int64_t positions) {
    return nmlp_session_cache_bytes(weights, positions);
}

static nmlp_status set_mlp(void *weights, int64_t layer, const nmlp_mlp_desc *mlp, nmlp_err *err) {
    return nmlp_cpu_weights_set_mlp(weights, layer, mlp, err);
}

/* ---- batches ---- */

static void batch_destroy(void *batch) {
    struct batch *b = batch;
    if (!b) return;
    for (int64_t i = 0; b->sessions && i < b->limits.max_sequences; i++) nmlp_session_destroy(b->sessions[i]);
    nmlp_mem_free(b->sessions);
    nmlp_mem_free(b);
}

static nmlp_status batch_create(void **out, const void *weights, const nmlp_batch_options *limits, nmlp_err *err) {
    *out = NULL;
    struct batch *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    b->weights = weights;
    b->limits = *limits;
    b->sessions = nmlp_mem_new((size_t)limits->max_sequences, sizeof(nmlp_session *), err);
    if (!b->sessions) {
        batch_destroy(b);
        return NMLP_E_NOMEM;
    }
    *out = b;
    return NMLP_OK;
}

static nmlp_status open_sequence(void *batch, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached,
                                 nmlp_err *err) {
    struct batch *b = batch;
    (void)ids;
    (void)n;
    *n_cached = 0;
    if ((b->n_open + 1) * b->limits.context > b->limits.positions)
        return nmlp_fail(err, NMLP_E_LIMIT, "the KV memory of %lld positions holds %lld sequences of %lld",
                         (long long)b->limits.positions, (long long)b->n_open, (long long)b->limits.context);
    NMLP_RETURN_IF_FAILED(
        nmlp_session_create_cpu(&b->sessions[sequence], b->weights, b->limits.context, b->limits.max_rows, false, err));
    b->n_open++;
    return NMLP_OK;
}

static void close_sequence(void *batch, int32_t sequence) {
    struct batch *b = batch;
    nmlp_session_destroy(b->sessions[sequence]);
    b->sessions[sequence] = NULL;
    b->n_open--;
}

static void truncate_sequence(void *batch, int32_t sequence, int64_t length) {
    nmlp_session_truncate(((struct batch *)batch)->sessions[sequence], length);
}

static nmlp_status reserve(void *batch, int32_t sequence, int64_t n, nmlp_err *err) {
    (void)batch;
    (void)sequence;
    (void)n;
    (void)err;
    return NMLP_OK;
}

/* Where the logits of one item go. */
struct wanted {
    const nmlp_step_item *item;
    int64_t first; /* position of the item's first row */
    int64_t hidden;
    int64_t vocab;
};

static void give_logits(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    const struct wanted *w = ctx;
    int64_t begin = w->first + w->item->n - w->item->n_logits; /* the first position wanted */
    int64_t skip = begin > first ? begin - first : 0;
    if (skip >= s) return;
    nmlp_session_logits(session, rows + skip * w->hidden, s - skip,
                        w->item->logits + (first + skip - begin) * w->vocab);
}

static nmlp_status run_item(const struct batch *b, const nmlp_step_item *item, nmlp_err *err) {
    const nmlp_config *c = &b->weights->model->config;
    nmlp_session *session = b->sessions[item->sequence];
    struct wanted wanted = {
        .item = item, .first = nmlp_session_length(session), .hidden = c->hidden, .vocab = c->vocab};
    bool several = item->n_logits > 1;
    NMLP_RETURN_IF_FAILED(nmlp_session_append(session, item->ids, item->n, several ? give_logits : NULL, &wanted, err));
    if (item->n_logits == 1) nmlp_session_give_last_logits(session, item->logits);
    return NMLP_OK;
}

static nmlp_status step(void *batch, const nmlp_step_item *items, int64_t n_items, nmlp_err *err) {
    for (int64_t i = 0; i < n_items; i++) NMLP_RETURN_IF_FAILED(run_item(batch, &items[i], err));
    return NMLP_OK;
}

/* ---- scoring ---- */

static nmlp_status scorer_create(void **out, const void *weights, int64_t positions, nmlp_err *err) {
    nmlp_cpu_scorer *scorer;
    nmlp_status st = nmlp_cpu_scorer_create(&scorer, weights, positions, err);
    *out = scorer;
    return st;
}

static void scorer_destroy(void *scorer) { nmlp_cpu_scorer_destroy(scorer); }

static int64_t scorer_tokens(const void *scorer) { return nmlp_cpu_scorer_tokens(scorer); }

static nmlp_status scorer_run(void *scorer, const nmlp_score_text *texts, int64_t n, nmlp_score_on_rows *on_rows,
                              void *ctx, nmlp_err *err) {
    return nmlp_cpu_scorer_run(scorer, texts, n, on_rows, ctx, err);
}

/* ---- layers ---- */

static nmlp_status session_create(nmlp_session **out, const void *weights, int64_t context, int64_t chunk,
                                  bool observed, nmlp_err *err) {
    return nmlp_session_create_cpu(out, weights, context, chunk, observed, err);
}

const nmlp_backend *nmlp_backend_cpu(void) {
    static const nmlp_backend table = {
        .name = "cpu",
        .probe = probe,
        .weights_create = weights_create,
        .weights_destroy = weights_destroy,
        .weights_name = weights_name,
        .cache_bytes = cache_bytes,
        .set_mlp = set_mlp,
        .batch_create = batch_create,
        .batch_destroy = batch_destroy,
        .open = open_sequence,
        .close = close_sequence,
        .truncate = truncate_sequence,
        .reserve = reserve,
        .step = step,
        .scorer_create = scorer_create,
        .scorer_destroy = scorer_destroy,
        .scorer_tokens = scorer_tokens,
        .scorer_rows = nmlp_cpu_scorer_rows,
        .scorer_run = scorer_run,
        .session_create = session_create,
    };
    return &table;
}
