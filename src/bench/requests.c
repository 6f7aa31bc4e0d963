#include "bench/requests.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/limits.h"
#include "bench/model_work.h"
#include "engine/backend.h"
#include "engine/batch.h"

enum { STEP_ROWS = 2048 };

/* One number of sequences. */
struct subject {
    const nmlp_bench_requests_options *o;
    const nmlp_engine *engine;
    const nmlp_limits *limits;
    const nmlp_model_work *work;
    nmlp_batch *batch;
    int64_t n; /* sequences */
    int64_t vocab;
    int64_t step_rows;
    bool on_device;  /* the device chooses */
    int32_t *prompt; /* [prompt] the same length for all, each its own beginning */
    int32_t *next;   /* [n] tokens to append */
    float *logits;   /* [n, V], where the host chooses */
    nmlp_step_item *items;
    nmlp_choice_item *choices;
};

static const nmlp_sampling greedy = {.repetition_penalty = 1, .top_p = 1};

static nmlp_status open_subject(struct subject *s, nmlp_err *err) {
    const nmlp_bench_requests_options *o = s->o;
    int64_t context = o->prompt + o->generate;
    s->vocab = nmlp_engine_model(s->engine)->config.vocab;
    s->step_rows = STEP_ROWS < s->n * context ? STEP_ROWS : s->n * context;
    const nmlp_batch_options limits = {
        .context = context, .positions = s->n * context, .max_sequences = s->n, .max_rows = s->step_rows};
    NMLP_RETURN_IF_FAILED(nmlp_batch_create(&s->batch, s->engine, &limits, err));
    s->on_device = nmlp_batch_can_choose(s->batch, &greedy);
    size_t n = (size_t)s->n;
    s->prompt = nmlp_mem_new(n * (size_t)o->prompt, sizeof *s->prompt, err);
    s->next = nmlp_mem_new(n, sizeof *s->next, err);
    s->items = nmlp_mem_new(n, sizeof *s->items, err);
    s->choices = nmlp_mem_new(n, sizeof *s->choices, err);
    if (!s->on_device) s->logits = nmlp_mem_new(n * (size_t)s->vocab, sizeof *s->logits, err);
    if (!s->prompt || !s->next || !s->items || !s->choices || (!s->on_device && !s->logits)) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < s->n * o->prompt; i++) s->prompt[i] = (int32_t)((i * 7919 + i / o->prompt + 13) % s->vocab);
    return NMLP_OK;
}

static void close_subject(struct subject *s) {
    nmlp_batch_destroy(s->batch);
    nmlp_mem_free(s->prompt);
    nmlp_mem_free(s->next);
    nmlp_mem_free(s->logits);
    nmlp_mem_free(s->items);
    nmlp_mem_free(s->choices);
}

/* What the last step of sequence i asks for. */
static void ask(struct subject *s, int64_t i, bool last) {
    s->items[i].choose = last && s->on_device ? &greedy : NULL;
    s->items[i].n_logits = last && !s->on_device;
    s->items[i].logits = s->on_device ? NULL : s->logits + i * s->vocab;
}

/* The tokens after the last ones, into s->next. */
static nmlp_status take_tokens(struct subject *s, int64_t more, nmlp_err *err) {
    if (s->on_device) NMLP_RETURN_IF_FAILED(nmlp_batch_choose(s->batch, s->choices, s->n, more, err));
    for (int64_t i = 0; i < s->n; i++)
        s->next[i] = s->on_device ? s->choices[i].id : (int32_t)nmlp_argmax(s->logits + i * s->vocab, s->vocab);
    return NMLP_OK;
}

/* All prompts, as many as a step takes at a time, and the first token of each. */
static nmlp_status run_prompts(struct subject *s, nmlp_err *err) {
    int64_t length = s->o->prompt;
    for (int64_t i = 0; i < s->n;) {
        int64_t n = s->step_rows / length;
        if (n > s->n - i) n = s->n - i;
        if (n < 1) { /* one that is longer than a step */
            NMLP_RETURN_IF_FAILED(nmlp_batch_append(s->batch, s->choices[i].sequence, s->prompt + i * length, length,
                                                    s->on_device ? NULL : s->logits + i * s->vocab,
                                                    s->on_device ? &greedy : NULL, err));
            i++;
            continue;
        }
        for (int64_t j = i; j < i + n; j++) {
            s->items[j] =
                (nmlp_step_item){.sequence = s->choices[j].sequence, .ids = s->prompt + j * length, .n = length};
            ask(s, j, true);
        }
        NMLP_RETURN_IF_FAILED(nmlp_batch_step(s->batch, s->items + i, n, err));
        i += n;
    }
    return take_tokens(s, s->o->generate - 1, err);
}

