#include "compress/factorise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compress/widen.h"
#include "linalg/linalg.h"

/* Squared singular values below this share of the largest are rounding noise: their vectors are left out. */
static const double noise = 1e-14;

void nmlp_nested_fini(nmlp_nested *nested) {
    nmlp_mem_free(nested->owned);
    *nested = (nmlp_nested){0};
}

int64_t nmlp_rank_break_even(int64_t rows, int64_t cols) {
    int64_t rank = (rows * cols - 1) / (rows + cols);
    int64_t full = rows < cols ? rows : cols;
    return rank < full ? rank : full;
}

static void equalise(double *ut, int64_t rows, double *v, int64_t cols) {
    double a = 0;
    double b = 0;
    for (int64_t i = 0; i < rows; i++) a += ut[i] * ut[i];
    for (int64_t i = 0; i < cols; i++) b += v[i] * v[i];
    if (!(a > 0 && b > 0)) return;
    double scale = pow(b / a, 0.25);
    for (int64_t i = 0; i < rows; i++) ut[i] *= scale;
    for (int64_t i = 0; i < cols; i++) v[i] /= scale;
}

nmlp_status nmlp_nested_pack(nmlp_nested *nested, double *ut, double *v, const double *loss, nmlp_err *err) {
    size_t elem = nmlp_dtype_bytes(nested->dtype);
    size_t loss_bytes = (size_t)(nested->full + 1) * sizeof(double);
    size_t ut_bytes = (size_t)(nested->rank * nested->rows) * elem;
    size_t v_bytes = (size_t)(nested->rank * nested->cols) * elem;
    char *block = nmlp_mem_new(loss_bytes + ut_bytes + v_bytes, 1, err);
    if (!block) return NMLP_E_NOMEM;
    for (int64_t k = 0; k < nested->rank; k++) equalise(ut + k * nested->rows, nested->rows, v + k * nested->cols, nested->cols);
    memcpy(block, loss, loss_bytes);
    nmlp_narrow(block + loss_bytes, nested->dtype, ut, nested->rank * nested->rows);
    nmlp_narrow(block + loss_bytes + ut_bytes, nested->dtype, v, nested->rank * nested->cols);
    nested->owned = block;
    nested->loss = (const double *)block;
    nested->ut = block + loss_bytes;
    nested->v = block + loss_bytes + ut_bytes;
    return NMLP_OK;
}

void nmlp_nested_u(const nmlp_nested *nested, int64_t rank, int64_t first_row, int64_t n_rows, void *u) {
    size_t elem = nmlp_dtype_bytes(nested->dtype);
    if (elem == 2) {
        const uint16_t *from = nested->ut;
        uint16_t *to = u;
        for (int64_t k = 0; k < rank; k++)
            for (int64_t i = 0; i < n_rows; i++) to[i * rank + k] = from[k * nested->rows + first_row + i];
    } else {
        const float *from = nested->ut;
        float *to = u;
        for (int64_t k = 0; k < rank; k++)
            for (int64_t i = 0; i < n_rows; i++) to[i * rank + k] = from[k * nested->rows + first_row + i];
    }
}

/* loss[k] = sum of the values from k on, smallest first so that nothing is lost. */
static void suffix_sums(double *loss, const double *values, int64_t full) {
    loss[full] = 0;
    for (int64_t k = full; k-- > 0;) loss[k] = loss[k + 1] + (values[k] > 0 ? values[k] : 0);
}

/* Working memory of one MLP's factorisation. */
struct work {
    nmlp_pool *pool;
    const nmlp_mlp_moments *m;
    bool narrow; /* factors will be of a 16-bit type */
    nmlp_arena arena;
    double *root;                        /* [H,H] S, or NULL */
    double *weighted[NMLP_NESTED_COUNT]; /* [H,H] W^T D^2 W of gate, up, both */
    double *vectors[NMLP_NESTED_COUNT];  /* [H,H] problem, then eigenvectors in rows */
    double *values[NMLP_NESTED_COUNT];   /* [H] */
};

