/* Statements: the tree of a template. Expressions are in jinja_parse_expression.c. */
#include <string.h>

#include "base/mem.h"
#include "text/jinja_parse_internal.h"

static nmlp_jinja_node *parse_body(nmlp_jinja_parser *p, const char *const *ends);

static void need_block_end(nmlp_jinja_parser *p) {
    if (p->status == NMLP_OK && p->at->type == NMLP_JINJA_T_BLOCK_END)
        p->at++;
    else
        nmlp_jinja_refuse(p, "the end of a tag is expected");
}

/* An expression, or several with commas between: a tuple. */
static nmlp_jinja_node *parse_tuple(nmlp_jinja_parser *p) {
    nmlp_jinja_node *first = nmlp_jinja_parse_expression(p);
    if (!nmlp_jinja_is_operator(p, ",")) return first;
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, NMLP_JINJA_LIST_DISPLAY, NMLP_JINJA_ADD, first);
    if (n) n->flag = true;
    while (nmlp_jinja_skip_operator(p, ",") && p->at->type != NMLP_JINJA_T_BLOCK_END)
        nmlp_jinja_node_add(p, n, nmlp_jinja_parse_expression(p));
    return n;
}

/* A name, a.b, or names with commas between. */
static nmlp_jinja_node *parse_target(nmlp_jinja_parser *p) {
    nmlp_jinja_node *n = NULL;
    bool brackets = nmlp_jinja_skip_operator(p, "(");
    do {
        nmlp_jinja_node *target = nmlp_jinja_node_new(p, NMLP_JINJA_NAME);
        if (!target) return NULL;
        target->text = nmlp_jinja_need_name(p);
        if (nmlp_jinja_skip_operator(p, ".")) {
            nmlp_jinja_node *attribute = nmlp_jinja_node_unary(p, NMLP_JINJA_ATTRIBUTE, NMLP_JINJA_ADD, target);
            if (attribute) attribute->text = nmlp_jinja_need_name(p);
            target = attribute;
        }
        if (!n) {
            n = target;
        } else {
            if (n->type != NMLP_JINJA_LIST_DISPLAY)
                n = nmlp_jinja_node_unary(p, NMLP_JINJA_LIST_DISPLAY, NMLP_JINJA_ADD, n);
            nmlp_jinja_node_add(p, n, target);
        }
    } while (n && nmlp_jinja_skip_operator(p, ","));
    if (brackets) nmlp_jinja_need_operator(p, ")");
    return n;
}

static nmlp_jinja_node *parse_if(nmlp_jinja_parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const endif[] = {"endif", NULL};
    if (!nmlp_jinja_enter(p)) return NULL;
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, NMLP_JINJA_IF, NMLP_JINJA_ADD, parse_tuple(p));
    need_block_end(p);
    nmlp_jinja_node_add(p, n, parse_body(p, ends));
    if (nmlp_jinja_skip_name(p, "elif")) {
        nmlp_jinja_node_add(p, n, parse_if(p));
    } else if (nmlp_jinja_skip_name(p, "else")) {
        need_block_end(p);
        nmlp_jinja_node_add(p, n, parse_body(p, endif));
        nmlp_jinja_skip_name(p, "endif");
        need_block_end(p);
    } else {
        nmlp_jinja_node_add(p, n, NULL);
        nmlp_jinja_skip_name(p, "endif");
        need_block_end(p);
    }
    p->depth--;
    return n;
}

static nmlp_jinja_node *parse_for(nmlp_jinja_parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const endfor[] = {"endfor", NULL};
    nmlp_jinja_node *filter = NULL;
    nmlp_jinja_node *otherwise = NULL;
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, NMLP_JINJA_FOR, NMLP_JINJA_ADD, parse_target(p));
    if (!n) return NULL;
    if (!nmlp_jinja_skip_name(p, "in")) return nmlp_jinja_refuse(p, "\"in\" is missing");
    nmlp_jinja_node *iterable = nmlp_jinja_parse_or(p); /* an "if" behind it is the loop's filter */
    if (nmlp_jinja_is_operator(p, ",")) {
        iterable = nmlp_jinja_node_unary(p, NMLP_JINJA_LIST_DISPLAY, NMLP_JINJA_ADD, iterable);
        while (nmlp_jinja_skip_operator(p, ",")) nmlp_jinja_node_add(p, iterable, nmlp_jinja_parse_or(p));
    }
    if (nmlp_jinja_skip_name(p, "if")) filter = nmlp_jinja_parse_expression(p);
    n->flag = nmlp_jinja_skip_name(p, "recursive");
    need_block_end(p);
    nmlp_jinja_node *body = parse_body(p, ends);
    if (nmlp_jinja_skip_name(p, "else")) {
        need_block_end(p);
        otherwise = parse_body(p, endfor);
    }
    nmlp_jinja_skip_name(p, "endfor");
    need_block_end(p);
    nmlp_jinja_node_add(p, n, iterable);
    nmlp_jinja_node_add(p, n, body);
    nmlp_jinja_node_add(p, n, otherwise);
    nmlp_jinja_node_add(p, n, filter);
    return n;
}

