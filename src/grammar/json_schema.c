#include "grammar/json_schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"

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

struct node {
    const nmlp_json *schema;
    size_t number;
};

struct document {
    nmlp_str *out;
    const char *name, *field;
    const nmlp_json *root;
    struct node *nodes; /* in the order they were met, by number */
    size_t n_nodes, capacity;
    int nesting;
    nmlp_err *err;
};

static nmlp_status refuse(const struct document *d, const char *keyword) {
    return nmlp_fail_field(d->err, NMLP_E_UNSUPPORTED, d->field, "has a schema with \"%.60s\", which is not supported",
                           keyword);
}

static nmlp_status wrong(const struct document *d, const char *keyword, const char *expected) {
    return nmlp_fail_field(d->err, NMLP_E_ARG, d->field, "has a schema whose \"%.60s\" is not %s", keyword, expected);
}

static nmlp_status put_schema(struct document *d, nmlp_str *out, const nmlp_json *schema);

static void put_name(const struct document *d, nmlp_str *out, size_t number) {
    nmlp_str_printf(out, "%s-%zu ", d->name, number);
}

static bool has(const nmlp_json *schema, const char *key) { return nmlp_json_get(schema, key) != NULL; }

/* A whole number of 0 or more. */
static nmlp_status count_of(const struct document *d, const nmlp_json *schema, const char *key, int64_t otherwise,
                            int64_t *out) {
    const nmlp_json *value = nmlp_json_get(schema, key);
    *out = otherwise;
    if (!value || nmlp_json_int_in(value, 0, 100000, out)) return NMLP_OK;
    return wrong(d, key, "a whole number from 0 to 100000");
}

/* ---- values that are given ---- */

static const char *kind_of(const nmlp_json *value) {
    if (nmlp_json_is_string(value)) return "string";
    if (nmlp_json_is_bool(value)) return "boolean";
    if (nmlp_json_is_number(value))
        return floor(nmlp_json_number(value)) == nmlp_json_number(value) ? "integer" : "number";
    return nmlp_json_is_object(value) ? "object" : nmlp_json_is_array(value) ? "array" : "null";
}

/* Whether the schema's own type, if it has one, is that of the value. */
static bool fits_type(const nmlp_json *schema, const nmlp_json *value) {
    const nmlp_json *type = nmlp_json_get(schema, "type");
    const char *kind = kind_of(value);
    if (!type) return true;
    const nmlp_json *one = nmlp_json_is_array(type) ? nmlp_json_first(type) : type;
    for (; one; one = nmlp_json_is_array(type) ? nmlp_json_next(one) : NULL) {
        const char *name = nmlp_json_string(one);
        if (strcmp(name, kind) == 0 || (strcmp(name, "number") == 0 && strcmp(kind, "integer") == 0)) return true;
    }
    return false;
}

static nmlp_status put_value(const struct document *d, nmlp_str *out, const nmlp_json *value) {
    nmlp_json_writer w;
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_put_value(&w, NULL, value);
    nmlp_status st = nmlp_str_status(&text, d->err);
    if (st == NMLP_OK) nmlp_schema_literal_append(out, nmlp_str_text(&text), text.len);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status put_enum(const struct document *d, nmlp_str *out, const nmlp_json *schema) {
    const nmlp_json *values = nmlp_json_get(schema, "enum");
    bool any = false;
    if (!nmlp_json_is_array(values)) return wrong(d, "enum", "a list");
    for (const nmlp_json *v = nmlp_json_first(values); v; v = nmlp_json_next(v)) {
        if (!fits_type(schema, v)) continue;
        if (any) nmlp_str_puts(out, "| ");
        any = true;
        NMLP_RETURN_IF_FAILED(put_value(d, out, v));
    }
    return any ? NMLP_OK : wrong(d, "enum", "a list of a value of its type");
}

/* ---- strings and numbers ---- */

static nmlp_status put_format(const struct document *d, nmlp_str *out, const char *format) {
    static const char *const formats[][2] = {
        {"date", "[0-9]{3} [1-9] \"-\" (\"0\" [1-9] | \"1\" [0-2]) \"-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]) "},
        {"time", "(\"0\" [0-9] | \"1\" [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] \"Z\" "},
        {"uuid", "hex{8} \"-\" hex{4} \"-\" hex{4} \"-\" hex{4} \"-\" hex{12} "},
        {"ipv4", "octet \".\" octet \".\" octet \".\" octet "},
        {"email", "[a-z0-9] [a-z0-9._]{0,30} [a-z0-9] \"@\" [a-z0-9]{1,30} (\".\" [a-z]{2,10}){1,3} "},
    };
    static const char octet[] = "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9])";
    if (strcmp(format, "date-time") == 0) {
        nmlp_str_puts(out, formats[0][1]);
        nmlp_str_puts(out, "\"T\" ");
        nmlp_str_puts(out, formats[1][1]);
        return NMLP_OK;
    }
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i][0], format) != 0) continue;
        if (i == 3)
            nmlp_str_printf(out, "%s \".\" %s \".\" %s \".\" %s ", octet, octet, octet, octet);
        else
            nmlp_str_puts(out, formats[i][1]);
        return NMLP_OK;
    }
    return nmlp_fail_field(d->err, NMLP_E_UNSUPPORTED, d->field,
                           "has a schema with \"format\": \"%.60s\", which is not supported", format);
}