static double *new_doubles(struct work *w, int64_t n, nmlp_err *err) {
    return nmlp_arena_new(&w->arena, (size_t)n, sizeof(double), err);
}

/* G [H,H] = W^T D^2 W. */
static nmlp_status weigh(struct work *w, double *g, const double *matrix, const double *d, nmlp_err *err) {
    int64_t h = w->m->hidden;
    int64_t i_dim = w->m->intermediate;
    double *scaled = nmlp_mem_new((size_t)(i_dim * h), sizeof *scaled, err);
    if (!scaled) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < i_dim; i++)
        for (int64_t j = 0; j < h; j++) scaled[i * h + j] = (d ? d[i] : 1) * matrix[i * h + j];
    nmlp_linalg_squares(w->pool, h, i_dim, scaled, g);
    nmlp_mem_free(scaled);
    return NMLP_OK;
}

/* K = S^T G S. */
static nmlp_status set_problem(struct work *w, double *k, const double *g, nmlp_err *err) {
    int64_t h = w->m->hidden;
    if (!w->root) {
        memcpy(k, g, (size_t)(h * h) * sizeof *k);
        return NMLP_OK;
    }
    double *half = nmlp_mem_new((size_t)(h * h), sizeof *half, err);
    if (!half) return NMLP_E_NOMEM;
    nmlp_linalg_gemm(w->pool, NMLP_PLAIN, NMLP_PLAIN, h, h, h, g, w->root, half);
    nmlp_linalg_gemm(w->pool, NMLP_TRANSPOSED, NMLP_PLAIN, h, h, h, w->root, half, k);
    nmlp_mem_free(half);
    return NMLP_OK;
}

static nmlp_status set_problems(struct work *w, bool joint, nmlp_err *err) {
    const nmlp_mlp_moments *m = w->m;
    int64_t h = m->hidden;
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        w->weighted[i] = new_doubles(w, h * h, err);
        w->vectors[i] = new_doubles(w, h * h, err);
        w->values[i] = new_doubles(w, h, err);
        if (!w->weighted[i] || !w->vectors[i] || !w->values[i]) return NMLP_E_NOMEM;
    }
    if (m->input) {
        bool triangular;
        NMLP_RETURN_IF_FAILED(nmlp_linalg_root(m->input, h, &triangular, err));
        w->root = m->input;
    }
    NMLP_RETURN_IF_FAILED(weigh(w, w->weighted[NMLP_NESTED_GATE], m->gate, m->d_gate, err));
    NMLP_RETURN_IF_FAILED(weigh(w, w->weighted[NMLP_NESTED_UP], m->up, m->d_up, err));
    NMLP_RETURN_IF_FAILED(set_problem(w, w->vectors[NMLP_NESTED_GATE], w->weighted[NMLP_NESTED_GATE], err));
    NMLP_RETURN_IF_FAILED(set_problem(w, w->vectors[NMLP_NESTED_UP], w->weighted[NMLP_NESTED_UP], err));
    if (m->output) {
        memcpy(w->vectors[NMLP_NESTED_DOWN], m->output, (size_t)(h * h) * sizeof(double));
    } else {
        nmlp_linalg_gemm(w->pool, NMLP_PLAIN, NMLP_TRANSPOSED, h, h, m->intermediate, m->down, m->down,
                         w->vectors[NMLP_NESTED_DOWN]);
    }
    for (int64_t i = 0; joint && i < h * h; i++) {
        w->weighted[NMLP_NESTED_JOINT][i] = w->weighted[NMLP_NESTED_GATE][i] + w->weighted[NMLP_NESTED_UP][i];
        w->vectors[NMLP_NESTED_JOINT][i] = w->vectors[NMLP_NESTED_GATE][i] + w->vectors[NMLP_NESTED_UP][i];
    }
    return NMLP_OK;
}

