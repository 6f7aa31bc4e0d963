/* The engine against Hugging Face transformers (float32) and llama2.c: logits, argmax, greedy text. Skipped where
 * ../shared is absent. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/generate.h"
#include "engine/sampler.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"

enum { IDS_MAX = 600 };

static int64_t read_ids(const nmlp_json *list, int32_t *ids) {
    int64_t n = 0;
    for (const nmlp_json *v = nmlp_json_first(list); v; v = nmlp_json_next(v)) {
        assert_true(n < IDS_MAX);
        ids[n++] = (int32_t)nmlp_json_number(v);
    }
    return n;
}

static bool load_expected(nmlp_json_doc *doc, const char *folder, char *dir, size_t dir_bytes) {
    char path[1100];
    nmlp_err err;
    if (!nmlp_test_shared_path(dir, dir_bytes, folder)) return false;
    snprintf(path, sizeof path, "%s/expected.json", dir);
    nmlp_assert_ok(nmlp_json_load(doc, path, &err), &err);
    return true;
}

static void check_logits(const nmlp_json_doc *doc, const float *got, int64_t vocab) {
    const nmlp_json *position = nmlp_json_first(nmlp_json_get(doc->root, "positions"));
    const nmlp_json *row = nmlp_json_first(nmlp_json_get(doc->root, "logits"));
    double largest = 0;
    double worst = 0;
    for (; position; position = nmlp_json_next(position), row = nmlp_json_next(row)) {
        const float *logits = got + (int64_t)nmlp_json_number(position) * vocab;
        int64_t i = 0;
        for (const nmlp_json *v = nmlp_json_first(row); v; v = nmlp_json_next(v), i++) {
            largest = fmax(largest, fabs(nmlp_json_number(v)));
            worst = fmax(worst, fabs(nmlp_json_number(v) - (double)logits[i]));
        }
        assert_int_equal(i, vocab);
    }
    if (!(worst <= 2e-3 * largest)) fail_msg("logits differ by %g of %g", worst, largest);
}

static void check_argmax(const nmlp_json_doc *doc, const float *got, int64_t vocab) {
    int64_t i = 0;
    const nmlp_json *v = nmlp_json_first(nmlp_json_get(doc->root, "argmax"));
    for (; v; v = nmlp_json_next(v), i++) assert_int_equal(nmlp_argmax(got + i * vocab, vocab), nmlp_json_number(v));
    assert_int_equal(i, 100);
}

/* Teacher-forced: given the expected text so far, is the next expected token the likeliest? Counts the steps where it
 * is not. */
static int greedy_misses(const loaded_engine *l, const nmlp_json_doc *doc) {
    int32_t text[IDS_MAX];
    int64_t vocab = l->model.config.vocab;
    int64_t n_prompt = (int64_t)nmlp_json_number(nmlp_json_get(doc->root, "greedy_prompt"));
    int64_t n = read_ids(nmlp_json_get(doc->root, "greedy"), text);
    float *logits = loaded_engine_logits(l, text, n, 0);
    int misses = 0;
    for (int64_t i = n_prompt; i < n; i++) misses += nmlp_argmax(logits + (i - 1) * vocab, vocab) != text[i];
    nmlp_mem_free(logits);
    return misses;
}

static void check_fixture(const char *folder) {
    char dir[1024];
    nmlp_json_doc doc;
    loaded_engine l;
    int32_t ids[IDS_MAX];
    if (!load_expected(&doc, folder, dir, sizeof dir)) skip();
    loaded_engine_open(&l, dir, NULL, 2);
    int64_t n = read_ids(nmlp_json_get(doc.root, "ids"), ids);
    float *logits = loaded_engine_logits(&l, ids, n, 32);
    check_logits(&doc, logits, l.model.config.vocab);
    check_argmax(&doc, logits, l.model.config.vocab);
    assert_int_equal(greedy_misses(&l, &doc), 0);
    nmlp_mem_free(logits);
    loaded_engine_close(&l);
    nmlp_json_free(&doc);
}

static void llama_with_grouped_queries_and_llama3_rope(void **state) {
    (void)state;
    check_fixture("fixtures/llama-gqa-tied");
}

static void llama_with_an_untied_head(void **state) {
    (void)state;
    check_fixture("fixtures/llama-mha-untied");
}

static void qwen2_with_biases(void **state) {
    (void)state;
    check_fixture("fixtures/qwen2-bias");
}

static void qwen3_with_its_own_head_dim(void **state) {
    (void)state;
    check_fixture("fixtures/qwen3-headdim");
}

struct text {
    int32_t ids[IDS_MAX];
    int64_t n;
};

static bool append_id(void *ctx, int32_t id) {
    struct text *text = ctx;
    text->ids[text->n++] = id;
    return true;
}

