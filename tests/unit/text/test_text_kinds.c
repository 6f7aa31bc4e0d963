/* Every kind of tokenizer against vectors of other libraries: tests/data/tokenizers holds small tokenizers, made by
 * tests/python/tokenizer_compare.py, and what Hugging Face's `tokenizers`, sentencepiece and tiktoken say about texts.
 */
#include "lib/testing.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/str.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

static size_t unhex(char *out, const char *hex, size_t hex_len) {
    for (size_t i = 0; i < hex_len / 2; i++) {
        const char digits[3] = {hex[2 * i], hex[2 * i + 1], 0};
        out[i] = (char)strtol(digits, NULL, 16);
    }
    return hex_len / 2;
}

static void assert_ids(const nmlp_ids *ids, const char *expected, size_t line) {
    size_t n = 0;
    for (const char *at = expected; *at && *at != '\t'; n++) {
        char *end;
        long id = strtol(at, &end, 10);
        if (n >= ids->len || ids->data[n] != id)
            fail_msg("line %zu: id %zu is %d, expected %ld", line, n, n < ids->len ? ids->data[n] : -1, id);
        at = *end == ' ' ? end + 1 : end;
    }
    if (n != ids->len) fail_msg("line %zu: %zu ids, expected %zu", line, ids->len, n);
}

static void check_line(const nmlp_tokenizer *t, nmlp_bos bos, const char *line, size_t number) {
    nmlp_err err = {0};
    nmlp_ids ids;
    nmlp_str text;
    nmlp_ids_init(&ids);
    nmlp_str_init(&text);
    const char *second = strchr(line, '\t') + 1;
    const char *third = strchr(second, '\t') + 1;
    char *input = malloc(strlen(line) + 1);
    char *decoded = malloc(strlen(line) + 1);
    size_t len = unhex(input, line, (size_t)(second - 1 - line));
    nmlp_assert_ok(nmlp_tokenizer_encode(t, input, len, bos, true, &ids, &err), &err);
    assert_ids(&ids, second, number);
    nmlp_assert_ok(nmlp_tokenizer_decode(t, ids.data, ids.len, false, &text, &err), &err);
    bool same = third[0] == '=';
    size_t expected_len = same ? len : unhex(decoded, third, strlen(third));
    if (third[0] != '-' &&
        (text.len != expected_len || memcmp(nmlp_str_text(&text), same ? input : decoded, expected_len) != 0))
        fail_msg("line %zu decodes to \"%s\"", number, nmlp_str_text(&text));
    free(input);
    free(decoded);
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&text);
}

static void check_kind(const char *name, const char *extension, nmlp_bos bos) {
    char path[1024];
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_str vectors;
    nmlp_str_init(&vectors);
    snprintf(path, sizeof path, "%s/tests/data/tokenizers/%s%s", NMLP_TEST_ROOT, name, extension);
    nmlp_assert_ok(nmlp_tokenizer_load(&t, path, &err), &err);
    snprintf(path, sizeof path, "%s/tests/data/tokenizers/%s.vectors", NMLP_TEST_ROOT, name);
    nmlp_assert_ok(nmlp_file_read(&vectors, path, 1 << 24, &err), &err);
    size_t number = 0;
    for (char *line = vectors.data; *line;) {
        char *end = strchr(line, '\n');
        *end = 0;
        check_line(t, bos, line, ++number);
        line = end + 1;
    }
    assert_true(number > 100);
    nmlp_str_fini(&vectors);
    nmlp_tokenizer_destroy(t);
}

