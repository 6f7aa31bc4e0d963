/* Windows by brute force, words and bytes by hand, and negative log-likelihoods against transformers and llama2.c. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/logprob.h"
#include "eval/perplexity.h"
#include "lib/loaded_engine.h"
#include "lib/reference_forward.h"
#include "lib/testing.h"

enum { TOKENS_MAX = 600 };

/* The loop of Hugging Face's guide, marking what it scores: labels in front of the last trg_len are ignored, and the
 * shift by one leaves a window's first token without a prediction. */
static int64_t guide(int64_t n, int64_t ctx, int64_t stride, int *scored, int64_t *n_windows) {
    int64_t prev_end = 0, total = 0;
    *n_windows = 0;
    for (int64_t begin = 0; begin < n; begin += stride) {
        int64_t end = begin + ctx < n ? begin + ctx : n;
        int64_t trg_len = end - prev_end;
        for (int64_t p = begin + 1; p < end; p++) {
            if (p >= end - trg_len) {
                scored[p]++;
                total++;
            }
        }
        (*n_windows)++;
        prev_end = end;
        if (end == n) break;
    }
    return total;
}

static void windows_score_what_the_guides_loop_scores(void **state) {
    (void)state;
    for (int64_t n = 2; n < 60; n++) {
        for (int64_t ctx = 2; ctx < 20; ctx++) {
            for (int64_t stride = 1; stride <= ctx; stride++) {
                int want[64] = {0}, got[64] = {0};
                int64_t n_windows;
                nmlp_text_windows w = {.n_tokens = n, .ctx = ctx, .stride = stride};
                nmlp_text_window window = {0};
                int64_t total = guide(n, ctx, stride, want, &n_windows);
                while (nmlp_text_window_next(&w, &window)) {
                    assert_true(window.score > window.begin && window.end - window.begin <= ctx && window.end <= n);
                    for (int64_t p = window.score; p < window.end; p++) got[p]++;
                }
                assert_memory_equal(got, want, sizeof got);
                assert_int_equal(nmlp_text_windows_scored(&w), total);
            }
        }
    }
}

static void full_windows_only_leave_out_the_last_part(void **state) {
    (void)state;
    /* the table of the models' README: 300,000 tokens, windows of 512 */
    nmlp_text_windows w = {.n_tokens = 300000, .ctx = 512, .stride = 512, .drop_partial = true};
    assert_int_equal(nmlp_text_windows_scored(&w), 585 * 511);
    w.drop_partial = false;
    assert_int_equal(nmlp_text_windows_scored(&w), 585 * 511 + 479);
    w.n_tokens = 511;
    w.drop_partial = true;
    assert_int_equal(nmlp_text_windows_scored(&w), 0);
    w = (nmlp_text_windows){.n_tokens = 513, .ctx = 512, .stride = 512}; /* a last window of one token scores nothing */
    assert_int_equal(nmlp_text_windows_scored(&w), 511);
}

/* The worked example in the harness's documentation: ten tokens behind a prefix, context of four. */
static void rolling_windows_are_the_harness_s(void **state) {
    static const nmlp_text_window want[] = {{0, 5, 1}, {4, 9, 5}, {6, 11, 9}};
    nmlp_text_windows w = {.n_tokens = 11, .ctx = 4, .stride = 4, .rolling = true};
    nmlp_text_window window = {0};
    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        assert_true(nmlp_text_window_next(&w, &window));
        assert_true(window.begin == want[i].begin && window.end == want[i].end && window.score == want[i].score);
    }
    assert_false(nmlp_text_window_next(&w, &window));
    assert_int_equal(nmlp_text_windows_scored(&w), 10);
    w.n_tokens = 3; /* shorter than a window */
    window = (nmlp_text_window){0};
    assert_true(nmlp_text_window_next(&w, &window));
    assert_true(window.begin == 0 && window.end == 3 && window.score == 1);
    assert_false(nmlp_text_window_next(&w, &window));
}

static void words_are_what_white_space_separates(void **state) {
    const char *const texts[] = {"", " \n\t ", "one", " two  words\n", "k\xc2\xa0k", "x\xe2\x80\x83y z", "\xff bad"};
    const int64_t want[] = {0, 0, 1, 2, 2, 3, 2};
    (void)state;
    for (size_t i = 0; i < 7; i++) assert_int_equal(nmlp_count_words(texts[i], strlen(texts[i])), want[i]);
}

