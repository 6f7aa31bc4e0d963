/* Expressions, by recursive descent; precedences are those of Jinja. */
#include <string.h>

#include "text/jinja_parse_internal.h"

static nmlp_jinja_node *parse_unary(nmlp_jinja_parser *p, bool with_filters);

static void parse_arguments(nmlp_jinja_parser *p, nmlp_jinja_node *call) {
    while (p->status == NMLP_OK && !nmlp_jinja_skip_operator(p, ")")) {
        if (p->at->type == NMLP_JINJA_T_NAME && p->at[1].type == NMLP_JINJA_T_OPERATOR &&
            strcmp(p->at[1].text, "=") == 0) {
            nmlp_jinja_node *keyword = nmlp_jinja_node_new(p, NMLP_JINJA_KEYWORD);
            if (!keyword) return;
            keyword->text = p->at->text;
            p->at += 2;
            nmlp_jinja_node_add(p, keyword, nmlp_jinja_parse_expression(p));
            nmlp_jinja_node_add(p, call, keyword);
        } else {
            nmlp_jinja_node_add(p, call, nmlp_jinja_parse_expression(p));
        }
        if (!nmlp_jinja_is_operator(p, ")")) nmlp_jinja_need_operator(p, ",");
    }
}

/* Items up to a closing bracket. */
static nmlp_jinja_node *parse_display(nmlp_jinja_parser *p, const char *end, nmlp_jinja_node *first, bool is_tuple) {
    nmlp_jinja_node *n = nmlp_jinja_node_new(p, NMLP_JINJA_LIST_DISPLAY);
    if (!n) return NULL;
    n->flag = is_tuple;
    if (first) {
        nmlp_jinja_node_add(p, n, first);
        nmlp_jinja_need_operator(p, ",");
    }
    while (p->status == NMLP_OK && !nmlp_jinja_skip_operator(p, end)) {
        nmlp_jinja_node_add(p, n, nmlp_jinja_parse_expression(p));
        if (!nmlp_jinja_is_operator(p, end)) nmlp_jinja_need_operator(p, ",");
    }
    return n;
}

static nmlp_jinja_node *parse_dict(nmlp_jinja_parser *p) {
    nmlp_jinja_node *n = nmlp_jinja_node_new(p, NMLP_JINJA_DICT_DISPLAY);
    while (p->status == NMLP_OK && !nmlp_jinja_skip_operator(p, "}")) {
        nmlp_jinja_node_add(p, n, nmlp_jinja_parse_expression(p));
        nmlp_jinja_need_operator(p, ":");
        nmlp_jinja_node_add(p, n, nmlp_jinja_parse_expression(p));
        if (!nmlp_jinja_is_operator(p, "}")) nmlp_jinja_need_operator(p, ",");
    }
    return n;
}

static nmlp_jinja_node *parse_parenthesis(nmlp_jinja_parser *p) {
    if (nmlp_jinja_skip_operator(p, ")")) {
        nmlp_jinja_node *empty = nmlp_jinja_node_new(p, NMLP_JINJA_LIST_DISPLAY);
        if (empty) empty->flag = true;
        return empty;
    }
    nmlp_jinja_node *first = nmlp_jinja_parse_expression(p);
    if (nmlp_jinja_skip_operator(p, ")")) return first;
    return parse_display(p, ")", first, true);
}

static nmlp_jinja_node *parse_string(nmlp_jinja_parser *p) {
    nmlp_jinja_node *n = nmlp_jinja_node_new(p, NMLP_JINJA_LITERAL);
    size_t len = 0;
    const nmlp_jinja_token *end = p->at;
    for (; end->type == NMLP_JINJA_T_STRING; end++) len += end->len; /* neighbours are one string */
    char *data = n ? nmlp_jinja_alloc(p->heap, len + 1) : NULL;
    nmlp_jinja_string *s = n ? nmlp_jinja_alloc(p->heap, sizeof *s) : NULL;
    if (!data || !s) return nmlp_jinja_refuse(p, "too large");
    *s = (nmlp_jinja_string){.data = data, .len = len};
    for (len = 0; p->at < end; p->at++) {
        memcpy(data + len, p->at->text, p->at->len);
        len += p->at->len;
    }
    n->literal = (nmlp_jinja_value){.kind = NMLP_JINJA_STRING, .as.s = s};
    return n;
}

