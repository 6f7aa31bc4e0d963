/* Expressions -> steps of an automaton that takes bytes and calls rules. */
#include "grammar/grammar_internal.h"

enum { SHARED_STEPS = 4 }; /* an expression of more than that becomes a rule when it is repeated */

struct compiler {
    nmlp_grammar *g;
    nmlp_status st;
    nmlp_err *err;
};

static int32_t add_step(struct compiler *c, nmlp_grammar_step step) {
    nmlp_grammar *g = c->g;
    void *steps = g->steps;
    if (c->st != NMLP_OK) return 0;
    if (g->n_steps == NMLP_GRAMMAR_STEPS_MAX)
        c->st = nmlp_fail_field(c->err, NMLP_E_LIMIT, "grammar", "needs more than %d steps; repeat less",
                                NMLP_GRAMMAR_STEPS_MAX);
    else
        c->st = nmlp_mem_grow(&steps, &g->steps_capacity, g->n_steps + 1, sizeof *g->steps, c->err);
    if (c->st != NMLP_OK) return 0;
    g->steps = steps;
    g->steps[g->n_steps] = step;
    return (int32_t)g->n_steps++;
}

static int32_t add_split(struct compiler *c, int32_t to, int32_t other) {
    return add_step(c, (nmlp_grammar_step){.op = NMLP_GRAMMAR_SPLIT, .to = to, .other = other});
}

static int32_t add_byte(struct compiler *c, uint32_t first, uint32_t last, int32_t to) {
    return add_step(c, (nmlp_grammar_step){NMLP_GRAMMAR_BYTE, (uint8_t)first, (uint8_t)last, to, 0});
}

/* ---- characters ---- */

static uint32_t byte_of(uint32_t c, int n, int i) {
    static const uint32_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    uint32_t bits = c >> (6 * (n - 1 - i));
    return n == 1 ? c : i == 0 ? marks[n] | bits : 0x80 | (bits & 0x3f);
}

/* Characters first..last whose UTF-8 has n bytes: split until the range of every byte is independent of the others.
 * Returns a step that takes one of them or goes on at `others` (-1: nowhere). */
static int32_t add_range(struct compiler *c, uint32_t first, uint32_t last, int n, int32_t to, int32_t others) {
    for (int i = 1; i < n; i++) {
        uint32_t mask = (1u << (6 * i)) - 1; /* what the last i bytes hold */
        if ((first & ~mask) == (last & ~mask)) continue;
        if (first & mask) {
            others = add_range(c, (first | mask) + 1, last, n, to, others);
            return add_range(c, first, first | mask, n, to, others);
        }
        if ((last & mask) != mask) {
            others = add_range(c, last & ~mask, last, n, to, others);
            return add_range(c, first, (last & ~mask) - 1, n, to, others);
        }
    }
    int32_t at = to;
    for (int i = n - 1; i >= 0; i--) at = add_byte(c, byte_of(first, n, i), byte_of(last, n, i), at);
    return others < 0 ? at : add_split(c, at, others);
}

static int32_t add_class(struct compiler *c, const nmlp_grammar_expr *e, int32_t to) {
    static const nmlp_char_range lengths[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, NMLP_UNICODE_MAX}};
    static const int n_bytes[] = {1, 2, 3, 3, 4};
    int32_t at = -1;
    for (int32_t i = e->n_ranges - 1; i >= 0; i--) {
        for (int k = 4; k >= 0; k--) {
            uint32_t first = e->ranges[i].first > lengths[k].first ? e->ranges[i].first : lengths[k].first;
            uint32_t last = e->ranges[i].last < lengths[k].last ? e->ranges[i].last : lengths[k].last;
            if (first <= last && c->st == NMLP_OK) at = add_range(c, first, last, n_bytes[k], to, at);
        }
    }
    if (at < 0 && c->st == NMLP_OK)
        c->st = nmlp_fail_field(c->err, NMLP_E_ARG, "grammar", "has a class of no valid characters");
    return at;
}

/* ---- expressions ---- */

static int32_t emit(struct compiler *c, const nmlp_grammar_expr *e, int32_t to);

static int32_t emit_call(struct compiler *c, int32_t rule, int32_t to) {
    return add_step(c, (nmlp_grammar_step){.op = NMLP_GRAMMAR_CALL, .to = to, .other = rule});
}

/* Last child first: every step knows where to go on. */
static int32_t emit_sequence(struct compiler *c, const nmlp_grammar_expr *e, int32_t to) {
    for (const nmlp_grammar_expr *k = e->last_child; k && c->st == NMLP_OK; k = k->previous) to = emit(c, k, to);
    return to;
}

