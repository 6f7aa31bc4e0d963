/* GBNF text -> expressions. */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"
#include "text/utf8.h"

struct parser {
    nmlp_grammar *g;
    const char *at, *end;
    int32_t line;
    int depth;
    nmlp_status st;
    nmlp_err *err;
};

static void *fail(struct parser *p, const char *what) {
    if (p->st == NMLP_OK) p->st = nmlp_fail_field(p->err, NMLP_E_ARG, "grammar", "line %d: %s", p->line, what);
    return NULL;
}

/* ---- expressions ---- */

static nmlp_grammar_expr *new_expr(struct parser *p, nmlp_grammar_kind kind) {
    nmlp_grammar_expr *e = nmlp_arena_new(&p->g->arena, 1, sizeof *e, p->err);
    if (!e) {
        p->st = NMLP_E_NOMEM;
        return NULL;
    }
    *e = (nmlp_grammar_expr){.kind = kind};
    return e;
}

static void add_child(nmlp_grammar_expr *parent, nmlp_grammar_expr *child) {
    child->previous = parent->last_child;
    if (parent->last_child)
        parent->last_child->next = child;
    else
        parent->child = child;
    parent->last_child = child;
}

static nmlp_grammar_expr *new_class(struct parser *p, const nmlp_char_range *ranges, size_t n) {
    nmlp_grammar_expr *e = new_expr(p, NMLP_GRAMMAR_CLASS);
    if (!e) return NULL;
    e->ranges = nmlp_arena_new(&p->g->arena, n ? n : 1, sizeof *ranges, p->err);
    if (!e->ranges) {
        p->st = NMLP_E_NOMEM;
        return NULL;
    }
    if (n) memcpy(e->ranges, ranges, n * sizeof *ranges);
    e->n_ranges = (int32_t)n;
    return e;
}

/* ---- characters ---- */

/* Spaces and comments; line ends only where they do not end a rule. */
static void skip_space(struct parser *p, bool lines) {
    while (p->at < p->end) {
        if (*p->at == '#') {
            while (p->at < p->end && *p->at != '\n') p->at++;
        } else if (*p->at == '\n' && lines) {
            p->line++;
            p->at++;
        } else if (*p->at == ' ' || *p->at == '\t' || *p->at == '\r') {
            p->at++;
        } else {
            return;
        }
    }
}

static bool take_hex(struct parser *p, int n, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < n; i++, p->at++) {
        char h = p->at < p->end ? *p->at : '\0';
        int digit = h >= '0' && h <= '9'   ? h - '0'
                    : h >= 'a' && h <= 'f' ? h - 'a' + 10
                    : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                           : -1;
        if (digit < 0) return fail(p, "a hexadecimal digit is missing in an escape"), false;
        *c = *c << 4 | (uint32_t)digit;
    }
    if (*c > NMLP_UNICODE_MAX || (*c >= 0xd800 && *c < 0xe000)) return fail(p, "an escape is no character"), false;
    return true;
}

static bool take_escape(struct parser *p, uint32_t *c) {
    static const char names[] = "nrt\\\"[]-^./", values[] = "\n\r\t\\\"[]-^./";
    if (p->at == p->end) return fail(p, "the text ends in an escape"), false;
    char name = *p->at++;
    if (name == 'x') return take_hex(p, 2, c);
    if (name == 'u') return take_hex(p, 4, c);
    if (name == 'U') return take_hex(p, 8, c);
    const char *found = name ? strchr(names, name) : NULL;
    if (!found) return fail(p, "an escape is not known (n r t \\ \" [ ] - ^ . / x u U are)"), false;
    *c = (uint32_t)values[found - names];
    return true;
}

static bool take_char(struct parser *p, uint32_t *c) {
    if (p->at == p->end || *p->at == '\n') return fail(p, "a literal or class does not end"), false;
    if (*p->at == '\\') {
        p->at++;
        return take_escape(p, c);
    }
    int n = nmlp_utf8_decode(p->at, (size_t)(p->end - p->at), c);
    if (n <= 0) return fail(p, "is not UTF-8"), false;
    p->at += n;
    return true;
}

