/* The tree of a template, by recursive descent; precedences are those of Jinja. */
#include <string.h>

#include "base/mem.h"
#include "text/jinja_internal.h"

typedef struct parser {
    const nmlp_jinja_token *at;
    nmlp_jinja_heap *heap;
    nmlp_err *err;
    nmlp_status status;
    int depth;
} parser;

typedef nmlp_jinja_node node;

static node *parse_expression(parser *p);
static node *parse_unary(parser *p, bool with_filters);
static node *parse_body(parser *p, const char *const *ends);

static node *fail_parse(parser *p, const char *what) {
    if (p->status == NMLP_OK) {
        const nmlp_jinja_token *t = p->at;
        bool spelled = t->type == NMLP_JINJA_T_NAME || t->type == NMLP_JINJA_T_OPERATOR;
        p->status = nmlp_fail(p->err, NMLP_E_UNSUPPORTED, "chat template line %d: %s%s%.60s%s", t->line, what,
                              spelled ? ", at \"" : "", spelled ? t->text : "", spelled ? "\"" : "");
    }
    return NULL;
}

static node *new_node(parser *p, nmlp_jinja_node_type type) {
    node *n = p->status == NMLP_OK ? nmlp_jinja_alloc(p->heap, sizeof *n) : NULL;
    if (!n) {
        if (p->status == NMLP_OK) p->status = nmlp_fail(p->err, NMLP_E_LIMIT, "chat template: too large");
        return NULL;
    }
    n->type = type;
    n->line = p->at->line;
    return n;
}

/* Absent children are NULL; a node that could not be made takes none. */
static void add_child(parser *p, node *parent, node *child) {
    if (!parent || p->status != NMLP_OK) return;
    if (parent->n_children == parent->capacity) {
        size_t capacity = parent->capacity ? 2 * parent->capacity : 4;
        node **children = nmlp_jinja_alloc(p->heap, capacity * sizeof(node *));
        if (!children) {
            p->status = nmlp_fail(p->err, NMLP_E_LIMIT, "chat template: too large");
            return;
        }
        if (parent->n_children) memcpy(children, parent->children, parent->n_children * sizeof(node *));
        parent->children = children;
        parent->capacity = capacity;
    }
    parent->children[parent->n_children++] = child;
}

static bool enter(parser *p) {
    if (++p->depth <= NMLP_JINJA_DEPTH_MAX) return true;
    fail_parse(p, "nested too deeply");
    return false;
}

static bool is_operator(const parser *p, const char *text) {
    return p->at->type == NMLP_JINJA_T_OPERATOR && strcmp(p->at->text, text) == 0;
}

static bool is_name(const parser *p, const char *text) {
    return p->at->type == NMLP_JINJA_T_NAME && strcmp(p->at->text, text) == 0;
}

static bool skip_operator(parser *p, const char *text) {
    if (p->status != NMLP_OK || !is_operator(p, text)) return false;
    p->at++;
    return true;
}

static bool skip_name(parser *p, const char *text) {
    if (p->status != NMLP_OK || !is_name(p, text)) return false;
    p->at++;
    return true;
}

static void need_operator(parser *p, const char *text) {
    if (!skip_operator(p, text)) fail_parse(p, "a bracket, comma or colon is missing");
}

static const char *need_name(parser *p) {
    if (p->status == NMLP_OK && p->at->type == NMLP_JINJA_T_NAME) return (p->at++)->text;
    fail_parse(p, "a name is missing");
    return "";
}

static node *new_unary(parser *p, nmlp_jinja_node_type type, nmlp_jinja_op op, node *child) {
    node *n = new_node(p, type);
    if (n) n->op = op;
    add_child(p, n, child);
    return n;
}

static node *new_binary(parser *p, nmlp_jinja_node_type type, nmlp_jinja_op op, node *left, node *right) {
    node *n = new_unary(p, type, op, left);
    add_child(p, n, right);
    return n;
}

/* ---- expressions ---- */