static nmlp_jinja_node *parse_filter_chain(nmlp_jinja_parser *p) {
    nmlp_jinja_node *n = nmlp_jinja_node_new(p, NMLP_JINJA_NAME); /* stands for the block's text */
    if (n) n->text = "";
    do n = nmlp_jinja_parse_filter(p, n);
    while (nmlp_jinja_skip_operator(p, "|"));
    return n;
}

static nmlp_jinja_node *parse_set(nmlp_jinja_parser *p) {
    static const char *const endset[] = {"endset", NULL};
    nmlp_jinja_node *target = parse_target(p);
    if (nmlp_jinja_skip_operator(p, "=")) {
        nmlp_jinja_node *n = nmlp_jinja_node_binary(p, NMLP_JINJA_SET, NMLP_JINJA_ADD, target, parse_tuple(p));
        need_block_end(p);
        return n;
    }
    nmlp_jinja_node *filter = nmlp_jinja_skip_operator(p, "|") ? parse_filter_chain(p) : NULL;
    need_block_end(p);
    nmlp_jinja_node *n = nmlp_jinja_node_binary(p, NMLP_JINJA_SET_BLOCK, NMLP_JINJA_ADD, target, parse_body(p, endset));
    nmlp_jinja_node_add(p, n, filter);
    nmlp_jinja_skip_name(p, "endset");
    need_block_end(p);
    return n;
}

static void parse_parameters(nmlp_jinja_parser *p, nmlp_jinja_node *macro) {
    nmlp_jinja_need_operator(p, "(");
    while (p->status == NMLP_OK && !nmlp_jinja_skip_operator(p, ")")) {
        nmlp_jinja_node *parameter = nmlp_jinja_node_new(p, NMLP_JINJA_KEYWORD);
        if (!parameter) return;
        parameter->text = nmlp_jinja_need_name(p);
        nmlp_jinja_node_add(p, parameter, nmlp_jinja_skip_operator(p, "=") ? nmlp_jinja_parse_expression(p) : NULL);
        nmlp_jinja_node_add(p, macro, parameter);
        if (!nmlp_jinja_is_operator(p, ")")) nmlp_jinja_need_operator(p, ",");
    }
}

/* The body comes first in the node; finish_macro puts it there. */
static nmlp_jinja_node *parse_macro(nmlp_jinja_parser *p, const char *name) {
    nmlp_jinja_node *n = nmlp_jinja_node_new(p, NMLP_JINJA_MACRO_DEF);
    if (!n) return NULL;
    n->text = name;
    nmlp_jinja_node_add(p, n, NULL);
    if (nmlp_jinja_is_operator(p, "(")) parse_parameters(p, n);
    return n;
}

static void finish_macro(nmlp_jinja_parser *p, nmlp_jinja_node *macro, const char *end) {
    const char *const ends[] = {end, NULL};
    need_block_end(p);
    nmlp_jinja_node *body = parse_body(p, ends);
    if (macro && p->status == NMLP_OK) macro->children[0] = body;
    nmlp_jinja_skip_name(p, end);
    need_block_end(p);
}

static nmlp_jinja_node *parse_call_block(nmlp_jinja_parser *p) {
    nmlp_jinja_node *macro = parse_macro(p, "caller");
    nmlp_jinja_node *call = nmlp_jinja_parse_expression(p);
    if (p->status == NMLP_OK && call->type != NMLP_JINJA_CALL) return nmlp_jinja_refuse(p, "a call is missing");
    finish_macro(p, macro, "endcall");
    return nmlp_jinja_node_binary(p, NMLP_JINJA_CALL_BLOCK, NMLP_JINJA_ADD, call, macro);
}

static nmlp_jinja_node *parse_filter_block(nmlp_jinja_parser *p) {
    static const char *const ends[] = {"endfilter", NULL};
    nmlp_jinja_node *filter = parse_filter_chain(p);
    need_block_end(p);
    nmlp_jinja_node *n =
        nmlp_jinja_node_binary(p, NMLP_JINJA_FILTER_BLOCK, NMLP_JINJA_ADD, filter, parse_body(p, ends));
    nmlp_jinja_skip_name(p, "endfilter");
    need_block_end(p);
    return n;
}

