/* Tokens of a template, with the white space rules of trim_blocks and lstrip_blocks. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja_internal.h"
#include "text/utf8.h"

typedef struct lexer {
    const char *source; /* line ends are \n */
    size_t len, at;
    int line;
    bool line_starting; /* what came before ends a line */
    nmlp_jinja_tokens *out;
    nmlp_jinja_heap *heap;
    nmlp_err *err;
} lexer;

static nmlp_status fail_at(lexer *lx, const char *what) {
    return nmlp_fail(lx->err, NMLP_E_FORMAT, "chat template line %d: %s", lx->line, what);
}

static nmlp_status push(lexer *lx, nmlp_jinja_token token) {
    void *items = lx->out->items;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&items, &lx->out->capacity, lx->out->n + 1, sizeof *lx->out->items, lx->err));
    lx->out->items = items;
    token.line = lx->line;
    lx->out->items[lx->out->n++] = token;
    return NMLP_OK;
}

static nmlp_status push_text(lexer *lx, nmlp_jinja_token_type type, const char *text, size_t len) {
    char *copy = nmlp_jinja_alloc(lx->heap, len + 1);
    if (!copy) return nmlp_fail(lx->err, NMLP_E_LIMIT, "chat template: too large");
    if (len) memcpy(copy, text, len);
    return push(lx, (nmlp_jinja_token){.type = type, .text = copy, .len = len});
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool looking_at(const lexer *lx, const char *what) {
    size_t n = strlen(what);
    return lx->len - lx->at >= n && memcmp(lx->source + lx->at, what, n) == 0;
}

static void advance(lexer *lx, size_t n) {
    for (size_t i = 0; i < n; i++) lx->line += lx->source[lx->at + i] == '\n';
    lx->at += n;
}

/* Spaces behind `-%}`, or the one line end behind `%}`. */
static void trim_after(lexer *lx, bool minus, bool newline) {
    size_t begin = lx->at;
    if (minus)
        while (lx->at < lx->len && is_space(lx->source[lx->at])) advance(lx, 1);
    else if (newline && looking_at(lx, "\n"))
        advance(lx, 1);
    lx->line_starting = lx->at > begin && lx->source[lx->at - 1] == '\n';
}

/* Text up to the next tag; how much of it stays depends on the tag. */
static nmlp_status lex_text(lexer *lx) {
    size_t begin = lx->at;
    size_t end = begin;
    while (end < lx->len && !(lx->source[end] == '{' && end + 1 < lx->len && strchr("{%#", lx->source[end + 1]))) end++;
    size_t keep = end;
    if (end < lx->len) {
        char tag = lx->source[end + 1];
        char sign = end + 2 < lx->len ? lx->source[end + 2] : 0;
        if (sign == '-') {
            while (keep > begin && is_space(lx->source[keep - 1])) keep--;
        } else if (sign != '+' && tag != '{') {
            size_t line = end;
            while (line > begin && lx->source[line - 1] != '\n' && is_space(lx->source[line - 1])) line--;
            if (line > begin ? lx->source[line - 1] == '\n' : lx->line_starting) keep = line;
        }
    }
    if (keep > begin) NMLP_RETURN_IF_FAILED(push_text(lx, NMLP_JINJA_T_TEXT, lx->source + begin, keep - begin));
    if (end > begin) lx->line_starting = lx->source[end - 1] == '\n';
    advance(lx, end - begin);
    return NMLP_OK;
}

static nmlp_status lex_comment(lexer *lx) {
    const char *end = NULL;
    for (size_t i = lx->at + 2; i + 1 < lx->len && !end; i++)
        if (lx->source[i] == '#' && lx->source[i + 1] == '}') end = lx->source + i;
    if (!end) return fail_at(lx, "a comment has no end");
    bool minus = end > lx->source + lx->at + 2 && end[-1] == '-';
    bool plus = end > lx->source + lx->at + 2 && end[-1] == '+';
    advance(lx, (size_t)(end + 2 - (lx->source + lx->at)));
    trim_after(lx, minus, !plus);
    return NMLP_OK;
}

static void append_escape(lexer *lx, nmlp_str *out) {
    static const char from[] = "nrtbfva0\\'\"";
    static const char to[] = "\n\r\t\b\f\v\a\0\\'\"";
    char c = lx->source[lx->at];
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const char *known = c ? strchr(from, c) : NULL;
    if (digits && lx->len - lx->at > digits) {
        char text[9] = {0};
        char *end;
        memcpy(text, lx->source + lx->at + 1, digits);
        unsigned long code = strtoul(text, &end, 16);
        if (end == text + digits && code <= 0x10FFFF && !(code >= 0xD800 && code < 0xE000)) {
            nmlp_utf8_append(out, (uint32_t)code);
            advance(lx, 1 + digits);
            return;
        }
    }
    if (known) {
        nmlp_str_putc(out, to[known - from]);
        advance(lx, 1);
    } else if (c == '\n') { /* a line that goes on */
        advance(lx, 1);
    } else {
        nmlp_str_putc(out, '\\');
    }
}

static nmlp_status lex_string(lexer *lx) {
    char quote = lx->source[lx->at];
    nmlp_str text;
    nmlp_str_init(&text);
    advance(lx, 1);
    while (lx->at < lx->len && lx->source[lx->at] != quote) {
        if (lx->source[lx->at] == '\\' && lx->at + 1 < lx->len) {
            advance(lx, 1);
            append_escape(lx, &text);
            continue;
        }
        nmlp_str_putc(&text, lx->source[lx->at]);
        advance(lx, 1);
    }
    nmlp_status st = lx->at < lx->len ? nmlp_str_status(&text, lx->err) : fail_at(lx, "a string has no end");
    if (st == NMLP_OK) st = push_text(lx, NMLP_JINJA_T_STRING, nmlp_str_text(&text), text.len);
    if (st == NMLP_OK) advance(lx, 1);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status lex_number(lexer *lx) {
    char text[64];
    size_t n = 0;
    bool is_float = false;
    bool has_exponent = false;
    size_t at = lx->at;
    for (; at < lx->len; at++) {
        char c = lx->source[at];
        bool digit_next = at + 1 < lx->len && is_digit(lx->source[at + 1]);
        bool fraction = c == '.' && !is_float && digit_next;
        bool exponent = (c == 'e' || c == 'E') && !has_exponent && digit_next;
        if (!is_digit(c) && c != '_' && !fraction && !exponent) break;
        has_exponent = has_exponent || exponent;
        is_float = is_float || fraction || exponent;
        if (c != '_' && n + 1 < sizeof text) text[n++] = c;
    }
    text[n] = 0;
    advance(lx, at - lx->at);
    if (n + 1 == sizeof text) return fail_at(lx, "a number is too long");
    return push(lx, (nmlp_jinja_token){.type = is_float ? NMLP_JINJA_T_FLOAT : NMLP_JINJA_T_INT,
                                       .i = strtoll(text, NULL, 10),
                                       .f = strtod(text, NULL)});
}

static nmlp_status lex_operator(lexer *lx) {
    static const char *const operators[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
                                            ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ":", ".", "|"};
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (!looking_at(lx, operators[i])) continue;
        NMLP_RETURN_IF_FAILED(push(
            lx, (nmlp_jinja_token){.type = NMLP_JINJA_T_OPERATOR, .text = operators[i], .len = strlen(operators[i])}));
        advance(lx, strlen(operators[i]));
        return NMLP_OK;
    }
    return fail_at(lx, "a character that no expression has");
}

/* The end of a tag, with its sign: its bytes, or 0. */
static size_t tag_end(const lexer *lx, const char *end, bool *minus, bool *plus) {
    char c = lx->at < lx->len ? lx->source[lx->at] : 0;
    *minus = c == '-';
    *plus = c == '+';
    size_t sign = *minus || *plus;
    if (lx->len - lx->at < sign + 2 || memcmp(lx->source + lx->at + sign, end, 2) != 0) return 0;
    return sign + 2;
}

static nmlp_status lex_expression(lexer *lx, bool is_block) {
    const char *end = is_block ? "%}" : "}}";
    int braces = 0; /* }} inside a dictionary is no end */
    while (lx->at < lx->len) {
        bool minus, plus;
        char c = lx->source[lx->at];
        size_t n = braces ? 0 : tag_end(lx, end, &minus, &plus);
        if (n) {
            NMLP_RETURN_IF_FAILED(
                push(lx, (nmlp_jinja_token){.type = is_block ? NMLP_JINJA_T_BLOCK_END : NMLP_JINJA_T_OUTPUT_END}));
            advance(lx, n);
            trim_after(lx, minus, is_block && !plus);
            return NMLP_OK;
        }
        if (is_space(c)) {
            advance(lx, 1);
        } else if (is_name_start(c)) {
            size_t name_end = lx->at;
            while (name_end < lx->len && (is_name_start(lx->source[name_end]) || is_digit(lx->source[name_end])))
                name_end++;
            NMLP_RETURN_IF_FAILED(push_text(lx, NMLP_JINJA_T_NAME, lx->source + lx->at, name_end - lx->at));
            advance(lx, name_end - lx->at);
        } else if (is_digit(c)) {
            NMLP_RETURN_IF_FAILED(lex_number(lx));
        } else if (c == '"' || c == '\'') {
            NMLP_RETURN_IF_FAILED(lex_string(lx));
        } else {
            braces += (c == '{' || c == '[' || c == '(') - ((c == '}' || c == ']' || c == ')') && braces);
            NMLP_RETURN_IF_FAILED(lex_operator(lx));
        }
    }
    return fail_at(lx, "a tag has no end");
}

/* {% raw %}: everything up to {% endraw %} is text. */
static nmlp_status lex_raw(lexer *lx, bool *was_raw) {
    const size_t n = lx->out->n;
    *was_raw = n >= 3 && lx->out->items[n - 1].type == NMLP_JINJA_T_BLOCK_END &&
               lx->out->items[n - 2].type == NMLP_JINJA_T_NAME && strcmp(lx->out->items[n - 2].text, "raw") == 0 &&
               lx->out->items[n - 3].type == NMLP_JINJA_T_BLOCK_BEGIN;
    if (!*was_raw) return NMLP_OK;
    lx->out->n -= 3;
    size_t begin = lx->at;
    for (size_t at = begin; at + 2 < lx->len; at++) {
        if (lx->source[at] != '{' || lx->source[at + 1] != '%') continue;
        size_t name = at + 2;
        while (name < lx->len && (is_space(lx->source[name]) || lx->source[name] == '-')) name++;
        if (lx->len - name < 6 || memcmp(lx->source + name, "endraw", 6) != 0) continue;
        size_t keep = at;
        if (lx->source[at + 2] == '-')
            while (keep > begin && is_space(lx->source[keep - 1])) keep--;
        NMLP_RETURN_IF_FAILED(push_text(lx, NMLP_JINJA_T_TEXT, lx->source + begin, keep - begin));
        advance(lx, name + 6 - begin);
        while (lx->at < lx->len && is_space(lx->source[lx->at])) advance(lx, 1);
        bool minus, plus;
        size_t end = tag_end(lx, "%}", &minus, &plus);
        if (!end) return fail_at(lx, "endraw has no end");
        advance(lx, end);
        trim_after(lx, minus, !plus);
        return NMLP_OK;
    }
    return fail_at(lx, "raw has no endraw");
}

static nmlp_status lex_all(lexer *lx) {
    while (lx->at < lx->len) {
        if (looking_at(lx, "{#")) {
            NMLP_RETURN_IF_FAILED(lex_comment(lx));
        } else if (looking_at(lx, "{{") || looking_at(lx, "{%")) {
            bool is_block = lx->source[lx->at + 1] == '%';
            bool was_raw;
            NMLP_RETURN_IF_FAILED(
                push(lx, (nmlp_jinja_token){.type = is_block ? NMLP_JINJA_T_BLOCK_BEGIN : NMLP_JINJA_T_OUTPUT_BEGIN}));
            advance(lx, 2);
            if (lx->at < lx->len && (lx->source[lx->at] == '-' || lx->source[lx->at] == '+')) advance(lx, 1);
            NMLP_RETURN_IF_FAILED(lex_expression(lx, is_block));
            if (is_block) NMLP_RETURN_IF_FAILED(lex_raw(lx, &was_raw));
        } else {
            NMLP_RETURN_IF_FAILED(lex_text(lx));
        }
    }
    return push(lx, (nmlp_jinja_token){.type = NMLP_JINJA_T_END});
}

nmlp_status nmlp_jinja_lex(nmlp_jinja_tokens *out, nmlp_jinja_heap *heap, const char *source, size_t len,
                           nmlp_err *err) {
    *out = (nmlp_jinja_tokens){0};
    if (len > NMLP_JINJA_SOURCE_MAX_BYTES)
        return nmlp_fail(err, NMLP_E_LIMIT, "chat template of %zu bytes is too long (at most %d)", len,
                         (int)NMLP_JINJA_SOURCE_MAX_BYTES);
    if (nmlp_utf8_valid_prefix(source, len) != len)
        return nmlp_fail(err, NMLP_E_FORMAT, "chat template is not valid UTF-8");
    char *text = nmlp_jinja_alloc(heap, len + 1);
    if (!text) return nmlp_fail(err, NMLP_E_LIMIT, "chat template: too large");
    size_t n = 0;
    for (size_t i = 0; i < len; i++) { /* \r\n and \r are \n */
        if (source[i] == '\r' && i + 1 < len && source[i + 1] == '\n') continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && text[n - 1] == '\n') n--; /* one line end at the end goes */
    lexer lx = {.source = text, .len = n, .line = 1, .line_starting = true, .out = out, .heap = heap, .err = err};
    return lex_all(&lx);
}
