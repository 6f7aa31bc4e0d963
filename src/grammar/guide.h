/* A grammar over the tokens of a vocabulary: which tokens may come next in an answer, as bits.
 *
 * The tokens are sorted by their bytes once for a tokenizer, so that what tokens have in common at their beginning is
 * followed once, and what the grammar refuses is passed over. The bits of a state are remembered: inside a string,
 * where most tokens may come, they are worked out once for many tokens of the answer. */
#ifndef NMLP_GRAMMAR_GUIDE_H
#define NMLP_GRAMMAR_GUIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/grammar.h"
#include "text/tokenizer.h"

/* ---- the vocabulary: immutable, shareable ---- */

typedef struct nmlp_token_order nmlp_token_order;

/* Borrows the tokenizer. NMLP_E_UNSUPPORTED for one that puts spaces between tokens. */
nmlp_status nmlp_token_order_create(nmlp_token_order **out, const nmlp_tokenizer *tokenizer, nmlp_err *err);
void nmlp_token_order_destroy(nmlp_token_order *order); /* NULL is fine */

/* ---- an answer: one thread at a time ---- */

typedef struct nmlp_guide nmlp_guide;

typedef struct nmlp_guide_options {
    int64_t vocab;          /* of the model: bits that are given */
    const int64_t *end_ids; /* tokens that end an answer, allowed where the text may end; copied */
    int n_end_ids;
    bool marks; /* special tokens that are marks of tool calls (tool_calls.h) are text */
} nmlp_guide_options;

/* Borrows grammar and order. */
nmlp_status nmlp_guide_create(nmlp_guide **out, const nmlp_grammar *grammar, const nmlp_token_order *order,
                              const nmlp_guide_options *options, nmlp_err *err);
void nmlp_guide_destroy(nmlp_guide *guide); /* NULL is fine */
/* For another answer; what was worked out stays. */
void nmlp_guide_restart(nmlp_guide *guide);

/* Bits [ceil(vocab/32)] of the tokens that may come next, valid until the next call; NULL: the text is complete and
 * nothing may follow. No bit is set where the vocabulary cannot spell what the grammar wants, or its limits end. */
const uint32_t *nmlp_guide_allowed(nmlp_guide *guide);
/* A token that came. */
void nmlp_guide_accept(nmlp_guide *guide, int32_t id);
/* Whether the text so far is one of the grammar's. */
bool nmlp_guide_is_complete(const nmlp_guide *guide);

typedef struct nmlp_guide_stats {
    int64_t n_steps;    /* calls of nmlp_guide_allowed */
    int64_t n_computed; /* of them: not remembered */
    double seconds;     /* in all of them */
} nmlp_guide_stats;

/* Since they were last taken. */
nmlp_guide_stats nmlp_guide_take_stats(nmlp_guide *guide);

#endif