/* t [H,rank] = S E^T / sigma: then u = W t and v = t^T G. */
static nmlp_status right_basis(struct work *w, double *t, int which, int64_t rank, nmlp_err *err) {
    int64_t h = w->m->hidden;
    const double *values = w->values[which];
    double *scaled = nmlp_mem_new((size_t)(rank * h), sizeof *scaled, err);
    if (!scaled) return NMLP_E_NOMEM;
    for (int64_t k = 0; k < rank; k++) {
        double scale = values[k] > noise * values[0] && values[k] > 0 ? 1 / sqrt(values[k]) : 0;
        for (int64_t j = 0; j < h; j++) scaled[k * h + j] = scale * w->vectors[which][k * h + j];
    }
    if (w->root) {
        nmlp_linalg_gemm(w->pool, NMLP_PLAIN, NMLP_TRANSPOSED, h, rank, h, w->root, scaled, t);
    } else {
        for (int64_t k = 0; k < rank; k++)
            for (int64_t j = 0; j < h; j++) t[j * rank + k] = scaled[k * h + j];
    }
    nmlp_mem_free(scaled);
    return NMLP_OK;
}

/* Entries of a factor: f32 where they end as 16 bits. */
static nmlp_status multiply(const struct work *w, nmlp_trans ta, nmlp_trans tb, int64_t m, int64_t n, int64_t k, const double *a,
                            const double *b, double *c, nmlp_err *err) {
    if (w->narrow) return nmlp_linalg_gemm_f32(w->pool, ta, tb, m, n, k, a, b, c, err);
    nmlp_linalg_gemm(w->pool, ta, tb, m, n, k, a, b, c);
    return NMLP_OK;
}

/* Row block `matrix` [I,H] of u: columns first.. of ut [rank, rows]. */
static nmlp_status project_rows(struct work *w, double *ut, int64_t rows, int64_t first, const double *matrix,
                                const double *t, int64_t rank, nmlp_err *err) {
    int64_t i_dim = w->m->intermediate;
    double *part = nmlp_mem_new((size_t)(rank * i_dim), sizeof *part, err);
    if (!part) return NMLP_E_NOMEM;
    nmlp_status st = multiply(w, NMLP_TRANSPOSED, NMLP_TRANSPOSED, rank, i_dim, w->m->hidden, t, matrix, part, err);
    for (int64_t k = 0; st == NMLP_OK && k < rank; k++)
        memcpy(ut + k * rows + first, part + k * i_dim, (size_t)i_dim * sizeof *part);
    nmlp_mem_free(part);
    return st;
}

static nmlp_status extract_tall(struct work *w, nmlp_nested *n, int which, nmlp_err *err) {
    const nmlp_mlp_moments *m = w->m;
    nmlp_status st = NMLP_E_NOMEM;
    double *t = nmlp_mem_new((size_t)(m->hidden * n->rank), sizeof *t, err);
    double *ut = nmlp_mem_new((size_t)(n->rows * n->rank), sizeof *ut, err);
    double *v = nmlp_mem_new((size_t)(n->cols * n->rank), sizeof *v, err);
    double *loss = nmlp_mem_new((size_t)n->full + 1, sizeof *loss, err);
    if (!t || !ut || !v || !loss) goto out;
    NMLP_TRY(right_basis(w, t, which, n->rank, err));
    NMLP_TRY(project_rows(w, ut, n->rows, 0, which == NMLP_NESTED_UP ? m->up : m->gate, t, n->rank, err));
    if (which == NMLP_NESTED_JOINT) NMLP_TRY(project_rows(w, ut, n->rows, m->intermediate, m->up, t, n->rank, err));
    nmlp_linalg_gemm(w->pool, NMLP_TRANSPOSED, NMLP_PLAIN, n->rank, m->hidden, m->hidden, t, w->weighted[which], v);
    suffix_sums(loss, w->values[which], n->full);
    st = nmlp_nested_pack(n, ut, v, loss, err);
out:
    nmlp_mem_free(t);
    nmlp_mem_free(ut);
    nmlp_mem_free(v);
    nmlp_mem_free(loss);
    return st;
}