static nmlp_jinja_node *parse_name(nmlp_jinja_parser *p) {
    static const struct {
        const char *name;
        nmlp_jinja_value value;
    } constants[] = {
        {"true", {.kind = NMLP_JINJA_BOOL, .as.b = true}},
        {"True", {.kind = NMLP_JINJA_BOOL, .as.b = true}},
        {"false", {.kind = NMLP_JINJA_BOOL, .as.b = false}},
        {"False", {.kind = NMLP_JINJA_BOOL, .as.b = false}},
        {"none", {.kind = NMLP_JINJA_NONE}},
        {"None", {.kind = NMLP_JINJA_NONE}},
    };
    nmlp_jinja_node *n = nmlp_jinja_node_new(p, NMLP_JINJA_NAME);
    if (!n) return NULL;
    n->text = (p->at++)->text;
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (strcmp(n->text, constants[i].name) != 0) continue;
        n->type = NMLP_JINJA_LITERAL;
        n->literal = constants[i].value;
    }
    return n;
}

static nmlp_jinja_node *parse_primary(nmlp_jinja_parser *p) {
    if (p->status != NMLP_OK) return NULL;
    if (p->at->type == NMLP_JINJA_T_NAME) return parse_name(p);
    if (p->at->type == NMLP_JINJA_T_STRING) return parse_string(p);
    if (p->at->type == NMLP_JINJA_T_INT || p->at->type == NMLP_JINJA_T_FLOAT) {
        nmlp_jinja_node *n = nmlp_jinja_node_new(p, NMLP_JINJA_LITERAL);
        if (!n) return NULL;
        if (p->at->type == NMLP_JINJA_T_INT)
            n->literal = (nmlp_jinja_value){.kind = NMLP_JINJA_INT, .as.i = p->at->i};
        else
            n->literal = (nmlp_jinja_value){.kind = NMLP_JINJA_FLOAT, .as.f = p->at->f};
        p->at++;
        return n;
    }
    if (nmlp_jinja_skip_operator(p, "(")) return parse_parenthesis(p);
    if (nmlp_jinja_skip_operator(p, "[")) return parse_display(p, "]", NULL, false);
    if (nmlp_jinja_skip_operator(p, "{")) return parse_dict(p);
    return nmlp_jinja_refuse(p, "an expression is missing");
}

/* [index] or [begin:end:step] */
static nmlp_jinja_node *parse_subscript(nmlp_jinja_parser *p, nmlp_jinja_node *of) {
    nmlp_jinja_node *parts[3] = {0};
    size_t n_parts = 0;
    bool slice = false;
    while (p->status == NMLP_OK && !nmlp_jinja_is_operator(p, "]") && n_parts < 3) {
        if (!nmlp_jinja_is_operator(p, ":")) parts[n_parts] = nmlp_jinja_parse_expression(p);
        if (!nmlp_jinja_skip_operator(p, ":")) break;
        slice = true;
        n_parts++;
    }
    nmlp_jinja_need_operator(p, "]");
    if (!slice && !parts[0]) return nmlp_jinja_refuse(p, "an index is missing");
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, slice ? NMLP_JINJA_SLICE : NMLP_JINJA_ITEM, NMLP_JINJA_ADD, of);
    for (size_t i = 0; i < (slice ? 3u : 1u); i++) nmlp_jinja_node_add(p, n, parts[i]);
    return n;
}