static void parse_arguments(parser *p, node *call) {
    while (p->status == NMLP_OK && !skip_operator(p, ")")) {
        if (p->at->type == NMLP_JINJA_T_NAME && p->at[1].type == NMLP_JINJA_T_OPERATOR &&
            strcmp(p->at[1].text, "=") == 0) {
            node *keyword = new_node(p, NMLP_JINJA_KEYWORD);
            if (!keyword) return;
            keyword->text = p->at->text;
            p->at += 2;
            add_child(p, keyword, parse_expression(p));
            add_child(p, call, keyword);
        } else {
            add_child(p, call, parse_expression(p));
        }
        if (!is_operator(p, ")")) need_operator(p, ",");
    }
}

/* Items up to a closing bracket. */
static node *parse_display(parser *p, const char *end, node *first, bool is_tuple) {
    node *n = new_node(p, NMLP_JINJA_LIST_DISPLAY);
    if (!n) return NULL;
    n->flag = is_tuple;
    if (first) {
        add_child(p, n, first);
        need_operator(p, ",");
    }
    while (p->status == NMLP_OK && !skip_operator(p, end)) {
        add_child(p, n, parse_expression(p));
        if (!is_operator(p, end)) need_operator(p, ",");
    }
    return n;
}

static node *parse_dict(parser *p) {
    node *n = new_node(p, NMLP_JINJA_DICT_DISPLAY);
    while (p->status == NMLP_OK && !skip_operator(p, "}")) {
        add_child(p, n, parse_expression(p));
        need_operator(p, ":");
        add_child(p, n, parse_expression(p));
        if (!is_operator(p, "}")) need_operator(p, ",");
    }
    return n;
}

static node *parse_parenthesis(parser *p) {
    if (skip_operator(p, ")")) {
        node *empty = new_node(p, NMLP_JINJA_LIST_DISPLAY);
        if (empty) empty->flag = true;
        return empty;
    }
    node *first = parse_expression(p);
    if (skip_operator(p, ")")) return first;
    return parse_display(p, ")", first, true);
}

static node *parse_string(parser *p) {
    node *n = new_node(p, NMLP_JINJA_LITERAL);
    size_t len = 0;
    const nmlp_jinja_token *end = p->at;
    for (; end->type == NMLP_JINJA_T_STRING; end++) len += end->len; /* neighbours are one string */
    char *data = n ? nmlp_jinja_alloc(p->heap, len + 1) : NULL;
    nmlp_jinja_string *s = n ? nmlp_jinja_alloc(p->heap, sizeof *s) : NULL;
    if (!data || !s) return fail_parse(p, "too large");
    *s = (nmlp_jinja_string){.data = data, .len = len};
    for (len = 0; p->at < end; p->at++) {
        memcpy(data + len, p->at->text, p->at->len);
        len += p->at->len;
    }
    n->literal = (nmlp_jinja_value){.kind = NMLP_JINJA_STRING, .as.s = s};
    return n;
}

static node *parse_name(parser *p) {
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
    node *n = new_node(p, NMLP_JINJA_NAME);
    if (!n) return NULL;
    n->text = (p->at++)->text;
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
        if (strcmp(n->text, constants[i].name) != 0) continue;
        n->type = NMLP_JINJA_LITERAL;
        n->literal = constants[i].value;
    }
    return n;
}

static node *parse_primary(parser *p) {
    if (p->status != NMLP_OK) return NULL;
    if (p->at->type == NMLP_JINJA_T_NAME) return parse_name(p);
    if (p->at->type == NMLP_JINJA_T_STRING) return parse_string(p);
    if (p->at->type == NMLP_JINJA_T_INT || p->at->type == NMLP_JINJA_T_FLOAT) {
        node *n = new_node(p, NMLP_JINJA_LITERAL);
        if (!n) return NULL;
        if (p->at->type == NMLP_JINJA_T_INT)
            n->literal = (nmlp_jinja_value){.kind = NMLP_JINJA_INT, .as.i = p->at->i};
        else
            n->literal = (nmlp_jinja_value){.kind = NMLP_JINJA_FLOAT, .as.f = p->at->f};
        p->at++;
        return n;
    }
    if (skip_operator(p, "(")) return parse_parenthesis(p);
    if (skip_operator(p, "[")) return parse_display(p, "]", NULL, false);
    if (skip_operator(p, "{")) return parse_dict(p);
    return fail_parse(p, "an expression is missing");
}