static void options_the_model_cannot_do_are_refused(void **state) {
    nmlp_config config = {.max_positions = 512};
    nmlp_err err;
    (void)state;
    nmlp_ppl_options o = {0};
    nmlp_assert_ok(nmlp_ppl_options_check(&o, &config, &err), &err);
    assert_int_equal(o.ctx, 512);
    assert_int_equal(o.stride, 512);
    config.max_positions = 131072;
    o = (nmlp_ppl_options){0};
    nmlp_assert_ok(nmlp_ppl_options_check(&o, &config, &err), &err);
    assert_int_equal(o.ctx, 2048);
    config.max_positions = 512;
    o = (nmlp_ppl_options){.ctx = 513};
    nmlp_assert_fails(nmlp_ppl_options_check(&o, &config, &err), &err, NMLP_E_LIMIT, "context is 513", "512", NULL);
    o = (nmlp_ppl_options){.ctx = 1};
    nmlp_assert_fails(nmlp_ppl_options_check(&o, &config, &err), &err, NMLP_E_LIMIT, "context is 1", NULL);
    o = (nmlp_ppl_options){.ctx = 100, .stride = 101};
    nmlp_assert_fails(nmlp_ppl_options_check(&o, &config, &err), &err, NMLP_E_ARG, "stride is 101", "100", NULL);
    o = (nmlp_ppl_options){.max_tokens = -1};
    nmlp_assert_fails(nmlp_ppl_options_check(&o, &config, &err), &err, NMLP_E_ARG, "max_tokens is -1", NULL);
}

/* transformers, float32: the mean over 99 predictions of one window. Both sides sum f32 products of up to 384 terms
 * through three layers; 1e-4 of the value is what the logits' agreement (2e-3 of the largest at worst) leaves after
 * averaging. */
static void check_fixture(const char *folder) {
    char dir[1024], path[1100];
    nmlp_json_doc doc;
    loaded_engine l;
    nmlp_err err;
    int32_t ids[TOKENS_MAX];
    int64_t n = 0;
    nmlp_ppl_result r;
    if (!nmlp_test_shared_path(dir, sizeof dir, folder)) skip();
    snprintf(path, sizeof path, "%s/expected.json", dir);
    nmlp_assert_ok(nmlp_json_load(&doc, path, &err), &err);
    for (const nmlp_json *v = nmlp_json_first(nmlp_json_get(doc.root, "ids")); v; v = nmlp_json_next(v))
        ids[n++] = (int32_t)nmlp_json_number(v);
    double want = nmlp_json_number(nmlp_json_get(doc.root, "mean_nll"));
    loaded_engine_open(&l, dir, NULL, 2);
    nmlp_assert_ok(nmlp_perplexity_ids(&r, l.engine, ids, n, &(nmlp_ppl_options){0}, &err), &err);
    assert_int_equal(r.n_scored, n - 1);
    if (!(fabs(r.nll - want) <= 1e-4 * want)) fail_msg("%s: nll %.9g, expected %.9g", folder, r.nll, want);
    assert_true(fabs(r.ppl - exp(want)) <= 1e-2 * exp(want));
    loaded_engine_close(&l);
    nmlp_json_free(&doc);
}

static void llama_gqa_nll_matches_transformers(void **state) {
    (void)state;
    check_fixture("fixtures/llama-gqa-tied");
}
static void llama_mha_nll_matches_transformers(void **state) {
    (void)state;
    check_fixture("fixtures/llama-mha-untied");
}
static void qwen2_nll_matches_transformers(void **state) {
    (void)state;
    check_fixture("fixtures/qwen2-bias");
}
static void qwen3_nll_matches_transformers(void **state) {
    (void)state;
    check_fixture("fixtures/qwen3-headdim");
}

/* llama2.c's logits for its own greedy text give each token's probability in float64. */
static void stories_nll_matches_llama2c(void **state) {
    enum { N = 256, V = 512 };
    char path[1024], dir[1024];
    nmlp_str text;
    nmlp_file_map map;
    nmlp_err err;
    loaded_engine l;
    nmlp_ppl_result r;
    int32_t ids[N];
    double want = 0;
    (void)state;
    if (!nmlp_test_shared_path(path, sizeof path, "models/stories260K/greedy_tokens.txt")) skip();
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, path, 1 << 20, &err), &err);
    char *at = text.data;
    for (int i = 0; i < N; i++) ids[i] = (int32_t)strtol(at, &at, 10);
    nmlp_test_shared_path(path, sizeof path, "models/stories260K/greedy_logits.f32");
    nmlp_assert_ok(nmlp_file_map_open(&map, path, &err), &err);
    assert_int_equal(map.bytes, N * V * 4);
    const float *logits = (const float *)(const void *)map.data;
    for (int i = 0; i + 1 < N; i++) {
        double sum = 0;
        for (int j = 0; j < V; j++) sum += exp((double)logits[i * V + j]);
        want += log(sum) - (double)logits[i * V + ids[i + 1]];
    }
    want /= N - 1;
    nmlp_test_shared_path(dir, sizeof dir, "models/stories260K/hf");
    loaded_engine_open(&l, dir, NULL, 2);
    nmlp_assert_ok(nmlp_perplexity_ids(&r, l.engine, ids, N, &(nmlp_ppl_options){.ctx = N}, &err), &err);
    if (!(fabs(r.nll - want) <= 1e-3 * want)) fail_msg("nll %.9g, expected %.9g", r.nll, want);
    loaded_engine_close(&l);
    nmlp_file_map_close(&map);
    nmlp_str_fini(&text);
}

