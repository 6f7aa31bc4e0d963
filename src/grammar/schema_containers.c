/* Arrays and objects of JSON Schema. */
#include <string.h>

#include "base/json_write.h"
#include "grammar/schema_internal.h"

static nmlp_status put_tuple(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *prefix, int64_t min,
                             int64_t max) {
    int64_t n = (int64_t)nmlp_json_count(prefix);
    if (!nmlp_json_is_array(prefix)) return nmlp_schema_wrong(d, "prefixItems", "a list");
    if (min > n || (max >= 0 && max < n))
        return nmlp_schema_refuse(d, "prefixItems of another number than minItems or maxItems");
    nmlp_str_puts(out, "\"[\" ws ");
    for (const nmlp_json *item = nmlp_json_first(prefix); item; item = nmlp_json_next(item)) {
        if (item != nmlp_json_first(prefix)) nmlp_str_puts(out, "\",\" ws ");
        NMLP_RETURN_IF_FAILED(nmlp_schema_put(d, out, item));
    }
    nmlp_str_puts(out, "ws \"]\" ");
    return NMLP_OK;
}

nmlp_status nmlp_schema_put_array(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema) {
    const nmlp_json *items = nmlp_json_get(schema, "items"), *prefix = nmlp_json_get(schema, "prefixItems");
    int64_t min, max;
    nmlp_str item;
    if (nmlp_json_bool(nmlp_json_get(schema, "uniqueItems"))) return nmlp_schema_refuse(d, "uniqueItems");
    NMLP_RETURN_IF_FAILED(nmlp_schema_count(d, schema, "minItems", 0, &min));
    NMLP_RETURN_IF_FAILED(nmlp_schema_count(d, schema, "maxItems", -1, &max));
    if (max >= 0 && max < min) return nmlp_schema_wrong(d, "maxItems", "at least minItems");
    if (prefix) return put_tuple(d, out, prefix, min, max);
    if (max == 0) {
        nmlp_str_puts(out, "\"[\" ws \"]\" ");
        return NMLP_OK;
    }
    nmlp_str_init(&item);
    nmlp_status st = items ? nmlp_schema_put(d, &item, items) : NMLP_OK;
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

bool nmlp_schema_requires(const nmlp_json *schema, const char *key) {
    for (const nmlp_json *r = nmlp_json_first(nmlp_json_get(schema, "required")); r; r = nmlp_json_next(r))
        if (strcmp(nmlp_json_string(r), key) == 0) return true;
    return false;
}

/* An object as a map: any keys, values of one schema. */
static nmlp_status put_map(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *values) {
    nmlp_str value;
    nmlp_str_init(&value);
    nmlp_status st = nmlp_schema_put(d, &value, values);
    nmlp_str_printf(out, "\"{\" ws (string \":\" ws %s(\",\" ws string \":\" ws %s)* ws)? \"}\" ",
                    nmlp_str_text(&value), nmlp_str_text(&value));
    nmlp_str_fini(&value);
    return st;
}

static nmlp_status put_pair(nmlp_schema_document *d, nmlp_str *out, const char *key, const nmlp_json *schema) {
    nmlp_str quoted;
    nmlp_json_writer w;
    nmlp_str_init(&quoted);
    nmlp_json_writer_init(&w, &quoted);
    nmlp_json_put_string(&w, NULL, key);
    nmlp_schema_literal_append(out, nmlp_str_text(&quoted), quoted.len);
    nmlp_str_puts(out, "\":\" ws ");
    nmlp_str_fini(&quoted);
    if (schema) return nmlp_schema_put(d, out, schema);
    nmlp_str_puts(out, "value ");
    return NMLP_OK;
}

/* Rules of property i and those behind it: NAME-N-Pi where none came before it, NAME-N-Ci where one did. */
static nmlp_status put_property(nmlp_schema_document *d, size_t number, size_t i, const char *key,
                                const nmlp_json *schema, bool required) {
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

static nmlp_status put_properties(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema, size_t number) {
    const nmlp_json *properties = nmlp_json_get(schema, "properties"),
                    *rest = nmlp_json_get(schema, "additionalProperties");
    size_t n = 0;
    if (properties && !nmlp_json_is_object(properties)) return nmlp_schema_wrong(d, "properties", "an object");
    for (const nmlp_json *p = nmlp_json_first(properties); p; p = nmlp_json_next(p))
        NMLP_RETURN_IF_FAILED(
            put_property(d, number, n++, nmlp_json_key(p), p, nmlp_schema_requires(schema, nmlp_json_key(p))));
    for (const nmlp_json *r = nmlp_json_first(nmlp_json_get(schema, "required")); r; r = nmlp_json_next(r)) {
        if (!nmlp_json_is_string(r)) return nmlp_schema_wrong(d, "required", "a list of names");
        if (nmlp_json_get(properties, nmlp_json_string(r))) continue;
        if (nmlp_json_is_bool(rest) && !nmlp_json_bool(rest))
            return nmlp_schema_wrong(d, "required", "among the properties");
        NMLP_RETURN_IF_FAILED(
            put_property(d, number, n++, nmlp_json_string(r), nmlp_json_is_object(rest) ? rest : NULL, true));
    }
    nmlp_str_printf(d->out, "%s-%zu-P%zu ::=\n%s-%zu-C%zu ::=\n", d->name, number, n, d->name, number, n);
    nmlp_str_printf(out, "\"{\" ws %s-%zu-P0 ws \"}\" ", d->name, number);
    return NMLP_OK;
}

nmlp_status nmlp_schema_put_object(nmlp_schema_document *d, nmlp_str *out, const nmlp_json *schema, size_t number) {
    const nmlp_json *rest = nmlp_json_get(schema, "additionalProperties");
    bool named = nmlp_json_count(nmlp_json_get(schema, "properties")) > 0 ||
                 nmlp_json_count(nmlp_json_get(schema, "required")) > 0;
    if (named || (nmlp_json_is_bool(rest) && !nmlp_json_bool(rest))) return put_properties(d, out, schema, number);
    if (nmlp_json_is_object(rest)) return put_map(d, out, rest);
    nmlp_str_puts(out, "object ");
    return NMLP_OK;
}
