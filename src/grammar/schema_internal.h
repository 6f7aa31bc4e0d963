/* A JSON Schema on its way into a grammar; shared by json_schema.c and the files of its parts. Each function appends
 * what derives a schema to `out`, and rules it needs besides to the document. */
#ifndef NMLP_GRAMMAR_SCHEMA_INTERNAL_H
#define NMLP_GRAMMAR_SCHEMA_INTERNAL_H

#include "grammar/json_schema.h"

typedef struct nmlp_schema_document {
    nmlp_str *out;
    const char *name, *field;
    const nmlp_json *root;
    const nmlp_json **nodes; /* schemas in the order they were met: their numbers */
    size_t n_nodes, capacity;
    int nesting;
    nmlp_err *err;
} nmlp_schema_document;

/* json_schema.c */
nmlp_status nmlp_schema_refuse(const nmlp_schema_document *d, const char *keyword);
nmlp_status nmlp_schema_wrong(const nmlp_schema_document *d, const char *keyword, const char *expected);
/* The number of 0 or more under `key`. */
nmlp_status nmlp_schema_count(const nmlp_schema_document *d, const nmlp_json *schema, const char *key,
                              int64_t otherwise, int64_t *out);
/* The name of the rule of a schema, and its rule where it is new. */
nmlp_status nmlp_schema_put(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema);

/* schema_scalars.c: values that are given, strings, numbers. */
nmlp_status nmlp_schema_put_value(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *value);
nmlp_status nmlp_schema_put_enum(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema);
nmlp_status nmlp_schema_put_string(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema);
nmlp_status nmlp_schema_put_number(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema, bool integer);

/* schema_containers.c */
nmlp_status nmlp_schema_put_array(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema);
/* `number` is that of the schema. */
nmlp_status nmlp_schema_put_object(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema, size_t number);
bool nmlp_schema_requires(const nmlp_json *schema, const char *key);

#endif
