#include "eval/csv.h"

#include <stdbool.h>
#include <string.h>

/* A quoted field from behind its opening quote to behind its closing one. */
static nmlp_status quoted(const char *text, size_t len, size_t *at, nmlp_str *fields, int64_t *n_lines, nmlp_err *err) {
    while (*at < len) {
        char c = text[(*at)++];
        if (c == '"') {
            if (*at == len || text[*at] != '"') return NMLP_OK;
            (*at)++;
        }
        if (c == '\n') (*n_lines)++;
        nmlp_str_putc(fields, c);
    }
    return nmlp_fail(err, NMLP_E_FORMAT, "a quote is not closed");
}

static bool ends_line(const char *text, size_t len, size_t at) {
    return at == len || text[at] == '\n' || (text[at] == '\r' && (at + 1 == len || text[at + 1] == '\n'));
}

nmlp_status nmlp_csv_record(const char *text, size_t len, size_t *at, char separator, nmlp_str *fields,
                            size_t *n_fields, int64_t *n_lines, nmlp_err *err) {
    *n_fields = 0;
    *n_lines = 0;
    for (;;) {
        if (*at < len && text[*at] == '"' && separator == ',') {
            (*at)++;
            NMLP_RETURN_IF_FAILED(quoted(text, len, at, fields, n_lines, err));
            if (!ends_line(text, len, *at) && text[*at] != separator)
                return nmlp_fail(err, NMLP_E_FORMAT, "field %zu goes on behind its closing quote", *n_fields + 1);
        } else {
            while (!ends_line(text, len, *at) && text[*at] != separator) nmlp_str_putc(fields, text[(*at)++]);
        }
        nmlp_str_putc(fields, '\0');
        (*n_fields)++;
        if (ends_line(text, len, *at)) break;
        (*at)++; /* the separator */
    }
    if (*at < len && text[*at] == '\r') (*at)++;
    if (*at < len) {
        (*at)++;
        (*n_lines)++;
    }
    return nmlp_str_status(fields, err);
}