#define JSON_KIND(kind)                                                                                                \
    static void kind(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        check_kind(#kind, ".json", NMLP_BOS_TEMPLATE);                                                                 \
    }

JSON_KIND(llama_legacy)
JSON_KIND(llama_metaspace)
JSON_KIND(metaspace_always)
JSON_KIND(gemma_style)
JSON_KIND(bpe_unknown)
JSON_KIND(bpe_unknown_fused)
JSON_KIND(unigram)
JSON_KIND(unigram_precompiled)
JSON_KIND(byte_level)
JSON_KIND(byte_level_hex)

static void sentencepiece_bpe(void **state) {
    (void)state;
    check_kind("spm_bpe", ".model", NMLP_BOS_NONE);
}

static void sentencepiece_unigram(void **state) {
    (void)state;
    check_kind("spm_unigram", ".model", NMLP_BOS_NONE);
}

static void tiktoken(void **state) {
    (void)state;
    check_kind("tiktoken", ".tiktoken", NMLP_BOS_NONE);
}

/* A folder with tokenizer.json of `kind` and the given tokenizer_config.json. */
static nmlp_tokenizer *load_with_config(const char *kind, const char *config, const char *added) {
    char dir[64], path[1024], from[1024];
    nmlp_err err = {0};
    nmlp_str json;
    nmlp_tokenizer *t;
    nmlp_str_init(&json);
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(from, sizeof from, "%s/tests/data/tokenizers/%s.json", NMLP_TEST_ROOT, kind);
    nmlp_assert_ok(nmlp_file_read(&json, from, 1 << 24, &err), &err);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    nmlp_test_write_file(path, json.data, json.len);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    nmlp_test_write_file(path, config, strlen(config));
    snprintf(path, sizeof path, "%s/added_tokens.json", dir);
    if (added) nmlp_test_write_file(path, added, strlen(added));
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    nmlp_str_fini(&json);
    nmlp_test_rmdir(dir);
    return t;
}

static size_t count_ids(const nmlp_tokenizer *t, const char *text, nmlp_bos bos, bool parse_special, int32_t *first,
                        int32_t *last) {
    nmlp_err err = {0};
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, text, strlen(text), bos, parse_special, &ids, &err), &err);
    size_t n = ids.len;
    *first = n ? ids.data[0] : -1;
    *last = n ? ids.data[n - 1] : -1;
    nmlp_ids_fini(&ids);
    return n;
}

static void tokens_listed_only_in_the_config_are_tokens(void **state) {
    (void)state;
    int32_t first, last;
    nmlp_tokenizer *t = load_with_config(
        "llama_legacy", "{\"added_tokens_decoder\": {\"900\": {\"content\": \"<|im_end|>\", \"special\": true}}}",
        "{\"<extra>\": 901}");
    assert_int_equal(nmlp_tokenizer_find(t, "<|im_end|>"), 900);
    assert_int_equal(nmlp_tokenizer_vocab_size(t), 902);
    assert_int_equal(count_ids(t, "<|im_end|>", NMLP_BOS_NONE, true, &first, &last), 1);
    assert_int_equal(first, 900);
    assert_true(count_ids(t, "<|im_end|>", NMLP_BOS_NONE, false, &first, &last) > 1);
    assert_int_equal(count_ids(t, "<extra>", NMLP_BOS_NONE, false, &first, &last), 1);
    assert_int_equal(first, 901);
    nmlp_tokenizer_destroy(t);
}

/* A BOS that only the config names is put in front when it is asked for, and refused where there is none. */
static void a_begin_token_is_put_in_front_or_refused(void **state) {
    (void)state;
    int32_t first, last;
    nmlp_err err = {0};
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_tokenizer *t = load_with_config("bpe_unknown_fused", "{\"bos_token\": {\"content\": \"<s>\"}}", NULL);
    int64_t bos = nmlp_tokenizer_find(t, "<s>");
    assert_int_equal(nmlp_tokenizer_bos_id(t), bos);
    size_t n = count_ids(t, "hello", NMLP_BOS_TEMPLATE, true, &first, &last);
    assert_int_not_equal(first, bos);
    assert_int_equal(count_ids(t, "hello", NMLP_BOS_ALWAYS, true, &first, &last), n + 1);
    assert_int_equal(first, bos);
    nmlp_tokenizer_destroy(t);
    t = load_with_config("bpe_unknown_fused", "{\"bos_token\": null}", NULL);
    nmlp_assert_fails(nmlp_tokenizer_encode(t, "a", 1, NMLP_BOS_ALWAYS, true, &ids, &err), &err, NMLP_E_ARG, "bos",
                      NULL);
    assert_int_equal(ids.len, 0);
    nmlp_tokenizer_destroy(t);
    nmlp_ids_fini(&ids);
}