/* [index] or [begin:end:step] */
static node *parse_subscript(parser *p, node *of) {
    node *parts[3] = {0};
    size_t n_parts = 0;
    bool slice = false;
    while (p->status == NMLP_OK && !is_operator(p, "]") && n_parts < 3) {
        if (!is_operator(p, ":")) parts[n_parts] = parse_expression(p);
        if (!skip_operator(p, ":")) break;
        slice = true;
        n_parts++;
    }
    need_operator(p, "]");
    if (!slice && !parts[0]) return fail_parse(p, "an index is missing");
    node *n = new_unary(p, slice ? NMLP_JINJA_SLICE : NMLP_JINJA_ITEM, NMLP_JINJA_ADD, of);
    for (size_t i = 0; i < (slice ? 3u : 1u); i++) add_child(p, n, parts[i]);
    return n;
}

static node *parse_postfix(parser *p, node *n) {
    while (p->status == NMLP_OK) {
        if (skip_operator(p, ".")) {
            node *attribute = new_unary(p, NMLP_JINJA_ATTRIBUTE, NMLP_JINJA_ADD, n);
            if (attribute && p->at->type == NMLP_JINJA_T_INT) { /* x.0 */
                node *index = parse_primary(p);
                attribute->type = NMLP_JINJA_ITEM;
                add_child(p, attribute, index);
            } else if (attribute) {
                attribute->text = need_name(p);
            }
            n = attribute;
        } else if (skip_operator(p, "[")) {
            n = parse_subscript(p, n);
        } else if (skip_operator(p, "(")) {
            n = new_unary(p, NMLP_JINJA_CALL, NMLP_JINJA_ADD, n);
            parse_arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}

static node *parse_filter(parser *p, node *of) {
    node *n = new_unary(p, NMLP_JINJA_FILTER, NMLP_JINJA_ADD, of);
    if (!n) return NULL;
    n->text = need_name(p);
    if (skip_operator(p, "(")) parse_arguments(p, n);
    return n;
}

/* The one argument of a test may come without brackets: `x is divisibleby 3`. */
static bool starts_argument(const parser *p) {
    static const char *const keywords[] = {"else", "or", "and", "is", "if", "in", "not"};
    switch (p->at->type) {
    case NMLP_JINJA_T_STRING:
    case NMLP_JINJA_T_INT:
    case NMLP_JINJA_T_FLOAT: return true;
    case NMLP_JINJA_T_NAME:
        for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++)
            if (is_name(p, keywords[i])) return false;
        return true;
    default: return is_operator(p, "[") || is_operator(p, "{");
    }
}

static node *parse_test(parser *p, node *of) {
    node *n = new_unary(p, NMLP_JINJA_TEST, NMLP_JINJA_ADD, of);
    if (!n) return NULL;
    n->flag = skip_name(p, "not");
    n->text = need_name(p);
    if (skip_operator(p, "("))
        parse_arguments(p, n);
    else if (starts_argument(p))
        add_child(p, n, parse_postfix(p, parse_primary(p)));
    return n;
}

static node *parse_filters(parser *p, node *n) {
    while (p->status == NMLP_OK) {
        if (skip_operator(p, "|"))
            n = parse_filter(p, n);
        else if (skip_name(p, "is"))
            n = parse_test(p, n);
        else if (is_operator(p, "(") || is_operator(p, ".") || is_operator(p, "["))
            n = parse_postfix(p, n); /* behind a filter */
        else
            break;
    }
    return n;
}

static node *parse_unary(parser *p, bool with_filters) {
    node *n;
    if (!enter(p)) return NULL;
    if (skip_operator(p, "-"))
        n = new_unary(p, NMLP_JINJA_UNARY, NMLP_JINJA_NEG, parse_unary(p, false));
    else if (skip_operator(p, "+"))
        n = new_unary(p, NMLP_JINJA_UNARY, NMLP_JINJA_POS, parse_unary(p, false));
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

static const operator_name *find_operator(const parser *p, const operator_name *level) {
    for (; level->text; level++)
        if (is_operator(p, level->text)) return level;
    return NULL;
}

static node *parse_level(parser *p, size_t level) {
    enum { N_LEVELS = sizeof levels / sizeof levels[0] };
    node *left = level + 1 < N_LEVELS ? parse_level(p, level + 1) : parse_unary(p, true);
    const operator_name *found;
    while (p->status == NMLP_OK && (found = find_operator(p, levels[level]))) {
        p->at++;
        node *right = level + 1 < N_LEVELS ? parse_level(p, level + 1) : parse_unary(p, true);
        left = new_binary(p, NMLP_JINJA_BINARY, found->op, left, right);
    }
    return left;
}

static bool next_comparison(parser *p, nmlp_jinja_op *op) {
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
    if (skip_name(p, "in")) return true;
    if (p->status != NMLP_OK || !is_name(p, "not") || p->at[1].type != NMLP_JINJA_T_NAME ||
        strcmp(p->at[1].text, "in") != 0)
        return false;
    p->at += 2;
    *op = NMLP_JINJA_NOT_IN;
    return true;
}

static node *parse_compare(parser *p) {
    enum { CHAIN_MAX = 8 };
    node *first = parse_level(p, 0);
    nmlp_jinja_op ops[CHAIN_MAX];
    size_t n_ops = 0;
    node *n = NULL;
    while (n_ops < CHAIN_MAX && next_comparison(p, &ops[n_ops])) {
        if (!n) n = new_unary(p, NMLP_JINJA_COMPARE, NMLP_JINJA_ADD, first);
        n_ops++;
        add_child(p, n, parse_level(p, 0));
    }
    if (!n) return first;
    n->ops = nmlp_jinja_alloc(p->heap, n_ops * sizeof *ops);
    if (!n->ops) return fail_parse(p, "too large");
    memcpy(n->ops, ops, n_ops * sizeof *ops);
    return n;
}

static node *parse_not(parser *p) {
    if (!skip_name(p, "not")) return parse_compare(p);
    if (!enter(p)) return NULL;
    node *n = new_unary(p, NMLP_JINJA_UNARY, NMLP_JINJA_NOT, parse_not(p));
    p->depth--;
    return n;
}

static node *parse_and(parser *p) {
    node *left = parse_not(p);
    while (skip_name(p, "and")) left = new_binary(p, NMLP_JINJA_AND, NMLP_JINJA_ADD, left, parse_not(p));
    return left;
}

static node *parse_or(parser *p) {
    node *left = parse_and(p);
    while (skip_name(p, "or")) left = new_binary(p, NMLP_JINJA_OR, NMLP_JINJA_ADD, left, parse_and(p));
    return left;
}

static node *parse_expression(parser *p) {
    if (!enter(p)) return NULL;
    node *n = parse_or(p);
    while (skip_name(p, "if")) {
        node *conditional = new_binary(p, NMLP_JINJA_CONDITIONAL, NMLP_JINJA_ADD, n, parse_or(p));
        add_child(p, conditional, skip_name(p, "else") ? parse_expression(p) : NULL);
        n = conditional;
    }
    p->depth--;
    return n;
}

/* ---- statements ---- */

static void need_block_end(parser *p) {
    if (p->status == NMLP_OK && p->at->type == NMLP_JINJA_T_BLOCK_END)
        p->at++;
    else
        fail_parse(p, "the end of a tag is expected");
}

/* An expression, or several with commas between: a tuple. */
static node *parse_tuple(parser *p) {
    node *first = parse_expression(p);
    if (!is_operator(p, ",")) return first;
    node *n = new_unary(p, NMLP_JINJA_LIST_DISPLAY, NMLP_JINJA_ADD, first);
    if (n) n->flag = true;
    while (skip_operator(p, ",") && p->at->type != NMLP_JINJA_T_BLOCK_END) add_child(p, n, parse_expression(p));
    return n;
}

/* A name, a.b, or names with commas between. */
static node *parse_target(parser *p) {
    node *n = NULL;
    bool brackets = skip_operator(p, "(");
    do {
        node *target = new_node(p, NMLP_JINJA_NAME);
        if (!target) return NULL;
        target->text = need_name(p);
        if (skip_operator(p, ".")) {
            node *attribute = new_unary(p, NMLP_JINJA_ATTRIBUTE, NMLP_JINJA_ADD, target);
            if (attribute) attribute->text = need_name(p);
            target = attribute;
        }
        if (!n) {
            n = target;
        } else {
            if (n->type != NMLP_JINJA_LIST_DISPLAY) n = new_unary(p, NMLP_JINJA_LIST_DISPLAY, NMLP_JINJA_ADD, n);
            add_child(p, n, target);
        }
    } while (n && skip_operator(p, ","));
    if (brackets) need_operator(p, ")");
    return n;
}

static node *parse_if(parser *p) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const endif[] = {"endif", NULL};
    if (!enter(p)) return NULL;
    node *n = new_unary(p, NMLP_JINJA_IF, NMLP_JINJA_ADD, parse_tuple(p));
    need_block_end(p);
    add_child(p, n, parse_body(p, ends));
    if (skip_name(p, "elif")) {
        add_child(p, n, parse_if(p));
    } else if (skip_name(p, "else")) {
        need_block_end(p);
        add_child(p, n, parse_body(p, endif));
        skip_name(p, "endif");
        need_block_end(p);
    } else {
        add_child(p, n, NULL);
        skip_name(p, "endif");
        need_block_end(p);
    }
    p->depth--;
    return n;
}

static node *parse_for(parser *p) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const endfor[] = {"endfor", NULL};
    node *filter = NULL;
    node *otherwise = NULL;
    node *n = new_unary(p, NMLP_JINJA_FOR, NMLP_JINJA_ADD, parse_target(p));
    if (!n) return NULL;
    if (!skip_name(p, "in")) return fail_parse(p, "\"in\" is missing");
    node *iterable = parse_or(p); /* an "if" behind it is the loop's filter */
    if (is_operator(p, ",")) {
        iterable = new_unary(p, NMLP_JINJA_LIST_DISPLAY, NMLP_JINJA_ADD, iterable);
        while (skip_operator(p, ",")) add_child(p, iterable, parse_or(p));
    }
    if (skip_name(p, "if")) filter = parse_expression(p);
    n->flag = skip_name(p, "recursive");
    need_block_end(p);
    node *body = parse_body(p, ends);
    if (skip_name(p, "else")) {
        need_block_end(p);
        otherwise = parse_body(p, endfor);
    }
    skip_name(p, "endfor");
    need_block_end(p);
    add_child(p, n, iterable);
    add_child(p, n, body);
    add_child(p, n, otherwise);
    add_child(p, n, filter);
    return n;
}

