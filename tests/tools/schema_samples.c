/* Texts that the grammars of JSON Schemas derive, for checking them with another validator.
 *   nmlp_schema_samples N < schemas, one a line
 * prints, for each schema, one line: a JSON array of N texts, or an object {"refused": message}. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "grammar/json_schema.h"
#include "lib/grammar_walk.h"

static nmlp_status sample(nmlp_json_writer *w, const char *line, long n, nmlp_rng *rng, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_json_doc doc = {0};
    nmlp_grammar *grammar = NULL;
    nmlp_matcher *matcher = NULL;
    nmlp_str text;
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_json_parse(&doc, line, strlen(line), "schema", err));
    nmlp_json_grammar_append(&text);
    NMLP_TRY(nmlp_json_schema_append(&text, "root", doc.root, "response_format", err));
    NMLP_TRY(nmlp_grammar_parse(&grammar, nmlp_str_text(&text), text.len, err));
    NMLP_TRY(nmlp_matcher_create(&matcher, grammar, err));
    nmlp_json_begin_array(w, NULL);
    for (long i = 0; i < n; i++) {
        nmlp_str_clear(&text);
        if (!grammar_walk(&text, matcher, rng, 20000)) continue;
        nmlp_json_put_bytes(w, NULL, nmlp_str_text(&text), text.len);
    }
    nmlp_json_end_array(w);
out:
    nmlp_matcher_destroy(matcher);
    nmlp_grammar_destroy(grammar);
    nmlp_json_free(&doc);
    nmlp_str_fini(&text);
    return st;
}

int main(int argc, char **argv) {
    char *line = NULL;
    size_t capacity = 0;
    long n = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
    nmlp_rng rng;
    if (n < 1) return 2;
    nmlp_rng_seed(&rng, 12);
    while (getline(&line, &capacity, stdin) > 0) {
        nmlp_json_writer w;
        nmlp_err err = {0};
        nmlp_str out;
        nmlp_str_init(&out);
        nmlp_json_writer_init(&w, &out);
        if (sample(&w, line, n, &rng, &err) != NMLP_OK) {
            nmlp_str_clear(&out);
            nmlp_json_writer_init(&w, &out);
            nmlp_json_begin_object(&w, NULL);
            nmlp_json_put_string(&w, "refused", err.message);
            nmlp_json_end_object(&w);
        }
        puts(nmlp_str_text(&out));
        nmlp_str_fini(&out);
    }
    free(line);
    return 0;
}
