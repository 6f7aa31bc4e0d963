/* What a tokenizer.json may not hold: each is refused, and the message names the part. */
#include "lib/testing.h"

#include "lib/tokenizers.h"
#include "text/tokenizer.h"

static void assert_refused(const nmlp_test_tokenizer_spec *spec, nmlp_status code, const char *part,
                           const char *found) {
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_str json;
    nmlp_str_init(&json);
    nmlp_test_tokenizer_json(&json, spec);
    nmlp_status st = nmlp_tokenizer_parse(&t, json.data, json.len, "made.json", &err);
    nmlp_assert_fails(st, &err, code, "made.json", part, found, NULL);
    assert_null(t);
    nmlp_str_fini(&json);
}

static void assert_text_refused(const char *json, nmlp_status code, const char *part) {
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_status st = nmlp_tokenizer_parse(&t, json, strlen(json), "made.json", &err);
    nmlp_assert_fails(st, &err, code, "made.json", part, NULL);
    assert_null(t);
}

static void unknown_model_is_refused(void **state) {
    (void)state;
    assert_text_refused("{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}", NMLP_E_UNSUPPORTED,
                        "model \"WordPiece\"");
    assert_text_refused("{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", NMLP_E_FORMAT, "model.vocab");
    assert_text_refused("{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\"]]}}", NMLP_E_FORMAT, "entry 0");
    assert_text_refused("{\"model\": {\"type\": \"Unigram\", \"unk_id\": 1, \"vocab\": [[\"a\", 0]]}}", NMLP_E_FORMAT,
                        "unk_id");
    assert_text_refused("{\"model\": {\"vocab\": {}}}", NMLP_E_UNSUPPORTED, "supported: BPE");
    assert_text_refused("{}", NMLP_E_MISSING, "\"model\"");
    assert_text_refused("[]", NMLP_E_FORMAT, "object");
    assert_text_refused("{", NMLP_E_FORMAT, "line 1");
    assert_text_refused("{\"model\": {\"type\": \"BPE\", \"merges\": []}}", NMLP_E_MISSING, "\"vocab\"");
    assert_text_refused("{\"model\": {\"type\": \"BPE\", \"vocab\": {}}}", NMLP_E_FORMAT, "model.merges");
}

static void unknown_model_options_are_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.model_options = "\"dropout\": 0.1"}, NMLP_E_UNSUPPORTED, "dropout", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.model_options = "\"continuing_subword_prefix\": \"##\""},
                   NMLP_E_UNSUPPORTED, "continuing_subword_prefix", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.model_options = "\"end_of_word_suffix\": \"</w>\""}, NMLP_E_UNSUPPORTED,
                   "end_of_word_suffix", "");
    assert_text_refused("{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0}, \"merges\": []},"
                        "\"pre_tokenizer\": {\"type\": \"ByteLevel\"}}",
                        NMLP_E_UNSUPPORTED, "unk_token");
    assert_text_refused("{\"model\": {\"type\": \"BPE\", \"unk_token\": \"!\", \"vocab\": {\"?\": 0}, \"merges\": []}}",
                        NMLP_E_FORMAT, "unk_token");
}

static void unknown_normalizer_is_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.normalizer = "{\"type\": \"BertNormalizer\"}"}, NMLP_E_UNSUPPORTED,
                   "normalizer \"BertNormalizer\"", "supported: NFC");
    assert_refused(&(nmlp_test_tokenizer_spec){.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": "
                                                             "\"NFC\"}, {\"type\": \"StripAccents\"}]}"},
                   NMLP_E_UNSUPPORTED, "normalizer \"StripAccents\"", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.normalizer = "{\"type\": \"Precompiled\", \"precompiled_charsmap\": "
                                                             "\"/////w==\"}"},
                   NMLP_E_FORMAT, "normalizer", "charsmap");
    assert_refused(&(nmlp_test_tokenizer_spec){.normalizer = "{\"type\": \"Sequence\"}"}, NMLP_E_FORMAT, "normalizers",
                   "");
    assert_refused(&(nmlp_test_tokenizer_spec){.normalizer = "{}"}, NMLP_E_UNSUPPORTED, "normalizer has no type", "");
}

