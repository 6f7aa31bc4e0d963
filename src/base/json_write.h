/* Writing JSON, streaming into a string: commas, quoting and nesting are taken care of. Non-finite numbers become null
 * and bytes that are no UTF-8 U+FFFD, since JSON has no word for them. */
#ifndef NMLP_BASE_JSON_WRITE_H
#define NMLP_BASE_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/str.h"

typedef struct nmlp_json_writer {
    nmlp_str *out;
    bool need_comma;
} nmlp_json_writer;

void nmlp_json_writer_init(nmlp_json_writer *w, nmlp_str *out);
/* `key` is NULL inside arrays and at the top. */
void nmlp_json_begin_object(nmlp_json_writer *w, const char *key);
void nmlp_json_end_object(nmlp_json_writer *w);
void nmlp_json_begin_array(nmlp_json_writer *w, const char *key);
void nmlp_json_end_array(nmlp_json_writer *w);
void nmlp_json_put_string(nmlp_json_writer *w, const char *key, const char *text);
void nmlp_json_put_bytes(nmlp_json_writer *w, const char *key, const char *text, size_t len);
void nmlp_json_put_int(nmlp_json_writer *w, const char *key, int64_t number);
void nmlp_json_put_number(nmlp_json_writer *w, const char *key, double number); /* shortest of 9 or 17 digits */
void nmlp_json_put_bool(nmlp_json_writer *w, const char *key, bool value);
void nmlp_json_put_null(nmlp_json_writer *w, const char *key);
/* A value that was read, with all in it. */
void nmlp_json_put_value(nmlp_json_writer *w, const char *key, const nmlp_json *value);

#endif
