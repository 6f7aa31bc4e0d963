/* Reading JSON. A facade over cJSON, which no other file includes: lookups are case-sensitive, the whole text must
 * be one value, and typed getters say which key of which file is wrong.
 * A document is immutable after parsing and may be shared between threads. */
#ifndef NMLP_BASE_JSON_H
#define NMLP_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_json nmlp_json; /* one value */

typedef struct nmlp_json_doc {
    nmlp_json *root;
    char *origin; /* file name for messages */
} nmlp_json_doc;

/* What a text will be once it is parsed, counted without parsing it; of a text that is not JSON, anything. */
typedef struct nmlp_json_size {
    size_t n_values, n_strings;
    size_t bytes; /* of memory for all of them */
} nmlp_json_size;

nmlp_json_size nmlp_json_measure(const char *text, size_t len);

/* Refuses texts of more values than any real file has: parsed, each takes about a hundred bytes. */
nmlp_status nmlp_json_parse(nmlp_json_doc *doc, const char *text, size_t len, const char *origin, nmlp_err *err);
nmlp_status nmlp_json_load(nmlp_json_doc *doc, const char *path, nmlp_err *err);
void nmlp_json_free(nmlp_json_doc *doc);

bool nmlp_json_is_object(const nmlp_json *value);
bool nmlp_json_is_array(const nmlp_json *value);
bool nmlp_json_is_string(const nmlp_json *value);
bool nmlp_json_is_number(const nmlp_json *value);
bool nmlp_json_is_bool(const nmlp_json *value);
bool nmlp_json_is_null(const nmlp_json *value); /* absent (NULL) counts as null */

/* The same value, members in any order. */
bool nmlp_json_equal(const nmlp_json *a, const nmlp_json *b);

/* Member of an object, or NULL. Linear in the number of members: iterate over big objects instead. */
const nmlp_json *nmlp_json_get(const nmlp_json *object, const char *key);

/* Children of an object or array in order; NULL at the end. */
const nmlp_json *nmlp_json_first(const nmlp_json *container);
const nmlp_json *nmlp_json_next(const nmlp_json *value);
size_t nmlp_json_count(const nmlp_json *container);
const char *nmlp_json_key(const nmlp_json *member);

/* Values without checks: "" / 0 / false when the kind is another. */
const char *nmlp_json_string(const nmlp_json *value);
double nmlp_json_number(const nmlp_json *value);
bool nmlp_json_bool(const nmlp_json *value);
/* A whole number within [min,max]; false otherwise. */
bool nmlp_json_int_in(const nmlp_json *value, int64_t min, int64_t max, int64_t *out);

/* Typed members; the error names file and key. `optional_*` leave *out alone when absent or null. */
nmlp_status nmlp_json_need_int(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, int64_t min,
                               int64_t max, int64_t *out, nmlp_err *err);
nmlp_status nmlp_json_optional_int(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, int64_t min,
                                   int64_t max, int64_t *out, nmlp_err *err);
nmlp_status nmlp_json_need_number(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, double *out,
                                  nmlp_err *err);
nmlp_status nmlp_json_optional_number(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, double *out,
                                      nmlp_err *err);
nmlp_status nmlp_json_optional_bool(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, bool *out,
                                    nmlp_err *err);
nmlp_status nmlp_json_need_string(const nmlp_json_doc *doc, const nmlp_json *object, const char *key, const char **out,
                                  nmlp_err *err);
nmlp_status nmlp_json_need_object(const nmlp_json_doc *doc, const nmlp_json *object, const char *key,
                                  const nmlp_json **out, nmlp_err *err);

#endif