static nmlp_status put_string(const struct document *d, nmlp_str *out, const nmlp_json *schema) {
    const nmlp_json *pattern = nmlp_json_get(schema, "pattern"), *format = nmlp_json_get(schema, "format");
    int64_t min, max;
    NMLP_RETURN_IF_FAILED(count_of(d, schema, "minLength", 0, &min));
    NMLP_RETURN_IF_FAILED(count_of(d, schema, "maxLength", -1, &max));
    bool bounded = min > 0 || max >= 0;
    if (max >= 0 && max < min) return wrong(d, "maxLength", "at least minLength");
    if ((pattern || format) && bounded)
        return refuse(d, pattern ? "pattern beside a length" : "format beside a length");
    if (pattern && format) return refuse(d, "pattern beside format");
    if (pattern && !nmlp_json_is_string(pattern)) return wrong(d, "pattern", "a string");
    nmlp_str_puts(out, "\"\\\"\" ");
    if (pattern)
        NMLP_RETURN_IF_FAILED(nmlp_schema_pattern_append(out, nmlp_json_string(pattern), d->field, d->err));
    else if (format)
        NMLP_RETURN_IF_FAILED(put_format(d, out, nmlp_json_string(format)));
    else if (max >= 0)
        nmlp_str_printf(out, "char{%lld,%lld} ", (long long)min, (long long)max);
    else
        nmlp_str_printf(out, "char{%lld,} ", (long long)min);
    nmlp_str_puts(out, "\"\\\"\" ");
    return NMLP_OK;
}

static nmlp_status put_number(const struct document *d, nmlp_str *out, const nmlp_json *schema, bool integer) {
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    nmlp_schema_bounds b = {.min = -INFINITY, .max = INFINITY};
    bool bounded = false;
    const nmlp_json *step = nmlp_json_get(schema, "multipleOf");
    if (step && !(integer && nmlp_json_number(step) == 1)) return refuse(d, "multipleOf");
    for (int i = 0; i < 4; i++) {
        const nmlp_json *v = nmlp_json_get(schema, keys[i]);
        if (!v) continue;
        if (!nmlp_json_is_number(v)) return wrong(d, keys[i], "a number");
        double x = nmlp_json_number(v);
        bounded = true;
        if (i < 2 && x >= b.min) {
            b.min_excluded = i == 1 || (b.min_excluded && x == b.min);
            b.min = x;
        }
        if (i >= 2 && x <= b.max) {
            b.max_excluded = i == 3 || (b.max_excluded && x == b.max);
            b.max = x;
        }
    }
    if (!bounded) {
        nmlp_str_puts(out, integer ? "integer " : "number ");
        return NMLP_OK;
    }
    bool any = integer ? nmlp_schema_integer_append(out, &b) : nmlp_schema_number_append(out, &b);
    return any ? NMLP_OK : refuse(d, "bounds without a number between them");
}

/* ---- arrays and objects ---- */

