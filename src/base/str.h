/* A growing byte string. Appending never fails half-way: on lack of memory the string is marked `failed` and
 * later appends do nothing, so callers check once at the end with nmlp_str_status. */
#ifndef NMLP_BASE_STR_H
#define NMLP_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct nmlp_str {
    char *data; /* NUL-ended once anything was appended; may hold NUL bytes itself */
    size_t len;
    size_t capacity;
    bool failed;
} nmlp_str;

void nmlp_str_init(nmlp_str *str);
void nmlp_str_fini(nmlp_str *str);
void nmlp_str_clear(nmlp_str *str);
void nmlp_str_append(nmlp_str *str, const void *bytes, size_t len);
void nmlp_str_puts(nmlp_str *str, const char *text);
void nmlp_str_putc(nmlp_str *str, char c);
void nmlp_str_printf(nmlp_str *str, const char *fmt, ...) NMLP_PRINTF(2, 3);
const char *nmlp_str_text(const nmlp_str *str); /* never NULL */
nmlp_status nmlp_str_status(const nmlp_str *str, nmlp_err *err);

#endif
