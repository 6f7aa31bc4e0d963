/* Every supported family against transformers: random tiny models whose logits tests/python/families.py computed in
 * float32, at lengths beyond windows and original contexts. */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/batch.h"
#include "engine/session.h"
#include "lib/testing.h"
#include "model/adapter.h"

/* One text of expected.bin. */
struct text {
    int32_t n, vocab, n_rows;
    const int32_t *ids, *argmax, *rows;
    const float *logits; /* [n_rows, V] */
};

static const char *read_text(struct text *t, const char *at) {
    memcpy(t, at, 3 * sizeof(int32_t));
    t->ids = (const int32_t *)(const void *)(at + 12);
    t->argmax = t->ids + t->n;
    t->rows = t->argmax + t->n;
    t->logits = (const float *)(const void *)(t->rows + t->n_rows);
    return (const char *)(t->logits + t->n_rows * t->vocab);
}

/* What was compared of a text so far. */
struct compared {
    const struct text *text;
    const char *what;
    double worst, largest;
    int next;
};

static void compare_row(struct compared *c, const float *logits, int64_t position) {
    const struct text *t = c->text;
    int best = 0;
    for (int i = 0; i < t->vocab; i++) best = logits[i] > logits[best] ? i : best;
    if (best != t->argmax[position])
        fail_msg("%s: position %lld has its largest logit at %d, expected %d", c->what, (long long)position, best,
                 t->argmax[position]);
    if (c->next == t->n_rows || t->rows[c->next] != position) return;
    const float *want = t->logits + c->next++ * t->vocab;
    for (int i = 0; i < t->vocab; i++) {
        c->worst = fmax(c->worst, fabs((double)logits[i] - (double)want[i]));
        c->largest = fmax(c->largest, fabs((double)want[i]));
    }
}

static void finish(const struct compared *c) {
    assert_int_equal(c->next, c->text->n_rows);
    if (!(c->worst <= 2e-5 * c->largest)) fail_msg("%s: off by %.2g of %.2g", c->what, c->worst, c->largest);
}

static void on_rows(void *ctx, nmlp_session *session, const float *rows, int64_t first, int64_t s) {
    struct compared *c = ctx;
    float *logits = nmlp_mem_new((size_t)(s * c->text->vocab), sizeof *logits, NULL);
    nmlp_session_logits(session, rows, s, logits);
    for (int64_t i = 0; i < s; i++) compare_row(c, logits + i * c->text->vocab, first + i);
    nmlp_mem_free(logits);
}

/* All at once, and in pieces. */
static void check_session(const nmlp_engine *engine, const struct text *t, int64_t chunk, const char *what) {
    struct compared c = {.text = t, .what = what};
    nmlp_session *session;
    nmlp_err err;
    nmlp_assert_ok(nmlp_session_create(&session, engine, t->n, chunk, false, &err), &err);
    nmlp_assert_ok(nmlp_session_append(session, t->ids, t->n, on_rows, &c, &err), &err);
    finish(&c);
    nmlp_session_destroy(session);
}

/* A prompt and then token by token, over pages. */
static void check_batch(const nmlp_engine *engine, const struct text *t, const char *what) {
    struct compared c = {.text = t, .what = what};
    nmlp_batch_options options = {.context = t->n, .max_sequences = 2};
    float *logits = nmlp_mem_new((size_t)(t->n * t->vocab), sizeof *logits, NULL);
    nmlp_batch *batch;
    nmlp_err err;
    int32_t sequence;
    int64_t prompt = t->n / 2;
    nmlp_assert_ok(nmlp_batch_create(&batch, engine, &options, &err), &err);
    nmlp_assert_ok(nmlp_batch_open(batch, t->ids, t->n, &sequence, &err), &err);
    nmlp_step_item item = {.sequence = sequence, .ids = t->ids, .n = prompt, .n_logits = prompt, .logits = logits};
    nmlp_assert_ok(nmlp_batch_step(batch, &item, 1, &err), &err);
    for (int64_t i = 0; i < prompt; i++) compare_row(&c, logits + i * t->vocab, i);
    for (int64_t i = prompt; i < t->n; i++) {
        nmlp_step_item one = {.sequence = sequence, .ids = t->ids + i, .n = 1, .n_logits = 1, .logits = logits};
        nmlp_assert_ok(nmlp_batch_step(batch, &one, 1, &err), &err);
        compare_row(&c, logits, i);
    }
    finish(&c);
    nmlp_batch_destroy(batch);
    nmlp_mem_free(logits);
}

