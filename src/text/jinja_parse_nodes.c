/* Steps over tokens, and nodes of the tree. */
#include <string.h>

#include "text/jinja_parse_internal.h"

nmlp_jinja_node *nmlp_jinja_refuse(nmlp_jinja_parser *p, const char *what) {
    if (p->status == NMLP_OK) {
        const nmlp_jinja_token *t = p->at;
        bool spelled = t->type == NMLP_JINJA_T_NAME || t->type == NMLP_JINJA_T_OPERATOR;
        p->status = nmlp_fail(p->err, NMLP_E_UNSUPPORTED, "chat template line %d: %s%s%.60s%s", t->line, what,
                              spelled ? ", at \"" : "", spelled ? t->text : "", spelled ? "\"" : "");
    }
    return NULL;
}

nmlp_jinja_node *nmlp_jinja_node_new(nmlp_jinja_parser *p, nmlp_jinja_node_type type) {
    nmlp_jinja_node *n = p->status == NMLP_OK ? nmlp_jinja_alloc(p->heap, sizeof *n) : NULL;
    if (!n) {
        if (p->status == NMLP_OK) p->status = nmlp_fail(p->err, NMLP_E_LIMIT, "chat template: too large");
        return NULL;
    }
    n->type = type;
    n->line = p->at->line;
    return n;
}

/* Absent children are NULL; a node that could not be made takes none. */
void nmlp_jinja_node_add(nmlp_jinja_parser *p, nmlp_jinja_node *parent, nmlp_jinja_node *child) {
    if (!parent || p->status != NMLP_OK) return;
    if (parent->n_children == parent->capacity) {
        size_t capacity = parent->capacity ? 2 * parent->capacity : 4;
        nmlp_jinja_node **children = nmlp_jinja_alloc(p->heap, capacity * sizeof(nmlp_jinja_node *));
        if (!children) {
            p->status = nmlp_fail(p->err, NMLP_E_LIMIT, "chat template: too large");
            return;
        }
        if (parent->n_children) memcpy(children, parent->children, parent->n_children * sizeof(nmlp_jinja_node *));
        parent->children = children;
        parent->capacity = capacity;
    }
    parent->children[parent->n_children++] = child;
}

bool nmlp_jinja_enter(nmlp_jinja_parser *p) {
    if (++p->depth <= NMLP_JINJA_DEPTH_MAX) return true;
    nmlp_jinja_refuse(p, "nested too deeply");
    return false;
}

bool nmlp_jinja_is_operator(const nmlp_jinja_parser *p, const char *text) {
    return p->at->type == NMLP_JINJA_T_OPERATOR && strcmp(p->at->text, text) == 0;
}

bool nmlp_jinja_is_name(const nmlp_jinja_parser *p, const char *text) {
    return p->at->type == NMLP_JINJA_T_NAME && strcmp(p->at->text, text) == 0;
}

bool nmlp_jinja_skip_operator(nmlp_jinja_parser *p, const char *text) {
    if (p->status != NMLP_OK || !nmlp_jinja_is_operator(p, text)) return false;
    p->at++;
    return true;
}

bool nmlp_jinja_skip_name(nmlp_jinja_parser *p, const char *text) {
    if (p->status != NMLP_OK || !nmlp_jinja_is_name(p, text)) return false;
    p->at++;
    return true;
}

void nmlp_jinja_need_operator(nmlp_jinja_parser *p, const char *text) {
    if (!nmlp_jinja_skip_operator(p, text)) nmlp_jinja_refuse(p, "a bracket, comma or colon is missing");
}

const char *nmlp_jinja_need_name(nmlp_jinja_parser *p) {
    if (p->status == NMLP_OK && p->at->type == NMLP_JINJA_T_NAME) return (p->at++)->text;
    nmlp_jinja_refuse(p, "a name is missing");
    return "";
}

nmlp_jinja_node *nmlp_jinja_node_unary(nmlp_jinja_parser *p, nmlp_jinja_node_type type, nmlp_jinja_op op,
                                       nmlp_jinja_node *child) {
    nmlp_jinja_node *n = nmlp_jinja_node_new(p, type);
    if (n) n->op = op;
    nmlp_jinja_node_add(p, n, child);
    return n;
}

nmlp_jinja_node *nmlp_jinja_node_binary(nmlp_jinja_parser *p, nmlp_jinja_node_type type, nmlp_jinja_op op,
                                        nmlp_jinja_node *left, nmlp_jinja_node *right) {
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, type, op, left);
    nmlp_jinja_node_add(p, n, right);
    return n;
}
