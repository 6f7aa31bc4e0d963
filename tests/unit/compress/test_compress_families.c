/* Compression of families that differ from Llama: fused projections, norms after the MLP, GELU, scaled residuals. The
 * compressed model and the dense one that expand makes of it compute the same, and the weights that were kept help. */

#include "base/file.h"
#include "base/mem.h"
#include "compress/compress.h"
#include "engine/session.h"
#include "lib/small_vocab.h"
#include "lib/testing.h"
#include "model/expand.h"

enum { N_IDS = 4096 };

static nmlp_compress_report compress(const char *from, const char *to) {
    static int32_t ids[N_IDS];
    nmlp_compress_options options = nmlp_compress_defaults();
    nmlp_compress_report report;
    nmlp_engine_options engine_options = {0};
    nmlp_engine *engine;
    nmlp_model model;
    nmlp_err err;
    options.ratio = 0.2;
    options.tile = 4;
    options.calib_tokens = 2048;
    options.heldout_tokens = 1024;
    options.context = 128;
    options.rounds = 0;
    options.calib_name = "random ids";
    small_vocab_random_ids(ids, N_IDS, 1);
    nmlp_assert_ok(nmlp_model_open(&model, from, &err), &err);
    nmlp_assert_ok(nmlp_engine_create(&engine, &model, &engine_options, &err), &err);
    nmlp_assert_ok(nmlp_compress_run(engine, ids, N_IDS, to, &options, &report, &err), &err);
    nmlp_engine_destroy(engine);
    nmlp_model_close(&model);
    return report;
}

/* Returns the KL divergence for each parameter removed. */
static double check_family(const char *name) {
    char from[4096], dir[1024], small[2048], wide[2048], card[2200];
    float original[SMALL_VOCAB], compressed[SMALL_VOCAB], expanded[SMALL_VOCAB];
    nmlp_model model;
    nmlp_err err;
    int64_t bytes;
    snprintf(from, sizeof from, "%s/tests/data/families/%s", NMLP_TEST_ROOT, name);
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(small, sizeof small, "%s/small", dir);
    snprintf(wide, sizeof wide, "%s/wide", dir);
    nmlp_compress_report report = compress(from, small);
    double removed = 1 - (double)report.mlp_params_after / (double)report.mlp_params_before;
    assert_true(removed > 0.12 && removed < 0.3); /* the nearest ranks in tiles of 4 */
    /* The refit keeps what helps; a stream advanced wrongly would be worse than before it. */
    assert_true(report.final.kl <= report.factored.kl * 1.001 && report.final.kl > 0);
    double kl_each = report.final.kl / (double)(report.mlp_params_before - report.mlp_params_after);
    nmlp_compress_report_fini(&report);
    nmlp_assert_ok(nmlp_model_open(&model, small, &err), &err);
    assert_true(nmlp_model_measure(&model).n_lowrank > 0);
    nmlp_assert_ok(nmlp_model_expand(&model, wide, NULL, NULL, &bytes, &err), &err);
    nmlp_model_close(&model);
    small_vocab_last_logits(from, original);
    small_vocab_last_logits(small, compressed);
    small_vocab_last_logits(wide, expanded);
    assert_true(small_vocab_distance(compressed, expanded) < 0.02); /* products in bf16 */
    assert_true(small_vocab_distance(compressed, original) > 1e-3);
    snprintf(card, sizeof card, "%s/README.md", small);
    assert_true(nmlp_file_exists(card));
    snprintf(card, sizeof card, "%s/modeling_neuronmlp.py", small);
    assert_true(nmlp_file_exists(card));
    nmlp_test_rmdir(dir);
    return kl_each;
}

static void fused_projections(void **state) {
    (void)state;
    check_family("phi3");
}

static void norms_around_and_gelu(void **state) {
    (void)state;
    check_family("gemma3");
}

static void scaled_residuals(void **state) {
    (void)state;
    check_family("granite");
}

static void norms_after(void **state) {
    (void)state;
    check_family("olmo2");
}

static void experts_of_every_spelling(void **state) {
    (void)state;
    check_family("mixtral");
    check_family("olmoe");
}

/* Random weights of the same shapes but for the experts: a parameter removed costs no more than one of a dense MLP. */
static void experts_cost_no_more_than_one_mlp(void **state) {
    (void)state;
    double dense = check_family("qwen3"), experts = check_family("qwen3-moe");
    print_message("KL for each parameter removed: dense %.3g, experts %.3g\n", dense, experts);
    assert_true(experts <= dense);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_projections),         cmocka_unit_test(norms_around_and_gelu),
        cmocka_unit_test(scaled_residuals),          cmocka_unit_test(norms_after),
        cmocka_unit_test(experts_of_every_spelling), cmocka_unit_test(experts_cost_no_more_than_one_mlp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
