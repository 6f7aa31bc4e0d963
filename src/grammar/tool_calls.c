#include "grammar/tool_calls.h"

#include <stdio.h>
#include <string.h>

#include "grammar/json_schema.h"
#include "grammar/tool_form.h"
#include "text/utf8.h"

enum { TOOLS_MAX = 128, NAME_MAX_BYTES = 64 };

#define DEEPSEEK_BEGIN "<｜tool▁calls▁begin｜>"
#define DEEPSEEK_END "<｜tool▁calls▁end｜>"
#define DEEPSEEK_CALL "<｜tool▁call▁begin｜>"
#define DEEPSEEK_CALL_END "<｜tool▁call▁end｜>"
#define DEEPSEEK_SEP "<｜tool▁sep｜>"

static const char *const marks[] = {"[TOOL_CALLS]", "[CALL_ID]",   "[ARGS]",          DEEPSEEK_BEGIN,
                                    DEEPSEEK_END,   DEEPSEEK_CALL, DEEPSEEK_CALL_END, DEEPSEEK_SEP};

static const nmlp_tool_form forms[] = {
    [NMLP_TOOLS_TAGS] = {.open = "<tool_call>",
                         .lead = "{\"name\": \"",
                         .before = "\n{\"name\": \"",
                         .between = "\", \"arguments\": ",
                         .after = "}\n</tool_call>",
                         .next = "\n<tool_call>"},
    [NMLP_TOOLS_OBJECT] =
        {.lead = "{\"name\": \"", .before = "{\"name\": \"", .between = "\", \"parameters\": ", .after = "}"},
    [NMLP_TOOLS_LIST] = {.open = "[TOOL_CALLS]",
                         .lead = "{\"name\": \"",
                         .first = "\" \"? \"[\" ",
                         .before = "{\"name\": \"",
                         .between = "\", \"arguments\": ",
                         .id_after_arguments = "(\", \\\"id\\\": \\\"\" [a-zA-Z0-9]{9} \"\\\"\")? ",
                         .after = "}",
                         .next = ", ",
                         .last = "]"},
    [NMLP_TOOLS_ARGS] = {.open = "[TOOL_CALLS]", .lead = "[TOOL_CALLS]", .between = "[ARGS]", .next = "[TOOL_CALLS]"},
    [NMLP_TOOLS_ARGS_ID] = {.open = "[TOOL_CALLS]",
                            .lead = "[TOOL_CALLS]",
                            .id_before_arguments = "\"[CALL_ID]\" [a-zA-Z0-9]{9} ",
                            .between = "[ARGS]",
                            .next = "[TOOL_CALLS]"},
    [NMLP_TOOLS_FENCE] = {.open = DEEPSEEK_BEGIN,
                          .lead = "function" DEEPSEEK_SEP,
                          .before = DEEPSEEK_CALL "function" DEEPSEEK_SEP,
                          .between = "\n```json\n",
                          .after = "\n```" DEEPSEEK_CALL_END,
                          .next = "\n",
                          .last = DEEPSEEK_END},
    [NMLP_TOOLS_PLAIN] = {.open = DEEPSEEK_BEGIN,
                          .lead = DEEPSEEK_CALL,
                          .before = DEEPSEEK_CALL,
                          .between = DEEPSEEK_SEP,
                          .after = DEEPSEEK_CALL_END,
                          .last = DEEPSEEK_END},
};

const nmlp_tool_form *nmlp_tool_form_of(nmlp_tool_format format) { return &forms[format]; }

bool nmlp_tool_is_mark(const char *text, size_t len) {
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (strlen(marks[i]) == len && memcmp(marks[i], text, len) == 0) return true;
    return false;
}

/* ---- templates ---- */

nmlp_tool_format nmlp_tool_format_of(const char *source) {
    if (!source) return NMLP_TOOLS_NONE;
    if (strstr(source, DEEPSEEK_CALL)) return strstr(source, "```json") ? NMLP_TOOLS_FENCE : NMLP_TOOLS_PLAIN;
    if (!strstr(source, "tools")) return NMLP_TOOLS_NONE;
    if (strstr(source, "[TOOL_CALLS]")) {
        if (!strstr(source, "[ARGS]")) return NMLP_TOOLS_LIST;
        return strstr(source, "[CALL_ID]") ? NMLP_TOOLS_ARGS_ID : NMLP_TOOLS_ARGS;
    }
    if (strstr(source, "<tool_call>")) return NMLP_TOOLS_TAGS;
    bool object = strstr(source, "\"parameters\": ") && (strstr(source, "python_tag") || strstr(source, "ipython"));
    return object ? NMLP_TOOLS_OBJECT : NMLP_TOOLS_NONE;
}

bool nmlp_tool_format_lists_none(const char *source) { return source && !strstr(source, "tools"); }

/* ---- the grammar ---- */

static nmlp_status check_name(const char *name, nmlp_err *err) {
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    if (n > 0 && !name[n] && n <= NAME_MAX_BYTES) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "tools",
                           "has a function named \"%.80s\"; names have 1 to %d letters, digits, _ - .", name,
                           NAME_MAX_BYTES);
}

