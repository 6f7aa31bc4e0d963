#include "engine/generate.h"

#include "base/clock.h"

static bool is_stop(const nmlp_generation *r, int32_t id) {
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

/* Tokens after the first need one forward pass each. */
static nmlp_status generate_rest(nmlp_session *session, const nmlp_generation *r, nmlp_sampler *sampler, int32_t id,
                                 nmlp_generation_stats *stats, nmlp_err *err) {
    for (;;) {
        if (is_stop(r, id)) {
            stats->finish = NMLP_FINISH_STOP;
            return NMLP_OK;
        }
        stats->n_generated++;
        nmlp_sampler_accept(sampler, id);
        if (r->on_token && !r->on_token(r->ctx, id)) {
            stats->finish = NMLP_FINISH_CALLER;
            return NMLP_OK;
        }
        if (stats->n_generated >= r->max_new) return NMLP_OK;
        if (nmlp_session_length(session) >= nmlp_session_context(session)) {
            stats->finish = NMLP_FINISH_CONTEXT;
            return NMLP_OK;
        }
        NMLP_RETURN_IF_FAILED(nmlp_session_append(session, &id, 1, NULL, NULL, err));
        id = nmlp_sampler_next(sampler, nmlp_session_last_logits(session));
    }
}

nmlp_status nmlp_generate(nmlp_session *session, const nmlp_generation *r, nmlp_generation_stats *stats,
                          nmlp_err *err) {
    *stats = (nmlp_generation_stats){.finish = NMLP_FINISH_LENGTH};
    if (r->n_prompt < 1) return nmlp_fail(err, NMLP_E_ARG, "the prompt is empty; at least one token is needed");
    if (r->n_prompt >= nmlp_session_context(session) - nmlp_session_length(session)) {
        nmlp_fail(err, NMLP_E_LIMIT, "the prompt has %lld tokens; the context of %lld leaves no room for an answer",
                  (long long)r->n_prompt, (long long)nmlp_session_context(session));
        nmlp_fail_hint(err, "shorten the prompt or raise --ctx");
        return NMLP_E_LIMIT;
    }
    nmlp_sampler sampler;
    const nmlp_model *model = nmlp_engine_model(nmlp_session_engine(session));
    NMLP_RETURN_IF_FAILED(nmlp_sampler_init(&sampler, &r->sampling, model->config.vocab, err));
    for (int64_t i = 0; i < r->n_prompt; i++) nmlp_sampler_accept(&sampler, r->prompt[i]);
    double started = nmlp_clock_seconds();
    nmlp_status st = nmlp_session_append(session, r->prompt, r->n_prompt, NULL, NULL, err);
    if (st == NMLP_OK && r->max_new > 0) {
        int32_t id = nmlp_sampler_next(&sampler, nmlp_session_last_logits(session));
        double first = nmlp_clock_seconds();
        stats->ttft_ms = 1e3 * (first - started);
        st = generate_rest(session, r, &sampler, id, stats, err);
        stats->decode_ms = 1e3 * (nmlp_clock_seconds() - first);
    }
    nmlp_sampler_fini(&sampler);
    return st;
}