#define SPLIT(pattern, behavior)                                                                                       \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": " pattern                         \
    ", \"behavior\": " behavior "}, {\"type\": \"ByteLevel\"}]}"

static void unknown_pre_tokenizer_is_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.pre_tokenizer = "{\"type\": \"UnicodeScripts\"}"}, NMLP_E_UNSUPPORTED,
                   "pre_tokenizer \"UnicodeScripts\"", "supported: ByteLevel, Split, Digits");
    assert_refused(&(nmlp_test_tokenizer_spec){.pre_tokenizer = "{\"type\": \"Metaspace\"}"}, NMLP_E_MISSING,
                   "replacement", "");
    assert_refused(
        &(nmlp_test_tokenizer_spec){.pre_tokenizer = SPLIT("{\"Regex\": \"\\\\p{N}{1,3}+\"}", "\"Isolated\"")},
        NMLP_E_UNSUPPORTED, "{n,m}+", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.pre_tokenizer = SPLIT("{\"Regex\": \"[a-z&&[^x]]\"}", "\"Isolated\"")},
                   NMLP_E_UNSUPPORTED, "&&", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.pre_tokenizer =
                                                   "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                                                   "\"ByteLevel\"}, {\"type\": \"ByteLevel\"}]}"},
                   NMLP_E_UNSUPPORTED, "after ByteLevel", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.pre_tokenizer = SPLIT("{\"Regex\": \"a\"}", "\"Swallowed\"")},
                   NMLP_E_UNSUPPORTED, "behavior \"Swallowed\"", "Isolated, Removed");
    assert_refused(&(nmlp_test_tokenizer_spec){.pre_tokenizer = SPLIT("\"a\"", "\"Isolated\"")}, NMLP_E_FORMAT,
                   "pattern", "Regex");
    assert_refused(&(nmlp_test_tokenizer_spec){.pre_tokenizer = SPLIT("{\"Regex\": \"(\"}", "\"Isolated\"")},
                   NMLP_E_FORMAT, "pre_tokenizer", "does not compile");
}

#define TEMPLATE(single, ids)                                                                                          \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single "], \"special_tokens\": {\"B\": {\"ids\": " ids "}}}"
#define TOKEN_B "{\"SpecialToken\": {\"id\": \"B\"}}"
#define TEXT_A "{\"Sequence\": {\"id\": \"A\"}}"

static void unknown_post_processor_is_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = "{\"type\": \"Stranger\"}"}, NMLP_E_UNSUPPORTED,
                   "post_processor \"Stranger\"", "TemplateProcessing");
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = "{\"type\": \"RobertaProcessing\"}"}, NMLP_E_FORMAT,
                   "cls", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = TEMPLATE(TEXT_A ", " TEXT_A, "[1]")},
                   NMLP_E_UNSUPPORTED, "twice", "A");
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = TEMPLATE(TOKEN_B, "[1]")}, NMLP_E_FORMAT, "Sequence",
                   "");
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = TEMPLATE("{\"Else\": 1}", "[1]")}, NMLP_E_FORMAT,
                   "single", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = TEMPLATE(TOKEN_B ", " TEXT_A, "[]")}, NMLP_E_FORMAT,
                   "no ids", "B");
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = TEMPLATE(TOKEN_B ", " TEXT_A, "[999]")}, NMLP_E_FORMAT,
                   "999", "not in the vocabulary");
    assert_refused(&(nmlp_test_tokenizer_spec){.post_processor = TEMPLATE(TOKEN_B ", " TEXT_A, "[-1]")}, NMLP_E_FORMAT,
                   "token ids", "");
}

static void unknown_decoder_is_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.decoder = "{\"type\": \"WordPiece\"}"}, NMLP_E_UNSUPPORTED,
                   "decoder \"WordPiece\"", "supported: ByteLevel");
    assert_refused(&(nmlp_test_tokenizer_spec){.decoder = "{\"type\": \"CTC\"}", .pre_tokenizer = "null"},
                   NMLP_E_UNSUPPORTED, "decoder \"CTC\"", "Metaspace");
}

