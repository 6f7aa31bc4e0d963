/* Tokens that a grammar allows: the bits against trying every token alone, answers against the parser of JSON, schemas
 * that are refused. What schemas accept is compared with another validator in tests/python/json_schemas.py. */
#include "base/rng.h"
#include "base/str.h"
#include "grammar/guide.h"
#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/tool_calls.h"
#include "lib/testing.h"

struct world {
    nmlp_tokenizer *tokenizer;
    nmlp_token_order *order;
    nmlp_grammar *grammar;
    nmlp_guide *guide;
    nmlp_matcher *matcher; /* of its own, for comparing */
    int64_t vocab;
};

static void open_world(struct world *w, const char *schema) {
    nmlp_err err;
    nmlp_json_doc doc;
    nmlp_str text;
    static const int64_t ends[] = {0};
    *w = (struct world){0};
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_tokenizer_load(&w->tokenizer, NMLP_TEST_ROOT "/models/tiny", &err), &err);
    nmlp_assert_ok(nmlp_json_parse(&doc, schema, strlen(schema), "schema", &err), &err);
    nmlp_json_grammar_append(&text);
    nmlp_assert_ok(nmlp_json_schema_append(&text, "root", doc.root, "schema", &err), &err);
    nmlp_assert_ok(nmlp_grammar_parse(&w->grammar, nmlp_str_text(&text), text.len, &err), &err);
    nmlp_assert_ok(nmlp_token_order_create(&w->order, w->tokenizer, &err), &err);
    w->vocab = nmlp_tokenizer_vocab_size(w->tokenizer);
    const nmlp_guide_options options = {.vocab = w->vocab, .end_ids = ends, .n_end_ids = 1};
    nmlp_assert_ok(nmlp_guide_create(&w->guide, w->grammar, w->order, &options, &err), &err);
    nmlp_assert_ok(nmlp_matcher_create(&w->matcher, w->grammar, &err), &err);
    nmlp_json_free(&doc);
    nmlp_str_fini(&text);
}

static void close_world(struct world *w) {
    nmlp_matcher_destroy(w->matcher);
    nmlp_guide_destroy(w->guide);
    nmlp_grammar_destroy(w->grammar);
    nmlp_token_order_destroy(w->order);
    nmlp_tokenizer_destroy(w->tokenizer);
}

static int32_t follow(struct world *w, int32_t state, int64_t id) {
    size_t len;
    const char *text = nmlp_tokenizer_bytes(w->tokenizer, id, &len);
    if (!text) return NMLP_MATCHER_DEAD;
    for (size_t i = 0; i < len && state >= 0; i++) state = nmlp_matcher_next(w->matcher, state, (unsigned char)text[i]);
    return state;
}

static bool bit(const uint32_t *mask, int64_t id) { return mask[id / 32] >> (id % 32) & 1; }

/* Tokens at random among those allowed, those that close something preferred; every mask checked token by token. */
static void write_answer(struct world *w, nmlp_rng *rng, nmlp_str *text, bool check) {
    int32_t state = nmlp_matcher_start(w->matcher);
    const uint32_t *mask;
    nmlp_guide_restart(w->guide);
    for (int n = 0; (mask = nmlp_guide_allowed(w->guide)) != NULL; n++) {
        int64_t n_allowed = 0, chosen = -1;
        assert_true(n < 3000);
        assert_int_equal(bit(mask, 0), nmlp_matcher_accepts(w->matcher, state));
        for (int64_t id = 1; id < w->vocab; id++) {
            if (check) assert_int_equal(bit(mask, id), follow(w, state, id) >= 0);
            if (!bit(mask, id)) continue;
            size_t len;
            const char *bytes = nmlp_tokenizer_bytes(w->tokenizer, id, &len);
            bool closes = memchr("\"]},", bytes[0], 4) != NULL;
            if (nmlp_rng_below(rng, (uint64_t)++n_allowed) == 0 || (closes && nmlp_rng_below(rng, 3) == 0)) chosen = id;
        }
        if (bit(mask, 0) && (n_allowed == 0 || nmlp_rng_below(rng, 3) == 0)) break;
        assert_true(chosen > 0);
        size_t len;
        const char *bytes = nmlp_tokenizer_bytes(w->tokenizer, chosen, &len);
        nmlp_str_append(text, bytes, len);
        nmlp_guide_accept(w->guide, (int32_t)chosen);
        state = follow(w, state, chosen);
    }
    assert_true(nmlp_guide_is_complete(w->guide));
}

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":"
    "\"integer\","
    "\"minimum\":0,\"maximum\":130},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"long tag\",\"\\u00fc\"]},"
    "\"maxItems\":3},\"note\":{\"type\":[\"string\",\"null\"]}},\"required\":[\"name\",\"age\",\"tags\"],"
    "\"additionalProperties\":false}";

