/* Attention factorised beside the MLPs: the budget is kept and never worse for it, the factors compute what expand
 * makes of them, and an interrupted run ends with the same bytes. */
#include <math.h>

#include "base/file.h"
#include "base/mem.h"
#include "compress/compress.h"
#include "engine/session.h"
#include "lib/small_vocab.h"
#include "lib/testing.h"
#include "model/expand.h"

enum { N_IDS = 4096 };

static nmlp_compress_options options_of(double ratio, bool attention) {
    nmlp_compress_options options = nmlp_compress_defaults();
    options.attention = attention;
    options.ratio = ratio;
    options.tile = 4;
    options.calib_tokens = 1024;
    options.heldout_tokens = 512;
    options.context = 128;
    options.rounds = 0;
    options.calib_name = "random ids";
    return options;
}

static void path_of(char path[4096], const char *family) {
    snprintf(path, 4096, "%s/tests/data/families/%s", NMLP_TEST_ROOT, family);
}

/* By an engine of which so many bytes of layers stay in memory; 0: all. */
static nmlp_status compress_within(int64_t resident_bytes, const char *family, const char *to,
                                   const nmlp_compress_options *options, nmlp_compress_report *report, nmlp_err *err) {
    static int32_t ids[N_IDS];
    nmlp_engine_options engine_options = {.resident_bytes = resident_bytes};
    nmlp_engine *engine;
    nmlp_model model;
    char from[4096];
    path_of(from, family);
    small_vocab_random_ids(ids, N_IDS, 1);
    nmlp_assert_ok(nmlp_model_open(&model, from, err), err);
    nmlp_assert_ok(nmlp_engine_create(&engine, &model, &engine_options, err), err);
    nmlp_status st = nmlp_compress_run(engine, ids, N_IDS, to, options, report, err);
    nmlp_engine_destroy(engine);
    nmlp_model_close(&model);
    return st;
}

static nmlp_status compress(const char *family, const char *to, const nmlp_compress_options *options,
                            nmlp_compress_report *report, nmlp_err *err) {
    return compress_within(0, family, to, options, report, err);
}

static void assert_same_weights(const char *one, const char *other) {
    char a[2100], b[2100];
    nmlp_str want, got;
    nmlp_err err;
    nmlp_str_init(&want);
    nmlp_str_init(&got);
    snprintf(a, sizeof a, "%s/model.safetensors", one);
    snprintf(b, sizeof b, "%s/model.safetensors", other);
    nmlp_assert_ok(nmlp_file_read(&want, a, 1 << 24, &err), &err);
    nmlp_assert_ok(nmlp_file_read(&got, b, 1 << 24, &err), &err);
    assert_int_equal(want.len, got.len);
    assert_memory_equal(want.data, got.data, want.len);
    nmlp_str_fini(&want);
    nmlp_str_fini(&got);
}