/* `adapter` may be NULL; else the expected logits lie beside it. */
static void check_family(const char *dir, const char *isa, const char *adapter) {
    char path[4096];
    nmlp_model model;
    nmlp_engine *engine;
    nmlp_str expected;
    nmlp_err err;
    nmlp_engine_options options = {.isa = isa};
    snprintf(path, sizeof path, "%s/expected.bin", adapter ? adapter : dir);
    nmlp_str_init(&expected);
    nmlp_assert_ok(nmlp_file_read(&expected, path, 1 << 20, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&model, dir, &err), &err);
    if (adapter) nmlp_assert_ok(nmlp_model_merge_adapter(&model, adapter, NULL, &err), &err);
    nmlp_assert_ok(nmlp_engine_create(&engine, &model, &options, &err), &err);
    const char *at = nmlp_str_text(&expected), *end = at + expected.len;
    while (at < end) {
        struct text text;
        at = read_text(&text, at);
        check_session(engine, &text, 0, dir);
        check_session(engine, &text, 37, dir);
        check_batch(engine, &text, dir);
    }
    assert_ptr_equal(at, end);
    nmlp_engine_destroy(engine);
    nmlp_model_close(&model);
    nmlp_str_fini(&expected);
}

static void families_match_transformers(void **state) {
    static const char root[] = NMLP_TEST_ROOT "/tests/data/families";
    DIR *dir = opendir(root);
    int n = 0;
    (void)state;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        check_family(path, "auto", NULL);
        check_family(path, "ref", NULL);
        n++;
    }
    closedir(dir);
    assert_true(n >= 20);
}

/* An adapter merged on load gives the logits that PEFT computes with it; one of another model is refused. */
static void adapters_match_peft(void **state) {
    static const char adapter[] = NMLP_TEST_ROOT "/tests/data/adapter";
    nmlp_model model;
    nmlp_err err;
    (void)state;
    check_family(NMLP_TEST_ROOT "/tests/data/families/llama", "auto", adapter);
    nmlp_assert_ok(nmlp_model_open(&model, NMLP_TEST_ROOT "/tests/data/families/phi4-longrope", &err), &err);
    nmlp_assert_fails(nmlp_model_merge_adapter(&model, adapter, NULL, &err), &err, NMLP_E_SHAPE, "q_proj", NULL);
    nmlp_model_close(&model);
    nmlp_assert_ok(nmlp_model_open(&model, NMLP_TEST_ROOT "/tests/data/families/mixtral", &err), &err);
    nmlp_assert_fails(nmlp_model_merge_adapter(&model, adapter, NULL, &err), &err, NMLP_E_UNSUPPORTED, "tensors", NULL);
    nmlp_model_close(&model);
}

/* Integers have a quarter of the bytes that their shape would have as floats: reading them would end outside of the
 * file.
 */