/* With the built-in model: definitions tie the numbers together, and a window's tokens are scored as a session scores
 * them. */
static void reported_numbers_follow_their_definitions(void **state) {
    static const char text[] =
        "The old house stood at the end of the lane, and nobody had lived in it for many years.\n";
    loaded_engine l;
    nmlp_tokenizer *t;
    nmlp_err err;
    nmlp_ppl_result r, cut, again;
    (void)state;
    nmlp_assert_ok(nmlp_tokenizer_load(&t, NMLP_TEST_ROOT "/models/tiny", &err), &err);
    loaded_engine_open(&l, NMLP_TEST_ROOT "/models/tiny", NULL, 2);
    nmlp_assert_ok(nmlp_perplexity(&r, l.engine, t, text, strlen(text), &(nmlp_ppl_options){0}, &err), &err);
    assert_int_equal(r.n_words, 19);
    assert_int_equal(r.n_bytes, strlen(text));
    assert_int_equal(r.n_scored, r.n_tokens - 1);
    assert_true(fabs(r.nll_sum / (double)r.n_scored - r.nll) < 1e-12);
    assert_true(fabs(r.word_ppl - exp(r.nll_sum / 19)) < 1e-9 * r.word_ppl);
    assert_true(fabs(r.bits_per_byte - r.nll_sum / (double)strlen(text) / log(2)) < 1e-12);
    nmlp_assert_ok(nmlp_perplexity(&cut, l.engine, t, text, strlen(text), &(nmlp_ppl_options){.max_tokens = 5}, &err),
                   &err);
    assert_int_equal(cut.n_tokens, 5);
    assert_int_equal(cut.n_scored, 4);
    assert_true(cut.n_bytes < r.n_bytes && cut.nll_sum < r.nll_sum);
    /* a window every token: every token sees at least ctx - 1 before it, so the first windows agree */
    nmlp_ppl_options o = {.ctx = 8, .stride = 1, .max_tokens = 8};
    nmlp_assert_ok(nmlp_perplexity(&again, l.engine, t, text, strlen(text), &o, &err), &err);
    nmlp_assert_ok(nmlp_perplexity(&cut, l.engine, t, text, strlen(text), &(nmlp_ppl_options){.max_tokens = 8}, &err),
                   &err);
    assert_true(fabs(again.nll_sum - cut.nll_sum) < 1e-4);
    nmlp_assert_fails(nmlp_perplexity(&r, l.engine, t, "a", 1, &(nmlp_ppl_options){0}, &err), &err, NMLP_E_LIMIT,
                      "nothing to score", NULL);
    loaded_engine_close(&l);
    nmlp_tokenizer_destroy(t);
}

/* ---- rolling windows ---- */

enum { ROLL_CTX = 12, ROLL_MAX = 64 };

/* -log p of list[score..n) behind what stands before each, in float64. */
static double reference_nll(const nmlp_model *m, const int32_t *list, int64_t n, int64_t score) {
    int64_t vocab = m->config.vocab;
    double *logits = calloc((size_t)(n * vocab), sizeof *logits), sum = 0;
    reference_forward(m, list, n, logits);
    for (int64_t t = score; t < n; t++) {
        const double *row = logits + (t - 1) * vocab;
        double top = row[0], all = 0;
        for (int64_t i = 0; i < vocab; i++) top = fmax(top, row[i]);
        for (int64_t i = 0; i < vocab; i++) all += exp(row[i] - top);
        sum += top + log(all) - row[list[t]];
    }
    free(logits);
    return sum;
}

/* The harness's loop as its function has it: inputs end one token before what they predict. */
static double harness_nll(const nmlp_model *m, int32_t prefix, const int32_t *tokens, int64_t n) {
    int32_t window[ROLL_CTX + 1];
    int64_t predicted = n < ROLL_CTX ? n : ROLL_CTX;
    window[0] = prefix;
    memcpy(window + 1, tokens, (size_t)predicted * sizeof *window);
    double sum = reference_nll(m, window, predicted + 1, 1);
    while (predicted < n) {
        int64_t some = n - predicted < ROLL_CTX ? n - predicted : ROLL_CTX, end = predicted + some;
        memcpy(window, tokens + end - ROLL_CTX - 1, sizeof window);
        sum += reference_nll(m, window, ROLL_CTX + 1, ROLL_CTX + 1 - some);
        predicted = end;
    }
    return sum;
}