/* Ranks are uniform, so that attention has factors whatever the text says. */
static void check_family(const char *family, nmlp_joint_mode joint) {
    char dir[1024], small[2048], wide[2048], from[4096];
    float original[SMALL_VOCAB], compressed[SMALL_VOCAB], expanded[SMALL_VOCAB];
    nmlp_compress_options options = options_of(0.2, true);
    nmlp_compress_report report;
    nmlp_model model, dense;
    nmlp_err err;
    int64_t bytes;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(small, sizeof small, "%s/small", dir);
    snprintf(wide, sizeof wide, "%s/wide", dir);
    options.adaptive = false;
    options.joint = joint;
    nmlp_assert_ok(compress(family, small, &options, &report, &err), &err);
    assert_true(report.final.kl <= report.factored.kl && report.final.kl > 0);
    nmlp_assert_ok(nmlp_model_open(&model, small, &err), &err);
    nmlp_model_size size = nmlp_model_measure(&model);
    assert_true(size.n_attention_lowrank > 0);
    assert_int_equal(size.attention_params, report.attention_params_after);
    assert_int_equal(size.mlp_params, report.mlp_params_after);
    assert_int_equal(model.layers[0].attention_shares_basis, joint == NMLP_JOINT_ALWAYS);
    double removed = 1 - (double)(size.mlp_params + size.attention_params) /
                             (double)(size.mlp_params_dense + size.attention_params_dense);
    assert_true(removed > 0.1 && removed < 0.35); /* the nearest ranks in tiles of 4 */
    assert_true(fabs(removed - nmlp_compress_removed(&report)) < 1e-12);
    nmlp_compress_report_fini(&report);
    nmlp_assert_ok(nmlp_model_expand(&model, wide, NULL, NULL, &bytes, &err), &err);
    nmlp_model_close(&model);
    nmlp_assert_ok(nmlp_model_open(&dense, wide, &err), &err);
    assert_int_equal(nmlp_model_measure(&dense).n_attention_lowrank, 0);
    nmlp_model_close(&dense);
    path_of(from, family);
    small_vocab_last_logits(from, original);
    small_vocab_last_logits(small, compressed);
    small_vocab_last_logits(wide, expanded);
    assert_true(small_vocab_distance(compressed, expanded) < 0.02); /* products in bf16 */
    assert_true(small_vocab_distance(compressed, original) > 1e-3);
    nmlp_test_rmdir(dir);
}

static void attention_of_every_kind(void **state) {
    (void)state;
    check_family("qwen3", NMLP_JOINT_NEVER);
    check_family("qwen3", NMLP_JOINT_ALWAYS);
    check_family("qwen2", NMLP_JOINT_ALWAYS); /* biases */
    check_family("granite", NMLP_JOINT_NEVER);
    check_family("gemma3", NMLP_JOINT_ALWAYS);
    check_family("qwen3-moe", NMLP_JOINT_ALWAYS);
}

/* The same number of parameters removed, of MLPs alone and with attention. */
static void more_choice_is_never_worse(void **state) {
    static const char *const families[] = {"qwen3", "llama"};
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        char dir[1024], with[2048], without[2048], from[4096];
        nmlp_compress_report both, alone;
        nmlp_model model;
        nmlp_err err;
        path_of(from, families[i]);
        nmlp_assert_ok(nmlp_model_open(&model, from, &err), &err);
        nmlp_model_size size = nmlp_model_measure(&model);
        nmlp_model_close(&model);
        double set = (double)(size.mlp_params + size.attention_params), ratio = 0.2;
        nmlp_test_mkdtemp(dir, sizeof dir);
        snprintf(with, sizeof with, "%s/with", dir);
        snprintf(without, sizeof without, "%s/without", dir);
        nmlp_compress_options options = options_of(ratio, true);
        nmlp_assert_ok(compress(families[i], with, &options, &both, &err), &err);
        options = options_of(ratio * set / (double)size.mlp_params, false);
        nmlp_assert_ok(compress(families[i], without, &options, &alone, &err), &err);
        assert_true((double)(both.mlp_params_after + both.attention_params_after) <= (1 - ratio) * set * 1.02);
        print_message("%s: KL %.4f with attention (%s), %.4f without\n", families[i], both.factored.kl, both.chosen,
                      alone.factored.kl);
        assert_true(both.factored.kl <= alone.factored.kl * (1 + 1e-9));
        nmlp_compress_report_fini(&both);
        nmlp_compress_report_fini(&alone);
        nmlp_test_rmdir(dir);
    }
}

struct stopping {
    int64_t left; /* updates */
};

static bool stop_after(void *ctx, const char *stage, double done, double total, const char *unit) {
    struct stopping *s = ctx;
    (void)stage;
    (void)done;
    (void)total;
    (void)unit;
    return s->left-- > 0;
}

