/* The divergence of two models against one computed position by position from their logits in f64. */
#include <math.h>

#include "base/mem.h"
#include "eval/divergence.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"

enum { N_IDS = 70, CTX = 32 };

static void some_ids(int32_t *ids, int64_t vocab) {
    for (int64_t i = 0; i < N_IDS; i++) ids[i] = (int32_t)((i * i * 31 + 7 * i + 3) % vocab);
}

/* A model like the other but for the MLPs of its first two layers, which are exchanged. */
static void exchange_mlps(nmlp_engine *engine) {
    const nmlp_layer *layers = nmlp_engine_model(engine)->layers;
    nmlp_err err;
    for (int l = 0; l < 2; l++) {
        const nmlp_factors *mlp = layers[1 - l].mlp;
        nmlp_mlp_desc desc = {.gate = mlp[0], .up = mlp[1], .down = mlp[2]};
        nmlp_assert_ok(nmlp_engine_set_mlp(engine, l, &desc, &err), &err);
    }
}

/* log softmax of row [n] in f64. */
static void log_softmax(double *out, const float *row, int64_t n) {
    double peak = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) peak = fmax(peak, (double)row[i]);
    for (int64_t i = 0; i < n; i++) sum += exp((double)row[i] - peak);
    for (int64_t i = 0; i < n; i++) out[i] = (double)row[i] - peak - log(sum);
}

static void it_is_the_sum_over_the_vocabulary(void **state) {
    loaded_engine a, b;
    nmlp_err err;
    int32_t ids[N_IDS];
    nmlp_divergence got;
    (void)state;
    loaded_engine_open(&a, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    loaded_engine_open(&b, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    exchange_mlps(b.engine);
    int64_t vocab = a.model.config.vocab;
    some_ids(ids, vocab);
    nmlp_ppl_options options = {.ctx = CTX};
    nmlp_assert_ok(nmlp_divergence_ids(&got, a.engine, b.engine, ids, N_IDS, &options, &err), &err);
    float *logits[2];
    double *logs[2];
    for (int i = 0; i < 2; i++) {
        logs[i] = nmlp_mem_new((size_t)vocab, sizeof(double), &err);
    }
    double kl = 0, nll = 0, nll_before = 0;
    for (int64_t window = 0; window < N_IDS / CTX; window++) { /* the last, not full, is dropped */
        logits[0] = loaded_engine_logits(&a, ids + window * CTX, CTX, CTX);
        logits[1] = loaded_engine_logits(&b, ids + window * CTX, CTX, CTX);
        for (int64_t p = 0; p < CTX - 1; p++) {
            for (int i = 0; i < 2; i++) log_softmax(logs[i], logits[i] + p * vocab, vocab);
            for (int64_t v = 0; v < vocab; v++) kl += exp(logs[0][v]) * (logs[0][v] - logs[1][v]);
            nll_before -= logs[0][ids[window * CTX + p + 1]];
            nll -= logs[1][ids[window * CTX + p + 1]];
        }
        for (int i = 0; i < 2; i++) nmlp_mem_free(logits[i]);
    }
    double n = (double)(N_IDS / CTX * (CTX - 1));
    assert_int_equal(got.n_scored, (int64_t)n);
    assert_true(kl / n > 0.01);
    assert_true(fabs(got.kl - kl / n) < 1e-5 * kl / n);
    assert_true(fabs(got.nll - nll / n) < 1e-5);
    assert_true(fabs(got.nll_before - nll_before / n) < 1e-5);
    assert_true(got.same_top < 1);
    for (int i = 0; i < 2; i++) nmlp_mem_free(logs[i]);
    loaded_engine_close(&a);
    loaded_engine_close(&b);
}

static void a_model_is_no_distance_from_itself(void **state) {
    loaded_engine a;
    nmlp_err err;
    int32_t ids[N_IDS];
    nmlp_divergence got;
    (void)state;
    loaded_engine_open(&a, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    some_ids(ids, a.model.config.vocab);
    nmlp_ppl_options options = {.ctx = CTX, .keep_partial = true};
    nmlp_assert_ok(nmlp_divergence_ids(&got, a.engine, a.engine, ids, N_IDS, &options, &err), &err);
    assert_int_equal(got.n_scored, 31 + 31 + 5);
    assert_true(fabs(got.kl) < 1e-6);
    assert_true(got.same_top == 1);
    options.stride = 16;
    assert_int_equal(nmlp_divergence_ids(&got, a.engine, a.engine, ids, N_IDS, &options, &err), NMLP_E_ARG);
    loaded_engine_close(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_the_sum_over_the_vocabulary),
        cmocka_unit_test(a_model_is_no_distance_from_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