static void write_file(const char *dir, const char *name, const char *text, size_t len) {
    char path[1200];
    nmlp_err err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    nmlp_assert_ok(nmlp_file_write_text(path, text, len, &err), &err);
}

/* A folder with the tokenizer of models/tiny, whose template may put token 0 in front. */
static nmlp_tokenizer *tokenizer_with(const char *config, bool template) {
    static const char none[] = "\"post_processor\": null";
    static const char some[] =
        "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<|begin_of_text|>"
        "\","
        "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{"
        "\"<|begin_of_text|>\":{\"id\":\"<|begin_of_text|>\",\"ids\":[0],\"tokens\":[\"<|begin_of_text|>\"]}}}";
    char dir[1024];
    nmlp_str json, changed;
    nmlp_tokenizer *t;
    nmlp_err err;
    nmlp_str_init(&json);
    nmlp_str_init(&changed);
    nmlp_test_mkdtemp(dir, sizeof dir);
    nmlp_assert_ok(nmlp_file_read(&json, NMLP_TEST_ROOT "/models/tiny/tokenizer.json", 1 << 26, &err), &err);
    const char *found = strstr(nmlp_str_text(&json), none);
    assert_non_null(found);
    nmlp_str_printf(&changed, "%.*s%s%s", (int)(found - nmlp_str_text(&json)), nmlp_str_text(&json),
                    template ? some : none, found + strlen(none));
    write_file(dir, "tokenizer.json", nmlp_str_text(&changed), changed.len);
    if (config) write_file(dir, "tokenizer_config.json", config, strlen(config));
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    nmlp_str_fini(&json);
    nmlp_str_fini(&changed);
    nmlp_test_rmdir(dir);
    return t;
}

/* The prefix is the tokenizer's BOS, else its EOS, else the configuration's BOS; what the template adds is scored. */
static void rolling_text_stands_behind_the_harness_s_prefix(void **state) {
    static const char text[] =
        "The old house stood at the end of the lane, and nobody had lived in it for many years.\n";
    static const struct {
        const char *config;
        bool template;
        int32_t prefix;
    } cases[] = {{"{\"bos_token\": \"<|begin_of_text|>\", \"eos_token\": \"<|end_of_text|>\"}", false, 0},
                 {"{\"eos_token\": \"<|end_of_text|>\"}", false, 1},
                 {NULL, false, 0},
                 {"{\"eos_token\": \"<|end_of_text|>\"}", true, 0}};
    loaded_engine l;
    nmlp_err err;
    (void)state;
    loaded_engine_open(&l, NMLP_TEST_ROOT "/models/tiny", "ref", 2);
    assert_int_equal(l.model.config.bos_id, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_tokenizer *t = tokenizer_with(cases[i].config, cases[i].template);
        nmlp_ppl_options o = {.ctx = ROLL_CTX, .rolling = true};
        nmlp_ppl_result r;
        nmlp_ids tokens;
        nmlp_ids_init(&tokens);
        if (cases[i].template) nmlp_assert_ok(nmlp_ids_push(&tokens, 0, &err), &err);
        nmlp_assert_ok(nmlp_tokenizer_encode(t, text, strlen(text), NMLP_BOS_NONE, false, &tokens, &err), &err);
        assert_true(tokens.len > ROLL_CTX && tokens.len < ROLL_MAX && tokens.len % ROLL_CTX != 0);
        nmlp_assert_ok(nmlp_perplexity(&r, l.engine, t, text, strlen(text), &o, &err), &err);
        double want = harness_nll(&l.model, cases[i].prefix, tokens.data, (int64_t)tokens.len);
        assert_int_equal(r.n_scored, (int64_t)tokens.len);
        assert_true(fabs(r.nll_sum - want) < 1e-5 * want);
        nmlp_ids_fini(&tokens);
        nmlp_tokenizer_destroy(t);
    }
    loaded_engine_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_score_what_the_guides_loop_scores),
        cmocka_unit_test(full_windows_only_leave_out_the_last_part),
        cmocka_unit_test(rolling_windows_are_the_harness_s),
        cmocka_unit_test(words_are_what_white_space_separates),
        cmocka_unit_test(options_the_model_cannot_do_are_refused),
        cmocka_unit_test(llama_gqa_nll_matches_transformers),
        cmocka_unit_test(llama_mha_nll_matches_transformers),
        cmocka_unit_test(qwen2_nll_matches_transformers),
        cmocka_unit_test(qwen3_nll_matches_transformers),
        cmocka_unit_test(stories_nll_matches_llama2c),
        cmocka_unit_test(reported_numbers_follow_their_definitions),
        cmocka_unit_test(rolling_text_stands_behind_the_harness_s_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