/* Stopped at several places, each time gone on from there: the bytes are those of a run without a stop. */
static void check_resume(const char *family, bool attention) {
    char dir[1024], whole[2048], again[2048];
    nmlp_compress_options options = options_of(0.2, attention);
    nmlp_compress_report report;
    nmlp_err err;
    int64_t n_stops = 0;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(whole, sizeof whole, "%s/whole", dir);
    snprintf(again, sizeof again, "%s/again", dir);
    options.adaptive = !attention; /* else factors of attention are not sure to be there */
    nmlp_assert_ok(compress(family, whole, &options, &report, &err), &err);
    nmlp_compress_report_fini(&report);
    options.resume = true;
    for (int64_t updates = 5;; updates += 9) {
        struct stopping stopping = {.left = updates};
        nmlp_progress progress = {.update = stop_after, .ctx = &stopping};
        options.progress = &progress;
        nmlp_status st = compress(family, again, &options, &report, &err);
        if (st == NMLP_OK) break;
        assert_int_equal(st, NMLP_E_INTERRUPTED);
        n_stops++;
    }
    nmlp_compress_report_fini(&report);
    assert_true(n_stops >= 3);
    assert_same_weights(whole, again);
    nmlp_test_rmdir(dir);
}

/* Only the first layer stays in memory, the others are made when they run; with experts all stay. */
static void layers_that_do_not_stay_give_the_same_bytes(void **state) {
    static const struct {
        const char *family;
        bool attention, adaptive, token_weights;
    } cases[] = {{"qwen3", false, true, true},
                 {"qwen3", true, false, false},
                 {"gemma3", false, true, false},
                 {"qwen3-moe", false, true, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[1024], all[2048], one[2048];
        nmlp_compress_options options = options_of(0.2, cases[i].attention);
        nmlp_compress_report report;
        nmlp_err err;
        nmlp_test_mkdtemp(dir, sizeof dir);
        snprintf(all, sizeof all, "%s/all", dir);
        snprintf(one, sizeof one, "%s/one", dir);
        options.adaptive = cases[i].adaptive;
        options.token_weights = cases[i].token_weights;
        options.rounds = 1;
        nmlp_assert_ok(compress(cases[i].family, all, &options, &report, &err), &err);
        assert_true(report.n_layers > 1);
        nmlp_compress_report_fini(&report);
        nmlp_assert_ok(compress_within(1, cases[i].family, one, &options, &report, &err), &err);
        nmlp_compress_report_fini(&report);
        assert_same_weights(all, one);
        nmlp_test_rmdir(dir);
    }
}

static void an_interrupted_run_with_attention_ends_with_the_same_bytes(void **state) {
    (void)state;
    check_resume("qwen3", true);
}

static void an_interrupted_run_of_experts_ends_with_the_same_bytes(void **state) {
    (void)state;
    check_resume("qwen3-moe", false);
    check_resume("mixtral", false);
}

static void what_does_not_go_with_attention_is_refused(void **state) {
    nmlp_compress_options options = options_of(0.2, true);
    nmlp_compress_report report;
    nmlp_err err;
    char dir[1024], out[2048];
    (void)state;
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(out, sizeof out, "%s/out", dir);
    nmlp_assert_fails(compress("phi3", out, &options, &report, &err), &err, NMLP_E_UNSUPPORTED, "modules", "one tensor",
                      NULL);
    options.slices = 2;
    nmlp_assert_fails(compress("qwen3", out, &options, &report, &err), &err, NMLP_E_ARG, "modules", "slices", NULL);
    assert_false(nmlp_file_exists(out));
    nmlp_test_rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_of_every_kind),
        cmocka_unit_test(more_choice_is_never_worse),
        cmocka_unit_test(layers_that_do_not_stay_give_the_same_bytes),
        cmocka_unit_test(an_interrupted_run_with_attention_ends_with_the_same_bytes),
        cmocka_unit_test(an_interrupted_run_of_experts_ends_with_the_same_bytes),
        cmocka_unit_test(what_does_not_go_with_attention_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
