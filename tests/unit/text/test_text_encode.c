/* Encoding with hand-made tokenizers whose ids can be derived on paper: id b is byte b, 256 and up is what the test
 * adds. */
#include "lib/testing.h"

#include <time.h>

#include "base/pool.h"
#include "lib/tokenizers.h"
#include "text/tokenizer.h"

/* Of this process: neighbours do not count. */
static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static nmlp_tokenizer *make(const nmlp_test_tokenizer_spec *spec) {
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_str json;
    nmlp_str_init(&json);
    nmlp_test_tokenizer_json(&json, spec);
    nmlp_assert_ok(nmlp_tokenizer_parse(&t, json.data, json.len, "made.json", &err), &err);
    nmlp_str_fini(&json);
    return t;
}

/* `want` as text: "b" is the byte b, <300> the id 300. */
static void assert_ids(const nmlp_ids *ids, const char *text, const char *want) {
    size_t n = 0;
    for (const char *c = want; *c; n++) {
        int id = (unsigned char)*c;
        int used = 1;
        if (*c == '<' && sscanf(c, "<%d>%n", &id, &used) != 1) used = 1;
        if (n >= ids->len || ids->data[n] != id)
            fail_msg("\"%s\", token %zu: %d, expected %d", text, n, n < ids->len ? (int)ids->data[n] : -1, id);
        c += used;
    }
    if (ids->len != n) fail_msg("\"%s\": %zu tokens, expected %zu", text, ids->len, n);
}

static void check_with(const nmlp_tokenizer *t, const char *text, bool add_bos, bool parse_special, const char *want) {
    nmlp_err err = {0};
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, text, strlen(text), add_bos ? NMLP_BOS_TEMPLATE : NMLP_BOS_NONE,
                                         parse_special, &ids, &err),
                   &err);
    assert_ids(&ids, text, want);
    nmlp_ids_fini(&ids);
}

static void check(const nmlp_tokenizer *t, const char *text, const char *want) {
    check_with(t, text, false, true, want);
}

static void check_spec(const nmlp_test_tokenizer_spec *spec, const char *text, const char *want) {
    nmlp_tokenizer *t = make(spec);
    check(t, text, want);
    nmlp_tokenizer_destroy(t);
}

#define ABC "\"ab\": 256, \"bc\": 257, \"abc\": 258"

static void merges_apply_lowest_rank_first(void **state) {
    (void)state;
    check_spec(&(nmlp_test_tokenizer_spec){.vocab = ABC, .merges = "\"b c\", \"a b\""}, "abcab", "a<257><256>");
    check_spec(&(nmlp_test_tokenizer_spec){.vocab = ABC, .merges = "\"a b\", \"b c\""}, "abcab", "<256>c<256>");
    check_spec(&(nmlp_test_tokenizer_spec){.vocab = ABC, .merges = "\"a b\", \"ab c\""}, "abcab", "<258><256>");
}

static void merges_as_pairs_equal_merges_as_strings(void **state) {
    (void)state;
    check_spec(&(nmlp_test_tokenizer_spec){.vocab = ABC, .merges = "[\"a\", \"b\"], [\"ab\", \"c\"]"}, "abcab",
               "<258><256>");
    check_spec(&(nmlp_test_tokenizer_spec){.vocab = ABC, .merges = "[\"a\", \"b\"], \"ab c\""}, "abcab", "<258><256>");
}

static void ignore_merges_takes_whole_pieces_from_the_vocabulary(void **state) {
    (void)state;
    nmlp_test_tokenizer_spec spec = {.vocab = ABC, .merges = "\"a b\""};
    check_spec(&spec, "abc abcd", "<256>c <256>cd");
    spec.model_options = "\"ignore_merges\": true";
    check_spec(&spec, "abc abcd", "<258> <256>cd");
}

static void gpt2_pattern_keeps_words_apart(void **state) {
    (void)state;
    /* "c a" would join across the words if they were not cut; "Ġa" joins inside one. */
    check_spec(&(nmlp_test_tokenizer_spec){.vocab = "\"cĠ\": 256, \"Ġa\": 257", .merges = "\"c Ġ\", \"Ġ a\""}, "c a",
               "c<257>");
    check_spec(&(nmlp_test_tokenizer_spec){.vocab = "\"ĠĠ\": 256", .merges = "\"Ġ Ġ\""}, "a   b", "a<256> b");
}

