#include "grammar/json_schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "grammar/schema_internal.h"

enum { NODES_MAX = 5000, NESTING_MAX = 100 };

/* ---- JSON itself ---- */

void nmlp_json_grammar_append(nmlp_str *out) {
    nmlp_str_puts(out, "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n"
                       "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
                       "object ::= \"{\" ws (string \":\" ws value (\",\" ws string \":\" ws value)* ws)? \"}\"\n"
                       "array ::= \"[\" ws (value (\",\" ws value)* ws)? \"]\"\n"
                       "string ::= \"\\\"\" char* \"\\\"\"\n"
                       "char ::= [^\"\\\\\\x00-\\x1f\\x7f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" unit)\n"
                       /* no NUL, and no half of a surrogate pair */
                       "unit ::= \"00\" ([1-9a-fA-F] hex | \"0\" [1-9a-fA-F]) | \"0\" [1-9a-fA-F] hex{2} |"
                       " [1-9a-cA-CeEfF] hex{3} | [dD] [0-7] hex{2}\n"
                       "hex ::= [0-9a-fA-F]\n"
                       "number ::= integer (\".\" [0-9]{1,15})? ([eE] [\\-+]? [0-9]{1,2})?\n"
                       "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14})\n");
}

void nmlp_schema_literal_append(nmlp_str *out, const char *text, size_t len) {
    nmlp_str_putc(out, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            nmlp_str_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            nmlp_str_printf(out, "\\x%02x", c);
        else
            nmlp_str_putc(out, (char)c);
    }
    nmlp_str_puts(out, "\" ");
}

/* ---- one document ---- */

nmlp_status nmlp_schema_refuse(const nmlp_schema_document *d, const char *keyword) {
    return nmlp_fail_field(d->err, NMLP_E_UNSUPPORTED, d->field, "has a schema with \"%.60s\", which is not supported",
                           keyword);
}

nmlp_status nmlp_schema_wrong(const nmlp_schema_document *d, const char *keyword, const char *expected) {
    return nmlp_fail_field(d->err, NMLP_E_ARG, d->field, "has a schema whose \"%.60s\" is not %s", keyword, expected);
}

static void put_name(const nmlp_schema_document *d, nmlp_str *out, size_t number) {
    nmlp_str_printf(out, "%s-%zu ", d->name, number);
}

static bool has(const nmlp_json *schema, const char *key) { return nmlp_json_get(schema, key) != NULL; }

nmlp_status nmlp_schema_count(const nmlp_schema_document *d, const nmlp_json *schema, const char *key,
                              int64_t otherwise, int64_t *out) {
    const nmlp_json *value = nmlp_json_get(schema, key);
    *out = otherwise;
    if (!value || nmlp_json_int_in(value, 0, 100000, out)) return NMLP_OK;
    return nmlp_schema_wrong(d, key, "a whole number from 0 to 100000");
}

/* ---- schemas ---- */

static const char *const annotations[] = {"title",   "description", "default",    "examples",      "$schema",
                                          "$id",     "$comment",    "deprecated", "readOnly",      "writeOnly",
                                          "$defs",   "definitions", "strict",     "discriminator", "contentMediaType",
                                          "$anchor", NULL};
static const char *const of_types[] = {"type",
                                       "properties",
                                       "required",
                                       "additionalProperties",
                                       "items",
                                       "minItems",
                                       "maxItems",
                                       "minLength",
                                       "maxLength",
                                       "pattern",
                                       "format",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       "prefixItems",
                                       "uniqueItems",
                                       NULL};
static const char *const alone[] = {"enum", "const", "anyOf", "oneOf", "allOf", "$ref", NULL};

static bool is_among(const char *const *list, const char *key) {
    while (*list && strcmp(*list, key) != 0) list++;
    return *list != NULL;
}

/* Refuses keywords nobody here knows; gives the one that stands for all (of `alone`), or NULL. */
static nmlp_status check_keywords(const nmlp_schema_document *d, const nmlp_json *schema, const char **main_key) {
    const char *typed = NULL;
    *main_key = NULL;
    for (const nmlp_json *m = nmlp_json_first(schema); m; m = nmlp_json_next(m)) {
        const char *key = nmlp_json_key(m);
        if (is_among(alone, key)) {
            if (*main_key)
                return nmlp_fail_field(d->err, NMLP_E_UNSUPPORTED, d->field,
                                       "has a schema with \"%s\" beside \"%s\", which is not supported", key,
                                       *main_key);
            *main_key = key;
        } else if (is_among(of_types, key)) {
            if (strcmp(key, "type") != 0) typed = key;
        } else if (!is_among(annotations, key)) {
            return nmlp_schema_refuse(d, key);
        }
    }
    if (*main_key && typed)
        return nmlp_fail_field(d->err, NMLP_E_UNSUPPORTED, d->field,
                               "has a schema with \"%s\" beside \"%s\", which is not supported", typed, *main_key);
    return NMLP_OK;
}