static void adapters_of_integers_are_refused(void **state) {
    static const char config[] = "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4}";
    static const char name[] = "base_model.model.model.layers.0.self_attn.q_proj.lora_";
    char dir[256], path[300];
    nmlp_model model;
    nmlp_str header, file;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_model_open(&model, NMLP_TEST_ROOT "/tests/data/families/llama", &err), &err);
    long long rows = model.layers[0].attention[NMLP_ATTENTION_Q].w.shape[0],
              cols = model.layers[0].attention[NMLP_ATTENTION_Q].w.shape[1];
    nmlp_str_init(&header);
    nmlp_str_init(&file);
    nmlp_str_printf(&header,
                    "{\"%sA.weight\":{\"dtype\":\"I8\",\"shape\":[2,%lld],\"data_offsets\":[0,%lld]},"
                    "\"%sB.weight\":{\"dtype\":\"I8\",\"shape\":[%lld,2],\"data_offsets\":[%lld,%lld]}}",
                    name, cols, 2 * cols, name, rows, 2 * cols, 2 * cols + 2 * rows);
    uint64_t len = header.len;
    nmlp_str_append(&file, &len, sizeof len);
    nmlp_str_append(&file, header.data, header.len);
    for (long long i = 0; i < 2 * (rows + cols); i++) nmlp_str_putc(&file, 1);
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    nmlp_test_write_file(path, config, sizeof config - 1);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    nmlp_test_write_file(path, file.data, file.len);
    nmlp_assert_fails(nmlp_model_merge_adapter(&model, dir, NULL, &err), &err, NMLP_E_SHAPE, "q_proj", NULL);
    nmlp_model_close(&model);
    nmlp_str_fini(&header);
    nmlp_str_fini(&file);
    nmlp_test_rmdir(dir);
}

/* What is written of a configuration reads as the same model. */
static void configurations_survive_writing(void **state) {
    static const char root[] = NMLP_TEST_ROOT "/tests/data/families";
    DIR *dir = opendir(root);
    (void)state;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[4096];
        nmlp_config config, again;
        nmlp_json_doc doc;
        nmlp_str text;
        nmlp_err err;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        nmlp_assert_ok(nmlp_config_load(&config, path, &err), &err);
        nmlp_str_init(&text);
        nmlp_config_write(&config, NULL, NULL, 0, &text);
        nmlp_assert_ok(nmlp_json_parse(&doc, nmlp_str_text(&text), text.len, path, &err), &err);
        nmlp_assert_ok(nmlp_config_parse(&again, &doc, &err), &err);
        assert_true(fabs(again.score_scale / config.score_scale - 1) < 1e-9);
        again.score_scale = config.score_scale;
        assert_memory_equal(&again, &config, sizeof again);
        nmlp_json_free(&doc);
        nmlp_str_fini(&text);
    }
    closedir(dir);
}

/* What GPUs, GGUF files, packages and training say of a family they do not know; NULL: they know it. */
static void what_a_family_has_beyond_llama_is_named(void **state) {
    (void)state;
    static const char *const expected[][2] = {{"llama", NULL},
                                              {"llama-yarn", NULL},
                                              {"qwen2", NULL},
                                              {"qwen3", NULL},
                                              {"mixtral", "experts"},
                                              {"qwen3-moe", "experts"},
                                              {"olmoe", "experts"},
                                              {"gemma2", "sliding windows"},
                                              {"mistral-window", "sliding windows"},
                                              {"smollm3", "layers without rope"},
                                              {"granite", "scaled residuals or logits"},
                                              {"olmo2", "norms after attention and MLP"}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        nmlp_config config;
        nmlp_err err;
        char dir[300];
        snprintf(dir, sizeof dir, NMLP_TEST_ROOT "/tests/data/families/%s", expected[i][0]);
        nmlp_assert_ok(nmlp_config_load(&config, dir, &err), &err);
        const char *beyond = nmlp_config_beyond_plain(&config);
        if (!beyond != !expected[i][1] || (beyond && strcmp(beyond, expected[i][1]) != 0))
            fail_msg("%s has \"%s\", expected \"%s\"", expected[i][0], beyond ? beyond : "nothing",
                     expected[i][1] ? expected[i][1] : "nothing");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match_transformers),
        cmocka_unit_test(adapters_match_peft),
        cmocka_unit_test(adapters_of_integers_are_refused),
        cmocka_unit_test(configurations_survive_writing),
        cmocka_unit_test(what_a_family_has_beyond_llama_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