static void prefix_space_is_put_before_every_piece_without_one(void **state) {
    (void)state;
    nmlp_test_tokenizer_spec spec = {.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"};
    check_spec(&spec, "ab", " ab");
    check_spec(&spec, " ab", " ab");
    check_spec(&spec, "", "");
    spec.added_tokens = "{\"id\": 300, \"content\": \"[S]\", \"special\": true}";
    check_spec(&spec, "a[S]b", " a<300> b");
}

static void split_behaviors_are_those_of_hugging_face(void **state) {
    (void)state;
    /* Pieces show by the spaces that ByteLevel puts before them; expectations are the examples of the documentation of
     * SplitDelimiterBehavior, "the-final--countdown" cut at "-". */
    static const struct {
        const char *behavior, *invert, *want;
    } cases[] = {
        {"Isolated", "false", " the - final - - countdown"},
        {"Removed", "false", " the final countdown"},
        {"MergedWithPrevious", "false", " the- final- - countdown"},
        {"MergedWithNext", "false", " the -final - -countdown"},
        {"Contiguous", "false", " the - final -- countdown"},
        {"Removed", "true", " - - -"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int literal = 0; literal < 2; literal++) {
            char pre[400];
            snprintf(pre, sizeof pre,
                     "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"%s\": \"-\"}, "
                     "\"behavior\": \"%s\", \"invert\": %s}, "
                     "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": false}]}",
                     literal ? "String" : "Regex", cases[i].behavior, cases[i].invert);
            check_spec(&(nmlp_test_tokenizer_spec){.pre_tokenizer = pre}, "the-final--countdown", cases[i].want);
        }
    }
}

static void mongolian_vowel_separator_is_no_space(void **state) {
    (void)state;
    nmlp_test_tokenizer_spec spec = {
        .pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
                         "\"\\\\s\"}, \"behavior\": \"Removed\", \"invert\": false}, {\"type\": \"ByteLevel\", "
                         "\"add_prefix_space\": false, \"use_regex\": false}]}"};
    check_spec(&spec,
               "a b\xE3\x80\x80"
               "c\xC2\x85"
               "d",
               "abcd");
    check_spec(&spec,
               "a\xE1\xA0\x8E"
               "b",
               "a\xE1\xA0\x8E"
               "b");
}

static void nfc_composes_before_anything_else(void **state) {
    (void)state;
    nmlp_test_tokenizer_spec spec = {.normalizer = "{\"type\": \"NFC\"}"};
    nmlp_tokenizer *t = make(&spec);
    check(t, "e\xCC\x81", "\xC3\xA9");                                /* e + acute -> é */
    check(t, "xe\xCC\x81y", "x\xC3\xA9y");                            /* in the middle */
    check(t, "\xE2\x84\xAB", "\xC3\x85");                             /* angstrom sign -> Å */
    check(t, "a\xCC\x80\xCC\xA3", "\xE1\xBA\xA1\xCC\x80");            /* marks are put in order first */
    check(t, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"); /* jamo -> a syllable */
    check(t, "\xEF\xAC\x81", "\xEF\xAC\x81");                         /* the ligature fi is NFKC's business */
    nmlp_tokenizer_destroy(t);
    spec.normalizer = NULL;
    check_spec(&spec, "e\xCC\x81", "e\xCC\x81");
}

static void special_tokens_count_only_when_asked_for(void **state) {
    (void)state;
    nmlp_tokenizer *t = make(&(nmlp_test_tokenizer_spec){
        .added_tokens = "{\"id\": 300, \"content\": \"[S]\", \"special\": true, \"normalized\": false},"
                        "{\"id\": 301, \"content\": \"[N]\", \"special\": false, \"normalized\": false}"});
    check_with(t, "a[S]b[N]c", false, true, "a<300>b<301>c");
    check_with(t, "a[S]b[N]c", false, false, "a[S]b<301>c");
    assert_true(nmlp_tokenizer_is_special(t, 300));
    assert_false(nmlp_tokenizer_is_special(t, 301));
    assert_false(nmlp_tokenizer_is_special(t, -1) || nmlp_tokenizer_is_special(t, 302));
    nmlp_tokenizer_destroy(t);
}

static void longest_added_token_wins(void **state) {
    (void)state;
    check_spec(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"id\": 300, \"content\": \"[x\"},"
                                                           "{\"id\": 301, \"content\": \"[xyz]\"}"},
               "[xyz][xy][", "<301><300>y][");
}