static nmlp_jinja_node *parse_postfix(nmlp_jinja_parser *p, nmlp_jinja_node *n) {
    while (p->status == NMLP_OK) {
        if (nmlp_jinja_skip_operator(p, ".")) {
            nmlp_jinja_node *attribute = nmlp_jinja_node_unary(p, NMLP_JINJA_ATTRIBUTE, NMLP_JINJA_ADD, n);
            if (attribute && p->at->type == NMLP_JINJA_T_INT) { /* x.0 */
                nmlp_jinja_node *index = parse_primary(p);
                attribute->type = NMLP_JINJA_ITEM;
                nmlp_jinja_node_add(p, attribute, index);
            } else if (attribute) {
                attribute->text = nmlp_jinja_need_name(p);
            }
            n = attribute;
        } else if (nmlp_jinja_skip_operator(p, "[")) {
            n = parse_subscript(p, n);
        } else if (nmlp_jinja_skip_operator(p, "(")) {
            n = nmlp_jinja_node_unary(p, NMLP_JINJA_CALL, NMLP_JINJA_ADD, n);
            parse_arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}

nmlp_jinja_node *nmlp_jinja_parse_filter(nmlp_jinja_parser *p, nmlp_jinja_node *of) {
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, NMLP_JINJA_FILTER, NMLP_JINJA_ADD, of);
    if (!n) return NULL;
    n->text = nmlp_jinja_need_name(p);
    if (nmlp_jinja_skip_operator(p, "(")) parse_arguments(p, n);
    return n;
}

/* The one argument of a test may come without brackets: `x is divisibleby 3`. */
static bool starts_argument(const nmlp_jinja_parser *p) {
    static const char *const keywords[] = {"else", "or", "and", "is", "if", "in", "not"};
    switch (p->at->type) {
    case NMLP_JINJA_T_STRING:
    case NMLP_JINJA_T_INT:
    case NMLP_JINJA_T_FLOAT: return true;
    case NMLP_JINJA_T_NAME:
        for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
            if (nmlp_jinja_is_name(p, keywords[i])) return false;
        return true;
    default: return nmlp_jinja_is_operator(p, "[") || nmlp_jinja_is_operator(p, "{");
    }
}

static nmlp_jinja_node *parse_test(nmlp_jinja_parser *p, nmlp_jinja_node *of) {
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, NMLP_JINJA_TEST, NMLP_JINJA_ADD, of);
    if (!n) return NULL;
    n->flag = nmlp_jinja_skip_name(p, "not");
    n->text = nmlp_jinja_need_name(p);
    if (nmlp_jinja_skip_operator(p, "("))
        parse_arguments(p, n);
    else if (starts_argument(p))
        nmlp_jinja_node_add(p, n, parse_postfix(p, parse_primary(p)));
    return n;
}

static nmlp_jinja_node *parse_filters(nmlp_jinja_parser *p, nmlp_jinja_node *n) {
    while (p->status == NMLP_OK) {
        if (nmlp_jinja_skip_operator(p, "|"))
            n = nmlp_jinja_parse_filter(p, n);
        else if (nmlp_jinja_skip_name(p, "is"))
            n = parse_test(p, n);
        else if (nmlp_jinja_is_operator(p, "(") || nmlp_jinja_is_operator(p, ".") || nmlp_jinja_is_operator(p, "["))
            n = parse_postfix(p, n); /* behind a filter */
        else
            break;
    }
    return n;
}

static nmlp_jinja_node *parse_unary(nmlp_jinja_parser *p, bool with_filters) {
    nmlp_jinja_node *n;
    if (!nmlp_jinja_enter(p)) return NULL;
    if (nmlp_jinja_skip_operator(p, "-"))
        n = nmlp_jinja_node_unary(p, NMLP_JINJA_UNARY, NMLP_JINJA_NEG, parse_unary(p, false));
    else if (nmlp_jinja_skip_operator(p, "+"))
        n = nmlp_jinja_node_unary(p, NMLP_JINJA_UNARY, NMLP_JINJA_POS, parse_unary(p, false));
    else
        n = parse_postfix(p, parse_primary(p));
    p->depth--;
    return with_filters ? parse_filters(p, n) : n;
}

typedef struct operator_name {
    const char *text;
    nmlp_jinja_op op;
} operator_name;

static const operator_name level_pow[] = {{"**", NMLP_JINJA_POW}, {NULL, 0}};
static const operator_name level_mul[] = {
    {"*", NMLP_JINJA_MUL}, {"/", NMLP_JINJA_DIV}, {"//", NMLP_JINJA_FLOORDIV}, {"%", NMLP_JINJA_MOD}, {NULL, 0}};
static const operator_name level_concat[] = {{"~", NMLP_JINJA_CONCAT}, {NULL, 0}};
static const operator_name level_add[] = {{"+", NMLP_JINJA_ADD}, {"-", NMLP_JINJA_SUB}, {NULL, 0}};
static const operator_name *const levels[] = {level_add, level_concat, level_mul, level_pow};

static const operator_name *find_operator(const nmlp_jinja_parser *p, const operator_name *level) {
    for (; level->text; level++)
        if (nmlp_jinja_is_operator(p, level->text)) return level;
    return NULL;
}