static void generate(const loaded_engine *l, const int32_t *prompt, int64_t n_prompt, int64_t n_new, struct text *out) {
    nmlp_batch *batch;
    int32_t sequence;
    nmlp_batch_options options = {.context = n_prompt + n_new};
    nmlp_generation_stats stats;
    nmlp_err err;
    nmlp_generation request = {.prompt = prompt,
                               .n_prompt = n_prompt,
                               .max_new = n_new,
                               .sampling = nmlp_sampling_greedy(),
                               .on_token = append_id,
                               .ctx = out};
    out->n = 0;
    nmlp_assert_ok(nmlp_batch_create(&batch, l->engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(batch, NULL, 0, &sequence, &err), &err);
    nmlp_assert_ok(nmlp_generate(batch, sequence, &request, &stats, &err), &err);
    assert_int_equal(stats.n_generated, n_new);
    nmlp_batch_destroy(batch);
}

static void check_generation(const loaded_engine *l, const nmlp_json *g) {
    int32_t prompt[IDS_MAX];
    int32_t want[IDS_MAX];
    struct text got;
    int64_t vocab = l->model.config.vocab;
    int64_t n_prompt = read_ids(nmlp_json_get(g, "ids"), prompt);
    int64_t n_want = read_ids(nmlp_json_get(g, "greedy_ids"), want);
    generate(l, prompt, n_prompt, n_want, &got);
    assert_memory_equal(got.ids, want, (size_t)n_want * sizeof *want);
    float *logits = loaded_engine_logits(l, prompt, n_prompt, 0);
    const nmlp_json *id = nmlp_json_first(nmlp_json_get(g, "top_ids"));
    const nmlp_json *value = nmlp_json_first(nmlp_json_get(g, "top_logits"));
    for (; id; id = nmlp_json_next(id), value = nmlp_json_next(value)) {
        double logit = (double)logits[(n_prompt - 1) * vocab + (int64_t)nmlp_json_number(id)];
        assert_true(fabs(logit - nmlp_json_number(value)) < 1e-2);
    }
    nmlp_mem_free(logits);
}

static void check_model(const char *folder) {
    char dir[1024];
    nmlp_json_doc doc;
    loaded_engine l;
    if (!load_expected(&doc, folder, dir, sizeof dir)) skip();
    loaded_engine_open(&l, dir, NULL, 2);
    const nmlp_json *g = nmlp_json_first(nmlp_json_get(doc.root, "generations"));
    assert_non_null(g);
    for (; g; g = nmlp_json_next(g)) check_generation(&l, g);
    loaded_engine_close(&l);
    nmlp_json_free(&doc);
}

static void tiny_generates_what_transformers_does(void **state) {
    (void)state;
    check_model("models/tiny");
}

static void small_generates_what_transformers_does(void **state) {
    (void)state;
    check_model("models/small");
}

static int64_t read_number_file(const char *path, int32_t *ids) {
    nmlp_str text;
    nmlp_err err;
    int64_t n = 0;
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, path, 1 << 20, &err), &err);
    char *at = text.data;
    for (char *end; n < IDS_MAX; at = end) {
        long id = strtol(at, &end, 10);
        if (end == at) break;
        ids[n++] = (int32_t)id;
    }
    nmlp_str_fini(&text);
    return n;
}

/* llama2.c's own program: its 256 greedy ids, its logits at every position, and its 200-token text. */
static void stories_equal_llama2c(void **state) {
    char dir[1024];
    char path[1100];
    int32_t ids[IDS_MAX];
    loaded_engine l;
    nmlp_file_map logits_file;
    nmlp_err err;
    struct text got;
    (void)state;
    if (!nmlp_test_shared_path(dir, sizeof dir, "models/stories260K")) skip();
    snprintf(path, sizeof path, "%s/hf", dir);
    loaded_engine_open(&l, path, NULL, 2);
    snprintf(path, sizeof path, "%s/greedy_tokens.txt", dir);
    int64_t n = read_number_file(path, ids);
    assert_int_equal(n, 256);
    generate(&l, ids, 1, 199, &got);
    assert_memory_equal(got.ids, ids + 1, 199 * sizeof *ids);
    float *logits = loaded_engine_logits(&l, ids, n, 0);
    snprintf(path, sizeof path, "%s/greedy_logits.f32", dir);
    nmlp_assert_ok(nmlp_file_map_open(&logits_file, path, &err), &err);
    const float *want = (const float *)(const void *)logits_file.data;
    for (int64_t i = 0; i < n * 512; i++) assert_true(fabsf(logits[i] - want[i]) < 2e-3f * 20);
    nmlp_file_map_close(&logits_file);
    nmlp_mem_free(logits);
    loaded_engine_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_with_grouped_queries_and_llama3_rope),
        cmocka_unit_test(llama_with_an_untied_head),
        cmocka_unit_test(qwen2_with_biases),
        cmocka_unit_test(qwen3_with_its_own_head_dim),
        cmocka_unit_test(tiny_generates_what_transformers_does),
        cmocka_unit_test(small_generates_what_transformers_does),
        cmocka_unit_test(stories_equal_llama2c),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
