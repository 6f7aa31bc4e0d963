#include "grammar/tool_calls.h"

#include <stdio.h>
#include <string.h>

#include "grammar/json_schema.h"

enum { TOOLS_MAX = 128, NAME_MAX_BYTES = 64 };

static const char open_tag[] = "<tool_call>";

/* What stands around name and arguments. */
static const struct form {
    const char *before, *between, *after;
} forms[] = {[NMLP_TOOLS_TAGS] = {"\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"},
             [NMLP_TOOLS_OBJECT] = {"{\"name\": \"", "\", \"parameters\": ", "}"}};

nmlp_tool_format nmlp_tool_format_of(const char *source) {
    if (!source || !strstr(source, "tools")) return NMLP_TOOLS_NONE;
    if (strstr(source, open_tag)) return NMLP_TOOLS_TAGS;
    bool object = strstr(source, "\"parameters\": ") && (strstr(source, "python_tag") || strstr(source, "ipython"));
    return object ? NMLP_TOOLS_OBJECT : NMLP_TOOLS_NONE;
}

/* ---- the grammar ---- */

static nmlp_status check_name(const char *name, nmlp_err *err) {
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    if (n > 0 && !name[n] && n <= NAME_MAX_BYTES) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "tools",
                           "has a function named \"%.80s\"; names have 1 to %d letters, digits, _ - .", name,
                           NAME_MAX_BYTES);
}

/* The rules of one tool: tool-N derives everything from `before` to `after`. */
static nmlp_status put_tool(nmlp_str *out, const struct form *form, int number, const nmlp_json *tool, nmlp_err *err) {
    const nmlp_json *function = nmlp_json_get(tool, "function"), *schema = nmlp_json_get(function, "parameters");
    const char *name = nmlp_json_string(nmlp_json_get(function, "name"));
    char rule[32];
    if (!nmlp_json_is_object(function))
        return nmlp_fail_field(err, NMLP_E_ARG, "tools", "[%d] is not of type function", number);
    NMLP_RETURN_IF_FAILED(check_name(name, err));
    nmlp_str_printf(out, "tool-%d ::= ", number);
    nmlp_schema_literal_append(out, form->before, strlen(form->before));
    nmlp_schema_literal_append(out, name, strlen(name));
    nmlp_schema_literal_append(out, form->between, strlen(form->between));
    /* arguments are an object whatever the schema says */
    bool bare = nmlp_json_is_null(schema) || nmlp_json_count(schema) == 0;
    nmlp_str_printf(out, bare ? "object " : "arguments-%d ", number);
    nmlp_schema_literal_append(out, form->after, strlen(form->after));
    nmlp_str_putc(out, '\n');
    if (bare) return NMLP_OK;
    if (strcmp(nmlp_json_string(nmlp_json_get(schema, "type")), "object") != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "tools", "[%d].function.parameters is not of type object", number);
    snprintf(rule, sizeof rule, "arguments-%d", number);
    return nmlp_json_schema_append(out, rule, schema, "tools", err);
}

/* Text in which no call begins, and after a tag the calls: text-i has seen the first i bytes of the tag. */
static void put_text_before_tag(nmlp_str *out) {
    size_t n = strlen(open_tag);
    nmlp_str_puts(out, "text-0 ::= | [^<] text-0 | \"<\" text-1\n");
    for (size_t i = 1; i < n; i++) {
        bool last = i + 1 == n;
        nmlp_str_printf(out, "text-%zu ::= | [^<%c] text-0 | \"<\" text-1 | \"%c\" ", i, open_tag[i], open_tag[i]);
        nmlp_str_printf(out, last ? "calls\n" : "text-%zu\n", i + 1);
    }
}

static void put_root(nmlp_str *out, nmlp_tool_format format, const nmlp_tool_choice *choice) {
    if (format == NMLP_TOOLS_OBJECT) {
        nmlp_str_puts(out, choice->may_answer ? "root ::= tool | ([^{] text)?\ntext ::= .*\n" : "root ::= tool\n");
        return;
    }
    nmlp_str_puts(out, choice->several ? "calls ::= tool (\"\\n<tool_call>\" tool)*\n" : "calls ::= tool\n");
    nmlp_str_puts(out, choice->may_answer ? "root ::= text-0\n" : "root ::= \"<tool_call>\" calls\n");
    if (choice->may_answer) put_text_before_tag(out);
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
    put_root(out, format, choice);
    NMLP_TRY(nmlp_str_status(&all, err));
    NMLP_TRY(nmlp_str_status(out, err));
out:
    nmlp_str_fini(&all);
    return st;
}

/* ---- reading ---- */

enum place { IN_TEXT, IN_HEAD, IN_ARGUMENTS, IN_TAIL };

void nmlp_tool_reader_init(nmlp_tool_reader *r, nmlp_tool_format format) {
    *r = (nmlp_tool_reader){.format = format};
    nmlp_str_init(&r->held);
}

