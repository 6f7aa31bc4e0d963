/* JSON Schema as a grammar: every text of the grammar is JSON that the schema accepts. The grammar may be narrower than
 * the schema (properties come in the order they are listed, none that is not listed; a text matches a whole pattern),
 * never wider: what cannot be expressed is refused by its name.
 *
 * Known: type (also a list), properties, required, additionalProperties, items, prefixItems, minItems, maxItems, enum,
 * const, anyOf, oneOf of cases that exclude each other, allOf of one, $ref inside the document, minLength, maxLength,
 * pattern, format (date, time, date-time, uuid, ipv4, email), minimum, maximum, exclusiveMinimum, exclusiveMaximum;
 * annotations (title, description, default, …) change nothing. */
#ifndef NMLP_GRAMMAR_JSON_SCHEMA_H
#define NMLP_GRAMMAR_JSON_SCHEMA_H

#include "base/json.h"
#include "base/str.h"

/* Appends the rules of JSON itself: value, object, array, string, number, integer and what they need. */
void nmlp_json_grammar_append(nmlp_str *out);

/* Appends rules for a schema; the rule `name` derives it. Names of other rules begin with `name` too, so that several
 * schemas go into one grammar. The rules of JSON are needed besides. Errors name the field `field`. */
nmlp_status nmlp_json_schema_append(nmlp_str *out, const char *name, const nmlp_json *schema, const char *field,
                                    nmlp_err *err);

/* ---- parts, each in its file ---- */

/* An integer of min..max (either may be infinite), or a number; false: there is none. */
typedef struct nmlp_schema_bounds {
    double min, max;
    bool min_excluded, max_excluded;
} nmlp_schema_bounds;

bool nmlp_schema_integer_append(nmlp_str *out, const nmlp_schema_bounds *bounds);
bool nmlp_schema_number_append(nmlp_str *out, const nmlp_schema_bounds *bounds);
/* The inside of a JSON string that matches a regular expression. */
nmlp_status nmlp_schema_pattern_append(nmlp_str *out, const char *pattern, const char *field, nmlp_err *err);
/* A literal of the grammar. */
void nmlp_schema_literal_append(nmlp_str *out, const char *text, size_t len);

#endif
