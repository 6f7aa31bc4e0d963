#include "lib/loaded_engine.h"

#include "base/mem.h"
#include "lib/testing.h"

void loaded_engine_open(loaded_engine *l, const char *dir, const char *isa, int n_threads) {
    nmlp_err err;
    *l = (loaded_engine){0};
    nmlp_assert_ok(nmlp_pool_create(&l->pool, n_threads, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&l->model, dir, &err), &err);
    nmlp_engine_options options = {.isa = isa, .pool = l->pool};
    nmlp_assert_ok(nmlp_engine_create(&l->engine, &l->model, &options, &err), &err);
}

void loaded_engine_close(loaded_engine *l) {
    nmlp_engine_destroy(l->engine);
    nmlp_model_close(&l->model);
    nmlp_pool_destroy(l->pool);
}

struct sink {
    float *logits;
    int64_t vocab;
};

static void collect(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    struct sink *sink = ctx;
    nmlp_session_logits(session, rows, s, sink->logits + first * sink->vocab);
}

float *loaded_engine_logits(const loaded_engine *l, const int32_t *ids, int64_t n, int64_t chunk) {
    nmlp_session *session;
    nmlp_err err;
    int64_t vocab = l->model.config.vocab;
    struct sink sink = {.logits = nmlp_mem_new((size_t)(n * vocab), sizeof(float), NULL), .vocab = vocab};
    nmlp_assert_ok(nmlp_session_create(&session, l->engine, n, chunk, false, &err), &err);
    nmlp_assert_ok(nmlp_session_append(session, ids, n, collect, &sink, &err), &err);
    nmlp_session_destroy(session);
    return sink.logits;
}