static nmlp_jinja_node *parse_with(nmlp_jinja_parser *p) {
    static const char *const ends[] = {"endwith", NULL};
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, NMLP_JINJA_WITH, NMLP_JINJA_ADD, NULL);
    while (p->status == NMLP_OK && p->at->type == NMLP_JINJA_T_NAME) {
        nmlp_jinja_node_add(p, n, parse_target(p));
        nmlp_jinja_need_operator(p, "=");
        nmlp_jinja_node_add(p, n, nmlp_jinja_parse_expression(p));
        if (!nmlp_jinja_skip_operator(p, ",")) break;
    }
    need_block_end(p);
    nmlp_jinja_node *body = parse_body(p, ends);
    if (n && p->status == NMLP_OK) n->children[0] = body;
    nmlp_jinja_skip_name(p, "endwith");
    need_block_end(p);
    return n;
}

/* {% generation %} marks what a model said, for training: its body as it is. */
static nmlp_jinja_node *parse_generation(nmlp_jinja_parser *p) {
    static const char *const ends[] = {"endgeneration", NULL};
    need_block_end(p);
    nmlp_jinja_node *n = parse_body(p, ends);
    nmlp_jinja_skip_name(p, "endgeneration");
    need_block_end(p);
    return n;
}

static nmlp_jinja_node *parse_statement(nmlp_jinja_parser *p) {
    if (nmlp_jinja_skip_name(p, "if")) return parse_if(p);
    if (nmlp_jinja_skip_name(p, "for")) return parse_for(p);
    if (nmlp_jinja_skip_name(p, "set")) return parse_set(p);
    if (nmlp_jinja_skip_name(p, "macro")) {
        nmlp_jinja_node *macro = parse_macro(p, nmlp_jinja_need_name(p));
        finish_macro(p, macro, "endmacro");
        return macro;
    }
    if (nmlp_jinja_skip_name(p, "call")) return parse_call_block(p);
    if (nmlp_jinja_skip_name(p, "filter")) return parse_filter_block(p);
    if (nmlp_jinja_skip_name(p, "with")) return parse_with(p);
    if (nmlp_jinja_skip_name(p, "generation")) return parse_generation(p);
    if (nmlp_jinja_is_name(p, "break") || nmlp_jinja_is_name(p, "continue")) {
        nmlp_jinja_node *n =
            nmlp_jinja_node_new(p, nmlp_jinja_is_name(p, "break") ? NMLP_JINJA_BREAK : NMLP_JINJA_CONTINUE);
        p->at++;
        need_block_end(p);
        return n;
    }
    return nmlp_jinja_refuse(p, "a statement that is not supported");
}

static bool at_end(const nmlp_jinja_parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (nmlp_jinja_is_name(p, *ends)) return true;
    return false;
}

/* Up to one of `ends`, whose tag is read up to its name; NULL: the whole template. */
static nmlp_jinja_node *parse_body(nmlp_jinja_parser *p, const char *const *ends) {
    if (!nmlp_jinja_enter(p)) return NULL;
    nmlp_jinja_node *body = nmlp_jinja_node_new(p, NMLP_JINJA_BODY);
    while (p->status == NMLP_OK) {
        if (p->at->type == NMLP_JINJA_T_END) {
            if (ends) nmlp_jinja_refuse(p, "a block has no end");
            break;
        }
        if (p->at->type == NMLP_JINJA_T_TEXT) {
            nmlp_jinja_node *text = nmlp_jinja_node_new(p, NMLP_JINJA_TEXT);
            if (!text) break;
            text->text = p->at->text;
            text->len = p->at->len;
            p->at++;
            nmlp_jinja_node_add(p, body, text);
        } else if (p->at->type == NMLP_JINJA_T_OUTPUT_BEGIN) {
            p->at++;
            nmlp_jinja_node_add(p, body, nmlp_jinja_node_unary(p, NMLP_JINJA_OUTPUT, NMLP_JINJA_ADD, parse_tuple(p)));
            if (p->status == NMLP_OK && p->at->type != NMLP_JINJA_T_OUTPUT_END)
                nmlp_jinja_refuse(p, "the end of an expression is expected");
            else
                p->at++;
        } else {
            p->at++; /* BLOCK_BEGIN */
            if (at_end(p, ends)) break;
            nmlp_jinja_node_add(p, body, parse_statement(p));
        }
    }
    p->depth--;
    return body;
}

nmlp_status nmlp_jinja_parse(nmlp_jinja_node **out, nmlp_jinja_heap *heap, const char *source, size_t len,
                             nmlp_err *err) {
    nmlp_jinja_tokens tokens;
    nmlp_status st = nmlp_jinja_lex(&tokens, heap, source, len, err);
    if (st == NMLP_OK) {
        nmlp_jinja_parser p = {.at = tokens.items, .heap = heap, .err = err};
        *out = parse_body(&p, NULL);
        st = p.status;
    }
    nmlp_mem_free(tokens.items);
    return st;
}