static nmlp_status put_tuple(struct document *d, nmlp_str *out, const nmlp_json *prefix, int64_t min, int64_t max) {
    int64_t n = (int64_t)nmlp_json_count(prefix);
    if (!nmlp_json_is_array(prefix)) return wrong(d, "prefixItems", "a list");
    if (min > n || (max >= 0 && max < n)) return refuse(d, "prefixItems of another number than minItems or maxItems");
    nmlp_str_puts(out, "\"[\" ws ");
    for (const nmlp_json *item = nmlp_json_first(prefix); item; item = nmlp_json_next(item)) {
        if (item != nmlp_json_first(prefix)) nmlp_str_puts(out, "\",\" ws ");
        NMLP_RETURN_IF_FAILED(put_schema(d, out, item));
    }
    nmlp_str_puts(out, "ws \"]\" ");
    return NMLP_OK;
}

static nmlp_status put_array(struct document *d, nmlp_str *out, const nmlp_json *schema) {
    const nmlp_json *items = nmlp_json_get(schema, "items"), *prefix = nmlp_json_get(schema, "prefixItems");
    int64_t min, max;
    nmlp_str item;
    if (nmlp_json_bool(nmlp_json_get(schema, "uniqueItems"))) return refuse(d, "uniqueItems");
    NMLP_RETURN_IF_FAILED(count_of(d, schema, "minItems", 0, &min));
    NMLP_RETURN_IF_FAILED(count_of(d, schema, "maxItems", -1, &max));
    if (max >= 0 && max < min) return wrong(d, "maxItems", "at least minItems");
    if (prefix) return put_tuple(d, out, prefix, min, max);
    if (max == 0) {
        nmlp_str_puts(out, "\"[\" ws \"]\" ");
        return NMLP_OK;
    }
    nmlp_str_init(&item);
    nmlp_status st = items ? put_schema(d, &item, items) : NMLP_OK;
    if (st == NMLP_OK) {
        const char *text = items ? nmlp_str_text(&item) : "value ";
        nmlp_str_printf(out, "\"[\" ws %s%s(\",\" ws %s){%lld,", min == 0 ? "(" : "", text, text,
                        (long long)(min > 0 ? min - 1 : 0));
        if (max > 0) nmlp_str_printf(out, "%lld", (long long)max - 1);
        nmlp_str_printf(out, "} ws %s\"]\" ", min == 0 ? ")? " : "");
    }
    nmlp_str_fini(&item);
    return st;
}

static bool is_required(const nmlp_json *schema, const char *key) {
    for (const nmlp_json *r = nmlp_json_first(nmlp_json_get(schema, "required")); r; r = nmlp_json_next(r))
        if (strcmp(nmlp_json_string(r), key) == 0) return true;
    return false;
}

/* An object as a map: any keys, values of one schema. */
static nmlp_status put_map(struct document *d, nmlp_str *out, const nmlp_json *values) {
    nmlp_str value;
    nmlp_str_init(&value);
    nmlp_status st = put_schema(d, &value, values);
    nmlp_str_printf(out, "\"{\" ws (string \":\" ws %s(\",\" ws string \":\" ws %s)* ws)? \"}\" ",
                    nmlp_str_text(&value), nmlp_str_text(&value));
    nmlp_str_fini(&value);
    return st;
}

static nmlp_status put_pair(struct document *d, nmlp_str *out, const char *key, const nmlp_json *schema) {
    nmlp_str quoted;
    nmlp_json_writer w;
    nmlp_str_init(&quoted);
    nmlp_json_writer_init(&w, &quoted);
    nmlp_json_put_string(&w, NULL, key);
    nmlp_schema_literal_append(out, nmlp_str_text(&quoted), quoted.len);
    nmlp_str_puts(out, "\":\" ws ");
    nmlp_str_fini(&quoted);
    if (schema) return put_schema(d, out, schema);
    nmlp_str_puts(out, "value ");
    return NMLP_OK;
}

/* Rules of property i and those behind it: NAME-N-Pi where none came before it, NAME-N-Ci where one did. */
static nmlp_status put_property(struct document *d, size_t number, size_t i, const char *key, const nmlp_json *schema,
                                bool required) {
    nmlp_str pair;
    nmlp_str_init(&pair);
    nmlp_status st = put_pair(d, &pair, key, schema);
    for (int after = 0; after < 2 && st == NMLP_OK; after++) {
        char mark = after ? 'C' : 'P';
        nmlp_str_printf(d->out, "%s-%zu-%c%zu ::= %s%s%s-%zu-C%zu", d->name, number, mark, i, after ? "\",\" ws " : "",
                        nmlp_str_text(&pair), d->name, number, i + 1);
        if (!required) nmlp_str_printf(d->out, " | %s-%zu-%c%zu", d->name, number, mark, i + 1);
        nmlp_str_putc(d->out, '\n');
    }
    nmlp_str_fini(&pair);
    return st;
}

