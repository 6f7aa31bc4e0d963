/* JSON Schemas from anywhere: refused, or a grammar that parses. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"
#include "grammar/json_schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_json_doc doc;
    nmlp_err err;
    nmlp_str text;
    if (nmlp_json_parse(&doc, (const char *)data, size, "schema", &err) != NMLP_OK) return 0;
    nmlp_str_init(&text);
    nmlp_json_grammar_append(&text);
    if (nmlp_json_schema_append(&text, "root", doc.root, "response_format", &err) == NMLP_OK) {
        nmlp_grammar *grammar;
        nmlp_status st = nmlp_grammar_parse(&grammar, nmlp_str_text(&text), text.len, &err);
        /* Schemas may be too large or without end; their grammar is never malformed. */
        bool fine = st == NMLP_OK || st == NMLP_E_LIMIT || strstr(err.message, "never ends") ||
                    strstr(err.message, "begins with itself") || strstr(err.message, "over 100000") ||
                    strstr(err.message, "too many") || strstr(err.message, "class") ||
                    strstr(err.message, "ends before");
        if (!fine) abort();
        nmlp_grammar_destroy(grammar);
    }
    nmlp_json_free(&doc);
    nmlp_str_fini(&text);
    return 0;
}
