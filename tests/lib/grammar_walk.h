/* Random texts of a grammar: what a model without an opinion would write under it. */
#ifndef NMLP_TESTS_GRAMMAR_WALK_H
#define NMLP_TESTS_GRAMMAR_WALK_H

#include "base/rng.h"
#include "base/str.h"
#include "grammar/matcher.h"

/* Appends a text of the grammar; false where none ended within max_bytes. Bytes that close something are preferred. */
bool grammar_walk(nmlp_str *out, nmlp_matcher *matcher, nmlp_rng *rng, size_t max_bytes);

#endif