/* "#/$defs/name"; NULL: no such place. */
static const nmlp_json *resolve(const nmlp_schema_document *d, const char *pointer) {
    const nmlp_json *at = d->root;
    char part[256];
    if (*pointer++ != '#') return NULL;
    while (*pointer == '/' && at) {
        size_t n = 0;
        for (pointer++; *pointer && *pointer != '/' && n + 1 < sizeof part; pointer++) {
            char c = *pointer;
            if (c == '~' && (pointer[1] == '0' || pointer[1] == '1')) c = *++pointer == '0' ? '~' : '/';
            part[n++] = c;
        }
        part[n] = '\0';
        const nmlp_json *next = nmlp_json_is_object(at) ? nmlp_json_get(at, part) : NULL;
        if (nmlp_json_is_array(at)) {
            next = nmlp_json_first(at);
            for (long i = strtol(part, NULL, 10); next && i > 0; i--) next = nmlp_json_next(next);
        }
        at = next;
    }
    return *pointer ? NULL : at;
}

/* The case's own mark: a required property with one value. Two cases with different marks exclude each other. */
static const nmlp_json *mark_of(const nmlp_json *schema, const char *key) {
    const nmlp_json *property = nmlp_json_get(nmlp_json_get(schema, "properties"), key);
    const nmlp_json *values = nmlp_json_get(property, "enum");
    if (!nmlp_schema_requires(schema, key)) return NULL;
    if (nmlp_json_count(values) == 1) return nmlp_json_first(values);
    return nmlp_json_get(property, "const");
}

static bool exclude_each_other(const nmlp_schema_document *d, const nmlp_json *a, const nmlp_json *b) {
    if (has(a, "$ref")) a = resolve(d, nmlp_json_string(nmlp_json_get(a, "$ref")));
    if (has(b, "$ref")) b = resolve(d, nmlp_json_string(nmlp_json_get(b, "$ref")));
    const char *ta = nmlp_json_string(nmlp_json_get(a, "type")), *tb = nmlp_json_string(nmlp_json_get(b, "type"));
    if (ta[0] && tb[0] && strcmp(ta, tb) != 0)
        return !((strcmp(ta, "number") == 0 && strcmp(tb, "integer") == 0) ||
                 (strcmp(tb, "number") == 0 && strcmp(ta, "integer") == 0));
    if (has(a, "const") && has(b, "const"))
        return !nmlp_json_equal(nmlp_json_get(a, "const"), nmlp_json_get(b, "const"));
    for (const nmlp_json *p = nmlp_json_first(nmlp_json_get(a, "properties")); p; p = nmlp_json_next(p)) {
        const nmlp_json *ma = mark_of(a, nmlp_json_key(p)), *mb = mark_of(b, nmlp_json_key(p));
        if (ma && mb && !nmlp_json_equal(ma, mb)) return true;
    }
    return false;
}

static nmlp_status put_cases(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema, const char *key) {
    const nmlp_json *cases = nmlp_json_get(schema, key);
    if (!nmlp_json_is_array(cases) || nmlp_json_count(cases) == 0)
        return nmlp_schema_wrong(d, key, "a list of schemas");
    if (has(schema, "type")) return nmlp_schema_refuse(d, "type beside cases");
    if (strcmp(key, "allOf") == 0 && nmlp_json_count(cases) > 1) return nmlp_schema_refuse(d, "allOf of several");
    for (const nmlp_json *c = nmlp_json_first(cases); c; c = nmlp_json_next(c)) {
        for (const nmlp_json *other = nmlp_json_next(c); other && strcmp(key, "oneOf") == 0;
             other = nmlp_json_next(other))
            if (!exclude_each_other(d, c, other)) return nmlp_schema_refuse(d, "oneOf whose cases may overlap");
        if (c != nmlp_json_first(cases)) nmlp_str_puts(out, "| ");
        NMLP_RETURN_IF_FAILED(nmlp_schema_put(d, out, c));
    }
    return NMLP_OK;
}

static nmlp_status put_type(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema, const char *type,
                            size_t number) {
    if (strcmp(type, "string") == 0) return nmlp_schema_put_string(d, out, schema);
    if (strcmp(type, "integer") == 0) return nmlp_schema_put_number(d, out, schema, true);
    if (strcmp(type, "number") == 0) return nmlp_schema_put_number(d, out, schema, false);
    if (strcmp(type, "object") == 0) return nmlp_schema_put_object(d, out, schema, number);
    if (strcmp(type, "array") == 0) return nmlp_schema_put_array(d, out, schema);
    if (strcmp(type, "boolean") == 0)
        nmlp_str_puts(out, "(\"true\" | \"false\") ");
    else if (strcmp(type, "null") == 0)
        nmlp_str_puts(out, "\"null\" ");
    else
        return nmlp_schema_wrong(d, "type", "one of JSON");
    return NMLP_OK;
}

