/* The tree of nodes as Python blocks; common to both dialects. */
#include <inttypes.h>

#include "trainium/emit/source.h"
#include "trainium/neuron/program_cores.h"

static nmlp_status put_nodes(nmlp_emit_source *src, int begin, int end);

/* A block under a line that ends in a colon. */
static nmlp_status put_block(nmlp_emit_source *src, int node) {
    int before = ++src->n_statements;
    src->depth++;
    src->after_comment = true;
    if (src->p->nodes[node].kind == NMLP_NODE_LOOP) NMLP_RETURN_IF_FAILED(nmlp_emit_source_open_locals(src, node));
    NMLP_RETURN_IF_FAILED(put_nodes(src, node + 1, src->p->nodes[node].end));
    if (src->n_statements == before) nmlp_emit_source_line(src, "pass");
    src->depth--;
    return NMLP_OK;
}

/* The loop over cores is not run: each core is an iteration. A launch for another number of them would leave results
 * unwritten, and the runtime says so late, if at all. */
static nmlp_status put_cores(nmlp_emit_source *src, int node) {
    int loop = src->p->nodes[node].loop;
    int64_t cores = nmlp_program_cores(src->p);
    nmlp_emit_source_line(src,
                          "assert nl.num_programs(0) == %" PRId64 ", \"launch as %s[%" PRId64 "](...): this "
                          "kernel is for %" PRId64 " physical cores per logical one\"",
                          cores, src->p->name, cores, cores);
    nmlp_emit_source_line(src, "%s = nl.program_id(0)", src->loop_names[loop]);
    src->open_loops[src->n_open++] = loop;
    NMLP_RETURN_IF_FAILED(nmlp_emit_source_open_locals(src, node));
    NMLP_RETURN_IF_FAILED(put_nodes(src, node + 1, src->p->nodes[node].end));
    src->n_open--;
    return NMLP_OK;
}

static nmlp_status put_loop(nmlp_emit_source *src, int node) {
    int loop = src->p->nodes[node].loop, locals = src->n_locals;
    nmlp_str text;
    if (node == 0 && nmlp_program_cores(src->p) > 1) return put_cores(src, node);
    nmlp_size trips = nmlp_emit_fold_size(&src->shape, &src->p->loops[loop].trips);
    if (!trips.clamped && trips.full < 1) return NMLP_OK; /* this shape has no use for the loop */
    if (src->shape.single[loop]) return put_nodes(src, node + 1, src->p->nodes[node].end);
    nmlp_str_init(&text);
    nmlp_emit_put_trips(src, loop, &text);
    nmlp_emit_source_line(src, "for %s in %s(%s):", src->loop_names[loop],
                          src->legacy ? nmlp_emit_legacy_range(src, node) : "range", nmlp_str_text(&text));
    bool failed = text.failed;
    nmlp_emit_source_part_end(src, &text);
    if (failed) return nmlp_fail(src->err, NMLP_E_NOMEM, "out of memory while printing %s", src->p->name);
    src->open_loops[src->n_open++] = loop;
    NMLP_RETURN_IF_FAILED(put_block(src, node));
    src->n_open--;
    src->n_locals = locals;
    for (size_t b = 0; b < src->p->n_buffers; b++)
        if (src->declared_at[b] > src->n_open) src->declared_at[b] = -1;
    return NMLP_OK;
}

/* `before` is the node in front of it in the same body, or -1. */
static nmlp_status put_if(nmlp_emit_source *src, int node, int before) {
    const nmlp_node *n = &src->p->nodes[node], *b = before < 0 ? NULL : &src->p->nodes[before];
    bool first = n->when == NMLP_WHEN_FIRST;
    if (src->shape.single[n->loop]) return first ? put_nodes(src, node + 1, n->end) : NMLP_OK;
    if (b && b->kind == NMLP_NODE_IF && b->loop == n->loop && b->when != n->when)
        nmlp_emit_source_line(src, "else:");
    else
        nmlp_emit_source_line(src, first ? "if %s == 0:" : "if %s > 0:", src->loop_names[n->loop]);
    return put_block(src, node);
}

static nmlp_status declare(nmlp_emit_source *src, int buffer) {
    src->declared_at[buffer] = src->n_open;
    return src->legacy ? nmlp_emit_legacy_declare(src, buffer) : nmlp_emit_current_declare(src, buffer);
}

static nmlp_status put_instr(nmlp_emit_source *src, int index) {
    const nmlp_instr *in = &src->p->instrs[index];
    const int used[] = {in->dst.buffer, in->a.buffer, in->b.buffer};
    if (in->op == NMLP_OP_ALLOC) return declare(src, in->dst.buffer);
    if (src->dead[index]) return NMLP_OK;
    for (int i = 0; i < 3; i++)
        if (used[i] >= 0 && src->declared_at[used[i]] < 0)
            return nmlp_fail(src->err, NMLP_E_UNSUPPORTED,
                             "program %s: buffer %s is used outside the loop that allocates it", src->p->name,
                             src->p->buffers[used[i]].name);
    return src->legacy ? nmlp_emit_legacy_instr(src, in) : nmlp_emit_current_instr(src, in);
}

static nmlp_status put_nodes(nmlp_emit_source *src, int begin, int end) {
    for (int at = begin, before = -1; at < end; before = at, at = src->p->nodes[at].end) {
        const nmlp_node *node = &src->p->nodes[at];
        switch (node->kind) {
        case NMLP_NODE_COMMENT: nmlp_emit_source_comment(src, node->comment); break;
        case NMLP_NODE_LOOP: NMLP_RETURN_IF_FAILED(put_loop(src, at)); break;
        case NMLP_NODE_IF: NMLP_RETURN_IF_FAILED(put_if(src, at, before)); break;
        case NMLP_NODE_INSTR: NMLP_RETURN_IF_FAILED(put_instr(src, node->instr)); break;
        }
    }
    return NMLP_OK;
}

nmlp_status nmlp_emit_source_body(nmlp_emit_source *src) {
    const nmlp_program *p = src->p;
    for (size_t b = 0; b < p->n_buffers; b++) {
        bool allocated = false;
        for (size_t i = 0; i < p->n_instrs; i++)
            allocated = allocated || (p->instrs[i].op == NMLP_OP_ALLOC && p->instrs[i].dst.buffer == (int)b);
        src->declared_at[b] = -1;
        if (!allocated) NMLP_RETURN_IF_FAILED(declare(src, (int)b)); /* exists once, from the start */
    }
    return put_nodes(src, 0, (int)p->n_nodes);
}