static nmlp_status put_properties(struct document *d, nmlp_str *out, const nmlp_json *schema, size_t number) {
    const nmlp_json *properties = nmlp_json_get(schema, "properties"),
                    *rest = nmlp_json_get(schema, "additionalProperties");
    size_t n = 0;
    if (properties && !nmlp_json_is_object(properties)) return wrong(d, "properties", "an object");
    for (const nmlp_json *p = nmlp_json_first(properties); p; p = nmlp_json_next(p))
        NMLP_RETURN_IF_FAILED(put_property(d, number, n++, nmlp_json_key(p), p, is_required(schema, nmlp_json_key(p))));
    for (const nmlp_json *r = nmlp_json_first(nmlp_json_get(schema, "required")); r; r = nmlp_json_next(r)) {
        if (!nmlp_json_is_string(r)) return wrong(d, "required", "a list of names");
        if (nmlp_json_get(properties, nmlp_json_string(r))) continue;
        if (nmlp_json_is_bool(rest) && !nmlp_json_bool(rest)) return wrong(d, "required", "among the properties");
        NMLP_RETURN_IF_FAILED(
            put_property(d, number, n++, nmlp_json_string(r), nmlp_json_is_object(rest) ? rest : NULL, true));
    }
    nmlp_str_printf(d->out, "%s-%zu-P%zu ::=\n%s-%zu-C%zu ::=\n", d->name, number, n, d->name, number, n);
    nmlp_str_printf(out, "\"{\" ws %s-%zu-P0 ws \"}\" ", d->name, number);
    return NMLP_OK;
}

static nmlp_status put_object(struct document *d, nmlp_str *out, const nmlp_json *schema, size_t number) {
    const nmlp_json *rest = nmlp_json_get(schema, "additionalProperties");
    bool named = nmlp_json_count(nmlp_json_get(schema, "properties")) > 0 ||
                 nmlp_json_count(nmlp_json_get(schema, "required")) > 0;
    if (named || (nmlp_json_is_bool(rest) && !nmlp_json_bool(rest))) return put_properties(d, out, schema, number);
    if (nmlp_json_is_object(rest)) return put_map(d, out, rest);
    nmlp_str_puts(out, "object ");
    return NMLP_OK;
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
static nmlp_status check_keywords(const struct document *d, const nmlp_json *schema, const char **main_key) {
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
            return refuse(d, key);
        }
    }
    if (*main_key && typed)
        return nmlp_fail_field(d->err, NMLP_E_UNSUPPORTED, d->field,
                               "has a schema with \"%s\" beside \"%s\", which is not supported", typed, *main_key);
    return NMLP_OK;
}

/* "#/$defs/name"; NULL: no such place. */
static const nmlp_json *resolve(const struct document *d, const char *pointer) {
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
    if (!is_required(schema, key)) return NULL;
    if (nmlp_json_count(values) == 1) return nmlp_json_first(values);
    return nmlp_json_get(property, "const");
}

