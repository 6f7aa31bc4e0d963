/* The CPU's table. */
#include "engine/backend.h"
#include "engine/batch_cpu.h"
#include "engine/score_cpu.h"
#include "engine/session_internal.h"

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
    return nmlp_cpu_batch_cache_bytes(weights, positions);
}

static nmlp_status hold_layer(void *weights, int64_t layer, nmlp_err *err) {
    return nmlp_cpu_weights_hold(weights, layer, err);
}

static nmlp_status set_mlp(void *weights, int64_t layer, const nmlp_mlp_desc *mlp, nmlp_err *err) {
    return nmlp_cpu_weights_set_mlp(weights, layer, mlp, err);
}

static nmlp_status set_attention(void *weights, int64_t layer, const nmlp_layer *attention, nmlp_err *err) {
    return nmlp_cpu_weights_set_attention(weights, layer, attention, err);
}

/* Batches and scorers run all layers. */
static nmlp_status check_resident(const nmlp_cpu_weights *w, nmlp_err *err) {
    if (w->n_resident == w->model->config.n_layers) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "only %lld of %lld layers stay in memory: they run one at a time",
                     (long long)w->n_resident, (long long)w->model->config.n_layers);
}

/* ---- batches ---- */

static nmlp_status batch_create(void **out, const void *weights, const nmlp_batch_options *limits, nmlp_err *err) {
    nmlp_cpu_batch *batch;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(check_resident(weights, err));
    nmlp_status st = nmlp_cpu_batch_create(&batch, weights, limits, err);
    *out = batch;
    return st;
}

static void batch_destroy(void *batch) { nmlp_cpu_batch_destroy(batch); }

static nmlp_status open_sequence(void *batch, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached,
                                 nmlp_err *err) {
    (void)err;
    nmlp_cpu_batch_open(batch, sequence, ids, n, n_cached);
    return NMLP_OK;
}

static void close_sequence(void *batch, int32_t sequence) { nmlp_cpu_batch_close(batch, sequence); }

static int64_t truncate_sequence(void *batch, int32_t sequence, int64_t length) {
    return nmlp_cpu_batch_truncate(batch, sequence, length);
}

static nmlp_status fork_sequence(void *batch, int32_t parent, int64_t length, int32_t child, nmlp_err *err) {
    return nmlp_cpu_batch_fork(batch, parent, length, child, err);
}

static nmlp_status reserve(void *batch, int32_t sequence, int64_t n, nmlp_err *err) {
    return nmlp_cpu_batch_reserve(batch, sequence, n, err);
}

static nmlp_status step(void *batch, const nmlp_step_item *items, int64_t n_items, nmlp_err *err) {
    return nmlp_cpu_batch_step(batch, items, n_items, err);
}

/* ---- scoring ---- */

static nmlp_status scorer_create(void **out, const void *weights, int64_t positions, nmlp_err *err) {
    nmlp_cpu_scorer *scorer;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(check_resident(weights, err));
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
        .gives_hidden = true,
        .step_rows = 1024,
        .probe = probe,
        .weights_create = weights_create,
        .weights_destroy = weights_destroy,
        .weights_name = weights_name,
        .cache_bytes = cache_bytes,
        .hold_layer = hold_layer,
        .set_mlp = set_mlp,
        .set_attention = set_attention,
        .batch_create = batch_create,
        .batch_destroy = batch_destroy,
        .open = open_sequence,
        .close = close_sequence,
        .truncate = truncate_sequence,
        .fork = fork_sequence,
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
