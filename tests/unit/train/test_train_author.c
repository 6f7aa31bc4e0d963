/* Text a model writes: the right length, the model's own distribution, the same for any number of threads. */
#include <math.h>

#include "lib/reference_forward.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "train/self_text.h"

enum { WINDOWS = 300, WINDOW = 5 };

typedef struct setup {
    char dir[512];
    tiny_checkpoint checkpoint;
    nmlp_model model;
} setup;

static void setup_open(setup *s) {
    nmlp_err err;
    nmlp_test_mkdtemp(s->dir, sizeof s->dir);
    tiny_init(&s->checkpoint, 31);
    tiny_write(&s->checkpoint, s->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&s->model, s->dir, &err), &err);
}

static void setup_close(setup *s) {
    nmlp_model_close(&s->model);
    tiny_fini(&s->checkpoint);
    nmlp_test_rmdir(s->dir);
}

/* Every token behind the first is a draw from the reference decoder's distribution q. Its probability has mean sum(q^2)
 * and variance sum(q^3) - sum(q^2)^2; uniform draws would have mean 1/V. */
static void tokens_are_drawn_from_the_models_distribution(void **state) {
    static setup s;
    static int32_t ids[WINDOWS * WINDOW];
    static double logits[WINDOW * TINY_VOCAB];
    nmlp_err err;
    double surplus = 0, contrast = 0, variance = 0;
    (void)state;
    setup_open(&s);
    nmlp_train_self_text a = {.model = &s.model, .n_windows = WINDOWS, .window = WINDOW, .seed = 3};
    nmlp_assert_ok(nmlp_train_self_text_write(&a, ids, &err), &err);
    for (int w = 0; w < WINDOWS; w++) {
        const int32_t *row = ids + w * WINDOW;
        reference_forward(&s.model, row, WINDOW, logits);
        for (int t = 0; t + 1 < WINDOW; t++) {
            double sum = 0, squares = 0, cubes = 0;
            for (int v = 0; v < TINY_VOCAB; v++) sum += exp(logits[t * TINY_VOCAB + v]);
            for (int v = 0; v < TINY_VOCAB; v++) {
                double q = exp(logits[t * TINY_VOCAB + v]) / sum;
                squares += q * q;
                cubes += q * q * q;
            }
            assert_in_range(row[t + 1], 0, TINY_VOCAB - 1);
            surplus += exp(logits[t * TINY_VOCAB + row[t + 1]]) / sum - squares;
            contrast += squares - 1.0 / TINY_VOCAB; /* what uniform draws would lack */
            variance += cubes - squares * squares;
        }
    }
    assert_true(fabs(surplus) < 4 * sqrt(variance));
    assert_true(contrast > 8 * sqrt(variance)); /* else the check above could not fail */
    setup_close(&s);
}

static void text_does_not_depend_on_threads_but_on_the_seed(void **state) {
    static setup s;
    static int32_t one[WINDOWS * WINDOW], four[WINDOWS * WINDOW];
    nmlp_err err;
    nmlp_pool *pool;
    (void)state;
    setup_open(&s);
    nmlp_train_self_text a = {.model = &s.model, .n_windows = WINDOWS, .window = WINDOW, .seed = 3};
    nmlp_assert_ok(nmlp_pool_create(&pool, 4, &err), &err);
    nmlp_assert_ok(nmlp_train_self_text_write(&a, one, &err), &err);
    a.pool = pool;
    nmlp_assert_ok(nmlp_train_self_text_write(&a, four, &err), &err);
    assert_memory_equal(one, four, sizeof one);
    a.seed = 4;
    nmlp_assert_ok(nmlp_train_self_text_write(&a, four, &err), &err);
    assert_memory_not_equal(one, four, sizeof one);
    nmlp_pool_destroy(pool);
    setup_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_drawn_from_the_models_distribution),
        cmocka_unit_test(text_does_not_depend_on_threads_but_on_the_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