static void ids_given_twice_are_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.vocab = "\"ab\": 97"}, NMLP_E_FORMAT, "id 97", "\"ab\"");
    assert_refused(&(nmlp_test_tokenizer_spec){.vocab = "\"a\": 256"}, NMLP_E_FORMAT, "twice", "\"a\"");
    assert_refused(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"id\": 97, \"content\": \"[X]\"}"}, NMLP_E_FORMAT,
                   "id 97", "[X]");
    assert_refused(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"id\": 300, \"content\": \"a\"}"}, NMLP_E_FORMAT,
                   "is 97 in the vocabulary", "300");
}

static void ids_out_of_bounds_are_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.vocab = "\"ab\": -1"}, NMLP_E_FORMAT, "\"ab\"", "id from 0");
    assert_refused(&(nmlp_test_tokenizer_spec){.vocab = "\"ab\": 1e9"}, NMLP_E_FORMAT, "\"ab\"", "id from 0");
    assert_refused(&(nmlp_test_tokenizer_spec){.vocab = "\"ab\": 1.5"}, NMLP_E_FORMAT, "\"ab\"", "id from 0");
    assert_refused(&(nmlp_test_tokenizer_spec){.vocab = "\"ab\": \"x\""}, NMLP_E_FORMAT, "\"ab\"", "id from 0");
    assert_refused(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"id\": -5, \"content\": \"x\"}"}, NMLP_E_FORMAT, "id",
                   "");
    assert_refused(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"content\": \"x\"}"}, NMLP_E_MISSING, "id", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"id\": 300}"}, NMLP_E_MISSING, "content", "");
    assert_refused(&(nmlp_test_tokenizer_spec){.added_tokens = "7"}, NMLP_E_MISSING, "id", "");
}

static void merges_of_absent_tokens_are_refused(void **state) {
    (void)state;
    assert_refused(&(nmlp_test_tokenizer_spec){.vocab = "\"ab\": 256", .merges = "\"a b\", \"ab xy\""}, NMLP_E_FORMAT,
                   "merge 1", "\"xy\"");
    assert_refused(&(nmlp_test_tokenizer_spec){.merges = "[\"a\", \"b\"]"}, NMLP_E_FORMAT, "merge 0", "\"ab\"");
    assert_refused(&(nmlp_test_tokenizer_spec){.merges = "[\"qq\", \"b\"]"}, NMLP_E_FORMAT, "merge 0", "\"qq\"");
}

static void malformed_merges_are_refused(void **state) {
    (void)state;
    static const char *const merges[] = {"\"ab\"", "\"a b c\"", "[\"a\"]", "[\"a\", \"b\", \"c\"]",
                                         "[1, 2]", "3",         "[]"};
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++)
        assert_refused(&(nmlp_test_tokenizer_spec){.merges = merges[i]}, NMLP_E_FORMAT, "merge 0", "LEFT");
}

static void missing_files_are_named(void **state) {
    (void)state;
    char dir[64];
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_test_mkdtemp(dir, sizeof dir);
    nmlp_assert_fails(nmlp_tokenizer_load(&t, dir, &err), &err, NMLP_E_MISSING, dir, "tokenizer.json", NULL);
    nmlp_assert_fails(nmlp_tokenizer_load(&t, "/no/such/place", &err), &err, NMLP_E_MISSING, "/no/such/place",
                      "not found", NULL);
    nmlp_test_rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_model_is_refused),
        cmocka_unit_test(unknown_model_options_are_refused),
        cmocka_unit_test(unknown_normalizer_is_refused),
        cmocka_unit_test(unknown_pre_tokenizer_is_refused),
        cmocka_unit_test(unknown_post_processor_is_refused),
        cmocka_unit_test(unknown_decoder_is_refused),
        cmocka_unit_test(ids_given_twice_are_refused),
        cmocka_unit_test(ids_out_of_bounds_are_refused),
        cmocka_unit_test(merges_of_absent_tokens_are_refused),
        cmocka_unit_test(malformed_merges_are_refused),
        cmocka_unit_test(missing_files_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