static void masks_are_those_of_every_token_alone(void **state) {
    struct world w;
    nmlp_rng rng;
    nmlp_str text;
    (void)state;
    open_world(&w, person);
    nmlp_rng_seed(&rng, 3);
    nmlp_str_init(&text);
    write_answer(&w, &rng, &text, true);
    nmlp_str_fini(&text);
    close_world(&w);
}

static void answers_parse_and_have_what_the_schema_wants(void **state) {
    struct world w;
    nmlp_rng rng;
    nmlp_err err;
    (void)state;
    open_world(&w, person);
    nmlp_rng_seed(&rng, 4);
    for (int i = 0; i < 40; i++) {
        nmlp_json_doc doc;
        nmlp_str text;
        int64_t age;
        nmlp_str_init(&text);
        write_answer(&w, &rng, &text, false);
        nmlp_assert_ok(nmlp_json_parse(&doc, nmlp_str_text(&text), text.len, "answer", &err), &err);
        assert_true(nmlp_json_is_string(nmlp_json_get(doc.root, "name")));
        assert_true(nmlp_json_int_in(nmlp_json_get(doc.root, "age"), 0, 130, &age));
        assert_in_range(nmlp_json_count(nmlp_json_get(doc.root, "tags")), 0, 3);
        assert_in_range(nmlp_json_count(doc.root), 3, 4);
        nmlp_json_free(&doc);
        nmlp_str_fini(&text);
    }
    nmlp_guide_stats stats = nmlp_guide_take_stats(w.guide);
    assert_true(stats.n_computed < stats.n_steps); /* some were remembered */
    close_world(&w);
}

