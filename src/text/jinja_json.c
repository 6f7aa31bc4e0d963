/* JSON as values and back, and how Python shows values. Numbers keep whether they were integers, which the JSON reader
 * of src/base does not. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"
#include "text/utf8.h"

typedef struct reader {
    nmlp_jinja_run *run;
    const char *at, *end;
    bool user;
    int depth;
} reader;

static nmlp_jinja_value fail_json(reader *r, const char *what) {
    return nmlp_jinja_fail(r->run, NMLP_E_FORMAT, "JSON: %s", what);
}

static void skip_space(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

static bool skip(reader *r, char c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static bool read_hex4(reader *r, uint32_t *code) {
    *code = 0;
    if (r->end - r->at < 4) return false;
    for (int i = 0; i < 4; i++, r->at++) {
        char c = *r->at;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        *code = *code * 16 + (uint32_t)digit;
    }
    return true;
}

static bool read_escape(reader *r, nmlp_str *out) {
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end) return false;
    char c = *r->at++;
    if (c != 'u') {
        const char *known = c ? strchr(from, c) : NULL;
        if (known) nmlp_str_putc(out, to[known - from]);
        return known;
    }
    uint32_t code, low;
    if (!read_hex4(r, &code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        r->at += 2;
        if (!read_hex4(r, &low)) return false;
        code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0xFFFD;
    } else if (code >= 0xD800 && code < 0xE000) {
        code = 0xFFFD;
    }
    nmlp_utf8_append(out, code);
    return true;
}

static nmlp_jinja_value read_string(reader *r) {
    nmlp_str text;
    nmlp_str_init(&text);
    bool good = true;
    while (good && r->at < r->end && *r->at != '"') {
        if (*r->at == '\\') {
            r->at++;
            good = read_escape(r, &text);
        } else {
            nmlp_str_putc(&text, *r->at++);
        }
    }
    good = good && r->at < r->end && !text.failed;
    nmlp_jinja_value v;
    if (good) {
        r->at++;
        v = nmlp_jinja_string_new(r->run, nmlp_str_text(&text), text.len, r->user);
    } else {
        v = fail_json(r, "a string is malformed");
    }
    nmlp_str_fini(&text);
    return v;
}

static nmlp_jinja_value read_number(reader *r) {
    char text[64];
    size_t n = 0;
    bool is_float = false;
    while (r->at < r->end && n + 1 < sizeof text && *r->at && strchr("+-0123456789.eE", *r->at)) {
        is_float = is_float || *r->at == '.' || *r->at == 'e' || *r->at == 'E';
        text[n++] = *r->at++;
    }
    text[n] = 0;
    char *end;
    errno = 0;
    long long integer = strtoll(text, &end, 10);
    if (!is_float && !errno && n && !*end) return nmlp_jinja_int(integer);
    double value = strtod(text, &end);
    if (!n || *end) return fail_json(r, "a number is malformed");
    return (nmlp_jinja_value){.kind = NMLP_JINJA_FLOAT, .as.f = value};
}

static nmlp_jinja_value read_value(reader *r);

static nmlp_jinja_value read_list(reader *r) {
    nmlp_jinja_value list = nmlp_jinja_list_new(r->run, false);
    if (skip(r, ']')) return list;
    while (r->run->status == NMLP_OK) {
        nmlp_jinja_value item = read_value(r);
        if (r->run->status == NMLP_OK) nmlp_jinja_list_push(r->run, list.as.list, item);
        if (skip(r, ']')) return list;
        if (!skip(r, ',')) return fail_json(r, "a comma is missing");
    }
    return list;
}

static nmlp_jinja_value read_dict(reader *r) {
    nmlp_jinja_value dict = nmlp_jinja_dict_new(r->run);
    if (skip(r, '}')) return dict;
    while (r->run->status == NMLP_OK) {
        if (!skip(r, '"')) return fail_json(r, "a key is missing");
        nmlp_jinja_value key = read_string(r);
        if (!skip(r, ':')) return fail_json(r, "a colon is missing");
        nmlp_jinja_value value = read_value(r);
        if (r->run->status == NMLP_OK) nmlp_jinja_dict_put(r->run, dict.as.dict, key, value);
        if (skip(r, '}')) return dict;
        if (!skip(r, ',')) return fail_json(r, "a comma is missing");
    }
    return dict;
}

static bool read_word(reader *r, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return false;
    r->at += n;
    return true;
}

static nmlp_jinja_value read_value(reader *r) {
    if (!nmlp_jinja_step(r->run, 1)) return nmlp_jinja_undefined();
    if (r->depth >= NMLP_JINJA_DEPTH_MAX) return fail_json(r, "nested too deeply");
    r->depth++;
    nmlp_jinja_value v;
    if (skip(r, '"'))
        v = read_string(r);
    else if (skip(r, '{'))
        v = read_dict(r);
    else if (skip(r, '['))
        v = read_list(r);
    else if (read_word(r, "true"))
        v = nmlp_jinja_bool(true);
    else if (read_word(r, "false"))
        v = nmlp_jinja_bool(false);
    else if (read_word(r, "null"))
        v = nmlp_jinja_none();
    else
        v = read_number(r);
    r->depth--;
    return v;
}

nmlp_jinja_value nmlp_jinja_json_read(nmlp_jinja_run *run, const char *text, size_t len, bool user) {
    reader r = {.run = run, .at = text, .end = text + len, .user = user};
    if (nmlp_utf8_valid_prefix(text, len) != len) return fail_json(&r, "not valid UTF-8");
    nmlp_jinja_value v = read_value(&r);
    skip_space(&r);
    return r.at == r.end ? v : fail_json(&r, "something stands behind the value");
}

/* ---- writing ---- */