static nmlp_grammar_expr *parse_literal(struct parser *p) {
    nmlp_grammar_expr *seq = new_expr(p, NMLP_GRAMMAR_SEQ);
    p->at++; /* the quote */
    while (seq && !(p->at < p->end && *p->at == '"')) {
        uint32_t c;
        if (!take_char(p, &c)) return NULL;
        nmlp_grammar_expr *one = new_class(p, &(nmlp_char_range){c, c}, 1);
        if (!one) return NULL;
        add_child(seq, one);
    }
    p->at++;
    return seq;
}

static int by_first(const void *a, const void *b) {
    const nmlp_char_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorts and joins; returns how many are left. */
static size_t normalise(nmlp_char_range *r, size_t n) {
    size_t m = 0;
    qsort(r, n, sizeof *r, by_first);
    for (size_t i = 0; i < n; i++) {
        if (m > 0 && r[i].first <= r[m - 1].last + 1) {
            if (r[i].last > r[m - 1].last) r[m - 1].last = r[i].last;
        } else {
            r[m++] = r[i];
        }
    }
    return m;
}

/* What r[0..n) leaves of all characters, into out[0..n+1). */
static size_t complement(nmlp_char_range *out, const nmlp_char_range *r, size_t n) {
    uint32_t from = 0;
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (r[i].first > from) out[m++] = (nmlp_char_range){from, r[i].first - 1};
        from = r[i].last + 1;
    }
    if (from <= NMLP_UNICODE_MAX) out[m++] = (nmlp_char_range){from, NMLP_UNICODE_MAX};
    return m;
}

static nmlp_grammar_expr *parse_class(struct parser *p) {
    enum { RANGES_MAX = 256 };
    nmlp_char_range ranges[RANGES_MAX], rest[RANGES_MAX + 1];
    size_t n = 0;
    p->at++; /* the bracket */
    bool negated = p->at < p->end && *p->at == '^';
    if (negated) p->at++;
    while (!(p->at < p->end && *p->at == ']')) {
        nmlp_char_range *r = &ranges[n];
        if (n == RANGES_MAX) return fail(p, "a class has too many parts");
        if (!take_char(p, &r->first)) return NULL;
        r->last = r->first;
        if (p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            if (!take_char(p, &r->last)) return NULL;
            if (r->last < r->first) return fail(p, "a range of a class runs backwards");
        }
        n++;
    }
    p->at++;
    n = normalise(ranges, n);
    size_t n_rest = negated ? complement(rest, ranges, n) : 0;
    if ((negated ? n_rest : n) == 0) return fail(p, "a class is empty");
    return negated ? new_class(p, rest, n_rest) : new_class(p, ranges, n);
}

/* ---- rules ---- */

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

nmlp_status nmlp_grammar_add_rule(nmlp_grammar *g, const char *name, int32_t line, int32_t *rule, nmlp_err *err) {
    void *rules = g->rules;
    if (g->n_rules == NMLP_GRAMMAR_RULES_MAX)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "grammar", "has more than %d rules", NMLP_GRAMMAR_RULES_MAX);
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&rules, &g->rules_capacity, g->n_rules + 1, sizeof *g->rules, err));
    g->rules = rules;
    g->rules[g->n_rules] = (nmlp_grammar_rule){.name = name, .line = line};
    *rule = (int32_t)g->n_rules++;
    return NMLP_OK;
}