void nmlp_tool_reader_fini(nmlp_tool_reader *r) { nmlp_str_fini(&r->held); }

/* Drops the first n bytes of what is held. */
static void drop(nmlp_tool_reader *r, size_t n) {
    memmove(r->held.data, r->held.data + n, r->held.len - n);
    r->held.len -= n;
    r->held.data[r->held.len] = '\0';
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Bytes that may be given out as text: not space at the end, which is dropped before a call, nor part of a tag. */
static size_t plain_bytes(const nmlp_tool_reader *r, bool *call) {
    const char *text = nmlp_str_text(&r->held), *tag = NULL;
    size_t n = r->held.len;
    *call = false;
    if (r->format == NMLP_TOOLS_OBJECT) {
        *call = !r->begun && n > 0 && text[0] == '{';
        return *call ? 0 : n;
    }
    tag = strstr(text, open_tag);
    *call = tag != NULL;
    if (tag) {
        n = (size_t)(tag - text);
    } else {
        size_t most = strlen(open_tag) - 1;
        for (size_t k = n < most ? n : most; k > 0; k--) {
            if (memcmp(text + n - k, open_tag, k) != 0) continue;
            n -= k;
            break;
        }
    }
    while (n > 0 && is_space(text[n - 1])) n--;
    return n;
}

static void emit(nmlp_tool_on_part *on_part, void *ctx, nmlp_tool_part_kind kind, const char *text, size_t len) {
    if (len > 0) on_part(ctx, kind, text, len);
}

/* Each reads what it can of what is held; false: more is needed. */
static bool read_text(nmlp_tool_reader *r, nmlp_tool_on_part *on_part, void *ctx) {
    bool call;
    size_t n = plain_bytes(r, &call);
    emit(on_part, ctx, NMLP_TOOL_TEXT, nmlp_str_text(&r->held), n);
    r->begun |= n > 0;
    if (n > 0) drop(r, n);
    if (!call) return false;
    if (r->format == NMLP_TOOLS_TAGS)
        drop(r, (size_t)(strstr(r->held.data, open_tag) - r->held.data) + strlen(open_tag));
    r->place = IN_HEAD;
    return true;
}

static bool read_head(nmlp_tool_reader *r, nmlp_tool_on_part *on_part, void *ctx) {
    const struct form *form = &forms[r->format];
    size_t before = strlen(form->before);
    const char *text = nmlp_str_text(&r->held);
    const char *end = r->held.len > before ? strstr(text + before, form->between) : NULL;
    if (!end) return false;
    emit(on_part, ctx, NMLP_TOOL_NAME, text + before, (size_t)(end - text) - before);
    drop(r, (size_t)(end - text) + strlen(form->between));
    r->n_calls++;
    r->place = IN_ARGUMENTS;
    return true;
}

static bool read_arguments(nmlp_tool_reader *r, nmlp_tool_on_part *on_part, void *ctx) {
    const char *text = nmlp_str_text(&r->held);
    size_t n = 0;
    bool ended = false;
    for (; n < r->held.len && !ended; n++) {
        char c = text[n];
        if (r->quoted) {
            if (!r->escaped && c == '"') r->quoted = false;
            r->escaped = !r->escaped && c == '\\';
            continue;
        }
        r->quoted = c == '"';
        r->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        ended = r->depth == 0;
    }
    emit(on_part, ctx, NMLP_TOOL_ARGUMENTS, text, n);
    if (n > 0) drop(r, n);
    if (ended) r->place = IN_TAIL;
    return ended;
}

static bool read_tail(nmlp_tool_reader *r) {
    size_t n = strlen(forms[r->format].after);
    if (r->held.len < n) return false;
    drop(r, n);
    r->begun = true;
    r->place = IN_TEXT;
    return true;
}

void nmlp_tool_reader_push(nmlp_tool_reader *r, const char *text, size_t len, nmlp_tool_on_part *on_part, void *ctx) {
    bool more = true;
    nmlp_str_append(&r->held, text, len);
    if (r->held.failed) return;
    while (more && r->held.len > 0) {
        switch ((enum place)r->place) {
        case IN_TEXT: more = read_text(r, on_part, ctx); break;
        case IN_HEAD: more = read_head(r, on_part, ctx); break;
        case IN_ARGUMENTS: more = read_arguments(r, on_part, ctx); break;
        case IN_TAIL: more = read_tail(r); break;
        }
    }
}

void nmlp_tool_reader_end(nmlp_tool_reader *r, nmlp_tool_on_part *on_part, void *ctx) {
    if (r->place == IN_TEXT && r->n_calls == 0)
        emit(on_part, ctx, NMLP_TOOL_TEXT, nmlp_str_text(&r->held), r->held.len);
    nmlp_str_clear(&r->held);
}