/* tokenizer.json's template stands, as in `transformers` 5; tokenizer.model has none, so the config decides. */
static void the_config_decides_for_a_model_file_only(void **state) {
    (void)state;
    static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_bos_token\": false, "
                                 "\"add_eos_token\": true}";
    char dir[64], path[1024];
    int32_t first, last;
    nmlp_err err = {0};
    nmlp_str data;
    nmlp_tokenizer *t = load_with_config("llama_legacy", config, NULL);
    (void)count_ids(t, "hello", NMLP_BOS_TEMPLATE, true, &first, &last);
    assert_int_equal(first, nmlp_tokenizer_find(t, "<s>"));
    assert_int_not_equal(last, nmlp_tokenizer_find(t, "</s>"));
    nmlp_tokenizer_destroy(t);
    nmlp_str_init(&data);
    snprintf(path, sizeof path, "%s/tests/data/tokenizers/spm_bpe.model", NMLP_TEST_ROOT);
    nmlp_assert_ok(nmlp_file_read(&data, path, 1 << 24, &err), &err);
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    nmlp_test_write_file(path, data.data, data.len);
    char found[256];
    nmlp_assert_ok(nmlp_tokenizer_path(found, sizeof found, dir, &err), &err);
    assert_string_equal(found, path);
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    (void)count_ids(t, "hello", NMLP_BOS_TEMPLATE, true, &first, &last);
    assert_int_equal(first, nmlp_tokenizer_find(t, "<s>"));
    nmlp_tokenizer_destroy(t);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    nmlp_test_write_file(path, config, strlen(config));
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    (void)count_ids(t, "hello", NMLP_BOS_TEMPLATE, true, &first, &last);
    assert_int_not_equal(first, nmlp_tokenizer_find(t, "<s>"));
    assert_int_equal(last, nmlp_tokenizer_find(t, "</s>"));
    nmlp_tokenizer_destroy(t);
    nmlp_str_fini(&data);
    nmlp_test_rmdir(dir);
}

/* Several segmentations have the same score; ids are those of Hugging Face's `tokenizers` 0.23.3. */
static void equal_scores_are_cut_as_the_other_library_does(void **state) {
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
        "\"decoder\":null,\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":false,\"vocab\":[[\"<unk>\",0]"
        ","
        "[\"a\",-2],[\"b\",-2],[\"ab\",-4],[\"ba\",-4],[\"aba\",-6],[\"bab\",-6],[\"abab\",-8],[\"aa\",-3.5],"
        "[\"bb\",-4]]}}";
    static const struct {
        const char *text, *ids;
    } cases[] = {{"ab", "3"},      {"ba", "4"},     {"aba", "5"},        {"bab", "6"},
                 {"abab", "7"},    {"baba", "2 5"}, {"ababab", "3 7"},   {"bbab", "2 6"},
                 {"aabab", "8 6"}, {"abba", "3 4"}, {"babaab", "6 8 2"}, {"abababababab", "7 7 7"}};
    nmlp_tokenizer *t;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_tokenizer_parse(&t, json, strlen(json), "test", &err), &err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_ids ids;
        nmlp_ids_init(&ids);
        nmlp_assert_ok(nmlp_tokenizer_encode(t, cases[i].text, strlen(cases[i].text), NMLP_BOS_NONE, false, &ids, &err),
                       &err);
        assert_ids(&ids, cases[i].ids, i + 1);
        nmlp_ids_fini(&ids);
    }
    nmlp_tokenizer_destroy(t);
}

