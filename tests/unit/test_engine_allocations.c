/* Between the first and the last token nothing is allocated: malloc and friends are counted through the linker's --wrap. */
#include <stdlib.h>

#include "engine/engine.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"

/* The counters of a test program: the wrapped functions have no other way to reach them. */
static long n_allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);

void *__wrap_malloc(size_t size) {
    n_allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
    n_allocations++;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *block, size_t size) {
    n_allocations++;
    return __real_realloc(block, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size) {
    n_allocations++;
    return __real_aligned_alloc(align, size);
}

static void tokens_allocate_nothing(void **state) {
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    int32_t prompt[40];
    (void)state;
    n_allocations = 0;
    loaded_engine_open(&l, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    assert_true(n_allocations > 0); /* the counter works */
    for (int i = 0; i < 40; i++) prompt[i] = 100 + i;
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, 128, 16, false, &err), &err);
    n_allocations = 0;
    nmlp_assert_ok(nmlp_session_append(session, prompt, 40, NULL, NULL, &err), &err);
    for (int i = 0; i < 20; i++) {
        const float *logits = nmlp_session_last_logits(session);
        int32_t id = logits[5] > logits[6] ? 5 : 6;
        nmlp_assert_ok(nmlp_session_append(session, &id, 1, NULL, NULL, &err), &err);
    }
    assert_int_equal(n_allocations, 0);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokens_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