static node *parse_filter_chain(parser *p) {
    node *n = new_node(p, NMLP_JINJA_NAME); /* stands for the block's text */
    if (n) n->text = "";
    do n = parse_filter(p, n);
    while (skip_operator(p, "|"));
    return n;
}

static node *parse_set(parser *p) {
    static const char *const endset[] = {"endset", NULL};
    node *target = parse_target(p);
    if (skip_operator(p, "=")) {
        node *n = new_binary(p, NMLP_JINJA_SET, NMLP_JINJA_ADD, target, parse_tuple(p));
        need_block_end(p);
        return n;
    }
    node *filter = skip_operator(p, "|") ? parse_filter_chain(p) : NULL;
    need_block_end(p);
    node *n = new_binary(p, NMLP_JINJA_SET_BLOCK, NMLP_JINJA_ADD, target, parse_body(p, endset));
    add_child(p, n, filter);
    skip_name(p, "endset");
    need_block_end(p);
    return n;
}

static void parse_parameters(parser *p, node *macro) {
    need_operator(p, "(");
    while (p->status == NMLP_OK && !skip_operator(p, ")")) {
        node *parameter = new_node(p, NMLP_JINJA_KEYWORD);
        if (!parameter) return;
        parameter->text = need_name(p);
        add_child(p, parameter, skip_operator(p, "=") ? parse_expression(p) : NULL);
        add_child(p, macro, parameter);
        if (!is_operator(p, ")")) need_operator(p, ",");
    }
}

