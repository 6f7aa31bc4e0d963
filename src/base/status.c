#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

nmlp_status nmlp_fail(nmlp_err *err, nmlp_status code, const char *fmt, ...) {
    if (err) {
        va_list args;
        err->code = code;
        err->hint[0] = '\0';
        err->field[0] = '\0';
        va_start(args, fmt);
        vsnprintf(err->message, sizeof err->message, fmt, args);
        va_end(args);
    }
    return code;
}

nmlp_status nmlp_fail_field(nmlp_err *err, nmlp_status code, const char *field, const char *fmt, ...) {
    if (err) {
        char text[NMLP_ERR_MESSAGE_MAX];
        va_list args;
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        nmlp_fail(err, code, "%s %s", field, text);
        snprintf(err->field, sizeof err->field, "%s", field);
    }
    return code;
}

nmlp_status nmlp_check_count(const char *field, int64_t value, int64_t least, int64_t most, nmlp_err *err) {
    if (value >= least && value <= most) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, field, "is %lld; it must be from %lld to %lld", (long long)value,
                           (long long)least, (long long)most);
}

void nmlp_fail_context(nmlp_err *err, const char *fmt, ...) {
    char inner[NMLP_ERR_MESSAGE_MAX];
    va_list args;
    if (!err) return;
    memcpy(inner, err->message, sizeof inner);
    va_start(args, fmt);
    int n = vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n + 3 > sizeof err->message) return;
    snprintf(err->message + n, sizeof err->message - (size_t)n, ": %s", inner);
}

void nmlp_fail_hint(nmlp_err *err, const char *fmt, ...) {
    va_list args;
    if (!err) return;
    va_start(args, fmt);
    vsnprintf(err->hint, sizeof err->hint, fmt, args);
    va_end(args);
}
