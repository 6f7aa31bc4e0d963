/* Hand-made tokenizer.json texts for tests: every byte is a token (its id is the byte), so that expected ids can be
 * written down by hand, plus what the test asks for. */
#ifndef NMLP_TESTS_TOKENIZERS_H
#define NMLP_TESTS_TOKENIZERS_H

#include "base/str.h"

/* JSON text for each part; NULL takes the default. */
typedef struct nmlp_test_tokenizer_spec {
    const char *vocab;          /* more members of model.vocab, e.g. "\"ab\": 256" (default none) */
    const char *merges;         /* members of model.merges (default none) */
    const char *model_options;  /* more members of model, e.g. "\"ignore_merges\": true" (default none) */
    const char *added_tokens;   /* members of added_tokens (default none) */
    const char *normalizer;     /* default null */
    const char *pre_tokenizer;  /* default ByteLevel without prefix space, GPT-2's pattern */
    const char *post_processor; /* default null */
    const char *decoder;        /* default ByteLevel */
} nmlp_test_tokenizer_spec;

/* Appends the JSON text. */
void nmlp_test_tokenizer_json(nmlp_str *out, const nmlp_test_tokenizer_spec *spec);

/* Appends the character that stands for a byte in GPT-2's alphabet, as UTF-8; made by GPT-2's own procedure. */
void nmlp_test_byte_letter(nmlp_str *out, int byte);

#endif