static nmlp_status run_tokens(struct subject *s, nmlp_err *err) {
    for (int64_t t = 1; t < s->o->generate; t++) {
        for (int64_t i = 0; i < s->n; i++) {
            s->items[i] = (nmlp_step_item){.sequence = s->choices[i].sequence, .ids = &s->next[i], .n = 1};
            ask(s, i, true);
        }
        NMLP_RETURN_IF_FAILED(nmlp_batch_step(s->batch, s->items, s->n, err));
        NMLP_RETURN_IF_FAILED(take_tokens(s, s->o->generate - 1 - t, err));
    }
    return NMLP_OK;
}

static nmlp_status run_round(struct subject *s, double *prompt_seconds, double *decode_seconds, nmlp_err *err) {
    for (int64_t i = 0; i < s->n; i++)
        NMLP_RETURN_IF_FAILED(nmlp_batch_open(s->batch, NULL, 0, &s->choices[i].sequence, err));
    double started = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(run_prompts(s, err));
    double first = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(run_tokens(s, err));
    *prompt_seconds = first - started;
    *decode_seconds = nmlp_clock_seconds() - first;
    for (int64_t i = 0; i < s->n; i++) nmlp_batch_close(s->batch, s->choices[i].sequence);
    return NMLP_OK;
}

/* Adds a rate's share of a limit, where there is one. */
static void add_share(nmlp_samples *shares, double rate, double limit) {
    if (limit > 0) nmlp_samples_add(shares, rate / limit);
}

static nmlp_status measure(struct subject *s, nmlp_bench_requests_result *r, nmlp_err *err) {
    nmlp_samples prefill = {.n = 0}, prefill_share = {.n = 0};
    nmlp_samples decode = {.n = 0}, decode_share = {.n = 0};
    nmlp_samples step = {.n = 0};
    double steps = (double)(s->o->generate - 1);
    double prompt_work = nmlp_model_work_prompt_gflop(s->work, (double)s->o->prompt) * (double)(s->n * s->o->prompt);
    double step_work = nmlp_model_work_step_gb(s->work);
    for (int round = -1; round < s->o->rounds; round++) { /* the first one warms up */
        double prompt_seconds = 0;
        double decode_seconds = 0;
        double gflops = round < 0 ? 0 : nmlp_limits_gflops(s->limits), gbs = round < 0 ? 0 : nmlp_limits_gbs(s->limits);
        NMLP_RETURN_IF_FAILED(run_round(s, &prompt_seconds, &decode_seconds, err));
        if (round < 0) r->first_ms = 1e3 * prompt_seconds;
        if (round < 0) continue;
        gflops = 0.5 * (gflops + nmlp_limits_gflops(s->limits));
        gbs = 0.5 * (gbs + nmlp_limits_gbs(s->limits));
        add_share(&prefill_share, prompt_work / prompt_seconds, gflops);
        nmlp_samples_add(&prefill, (double)(s->n * s->o->prompt) / prompt_seconds);
        if (steps < 1) continue;
        nmlp_samples_add(&decode, (double)s->n * steps / decode_seconds);
        nmlp_samples_add(&step, 1e3 * decode_seconds / steps);
        add_share(&decode_share, step_work * steps / decode_seconds, gbs);
    }
    r->prefill_tokens_s = nmlp_samples_spread(&prefill);
    r->decode_tokens_s = nmlp_samples_spread(&decode);
    r->step_ms = nmlp_samples_spread(&step);
    r->prefill_share = nmlp_samples_spread(&prefill_share);
    r->decode_share = nmlp_samples_spread(&decode_share);
    return NMLP_OK;
}

nmlp_status nmlp_bench_requests_run(nmlp_bench_requests_result results[], const nmlp_bench_requests_options *o,
                                    nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_model model;
    nmlp_engine *engine = NULL;
    nmlp_limits limits = {0};
    nmlp_engine_options options = {.isa = o->isa, .pool = o->pool, .bf16 = o->bf16};
    NMLP_RETURN_IF_FAILED(nmlp_backend_choose(&options.backend, o->device, o->isa, err));
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&model, o->dir, err));
    double started = nmlp_clock_seconds();
    NMLP_TRY(nmlp_engine_create(&engine, &model, &options, err));
    double load_seconds = nmlp_clock_seconds() - started;
    nmlp_model_work work = nmlp_model_work_of(&model);
    nmlp_err why = {0};
    bool limited = nmlp_limits_open(&limits, engine, o->pool, o->bf16, &why) == NMLP_OK;
    for (int i = 0; i < o->n_batches; i++) {
        struct subject s = {.o = o, .engine = engine, .limits = &limits, .work = &work, .n = o->batches[i]};
        results[i] = (nmlp_bench_requests_result){.load_seconds = load_seconds};
        snprintf(results[i].device, sizeof results[i].device, "%s", nmlp_engine_isa(engine));
        if (!limited) snprintf(results[i].no_shares, sizeof results[i].no_shares, "%s", why.message);
        st = open_subject(&s, err);
        if (st == NMLP_OK) st = measure(&s, &results[i], err);
        close_subject(&s);
        if (st != NMLP_OK) goto out;
    }
out:
    nmlp_limits_close(&limits);
    nmlp_engine_destroy(engine);
    nmlp_model_close(&model);
    return st;
}
