#include <math.h>
#include <string.h>

#include "base/json_write.h"
#include "grammar/schema_internal.h"

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

nmlp_status nmlp_schema_put_value(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *value) {
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

nmlp_status nmlp_schema_put_enum(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema) {
    const nmlp_json *values = nmlp_json_get(schema, "enum");
    bool any = false;
    if (!nmlp_json_is_array(values)) return nmlp_schema_wrong(d, "enum", "a list");
    for (const nmlp_json *v = nmlp_json_first(values); v; v = nmlp_json_next(v)) {
        if (!fits_type(schema, v)) continue;
        if (any) nmlp_str_puts(out, "| ");
        any = true;
        NMLP_RETURN_IF_FAILED(nmlp_schema_put_value(d, out, v));
    }
    return any ? NMLP_OK : nmlp_schema_wrong(d, "enum", "a list of a value of its type");
}

/* ---- strings and numbers ---- */

#define DATE "[0-9]{3} [1-9] \"-\" (\"0\" [1-9] | \"1\" [0-2]) \"-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]) "
#define TIME "(\"0\" [0-9] | \"1\" [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] \"Z\" "
#define OCTET "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9]) "

static nmlp_status put_format(const nmlp_schema_document *d, nmlp_str *out, const char *format) {
    static const char *const formats[][2] = {
        {"date", DATE},
        {"time", TIME},
        {"date-time", DATE "\"T\" " TIME},
        {"uuid", "hex{8} \"-\" hex{4} \"-\" hex{4} \"-\" hex{4} \"-\" hex{12} "},
        {"ipv4", OCTET "\".\" " OCTET "\".\" " OCTET "\".\" " OCTET},
        {"email", "[a-z0-9] [a-z0-9._]{0,30} [a-z0-9] \"@\" [a-z0-9]{1,30} (\".\" [a-z]{2,10}){1,3} "},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i][0], format) != 0) continue;
        nmlp_str_puts(out, formats[i][1]);
        return NMLP_OK;
    }
    return nmlp_fail_field(d->err, NMLP_E_UNSUPPORTED, d->field,
                           "has a schema with \"format\": \"%.60s\", which is not supported", format);
}

nmlp_status nmlp_schema_put_string(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema) {
    const nmlp_json *pattern = nmlp_json_get(schema, "pattern"), *format = nmlp_json_get(schema, "format");
    int64_t min, max;
    NMLP_RETURN_IF_FAILED(nmlp_schema_count(d, schema, "minLength", 0, &min));
    NMLP_RETURN_IF_FAILED(nmlp_schema_count(d, schema, "maxLength", -1, &max));
    bool bounded = min > 0 || max >= 0;
    if (max >= 0 && max < min) return nmlp_schema_wrong(d, "maxLength", "at least minLength");
    if ((pattern || format) && bounded)
        return nmlp_schema_refuse(d, pattern ? "pattern beside a length" : "format beside a length");
    if (pattern && format) return nmlp_schema_refuse(d, "pattern beside format");
    if (pattern && !nmlp_json_is_string(pattern)) return nmlp_schema_wrong(d, "pattern", "a string");
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

nmlp_status nmlp_schema_put_number(const nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema,
                                   bool integer) {
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    nmlp_schema_bounds b = {.min = -INFINITY, .max = INFINITY};
    bool bounded = false;
    const nmlp_json *step = nmlp_json_get(schema, "multipleOf");
    if (step && !(integer && nmlp_json_number(step) == 1)) return nmlp_schema_refuse(d, "multipleOf");
    for (int i = 0; i < 4; i++) {
        const nmlp_json *v = nmlp_json_get(schema, keys[i]);
        if (!v) continue;
        if (!nmlp_json_is_number(v)) return nmlp_schema_wrong(d, keys[i], "a number");
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
    return any ? NMLP_OK : nmlp_schema_refuse(d, "bounds without a number between them");
}
