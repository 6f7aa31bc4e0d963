/* Between the first and the last token nothing is allocated. */
#include "base/mem.h"
#include "engine/scheduler.h"
#include "engine/session.h"
#include "lib/alloc_count.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"

static void tokens_allocate_nothing(void **state) {
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    int32_t prompt[40];
    (void)state;
    int before = nmlp_test_allocations();
    loaded_engine_open(&l, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    assert_true(nmlp_test_allocations() > before); /* the counter works */
    for (int i = 0; i < 40; i++) prompt[i] = 100 + i;
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, 128, 16, false, &err), &err);
    before = nmlp_test_allocations();
    nmlp_assert_ok(nmlp_session_append(session, prompt, 40, NULL, NULL, &err), &err);
    for (int i = 0; i < 20; i++) {
        const float *logits = nmlp_session_last_logits(session);
        int32_t id = logits[5] > logits[6] ? 5 : 6;
        nmlp_assert_ok(nmlp_session_append(session, &id, 1, NULL, NULL, &err), &err);
    }
    assert_int_equal(nmlp_test_allocations(), before);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

/* Between submitting and the end: admission, prompts, choices, pages that are taken and given back. */
static void scheduled_steps_allocate_nothing(void **state) {
    enum { REQUESTS = 5 };
    loaded_engine l;
    nmlp_batch *batch;
    nmlp_scheduler *scheduler;
    nmlp_err err;
    uint64_t number;
    int32_t prompt[140];
    (void)state;
    loaded_engine_open(&l, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    for (int i = 0; i < 140; i++) prompt[i] = 100 + i;
    nmlp_batch_options options = {.context = 256, .positions = 512, .max_sequences = 3, .max_rows = 64};
    nmlp_assert_ok(nmlp_batch_create(&batch, l.engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_scheduler_create(&scheduler, batch, &err), &err);
    for (int i = 0; i < REQUESTS; i++) {
        nmlp_scheduler_request r = {
            .generation = {.prompt = prompt + i, .n_prompt = 130, .max_new = 4, .sampling = nmlp_sampling_greedy()},
            .sequence = NMLP_SEQUENCE_NEW};
        r.generation.sampling.temperature = i % 2;
        nmlp_assert_ok(nmlp_scheduler_submit(scheduler, &r, &number, &err), &err);
    }
    int before = nmlp_test_allocations();
    while (nmlp_scheduler_count(scheduler) > 0) nmlp_assert_ok(nmlp_scheduler_step(scheduler, &err), &err);
    assert_int_equal(nmlp_test_allocations(), before);
    nmlp_scheduler_destroy(scheduler);
    nmlp_batch_destroy(batch);
    loaded_engine_close(&l);
}

/* Prompts and tokens of several sequences side by side, one of them forked and cut short on the way, and tokens drawn
 * from the whole vocabulary: neither the steps nor what happens between them. */
static void steps_of_a_batch_allocate_nothing(void **state) {
    enum { SEQUENCES = 3, STEPS = 12 };
    loaded_engine l;
    nmlp_batch *batch;
    nmlp_sampler sampler;
    nmlp_sampler_scratch scratch;
    nmlp_sampling sampling = {.temperature = 1, .top_p = 0.9, .repetition_penalty = 1, .seed = 8};
    nmlp_err err;
    int32_t s[SEQUENCES + 1], prompt[60], id = 7;
    (void)state;
    loaded_engine_open(&l, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    int64_t vocab = l.model.config.vocab;
    float *logits = nmlp_mem_new((size_t)vocab, sizeof *logits, &err);
    for (int i = 0; i < 60; i++) prompt[i] = 100 + i;
    nmlp_batch_options options = {.context = 256, .positions = 1024, .max_sequences = SEQUENCES + 1, .max_rows = 64};
    nmlp_assert_ok(nmlp_batch_create(&batch, l.engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_sampler_init(&sampler, &sampling, vocab, &err), &err);
    nmlp_assert_ok(nmlp_sampler_scratch_init(&scratch, vocab, &err), &err);
    for (int i = 0; i < SEQUENCES; i++) nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &s[i], &err), &err);
    int before = nmlp_test_allocations();
    for (int step = 0; step < STEPS; step++) {
        nmlp_step_item items[SEQUENCES] = {
            {.sequence = s[0], .ids = &id, .n = 1, .n_logits = 1, .logits = logits},
            {.sequence = s[1], .ids = prompt, .n = 1 + step * 4},
            {.sequence = s[2], .ids = prompt + step, .n = 2},
        };
        nmlp_assert_ok(nmlp_batch_reserve(batch, s[1], 1 + step * 4, &err), &err);
        nmlp_assert_ok(nmlp_batch_step(batch, items, SEQUENCES, &err), &err);
        id = nmlp_sampler_next(&sampler, &scratch, logits);
        nmlp_batch_truncate(batch, s[1], step);
        if (step == 5) nmlp_assert_ok(nmlp_batch_fork(batch, s[0], 3, &s[SEQUENCES], &err), &err);
    }
    assert_int_equal(nmlp_test_allocations(), before);
    nmlp_sampler_scratch_fini(&scratch);
    nmlp_sampler_fini(&sampler);
    nmlp_batch_destroy(batch);
    nmlp_mem_free(logits);
    loaded_engine_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_allocate_nothing),
                                       cmocka_unit_test(scheduled_steps_allocate_nothing),
                                       cmocka_unit_test(steps_of_a_batch_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
