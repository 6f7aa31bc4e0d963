/* What the legacy dialect must know before it prints: which loops are unrolled, which carry data from one iteration to
 * the next, which buffers matmuls add to. */
#include "trainium/emit/source.h"

static bool accumulates(const nmlp_emit_source *src, const nmlp_accumulate *acc) {
    bool some = acc->always;
    for (int i = 0; i < acc->n_vars; i++) some = some || !src->shape.single[acc->vars[i]];
    return some;
}

void nmlp_emit_legacy_prepare(nmlp_emit_source *src) {
    const nmlp_program *p = src->p;
    for (size_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].kind == NMLP_NODE_IF) src->tested[p->nodes[i].loop] = true;
    for (size_t i = 0; i < p->n_instrs; i++) {
        const nmlp_instr *in = &p->instrs[i];
        if (in->op == NMLP_OP_MATMUL && !src->dead[i] && accumulates(src, &in->accumulate))
            src->accumulator[in->dst.buffer] = true;
    }
}

static bool allocated_inside(const nmlp_emit_source *src, int node, int buffer) {
    for (int at = node + 1; at < src->p->nodes[node].end; at++) {
        if (src->p->nodes[at].kind != NMLP_NODE_INSTR) continue;
        const nmlp_instr *in = &src->p->instrs[src->p->nodes[at].instr];
        if (in->op == NMLP_OP_ALLOC && in->dst.buffer == buffer) return true;
    }
    return false;
}

static bool indexed_by(const nmlp_emit_source *src, const nmlp_buf_ref *ref, int loop) {
    for (int d = 0; d < src->p->buffers[ref->buffer].n_dims; d++)
        for (int i = 0; i < ref->start[d].n_terms; i++)
            if (ref->start[d].terms[i].var == loop) return true;
    return false;
}

static bool reduces_over(const nmlp_instr *in, int loop) {
    for (int i = 0; in->op == NMLP_OP_MATMUL && i < in->accumulate.n_vars; i++)
        if (in->accumulate.vars[i] == loop) return true;
    return in->op == NMLP_OP_MATMUL && in->accumulate.always;
}

/* Do iterations depend on each other through a buffer that outlives one, or through a scratch tensor? */
static bool carries(const nmlp_emit_source *src, int node) {
    const nmlp_program *p = src->p;
    int loop = p->nodes[node].loop;
    for (int at = node + 1; at < p->nodes[node].end; at++) {
        if (p->nodes[at].kind != NMLP_NODE_INSTR) continue;
        const nmlp_instr *in = &p->instrs[p->nodes[at].instr];
        if (in->op == NMLP_OP_DMA_STORE && p->tensors[in->hbm.tensor].role == NMLP_ROLE_SCRATCH) {
            for (int k = node + 1; k < p->nodes[node].end; k++) {
                const nmlp_instr *other = p->nodes[k].kind == NMLP_NODE_INSTR ? &p->instrs[p->nodes[k].instr] : in;
                if (other->hbm.tensor == in->hbm.tensor && other->op != NMLP_OP_DMA_STORE) return true;
            }
        }
        if (in->op == NMLP_OP_ALLOC || in->dst.buffer < 0 || reduces_over(in, loop)) continue;
        if (!indexed_by(src, &in->dst, loop) && !allocated_inside(src, node, in->dst.buffer)) return true;
    }
    return false;
}

const char *nmlp_emit_legacy_range(const nmlp_emit_source *src, int node) {
    int loop = src->p->nodes[node].loop;
    if (src->tested[loop]) return "nl.static_range";
    return src->p->loops[loop].sequential || carries(src, node) ? "nl.sequential_range" : "nl.affine_range";
}
