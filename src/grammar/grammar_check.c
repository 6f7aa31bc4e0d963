/* Rules that recurse on the left, on which the automaton would call without end, and rules that never end. */
#include "grammar/grammar_internal.h"

struct place {
    int32_t step, rule;
};

/* What can be reached inside each rule from its start. */
struct search {
    const nmlp_grammar *g;
    bool *reached;       /* [n_steps] */
    int32_t *owner;      /* [n_steps] the rule of a reached step */
    bool *returns;       /* [n_rules] its end is reached */
    int32_t *waiting;    /* [n_rules] the first call that waits for the rule's end; -1: none */
    int32_t *wait_next;  /* [n_steps] */
    struct place *stack; /* every step is pushed by at most its predecessors' edges */
    size_t n_stack;
};

static nmlp_status begin_search(struct search *s, const nmlp_grammar *g, nmlp_err *err) {
    *s = (struct search){.g = g};
    s->reached = nmlp_mem_new(g->n_steps, sizeof *s->reached, err);
    s->owner = nmlp_mem_new(g->n_steps, sizeof *s->owner, err);
    s->wait_next = nmlp_mem_new(g->n_steps, sizeof *s->wait_next, err);
    s->returns = nmlp_mem_new(g->n_rules, sizeof *s->returns, err);
    s->waiting = nmlp_mem_new(g->n_rules, sizeof *s->waiting, err);
    s->stack = nmlp_mem_new(2 * g->n_steps + g->n_rules, sizeof *s->stack, err);
    return s->reached && s->owner && s->wait_next && s->returns && s->waiting && s->stack ? NMLP_OK : NMLP_E_NOMEM;
}

static void end_search(struct search *s) {
    nmlp_mem_free(s->reached);
    nmlp_mem_free(s->owner);
    nmlp_mem_free(s->wait_next);
    nmlp_mem_free(s->returns);
    nmlp_mem_free(s->waiting);
    nmlp_mem_free(s->stack);
}

static void push(struct search *s, int32_t step, int32_t rule) { s->stack[s->n_stack++] = (struct place){step, rule}; }

static void rule_returns(struct search *s, int32_t rule) {
    if (s->returns[rule]) return;
    s->returns[rule] = true;
    for (int32_t call = s->waiting[rule]; call >= 0; call = s->wait_next[call])
        push(s, s->g->steps[call].to, s->owner[call]);
}

/* Over bytes too, or only what needs none. */
static void search(struct search *s, bool over_bytes) {
    for (size_t i = 0; i < s->g->n_rules; i++) s->waiting[i] = -1;
    for (size_t i = 0; i < s->g->n_rules; i++) push(s, s->g->rules[i].start, (int32_t)i);
    while (s->n_stack > 0) {
        struct place p = s->stack[--s->n_stack];
        const nmlp_grammar_step *step = &s->g->steps[p.step];
        if (step->op == NMLP_GRAMMAR_RETURN) {
            rule_returns(s, p.rule);
            continue;
        }
        if (s->reached[p.step]) continue;
        s->reached[p.step] = true;
        s->owner[p.step] = p.rule;
        bool waits = step->op == NMLP_GRAMMAR_CALL && !s->returns[step->other];
        if (waits) {
            s->wait_next[p.step] = s->waiting[step->other];
            s->waiting[step->other] = p.step;
        } else if (step->op != NMLP_GRAMMAR_BYTE || over_bytes) {
            push(s, step->to, p.rule);
        }
        if (step->op == NMLP_GRAMMAR_SPLIT) push(s, step->other, p.rule);
    }
}

static nmlp_status refuse(const nmlp_grammar *g, size_t rule, const char *why, nmlp_err *err) {
    const nmlp_grammar_rule *r = &g->rules[rule];
    return nmlp_fail_field(err, NMLP_E_ARG, "grammar", "line %d: rule \"%.100s\" %s", r->line, r->name, why);
}

static nmlp_status check_ends(const nmlp_grammar *g, nmlp_err *err) {
    struct search s;
    nmlp_status st = begin_search(&s, g, err);
    if (st == NMLP_OK) search(&s, true);
    for (size_t i = 0; i < g->n_rules && st == NMLP_OK; i++)
        if (!s.returns[i]) st = refuse(g, i, "never ends", err);
    end_search(&s);
    return st;
}

/* Rules leave when all rules that they may begin with have left; a cycle stays. n_calls [n_rules]. */
static void leave_without_cycles(struct search *s, int32_t *n_calls) {
    const nmlp_grammar *g = s->g;
    int32_t *callers = s->waiting; /* calls by the rule that is called */
    for (size_t i = 0; i < g->n_rules; i++) callers[i] = -1;
    for (size_t i = 0; i < g->n_steps; i++) {
        if (!s->reached[i] || g->steps[i].op != NMLP_GRAMMAR_CALL) continue;
        s->wait_next[i] = callers[g->steps[i].other];
        callers[g->steps[i].other] = (int32_t)i;
        n_calls[s->owner[i]]++;
    }
    for (size_t i = 0; i < g->n_rules; i++)
        if (n_calls[i] == 0) push(s, 0, (int32_t)i);
    while (s->n_stack > 0) {
        int32_t rule = s->stack[--s->n_stack].rule;
        for (int32_t call = callers[rule]; call >= 0; call = s->wait_next[call])
            if (--n_calls[s->owner[call]] == 0) push(s, 0, s->owner[call]);
    }
}

/* A rule on a cycle: where one arrives after as many calls as there are rules. -1: there is none. */
static int32_t find_on_cycle(struct search *s, const int32_t *n_calls) {
    const nmlp_grammar *g = s->g;
    int32_t *callee = s->waiting, at = -1;
    for (size_t i = 0; i < g->n_steps; i++)
        if (s->reached[i] && g->steps[i].op == NMLP_GRAMMAR_CALL && n_calls[g->steps[i].other] > 0)
            callee[s->owner[i]] = g->steps[i].other;
    for (size_t i = 0; i < g->n_rules && at < 0; i++)
        if (n_calls[i] > 0) at = (int32_t)i;
    for (size_t i = 0; i < g->n_rules && at >= 0; i++) at = callee[at];
    while (at >= 0 && !g->rules[at].name[0]) at = callee[at]; /* only rules with a name can recurse */
    return at;
}

static nmlp_status check_left(const nmlp_grammar *g, nmlp_err *err) {
    struct search s;
    nmlp_status st = begin_search(&s, g, err);
    int32_t *n_calls = nmlp_mem_new(g->n_rules, sizeof *n_calls, err);
    if (!n_calls) st = NMLP_E_NOMEM;
    if (st == NMLP_OK) {
        search(&s, false);
        leave_without_cycles(&s, n_calls);
        int32_t rule = find_on_cycle(&s, n_calls);
        if (rule >= 0) st = refuse(g, (size_t)rule, "begins with itself (left recursion)", err);
    }
    nmlp_mem_free(n_calls);
    end_search(&s);
    return st;
}

nmlp_status nmlp_grammar_check(nmlp_grammar *g, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_ends(g, err));
    return check_left(g, err);
}