static void lstrip_and_rstrip_take_white_space_along(void **state) {
    (void)state;
    nmlp_tokenizer *t =
        make(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"id\": 300, \"content\": \"[L]\", \"lstrip\": true},"
                                                         "{\"id\": 301, \"content\": \"[R]\", \"rstrip\": true}"});
    check(t, "a \xC2\xA0[L] b", "a<300> b");
    check(t, "a [R]\n\t b", "a <301>b");
    check(t, "[R]  [L]", "<301><300>"); /* the spaces are taken once */
    check(t, "[L]", "<300>");
    nmlp_tokenizer_destroy(t);
}

static void single_word_stands_alone(void **state) {
    (void)state;
    nmlp_tokenizer *t =
        make(&(nmlp_test_tokenizer_spec){.added_tokens = "{\"id\": 300, \"content\": \"cat\", \"single_word\": true}"});
    check(t, "cat a cat. cats concat cat_", "<300> a <300>. cats concat cat_");
    check(t,
          "\xC3\xA9"
          "cat",
          "\xC3\xA9"
          "cat");
    nmlp_tokenizer_destroy(t);
}

static void normalized_tokens_are_found_in_normalised_text(void **state) {
    (void)state;
    nmlp_tokenizer *t = make(&(nmlp_test_tokenizer_spec){
        .normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}",
        .added_tokens = "{\"id\": 300, \"content\": \"e\\u0301!\", \"normalized\": true},"
                        "{\"id\": 301, \"content\": \"o\\u0301!\", \"normalized\": false}"});
    check(t, "\xC3\xA9!e\xCC\x81!", "<300><300>");
    check(t, "\xC3\xB3!o\xCC\x81!", "\xC3\xB3!<301>");
    nmlp_tokenizer_destroy(t);
}

#define BOS_TOKEN "{\"id\": 300, \"content\": \"[BOS]\", \"special\": true, \"normalized\": false}"
#define BOS_TEMPLATE                                                                                                   \
    "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"[BOS]\", \"type_id\": 0}}, "        \
    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": "                             \
    "{\"[BOS]\": {\"id\": \"[BOS]\", \"ids\": [300], \"tokens\": [\"[BOS]\"]}}}"

static void template_puts_bos_in_front(void **state) {
    (void)state;
    nmlp_tokenizer *t = make(&(nmlp_test_tokenizer_spec){
        .added_tokens = BOS_TOKEN,
        .post_processor = "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, " BOS_TEMPLATE "]}"});
    assert_int_equal(nmlp_tokenizer_bos_id(t), 300);
    check_with(t, "a", true, true, "<300>a");
    check_with(t, "", true, true, "<300>");
    check_with(t, "a", false, true, "a");
    nmlp_tokenizer_destroy(t);
    t = make(&(nmlp_test_tokenizer_spec){.added_tokens = BOS_TOKEN});
    assert_int_equal(nmlp_tokenizer_bos_id(t), -1);
    check_with(t, "a", true, true, "a");
    nmlp_tokenizer_destroy(t);
}

static void find_knows_vocabulary_and_added_tokens(void **state) {
    (void)state;
    nmlp_tokenizer *t = make(&(nmlp_test_tokenizer_spec){.vocab = "\"Ġthe\": 256", .added_tokens = BOS_TOKEN});
    assert_int_equal(nmlp_tokenizer_find(t, "Ġthe"), 256);
    assert_int_equal(nmlp_tokenizer_find(t, " the"), -1);
    assert_int_equal(nmlp_tokenizer_find(t, "[BOS]"), 300);
    assert_int_equal(nmlp_tokenizer_find(t, "A"), 'A');
    assert_int_equal(nmlp_tokenizer_find(t, "nothing"), -1);
    assert_int_equal(nmlp_tokenizer_vocab_size(t), 301);
    nmlp_tokenizer_destroy(t);
}

