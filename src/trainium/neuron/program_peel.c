#include "trainium/neuron/program_peel.h"

#include "base/ints.h"
#include "base/mem.h"

enum { NODES_MAX = 200000 };

/* What a loop variable of the source is in the result: a number, or the variable of a loop with `trips` iterations. */
typedef struct place {
    bool open, is_number;
    int64_t number;
    int var;
    int64_t trips;
} place;

typedef struct peeling {
    const nmlp_program *from;
    nmlp_program *to;
    place *places; /* by loop of the source */
    bool quiet;    /* inside a copy: its comments stand already */
} peeling;

static void put_nodes(peeling *p, int begin, int end);

static nmlp_affine map_affine(const peeling *p, const nmlp_affine *a) {
    nmlp_affine out = nmlp_affine_const(a->base);
    for (int i = 0; i < a->n_terms; i++) {
        const place *at = &p->places[a->terms[i].var];
        if (at->is_number)
            out.base += a->terms[i].coef * at->number;
        else
            out = nmlp_affine_plus(out, nmlp_affine_var(at->var, a->terms[i].coef));
    }
    return out;
}

/* Iterations of a loop as far as they are known before it is opened. */
static int64_t most_trips(const peeling *p, int var) {
    return p->places[var].open ? p->places[var].trips : nmlp_max(p->from->loops[var].trips.full, 1);
}

/* Smallest value of an index of the source, without the term of `except`. */
static int64_t lowest(const peeling *p, const nmlp_affine *a, int except) {
    int64_t low = a->base;
    for (int i = 0; i < a->n_terms; i++) {
        int var = a->terms[i].var;
        int64_t coef = a->terms[i].coef;
        if (var == except) continue;
        if (p->places[var].open && p->places[var].is_number)
            low += coef * p->places[var].number;
        else if (coef < 0)
            low += coef * (most_trips(p, var) - 1);
    }
    return low;
}

static int64_t coefficient(const nmlp_affine *a, int var) {
    for (int i = 0; i < a->n_terms; i++)
        if (a->terms[i].var == var) return a->terms[i].coef;
    return 0;
}

/* Iterations of loop `var`, from the first on, in which the size is always full. */
static int64_t full_iterations(const peeling *p, const nmlp_size *s, int var, int64_t trips) {
    if (!s->clamped) return trips;
    int64_t coef = coefficient(&s->rest, var), spare = lowest(p, &s->rest, var) - ((s->full - 1) * s->step + 1);
    if (coef == 0) return trips;
    if (coef > 0) return spare >= 0 ? trips : 0;
    return spare < 0 ? 0 : nmlp_min(trips, spare / -coef + 1);
}

static int64_t alike_in_instr(const peeling *p, const nmlp_instr *in, int var, int64_t n) {
    const nmlp_buf_ref *refs[] = {&in->dst, &in->a, &in->b};
    for (int r = 0; r < 3; r++) {
        if (refs[r]->buffer < 0) continue;
        n = nmlp_min(n, full_iterations(p, &refs[r]->parts, var, n));
        for (int d = 0; d < p->from->buffers[refs[r]->buffer].n_dims; d++)
            n = nmlp_min(n, full_iterations(p, &refs[r]->count[d], var, n));
    }
    if (in->hbm.tensor < 0) return n;
    n = nmlp_min(n, full_iterations(p, &in->hbm.rows, var, n));
    n = nmlp_min(n, full_iterations(p, &in->hbm.cols, var, n));
    return nmlp_min(n, full_iterations(p, &in->hbm.tiles, var, n));
}

/* Iterations from the first on in which nothing in the body is cut short. */
static int64_t alike(const peeling *p, int node, int64_t trips) {
    int var = p->from->nodes[node].loop;
    int64_t n = trips;
    for (int at = node + 1; at < p->from->nodes[node].end && n > 0; at++) {
        const nmlp_node *inner = &p->from->nodes[at];
        if (inner->kind == NMLP_NODE_LOOP) n = full_iterations(p, &p->from->loops[inner->loop].trips, var, n);
        if (inner->kind == NMLP_NODE_INSTR && p->from->instrs[inner->instr].op != NMLP_OP_ALLOC)
            n = alike_in_instr(p, &p->from->instrs[inner->instr], var, n);
    }
    return n;
}

/* A size is a number here: all loops that could cut it short are numbers, or in the part where they do not. */
static nmlp_size map_size(peeling *p, const nmlp_size *s) {
    if (!s->clamped) return *s;
    nmlp_affine rest = map_affine(p, &s->rest);
    int64_t low = lowest(p, &s->rest, -1), n = low <= 0 ? 0 : nmlp_ceil_div(low, s->step);
    if (rest.n_terms == 0) return nmlp_size_const(nmlp_min(s->full, n));
    if (n < s->full && p->to->failure.code == NMLP_OK)
        nmlp_fail(&p->to->failure, NMLP_E_UNSUPPORTED, "program %s: an edge cannot be peeled", p->from->name);
    return nmlp_size_const(s->full);
}

static nmlp_buf_ref map_ref(peeling *p, const nmlp_buf_ref *ref) {
    nmlp_buf_ref out = *ref;
    if (ref->buffer < 0) return out;
    out.parts = map_size(p, &ref->parts);
    for (int d = 0; d < p->from->buffers[ref->buffer].n_dims; d++) {
        out.start[d] = map_affine(p, &ref->start[d]);
        out.count[d] = map_size(p, &ref->count[d]);
    }
    return out;
}

