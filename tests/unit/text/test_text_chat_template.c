/* Chat templates against jinja2: tests/data/chat holds templates of our own in the manner of published ones, and what
 * jinja2 made of conversations (tests/python/chat_templates.py). Also limits, and whose text is whose. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "lib/testing.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "text/chat_template.h"

static const char special_tokens[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"unk_token\": \"<unk>\"}";

static nmlp_chat_template *load(const char *name) {
    char path[1024];
    nmlp_err err = {0};
    nmlp_str source;
    nmlp_chat_template *t;
    nmlp_str_init(&source);
    snprintf(path, sizeof path, "%s/tests/data/chat/%s", NMLP_TEST_ROOT, name);
    nmlp_assert_ok(nmlp_file_read(&source, path, 1 << 20, &err), &err);
    nmlp_assert_ok(nmlp_chat_template_parse(&t, nmlp_str_text(&source), source.len, special_tokens, &err), &err);
    nmlp_str_fini(&source);
    return t;
}

static void check_case(const nmlp_json *c, size_t line) {
    nmlp_err err = {0};
    nmlp_chat_text out;
    const nmlp_json *tools = nmlp_json_get(c, "tools");
    const nmlp_json *expected = nmlp_json_get(c, "expected");
    const nmlp_chat_render_options options = {
        .add_generation_prompt = nmlp_json_bool(nmlp_json_get(c, "prompt")),
        .tools_json = nmlp_json_is_string(tools) ? nmlp_json_string(tools) : NULL,
        .kwargs_json = nmlp_json_string(nmlp_json_get(c, "kwargs")),
        .now_seconds = 1700000000,
    };
    nmlp_chat_text_init(&out);
    nmlp_chat_template *t = load(nmlp_json_string(nmlp_json_get(c, "template")));
    nmlp_status st = nmlp_chat_template_render(t, nmlp_json_string(nmlp_json_get(c, "messages")), &options, &out, &err);
    if (nmlp_json_is_null(expected)) {
        if (st == NMLP_OK) fail_msg("line %zu: rendered, though jinja2 fails", line);
        assert_int_equal(out.text.len, 0);
    } else {
        if (st != NMLP_OK) fail_msg("line %zu: %s", line, err.message);
        if (strcmp(nmlp_str_text(&out.text), nmlp_json_string(expected)) != 0)
            fail_msg("line %zu:\n%s\nexpected:\n%s", line, nmlp_str_text(&out.text), nmlp_json_string(expected));
    }
    nmlp_chat_text_fini(&out);
    nmlp_chat_template_destroy(t);
}

static void templates_give_the_text_of_jinja2(void **state) {
    (void)state;
    char path[1024];
    nmlp_err err = {0};
    nmlp_str cases;
    size_t n = 0;
    nmlp_str_init(&cases);
    setenv("TZ", "UTC", 1);
    snprintf(path, sizeof path, "%s/tests/data/chat/cases.jsonl", NMLP_TEST_ROOT);
    nmlp_assert_ok(nmlp_file_read(&cases, path, 1 << 24, &err), &err);
    for (char *line = cases.data; *line;) {
        nmlp_json_doc doc;
        char *end = strchr(line, '\n');
        nmlp_assert_ok(nmlp_json_parse(&doc, line, (size_t)(end - line), path, &err), &err);
        check_case(doc.root, ++n);
        nmlp_json_free(&doc);
        line = end + 1;
    }
    assert_true(n > 200);
    nmlp_str_fini(&cases);
}

static nmlp_status render(const char *source, const char *messages, nmlp_chat_text *out, nmlp_err *err) {
    nmlp_chat_template *t;
    const nmlp_chat_render_options options = {0};
    nmlp_status st = nmlp_chat_template_parse(&t, source, strlen(source), NULL, err);
    if (st == NMLP_OK) st = nmlp_chat_template_render(t, messages, &options, out, err);
    nmlp_chat_template_destroy(t);
    return st;
}

static void assert_fails(const char *source, nmlp_status code, const char *part) {
    nmlp_err err = {0};
    nmlp_chat_text out;
    nmlp_chat_text_init(&out);
    nmlp_assert_fails(render(source, "[]", &out, &err), &err, code, "chat template", part, NULL);
    nmlp_chat_text_fini(&out);
}

static void what_is_not_known_is_refused_by_name(void **state) {
    (void)state;
    assert_fails("{% include 'x' %}", NMLP_E_UNSUPPORTED, "include");
    assert_fails("a\nb{{ 1 | nosuch }}", NMLP_E_UNSUPPORTED, "line 2: filter \"nosuch\"");
    assert_fails("{{ 1 is nosuch }}", NMLP_E_UNSUPPORTED, "test \"nosuch\"");
    assert_fails("{{ nosuch() }}", NMLP_E_UNSUPPORTED, "function \"nosuch\"");
    assert_fails("{{ 'a'.nosuch() }}", NMLP_E_UNSUPPORTED, "nosuch");
    assert_fails("{{ ''.__class__.__mro__ }}", NMLP_E_FORMAT, "__mro__");
    assert_fails("{% if true %}", NMLP_E_UNSUPPORTED, "no end");
    assert_fails("{{ 'abc }}", NMLP_E_FORMAT, "no end");
    assert_fails("{{ 1 + 'a' }}", NMLP_E_FORMAT, "integer and string");
    assert_fails("{{ 1 // 0 }}", NMLP_E_FORMAT, "zero");
    assert_fails("{{ raise_exception('in its own words') }}", NMLP_E_ARG, "in its own words");
}

static void every_run_ends(void **state) {
    (void)state;
    assert_fails("{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}", NMLP_E_LIMIT, "");
    assert_fails("{% set x = 'a' * 2000000 %}{% for i in range(900) %}{{ 'b' in x }}{% endfor %}", NMLP_E_LIMIT,
                 "steps");
    assert_fails("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", NMLP_E_LIMIT, "deep");
    assert_fails(
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        NMLP_E_LIMIT, "MB");
    assert_fails("{{ 'ab' * 999999999 }}", NMLP_E_LIMIT, "");
    assert_fails("{% set l = [1] %}{% for i in range(40) %}{% set _ = l.extend(l) %}{% endfor %}", NMLP_E_LIMIT, "");
    assert_fails("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", NMLP_E_LIMIT, "deep");
    assert_fails("{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}", NMLP_E_LIMIT, "deep");
    enum { BRACKETS = 3000 };
    char nested[2 * BRACKETS + 16] = "{{ ";
    memset(nested + 3, '(', BRACKETS);
    nested[3 + BRACKETS] = '1';
    memset(nested + 4 + BRACKETS, ')', BRACKETS);
    strcpy(nested + 4 + 2 * BRACKETS, " }}");
    assert_fails(nested, NMLP_E_UNSUPPORTED, "deep");
}

/* Which parts of the text a user wrote, through every way a template takes text apart. */
static void a_users_text_stays_a_users(void **state) {
    (void)state;
    static const char *const sources[] = {
        "<{{ messages[0].content }}>",
        "<{{ messages[0].content | trim | upper | lower | replace('q', 'q') }}>",
        "{% set x = '<' ~ messages[0].content %}{{ x + '>' }}",
        "{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(messages[0]['content']) }}",
        "<{{ messages[0].content.split('zz') | join('') }}>",
        "<{% for c in messages[0].content %}{{ c }}{% endfor %}>",
        "<{{ messages[0].content[0:5] }}{{ messages[0].content[5:] }}>",
        "{% set x %}<{{ messages[0].content }}{% endset %}{{ x }}>",
        "<{{ ('%' + messages[0].content | tojson)[2:-1] }}>",
        "{{ '<{}>'.format(messages[0].content) }}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        nmlp_err err = {0};
        nmlp_chat_text out;
        nmlp_chat_text_init(&out);
        nmlp_assert_ok(render(sources[i], "[{\"role\": \"user\", \"content\": \"<|im_end|>\"}]", &out, &err), &err);
        assert_string_equal(nmlp_str_text(&out.text), "<<|im_end|>>");
        if (out.n_spans != 1 || out.spans[0].begin != 1 || out.spans[0].end != 11)
            fail_msg("template %zu: %zu spans", i, out.n_spans);
        nmlp_chat_text_fini(&out);
    }
}

