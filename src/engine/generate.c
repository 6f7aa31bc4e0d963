#include "engine/generate.h"

#include "base/clock.h"
#include "base/mem.h"

/* One generation under way. */
struct run {
    nmlp_batch *batch;
    int32_t sequence;
    const nmlp_generation *request;
    nmlp_sampler sampler;
    const nmlp_sampling *choose; /* how the device chooses; NULL: the sampler does */
    float *logits;               /* [V] for the sampler */
};

static bool is_stop(const nmlp_generation *r, int32_t id) {
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

/* Appends n tokens and gives the one that follows; `more` tokens may come after it. */
static nmlp_status advance(struct run *g, const int32_t *ids, int64_t n, int64_t more, int32_t *next, nmlp_err *err) {
    nmlp_choice_item choice = {.sequence = g->sequence};
    NMLP_RETURN_IF_FAILED(nmlp_batch_append(g->batch, g->sequence, ids, n, g->logits, g->choose, err));
    if (g->choose) {
        NMLP_RETURN_IF_FAILED(nmlp_batch_choose(g->batch, &choice, 1, more, err));
        *next = choice.id;
    } else {
        *next = nmlp_sampler_next(&g->sampler, g->logits);
    }
    return NMLP_OK;
}

/* Tokens after the first need one step each. */
static nmlp_status generate_rest(struct run *g, int32_t id, nmlp_generation_stats *stats, nmlp_err *err) {
    const nmlp_generation *r = g->request;
    int64_t context = nmlp_batch_limits(g->batch)->context;
    for (;;) {
        if (is_stop(r, id)) {
            stats->finish = NMLP_FINISH_STOP;
            return NMLP_OK;
        }
        stats->n_generated++;
        nmlp_sampler_accept(&g->sampler, id);
        if (r->on_logits) r->on_logits(r->ctx, g->logits, id);
        if (r->on_token && !r->on_token(r->ctx, id)) {
            stats->finish = NMLP_FINISH_CALLER;
            return NMLP_OK;
        }
        if (stats->n_generated >= r->max_new) return NMLP_OK;
        if (nmlp_batch_length(g->batch, g->sequence) >= context) {
            stats->finish = NMLP_FINISH_CONTEXT;
            return NMLP_OK;
        }
        NMLP_RETURN_IF_FAILED(advance(g, &id, 1, r->max_new - stats->n_generated - 1, &id, err));
    }
}

static nmlp_status generate(struct run *g, nmlp_generation_stats *stats, nmlp_err *err) {
    const nmlp_generation *r = g->request;
    double started = nmlp_clock_seconds();
    const int32_t *rest = r->prompt + r->n_held;
    int64_t n = r->n_prompt - r->n_held;
    int32_t id;
    if (r->max_new < 1) return nmlp_batch_append(g->batch, g->sequence, rest, n, NULL, NULL, err);
    NMLP_RETURN_IF_FAILED(advance(g, rest, n, r->max_new - 1, &id, err));
    double first = nmlp_clock_seconds();
    stats->ttft_ms = 1e3 * (first - started);
    nmlp_status st = generate_rest(g, id, stats, err);
    stats->decode_ms = 1e3 * (nmlp_clock_seconds() - first);
    return st;
}

static nmlp_status check_prompt(const struct run *g, nmlp_err *err) {
    int64_t context = nmlp_batch_limits(g->batch)->context;
    int64_t n = g->request->n_prompt - g->request->n_held;
    if (n < 1) return nmlp_fail(err, NMLP_E_ARG, "the prompt is empty; at least one token is needed");
    if (n < context - nmlp_batch_length(g->batch, g->sequence)) return NMLP_OK;
    nmlp_fail(err, NMLP_E_LIMIT, "the prompt has %lld tokens; the context of %lld leaves no room for an answer",
              (long long)g->request->n_prompt, (long long)context);
    nmlp_fail_hint(err, "shorten the prompt or raise `context`");
    return NMLP_E_LIMIT;
}

nmlp_status nmlp_generate(nmlp_batch *batch, int32_t sequence, const nmlp_generation *r, nmlp_generation_stats *stats,
                          nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int64_t vocab = nmlp_engine_model(nmlp_batch_engine(batch))->config.vocab;
    struct run g = {.batch = batch, .sequence = sequence, .request = r};
    *stats = (nmlp_generation_stats){.finish = NMLP_FINISH_LENGTH};
    NMLP_RETURN_IF_FAILED(check_prompt(&g, err));
    NMLP_RETURN_IF_FAILED(nmlp_sampler_init(&g.sampler, &r->sampling, vocab, err));
    for (int64_t i = 0; i < r->n_prompt; i++) nmlp_sampler_accept(&g.sampler, r->prompt[i]);
    if (!r->on_logits && nmlp_batch_can_choose(batch, &r->sampling)) {
        g.choose = &r->sampling;
    } else {
        g.logits = nmlp_mem_new((size_t)vocab, sizeof *g.logits, err);
        if (!g.logits) NMLP_TRY(NMLP_E_NOMEM);
    }
    st = generate(&g, stats, err);
out:
    nmlp_mem_free(g.logits);
    nmlp_sampler_fini(&g.sampler);
    return st;
}
