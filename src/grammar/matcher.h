/* Which bytes may come next in a text that follows a grammar.
 *
 * The grammar is an automaton with a stack. A state is the set of stacks that the text so far allows; states are
 * numbered and their transitions remembered, so that a byte costs one lookup once its state was met before. Tables grow
 * as states are met, within limits. A matcher belongs to one thread at a time. */
#ifndef NMLP_GRAMMAR_MATCHER_H
#define NMLP_GRAMMAR_MATCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "grammar/grammar.h"

typedef struct nmlp_matcher nmlp_matcher;

enum { NMLP_MATCHER_DEAD = -1, NMLP_MATCHER_FAILED = -2 };

/* The grammar is borrowed. */
nmlp_status nmlp_matcher_create(nmlp_matcher **out, const nmlp_grammar *grammar, nmlp_err *err);
void nmlp_matcher_destroy(nmlp_matcher *matcher); /* NULL is fine */

/* The state of the empty text. */
int32_t nmlp_matcher_start(const nmlp_matcher *matcher);
/* The state after one more byte: NMLP_MATCHER_DEAD where the grammar has none, NMLP_MATCHER_FAILED where memory or the
 * limits on ambiguity end. */
int32_t nmlp_matcher_next(nmlp_matcher *matcher, int32_t state, unsigned char byte);
/* Whether the text may end there. */
bool nmlp_matcher_accepts(const nmlp_matcher *matcher, int32_t state);
/* Whether nothing may follow. */
bool nmlp_matcher_is_final(const nmlp_matcher *matcher, int32_t state);

/* Forgets all states but one when they have become many; gives that one's new number. Others are then not valid. */
nmlp_status nmlp_matcher_trim(nmlp_matcher *matcher, int32_t *state, bool *forgot, nmlp_err *err);
int32_t nmlp_matcher_states(const nmlp_matcher *matcher);

#endif
