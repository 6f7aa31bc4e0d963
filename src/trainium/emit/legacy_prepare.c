/* What the legacy dialect must know before it prints: its loops run full trips and its compute instructions whole
 * tiles, with masks on loads and stores only. So buffers must hold whole tiles, and what a masked load leaves out must
 * be zero where a matmul contracts over it. */
#include "trainium/emit/legacy.h"

static void grow(int64_t *extent, int64_t need) {
    if (*extent < need) *extent = need;
}

/* Whole tiles are read where edges were written: the rest must be defined. */
static bool reads_past_writes(const nmlp_emit_source *src, int buffer) {
    int64_t read[4] = {0}, written[4] = {0}, fewest = src->padded[4 * buffer]; /* partitions of any write */
    int n = 1 + src->p->buffers[buffer].n_dims;
    for (size_t i = 0; i < src->p->n_instrs; i++) {
        const nmlp_instr *in = &src->p->instrs[i];
        if (in->op == NMLP_OP_ALLOC || src->dead[i]) continue;
        if (in->dst.buffer == buffer && nmlp_emit_legacy_reach(src, &in->dst, 0) < fewest)
            fewest = nmlp_emit_legacy_reach(src, &in->dst, 0);
        for (int at = 0; at < n; at++) {
            if (in->dst.buffer == buffer) grow(&written[at], nmlp_emit_legacy_reach(src, &in->dst, at));
            if (in->a.buffer == buffer) grow(&read[at], nmlp_emit_legacy_reach(src, &in->a, at));
            if (in->b.buffer == buffer) grow(&read[at], nmlp_emit_legacy_reach(src, &in->b, at));
        }
    }
    bool past = read[0] > fewest; /* a last tile with fewer rows */
    for (int at = 0; at < n; at++) past = past || read[at] > written[at];
    return past;
}

static void study_access(nmlp_emit_source *src, const nmlp_buf_ref *ref) {
    if (ref->buffer < 0) return;
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    int64_t *padded = &src->padded[4 * ref->buffer];
    grow(&padded[0], nmlp_emit_legacy_reach(src, ref, 0));
    for (int d = 0; d < b->n_dims; d++) {
        nmlp_size count = nmlp_emit_fold_size(&src->shape, &ref->count[d]);
        grow(&padded[1 + d], nmlp_emit_legacy_reach(src, ref, 1 + d));
        if (d < b->n_dims - 1 && (count.clamped || count.full != 1)) src->block_dims[ref->buffer] = false;
    }
}

/* Is some loop around node `at`, or some size of its DMA, clamped? */
bool nmlp_emit_legacy_masked(const nmlp_emit_source *src, const nmlp_instr *in, const int *loops, int n_loops) {
    bool masked = nmlp_emit_fold_size(&src->shape, &in->hbm.rows).clamped ||
                  nmlp_emit_fold_size(&src->shape, &in->hbm.cols).clamped ||
                  nmlp_emit_fold_size(&src->shape, &in->hbm.tiles).clamped;
    for (int i = 0; i < n_loops; i++)
        masked = masked || (nmlp_emit_fold_size(&src->shape, &src->p->loops[loops[i]].trips).clamped &&
                            !nmlp_emit_legacy_exact(src, loops[i]));
    return masked;
}

static void study_loads(nmlp_emit_source *src) {
    int loops[NMLP_LOOP_DEPTH_MAX], ends[NMLP_LOOP_DEPTH_MAX], n = 0;
    for (int at = 0; at < (int)src->p->n_nodes; at++) {
        const nmlp_node *node = &src->p->nodes[at];
        while (n > 0 && ends[n - 1] <= at) n--;
        if (node->kind == NMLP_NODE_LOOP) {
            loops[n] = node->loop;
            ends[n++] = node->end;
        }
        if (node->kind != NMLP_NODE_INSTR) continue;
        const nmlp_instr *in = &src->p->instrs[node->instr];
        bool load = in->op == NMLP_OP_DMA_LOAD || in->op == NMLP_OP_DMA_TRANSPOSE;
        if (load && !src->dead[node->instr] && nmlp_emit_legacy_masked(src, in, loops, n))
            src->zero_start[in->dst.buffer] = true;
    }
}

static bool accumulates(const nmlp_emit_source *src, const nmlp_accumulate *acc) {
    bool some = acc->always;
    for (int i = 0; i < acc->n_vars; i++) some = some || !src->shape.single[acc->vars[i]];
    return some;
}

nmlp_status nmlp_emit_legacy_prepare(nmlp_emit_source *src) {
    const nmlp_program *p = src->p;
    for (size_t i = 0; i < p->n_nodes; i++)
        if (p->nodes[i].kind == NMLP_NODE_IF) src->tested[p->nodes[i].loop] = true;
    NMLP_RETURN_IF_FAILED(nmlp_emit_legacy_avoid_overruns(src));
    for (size_t b = 0; b < p->n_buffers; b++) {
        src->block_dims[b] = p->buffers[b].n_dims > 1;
        src->padded[4 * b] = p->buffers[b].partitions;
        for (int d = 0; d < p->buffers[b].n_dims; d++) src->padded[4 * b + 1 + (size_t)d] = p->buffers[b].dims[d];
    }
    for (size_t i = 0; i < p->n_instrs; i++) {
        const nmlp_instr *in = &p->instrs[i];
        if (in->op == NMLP_OP_ALLOC || src->dead[i]) continue;
        study_access(src, &in->dst);
        study_access(src, &in->a);
        study_access(src, &in->b);
        if (in->op == NMLP_OP_MATMUL && accumulates(src, &in->accumulate)) src->accumulator[in->dst.buffer] = true;
    }
    study_loads(src);
    for (size_t b = 0; b < p->n_buffers; b++) src->zero_start[b] = src->zero_start[b] || reads_past_writes(src, (int)b);
    return NMLP_OK;
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