/* The eigenvectors of the output Gram are the factor u itself; v = u^T W. */
static nmlp_status extract_down(struct work *w, nmlp_nested *n, nmlp_err *err) {
    const nmlp_mlp_moments *m = w->m;
    nmlp_status st = NMLP_E_NOMEM;
    double *v = nmlp_mem_new((size_t)(n->cols * n->rank), sizeof *v, err);
    double *loss = nmlp_mem_new((size_t)n->full + 1, sizeof *loss, err);
    if (v && loss) {
        double *ut = w->vectors[NMLP_NESTED_DOWN];
        suffix_sums(loss, w->values[NMLP_NESTED_DOWN], n->full);
        st = multiply(w, NMLP_PLAIN, NMLP_PLAIN, n->rank, m->intermediate, m->hidden, ut, m->down, v, err);
        if (st == NMLP_OK) st = nmlp_nested_pack(n, ut, v, loss, err);
    }
    nmlp_mem_free(v);
    nmlp_mem_free(loss);
    return st;
}

nmlp_status nmlp_factorise_mlp(nmlp_nested *nested, const nmlp_mlp_moments *m, bool joint, nmlp_dtype dtype,
                               nmlp_pool *pool, nmlp_err *err) {
    struct work w = {.pool = pool, .m = m, .narrow = nmlp_dtype_bytes(dtype) == 2};
    nmlp_status st = NMLP_OK;
    nmlp_eigen_task tasks[NMLP_NESTED_COUNT];
    int n_tasks = joint ? NMLP_NESTED_COUNT : NMLP_NESTED_JOINT;
    memset(nested, 0, NMLP_NESTED_COUNT * sizeof *nested);
    nmlp_arena_init(&w.arena);
    NMLP_TRY(set_problems(&w, joint, err));
    for (int i = 0; i < n_tasks; i++)
        tasks[i] = (nmlp_eigen_task){.a = w.vectors[i], .values = w.values[i], .n = m->hidden};
    NMLP_TRY(nmlp_linalg_eigen_all(pool, tasks, n_tasks, err));
    for (int i = 0; i < n_tasks; i++) {
        nmlp_nested *n = &nested[i];
        n->rows = i == NMLP_NESTED_DOWN ? m->hidden : i == NMLP_NESTED_JOINT ? 2 * m->intermediate : m->intermediate;
        n->cols = i == NMLP_NESTED_DOWN ? m->intermediate : m->hidden;
        n->rank = nmlp_rank_break_even(n->rows, n->cols);
        n->full = m->hidden;
        n->dtype = dtype;
        NMLP_TRY(i == NMLP_NESTED_DOWN ? extract_down(&w, n, err) : extract_tall(&w, n, i, err));
    }
out:
    nmlp_arena_fini(&w.arena);
    if (st != NMLP_OK)
        for (int i = 0; i < NMLP_NESTED_COUNT; i++) nmlp_nested_fini(&nested[i]);
    return st;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static nmlp_status floor_at_median(double *d, int64_t n, nmlp_err *err) {
    double *sorted = nmlp_mem_new((size_t)n, sizeof *sorted, err);
    if (!sorted) return NMLP_E_NOMEM;
    memcpy(sorted, d, (size_t)n * sizeof *d);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    double least = 1e-3 * sorted[n / 2];
    if (!(least > 0)) least = sorted[n - 1] > 0 ? 1e-6 * sorted[n - 1] : 1; /* most neurons are dead, or all */
    for (int64_t i = 0; i < n; i++)
        if (d[i] < least) d[i] = least;
    nmlp_mem_free(sorted);
    return NMLP_OK;
}

nmlp_status nmlp_swiglu_weights(double *d_gate, double *d_up, const double *down, const double *silu2,
                                const double *slope2, int64_t hidden, int64_t intermediate, nmlp_err *err) {
    for (int64_t j = 0; j < intermediate; j++) {
        double norm2 = 0;
        for (int64_t i = 0; i < hidden; i++) norm2 += down[i * intermediate + j] * down[i * intermediate + j];
        d_up[j] = sqrt(norm2 * silu2[j]);
        d_gate[j] = sqrt(norm2 * slope2[j]);
    }
    NMLP_RETURN_IF_FAILED(floor_at_median(d_gate, intermediate, err));
    return floor_at_median(d_up, intermediate, err);
}