/* Expected parts as Python's bytes.decode("utf-8", "replace") and Rust's from_utf8_lossy cut them. */
static void malformed_utf8_counts_as_replacement_characters(void **state) {
    (void)state;
#define R "\xEF\xBF\xBD"
    nmlp_tokenizer *t = make(&(nmlp_test_tokenizer_spec){0});
    check(t,
          "a\xFF"
          "b",
          "a" R "b");
    check(t, "\x80\x80", R R);
    check(t,
          "\xE2\x82"
          "A",
          R "A");                          /* one for a character cut short */
    check(t, "\xF0\x9F\x98", R);           /* and at the end */
    check(t, "\xC0\xAF", R R);             /* overlong */
    check(t, "\xED\xA0\x80", R R R);       /* a surrogate */
    check(t, "\xF4\x90\x80\x80", R R R R); /* above U+10FFFF */
    check(t, "\xE2\xE2\x82\xAC", R "\xE2\x82\xAC");
    nmlp_tokenizer_destroy(t);
#undef R
}

static void nul_bytes_are_text(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_ids ids;
    nmlp_tokenizer *t = make(&(nmlp_test_tokenizer_spec){0});
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, "a\0b", 3, NMLP_BOS_NONE, true, &ids, &err), &err);
    assert_int_equal(ids.len, 3);
    assert_int_equal(ids.data[1], 0);
    nmlp_ids_fini(&ids);
    nmlp_tokenizer_destroy(t);
}

static void byte_without_token_is_an_error_and_leaves_the_list_alone(void **state) {
    (void)state;
    static const char json[] = "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}, \"pre_tokenizer\": {\"type\": "
                               "\"ByteLevel\", \"add_prefix_space\": false}}";
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_tokenizer_parse(&t, json, sizeof json - 1, "made.json", &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, "aa", 2, NMLP_BOS_NONE, true, &ids, &err), &err);
    nmlp_assert_fails(nmlp_tokenizer_encode(t, "ab", 2, NMLP_BOS_NONE, true, &ids, &err), &err, NMLP_E_UNSUPPORTED,
                      "0x62", NULL);
    assert_int_equal(ids.len, 2);
    nmlp_ids_fini(&ids);
    nmlp_tokenizer_destroy(t);
}

/* One piece of a megabyte must not cost a megabyte squared. The bound is for a slow machine under a sanitizer, too. */
static void megabyte_of_one_character_takes_no_quadratic_time(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static const char *const units[] = {"a", " ", "\n", "1", "ab", "\xC3\xA9", "a1"};
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_str text;
    nmlp_ids ids;
    nmlp_str_init(&text);
    nmlp_ids_init(&ids);
    nmlp_assert_ok(nmlp_tokenizer_load(&t, NMLP_TEST_ROOT "/models/tiny", &err), &err);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        nmlp_str_clear(&text);
        while (text.len < N) nmlp_str_puts(&text, units[u]);
        ids.len = 0;
        double started = cpu_seconds();
        nmlp_assert_ok(nmlp_tokenizer_encode(t, text.data, text.len, NMLP_BOS_NONE, true, &ids, &err), &err);
        double seconds = cpu_seconds() - started;
        if (seconds > 2) fail_msg("1 MB of \"%s\": %.1f s", units[u], seconds);
        nmlp_str back;
        nmlp_str_init(&back);
        nmlp_assert_ok(nmlp_tokenizer_decode(t, ids.data, ids.len, false, &back, &err), &err);
        assert_int_equal(back.len, text.len);
        assert_memory_equal(back.data, text.data, text.len);
        nmlp_str_fini(&back);
    }
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&text);
    nmlp_tokenizer_destroy(t);
}