/* The rule of the name at p->at, which may not be defined yet; -1 after a failure. */
static int32_t take_rule(struct parser *p) {
    nmlp_grammar *g = p->g;
    const char *begin = p->at;
    uint32_t known;
    int32_t rule = -1;
    while (p->at < p->end && is_name(*p->at)) p->at++;
    size_t len = (size_t)(p->at - begin);
    if (nmlp_hashmap_get(&g->names, begin, len, &known)) return (int32_t)known;
    const char *name = nmlp_arena_strndup(&g->arena, begin, len, p->err);
    p->st = name ? nmlp_grammar_add_rule(g, name, p->line, &rule, p->err) : NMLP_E_NOMEM;
    if (p->st == NMLP_OK) p->st = nmlp_hashmap_put(&g->names, name, len, (uint32_t)rule, p->err);
    return p->st == NMLP_OK ? rule : -1;
}

static bool take_number(struct parser *p, int32_t *out) {
    int32_t n = 0;
    if (p->at == p->end || *p->at < '0' || *p->at > '9') return fail(p, "a number is missing in { }"), false;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        n = 10 * n + (*p->at++ - '0');
        if (n > NMLP_GRAMMAR_REPEAT_MAX) return fail(p, "a repetition is over 100000"), false;
    }
    *out = n;
    return true;
}

static bool take_bounds(struct parser *p, int32_t *min, int32_t *max) {
    skip_space(p, false);
    if (!take_number(p, min)) return false;
    *max = *min;
    skip_space(p, false);
    if (p->at < p->end && *p->at == ',') {
        p->at++;
        skip_space(p, false);
        *max = -1;
        if (p->at < p->end && *p->at != '}' && !take_number(p, max)) return false;
        skip_space(p, false);
    }
    if (p->at == p->end || *p->at != '}') return fail(p, "} is missing"), false;
    if (*max >= 0 && *max < *min) return fail(p, "a repetition ends before it begins"), false;
    p->at++;
    return true;
}

/* `e` with what stands behind it: * + ? { }, also several. */
static nmlp_grammar_expr *parse_repeat(struct parser *p, nmlp_grammar_expr *e) {
    skip_space(p, false);
    for (int n = 0; e && p->at < p->end && strchr("*+?{", *p->at); n++, skip_space(p, false)) {
        if (n == NMLP_GRAMMAR_REPEATS_MAX) return fail(p, "too many repetitions stand behind each other");
        char c = *p->at++;
        int32_t min = c == '+', max = c == '?' ? 1 : -1;
        if (c == '{' && !take_bounds(p, &min, &max)) return NULL;
        nmlp_grammar_expr *repeat = new_expr(p, NMLP_GRAMMAR_REPEAT);
        if (!repeat) return NULL;
        repeat->min = min;
        repeat->max = max;
        add_child(repeat, e);
        e = repeat;
    }
    return e;
}

static nmlp_grammar_expr *parse_alternatives(struct parser *p);

static nmlp_grammar_expr *parse_group(struct parser *p) {
    if (++p->depth > NMLP_GRAMMAR_DEPTH_MAX) return fail(p, "groups are nested too deeply");
    p->at++;
    nmlp_grammar_expr *e = parse_alternatives(p);
    skip_space(p, true);
    if (e && (p->at == p->end || *p->at != ')')) return fail(p, ") is missing");
    p->at++;
    p->depth--;
    return e;
}

static nmlp_grammar_expr *parse_item(struct parser *p) {
    static const nmlp_char_range any = {0, NMLP_UNICODE_MAX};
    switch (*p->at) {
    case '"': return parse_literal(p);
    case '[': return parse_class(p);
    case '(': return parse_group(p);
    case '.': p->at++; return new_class(p, &any, 1);
    default: break;
    }
    int32_t rule = take_rule(p);
    nmlp_grammar_expr *e = rule < 0 ? NULL : new_expr(p, NMLP_GRAMMAR_RULE);
    if (e) e->rule = rule;
    return e;
}

/* Whether a rule begins here: NAME ::= */
static bool begins_rule(struct parser *p) {
    struct parser ahead = *p;
    while (ahead.at < ahead.end && is_name(*ahead.at)) ahead.at++;
    if (ahead.at == p->at) return false;
    skip_space(&ahead, false);
    return ahead.end - ahead.at >= 3 && memcmp(ahead.at, "::=", 3) == 0;
}

