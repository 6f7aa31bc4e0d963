#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void nmlp_str_init(nmlp_str *str) { *str = (nmlp_str){0}; }

void nmlp_str_fini(nmlp_str *str) {
    nmlp_mem_free(str->data);
    *str = (nmlp_str){0};
}

void nmlp_str_clear(nmlp_str *str) {
    str->len = 0;
    if (str->data) str->data[0] = '\0';
}

static bool reserve(nmlp_str *str, size_t extra) {
    size_t need;
    void *data = str->data;
    if (str->failed) return false;
    if (nmlp_add_overflows(str->len, extra, &need) || nmlp_add_overflows(need, 1, &need) ||
        nmlp_mem_grow(&data, &str->capacity, need, 1, NULL) != NMLP_OK) {
        str->failed = true;
        return false;
    }
    str->data = data;
    return true;
}

void nmlp_str_append(nmlp_str *str, const void *bytes, size_t len) {
    if (!reserve(str, len)) return;
    if (len) memcpy(str->data + str->len, bytes, len);
    str->len += len;
    str->data[str->len] = '\0';
}

void nmlp_str_puts(nmlp_str *str, const char *text) { nmlp_str_append(str, text, strlen(text)); }

void nmlp_str_putc(nmlp_str *str, char c) { nmlp_str_append(str, &c, 1); }

void nmlp_str_printf(nmlp_str *str, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || !reserve(str, (size_t)n)) return;
    va_start(args, fmt);
    vsnprintf(str->data + str->len, (size_t)n + 1, fmt, args);
    va_end(args);
    str->len += (size_t)n;
}

const char *nmlp_str_text(const nmlp_str *str) { return str->data ? str->data : ""; }

nmlp_status nmlp_str_status(const nmlp_str *str, nmlp_err *err) {
    return str->failed ? nmlp_fail(err, NMLP_E_NOMEM, "out of memory while building a text") : NMLP_OK;
}