static nmlp_accumulate map_accumulate(const peeling *p, const nmlp_accumulate *acc) {
    nmlp_accumulate out = {.always = acc->always};
    for (int i = 0; i < acc->n_vars; i++) {
        const place *at = &p->places[acc->vars[i]];
        if (at->is_number)
            out.always = out.always || at->number != 0;
        else
            out.vars[out.n_vars++] = at->var;
    }
    if (out.always) out.n_vars = 0;
    return out;
}

static bool is_empty_ref(const peeling *p, const nmlp_buf_ref *ref) {
    if (ref->buffer < 0) return false;
    bool empty = ref->parts.full <= 0;
    for (int d = 0; d < p->from->buffers[ref->buffer].n_dims; d++) empty = empty || ref->count[d].full <= 0;
    return empty;
}

/* An instruction with nothing to do is left out, as the machine would. */
static void put_instr(peeling *p, const nmlp_instr *in) {
    nmlp_instr out = *in;
    if (in->op != NMLP_OP_ALLOC) {
        out.dst = map_ref(p, &in->dst);
        out.a = map_ref(p, &in->a);
        out.b = map_ref(p, &in->b);
        if (is_empty_ref(p, &out.dst) || is_empty_ref(p, &out.a) || is_empty_ref(p, &out.b)) return;
    }
    if (in->hbm.tensor >= 0) {
        out.hbm.row = map_affine(p, &in->hbm.row);
        out.hbm.col = map_affine(p, &in->hbm.col);
        out.hbm.rows = map_size(p, &in->hbm.rows);
        out.hbm.cols = map_size(p, &in->hbm.cols);
        out.hbm.tiles = map_size(p, &in->hbm.tiles);
        if (out.hbm.rows.full <= 0 || out.hbm.cols.full <= 0 || out.hbm.tiles.full <= 0) return;
    }
    if (in->op == NMLP_OP_MATMUL) out.accumulate = map_accumulate(p, &in->accumulate);
    nmlp_program_add_instr(p->to, &out);
}

/* Iterations that are alike as a loop, the others one by one. A single iteration is not a loop. */
static void put_loop(peeling *p, int node) {
    const nmlp_node *n = &p->from->nodes[node];
    const nmlp_loop *loop = &p->from->loops[n->loop];
    place *at = &p->places[n->loop];
    int64_t trips = map_size(p, &loop->trips).full, same = alike(p, node, trips);
    bool quiet = p->quiet;
    if (same > 1) {
        int var = nmlp_program_begin_loop(p->to, loop->name, nmlp_size_const(same), loop->sequential);
        *at = (place){.open = true, .var = var, .trips = same};
        put_nodes(p, node + 1, n->end);
        nmlp_program_end(p->to);
        p->quiet = true;
    }
    for (int64_t i = same > 1 ? same : 0; i < trips && p->to->failure.code == NMLP_OK; i++) {
        *at = (place){.open = true, .is_number = true, .number = i, .trips = 1};
        put_nodes(p, node + 1, n->end);
        p->quiet = true;
    }
    p->quiet = quiet;
    *at = (place){0};
}

static void put_if(peeling *p, int node) {
    const nmlp_node *n = &p->from->nodes[node];
    const place *at = &p->places[n->loop];
    bool first = n->when == NMLP_WHEN_FIRST;
    if (at->is_number) {
        if (first == (at->number == 0)) put_nodes(p, node + 1, n->end);
        return;
    }
    nmlp_program_begin_if(p->to, n->when, at->var);
    put_nodes(p, node + 1, n->end);
    nmlp_program_end(p->to);
}

static void put_nodes(peeling *p, int begin, int end) {
    for (int at = begin; at < end && p->to->failure.code == NMLP_OK; at = p->from->nodes[at].end) {
        const nmlp_node *node = &p->from->nodes[at];
        if (p->to->n_nodes > NODES_MAX) {
            nmlp_fail(&p->to->failure, NMLP_E_LIMIT, "program %s: too many different edges to write them out",
                      p->from->name);
            return;
        }
        switch (node->kind) {
        case NMLP_NODE_COMMENT:
            if (!p->quiet) nmlp_program_add_comment(p->to, node->comment);
            break;
        case NMLP_NODE_LOOP: put_loop(p, at); break;
        case NMLP_NODE_IF: put_if(p, at); break;
        case NMLP_NODE_INSTR: put_instr(p, &p->from->instrs[node->instr]); break;
        }
    }
}

nmlp_status nmlp_program_peel(nmlp_program **out, const nmlp_program *program, nmlp_err *err) {
    peeling p = {.from = program};
    *out = NULL;
    p.places = nmlp_mem_new(program->n_loops + 1, sizeof *p.places, err);
    if (!p.places) return NMLP_E_NOMEM;
    nmlp_status st = nmlp_program_create(&p.to, program->name, err);
    if (st == NMLP_OK) {
        for (size_t i = 0; i < program->n_params; i++)
            nmlp_program_add_param(p.to, program->params[i].name, program->params[i].value);
        for (size_t i = 0; i < program->n_tensors; i++) {
            const nmlp_tensor *t = &program->tensors[i];
            nmlp_program_add_tensor(p.to, t->name, t->role, t->dtype, t->rows, t->cols);
        }
        for (size_t i = 0; i < program->n_buffers; i++) nmlp_program_add_buffer(p.to, &program->buffers[i]);
        put_nodes(&p, 0, (int)program->n_nodes);
        st = nmlp_program_finish(p.to, err);
    }
    nmlp_mem_free(p.places);
    if (st == NMLP_OK)
        *out = p.to;
    else
        nmlp_program_destroy(p.to);
    return st;
}
