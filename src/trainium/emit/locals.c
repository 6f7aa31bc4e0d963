/* Starts and sizes of tiles as Python variables at the head of the loop they depend on. */
#include <stdio.h>
#include <string.h>

#include "trainium/emit/source.h"

static bool name_in_use(const nmlp_emit_source *src, const char *name) {
    for (int i = 0; i < src->n_locals; i++)
        if (strcmp(src->locals[i].name, name) == 0) return true;
    for (size_t i = 0; i < src->p->n_tensors; i++)
        if (strcmp(src->tensor_names[i], name) == 0) return true;
    for (size_t i = 0; i < src->p->n_buffers; i++)
        if (strcmp(src->buffer_names[i], name) == 0) return true;
    for (size_t i = 0; i < src->p->n_loops; i++)
        if (strcmp(src->loop_names[i], name) == 0) return true;
    return false;
}

static void choose_name(const nmlp_emit_source *src, nmlp_emit_local *l, int loop, const char *what) {
    snprintf(l->name, sizeof l->name, "%.48s_%s", src->loop_names[loop], what);
    size_t len = strlen(l->name);
    for (int i = 2; name_in_use(src, l->name); i++) snprintf(l->name + len, sizeof l->name - len, "%d", i);
}

/* Assigns to the local once its expression was printed from the locals around it. */
static void define(nmlp_emit_source *src, nmlp_emit_local *l) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_printf(&text, "%s = ", l->name);
    if (l->is_size)
        nmlp_emit_put_size(src, &l->size, NMLP_AXIS_NONE, &text);
    else
        nmlp_emit_put_affine(src, &l->start, &text);
    nmlp_emit_source_statement(src, &text);
    nmlp_emit_source_part_end(src, &text);
    src->locals[src->n_locals++] = *l;
}

static void add_start(nmlp_emit_source *src, const nmlp_affine *given, int loop, const char *what) {
    nmlp_emit_local l = {.start = nmlp_emit_fold(&src->shape, given)};
    l.start.base = 0;
    if (nmlp_emit_innermost(&l.start) != loop || src->n_locals == NMLP_EMIT_SOURCE_LOCALS_MAX) return;
    if (l.start.n_terms == 1 && l.start.terms[0].coef == 1) return;
    for (int i = 0; i < l.start.n_terms; i++)
        if (l.start.terms[i].coef < 0) return;
    for (int i = 0; i < src->n_locals; i++)
        if (!src->locals[i].is_size && nmlp_emit_same_affine(&src->locals[i].start, &l.start)) return;
    choose_name(src, &l, loop, what);
    define(src, &l);
}

static void add_size(nmlp_emit_source *src, const nmlp_size *given, int loop) {
    nmlp_emit_local l = {.is_size = true, .size = nmlp_emit_fold_size(&src->shape, given)};
    if (!l.size.clamped) return;
    nmlp_affine start;
    int64_t limit;
    nmlp_emit_split_rest(&l.size.rest, &start, &limit);
    add_start(src, &start, loop, "start");
    if (nmlp_emit_innermost(&start) != loop || src->n_locals == NMLP_EMIT_SOURCE_LOCALS_MAX) return;
    for (int i = 0; i < src->n_locals; i++)
        if (src->locals[i].is_size && nmlp_emit_same_size(&src->locals[i].size, &l.size)) return;
    choose_name(src, &l, loop, l.size.step == 1 ? "size" : "tiles");
    define(src, &l);
}

/* A place on chip that takes several loops to name. */
static void add_buffer_start(nmlp_emit_source *src, const nmlp_buf_ref *ref, int loop) {
    if (ref->buffer < 0) return;
    int last = src->p->buffers[ref->buffer].n_dims - 1;
    nmlp_affine start = nmlp_emit_fold(&src->shape, &ref->start[last]);
    if (start.n_terms > 1) add_start(src, &start, loop, "at");
}

static void add_buffer_sizes(nmlp_emit_source *src, const nmlp_buf_ref *ref, int loop) {
    if (ref->buffer < 0) return;
    add_size(src, &ref->parts, loop);
    for (int d = 0; d < src->p->buffers[ref->buffer].n_dims; d++) add_size(src, &ref->count[d], loop);
}

nmlp_status nmlp_emit_source_open_locals(nmlp_emit_source *src, int node) {
    int loop = src->p->nodes[node].loop;
    for (int at = node + 1; at < src->p->nodes[node].end; at++) {
        if (src->p->nodes[at].kind == NMLP_NODE_LOOP && src->p->loops[src->p->nodes[at].loop].trips.clamped) {
            nmlp_affine start;
            int64_t limit;
            nmlp_size trips = nmlp_emit_fold_size(&src->shape, &src->p->loops[src->p->nodes[at].loop].trips);
            nmlp_emit_split_rest(&trips.rest, &start, &limit);
            if (trips.clamped) add_start(src, &start, loop, "start");
        }
        if (src->p->nodes[at].kind != NMLP_NODE_INSTR) continue;
        const nmlp_instr *in = &src->p->instrs[src->p->nodes[at].instr];
        if (in->op == NMLP_OP_ALLOC) continue;
        if (in->hbm.tensor >= 0) {
            add_start(src, &in->hbm.row, loop, "start");
            add_start(src, &in->hbm.col, loop, "start");
            add_size(src, &in->hbm.rows, loop);
            add_size(src, &in->hbm.cols, loop);
            add_size(src, &in->hbm.tiles, loop);
        }
        add_buffer_start(src, &in->dst, loop);
        add_buffer_start(src, &in->a, loop);
        add_buffer_start(src, &in->b, loop);
        add_buffer_sizes(src, &in->dst, loop);
        add_buffer_sizes(src, &in->a, loop);
        add_buffer_sizes(src, &in->b, loop);
    }
    return NMLP_OK;
}
