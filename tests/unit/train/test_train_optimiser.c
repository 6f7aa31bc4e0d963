/* The optimiser against a sequence worked out by hand, the learning rate at its corners, and the windows of the text.
 */
#include <math.h>

#include "base/mem.h"
#include "lib/testing.h"
#include "train/optimiser.h"
#include "train/corpus.h"

static void near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.9g, expected %.9g", got, want);
}

/* Moments, bias corrections and updates with beta 0.9 and 0.95, rate 0.1, on paper:
 *   g=1:  m=0.1 v=0.05          -> m/0.19.. : 1/1          w = 1 - 0.1 = 0.9
 *   g=-1: m=-0.01 v=0.0975      -> -0.0526316/sqrt(1)      w = 0.9052632
 *   g=2:  m=0.191 v=0.292625    -> 0.7047970/1.4323788     w = 0.8560585 */
static void adamw_follows_the_sequence_on_paper(void **state) {
    static const float grads[] = {1, -1, 2};
    static const double want[] = {0.9, 0.9052632, 0.8560585};
    float data = 1, grad = 0, mean = 0, square = 0;
    nmlp_train_trainable w = {.data = &data, .grad = &grad, .mean = &mean, .square = &square, .n = 1};
    nmlp_train_adamw adam = nmlp_train_adamw_defaults();
    (void)state;
    for (int i = 0; i < 3; i++) {
        grad = grads[i];
        nmlp_train_adamw_update(&adam, NULL, &w, 1, 0.1, i + 1, 1);
        near(data, want[i], 1e-6);
    }
}

static void weight_decay_does_not_pass_through_the_moments(void **state) {
    float data = 1, grad = 1, mean = 0, square = 0;
    nmlp_train_trainable w = {.data = &data, .grad = &grad, .mean = &mean, .square = &square, .n = 1};
    nmlp_train_adamw adam = nmlp_train_adamw_defaults();
    (void)state;
    adam.weight_decay = 0.1;
    nmlp_train_adamw_update(&adam, NULL, &w, 1, 0.1, 1, 1);
    near(data, 1 * (1 - 0.1 * 0.1) - 0.1, 1e-6);
    near(mean, 0.1, 1e-7);
}

static void scaled_gradient_is_what_the_moments_see(void **state) {
    float data = 1, grad = 4, mean = 0, square = 0;
    nmlp_train_trainable w = {.data = &data, .grad = &grad, .mean = &mean, .square = &square, .n = 1};
    nmlp_train_adamw adam = nmlp_train_adamw_defaults();
    (void)state;
    nmlp_train_adamw_update(&adam, NULL, &w, 1, 0.1, 1, 0.5);
    near(mean, 0.2, 1e-7);
    near(square, 0.05 * 4, 1e-7);
}

static void norm_is_that_of_all_arrays_together(void **state) {
    enum { N = 40000 };
    nmlp_err err;
    double norm;
    nmlp_pool *pool;
    float small[2] = {3, 4};
    float *big = nmlp_mem_new(N, sizeof *big, NULL);
    nmlp_train_trainable w[] = {{.grad = small, .n = 2}, {.grad = big, .n = N}};
    (void)state;
    for (int i = 0; i < N; i++) big[i] = 0.1f;
    nmlp_assert_ok(nmlp_pool_create(&pool, 3, &err), &err);
    nmlp_assert_ok(nmlp_train_grad_norm(pool, w, 2, &norm, &err), &err);
    near(norm, sqrt(25 + N * 0.01), 1e-5);
    nmlp_pool_destroy(pool);
    nmlp_mem_free(big);
}

static void rate_rises_to_the_peak_and_falls_to_the_floor(void **state) {
    nmlp_train_schedule s = {.peak = 2, .floor = 0.05, .warmup = 3, .steps = 14};
    (void)state;
    near(nmlp_train_schedule_rate(&s, 0), 0.5, 1e-12);
    near(nmlp_train_schedule_rate(&s, 2), 1.5, 1e-12);
    near(nmlp_train_schedule_rate(&s, 3), 2, 1e-12);
    near(nmlp_train_schedule_rate(&s, 8), 2 * (0.05 + 0.95 * 0.5), 1e-12); /* half way down the cosine */
    near(nmlp_train_schedule_rate(&s, 13), 0.1, 1e-12);
}

