/* Between the first and the last token nothing is allocated. */
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_allocate_nothing),
                                       cmocka_unit_test(scheduled_steps_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
