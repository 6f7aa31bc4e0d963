/* Grammars in GBNF, the notation of llama.cpp, over bytes:
 *
 *     root  ::= "{" pair ("," pair)* "}"     # a comment
 *     pair  ::= [a-z]+ ":" [^"\\]{1,20}
 *
 * Literals and classes name Unicode characters (escapes \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH), "." is any
 * character, * + ? {n} {n,} {n,m} repeat, | chooses, () groups. The text is what `root` derives. Left recursion, rules
 * that are missing and rules that can never end are refused by name.
 *
 * A grammar is immutable after parsing and may be shared by threads. */
#ifndef NMLP_GRAMMAR_GRAMMAR_H
#define NMLP_GRAMMAR_GRAMMAR_H

#include <stddef.h>

#include "base/status.h"

typedef struct nmlp_grammar nmlp_grammar;

/* Errors name the field "grammar" and the line. */
nmlp_status nmlp_grammar_parse(nmlp_grammar **out, const char *text, size_t len, nmlp_err *err);
void nmlp_grammar_destroy(nmlp_grammar *grammar); /* NULL is fine */

#endif