static nmlp_jinja_node *parse_level(nmlp_jinja_parser *p, size_t level) {
    enum { N_LEVELS = sizeof levels / sizeof levels[0] };
    nmlp_jinja_node *left = level + 1 < N_LEVELS ? parse_level(p, level + 1) : parse_unary(p, true);
    const operator_name *found;
    while (p->status == NMLP_OK && (found = find_operator(p, levels[level]))) {
        p->at++;
        nmlp_jinja_node *right = level + 1 < N_LEVELS ? parse_level(p, level + 1) : parse_unary(p, true);
        left = nmlp_jinja_node_binary(p, NMLP_JINJA_BINARY, found->op, left, right);
    }
    return left;
}

static bool next_comparison(nmlp_jinja_parser *p, nmlp_jinja_op *op) {
    static const operator_name names[] = {{"==", NMLP_JINJA_EQ},
                                          {"!=", NMLP_JINJA_NE},
                                          {"<", NMLP_JINJA_LT},
                                          {"<=", NMLP_JINJA_LE},
                                          {">", NMLP_JINJA_GT},
                                          {">=", NMLP_JINJA_GE},
                                          {NULL, 0}};
    const operator_name *found = p->status == NMLP_OK ? find_operator(p, names) : NULL;
    if (found) {
        p->at++;
        *op = found->op;
        return true;
    }
    *op = NMLP_JINJA_IN;
    if (nmlp_jinja_skip_name(p, "in")) return true;
    if (p->status != NMLP_OK || !nmlp_jinja_is_name(p, "not") || p->at[1].type != NMLP_JINJA_T_NAME ||
        strcmp(p->at[1].text, "in") != 0)
        return false;
    p->at += 2;
    *op = NMLP_JINJA_NOT_IN;
    return true;
}

static nmlp_jinja_node *parse_compare(nmlp_jinja_parser *p) {
    enum { CHAIN_MAX = 8 };
    nmlp_jinja_node *first = parse_level(p, 0);
    nmlp_jinja_op ops[CHAIN_MAX];
    size_t n_ops = 0;
    nmlp_jinja_node *n = NULL;
    while (n_ops < CHAIN_MAX && next_comparison(p, &ops[n_ops])) {
        if (!n) n = nmlp_jinja_node_unary(p, NMLP_JINJA_COMPARE, NMLP_JINJA_ADD, first);
        n_ops++;
        nmlp_jinja_node_add(p, n, parse_level(p, 0));
    }
    if (!n) return first;
    n->ops = nmlp_jinja_alloc(p->heap, n_ops * sizeof *ops);
    if (!n->ops) return nmlp_jinja_refuse(p, "too large");
    memcpy(n->ops, ops, n_ops * sizeof *ops);
    return n;
}

static nmlp_jinja_node *parse_not(nmlp_jinja_parser *p) {
    if (!nmlp_jinja_skip_name(p, "not")) return parse_compare(p);
    if (!nmlp_jinja_enter(p)) return NULL;
    nmlp_jinja_node *n = nmlp_jinja_node_unary(p, NMLP_JINJA_UNARY, NMLP_JINJA_NOT, parse_not(p));
    p->depth--;
    return n;
}

static nmlp_jinja_node *parse_and(nmlp_jinja_parser *p) {
    nmlp_jinja_node *left = parse_not(p);
    while (nmlp_jinja_skip_name(p, "and"))
        left = nmlp_jinja_node_binary(p, NMLP_JINJA_AND, NMLP_JINJA_ADD, left, parse_not(p));
    return left;
}

nmlp_jinja_node *nmlp_jinja_parse_or(nmlp_jinja_parser *p) {
    nmlp_jinja_node *left = parse_and(p);
    while (nmlp_jinja_skip_name(p, "or"))
        left = nmlp_jinja_node_binary(p, NMLP_JINJA_OR, NMLP_JINJA_ADD, left, parse_and(p));
    return left;
}

nmlp_jinja_node *nmlp_jinja_parse_expression(nmlp_jinja_parser *p) {
    if (!nmlp_jinja_enter(p)) return NULL;
    nmlp_jinja_node *n = nmlp_jinja_parse_or(p);
    while (nmlp_jinja_skip_name(p, "if")) {
        nmlp_jinja_node *conditional =
            nmlp_jinja_node_binary(p, NMLP_JINJA_CONDITIONAL, NMLP_JINJA_ADD, n, nmlp_jinja_parse_or(p));
        nmlp_jinja_node_add(p, conditional, nmlp_jinja_skip_name(p, "else") ? nmlp_jinja_parse_expression(p) : NULL);
        n = conditional;
    }
    p->depth--;
    return n;
}
