/* Grammars from anywhere: parsing, then some bytes through the automaton. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "grammar/matcher.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_grammar *grammar;
    nmlp_matcher *matcher;
    nmlp_err err;
    /* What stands behind a NUL is a text to be matched. */
    const uint8_t *end = memchr(data, 0, size);
    size_t len = end ? (size_t)(end - data) : size;
    if (nmlp_grammar_parse(&grammar, (const char *)data, len, &err) != NMLP_OK) return 0;
    if (nmlp_matcher_create(&matcher, grammar, &err) == NMLP_OK) {
        int32_t state = nmlp_matcher_start(matcher);
        for (size_t i = len + 1; i < size && state >= 0; i++) state = nmlp_matcher_next(matcher, state, data[i]);
        state = nmlp_matcher_start(matcher);
        for (int i = 0; i < 64 && state >= 0; i++) { /* some text of the grammar */
            int32_t next = NMLP_MATCHER_DEAD;
            for (int b = 0; b < 256 && next < 0; b++)
                next = nmlp_matcher_next(matcher, state, (unsigned char)(b + 31 * i));
            state = next;
        }
    }
    nmlp_matcher_destroy(matcher);
    nmlp_grammar_destroy(grammar);
    return 0;
}