/* A pattern of the decoder that matches nothing adds its text to tokens, not to ids that no token has. */
static void holes_decode_to_nothing(void **state) {
    static const char json[] =
        "{\"added_tokens\":[{\"id\":5,\"content\":\"[S]\",\"special\":true}],"
        "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
        "\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"^\"},\"content\":\"x\"},"
        "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":false,\"vocab\":[[\"<unk>\",0],[\"a\",-2]]}}";
    static const int32_t ids[] = {1, 3, 1};
    nmlp_tokenizer *t;
    nmlp_err err;
    nmlp_str out;
    (void)state;
    nmlp_str_init(&out);
    nmlp_assert_ok(nmlp_tokenizer_parse(&t, json, strlen(json), "test", &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_decode(t, ids, 3, false, &out, &err), &err);
    assert_string_equal(nmlp_str_text(&out), "xaxa");
    nmlp_str_fini(&out);
    nmlp_tokenizer_destroy(t);
}

/* Files whose steps blow up a text, or the vocabulary, are refused before they take the memory. */
static void growth_is_bounded(void **state) {
    static const char model[] =
        "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"byte_fallback\":false,\"vocab\":[[\"<unk>\",0]";
    enum { STEPS = 8, ENTRIES = 5000, CONTENT = 60000 };
    nmlp_tokenizer *t;
    nmlp_err err;
    nmlp_str json;
    nmlp_ids ids;
    (void)state;
    nmlp_str_init(&json);
    nmlp_ids_init(&ids);
    nmlp_str_puts(&json, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < STEPS; i++)
        nmlp_str_printf(&json,
                        "%s{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {0,}\"},\"content\":\"VVVVVVVVVVVVVVVV\"}",
                        i ? "," : "");
    nmlp_str_printf(&json, "]},\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,%s]}}", model);
    nmlp_assert_ok(nmlp_tokenizer_parse(&t, nmlp_str_text(&json), json.len, "test", &err), &err);
    nmlp_assert_fails(nmlp_tokenizer_encode(t, "hi", 2, NMLP_BOS_NONE, false, &ids, &err), &err, NMLP_E_LIMIT,
                      "normalizer makes more than 65664 bytes of 2", NULL);
    assert_int_equal(ids.len, 0);
    nmlp_tokenizer_destroy(t);

    nmlp_str_clear(&json);
    nmlp_str_puts(&json, "{\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":"
                         "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"^\"},\"content\":\"");
    for (int i = 0; i < CONTENT; i++) nmlp_str_putc(&json, 'x');
    nmlp_str_printf(&json, "\"},%s", model);
    for (int i = 1; i < ENTRIES; i++) nmlp_str_printf(&json, ",[\"t%d\",-1]", i);
    nmlp_str_puts(&json, "]}}");
    nmlp_assert_fails(nmlp_tokenizer_parse(&t, nmlp_str_text(&json), json.len, "test", &err), &err, NMLP_E_LIMIT,
                      "test: the decoder makes more than 268435456 bytes", NULL);
    nmlp_str_fini(&json);
    nmlp_ids_fini(&ids);
}

/* Letter case of characters newer than the system's tables, and none of the decompositions that are newer than those of
 * the library that `tokenizers` uses. */
static void forms_are_those_of_the_other_library(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_str out;
    nmlp_str_init(&out);
    nmlp_unicode_append_lowercase(&out, "\xF0\x90\xB5\x90\xEA\x9F\x8C\xC4\xB0", 9); /* U+10D50, U+A7CC, U+0130 */
    assert_string_equal(nmlp_str_text(&out), "\xF0\x90\xB5\xB0\xEA\x9F\x8Di\xCC\x87");
    nmlp_str_clear(&out);
    nmlp_assert_ok(nmlp_unicode_append_form(&out, NMLP_UNICODE_NFKC, "\xE3\x8B\xBF\xEF\xAC\x81", 6, &err), &err);
    assert_string_equal(nmlp_str_text(&out), "\xE3\x8B\xBF"
                                             "fi"); /* U+32FF stays, U+FB01 does not */
    nmlp_str_fini(&out);
}

/* Special tokens are recognised around a user's part, and in no part of it. */
static void a_users_part_forms_no_special_token(void **state) {
    (void)state;
    static const char text[] = "<s>hi <s> </s>there</s>";
    static const nmlp_text_span spans[] = {{3, 19}};
    nmlp_err err = {0};
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_tokenizer *t = load_with_config("byte_level", "{}", NULL);
    int64_t begin = nmlp_tokenizer_find(t, "<s>");
    int64_t end = nmlp_tokenizer_find(t, "</s>");
    nmlp_assert_ok(nmlp_tokenizer_encode_spans(t, text, strlen(text), spans, 1, &ids, &err), &err);
    size_t n_special = 0;
    for (size_t i = 0; i < ids.len; i++) n_special += ids.data[i] == begin || ids.data[i] == end;
    assert_int_equal(n_special, 2);
    assert_int_equal(ids.data[0], begin);
    assert_int_equal(ids.data[ids.len - 1], end);
    ids.len = 0;
    nmlp_assert_ok(nmlp_tokenizer_encode_spans(t, text, strlen(text), NULL, 0, &ids, &err), &err);
    n_special = 0;
    for (size_t i = 0; i < ids.len; i++) n_special += ids.data[i] == begin || ids.data[i] == end;
    assert_int_equal(n_special, 4);
    nmlp_tokenizer_destroy(t);
    nmlp_ids_fini(&ids);
}

/* Every prefix of a sentencepiece model is read or refused, never overrun. */
static void damaged_models_are_refused(void **state) {
    (void)state;
    char path[1024];
    nmlp_err err = {0};
    nmlp_str data;
    nmlp_tokenizer *t;
    nmlp_str_init(&data);
    snprintf(path, sizeof path, "%s/tests/data/tokenizers/spm_bpe.model", NMLP_TEST_ROOT);
    nmlp_assert_ok(nmlp_file_read(&data, path, 1 << 24, &err), &err);
    size_t n_refused = 0;
    for (size_t len = 0; len < data.len; len += 37) {
        char *copy = malloc(len ? len : 1); /* so that tools see a read behind it */
        memcpy(copy, data.data, len);
        if (nmlp_tokenizer_parse_model(&t, copy, len, "cut.model", &err) != NMLP_OK) n_refused++;
        nmlp_tokenizer_destroy(t);
        free(copy);
    }
    assert_true(n_refused > 100);
    nmlp_str_fini(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_legacy),
        cmocka_unit_test(llama_metaspace),
        cmocka_unit_test(metaspace_always),
        cmocka_unit_test(gemma_style),
        cmocka_unit_test(bpe_unknown),
        cmocka_unit_test(bpe_unknown_fused),
        cmocka_unit_test(unigram),
        cmocka_unit_test(unigram_precompiled),
        cmocka_unit_test(byte_level),
        cmocka_unit_test(byte_level_hex),
        cmocka_unit_test(sentencepiece_bpe),
        cmocka_unit_test(sentencepiece_unigram),
        cmocka_unit_test(tiktoken),
        cmocka_unit_test(tokens_listed_only_in_the_config_are_tokens),
        cmocka_unit_test(a_begin_token_is_put_in_front_or_refused),
        cmocka_unit_test(the_config_decides_for_a_model_file_only),
        cmocka_unit_test(equal_scores_are_cut_as_the_other_library_does),
        cmocka_unit_test(holes_decode_to_nothing),
        cmocka_unit_test(growth_is_bounded),
        cmocka_unit_test(forms_are_those_of_the_other_library),
        cmocka_unit_test(a_users_part_forms_no_special_token),
        cmocka_unit_test(damaged_models_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
