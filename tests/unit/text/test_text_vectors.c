/* Real tokenizers against other implementations: llama.cpp's published test vectors, encodings by Hugging Face
 * tokenizers. */
#include "lib/testing.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

enum { N_VECTORS = 46 };

static void load(nmlp_tokenizer **t, const char *path) {
    nmlp_err err = {0};
    nmlp_assert_ok(nmlp_tokenizer_load(t, path, &err), &err);
}

static void read_text(nmlp_str *text, const char *folder, const char *name) {
    char path[2048];
    nmlp_err err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    nmlp_str_init(text);
    nmlp_assert_ok(nmlp_file_read(text, path, 64 << 20, &err), &err);
}

static void assert_round_trip(const nmlp_tokenizer *t, const nmlp_ids *ids, const char *text, size_t len) {
    nmlp_err err = {0};
    nmlp_str back;
    nmlp_str_init(&back);
    nmlp_assert_ok(nmlp_tokenizer_decode(t, ids->data, ids->len, false, &back, &err), &err);
    assert_int_equal(back.len, len);
    assert_memory_equal(nmlp_str_text(&back), text, len);
    nmlp_str_fini(&back);
}

/* Compares with one line of ids; returns where the next line starts. */
static const char *assert_ids_of_line(const nmlp_ids *ids, const char *line, size_t nth) {
    size_t n = 0;
    while (*line && *line != '\n') {
        char *end;
        long want = strtol(line, &end, 10);
        if (end == line) break;
        if (n >= ids->len || ids->data[n] != want)
            fail_msg("test %zu, token %zu: %d, expected %ld", nth, n, n < ids->len ? (int)ids->data[n] : -1, want);
        n++;
        line = end + strspn(end, " ");
    }
    if (n != ids->len) fail_msg("test %zu: %zu tokens, expected %zu", nth, ids->len, n);
    return line + strspn(line, " ") + 1;
}

static void check_vectors(const char *name) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char relative[64];
    char folder[1024];
    nmlp_err err = {0};
    nmlp_str inputs, outputs;
    nmlp_tokenizer *t;
    snprintf(relative, sizeof relative, "data/tokenizers/%s", name);
    if (!nmlp_test_shared_path(folder, sizeof folder, relative)) skip();
    load(&t, folder);
    read_text(&inputs, folder, "vectors.inp");
    read_text(&outputs, folder, "vectors.out");
    const char *text = nmlp_str_text(&inputs);
    const char *line = nmlp_str_text(&outputs);
    size_t n = 0;
    for (const char *end; (end = strstr(text, separator)); text = end + sizeof separator - 1, n++) {
        nmlp_ids ids;
        nmlp_ids_init(&ids);
        nmlp_assert_ok(nmlp_tokenizer_encode(t, text, (size_t)(end - text), NMLP_BOS_NONE, true, &ids, &err), &err);
        line = assert_ids_of_line(&ids, line, n);
        assert_round_trip(t, &ids, text, (size_t)(end - text));
        nmlp_ids_fini(&ids);
    }
    assert_int_equal(n, N_VECTORS);
    nmlp_str_fini(&outputs);
    nmlp_str_fini(&inputs);
    nmlp_tokenizer_destroy(t);
}

static void llama3_gives_published_ids(void **state) {
    (void)state;
    check_vectors("llama3");
}
static void qwen3_gives_published_ids(void **state) {
    (void)state;
    check_vectors("qwen3");
}
static void gpt2_gives_published_ids(void **state) {
    (void)state;
    check_vectors("gpt2");
}

static void check_encoding(const nmlp_tokenizer *t, const char *text, const nmlp_json *want) {
    nmlp_err err = {0};
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, text, strlen(text), NMLP_BOS_TEMPLATE, true, &ids, &err), &err);
    assert_int_equal(ids.len, nmlp_json_count(want));
    size_t i = 0;
    for (const nmlp_json *id = nmlp_json_first(want); id; id = nmlp_json_next(id), i++)
        assert_int_equal(ids.data[i], (int)nmlp_json_number(id));
    assert_round_trip(t, &ids, text, strlen(text));
    nmlp_ids_fini(&ids);
}

