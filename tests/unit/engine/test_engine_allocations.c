/* Between the first and the last token nothing is allocated. */
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
