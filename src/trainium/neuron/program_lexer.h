/* Words of the text form of tile programs. */
#ifndef NMLP_TRAINIUM_NEURON_PROGRAM_LEXER_H
#define NMLP_TRAINIUM_NEURON_PROGRAM_LEXER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "trainium/neuron/program.h"

typedef enum nmlp_token_kind {
    NMLP_TOKEN_END,
    NMLP_TOKEN_NAME,
    NMLP_TOKEN_NUMBER,
    NMLP_TOKEN_MARK,
    NMLP_TOKEN_COMMENT
} nmlp_token_kind;

enum { NMLP_COMMENT_TEXT_MAX = 400 };

typedef struct nmlp_lexer {
    const char *where;
    const char *at, *stop;
    int line;
    nmlp_err *err;
    /* the token in hand */
    nmlp_token_kind kind;
    char mark;                        /* MARK: the character; '+' stands for ":+" when `range` */
    bool range;                       /* MARK ":+" */
    char text[NMLP_COMMENT_TEXT_MAX]; /* NAME, NUMBER, COMMENT */
    int token_line;
} nmlp_lexer;

/* Reads the first token. */
nmlp_status nmlp_lexer_init(nmlp_lexer *lx, const char *where, const char *text, size_t len, nmlp_err *err);
nmlp_status nmlp_lexer_next(nmlp_lexer *lx);
/* "where:line: expected …, found …" */
nmlp_status nmlp_lexer_expected(nmlp_lexer *lx, const char *what);
bool nmlp_lexer_is_name(const nmlp_lexer *lx, const char *name);
bool nmlp_lexer_is_mark(const nmlp_lexer *lx, char mark);
/* Consume. */
nmlp_status nmlp_lexer_take_name(nmlp_lexer *lx, char out[NMLP_NAME_MAX], const char *what);
nmlp_status nmlp_lexer_take_keyword(nmlp_lexer *lx, const char *name);
nmlp_status nmlp_lexer_take_mark(nmlp_lexer *lx, char mark);
nmlp_status nmlp_lexer_take_range(nmlp_lexer *lx);
nmlp_status nmlp_lexer_take_int(nmlp_lexer *lx, int64_t *value); /* sign allowed, |value| <= 2^30 */
nmlp_status nmlp_lexer_take_real(nmlp_lexer *lx, double *value);
/* A name out of names[0..n): its index. */
nmlp_status nmlp_lexer_take_choice(nmlp_lexer *lx, const char *(*name_of)(int), int n, const char *what, int *choice);

#endif