void nmlp_jinja_format_float(char *out, size_t out_bytes, double f) {
    if (isnan(f) || isinf(f)) {
        snprintf(out, out_bytes, "%s", isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    char digits[40];
    int precision = 1;
    do snprintf(digits, sizeof digits, "%.*e", precision - 1, f);
    while (strtod(digits, NULL) != f && ++precision <= 17);
    int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        *strchr(digits, 'e') = 0;
        snprintf(out, out_bytes, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - 1 - exponent;
    snprintf(out, out_bytes, "%.*f", decimals > 0 ? decimals : 1, f);
}

static void add_number(nmlp_jinja_run *run, nmlp_jinja_text *out, nmlp_jinja_value v) {
    char text[400];
    if (v.kind == NMLP_JINJA_INT)
        snprintf(text, sizeof text, "%lld", (long long)v.as.i);
    else
        nmlp_jinja_format_float(text, sizeof text, v.as.f);
    nmlp_jinja_text_puts(run, out, text);
}

/* How one character is written, "" for as it is: by JSON, or by repr() of Python. */
static void escape_of(char *text, size_t text_bytes, unsigned char c, bool json, char quote) {
    static const char from[] = "\n\r\t\b\f";
    static const char to[] = "nrtbf";
    const char *known = c ? memchr(from, c, json ? 5 : 3) : NULL;
    text[0] = 0;
    if (c == (unsigned char)quote || c == '\\')
        snprintf(text, text_bytes, "\\%c", c);
    else if (known)
        snprintf(text, text_bytes, "\\%c", to[known - from]);
    else if (c < 0x20 || (c == 0x7F && !json))
        snprintf(text, text_bytes, json ? "\\u%04x" : "\\x%02x", c);
}

/* Bytes that stay as they are go out together; escapes are a user's where their character is. */
static void add_escaped(nmlp_jinja_run *run, nmlp_jinja_text *out, const nmlp_jinja_string *s, bool json, char quote) {
    static const char mask[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    size_t done = 0;
    for (size_t i = 0; i < s->len && run->status == NMLP_OK; i++) {
        char text[8];
        escape_of(text, sizeof text, (unsigned char)s->data[i], json, quote);
        if (!text[0]) continue;
        nmlp_jinja_text_add(run, out, s->data + done, i - done, s->user ? s->user + done : NULL);
        nmlp_jinja_text_add(run, out, text, strlen(text), s->user && s->user[i] ? mask : NULL);
        done = i + 1;
    }
    nmlp_jinja_text_add(run, out, s->data + done, s->len - done, s->user ? s->user + done : NULL);
}

typedef struct writer {
    nmlp_jinja_run *run;
    nmlp_jinja_text *out;
    const nmlp_jinja_json_style *style;
    int level;
} writer;

static void new_line(writer *w) {
    if (w->style->indent < 0) return;
    nmlp_jinja_text_puts(w->run, w->out, "\n");
    for (int i = 0; i < w->style->indent * w->level; i++) nmlp_jinja_text_puts(w->run, w->out, " ");
}

static void put_separator(writer *w, const nmlp_jinja_string *given, const char *otherwise) {
    if (given)
        nmlp_jinja_text_add_string(w->run, w->out, given);
    else
        nmlp_jinja_text_puts(w->run, w->out, otherwise);
}

/* \u escapes for everything outside ASCII, in pairs above U+FFFF. */
static void add_ascii(writer *w, const nmlp_jinja_string *s) {
    static const char mask[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    for (size_t at = 0; at < s->len && w->run->status == NMLP_OK;) {
        char text[16];
        uint32_t c = 0;
        int n = nmlp_utf8_decode(s->data + at, s->len - at, &c);
        escape_of(text, sizeof text, (unsigned char)s->data[at], true, '"');
        if (c > 0xFFFF)
            snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                     (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
        else if (c > 0x7E)
            snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
        else if (!text[0])
            snprintf(text, sizeof text, "%c", (char)c);
        nmlp_jinja_text_add(w->run, w->out, text, strlen(text), s->user && s->user[at] ? mask : NULL);
        at += n > 0 ? (size_t)n : 1;
    }
}

static void write_json_string(writer *w, const nmlp_jinja_string *s) {
    nmlp_jinja_text_puts(w->run, w->out, "\"");
    if (w->style->ensure_ascii)
        add_ascii(w, s);
    else
        add_escaped(w->run, w->out, s, true, '"');
    nmlp_jinja_text_puts(w->run, w->out, "\"");
}

static void write_json(writer *w, nmlp_jinja_value v);

/* A list, or a dictionary when `keys` is given. */
static void write_members(writer *w, const nmlp_jinja_value *keys, const nmlp_jinja_value *values, size_t n) {
    nmlp_jinja_run *run = w->run;
    nmlp_jinja_text_puts(run, w->out, keys ? "{" : "[");
    w->level++;
    for (size_t i = 0; i < n && run->status == NMLP_OK; i++) {
        if (i) put_separator(w, w->style->item_separator, w->style->indent < 0 ? ", " : ",");
        new_line(w);
        if (keys) {
            nmlp_jinja_value key = nmlp_jinja_to_string(run, keys[i]);
            if (run->status != NMLP_OK) return;
            write_json_string(w, key.as.s);
            put_separator(w, w->style->key_separator, ": ");
        }
        write_json(w, values[i]);
    }
    w->level--;
    if (n) new_line(w);
    nmlp_jinja_text_puts(run, w->out, keys ? "}" : "]");
}

static void write_json(writer *w, nmlp_jinja_value v) {
    static const nmlp_jinja_value no_keys;
    nmlp_jinja_run *run = w->run;
    if (w->level >= NMLP_JINJA_DEPTH_MAX) {
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "values nested too deeply");
        return;
    }
    switch (v.kind) {
    case NMLP_JINJA_NONE: nmlp_jinja_text_puts(run, w->out, "null"); break;
    case NMLP_JINJA_BOOL: nmlp_jinja_text_puts(run, w->out, v.as.b ? "true" : "false"); break;
    case NMLP_JINJA_INT:
    case NMLP_JINJA_FLOAT: add_number(run, w->out, v); break;
    case NMLP_JINJA_STRING: write_json_string(w, v.as.s); break;
    case NMLP_JINJA_LIST: write_members(w, NULL, v.as.list->items, v.as.list->n); break;
    case NMLP_JINJA_DICT:
        write_members(w, v.as.dict->n ? v.as.dict->keys : &no_keys, v.as.dict->values, v.as.dict->n);
        break;
    default: nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s cannot be written as JSON", nmlp_jinja_kind_name(v));
    }
}

/* A copy with its keys in order, at every depth. */
static nmlp_jinja_value sorted(nmlp_jinja_run *run, nmlp_jinja_value v, int depth) {
    if (depth >= NMLP_JINJA_DEPTH_MAX) return nmlp_jinja_fail(run, NMLP_E_LIMIT, "values nested too deeply");
    if (v.kind == NMLP_JINJA_LIST) {
        nmlp_jinja_value list = nmlp_jinja_list_new(run, false);
        for (size_t i = 0; i < v.as.list->n && run->status == NMLP_OK; i++)
            nmlp_jinja_list_push(run, list.as.list, sorted(run, v.as.list->items[i], depth + 1));
        return list;
    }
    if (v.kind != NMLP_JINJA_DICT) return v;
    const nmlp_jinja_args none = {0};
    nmlp_jinja_value pairs = nmlp_jinja_filter(run, "dictsort", v, &none);
    nmlp_jinja_value dict = nmlp_jinja_dict_new(run);
    for (size_t i = 0; run->status == NMLP_OK && i < pairs.as.list->n; i++) {
        const nmlp_jinja_value *pair = pairs.as.list->items[i].as.list->items;
        nmlp_jinja_dict_put(run, dict.as.dict, pair[0], sorted(run, pair[1], depth + 1));
    }
    return dict;
}

void nmlp_jinja_json_write(nmlp_jinja_run *run, nmlp_jinja_text *out, nmlp_jinja_value v,
                           const nmlp_jinja_json_style *style) {
    writer w = {.run = run, .out = out, .style = style};
    if (style->sort_keys) v = sorted(run, v, 0);
    if (run->status == NMLP_OK) write_json(&w, v);
}

/* repr() of Python, inside lists and dictionaries. */
static void add_repr(nmlp_jinja_run *run, nmlp_jinja_text *out, nmlp_jinja_value v) {
    if (v.kind == NMLP_JINJA_UNDEFINED) {
        nmlp_jinja_text_puts(run, out, "Undefined");
    } else if (v.kind == NMLP_JINJA_STRING) {
        const nmlp_jinja_string *s = v.as.s;
        bool both = memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len);
        nmlp_jinja_text_puts(run, out, both ? "\"" : "'");
        add_escaped(run, out, s, false, both ? '"' : '\'');
        nmlp_jinja_text_puts(run, out, both ? "\"" : "'");
    } else {
        nmlp_jinja_text_add_value(run, out, v);
    }
}

static void add_list(nmlp_jinja_run *run, nmlp_jinja_text *out, const nmlp_jinja_list *list) {
    nmlp_jinja_text_puts(run, out, list->is_tuple ? "(" : "[");
    for (size_t i = 0; i < list->n && run->status == NMLP_OK; i++) {
        if (i) nmlp_jinja_text_puts(run, out, ", ");
        add_repr(run, out, list->items[i]);
    }
    if (list->is_tuple && list->n == 1) nmlp_jinja_text_puts(run, out, ",");
    nmlp_jinja_text_puts(run, out, list->is_tuple ? ")" : "]");
}

static void add_dict(nmlp_jinja_run *run, nmlp_jinja_text *out, const nmlp_jinja_dict *dict) {
    nmlp_jinja_text_puts(run, out, "{");
    for (size_t i = 0; i < dict->n && run->status == NMLP_OK; i++) {
        if (i) nmlp_jinja_text_puts(run, out, ", ");
        add_repr(run, out, dict->keys[i]);
        nmlp_jinja_text_puts(run, out, ": ");
        add_repr(run, out, dict->values[i]);
    }
    nmlp_jinja_text_puts(run, out, "}");
}

void nmlp_jinja_text_add_value(nmlp_jinja_run *run, nmlp_jinja_text *text, nmlp_jinja_value v) {
    if (run->depth >= NMLP_JINJA_DEPTH_MAX) {
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "values nested too deeply");
        return;
    }
    run->depth++;
    switch (v.kind) {
    case NMLP_JINJA_UNDEFINED: break;
    case NMLP_JINJA_NONE: nmlp_jinja_text_puts(run, text, "None"); break;
    case NMLP_JINJA_BOOL: nmlp_jinja_text_puts(run, text, v.as.b ? "True" : "False"); break;
    case NMLP_JINJA_INT:
    case NMLP_JINJA_FLOAT: add_number(run, text, v); break;
    case NMLP_JINJA_STRING: nmlp_jinja_text_add_string(run, text, v.as.s); break;
    case NMLP_JINJA_LIST: add_list(run, text, v.as.list); break;
    case NMLP_JINJA_DICT: add_dict(run, text, v.as.dict); break;
    default: nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s cannot be written", nmlp_jinja_kind_name(v));
    }
    run->depth--;
}