/* The body comes first in the node; finish_macro puts it there. */
static node *parse_macro(parser *p, const char *name) {
    node *n = new_node(p, NMLP_JINJA_MACRO_DEF);
    if (!n) return NULL;
    n->text = name;
    add_child(p, n, NULL);
    if (is_operator(p, "(")) parse_parameters(p, n);
    return n;
}

static void finish_macro(parser *p, node *macro, const char *end) {
    const char *const ends[] = {end, NULL};
    need_block_end(p);
    node *body = parse_body(p, ends);
    if (macro && p->status == NMLP_OK) macro->children[0] = body;
    skip_name(p, end);
    need_block_end(p);
}

static node *parse_call_block(parser *p) {
    node *macro = parse_macro(p, "caller");
    node *call = parse_expression(p);
    if (p->status == NMLP_OK && call->type != NMLP_JINJA_CALL) return fail_parse(p, "a call is missing");
    finish_macro(p, macro, "endcall");
    return new_binary(p, NMLP_JINJA_CALL_BLOCK, NMLP_JINJA_ADD, call, macro);
}

static node *parse_filter_block(parser *p) {
    static const char *const ends[] = {"endfilter", NULL};
    node *filter = parse_filter_chain(p);
    need_block_end(p);
    node *n = new_binary(p, NMLP_JINJA_FILTER_BLOCK, NMLP_JINJA_ADD, filter, parse_body(p, ends));
    skip_name(p, "endfilter");
    need_block_end(p);
    return n;
}