static void put_literal(nmlp_str *out, const char *text) {
    if (text && text[0]) nmlp_schema_literal_append(out, text, strlen(text));
}

/* The rules of one tool: tool-N derives everything from `before` to `after`. */
static nmlp_status put_tool(nmlp_str *out, const nmlp_tool_form *form, int number, const nmlp_json *tool,
                            nmlp_err *err) {
    const nmlp_json *function = nmlp_json_get(tool, "function"), *schema = nmlp_json_get(function, "parameters");
    const char *name = nmlp_json_string(nmlp_json_get(function, "name"));
    char rule[32];
    if (!nmlp_json_is_object(function))
        return nmlp_fail_field(err, NMLP_E_ARG, "tools", "[%d] is not of type function", number);
    NMLP_RETURN_IF_FAILED(check_name(name, err));
    nmlp_str_printf(out, "tool-%d ::= ", number);
    put_literal(out, form->before);
    put_literal(out, name);
    if (form->id_before_arguments) nmlp_str_puts(out, form->id_before_arguments);
    put_literal(out, form->between);
    /* arguments are an object whatever the schema says */
    bool bare = nmlp_json_is_null(schema) || nmlp_json_count(schema) == 0;
    nmlp_str_printf(out, bare ? "object " : "arguments-%d ", number);
    if (form->id_after_arguments) nmlp_str_puts(out, form->id_after_arguments);
    put_literal(out, form->after);
    nmlp_str_putc(out, '\n');
    if (bare) return NMLP_OK;
    if (strcmp(nmlp_json_string(nmlp_json_get(schema, "type")), "object") != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "tools", "[%d].function.parameters is not of type object", number);
    snprintf(rule, sizeof rule, "arguments-%d", number);
    return nmlp_json_schema_append(out, rule, schema, "tools", err);
}

/* Text in which no call begins, and behind `open` the calls: text-i has seen the first i characters of it. */
static void put_text_before(nmlp_str *out, const char *open) {
    uint32_t head = 0, c = 0;
    size_t len = strlen(open), at = (size_t)nmlp_utf8_decode(open, len, &head);
    nmlp_str_printf(out, "text-0 ::= | [^\\u%04x] text-0 | [\\u%04x] text-1\n", (unsigned)head, (unsigned)head);
    for (int i = 1; at < len; i++) {
        at += (size_t)nmlp_utf8_decode(open + at, len - at, &c);
        nmlp_str_printf(out, "text-%d ::= | [^\\u%04x\\u%04x] text-0 | [\\u%04x] text-1 | [\\u%04x] ", i,
                        (unsigned)head, (unsigned)c, (unsigned)head, (unsigned)c);
        nmlp_str_printf(out, at < len ? "text-%d\n" : "calls\n", i + 1);
    }
}

static void put_root(nmlp_str *out, const nmlp_tool_form *form, const nmlp_tool_choice *choice) {
    if (!form->open) {
        nmlp_str_puts(out, choice->may_answer ? "root ::= tool | ([^{] text)?\ntext ::= .*\n" : "root ::= tool\n");
        return;
    }
    nmlp_str_printf(out, "calls ::= %stool ", form->first ? form->first : "");
    if (choice->several) {
        nmlp_str_puts(out, "(");
        put_literal(out, form->next);
        nmlp_str_puts(out, "tool)* ");
    }
    put_literal(out, form->last);
    nmlp_str_puts(out, "\nroot ::= ");
    if (choice->may_answer) {
        nmlp_str_puts(out, "text-0\n");
        put_text_before(out, form->open);
    } else {
        put_literal(out, form->open);
        nmlp_str_puts(out, "calls\n");
    }
}

nmlp_status nmlp_tool_grammar_append(nmlp_str *out, nmlp_tool_format format, const nmlp_json *tools,
                                     const nmlp_tool_choice *choice, nmlp_err *err) {
    const char *bar = "";
    int n = 0;
    nmlp_str all;
    nmlp_status st = NMLP_OK;
    if (nmlp_json_count(tools) > TOOLS_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "tools", "has %zu members; %d are taken", nmlp_json_count(tools),
                               TOOLS_MAX);
    nmlp_str_init(&all);
    nmlp_json_grammar_append(out);
    for (const nmlp_json *tool = nmlp_json_first(tools); tool; tool = nmlp_json_next(tool), n++) {
        const char *name = nmlp_json_string(nmlp_json_get(nmlp_json_get(tool, "function"), "name"));
        if (choice->name && strcmp(choice->name, name) != 0) continue;
        NMLP_TRY(put_tool(out, &forms[format], n, tool, err));
        nmlp_str_printf(&all, "%stool-%d", bar, n);
        bar = " | ";
    }
    if (!all.len)
        NMLP_TRY(nmlp_fail_field(err, NMLP_E_ARG, "tool_choice", "names \"%.80s\", which is not among the tools",
                                 choice->name ? choice->name : ""));
    nmlp_str_printf(out, "tool ::= %s\n", nmlp_str_text(&all));
    put_root(out, &forms[format], choice);
    NMLP_TRY(nmlp_str_status(&all, err));
    NMLP_TRY(nmlp_str_status(out, err));
out:
    nmlp_str_fini(&all);
    return st;
}
