/* Compiled grammars by their text, and guides that have met some of their states: what a client asks for again and
 * again is worked out once. Safe to use from the loop's and the engine's thread. */
#ifndef NMLP_SERVER_GRAMMAR_CACHE_H
#define NMLP_SERVER_GRAMMAR_CACHE_H

#include "grammar/guide.h"

typedef struct nmlp_grammar_cache nmlp_grammar_cache;
typedef struct nmlp_cached_grammar nmlp_cached_grammar;

/* Borrows the tokenizer. `vocab` is the model's. */
nmlp_status nmlp_grammar_cache_create(nmlp_grammar_cache **out, const nmlp_tokenizer *tokenizer, int64_t vocab,
                                      nmlp_err *err);
/* All grammars must be back. */
void nmlp_grammar_cache_destroy(nmlp_grammar_cache *cache); /* NULL is fine */

/* Which grammar is asked for. */
typedef struct nmlp_grammar_key {
    const nmlp_str *text;
    const int64_t *end_ids; /* tokens that end an answer */
    int n_end_ids;
    bool marks; /* see nmlp_guide_options */
} nmlp_grammar_key;

/* Errors name `field`. Give it back. */
nmlp_status nmlp_grammar_cache_take(nmlp_grammar_cache *cache, const nmlp_grammar_key *key, const char *field,
                                    nmlp_cached_grammar **out, nmlp_err *err);
void nmlp_grammar_cache_give_back(nmlp_grammar_cache *cache, nmlp_cached_grammar *grammar); /* NULL is fine */

/* A guide at the beginning of an answer. */
nmlp_status nmlp_cached_grammar_begin(nmlp_cached_grammar *grammar, nmlp_guide **guide, nmlp_err *err);
void nmlp_cached_grammar_end(nmlp_cached_grammar *grammar, nmlp_guide *guide); /* NULL is fine */

/* Of all answers that have ended. */
nmlp_guide_stats nmlp_grammar_cache_stats(nmlp_grammar_cache *cache);

#endif