static void what_a_schema_cannot_say_here_is_named(void **state) {
    static const struct {
        const char *schema, *part;
    } cases[] = {{"{\"type\":\"string\",\"contentEncoding\":\"base64\"}", "contentEncoding"},
                 {"{\"not\":{}}", "\"not\""},
                 {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
                 {"{\"type\":\"object\",\"patternProperties\":{}}", "patternProperties"},
                 {"{\"type\":\"number\",\"multipleOf\":0.1}", "multipleOf"},
                 {"{\"type\":\"string\",\"format\":\"iri\"}", "iri"},
                 {"{\"type\":\"string\",\"pattern\":\"(?=a)b\"}", "group"},
                 {"{\"type\":\"string\",\"pattern\":\"a\\\\b\"}", "escape"},
                 {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "overlap"},
                 {"{\"allOf\":[{\"type\":\"object\"},{\"type\":\"object\"}]}", "allOf"},
                 {"{\"$ref\":\"#/nowhere\"}", "nowhere"},
                 {"{\"$ref\":\"http://example.org/s\"}", "example.org"},
                 {"{\"anyOf\":[{}],\"properties\":{}}", "beside"},
                 {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "bounds"},
                 {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "maxLength"},
                 {"{\"type\":\"wrong\"}", "type"},
                 {"{\"type\":\"object\",\"properties\":{\"a\":false}}", "false"},
                 {"[]", "an object"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_json_doc doc;
        nmlp_err err;
        nmlp_str out;
        nmlp_str_init(&out);
        nmlp_assert_ok(nmlp_json_parse(&doc, cases[i].schema, strlen(cases[i].schema), "schema", &err), &err);
        nmlp_status st = nmlp_json_schema_append(&out, "root", doc.root, "response_format", &err);
        if (st == NMLP_OK) fail_msg("%s was taken", cases[i].schema);
        assert_string_equal(err.field, "response_format");
        if (!strstr(err.message, cases[i].part)) fail_msg("%s: %s", cases[i].schema, err.message);
        nmlp_json_free(&doc);
        nmlp_str_fini(&out);
    }
}

/* ---- calls of tools ---- */

static void write_part(void *ctx, nmlp_tool_part_kind kind, const char *text, size_t len) {
    static const char *const marks[] = {"", "#", ""};
    nmlp_str *out = ctx;
    nmlp_str_puts(out, marks[kind]);
    nmlp_str_append(out, text, len);
    if (kind == NMLP_TOOL_NAME) nmlp_str_putc(out, ':');
}

static void calls_are_read_wherever_the_text_is_cut(void **state) {
    static const struct {
        nmlp_tool_format format;
        const char *answer, *want;
        int n_calls;
    } cases[] = {
        {NMLP_TOOLS_TAGS,
         "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\"}}\n</tool_call>",
         "Let me see.#f:{\"a\": \"}\\\"{\"}", 1},
        {NMLP_TOOLS_TAGS,
         "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
         "\"arguments\": {\"x\": [1, {}]}}\n</tool_call>",
         "#f:{}#g:{\"x\": [1, {}]}", 2},
        {NMLP_TOOLS_TAGS, "1 < 2 and <tool_cal> is no tag <tool", "1 < 2 and <tool_cal> is no tag <tool", 0},
        {NMLP_TOOLS_OBJECT, "{\"name\": \"f\", \"parameters\": {\"k\": \"v\"}}", "#f:{\"k\": \"v\"}", 1},
        {NMLP_TOOLS_OBJECT, "No {call} here", "No {call} here", 0},
        {NMLP_TOOLS_LIST,
         "So:[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}, \"id\": \"abcdefghi\"}, "
         "{\"name\": \"g\", \"arguments\": {}}]",
         "So:#f:{\"a\": [1]}#g:{}", 2},
        {NMLP_TOOLS_LIST, "An [array] of [TOOL", "An [array] of [TOOL", 0},
        {NMLP_TOOLS_ARGS, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g-2[ARGS]{\"b\": \"[TOOL_CALLS]\"}",
         "#f:{}#g-2:{\"b\": \"[TOOL_CALLS]\"}", 2},
        {NMLP_TOOLS_ARGS_ID, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"a\": 1}", "#f:{\"a\": 1}", 1},
        {NMLP_TOOLS_FENCE,
         "Hm\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```"
         "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         "Hm#f:{\"a\": 1}#g:{}", 2},
        {NMLP_TOOLS_PLAIN,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         "#f:{\"a\": 1}", 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t step = 1; step <= strlen(cases[i].answer); step++) {
            nmlp_tool_reader r;
            nmlp_str out;
            nmlp_str_init(&out);
            nmlp_tool_reader_init(&r, cases[i].format);
            for (size_t at = 0; at < strlen(cases[i].answer); at += step) {
                size_t left = strlen(cases[i].answer) - at;
                nmlp_tool_reader_push(&r, cases[i].answer + at, left < step ? left : step, write_part, &out);
            }
            nmlp_tool_reader_end(&r, write_part, &out);
            assert_string_equal(nmlp_str_text(&out), cases[i].want);
            assert_int_equal(r.n_calls, cases[i].n_calls);
            nmlp_tool_reader_fini(&r);
            nmlp_str_fini(&out);
        }
    }
}

static bool call_matches(const char *tools, nmlp_tool_format format, bool may_answer, bool several, const char *text) {
    nmlp_err err;
    nmlp_json_doc doc;
    nmlp_str out;
    nmlp_grammar *grammar = NULL;
    nmlp_matcher *matcher = NULL;
    const nmlp_tool_choice choice = {.may_answer = may_answer, .several = several};
    nmlp_str_init(&out);
    nmlp_assert_ok(nmlp_json_parse(&doc, tools, strlen(tools), "tools", &err), &err);
    nmlp_assert_ok(nmlp_tool_grammar_append(&out, format, doc.root, &choice, &err), &err);
    nmlp_assert_ok(nmlp_grammar_parse(&grammar, nmlp_str_text(&out), out.len, &err), &err);
    nmlp_assert_ok(nmlp_matcher_create(&matcher, grammar, &err), &err);
    int32_t at = nmlp_matcher_start(matcher);
    for (size_t i = 0; text[i] && at >= 0; i++) at = nmlp_matcher_next(matcher, at, (unsigned char)text[i]);
    bool matches = at >= 0 && nmlp_matcher_accepts(matcher, at);
    nmlp_matcher_destroy(matcher);
    nmlp_grammar_destroy(grammar);
    nmlp_json_free(&doc);
    nmlp_str_fini(&out);
    return matches;
}

/* The grammar of a form takes the calls that the form's reader reads, and nothing that is half of one. */
static void calls_follow_the_form_of_the_template(void **state) {
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";
    static const struct {
        const char *source; /* what a template of the form has in it */
        nmlp_tool_format format;
        const char *one, *several; /* the second also behind text */
    } cases[] = {
        {"tools <tool_call>", NMLP_TOOLS_TAGS,
         "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
         "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
         "\"arguments\": {}}\n</tool_call>"},
        {"tools [TOOL_CALLS]", NMLP_TOOLS_LIST, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcDEF123\"}, {\"name\": \"g\", "
         "\"arguments\": {}}]"},
        {"tools [TOOL_CALLS][ARGS]", NMLP_TOOLS_ARGS, "[TOOL_CALLS]f[ARGS]{\"a\": 1}",
         "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[ARGS]{}"},
        {"tools [TOOL_CALLS][CALL_ID][ARGS]", NMLP_TOOLS_ARGS_ID, "[TOOL_CALLS]g[CALL_ID]abcDEF123[ARGS]{}",
         "[TOOL_CALLS]g[CALL_ID]abcDEF123[ARGS]{}[TOOL_CALLS]g[CALL_ID]abcDEF124[ARGS]{}"},
        {"<｜tool▁call▁begin｜> ```json", NMLP_TOOLS_FENCE,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
         "1}\n```<｜tool▁call▁end｜>"
         "<｜tool▁calls▁end｜>",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜>\n"
         "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
        {"<｜tool▁call▁begin｜>", NMLP_TOOLS_PLAIN,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<"
         "｜tool▁sep｜>{}"
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(nmlp_tool_format_of(cases[i].source), cases[i].format);
        for (int may_answer = 0; may_answer < 2; may_answer++) {
            char text[512];
            assert_true(call_matches(tools, cases[i].format, may_answer, false, cases[i].one));
            assert_false(call_matches(tools, cases[i].format, may_answer, false, cases[i].several));
            assert_true(call_matches(tools, cases[i].format, may_answer, true, cases[i].several));
            snprintf(text, sizeof text, "Let < me [see] ｜%s", cases[i].several);
            assert_int_equal(call_matches(tools, cases[i].format, may_answer, true, text), may_answer);
            snprintf(text, sizeof text, "%s.", cases[i].one);
            assert_false(call_matches(tools, cases[i].format, may_answer, true, text));
            snprintf(text, sizeof text, "%.*s", (int)strlen(cases[i].one) - 1, cases[i].one);
            assert_false(call_matches(tools, cases[i].format, may_answer, true, text));
        }
    }
    assert_int_equal(nmlp_tool_format_of("tools [none]"), NMLP_TOOLS_NONE);
    assert_int_equal(nmlp_tool_format_of(NULL), NMLP_TOOLS_NONE);
}

/* A byte token may be NUL; what stands behind it is read all the same. */
static void calls_behind_a_nul_byte_are_read(void **state) {
    static const char answer[] = "a\0b <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    static const char want[] = "a\0b#f:{}";
    (void)state;
    for (size_t step = 1; step < sizeof answer; step++) {
        nmlp_tool_reader r;
        nmlp_str out;
        nmlp_str_init(&out);
        nmlp_tool_reader_init(&r, NMLP_TOOLS_TAGS);
        for (size_t at = 0; at < sizeof answer - 1; at += step) {
            size_t left = sizeof answer - 1 - at;
            nmlp_tool_reader_push(&r, answer + at, left < step ? left : step, write_part, &out);
        }
        nmlp_tool_reader_end(&r, write_part, &out);
        assert_int_equal(out.len, sizeof want - 1);
        assert_memory_equal(out.data, want, sizeof want - 1);
        nmlp_tool_reader_fini(&r);
        nmlp_str_fini(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks_are_those_of_every_token_alone),
        cmocka_unit_test(answers_parse_and_have_what_the_schema_wants),
        cmocka_unit_test(what_a_schema_cannot_say_here_is_named),
        cmocka_unit_test(calls_are_read_wherever_the_text_is_cut),
        cmocka_unit_test(calls_behind_a_nul_byte_are_read),
        cmocka_unit_test(calls_follow_the_form_of_the_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
