/* What the two halves of the parser share: the place among the tokens, and nodes. For jinja_parse*.c only. */
#ifndef NMLP_TEXT_JINJA_PARSE_INTERNAL_H
#define NMLP_TEXT_JINJA_PARSE_INTERNAL_H

#include "text/jinja_internal.h"

typedef struct nmlp_jinja_parser {
    const nmlp_jinja_token *at;
    nmlp_jinja_heap *heap;
    nmlp_err *err;
    nmlp_status status;
    int depth;
} nmlp_jinja_parser;

/* Says what is wrong at the next token; always NULL. */
nmlp_jinja_node *nmlp_jinja_refuse(nmlp_jinja_parser *p, const char *what);
/* False, having refused, where the template is nested too deeply; leaving is p->depth--. */
bool nmlp_jinja_enter(nmlp_jinja_parser *p);

/* Nodes: NULL after a failure. */
nmlp_jinja_node *nmlp_jinja_node_new(nmlp_jinja_parser *p, nmlp_jinja_node_type type);
nmlp_jinja_node *nmlp_jinja_node_unary(nmlp_jinja_parser *p, nmlp_jinja_node_type type, nmlp_jinja_op op,
                                       nmlp_jinja_node *child);
nmlp_jinja_node *nmlp_jinja_node_binary(nmlp_jinja_parser *p, nmlp_jinja_node_type type, nmlp_jinja_op op,
                                        nmlp_jinja_node *left, nmlp_jinja_node *right);
void nmlp_jinja_node_add(nmlp_jinja_parser *p, nmlp_jinja_node *parent, nmlp_jinja_node *child);

/* Whether the next token is that; skipping it; refusing anything else. */
bool nmlp_jinja_is_operator(const nmlp_jinja_parser *p, const char *text);
bool nmlp_jinja_is_name(const nmlp_jinja_parser *p, const char *text);
bool nmlp_jinja_skip_operator(nmlp_jinja_parser *p, const char *text);
bool nmlp_jinja_skip_name(nmlp_jinja_parser *p, const char *text);
void nmlp_jinja_need_operator(nmlp_jinja_parser *p, const char *text);
const char *nmlp_jinja_need_name(nmlp_jinja_parser *p);

/* jinja_parse_expression.c */
nmlp_jinja_node *nmlp_jinja_parse_expression(nmlp_jinja_parser *p);
/* Without "if" behind it. */
nmlp_jinja_node *nmlp_jinja_parse_or(nmlp_jinja_parser *p);
/* The filter whose name comes next, applied to a node. */
nmlp_jinja_node *nmlp_jinja_parse_filter(nmlp_jinja_parser *p, nmlp_jinja_node *of);

#endif
