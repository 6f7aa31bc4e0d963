/* Reads answers that follow the grammar of tool_calls.c: text, then calls whose names follow the form's `lead` and
 * whose arguments are an object. What stands between these is dropped. */
#define _GNU_SOURCE /* memmem */
#include <string.h>

#include "grammar/tool_form.h"

enum place { IN_TEXT, BEFORE_NAME, IN_NAME, BEFORE_ARGUMENTS, IN_ARGUMENTS };

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

/* The first place of a string in what is held, also behind NUL bytes; NULL: there is none. */
static const char *find(const nmlp_tool_reader *r, const char *string) {
    return memmem(nmlp_str_text(&r->held), r->held.len, string, strlen(string));
}

/* Bytes that may be given out as text: not space at the end, which is dropped before a call, nor part of `open`. */
static size_t plain_bytes(const nmlp_tool_reader *r, bool *call) {
    const char *open = nmlp_tool_form_of(r->format)->open, *text = nmlp_str_text(&r->held);
    size_t n = r->held.len;
    if (!open) {
        *call = !r->begun && n > 0 && text[0] == '{';
        return *call ? 0 : n;
    }
    const char *at = find(r, open);
    *call = at != NULL;
    if (at) {
        n = (size_t)(at - text);
    } else {
        size_t most = strlen(open) - 1;
        for (size_t k = n < most ? n : most; k > 0; k--) {
            if (memcmp(text + n - k, open, k) != 0) continue;
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
    bool call = false;
    size_t n = plain_bytes(r, &call);
    emit(on_part, ctx, NMLP_TOOL_TEXT, nmlp_str_text(&r->held), n);
    r->begun |= n > 0;
    if (n > 0) drop(r, n);
    if (call) r->place = BEFORE_NAME;
    return call;
}

static bool find_name(nmlp_tool_reader *r) {
    const char *lead = nmlp_tool_form_of(r->format)->lead, *at = find(r, lead);
    if (!at) return false;
    drop(r, (size_t)(at - r->held.data) + strlen(lead));
    r->place = IN_NAME;
    return true;
}

static bool read_name(nmlp_tool_reader *r, nmlp_tool_on_part *on_part, void *ctx) {
    const char *text = nmlp_str_text(&r->held);
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    if (n == r->held.len) return false;
    emit(on_part, ctx, NMLP_TOOL_NAME, text, n);
    r->n_calls++;
    drop(r, n);
    r->place = BEFORE_ARGUMENTS;
    return true;
}

static bool find_arguments(nmlp_tool_reader *r) {
    const char *at = find(r, "{");
    if (!at) return false;
    drop(r, (size_t)(at - r->held.data));
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
    if (ended) r->place = BEFORE_NAME; /* of the next call */
    return ended;
}

void nmlp_tool_reader_push(nmlp_tool_reader *r, const char *text, size_t len, nmlp_tool_on_part *on_part, void *ctx) {
    bool more = true;
    nmlp_str_append(&r->held, text, len);
    if (r->held.failed) return;
    while (more && r->held.len > 0) {
        switch ((enum place)r->place) {
        case IN_TEXT: more = read_text(r, on_part, ctx); break;
        case BEFORE_NAME: more = find_name(r); break;
        case IN_NAME: more = read_name(r, on_part, ctx); break;
        case BEFORE_ARGUMENTS: more = find_arguments(r); break;
        case IN_ARGUMENTS: more = read_arguments(r, on_part, ctx); break;
        }
    }
}

void nmlp_tool_reader_end(nmlp_tool_reader *r, nmlp_tool_on_part *on_part, void *ctx) {
    if (r->place == IN_TEXT) emit(on_part, ctx, NMLP_TOOL_TEXT, nmlp_str_text(&r->held), r->held.len);
    nmlp_str_clear(&r->held);
}