/* ids 0,1,2,...: a window's first id says where it lies. */
static void every_window_is_seen_once_a_pass(void **state) {
    enum { N = 101, CONTEXT = 10, WINDOWS = 10 };
    int32_t ids[N], window[CONTEXT], targets[CONTEXT];
    int seen[2][WINDOWS] = {{0}};
    nmlp_train_corpus c;
    nmlp_err err;
    bool other_order = false;
    int32_t first_pass[WINDOWS];
    (void)state;
    for (int i = 0; i < N; i++) ids[i] = i;
    nmlp_assert_ok(nmlp_train_corpus_init(&c, ids, N, CONTEXT, 5, 42, &err), &err);
    assert_int_equal(c.n_heldout, 1); /* a tenth */
    assert_int_equal(c.n_train, 9);
    for (int64_t i = 0; i < 2 * c.n_train; i++) {
        nmlp_train_corpus_train(&c, i, window, targets);
        assert_int_equal(window[0] % CONTEXT, 0);
        assert_int_equal(targets[CONTEXT - 1], window[0] + CONTEXT);
        seen[i / c.n_train][window[0] / CONTEXT]++;
        if (i < c.n_train)
            first_pass[i] = window[0];
        else
            other_order |= first_pass[i - c.n_train] != window[0];
    }
    nmlp_train_corpus_heldout(&c, 0, window, targets);
    for (int i = 0; i < WINDOWS; i++)
        for (int pass = 0; pass < 2; pass++) assert_int_equal(seen[pass][i], i * CONTEXT == window[0] ? 0 : 1);
    assert_true(other_order);
    nmlp_train_corpus_fini(&c);
}

static void order_depends_on_the_seed_alone(void **state) {
    enum { N = 1001, CONTEXT = 10 };
    int32_t ids[N], a[CONTEXT], b[CONTEXT], targets[CONTEXT];
    nmlp_train_corpus first, again, other;
    nmlp_err err;
    int differences = 0;
    (void)state;
    for (int i = 0; i < N; i++) ids[i] = i;
    nmlp_assert_ok(nmlp_train_corpus_init(&first, ids, N, CONTEXT, 5, 1, &err), &err);
    nmlp_assert_ok(nmlp_train_corpus_init(&again, ids, N, CONTEXT, 5, 1, &err), &err);
    nmlp_assert_ok(nmlp_train_corpus_init(&other, ids, N, CONTEXT, 5, 2, &err), &err);
    nmlp_train_corpus_train(&again, 400, b, targets); /* from the fifth pass back to the first */
    for (int i = 0; i < 50; i++) {
        nmlp_train_corpus_train(&first, i, a, targets);
        nmlp_train_corpus_train(&again, i, b, targets);
        assert_memory_equal(a, b, sizeof a);
        nmlp_train_corpus_train(&other, i, b, targets);
        differences += a[0] != b[0];
    }
    assert_true(differences > 25);
    nmlp_train_corpus_fini(&first);
    nmlp_train_corpus_fini(&again);
    nmlp_train_corpus_fini(&other);
}

static void text_of_one_window_is_refused(void **state) {
    int32_t ids[20] = {0};
    nmlp_train_corpus c;
    nmlp_err err;
    (void)state;
    nmlp_assert_fails(nmlp_train_corpus_init(&c, ids, 20, 10, 1, 0, &err), &err, NMLP_E_LIMIT, "20 tokens",
                      "at least 21", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_follows_the_sequence_on_paper),
        cmocka_unit_test(weight_decay_does_not_pass_through_the_moments),
        cmocka_unit_test(scaled_gradient_is_what_the_moments_see),
        cmocka_unit_test(norm_is_that_of_all_arrays_together),
        cmocka_unit_test(rate_rises_to_the_peak_and_falls_to_the_floor),
        cmocka_unit_test(every_window_is_seen_once_a_pass),
        cmocka_unit_test(order_depends_on_the_seed_alone),
        cmocka_unit_test(text_of_one_window_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