/* A role's usual name may be part of a special token; any other text of a user's may not. */
static void usual_roles_are_the_templates(void **state) {
    (void)state;
    nmlp_err err = {0};
    nmlp_chat_text out;
    nmlp_chat_text_init(&out);
    nmlp_assert_ok(render("{% for m in messages %}<|{{ m.role }}|>{% endfor %}",
                          "[{\"role\": \"user\"}, {\"role\": \"im_end\"}]", &out, &err),
                   &err);
    assert_string_equal(nmlp_str_text(&out.text), "<|user|><|im_end|>");
    assert_int_equal(out.n_spans, 1);
    assert_int_equal(out.spans[0].begin, 10);
    nmlp_chat_text_fini(&out);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    nmlp_test_write_file(path, text, strlen(text));
}

static void assert_loads(const char *dir, const char *name, const char *source) {
    nmlp_err err = {0};
    nmlp_chat_template *t;
    nmlp_assert_ok(nmlp_chat_template_load(&t, dir, name, &err), &err);
    if (source)
        assert_string_equal(nmlp_chat_template_source(t), source);
    else
        assert_null(t);
    nmlp_chat_template_destroy(t);
}

static void templates_are_found_where_models_have_them(void **state) {
    (void)state;
    char dir[64];
    nmlp_err err = {0};
    nmlp_chat_template *t;
    nmlp_test_mkdtemp(dir, sizeof dir);
    assert_loads(dir, NULL, NULL);
    write_text(dir, "tokenizer_config.json", "{\"chat_template\": \"from config\"}");
    assert_loads(dir, NULL, "from config");
    write_text(dir, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"default\", \"template\": \"plain\"}, "
               "{\"name\": \"tool_use\", \"template\": \"tools\"}]}");
    assert_loads(dir, NULL, "plain");
    assert_loads(dir, "tool_use", "tools");
    nmlp_assert_fails(nmlp_chat_template_load(&t, dir, "rag", &err), &err, NMLP_E_MISSING, "rag", NULL);
    write_text(dir, "chat_template.json", "{\"chat_template\": \"from json\"}");
    assert_loads(dir, NULL, "from json");
    write_text(dir, "chat_template.jinja", "from jinja");
    assert_loads(dir, NULL, "from jinja");
    nmlp_test_rmdir(dir);
}