static bool exclude_each_other(const struct document *d, const nmlp_json *a, const nmlp_json *b) {
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

static nmlp_status put_cases(struct document *d, nmlp_str *out, const nmlp_json *schema, const char *key) {
    const nmlp_json *cases = nmlp_json_get(schema, key);
    if (!nmlp_json_is_array(cases) || nmlp_json_count(cases) == 0) return wrong(d, key, "a list of schemas");
    if (has(schema, "type")) return refuse(d, "type beside cases");
    if (strcmp(key, "allOf") == 0 && nmlp_json_count(cases) > 1) return refuse(d, "allOf of several");
    for (const nmlp_json *c = nmlp_json_first(cases); c; c = nmlp_json_next(c)) {
        for (const nmlp_json *other = nmlp_json_next(c); other && strcmp(key, "oneOf") == 0;
             other = nmlp_json_next(other))
            if (!exclude_each_other(d, c, other)) return refuse(d, "oneOf whose cases may overlap");
        if (c != nmlp_json_first(cases)) nmlp_str_puts(out, "| ");
        NMLP_RETURN_IF_FAILED(put_schema(d, out, c));
    }
    return NMLP_OK;
}

static nmlp_status put_type(struct document *d, nmlp_str *out, const nmlp_json *schema, const char *type,
                            size_t number) {
    if (strcmp(type, "string") == 0) return put_string(d, out, schema);
    if (strcmp(type, "integer") == 0) return put_number(d, out, schema, true);
    if (strcmp(type, "number") == 0) return put_number(d, out, schema, false);
    if (strcmp(type, "object") == 0) return put_object(d, out, schema, number);
    if (strcmp(type, "array") == 0) return put_array(d, out, schema);
    if (strcmp(type, "boolean") == 0)
        nmlp_str_puts(out, "(\"true\" | \"false\") ");
    else if (strcmp(type, "null") == 0)
        nmlp_str_puts(out, "\"null\" ");
    else
        return wrong(d, "type", "one of JSON");
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

static nmlp_status put_body(struct document *d, nmlp_str *out, const nmlp_json *schema, size_t number) {
    const char *key, *implied = implied_type(schema);
    const nmlp_json *type = nmlp_json_get(schema, "type");
    NMLP_RETURN_IF_FAILED(check_keywords(d, schema, &key));
    if (key && strcmp(key, "const") == 0) return put_value(d, out, nmlp_json_get(schema, key));
    if (key && strcmp(key, "enum") == 0) return put_enum(d, out, schema);
    if (key && strcmp(key, "$ref") == 0) {
        const char *pointer = nmlp_json_string(nmlp_json_get(schema, key));
        const nmlp_json *target = resolve(d, pointer);
        if (target) return put_schema(d, out, target);
        return nmlp_fail_field(d->err, NMLP_E_ARG, d->field,
                               "has a schema with \"$ref\": \"%.60s\", which is not there", pointer);
    }
    if (key) return put_cases(d, out, schema, key);
    if (nmlp_json_is_array(type)) {
        for (const nmlp_json *one = nmlp_json_first(type); one; one = nmlp_json_next(one)) {
            if (one != nmlp_json_first(type)) nmlp_str_puts(out, "| ");
            NMLP_RETURN_IF_FAILED(put_type(d, out, schema, nmlp_json_string(one), number));
        }
        return nmlp_json_count(type) > 0 ? NMLP_OK : wrong(d, "type", "one of JSON");
    }
    if (type && !nmlp_json_is_string(type)) return wrong(d, "type", "a name or a list of names");
    if (type || implied) return put_type(d, out, schema, type ? nmlp_json_string(type) : implied, number);
    nmlp_str_puts(out, "value ");
    return NMLP_OK;
}

/* Appends the name of the rule of a schema, and its rule to the document where it is new. */
static nmlp_status put_schema(struct document *d, nmlp_str *out, const nmlp_json *schema) {
    nmlp_str body;
    void *nodes = d->nodes;
    if (nmlp_json_is_bool(schema) && nmlp_json_bool(schema)) {
        nmlp_str_puts(out, "value ");
        return NMLP_OK;
    }
    if (!nmlp_json_is_object(schema))
        return nmlp_json_is_bool(schema) ? refuse(d, "false") : wrong(d, "schema", "an object");
    for (size_t i = 0; i < d->n_nodes; i++) {
        if (d->nodes[i].schema != schema) continue;
        put_name(d, out, i);
        return NMLP_OK;
    }
    if (d->n_nodes == NODES_MAX || d->nesting == NESTING_MAX) return refuse(d, "so many parts");
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&nodes, &d->capacity, d->n_nodes + 1, sizeof *d->nodes, d->err));
    d->nodes = nodes;
    size_t number = d->n_nodes++;
    d->nodes[number] = (struct node){schema, number};
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
    struct document d = {.out = out, .name = name, .field = field, .root = schema, .err = err};
    nmlp_str start;
    nmlp_str_init(&start);
    nmlp_status st = put_schema(&d, &start, schema);
    if (st == NMLP_OK) nmlp_str_printf(out, "%s ::= %s\n", name, nmlp_str_text(&start));
    if (st == NMLP_OK) st = nmlp_str_status(out, err);
    nmlp_str_fini(&start);
    nmlp_mem_free(d.nodes);
    return st;
}
