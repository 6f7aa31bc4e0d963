/* What a grammar is made of; for the files of src/grammar only. */
#ifndef NMLP_GRAMMAR_GRAMMAR_INTERNAL_H
#define NMLP_GRAMMAR_GRAMMAR_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hashmap.h"
#include "base/mem.h"
#include "grammar/grammar.h"

enum {
    NMLP_GRAMMAR_TEXT_MAX_BYTES = 4 << 20,
    NMLP_GRAMMAR_RULES_MAX = 1 << 15,
    NMLP_GRAMMAR_STEPS_MAX = 1 << 18,
    NMLP_GRAMMAR_DEPTH_MAX = 200, /* of groups */
    NMLP_GRAMMAR_REPEATS_MAX = 4, /* one behind the other */
    NMLP_GRAMMAR_REPEAT_MAX = 100000,
    NMLP_UNICODE_MAX = 0x10ffff
};

/* ---- as written ---- */

typedef enum nmlp_grammar_kind {
    NMLP_GRAMMAR_CLASS,  /* one character */
    NMLP_GRAMMAR_RULE,   /* what another rule derives */
    NMLP_GRAMMAR_SEQ,    /* all children; none: the empty text */
    NMLP_GRAMMAR_ALT,    /* one of the children */
    NMLP_GRAMMAR_REPEAT, /* the child, min to max times */
} nmlp_grammar_kind;

typedef struct nmlp_char_range {
    uint32_t first, last;
} nmlp_char_range;

typedef struct nmlp_grammar_expr {
    nmlp_grammar_kind kind;
    struct nmlp_grammar_expr *child, *last_child, *next, *previous;
    nmlp_char_range *ranges; /* of a class: sorted, apart from each other */
    int32_t n_ranges;
    int32_t rule;
    int32_t min, max; /* max -1: any number */
} nmlp_grammar_expr;

/* ---- as it runs ---- */

typedef enum nmlp_grammar_op {
    NMLP_GRAMMAR_BYTE,   /* takes a byte from `first` to `last`, goes on at `to` */
    NMLP_GRAMMAR_SPLIT,  /* goes on at `to` and at `other` */
    NMLP_GRAMMAR_CALL,   /* runs rule `other`, then goes on at `to` */
    NMLP_GRAMMAR_RETURN, /* the rule ends */
} nmlp_grammar_op;

typedef struct nmlp_grammar_step {
    uint8_t op, first, last;
    int32_t to, other;
} nmlp_grammar_step;

typedef struct nmlp_grammar_rule {
    const char *name;        /* in the arena; "": made by the compiler */
    nmlp_grammar_expr *body; /* NULL: not defined yet */
    int32_t start;
    int32_t line; /* where it is first named */
} nmlp_grammar_rule;

struct nmlp_grammar {
    nmlp_arena arena; /* names, expressions */
    nmlp_hashmap names;
    nmlp_grammar_rule *rules;
    size_t n_rules, rules_capacity;
    nmlp_grammar_step *steps;
    size_t n_steps, steps_capacity;
    int32_t root;
    uint8_t byte_class[256]; /* bytes of one class are never told apart */
    int32_t n_classes;
};

/* grammar_parse.c */
nmlp_status nmlp_grammar_read(nmlp_grammar *g, const char *text, size_t len, nmlp_err *err);
/* A further rule, without a body. */
nmlp_status nmlp_grammar_add_rule(nmlp_grammar *g, const char *name, int32_t line, int32_t *rule, nmlp_err *err);

/* grammar_compile.c: steps of all rules. */
nmlp_status nmlp_grammar_compile(nmlp_grammar *g, nmlp_err *err);
/* grammar_check.c: refuses rules that recurse on the left or never end. */
nmlp_status nmlp_grammar_check(nmlp_grammar *g, nmlp_err *err);

#endif
