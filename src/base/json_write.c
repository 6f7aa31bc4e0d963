#include "base/json_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nmlp_json_writer_init(nmlp_json_writer *w, nmlp_str *out) { *w = (nmlp_json_writer){.out = out}; }

/* Bytes of the UTF-8 character at text[0], or 0 where there is none: names of files may be any bytes, JSON may not. */
static size_t utf8_len(const unsigned char *text, size_t len) {
    unsigned char c = text[0];
    size_t n = c < 0x80 ? 1 : c >= 0xc2 && c <= 0xdf ? 2 : c >= 0xe0 && c <= 0xef ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (n == 0 || n > len) return 0;
    for (size_t i = 1; i < n; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    bool overlong = (c == 0xe0 && text[1] < 0xa0) || (c == 0xf0 && text[1] < 0x90);
    bool outside = (c == 0xed && text[1] > 0x9f) || (c == 0xf4 && text[1] > 0x8f); /* surrogates, above U+10FFFF */
    return overlong || outside ? 0 : n;
}

static void put_quoted(nmlp_str *out, const char *text, size_t len) {
    nmlp_str_putc(out, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        switch (c) {
        case '"': nmlp_str_puts(out, "\\\""); break;
        case '\\': nmlp_str_puts(out, "\\\\"); break;
        case '\n': nmlp_str_puts(out, "\\n"); break;
        case '\r': nmlp_str_puts(out, "\\r"); break;
        case '\t': nmlp_str_puts(out, "\\t"); break;
        default:
            if (c < 0x20 || c == 0x7f) {
                nmlp_str_printf(out, "\\u%04x", c);
            } else {
                size_t n = utf8_len((const unsigned char *)text + i, len - i);
                if (n == 0) nmlp_str_puts(out, "\\ufffd");
                if (n > 0) nmlp_str_append(out, text + i, n);
                if (n > 1) i += n - 1;
            }
        }
    }
    nmlp_str_putc(out, '"');
}

static void begin_value(nmlp_json_writer *w, const char *key) {
    if (w->need_comma) nmlp_str_putc(w->out, ',');
    w->need_comma = true;
    if (key) {
        put_quoted(w->out, key, strlen(key));
        nmlp_str_putc(w->out, ':');
    }
}

void nmlp_json_begin_object(nmlp_json_writer *w, const char *key) {
    begin_value(w, key);
    nmlp_str_putc(w->out, '{');
    w->need_comma = false;
}

void nmlp_json_end_object(nmlp_json_writer *w) {
    nmlp_str_putc(w->out, '}');
    w->need_comma = true;
}

void nmlp_json_begin_array(nmlp_json_writer *w, const char *key) {
    begin_value(w, key);
    nmlp_str_putc(w->out, '[');
    w->need_comma = false;
}

void nmlp_json_end_array(nmlp_json_writer *w) {
    nmlp_str_putc(w->out, ']');
    w->need_comma = true;
}

void nmlp_json_put_bytes(nmlp_json_writer *w, const char *key, const char *text, size_t len) {
    begin_value(w, key);
    put_quoted(w->out, text, len);
}

void nmlp_json_put_string(nmlp_json_writer *w, const char *key, const char *text) {
    nmlp_json_put_bytes(w, key, text, strlen(text));
}

void nmlp_json_put_int(nmlp_json_writer *w, const char *key, int64_t number) {
    begin_value(w, key);
    nmlp_str_printf(w->out, "%" PRId64, number);
}

void nmlp_json_put_number(nmlp_json_writer *w, const char *key, double number) {
    char text[32];
    if (!isfinite(number)) {
        nmlp_json_put_null(w, key);
        return;
    }
    begin_value(w, key);
    snprintf(text, sizeof text, "%.9g", number);
    if (strtod(text, NULL) != number) snprintf(text, sizeof text, "%.17g", number);
    nmlp_str_puts(w->out, text);
}

void nmlp_json_put_bool(nmlp_json_writer *w, const char *key, bool value) {
    begin_value(w, key);
    nmlp_str_puts(w->out, value ? "true" : "false");
}

void nmlp_json_put_null(nmlp_json_writer *w, const char *key) {
    begin_value(w, key);
    nmlp_str_puts(w->out, "null");
}

void nmlp_json_put_value(nmlp_json_writer *w, const char *key, const nmlp_json *value) {
    bool is_object = nmlp_json_is_object(value);
    if (is_object || nmlp_json_is_array(value)) {
        (is_object ? nmlp_json_begin_object : nmlp_json_begin_array)(w, key);
        for (const nmlp_json *v = nmlp_json_first(value); v; v = nmlp_json_next(v))
            nmlp_json_put_value(w, is_object ? nmlp_json_key(v) : NULL, v);
        (is_object ? nmlp_json_end_object : nmlp_json_end_array)(w);
    } else if (nmlp_json_is_string(value)) {
        nmlp_json_put_string(w, key, nmlp_json_string(value));
    } else if (nmlp_json_is_number(value)) {
        nmlp_json_put_number(w, key, nmlp_json_number(value));
    } else if (nmlp_json_is_bool(value)) {
        nmlp_json_put_bool(w, key, nmlp_json_bool(value));
    } else {
        nmlp_json_put_null(w, key);
    }
}
