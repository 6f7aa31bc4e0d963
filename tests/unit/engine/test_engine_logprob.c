/* Log-softmax against float64, and the scorer against the engine's own logits. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/logprob.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"

static double reference(const float *x, int64_t n) {
    long double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) max = fmaxl(max, (long double)x[i]);
    for (int64_t i = 0; i < n; i++) sum += expl((long double)x[i] - max);
    return (double)(max + logl(sum));
}

/* Every term has a relative error below 3e-7, so has the sum, and the logarithm of it an absolute one. */
static void log_sum_exp_is_within_3e_7_of_float64(void **state) {
    static float x[40000];
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 1);
    const int64_t sizes[] = {1, 2, 7, 8, 9, 511, 8192, 40000};
    const double scales[] = {0, 1e-3, 1, 10, 60};
    for (size_t s = 0; s < 8; s++) {
        for (size_t k = 0; k < 5; k++) {
            for (int64_t i = 0; i < sizes[s]; i++) x[i] = (float)(scales[k] * nmlp_rng_normal(&rng) - 5);
            double want = reference(x, sizes[s]);
            double got = nmlp_log_sum_exp(x, sizes[s]);
            if (!(fabs(got - want) <= 3e-7))
                fail_msg("n %d scale %g: %.10g, expected %.10g", (int)sizes[s], scales[k], got, want);
        }
    }
}

static void far_apart_logits_do_not_overflow(void **state) {
    const float x[] = {-3e38f, 3e38f, 0, -1e30f};
    const float same[] = {1e4f, 1e4f};
    (void)state;
    assert_true(nmlp_log_sum_exp(x, 4) == (double)3e38f);
    assert_true(fabs(nmlp_log_sum_exp(same, 2) - 1e4 - log(2)) < 1e-9);
}

static void a_nan_logit_is_seen(void **state) {
    (void)state;
    const float x[] = {0, NAN, 1};
    assert_true(isnan(nmlp_log_sum_exp(x, 3)));
}

enum { N = 40 };

static void scorer_gives_the_log_softmax_of_the_engines_logits(void **state) {
    char dir[256];
    tiny_checkpoint c;
    loaded_engine l;
    nmlp_session *session;
    nmlp_row_scorer *scorer;
    nmlp_err err;
    nmlp_rng rng;
    int32_t ids[N];
    nmlp_score_target targets[2 * N];
    (void)state;
    nmlp_rng_seed(&rng, 4);
    nmlp_test_mkdtemp(dir, sizeof dir);
    tiny_init(&c, 8);
    tiny_write(&c, dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, dir, NULL, 2);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)nmlp_rng_below(&rng, TINY_VOCAB);
    int64_t n = 0;
    for (int row = 3; row < N; row += 2) { /* gaps between rows, two targets on each */
        targets[n++] = (nmlp_score_target){.row = row, .token = (row * 7) % TINY_VOCAB};
        targets[n++] = (nmlp_score_target){.row = row, .token = (row * 11) % TINY_VOCAB};
    }
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, N, 16, false, &err), &err);
    nmlp_assert_ok(nmlp_row_scorer_create(&scorer, session, &err), &err);
    nmlp_row_scorer_begin(scorer, targets, n);
    nmlp_assert_ok(nmlp_session_append(session, ids, N, nmlp_row_scorer_rows, scorer, &err), &err);
    nmlp_assert_ok(nmlp_row_scorer_end(scorer, &err), &err);
    float *logits = loaded_engine_logits(&l, ids, N, 16);
    for (int64_t t = 0; t < n; t++) {
        const float *row = logits + targets[t].row * TINY_VOCAB;
        double want = (double)row[targets[t].token] - reference(row, TINY_VOCAB);
        if (!(fabs(targets[t].logprob - want) <=
              2e-5)) /* the logits of other groupings of rows differ by f32 roundings */
            fail_msg("target %d: %g, expected %g", (int)t, targets[t].logprob, want);
    }
    targets[n - 1].row = N + 5;
    nmlp_session_truncate(session, 0);
    nmlp_row_scorer_begin(scorer, targets, n);
    nmlp_assert_ok(nmlp_session_append(session, ids, N, nmlp_row_scorer_rows, scorer, &err), &err);
    nmlp_assert_fails(nmlp_row_scorer_end(scorer, &err), &err, NMLP_E_ARG, "only", NULL);
    nmlp_mem_free(logits);
    nmlp_row_scorer_destroy(scorer);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
    tiny_fini(&c);
    nmlp_test_rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_sum_exp_is_within_3e_7_of_float64),
        cmocka_unit_test(far_apart_logits_do_not_overflow),
        cmocka_unit_test(a_nan_logit_is_seen),
        cmocka_unit_test(scorer_gives_the_log_softmax_of_the_engines_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