/* The whole way: a folder's template decides the ids, and a user's special tokens are none. */
static void a_conversation_is_encoded_by_the_models_template(void **state) {
    (void)state;
    char dir[64], path[1024];
    nmlp_err err = {0};
    nmlp_str json;
    nmlp_ids ids, plain;
    nmlp_tokenizer *t;
    const nmlp_chat_message messages[] = {{"user", "hi </s>"}};
    nmlp_str_init(&json);
    nmlp_ids_init(&ids);
    nmlp_ids_init(&plain);
    nmlp_test_mkdtemp(dir, sizeof dir);
    snprintf(path, sizeof path, "%s/tests/data/tokenizers/byte_level.json", NMLP_TEST_ROOT);
    nmlp_assert_ok(nmlp_file_read(&json, path, 1 << 24, &err), &err);
    write_text(dir, "tokenizer.json", json.data);
    write_text(dir, "tokenizer_config.json",
               "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"chat_template\": "
               "\"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}\"}");
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    nmlp_assert_ok(nmlp_chat_encode(t, messages, 1, &ids, &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_encode(t, "hi </s>", 7, NMLP_BOS_NONE, false, &plain, &err), &err);
    assert_int_equal(ids.len, plain.len + 2);
    assert_int_equal(ids.data[0], nmlp_tokenizer_find(t, "<s>"));
    assert_memory_equal(ids.data + 1, plain.data, plain.len * sizeof *plain.data);
    assert_int_equal(ids.data[ids.len - 1], nmlp_tokenizer_find(t, "</s>"));
    assert_int_equal(nmlp_chat_end_id(t), nmlp_tokenizer_find(t, "</s>"));
    nmlp_tokenizer_destroy(t);
    write_text(dir, "chat_template.jinja", "{% include 'x' %}");
    nmlp_assert_ok(nmlp_tokenizer_load(&t, dir, &err), &err);
    nmlp_assert_fails(nmlp_chat_encode(t, messages, 1, &ids, &err), &err, NMLP_E_UNSUPPORTED, "include", NULL);
    nmlp_tokenizer_destroy(t);
    nmlp_ids_fini(&plain);
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&json);
    nmlp_test_rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_give_the_text_of_jinja2),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
        cmocka_unit_test(every_run_ends),
        cmocka_unit_test(a_users_text_stays_a_users),
        cmocka_unit_test(usual_roles_are_the_templates),
        cmocka_unit_test(templates_are_found_where_models_have_them),
        cmocka_unit_test(a_conversation_is_encoded_by_the_models_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
