/* Index arithmetic and references of tile programs. */
#include "trainium/neuron/program.h"

nmlp_affine nmlp_affine_const(int64_t base) { return (nmlp_affine){.base = base}; }

nmlp_affine nmlp_affine_var(int var, int64_t coef) {
    nmlp_affine a = {0};
    if (coef != 0) {
        a.n_terms = 1;
        a.terms[0].var = var;
        a.terms[0].coef = coef;
    }
    return a;
}

nmlp_affine nmlp_affine_plus(nmlp_affine a, nmlp_affine b) {
    a.base += b.base;
    for (int i = 0; i < b.n_terms; i++) {
        int at = 0;
        while (at < a.n_terms && a.terms[at].var < b.terms[i].var) at++;
        if (at < a.n_terms && a.terms[at].var == b.terms[i].var) {
            a.terms[at].coef += b.terms[i].coef;
            if (a.terms[at].coef != 0) continue;
            for (int j = at; j + 1 < a.n_terms; j++) a.terms[j] = a.terms[j + 1];
            a.n_terms--;
            continue;
        }
        if (a.n_terms == NMLP_AFFINE_TERMS_MAX) {
            a.n_terms = NMLP_AFFINE_TERMS_MAX + 1; /* refused when it is used in a program */
            return a;
        }
        for (int j = a.n_terms; j > at; j--) a.terms[j] = a.terms[j - 1];
        a.terms[at].var = b.terms[i].var;
        a.terms[at].coef = b.terms[i].coef;
        a.n_terms++;
    }
    return a;
}

nmlp_affine nmlp_affine_times(nmlp_affine a, int64_t factor) {
    if (factor == 0) return nmlp_affine_const(0);
    a.base *= factor;
    for (int i = 0; i < a.n_terms && i < NMLP_AFFINE_TERMS_MAX; i++) a.terms[i].coef *= factor;
    return a;
}

int64_t nmlp_affine_eval(const nmlp_affine *a, const int64_t *values) {
    int64_t sum = a->base;
    for (int i = 0; i < a->n_terms; i++) sum += a->terms[i].coef * values[a->terms[i].var];
    return sum;
}

nmlp_size nmlp_size_const(int64_t n) { return (nmlp_size){.full = n, .step = 1}; }

nmlp_size nmlp_size_until(int64_t full, int64_t limit, nmlp_affine start, int64_t step) {
    nmlp_size s = {.full = full, .clamped = true, .step = step};
    s.rest = nmlp_affine_plus(nmlp_affine_const(limit), nmlp_affine_times(start, -1));
    if (s.rest.n_terms == 0) return nmlp_size_const(nmlp_size_eval(&s, NULL));
    return s;
}

int64_t nmlp_size_eval(const nmlp_size *s, const int64_t *values) {
    if (!s->clamped) return s->full;
    int64_t rest = nmlp_affine_eval(&s->rest, values);
    if (rest <= 0) return 0;
    int64_t n = s->step == 1 ? rest : (rest + s->step - 1) / s->step;
    return n < s->full ? n : s->full;
}

nmlp_buf_ref nmlp_buf_all(const nmlp_program *program, int buffer) {
    nmlp_buf_ref ref = {.buffer = -1};
    if (buffer < 0 || (size_t)buffer >= program->n_buffers) return ref;
    const nmlp_buffer *b = &program->buffers[buffer];
    ref.buffer = buffer;
    ref.parts = nmlp_size_const(b->partitions);
    for (int d = 0; d < b->n_dims; d++) ref.count[d] = nmlp_size_const(b->dims[d]);
    return ref;
}

nmlp_buf_ref nmlp_buf_parts(nmlp_buf_ref ref, int part, nmlp_size parts) {
    ref.part = part;
    ref.parts = parts;
    return ref;
}

nmlp_buf_ref nmlp_buf_range(nmlp_buf_ref ref, int dim, nmlp_affine start, nmlp_size count) {
    ref.start[dim] = start;
    ref.count[dim] = count;
    return ref;
}

nmlp_buf_ref nmlp_buf_at(nmlp_buf_ref ref, int dim, nmlp_affine index) {
    return nmlp_buf_range(ref, dim, index, nmlp_size_const(1));
}

nmlp_hbm_ref nmlp_hbm_rect(int tensor, nmlp_affine row, nmlp_size rows, nmlp_affine col, nmlp_size cols) {
    return (nmlp_hbm_ref){
        .tensor = tensor, .row = row, .col = col, .rows = rows, .cols = cols, .tiles = nmlp_size_const(1)};
}

nmlp_hbm_ref nmlp_hbm_stack(nmlp_hbm_ref rect, nmlp_size tiles, int64_t tile_rows) {
    rect.tiles = tiles;
    rect.tile_rows = tile_rows;
    return rect;
}

nmlp_accumulate nmlp_accumulate_none(void) { return (nmlp_accumulate){0}; }

nmlp_accumulate nmlp_accumulate_always(void) { return (nmlp_accumulate){.always = true}; }

nmlp_accumulate nmlp_accumulate_over(int n_vars, const int *vars) {
    nmlp_accumulate acc = {.n_vars = n_vars};
    for (int i = 0; i < n_vars && i < NMLP_ACCUMULATE_VARS_MAX; i++) acc.vars[i] = vars[i];
    return acc;
}