/* Marks below and above in turn have to be sorted into all below, all above. */
static void many_combining_marks_take_no_quadratic_time(void **state) {
    (void)state;
    enum { N = 50000 };
    nmlp_err err = {0};
    nmlp_str text;
    nmlp_ids ids;
    nmlp_tokenizer *t = make(&(nmlp_test_tokenizer_spec){.normalizer = "{\"type\": \"NFC\"}"});
    nmlp_str_init(&text);
    nmlp_ids_init(&ids);
    nmlp_str_putc(&text, '%');
    for (int i = 0; i < N; i++) nmlp_str_puts(&text, "\xCC\x81\xCC\xA3");
    double started = cpu_seconds();
    nmlp_assert_ok(nmlp_tokenizer_encode(t, text.data, text.len, NMLP_BOS_NONE, true, &ids, &err), &err);
    assert_true(cpu_seconds() - started < 2);
    assert_int_equal(ids.len, 1 + 4 * N);
    for (size_t i = 0; i < 2 * N; i++) {
        assert_int_equal(ids.data[1 + i], i % 2 ? 0xA3 : 0xCC);
        assert_int_equal(ids.data[1 + 2 * N + i], i % 2 ? 0x81 : 0xCC);
    }
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&text);
    nmlp_tokenizer_destroy(t);
}

typedef struct shared_job {
    const nmlp_tokenizer *t;
    const char *text;
    nmlp_ids ids[4];
} shared_job;

static void encode_in_thread(void *ctx, int thread, int n_threads) {
    shared_job *job = ctx;
    (void)n_threads;
    for (int i = 0; i < 20; i++) {
        job->ids[thread].len = 0;
        (void)nmlp_tokenizer_encode(job->t, job->text, strlen(job->text), NMLP_BOS_NONE, true, &job->ids[thread], NULL);
    }
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_tokenizer *t;
    nmlp_pool *pool;
    nmlp_str text;
    nmlp_str_init(&text);
    for (int i = 0; i < 2000; i++) nmlp_str_printf(&text, "It's %d o'clock; naïve café.\n", i);
    nmlp_assert_ok(nmlp_tokenizer_load(&t, NMLP_TEST_ROOT "/models/tiny/tokenizer.json", &err), &err);
    nmlp_assert_ok(nmlp_pool_create(&pool, 4, &err), &err);
    shared_job job = {.t = t, .text = text.data};
    nmlp_pool_run(pool, encode_in_thread, &job);
    assert_true(job.ids[0].len > 1000);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(job.ids[i].len, job.ids[0].len);
        assert_memory_equal(job.ids[i].data, job.ids[0].data, job.ids[0].len * sizeof(int32_t));
    }
    for (int i = 0; i < 4; i++) nmlp_ids_fini(&job.ids[i]);
    nmlp_pool_destroy(pool);
    nmlp_tokenizer_destroy(t);
    nmlp_str_fini(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_apply_lowest_rank_first),
        cmocka_unit_test(merges_as_pairs_equal_merges_as_strings),
        cmocka_unit_test(ignore_merges_takes_whole_pieces_from_the_vocabulary),
        cmocka_unit_test(gpt2_pattern_keeps_words_apart),
        cmocka_unit_test(prefix_space_is_put_before_every_piece_without_one),
        cmocka_unit_test(split_behaviors_are_those_of_hugging_face),
        cmocka_unit_test(mongolian_vowel_separator_is_no_space),
        cmocka_unit_test(nfc_composes_before_anything_else),
        cmocka_unit_test(special_tokens_count_only_when_asked_for),
        cmocka_unit_test(longest_added_token_wins),
        cmocka_unit_test(lstrip_and_rstrip_take_white_space_along),
        cmocka_unit_test(single_word_stands_alone),
        cmocka_unit_test(normalized_tokens_are_found_in_normalised_text),
        cmocka_unit_test(template_puts_bos_in_front),
        cmocka_unit_test(find_knows_vocabulary_and_added_tokens),
        cmocka_unit_test(malformed_utf8_counts_as_replacement_characters),
        cmocka_unit_test(nul_bytes_are_text),
        cmocka_unit_test(byte_without_token_is_an_error_and_leaves_the_list_alone),
        cmocka_unit_test(megabyte_of_one_character_takes_no_quadratic_time),
        cmocka_unit_test(many_combining_marks_take_no_quadratic_time),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
