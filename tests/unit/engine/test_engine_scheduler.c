/* Requests that come, are cancelled and share a batch: each answer is the one the request gets alone. */
#include <math.h>

#include "base/ints.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/scheduler.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"

enum { REQUESTS = 30, PROMPT_MAX = 180, NEW_MAX = 60, STEPS_MAX = 5000 };

struct answer {
    int32_t prompt[PROMPT_MAX];
    nmlp_generation generation;
    int32_t ids[NEW_MAX];
    int64_t n;
    int64_t stop_after; /* the caller ends it there; 0: not */
    bool submitted, done;
    uint64_t number;
    nmlp_status status;
    nmlp_generation_stats stats;
    nmlp_err err;
};

struct world {
    char dir[256];
    tiny_checkpoint c;
    loaded_engine l;
    nmlp_batch *batch;
    nmlp_scheduler *scheduler;
    nmlp_rng rng;
    struct answer answers[REQUESTS];
};

static void open_world(struct world *w, nmlp_batch_options options) {
    nmlp_err err;
    *w = (struct world){0};
    nmlp_rng_seed(&w->rng, 31);
    nmlp_test_mkdtemp(w->dir, sizeof w->dir);
    tiny_init(&w->c, 5);
    snprintf(w->c.config, sizeof w->c.config,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":48,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"vocab_size\":64,\"max_position_embeddings\":1024,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-5,"
             "\"tie_word_embeddings\":true}");
    tiny_write(&w->c, w->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&w->l, w->dir, NULL, 2);
    nmlp_assert_ok(nmlp_batch_create(&w->batch, w->l.engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_scheduler_create(&w->scheduler, w->batch, &err), &err);
}

static void close_world(struct world *w) {
    nmlp_scheduler_destroy(w->scheduler);
    nmlp_batch_destroy(w->batch);
    loaded_engine_close(&w->l);
    tiny_fini(&w->c);
    nmlp_test_rmdir(w->dir);
}

static bool on_token(void *ctx, int32_t id) {
    struct answer *a = ctx;
    assert_true(a->n < NEW_MAX);
    a->ids[a->n++] = id;
    return a->n != a->stop_after;
}

static void on_done(void *ctx, nmlp_status status, const nmlp_generation_stats *stats, const nmlp_err *err) {
    struct answer *a = ctx;
    assert_false(a->done);
    a->done = true;
    a->status = status;
    a->stats = *stats;
    if (err) a->err = *err;
}

/* Prompts of few kinds, so that many begin alike. */
static void make_request(struct world *w, struct answer *a) {
    static const int64_t stop_ids[] = {7};
    int64_t kind = nmlp_rng_below(&w->rng, 2);
    int64_t common = nmlp_rng_below(&w->rng, PROMPT_MAX);
    nmlp_sampling sampling = nmlp_sampling_greedy();
    if (nmlp_rng_below(&w->rng, 2)) sampling.temperature = 0.8;
    if (nmlp_rng_below(&w->rng, 3) == 0) sampling.repetition_penalty = 1.3;
    sampling.seed = (uint64_t)nmlp_rng_below(&w->rng, 1000);
    for (int i = 0; i < PROMPT_MAX; i++)
        a->prompt[i] = (int32_t)(i < common ? (i * 7 + kind * 13) % TINY_VOCAB : nmlp_rng_below(&w->rng, TINY_VOCAB));
    a->generation = (nmlp_generation){.prompt = a->prompt,
                                      .n_prompt = 1 + nmlp_rng_below(&w->rng, PROMPT_MAX),
                                      .max_new = nmlp_rng_below(&w->rng, NEW_MAX),
                                      .sampling = sampling,
                                      .stop_ids = stop_ids,
                                      .n_stop_ids = (int)nmlp_rng_below(&w->rng, 2),
                                      .on_token = on_token,
                                      .ctx = a};
    if (nmlp_rng_below(&w->rng, 5) == 0) a->stop_after = 1 + nmlp_rng_below(&w->rng, 10);
}

static void submit(struct world *w, struct answer *a) {
    nmlp_err err;
    nmlp_scheduler_request request = {.generation = a->generation, .sequence = NMLP_SEQUENCE_NEW, .on_done = on_done};
    nmlp_assert_ok(nmlp_scheduler_submit(w->scheduler, &request, &a->number, &err), &err);
    a->submitted = true;
}

/* The answer to the request on a batch of its own. */
static void check_alone(struct world *w, const struct answer *got, bool cancelled) {
    nmlp_batch_options options = {.context = 300, .max_rows = 200};
    struct answer want = {.generation = got->generation, .stop_after = got->stop_after};
    nmlp_generation_stats stats;
    nmlp_batch *batch;
    nmlp_err err;
    int32_t sequence;
    want.generation.ctx = &want;
    nmlp_assert_ok(nmlp_batch_create(&batch, w->l.engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &sequence, &err), &err);
    nmlp_assert_ok(nmlp_generate(batch, sequence, &want.generation, &stats, &err), &err);
    nmlp_batch_destroy(batch);
    if (!cancelled) {
        assert_int_equal(got->n, want.n);
        assert_int_equal(got->stats.finish, stats.finish);
        assert_int_equal(got->stats.n_generated, stats.n_generated);
    }
    assert_true(got->n <= want.n);
    assert_memory_equal(got->ids, want.ids, (size_t)got->n * sizeof *got->ids);
}

static void check_requests(nmlp_batch_options options) {
    static struct world w;
    nmlp_err err;
    bool cancelled[REQUESTS] = {false};
    int n_submitted = 0, steps = 0, n_cancelled = 0;
    open_world(&w, options);
    for (int i = 0; i < REQUESTS; i++) make_request(&w, &w.answers[i]);
    while (n_submitted < REQUESTS || nmlp_scheduler_count(w.scheduler) > 0) {
        assert_true(steps++ < STEPS_MAX); /* all come to an end */
        if (n_submitted < REQUESTS && nmlp_rng_below(&w.rng, 3) == 0) submit(&w, &w.answers[n_submitted++]);
        if (n_submitted > 0 && nmlp_rng_below(&w.rng, 25) == 0) {
            int i = (int)nmlp_rng_below(&w.rng, n_submitted);
            cancelled[i] |= !w.answers[i].done;
            nmlp_scheduler_cancel(w.scheduler, w.answers[i].number);
        }
        nmlp_assert_ok(nmlp_scheduler_step(w.scheduler, &err), &err);
    }
    for (int i = 0; i < REQUESTS; i++) {
        const struct answer *a = &w.answers[i];
        assert_true(a->done);
        nmlp_assert_ok(a->status, &a->err);
        if (cancelled[i]) assert_int_equal(a->stats.finish, NMLP_FINISH_CALLER);
        n_cancelled += cancelled[i];
        check_alone(&w, a, cancelled[i]);
    }
    assert_true(n_cancelled > 0);
    close_world(&w);
}

static void answers_do_not_depend_on_company(void **state) {
    (void)state;
    check_requests((nmlp_batch_options){.context = 256, .max_sequences = 8, .max_rows = 64});
    check_requests((nmlp_batch_options){.context = 256, .positions = 1280, .max_sequences = 6, .max_rows = 3});
    check_requests((nmlp_batch_options){.context = 256, .max_sequences = 3, .max_rows = 1});
}

/* Three grow until the pages are used up: the last one is told, the others get their answers. */
static void exhausted_memory_fails_the_last(void **state) {
    static struct world w;
    nmlp_err err;
    (void)state;
    open_world(&w, (nmlp_batch_options){.context = 400, .positions = 640, .max_sequences = 3, .max_rows = 200});
    for (int i = 0; i < 3; i++) {
        struct answer *a = &w.answers[i];
        make_request(&w, a);
        a->prompt[0] = i; /* nothing to share */
        a->stop_after = 0;
        a->generation.n_prompt = 120 + 30 * i;
        a->generation.max_new = NEW_MAX - 1;
        a->generation.n_stop_ids = 0;
        submit(&w, a);
    }
    for (int steps = 0; nmlp_scheduler_count(w.scheduler) > 0; steps++) {
        assert_true(steps < STEPS_MAX);
        nmlp_assert_ok(nmlp_scheduler_step(w.scheduler, &err), &err);
    }
    for (int i = 0; i < 3; i++) {
        nmlp_assert_ok(w.answers[i].status, &w.answers[i].err); /* 1, 2 and 2 pages: 5 there are */
        check_alone(&w, &w.answers[i], false);
    }
    for (int i = 0; i < 3; i++) {
        struct answer *a = &w.answers[i];
        a->generation.n_prompt = 180;
        a->generation.max_new = NEW_MAX - 1;
        a->n = 0;
        a->done = false;
        a->prompt[1] = i;
    }
    int32_t longer[3][250];
    for (int i = 0; i < 3; i++) { /* 2 pages each do not fit, but wait */
        for (int j = 0; j < 250; j++) longer[i][j] = (j * 11 + i) % TINY_VOCAB;
        w.answers[i].generation.prompt = longer[i];
        w.answers[i].generation.n_prompt = i == 2 ? 100 : 240; /* 240 + 59 tokens need a third page */
        submit(&w, &w.answers[i]);
    }
    for (int steps = 0; nmlp_scheduler_count(w.scheduler) > 0; steps++) {
        assert_true(steps < STEPS_MAX);
        nmlp_assert_ok(nmlp_scheduler_step(w.scheduler, &err), &err);
    }
    int n_failed = 0;
    for (int i = 0; i < 3; i++) {
        const struct answer *a = &w.answers[i];
        if (a->status == NMLP_OK) {
            check_alone(&w, a, false);
            continue;
        }
        n_failed++;
        assert_int_equal(a->status, NMLP_E_LIMIT);
        assert_non_null(strstr(a->err.message, "KV memory"));
        check_alone(&w, a, true); /* what it said until then was right */
    }
    assert_int_equal(n_failed, 1);
    close_world(&w);
}

static void requests_that_cannot_run_are_refused(void **state) {
    static struct world w;
    nmlp_err err;
    uint64_t number;
    int32_t ids[300] = {0};
    (void)state;
    open_world(&w, (nmlp_batch_options){.context = 256});
    nmlp_scheduler_request r = {.generation = {.prompt = ids, .sampling = nmlp_sampling_greedy(), .max_new = 3},
                                .sequence = NMLP_SEQUENCE_NEW};
    nmlp_assert_fails(nmlp_scheduler_submit(w.scheduler, &r, &number, &err), &err, NMLP_E_ARG, "empty", NULL);
    r.generation.n_prompt = 256;
    nmlp_assert_fails(nmlp_scheduler_submit(w.scheduler, &r, &number, &err), &err, NMLP_E_LIMIT, "256", NULL);
    r.generation.n_prompt = 3;
    r.generation.sampling.top_p = 0;
    nmlp_assert_fails(nmlp_scheduler_submit(w.scheduler, &r, &number, &err), &err, NMLP_E_ARG, "top_p", NULL);
    assert_int_equal(nmlp_scheduler_count(w.scheduler), 0);
    nmlp_assert_ok(nmlp_scheduler_step(w.scheduler, &err), &err); /* nothing to do */
    close_world(&w);
}

enum { SCORED = 200, VOCAB = 64 };

struct scored {
    float logits[SCORED][VOCAB];
    int n_seen[SCORED];
    bool done;
    nmlp_generation_stats stats;
};

static void on_prompt_logits(void *ctx, int64_t position, const float *logits) {
    struct scored *s = ctx;
    assert_in_range(position, 0, SCORED - 1);
    s->n_seen[position]++;
    memcpy(s->logits[position], logits, sizeof s->logits[position]);
}

static void on_scored(void *ctx, nmlp_status status, const nmlp_generation_stats *stats, const nmlp_err *err) {
    struct scored *s = ctx;
    nmlp_assert_ok(status, err);
    s->done = true;
    s->stats = *stats;
}

/* Prompts whose logits are wanted run in pieces beside a decoding sequence, which gets its token in every step. */
static void prompts_are_scored_without_holding_up_others(void **state) {
    static struct world w;
    static struct scored scored;
    static float want[SCORED][VOCAB];
    float hidden[32];
    int32_t ids[SCORED];
    uint64_t number;
    nmlp_err err;
    (void)state;
    open_world(&w, (nmlp_batch_options){.context = 256, .max_sequences = 3});
    for (int i = 0; i < SCORED; i++) ids[i] = (int32_t)nmlp_rng_below(&w.rng, VOCAB);
    struct answer *other = &w.answers[0];
    for (int i = 0; i < 4; i++) other->prompt[i] = ids[i];
    other->generation = (nmlp_generation){.prompt = other->prompt, .n_prompt = 4, .max_new = 30};
    other->generation.sampling = nmlp_sampling_greedy();
    other->generation.on_token = on_token;
    other->generation.ctx = other;
    submit(&w, other);
    nmlp_assert_ok(nmlp_scheduler_step(w.scheduler, &err), &err);
    nmlp_scheduler_request r = {.sequence = NMLP_SEQUENCE_NEW, .on_done = on_scored};
    r.generation = (nmlp_generation){.prompt = ids, .n_prompt = SCORED, .sampling = nmlp_sampling_greedy()};
    r.generation.on_prompt_logits = on_prompt_logits;
    r.generation.hidden = hidden;
    r.generation.ctx = &scored;
    nmlp_assert_ok(nmlp_scheduler_submit(w.scheduler, &r, &number, &err), &err);
    int steps = 0;
    for (; !scored.done; steps++) {
        int64_t before = other->n;
        nmlp_assert_ok(nmlp_scheduler_step(w.scheduler, &err), &err);
        assert_int_equal(other->n, before + 1);
    }
    assert_in_range(steps, 2, 10); /* in pieces, but not token by token */
    assert_int_equal(scored.stats.n_cached, 0);
    int32_t alone;
    nmlp_assert_ok(nmlp_batch_open(w.batch, NULL, 0, &alone, &err), &err);
    for (int i = 0; i < SCORED; i++)
        nmlp_assert_ok(nmlp_batch_append(w.batch, alone, &ids[i], 1, want[i], NULL, &err), &err);
    for (int i = 0; i < SCORED; i++) {
        assert_int_equal(scored.n_seen[i], 1);
        for (int v = 0; v < VOCAB; v++) assert_true(fabsf(scored.logits[i][v] - want[i][v]) < 1e-4f);
    }
    /* The state after the prompt: the head, which is the embedding here, makes logits of it. */
    const float *head = tiny_find(&w.c, "model.embed_tokens.weight")->data;
    for (int v = 0; v < VOCAB; v++) {
        double sum = 0;
        for (int h = 0; h < 32; h++) sum += (double)head[v * 32 + h] * (double)hidden[h];
        assert_true(fabs(sum - (double)want[SCORED - 1][v]) < 1e-4);
    }
    nmlp_batch_close(w.batch, alone);
    close_world(&w);
}

/* Even tokens only, and no more than five. */
static const uint32_t *allow_even(void *ctx) {
    static const uint32_t even[2] = {0x55555555u, 0x55555555u};
    return *(int *)ctx < 5 ? even : NULL;
}

static void count_token(void *ctx, int32_t id) {
    assert_int_equal(id % 2, 0);
    ++*(int *)ctx;
}

static void constraints_decide_what_comes_and_when_it_ends(void **state) {
    static struct world w;
    int n = 0;
    nmlp_err err;
    const nmlp_token_constraint even = {.allowed = allow_even, .accept = count_token, .ctx = &n};
    (void)state;
    open_world(&w, (nmlp_batch_options){.context = 256, .max_sequences = 2});
    struct answer *a = &w.answers[0];
    a->prompt[0] = 7;
    a->generation = (nmlp_generation){.prompt = a->prompt, .n_prompt = 1, .max_new = 30, .constraint = &even};
    a->generation.sampling = nmlp_sampling_greedy();
    a->generation.sampling.temperature = 2;
    a->generation.on_token = on_token;
    a->generation.ctx = a;
    submit(&w, a);
    while (!a->done) nmlp_assert_ok(nmlp_scheduler_step(w.scheduler, &err), &err);
    assert_int_equal(a->n, 5);
    assert_int_equal(a->stats.finish, NMLP_FINISH_STOP);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_company),
        cmocka_unit_test(exhausted_memory_fails_the_last),
        cmocka_unit_test(requests_that_cannot_run_are_refused),
        cmocka_unit_test(prompts_are_scored_without_holding_up_others),
        cmocka_unit_test(constraints_decide_what_comes_and_when_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
