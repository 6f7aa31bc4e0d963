/* Added tokens: strings that become one id wherever they stand, before anything else looks at the text. Leftmost first,
 * longest among those that start there. */
#ifndef NMLP_TEXT_ADDED_TOKENS_H
#define NMLP_TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"

typedef struct nmlp_added_token {
    int32_t id;
    bool special;
    bool lstrip, rstrip; /* takes the white space before, behind it along */
    bool single_word;    /* only where no word character touches it */
} nmlp_added_token;

typedef struct nmlp_trie_node nmlp_trie_node;

/* Immutable once filled; shareable. */
typedef struct nmlp_added_tokens {
    nmlp_trie_node *first[256]; /* by first byte */
    size_t n_tokens;
    nmlp_arena arena;
} nmlp_added_tokens;

void nmlp_added_tokens_init(nmlp_added_tokens *set);
void nmlp_added_tokens_fini(nmlp_added_tokens *set);
/* `text` is not empty. The same text given twice keeps the later token. */
nmlp_status nmlp_added_tokens_put(nmlp_added_tokens *set, const char *text, size_t len, const nmlp_added_token *token,
                                  nmlp_err *err);

typedef struct nmlp_added_match {
    size_t begin, end;             /* with the white space it takes along */
    size_t token_begin, token_end; /* without */
    int32_t id;
} nmlp_added_match;

/* The next token in text[from..len), where text before `from` is spoken for. Special tokens are passed over unless
 * `parse_special`. False: no more. */
bool nmlp_added_tokens_find(const nmlp_added_tokens *set, const char *text, size_t len, size_t from, bool parse_special,
                            nmlp_added_match *match);

#endif
