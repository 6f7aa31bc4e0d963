/* Instructions that a shape leaves nothing to do: in a loop without iterations, in the later part of a loop that runs
 * once, or with a size of 0 throughout. They are not printed and count for nothing. */
#include "trainium/emit/source.h"

static bool is_empty(const nmlp_emit_source *src, const nmlp_size *size) {
    nmlp_size folded = nmlp_emit_fold_size(&src->shape, size);
    return !folded.clamped && folded.full <= 0;
}

static bool has_empty_size(const nmlp_emit_source *src, const nmlp_instr *in) {
    const nmlp_buf_ref *refs[] = {&in->dst, &in->a, &in->b};
    for (int i = 0; i < 3; i++) {
        if (refs[i]->buffer < 0) continue;
        if (is_empty(src, &refs[i]->parts)) return true;
        for (int d = 0; d < src->p->buffers[refs[i]->buffer].n_dims; d++)
            if (is_empty(src, &refs[i]->count[d])) return true;
    }
    return in->hbm.tensor >= 0 &&
           (is_empty(src, &in->hbm.rows) || is_empty(src, &in->hbm.cols) || is_empty(src, &in->hbm.tiles));
}

void nmlp_emit_source_find_dead(nmlp_emit_source *src) {
    const nmlp_program *p = src->p;
    int skip = 0; /* nodes before this one are in a dead body */
    for (int at = 0; at < (int)p->n_nodes; at++) {
        const nmlp_node *n = &p->nodes[at];
        if (n->kind == NMLP_NODE_INSTR && p->instrs[n->instr].op != NMLP_OP_ALLOC)
            src->dead[n->instr] = at < skip || has_empty_size(src, &p->instrs[n->instr]);
        bool dead = (n->kind == NMLP_NODE_LOOP && is_empty(src, &p->loops[n->loop].trips)) ||
                    (n->kind == NMLP_NODE_IF && n->when == NMLP_WHEN_LATER && src->shape.single[n->loop]);
        if (dead && n->end > skip) skip = n->end;
    }
}