static nmlp_grammar_expr *parse_sequence(struct parser *p) {
    nmlp_grammar_expr *seq = new_expr(p, NMLP_GRAMMAR_SEQ);
    while (seq) {
        skip_space(p, p->depth > 0);
        if (p->at == p->end || *p->at == '|' || *p->at == ')' || *p->at == '\n') return seq;
        if (!is_name(*p->at) && !strchr("\"[(.", *p->at)) return fail(p, "a character is not understood");
        nmlp_grammar_expr *item = parse_item(p);
        if (item) item = parse_repeat(p, item);
        if (!item) return NULL;
        add_child(seq, item);
    }
    return NULL;
}

/* Moves over line ends when | stands behind them. */
static bool take_bar(struct parser *p) {
    struct parser ahead = *p;
    skip_space(&ahead, true);
    if (ahead.at == ahead.end || *ahead.at != '|') return false;
    p->line = ahead.line;
    p->at = ahead.at + 1;
    ahead = *p; /* the alternative may begin on the next line */
    skip_space(&ahead, true);
    if (p->depth == 0 && !begins_rule(&ahead)) *p = ahead;
    return true;
}

static nmlp_grammar_expr *parse_alternatives(struct parser *p) {
    nmlp_grammar_expr *first = parse_sequence(p);
    if (!first || !take_bar(p)) return first;
    nmlp_grammar_expr *alt = new_expr(p, NMLP_GRAMMAR_ALT);
    if (!alt) return NULL;
    add_child(alt, first);
    do {
        nmlp_grammar_expr *next = parse_sequence(p);
        if (!next) return NULL;
        add_child(alt, next);
    } while (take_bar(p));
    return alt;
}

static void parse_rule(struct parser *p) {
    if (!begins_rule(p)) {
        fail(p, "NAME ::= is expected");
        return;
    }
    int32_t rule = take_rule(p);
    if (rule < 0) return;
    if (p->g->rules[rule].body) {
        fail(p, "a rule is defined twice");
        return;
    }
    skip_space(p, false);
    p->at += 3;
    struct parser ahead = *p; /* the body may begin on the next line */
    skip_space(&ahead, true);
    if (!begins_rule(&ahead)) *p = ahead;
    nmlp_grammar_expr *body = parse_alternatives(p);
    if (p->st == NMLP_OK) p->g->rules[rule].body = body;
    if (p->st == NMLP_OK && p->at < p->end && *p->at != '\n') fail(p, "a character is not understood");
}

nmlp_status nmlp_grammar_read(nmlp_grammar *g, const char *text, size_t len, nmlp_err *err) {
    struct parser p = {.g = g, .at = text, .end = text + len, .line = 1, .err = err};
    uint32_t root;
    if (len > NMLP_GRAMMAR_TEXT_MAX_BYTES)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "grammar", "has %zu bytes; %d are taken", len,
                               NMLP_GRAMMAR_TEXT_MAX_BYTES);
    if (memchr(text, '\0', len)) return nmlp_fail_field(err, NMLP_E_ARG, "grammar", "holds a NUL byte");
    for (skip_space(&p, true); p.at < p.end && p.st == NMLP_OK; skip_space(&p, true)) parse_rule(&p);
    NMLP_RETURN_IF_FAILED(p.st);
    for (size_t i = 0; i < g->n_rules; i++)
        if (!g->rules[i].body)
            return nmlp_fail_field(err, NMLP_E_ARG, "grammar", "line %d: there is no rule \"%.100s\"", g->rules[i].line,
                                   g->rules[i].name);
    if (!nmlp_hashmap_get(&g->names, "root", 4, &root))
        return nmlp_fail_field(err, NMLP_E_ARG, "grammar", "has no rule \"root\"");
    g->root = (int32_t)root;
    return NMLP_OK;
}
