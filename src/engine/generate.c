#include "engine/generate.h"

#include "engine/scheduler.h"

static bool is_stop(const nmlp_generation *r, int32_t id) {
    for (int i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id) return true;
    return false;
}

bool nmlp_generation_take(const nmlp_generation *r, nmlp_generation_stats *stats, int32_t id, const float *logits,
                          int64_t room) {
    if (is_stop(r, id)) {
        stats->finish = NMLP_FINISH_STOP;
        return false;
    }
    stats->n_generated++;
    if (r->on_logits) r->on_logits(r->ctx, logits, id);
    if (r->on_token && !r->on_token(r->ctx, id)) {
        stats->finish = NMLP_FINISH_CALLER;
        return false;
    }
    if (stats->n_generated >= r->max_new) return false;
    if (room < 1) stats->finish = NMLP_FINISH_CONTEXT;
    return room >= 1;
}

/* What a single request came to. */
struct outcome {
    const nmlp_generation *request;
    bool done;
    nmlp_status status;
    nmlp_generation_stats *stats;
    nmlp_err *err;
};

static bool pass_token(void *ctx, int32_t id) {
    const nmlp_generation *r = ((struct outcome *)ctx)->request;
    return !r->on_token || r->on_token(r->ctx, id);
}

static void pass_logits(void *ctx, const float *logits, int32_t id) {
    const nmlp_generation *r = ((struct outcome *)ctx)->request;
    r->on_logits(r->ctx, logits, id);
}

static void pass_prompt_logits(void *ctx, int64_t position, const float *logits) {
    const nmlp_generation *r = ((struct outcome *)ctx)->request;
    r->on_prompt_logits(r->ctx, position, logits);
}

static void on_done(void *ctx, nmlp_status status, const nmlp_generation_stats *stats, const nmlp_err *err) {
    struct outcome *o = ctx;
    o->done = true;
    o->status = status;
    *o->stats = *stats;
    if (err && o->err && o->err != err) *o->err = *err;
}

nmlp_status nmlp_generate(nmlp_batch *batch, int32_t sequence, const nmlp_generation *r, nmlp_generation_stats *stats,
                          nmlp_err *err) {
    nmlp_scheduler *scheduler;
    struct outcome outcome = {.request = r, .stats = stats, .err = err};
    nmlp_scheduler_request request = {.generation = *r, .sequence = sequence, .on_done = on_done};
    uint64_t number;
    *stats = (nmlp_generation_stats){.finish = NMLP_FINISH_LENGTH};
    request.generation.on_token = pass_token;
    request.generation.on_logits = r->on_logits ? pass_logits : NULL;
    request.generation.on_prompt_logits = r->on_prompt_logits ? pass_prompt_logits : NULL;
    request.generation.ctx = &outcome;
    NMLP_RETURN_IF_FAILED(nmlp_scheduler_create(&scheduler, batch, err));
    nmlp_status st = nmlp_scheduler_submit(scheduler, &request, &number, err);
    while (st == NMLP_OK && !outcome.done) st = nmlp_scheduler_step(scheduler, err);
    if (st == NMLP_OK) st = outcome.status;
    nmlp_scheduler_destroy(scheduler);
    return st;
}
