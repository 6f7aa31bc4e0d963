#include "engine/gpu.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

/* One generation under way. */
struct run {
    nmlp_cuda_session *session;
    const nmlp_generation *request;
    nmlp_sampler sampler;
    bool on_device; /* the device chooses */
    float *logits;  /* [V], when it does not */
    int64_t context;
};

nmlp_status nmlp_engine_create_on_gpu(nmlp_engine **out, const nmlp_model *model, const nmlp_cuda_engine *gpu,
                                      nmlp_pool *pool, nmlp_err *err) {
    nmlp_engine *e = *out = nmlp_mem_new(1, sizeof *e, err);
    if (!e) return NMLP_E_NOMEM;
    e->model = model;
    e->gpu = gpu;
    e->pool = pool;
    nmlp_arena_init(&e->arena);
    return NMLP_OK;
}

const nmlp_cuda_engine *nmlp_engine_gpu(const nmlp_engine *e) { return e->gpu; }

/* cos|sin of every position [positions, D]; NULL: no memory. */
static float *new_rope(const nmlp_config *c, int64_t positions, nmlp_err *err) {
    float *rope = nmlp_mem_new((size_t)positions * (size_t)c->head_dim, sizeof *rope, err);
    if (rope) nmlp_rope_table(rope, &c->rope, positions, c->head_dim);
    return rope;
}

nmlp_status nmlp_gpu_scorer_create(nmlp_cuda_scorer **out, const nmlp_engine *e, int64_t positions, nmlp_err *err) {
    *out = NULL;
    float *rope = new_rope(&e->model->config, positions, err);
    if (!rope) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_cuda_scorer_create(out, e->gpu, positions, rope, err);
    nmlp_mem_free(rope);
    return st;
}

nmlp_status nmlp_gpu_session_create(nmlp_cuda_session **out, const nmlp_cuda_engine *engine, const nmlp_model *model,
                                    int64_t context, nmlp_err *err) {
    const nmlp_config *c = &model->config;
    *out = NULL;
    if (context < 1 || context > c->max_positions)
        return nmlp_fail(err, NMLP_E_LIMIT, "a context of %lld tokens was asked for; the model takes 1 to %lld",
                         (long long)context, (long long)c->max_positions);
    float *rope = new_rope(c, context, err);
    if (!rope) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_cuda_session_create(out, engine, context, rope, err);
    nmlp_mem_free(rope);
    return st;
}

static bool is_stop(const nmlp_generation *r, int32_t id) {
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

/* `more` tokens may follow it. */
static nmlp_status choose(struct run *g, int64_t more, int32_t *id, nmlp_err *err) {
    if (g->on_device) return nmlp_cuda_session_next(g->session, more, id, err);
    NMLP_RETURN_IF_FAILED(nmlp_cuda_session_last_logits(g->session, g->logits, err));
    *id = nmlp_sampler_next(&g->sampler, g->logits);
    return NMLP_OK;
}

/* Tokens after the first need one forward pass each. */
static nmlp_status generate_rest(struct run *g, int32_t id, nmlp_generation_stats *stats, nmlp_err *err) {
    const nmlp_generation *r = g->request;
    for (;;) {
        if (is_stop(r, id)) {
            stats->finish = NMLP_FINISH_STOP;
            return NMLP_OK;
        }
        stats->n_generated++;
        nmlp_sampler_accept(&g->sampler, id);
        if (r->on_token && !r->on_token(r->ctx, id)) {
            stats->finish = NMLP_FINISH_CALLER;
            return NMLP_OK;
        }
        if (stats->n_generated >= r->max_new) return NMLP_OK;
        if (nmlp_cuda_session_length(g->session) >= g->context) {
            stats->finish = NMLP_FINISH_CONTEXT;
            return NMLP_OK;
        }
        NMLP_RETURN_IF_FAILED(nmlp_cuda_session_append(g->session, &id, 1, err));
        NMLP_RETURN_IF_FAILED(choose(g, r->max_new - stats->n_generated - 1, &id, err));
    }
}

static nmlp_status generate(struct run *g, nmlp_generation_stats *stats, nmlp_err *err) {
    const nmlp_generation *r = g->request;
    int32_t id;
    double started = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(nmlp_cuda_session_append(g->session, r->prompt, r->n_prompt, err));
    if (r->max_new < 1) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(choose(g, r->max_new - 1, &id, err));
    double first = nmlp_clock_seconds();
    stats->ttft_ms = 1e3 * (first - started);
    nmlp_status st = generate_rest(g, id, stats, err);
    stats->decode_ms = 1e3 * (nmlp_clock_seconds() - first);
    return st;
}

nmlp_status nmlp_gpu_generate(const nmlp_cuda_engine *engine, const nmlp_model *model, int64_t context,
                              const nmlp_generation *r, nmlp_generation_stats *stats, nmlp_err *err) {
    const nmlp_sampling *s = &r->sampling;
    nmlp_status st = NMLP_OK;
    struct run g = {.request = r, .context = context};
    *stats = (nmlp_generation_stats){.finish = NMLP_FINISH_LENGTH};
    if (r->n_prompt < 1) return nmlp_fail(err, NMLP_E_ARG, "the prompt is empty; at least one token is needed");
    if (r->n_prompt >= context) {
        nmlp_fail(err, NMLP_E_LIMIT, "the prompt has %lld tokens; the context of %lld leaves no room for an answer",
                  (long long)r->n_prompt, (long long)context);
        nmlp_fail_hint(err, "shorten the prompt or raise --ctx");
        return NMLP_E_LIMIT;
    }
    g.on_device =
        s->repetition_penalty == 1 && (s->temperature == 0 || (s->top_k == 0 && s->top_p == 1 && s->min_p == 0));
    NMLP_RETURN_IF_FAILED(nmlp_sampler_init(&g.sampler, s, model->config.vocab, err));
    for (int64_t i = 0; i < r->n_prompt; i++) nmlp_sampler_accept(&g.sampler, r->prompt[i]);
    NMLP_TRY(nmlp_gpu_session_create(&g.session, engine, model, context, err));
    nmlp_cuda_session_set_sampling(g.session, s->temperature, s->seed);
    if (!g.on_device) {
        g.logits = nmlp_mem_new((size_t)model->config.vocab, sizeof *g.logits, err);
        if (!g.logits) NMLP_TRY(NMLP_E_NOMEM);
    }
    st = generate(&g, stats, err);
out:
    nmlp_cuda_session_destroy(g.session);
    nmlp_mem_free(g.logits);
    nmlp_sampler_fini(&g.sampler);
    return st;
}