static void check_model(const char *model) {
    char path[1024];
    char file[1100];
    nmlp_err err = {0};
    nmlp_json_doc doc;
    nmlp_tokenizer *t;
    if (!nmlp_test_shared_path(path, sizeof path, model)) skip();
    snprintf(file, sizeof file, "%s/expected.json", path);
    nmlp_assert_ok(nmlp_json_load(&doc, file, &err), &err);
    load(&t, path);
    const nmlp_json *encodings = nmlp_json_get(doc.root, "encodings");
    const nmlp_json *generations = nmlp_json_get(doc.root, "generations");
    assert_true(nmlp_json_count(encodings) > 0 && nmlp_json_count(generations) > 0);
    for (const nmlp_json *e = nmlp_json_first(encodings); e; e = nmlp_json_next(e))
        check_encoding(t, nmlp_json_string(nmlp_json_get(e, "text")), nmlp_json_get(e, "ids"));
    for (const nmlp_json *g = nmlp_json_first(generations); g; g = nmlp_json_next(g))
        check_encoding(t, nmlp_json_string(nmlp_json_get(g, "prompt")), nmlp_json_get(g, "ids"));
    nmlp_tokenizer_destroy(t);
    nmlp_json_free(&doc);
}

static void tiny_gives_ids_of_hugging_face(void **state) {
    (void)state;
    check_model("models/tiny");
}
static void small_gives_ids_of_hugging_face(void **state) {
    (void)state;
    check_model("models/small");
}

/* The ids of a whole text: its number was taken from Hugging Face tokenizers 0.23. */
static void check_whole_text(const char *tokenizer, size_t want) {
    char folder[1024];
    char data[1024];
    char relative[64];
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_str text;
    nmlp_ids ids;
    snprintf(relative, sizeof relative, "data/tokenizers/%s", tokenizer);
    if (!nmlp_test_shared_path(folder, sizeof folder, relative)) skip();
    if (!nmlp_test_shared_path(data, sizeof data, "data/text")) skip();
    load(&t, folder);
    read_text(&text, data, "wikitext2.test.txt");
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, text.data, text.len, NMLP_BOS_NONE, true, &ids, &err), &err);
    assert_int_equal(ids.len, want);
    assert_round_trip(t, &ids, text.data, text.len);
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&text);
    nmlp_tokenizer_destroy(t);
}

static void wikitext_has_the_number_of_llama3_tokens(void **state) {
    (void)state;
    check_whole_text("llama3", 289076);
}
static void wikitext_has_the_number_of_qwen3_tokens(void **state) {
    (void)state;
    check_whole_text("qwen3", 299078);
}
static void wikitext_has_the_number_of_gpt2_tokens(void **state) {
    (void)state;
    check_whole_text("gpt2", 286221);
}

static void assert_chat(const char *tokenizer, const nmlp_chat_message *messages, size_t n, const int32_t *want,
                        size_t n_want) {
    char folder[1024];
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_ids ids;
    if (!nmlp_test_shared_path(folder, sizeof folder, tokenizer)) skip();
    load(&t, folder);
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_chat_encode(t, messages, n, &ids, &err), &err);
    assert_int_equal(ids.len, n_want);
    assert_memory_equal(ids.data, want, n_want * sizeof *want);
    nmlp_ids_fini(&ids);
    nmlp_tokenizer_destroy(t);
}

/* Ids as model cards print them: user 882, assistant 78191, \n\n 271, Hello 9906, "!" 0. */
static void llama3_chat_is_the_published_sequence(void **state) {
    (void)state;
    const nmlp_chat_message messages[] = {{"user", "Hello!"}};
    const int32_t want[] = {128000, 128006, 882, 128007, 271, 9906, 0, 128009, 128006, 78191, 128007, 271};
    assert_chat("data/tokenizers/llama3", messages, 1, want, sizeof want / sizeof want[0]);
}

static void qwen3_chat_is_the_published_sequence(void **state) {
    (void)state;
    const nmlp_chat_message messages[] = {{"user", "Hello!"}};
    const int32_t want[] = {151644, 872, 198, 9707, 0, 151645, 198, 151644, 77091, 198};
    assert_chat("data/tokenizers/qwen3", messages, 1, want, sizeof want / sizeof want[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_gives_published_ids),
        cmocka_unit_test(qwen3_gives_published_ids),
        cmocka_unit_test(gpt2_gives_published_ids),
        cmocka_unit_test(tiny_gives_ids_of_hugging_face),
        cmocka_unit_test(small_gives_ids_of_hugging_face),
        cmocka_unit_test(wikitext_has_the_number_of_llama3_tokens),
        cmocka_unit_test(wikitext_has_the_number_of_qwen3_tokens),
        cmocka_unit_test(wikitext_has_the_number_of_gpt2_tokens),
        cmocka_unit_test(llama3_chat_is_the_published_sequence),
        cmocka_unit_test(qwen3_chat_is_the_published_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