/* What the other keywords speak of where none says the type. */
static const char *implied_type(const nmlp_json *schema) {
    if (has(schema, "properties") || has(schema, "required") || has(schema, "additionalProperties")) return "object";
    if (has(schema, "items") || has(schema, "prefixItems") || has(schema, "minItems") || has(schema, "maxItems"))
        return "array";
    if (has(schema, "pattern") || has(schema, "format") || has(schema, "minLength") || has(schema, "maxLength"))
        return "string";
    if (has(schema, "minimum") || has(schema, "maximum") || has(schema, "exclusiveMinimum") ||
        has(schema, "exclusiveMaximum"))
        return "number";
    return NULL;
}

static nmlp_status put_body(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema, size_t number) {
    const char *key, *implied = implied_type(schema);
    const nmlp_json *type = nmlp_json_get(schema, "type");
    NMLP_RETURN_IF_FAILED(check_keywords(d, schema, &key));
    if (key && strcmp(key, "const") == 0) return nmlp_schema_put_value(d, out, nmlp_json_get(schema, key));
    if (key && strcmp(key, "enum") == 0) return nmlp_schema_put_enum(d, out, schema);
    if (key && strcmp(key, "$ref") == 0) {
        const char *pointer = nmlp_json_string(nmlp_json_get(schema, key));
        const nmlp_json *target = resolve(d, pointer);
        if (target) return nmlp_schema_put(d, out, target);
        return nmlp_fail_field(d->err, NMLP_E_ARG, d->field,
                               "has a schema with \"$ref\": \"%.60s\", which is not there", pointer);
    }
    if (key) return put_cases(d, out, schema, key);
    if (nmlp_json_is_array(type)) {
        for (const nmlp_json *one = nmlp_json_first(type); one; one = nmlp_json_next(one)) {
            if (one != nmlp_json_first(type)) nmlp_str_puts(out, "| ");
            NMLP_RETURN_IF_FAILED(put_type(d, out, schema, nmlp_json_string(one), number));
        }
        return nmlp_json_count(type) > 0 ? NMLP_OK : nmlp_schema_wrong(d, "type", "one of JSON");
    }
    if (type && !nmlp_json_is_string(type)) return nmlp_schema_wrong(d, "type", "a name or a list of names");
    if (type || implied) return put_type(d, out, schema, type ? nmlp_json_string(type) : implied, number);
    nmlp_str_puts(out, "value ");
    return NMLP_OK;
}

nmlp_status nmlp_schema_put(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema) {
    nmlp_str body;
    void *nodes = (void *)d->nodes;
    if (nmlp_json_is_bool(schema) && nmlp_json_bool(schema)) {
        nmlp_str_puts(out, "value ");
        return NMLP_OK;
    }
    if (!nmlp_json_is_object(schema))
        return nmlp_json_is_bool(schema) ? nmlp_schema_refuse(d, "false") : nmlp_schema_wrong(d, "schema", "an object");
    for (size_t i = 0; i < d->n_nodes; i++) {
        if (d->nodes[i] != schema) continue;
        put_name(d, out, i);
        return NMLP_OK;
    }
    if (d->n_nodes == NODES_MAX || d->nesting == NESTING_MAX) return nmlp_schema_refuse(d, "so many parts");
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&nodes, &d->capacity, d->n_nodes + 1, sizeof(const nmlp_json *), d->err));
    d->nodes = nodes;
    size_t number = d->n_nodes++;
    d->nodes[number] = schema;
    nmlp_str_init(&body);
    d->nesting++;
    nmlp_status st = put_body(d, &body, schema, number);
    d->nesting--;
    if (st == NMLP_OK) st = nmlp_str_status(&body, d->err);
    if (st == NMLP_OK) nmlp_str_printf(d->out, "%s-%zu ::= %s\n", d->name, number, nmlp_str_text(&body));
    nmlp_str_fini(&body);
    put_name(d, out, number);
    return st;
}

nmlp_status nmlp_json_schema_append(nmlp_str *out, const char *name, const nmlp_json *schema, const char *field,
                                    nmlp_err *err) {
    nmlp_schema_document d = {.out = out, .name = name, .field = field, .root = schema, .err = err};
    nmlp_str start;
    nmlp_str_init(&start);
    nmlp_status st = nmlp_schema_put(&d, &start, schema);
    if (st == NMLP_OK) st = nmlp_str_status(&start, err);
    if (st == NMLP_OK) nmlp_str_printf(out, "%s ::= %s\n", name, nmlp_str_text(&start));
    if (st == NMLP_OK) st = nmlp_str_status(out, err);
    nmlp_str_fini(&start);
    nmlp_mem_free((void *)d.nodes);
    return st;
}
