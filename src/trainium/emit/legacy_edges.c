/* How far accesses reach in the legacy dialect, where loops run full trips and instructions take whole tiles, against
 * how far they reach in the program. What runs over an edge is harmless where nothing else lives there (buffers are
 * padded); where something does, the loops that cause it are unrolled and end where the program says. */
#include "trainium/emit/legacy.h"
#include "trainium/neuron/check.h"

bool nmlp_emit_legacy_exact(const nmlp_emit_source *src, int loop) {
    nmlp_size trips = nmlp_emit_fold_size(&src->shape, &src->p->loops[loop].trips);
    bool known = trips.clamped;
    for (int i = 0; i < trips.rest.n_terms; i++) known = known && src->tested[trips.rest.terms[i].var];
    return known;
}

/* Largest value, loops running full trips unless they are exact. */
static double legacy_upper(const nmlp_emit_source *src, nmlp_affine a) {
    int at = -1;
    for (int i = 0; i < a.n_terms; i++)
        if (at < 0 || a.terms[i].var > a.terms[at].var) at = i;
    if (at < 0) return (double)a.base;
    int var = a.terms[at].var;
    int64_t coef = a.terms[at].coef;
    nmlp_size trips = nmlp_emit_fold_size(&src->shape, &src->p->loops[var].trips);
    a = nmlp_affine_plus(a, nmlp_affine_var(var, -coef));
    if (coef < 0) return legacy_upper(src, a);
    nmlp_affine by_full = a;
    by_full.base += coef * (trips.full - 1);
    double best = legacy_upper(src, by_full);
    if (!nmlp_emit_legacy_exact(src, var) || coef % trips.step != 0) return best;
    nmlp_affine by_rest = nmlp_affine_plus(a, nmlp_affine_times(trips.rest, coef / trips.step));
    if (by_rest.n_terms > NMLP_AFFINE_TERMS_MAX) return best;
    double other = legacy_upper(src, by_rest) - (trips.step == 1 ? (double)coef : (double)(coef / trips.step));
    return other < best ? other : best;
}

int64_t nmlp_emit_legacy_reach(const nmlp_emit_source *src, const nmlp_buf_ref *ref, int at) {
    if (at == 0) return ref->part + nmlp_emit_fold_size(&src->shape, &ref->parts).full;
    nmlp_affine start = nmlp_emit_fold(&src->shape, &ref->start[at - 1]);
    return (int64_t)legacy_upper(src, start) + nmlp_emit_fold_size(&src->shape, &ref->count[at - 1]).full;
}

/* Where the access ends in the program. */
static int64_t true_reach(const nmlp_emit_source *src, const nmlp_buf_ref *ref, int at) {
    const nmlp_size *count = at == 0 ? &ref->parts : &ref->count[at - 1];
    nmlp_affine start = at == 0 ? nmlp_affine_const(ref->part) : ref->start[at - 1];
    int64_t end = nmlp_affine_upper(src->p, &start) + nmlp_size_upper(src->p, count);
    if (!count->clamped || count->step != 1) return end;
    nmlp_affine edge = nmlp_affine_plus(start, count->rest);
    if (edge.n_terms > NMLP_AFFINE_TERMS_MAX) return end;
    int64_t limit = nmlp_affine_upper(src->p, &edge);
    return limit < end ? limit : end;
}

static int64_t true_begin(const nmlp_emit_source *src, const nmlp_buf_ref *ref, int at) {
    if (at == 0) return ref->part;
    nmlp_affine negative = nmlp_affine_times(ref->start[at - 1], -1);
    return -nmlp_affine_upper(src->p, &negative);
}

/* Does an access of the program use what lies between `from` and `to` along dimension `at`? */
static bool in_use(const nmlp_emit_source *src, int buffer, int at, int64_t from, int64_t to) {
    for (size_t i = 0; i < src->p->n_instrs; i++) {
        const nmlp_instr *in = &src->p->instrs[i];
        const nmlp_buf_ref *refs[] = {&in->dst, &in->a, &in->b};
        for (int r = 0; in->op != NMLP_OP_ALLOC && !src->dead[i] && r < 3; r++) {
            if (refs[r]->buffer != buffer) continue;
            if (true_reach(src, refs[r], at) > from && true_begin(src, refs[r], at) < to) return true;
        }
    }
    return false;
}

/* Unrolls the loops that decide how often the loops behind this index run. */
static bool unroll(nmlp_emit_source *src, const nmlp_affine *start) {
    bool changed = false;
    for (int i = 0; i < start->n_terms; i++) {
        nmlp_size trips = nmlp_emit_fold_size(&src->shape, &src->p->loops[start->terms[i].var].trips);
        for (int t = 0; trips.clamped && t < trips.rest.n_terms; t++) {
            changed = changed || !src->tested[trips.rest.terms[t].var];
            src->tested[trips.rest.terms[t].var] = true;
        }
    }
    return changed;
}

static nmlp_status check_write(nmlp_emit_source *src, const nmlp_buf_ref *ref) {
    for (int at = 0; at <= src->p->buffers[ref->buffer].n_dims; at++) {
        int64_t end = true_reach(src, ref, at);
        while (nmlp_emit_legacy_reach(src, ref, at) > end &&
               in_use(src, ref->buffer, at, end, nmlp_emit_legacy_reach(src, ref, at))) {
            if (at > 0 && unroll(src, &ref->start[at - 1])) continue;
            return nmlp_fail(src->err, NMLP_E_UNSUPPORTED,
                             "program %s: legacy NKI writes whole tiles, and one at the edge of buffer %s would run "
                             "into its neighbour",
                             src->p->name, src->p->buffers[ref->buffer].name);
        }
    }
    return NMLP_OK;
}

nmlp_status nmlp_emit_legacy_avoid_overruns(nmlp_emit_source *src) {
    for (size_t i = 0; i < src->p->n_instrs; i++) {
        const nmlp_instr *in = &src->p->instrs[i];
        if (in->op == NMLP_OP_ALLOC || in->op == NMLP_OP_DMA_STORE || src->dead[i]) continue;
        bool load = in->op == NMLP_OP_DMA_LOAD || in->op == NMLP_OP_DMA_TRANSPOSE;
        if (!load) NMLP_RETURN_IF_FAILED(check_write(src, &in->dst)); /* loads have masks */
    }
    return NMLP_OK;
}
