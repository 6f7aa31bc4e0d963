#include "trainium/neuron/walk.h"

nmlp_status nmlp_walk_init(nmlp_walk *walk, const nmlp_program *program, nmlp_err *err) {
    *walk = (nmlp_walk){.program = program};
    walk->values = nmlp_mem_new(program->n_loops + 1, sizeof *walk->values, err);
    walk->trips = nmlp_mem_new(program->n_loops + 1, sizeof *walk->trips, err);
    if (walk->values && walk->trips) return NMLP_OK;
    nmlp_walk_fini(walk);
    return NMLP_E_NOMEM;
}

void nmlp_walk_fini(nmlp_walk *walk) {
    nmlp_mem_free(walk->values);
    nmlp_mem_free(walk->trips);
    *walk = (nmlp_walk){0};
}

/* Closes bodies that end here: starts the next iteration or leaves. */
static void close_bodies(nmlp_walk *w) {
    const nmlp_node *nodes = w->program->nodes;
    while (w->depth > 0 && w->at == nodes[w->stack[w->depth - 1]].end) {
        int top = w->stack[w->depth - 1];
        int var = nodes[top].loop;
        if (nodes[top].kind == NMLP_NODE_LOOP && ++w->values[var] < w->trips[var]) {
            w->at = top + 1; /* bodies are never empty: open_body passes those by */
            return;
        }
        if (nodes[top].kind == NMLP_NODE_LOOP) w->values[var] = 0;
        w->depth--;
    }
}

static bool eval_box(const nmlp_walk *w, const nmlp_buf_ref *ref, nmlp_box *box) {
    box->buffer = ref->buffer;
    if (ref->buffer < 0) return true;
    box->n_dims = w->program->buffers[ref->buffer].n_dims;
    box->part = ref->part;
    box->parts = nmlp_size_eval(&ref->parts, w->values);
    bool some = box->parts > 0;
    for (int d = 0; d < box->n_dims; d++) {
        box->start[d] = nmlp_affine_eval(&ref->start[d], w->values);
        box->count[d] = nmlp_size_eval(&ref->count[d], w->values);
        some = some && box->count[d] > 0;
    }
    return some;
}

static bool eval_accumulate(const nmlp_walk *w, const nmlp_accumulate *acc) {
    if (acc->always) return true;
    for (int i = 0; i < acc->n_vars; i++)
        if (w->values[acc->vars[i]] != 0) return true;
    return false;
}

/* False when the instruction has nothing to do. */
static bool eval_step(const nmlp_walk *w, int index, nmlp_step *step) {
    const nmlp_instr *in = &w->program->instrs[index];
    step->instr = in;
    step->instr_index = index;
    step->a.buffer = step->b.buffer = -1;
    if (in->op == NMLP_OP_ALLOC) {
        step->dst.buffer = in->dst.buffer;
        return true;
    }
    bool some = eval_box(w, &in->dst, &step->dst) && eval_box(w, &in->a, &step->a) && eval_box(w, &in->b, &step->b);
    if (in->hbm.tensor >= 0) {
        step->row = nmlp_affine_eval(&in->hbm.row, w->values);
        step->col = nmlp_affine_eval(&in->hbm.col, w->values);
        step->rows = nmlp_size_eval(&in->hbm.rows, w->values);
        step->cols = nmlp_size_eval(&in->hbm.cols, w->values);
        step->tiles = nmlp_size_eval(&in->hbm.tiles, w->values);
        some = some && step->rows > 0 && step->cols > 0 && step->tiles > 0;
    }
    step->accumulate = in->op == NMLP_OP_MATMUL && eval_accumulate(w, &in->accumulate);
    return some;
}

/* Enters a loop or condition, or passes it by. */
static void open_body(nmlp_walk *w, const nmlp_node *node) {
    bool enter;
    if (node->kind == NMLP_NODE_LOOP) {
        w->trips[node->loop] = nmlp_size_eval(&w->program->loops[node->loop].trips, w->values);
        w->values[node->loop] = 0;
        enter = w->trips[node->loop] > 0;
    } else {
        enter = (w->values[node->loop] == 0) == (node->when == NMLP_WHEN_FIRST);
    }
    if (!enter || w->at + 1 == node->end) {
        w->at = node->end;
        return;
    }
    w->stack[w->depth++] = w->at++;
}

bool nmlp_walk_next(nmlp_walk *w, nmlp_step *step) {
    const nmlp_program *p = w->program;
    for (;;) {
        close_bodies(w);
        if (w->at >= (int)p->n_nodes) return false;
        const nmlp_node *node = &p->nodes[w->at];
        switch (node->kind) {
        case NMLP_NODE_COMMENT: w->at++; break;
        case NMLP_NODE_LOOP:
        case NMLP_NODE_IF: open_body(w, node); break;
        case NMLP_NODE_INSTR:
            w->at++;
            if (eval_step(w, node->instr, step)) return true;
            break;
        }
    }
}