static int32_t emit_choice(struct compiler *c, const nmlp_grammar_expr *e, int32_t to) {
    int32_t at = emit(c, e->last_child, to);
    for (const nmlp_grammar_expr *k = e->last_child->previous; k && c->st == NMLP_OK; k = k->previous)
        at = add_split(c, emit(c, k, to), at);
    return at;
}

/* An expression that is copied often is a rule of its own. */
static bool is_small(const nmlp_grammar_expr *e) {
    if (e->kind == NMLP_GRAMMAR_RULE) return true;
    if (e->kind == NMLP_GRAMMAR_SEQ && e->child && !e->child->next) return is_small(e->child);
    return e->kind == NMLP_GRAMMAR_CLASS && e->n_ranges <= SHARED_STEPS && e->ranges[e->n_ranges - 1].last < 0x80;
}

static int32_t emit_repeat(struct compiler *c, const nmlp_grammar_expr *e, int32_t to) {
    const nmlp_grammar_expr *body = e->child;
    nmlp_grammar_expr call = {.kind = NMLP_GRAMMAR_RULE};
    int32_t at = to;
    bool copied = e->min + (e->max < 0 ? 1 : e->max - e->min) > 1;
    if (copied && !is_small(body)) {
        c->st = nmlp_grammar_add_rule(c->g, "", 0, &call.rule, c->err);
        if (c->st != NMLP_OK) return 0;
        c->g->rules[call.rule].body = e->child;
        body = &call;
    }
    if (e->max < 0) {
        at = add_split(c, 0, to);
        int32_t start = emit(c, body, at);
        if (c->st == NMLP_OK) c->g->steps[at].to = start;
    }
    for (int32_t i = e->min; i < e->max && c->st == NMLP_OK; i++) at = add_split(c, emit(c, body, at), to);
    for (int32_t i = 0; i < e->min && c->st == NMLP_OK; i++) at = emit(c, body, at);
    return at;
}

static int32_t emit(struct compiler *c, const nmlp_grammar_expr *e, int32_t to) {
    if (c->st != NMLP_OK) return 0;
    switch (e->kind) {
    case NMLP_GRAMMAR_CLASS: return add_class(c, e, to);
    case NMLP_GRAMMAR_RULE: return emit_call(c, e->rule, to);
    case NMLP_GRAMMAR_ALT: return emit_choice(c, e, to);
    case NMLP_GRAMMAR_REPEAT: return emit_repeat(c, e, to);
    case NMLP_GRAMMAR_SEQ: break;
    }
    return emit_sequence(c, e, to);
}

/* Two bytes are of one class when every step takes both or neither. */
static void classify_bytes(nmlp_grammar *g) {
    bool begins[257] = {true};
    for (size_t i = 0; i < g->n_steps; i++) {
        if (g->steps[i].op != NMLP_GRAMMAR_BYTE) continue;
        begins[g->steps[i].first] = true;
        begins[g->steps[i].last + 1] = true;
    }
    int32_t n = 0;
    for (int b = 0; b < 256; b++) {
        n += begins[b];
        g->byte_class[b] = (uint8_t)(n - 1);
    }
    g->n_classes = n;
}

nmlp_status nmlp_grammar_compile(nmlp_grammar *g, nmlp_err *err) {
    struct compiler c = {.g = g, .err = err};
    int32_t end = add_step(&c, (nmlp_grammar_step){.op = NMLP_GRAMMAR_RETURN});
    for (size_t i = 0; i < g->n_rules && c.st == NMLP_OK; i++) { /* rules are added meanwhile */
        int32_t start = emit(&c, g->rules[i].body, end);
        g->rules[i].start = start;
    }
    classify_bytes(g);
    return c.st;
}

nmlp_status nmlp_grammar_parse(nmlp_grammar **out, const char *text, size_t len, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_grammar *g = nmlp_mem_new(1, sizeof *g, err);
    if (!g) return NMLP_E_NOMEM;
    nmlp_arena_init(&g->arena);
    nmlp_hashmap_init(&g->names);
    NMLP_TRY(nmlp_grammar_read(g, text, len, err));
    NMLP_TRY(nmlp_grammar_compile(g, err));
    NMLP_TRY(nmlp_grammar_check(g, err));
    *out = g;
out:
    if (st != NMLP_OK) nmlp_grammar_destroy(g);
    return st;
}

void nmlp_grammar_destroy(nmlp_grammar *g) {
    if (!g) return;
    nmlp_hashmap_fini(&g->names);
    nmlp_arena_fini(&g->arena);
    nmlp_mem_free(g->rules);
    nmlp_mem_free(g->steps);
    nmlp_mem_free(g);
}