static node *parse_with(parser *p) {
    static const char *const ends[] = {"endwith", NULL};
    node *n = new_unary(p, NMLP_JINJA_WITH, NMLP_JINJA_ADD, NULL);
    while (p->status == NMLP_OK && p->at->type == NMLP_JINJA_T_NAME) {
        add_child(p, n, parse_target(p));
        need_operator(p, "=");
        add_child(p, n, parse_expression(p));
        if (!skip_operator(p, ",")) break;
    }
    need_block_end(p);
    node *body = parse_body(p, ends);
    if (n && p->status == NMLP_OK) n->children[0] = body;
    skip_name(p, "endwith");
    need_block_end(p);
    return n;
}

/* {% generation %} marks what a model said, for training: its body as it is. */
static node *parse_generation(parser *p) {
    static const char *const ends[] = {"endgeneration", NULL};
    need_block_end(p);
    node *n = parse_body(p, ends);
    skip_name(p, "endgeneration");
    need_block_end(p);
    return n;
}

static node *parse_statement(parser *p) {
    if (skip_name(p, "if")) return parse_if(p);
    if (skip_name(p, "for")) return parse_for(p);
    if (skip_name(p, "set")) return parse_set(p);
    if (skip_name(p, "macro")) {
        node *macro = parse_macro(p, need_name(p));
        finish_macro(p, macro, "endmacro");
        return macro;
    }
    if (skip_name(p, "call")) return parse_call_block(p);
    if (skip_name(p, "filter")) return parse_filter_block(p);
    if (skip_name(p, "with")) return parse_with(p);
    if (skip_name(p, "generation")) return parse_generation(p);
    if (is_name(p, "break") || is_name(p, "continue")) {
        node *n = new_node(p, is_name(p, "break") ? NMLP_JINJA_BREAK : NMLP_JINJA_CONTINUE);
        p->at++;
        need_block_end(p);
        return n;
    }
    return fail_parse(p, "a statement that is not supported");
}

static bool at_end(const parser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (is_name(p, *ends)) return true;
    return false;
}

/* Up to one of `ends`, whose tag is read up to its name; NULL: the whole template. */
static node *parse_body(parser *p, const char *const *ends) {
    if (!enter(p)) return NULL;
    node *body = new_node(p, NMLP_JINJA_BODY);
    while (p->status == NMLP_OK) {
        if (p->at->type == NMLP_JINJA_T_END) {
            if (ends) fail_parse(p, "a block has no end");
            break;
        }
        if (p->at->type == NMLP_JINJA_T_TEXT) {
            node *text = new_node(p, NMLP_JINJA_TEXT);
            if (!text) break;
            text->text = p->at->text;
            text->len = p->at->len;
            p->at++;
            add_child(p, body, text);
        } else if (p->at->type == NMLP_JINJA_T_OUTPUT_BEGIN) {
            p->at++;
            add_child(p, body, new_unary(p, NMLP_JINJA_OUTPUT, NMLP_JINJA_ADD, parse_tuple(p)));
            if (p->status == NMLP_OK && p->at->type != NMLP_JINJA_T_OUTPUT_END)
                fail_parse(p, "the end of an expression is expected");
            else
                p->at++;
        } else {
            p->at++; /* BLOCK_BEGIN */
            if (at_end(p, ends)) break;
            add_child(p, body, parse_statement(p));
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
        parser p = {.at = tokens.items, .heap = heap, .err = err};
        *out = parse_body(&p, NULL);
        st = p.status;
    }
    nmlp_mem_free(tokens.items);
    return st;
}
