#include "compress/factor/factorise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compress/factor/products.h"
#include "linalg/linalg.h"

/* Squared singular values below this share of the largest are rounding noise: their vectors are left out. */
static const double noise = 1e-14;

enum { RANKS_PER_TASK = 4, TRANSPOSE_SIDE = 64 };

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

struct packing {
    const nmlp_nested *nested;
    double *ut, *v;
    char *to_ut, *to_v;
};

static void pack_ranks(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct packing *p = ctx;
    int64_t rows = p->nested->rows, cols = p->nested->cols;
    size_t elem = nmlp_dtype_bytes(p->nested->dtype);
    (void)thread;
    for (int64_t k = begin; k < end; k++) {
        equalise(p->ut + k * rows, rows, p->v + k * cols, cols);
        nmlp_narrow(p->to_ut + (size_t)(k * rows) * elem, p->nested->dtype, p->ut + k * rows, rows);
        nmlp_narrow(p->to_v + (size_t)(k * cols) * elem, p->nested->dtype, p->v + k * cols, cols);
    }
}

nmlp_status nmlp_nested_alloc(nmlp_nested *nested, int64_t *bytes, nmlp_err *err) {
    size_t elem = nmlp_dtype_bytes(nested->dtype);
    size_t loss_bytes = (size_t)(nested->full + 1) * sizeof(double);
    size_t ut_bytes = (size_t)(nested->rank * nested->rows) * elem;
    size_t v_bytes = (size_t)(nested->rank * nested->cols) * elem;
    char *block = nmlp_mem_new(loss_bytes + ut_bytes + v_bytes, 1, err);
    if (!block) return NMLP_E_NOMEM;
    *bytes = (int64_t)(loss_bytes + ut_bytes + v_bytes);
    nested->owned = block;
    nested->loss = (const double *)block;
    nested->ut = block + loss_bytes;
    nested->v = block + loss_bytes + ut_bytes;
    return NMLP_OK;
}

nmlp_status nmlp_nested_pack(nmlp_nested *nested, double *ut, double *v, const double *loss, nmlp_pool *pool,
                             nmlp_err *err) {
    int64_t bytes;
    NMLP_RETURN_IF_FAILED(nmlp_nested_alloc(nested, &bytes, err));
    char *block = nested->owned;
    struct packing packing = {.nested = nested,
                              .ut = ut,
                              .v = v,
                              .to_ut = block + ((const char *)nested->ut - block),
                              .to_v = block + ((const char *)nested->v - block)};
    memcpy(block, loss, (size_t)(nested->full + 1) * sizeof *loss);
    nmlp_pool_for(pool, nested->rank, RANKS_PER_TASK, pack_ranks, &packing);
    return NMLP_OK;
}

struct transposing {
    const nmlp_nested *nested;
    int64_t rank, first_row, n_rows;
    void *u;
};

/* Squares small enough that what is read in rows and written in columns stays in L1. */
static void transpose_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct transposing *t = ctx;
    bool is_short = nmlp_dtype_bytes(t->nested->dtype) == 2;
    (void)thread;
    for (int64_t first = 0; first < t->rank; first += TRANSPOSE_SIDE) {
        int64_t last = first + TRANSPOSE_SIDE < t->rank ? first + TRANSPOSE_SIDE : t->rank;
        for (int64_t k = first; k < last; k++) {
            int64_t from = k * t->nested->rows + t->first_row;
            if (is_short) {
                const uint16_t *row = (const uint16_t *)t->nested->ut + from;
                for (int64_t i = begin; i < end; i++) ((uint16_t *)t->u)[i * t->rank + k] = row[i];
            } else {
                const float *row = (const float *)t->nested->ut + from;
                for (int64_t i = begin; i < end; i++) ((float *)t->u)[i * t->rank + k] = row[i];
            }
        }
    }
}

void nmlp_nested_u(const nmlp_nested *nested, int64_t rank, int64_t first_row, int64_t n_rows, void *u,
                   nmlp_pool *pool) {
    struct transposing t = {.nested = nested, .rank = rank, .first_row = first_row, .n_rows = n_rows, .u = u};
    nmlp_pool_for(pool, n_rows, TRANSPOSE_SIDE, transpose_rows, &t);
}

/* loss[k] = sum of the values from k on, smallest first so that nothing is lost. */
static void suffix_sums(double *loss, const double *values, int64_t full) {
    loss[full] = 0;
    for (int64_t k = full; k-- > 0;) loss[k] = loss[k + 1] + (values[k] > 0 ? values[k] : 0);
}

/* Working memory of one module's factorisation. */
struct work {
    nmlp_pool *pool;
    const nmlp_module_moments *m;
    int last, joint; /* entries of the last matrix and of the first ones together */
    bool narrow;     /* factors will be of a 16-bit type */
    nmlp_arena arena;
    double *root;                        /* [H,H] S, or NULL */
    double *weighted[NMLP_NESTED_COUNT]; /* [H,H] W^T D^2 W of the first ones, and of all of them; NULL: not needed */
    double *vectors[NMLP_NESTED_COUNT];  /* [H,H] problem, then eigenvectors in rows */
    double *values[NMLP_NESTED_COUNT];   /* [H] */
};

static double *new_doubles(struct work *w, int64_t n, nmlp_err *err) {
    return nmlp_arena_new(&w->arena, (size_t)n, sizeof(double), err);
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

static bool is_wanted(const struct work *w, int which) {
    if (which > w->joint) return false;
    return which == w->last || (which == w->joint ? w->m->joint : w->m->separate);
}

/* The sum of those of the first matrices, in all entries of `parts`. */
static void add_up(const struct work *w, double *const parts[]) {
    int64_t elems = w->m->hidden * w->m->hidden;
    memcpy(parts[w->joint], parts[0], (size_t)elems * sizeof(double));
    for (int i = 1; i < w->last; i++)
        for (int64_t k = 0; k < elems; k++) parts[w->joint][k] += parts[i][k];
}

/* K is linear in G: with a shared basis alone, the sum of all is all that is needed. */
static nmlp_status set_first_problems(struct work *w, nmlp_err *err) {
    const nmlp_module_moments *m = w->m;
    for (int i = 0; i < w->last; i++)
        NMLP_RETURN_IF_FAILED(nmlp_linalg_weighted_squares(w->pool, m->hidden, m->rows[i], m->w[i], m->d[i], w->narrow,
                                                           w->weighted[i], err));
    if (m->joint) add_up(w, w->weighted);
    if (!m->separate) return set_problem(w, w->vectors[w->joint], w->weighted[w->joint], err);
    for (int i = 0; i < w->last; i++) NMLP_RETURN_IF_FAILED(set_problem(w, w->vectors[i], w->weighted[i], err));
    if (m->joint) add_up(w, w->vectors);
    return NMLP_OK;
}

static nmlp_status set_problems(struct work *w, nmlp_err *err) {
    const nmlp_module_moments *m = w->m;
    int64_t h = m->hidden;
    for (int i = 0; i <= w->joint; i++) {
        bool weighted = i != w->last && (i != w->joint || m->joint);
        if (weighted && !(w->weighted[i] = new_doubles(w, h * h, err))) return NMLP_E_NOMEM;
        if (!is_wanted(w, i)) continue;
        w->vectors[i] = new_doubles(w, h * h, err);
        w->values[i] = new_doubles(w, h, err);
        if (!w->vectors[i] || !w->values[i]) return NMLP_E_NOMEM;
    }
    if (m->input) {
        bool triangular;
        NMLP_RETURN_IF_FAILED(nmlp_linalg_root(w->pool, m->input, h, &triangular, err));
        w->root = m->input;
    }
    NMLP_RETURN_IF_FAILED(set_first_problems(w, err));
    if (m->output) {
        memcpy(w->vectors[w->last], m->output, (size_t)(h * h) * sizeof(double));
    } else {
        nmlp_linalg_gemm(w->pool, NMLP_PLAIN, NMLP_TRANSPOSED, h, h, m->inner, m->w[w->last], m->w[w->last],
                         w->vectors[w->last]);
    }
    return NMLP_OK;
}

/* t [rank,H] = E S^T / sigma: then u^T = t W^T and v = t G. */
static nmlp_status right_basis(struct work *w, double *t, int which, int64_t rank, nmlp_err *err) {
    int64_t h = w->m->hidden;
    const double *values = w->values[which];
    double *scaled = w->root ? nmlp_mem_new((size_t)(rank * h), sizeof *scaled, err) : t;
    if (!scaled) return NMLP_E_NOMEM;
    for (int64_t k = 0; k < rank; k++) {
        double scale = values[k] > noise * values[0] && values[k] > 0 ? 1 / sqrt(values[k]) : 0;
        for (int64_t j = 0; j < h; j++) scaled[k * h + j] = scale * w->vectors[which][k * h + j];
    }
    if (w->root) {
        nmlp_linalg_gemm(w->pool, NMLP_PLAIN, NMLP_TRANSPOSED, rank, h, h, scaled, w->root, t);
        nmlp_mem_free(scaled);
    }
    return NMLP_OK;
}

static nmlp_weight_product product_of(const struct work *w, int matrix) {
    const nmlp_module_moments *m = w->m;
    return (nmlp_weight_product){
        .view = &m->views[matrix], .wide = m->w[matrix], .transposed = matrix == w->last, .kernels = m->kernels};
}

static nmlp_status extract_first(struct work *w, nmlp_nested *n, int which, nmlp_err *err) {
    const nmlp_module_moments *m = w->m;
    nmlp_status st = NMLP_E_NOMEM;
    int64_t at = 0;
    double *t = nmlp_mem_new((size_t)(m->hidden * n->rank), sizeof *t, err);
    double *ut = nmlp_mem_new((size_t)(n->rows * n->rank), sizeof *ut, err);
    double *v = nmlp_mem_new((size_t)(n->cols * n->rank), sizeof *v, err);
    double *loss = nmlp_mem_new((size_t)n->full + 1, sizeof *loss, err);
    if (!t || !ut || !v || !loss) goto out;
    NMLP_TRY(right_basis(w, t, which, n->rank, err));
    for (int i = 0; i < w->last; i++) {
        if (which != w->joint && which != i) continue;
        nmlp_weight_product product = product_of(w, i);
        NMLP_TRY(nmlp_weight_multiply(&product, w->pool, n->rank, t, ut + at, n->rows, err));
        at += m->rows[i];
    }
    nmlp_linalg_gemm(w->pool, NMLP_PLAIN, NMLP_PLAIN, n->rank, m->hidden, m->hidden, t, w->weighted[which], v);
    suffix_sums(loss, w->values[which], n->full);
    st = nmlp_nested_pack(n, ut, v, loss, w->pool, err);
out:
    nmlp_mem_free(t);
    nmlp_mem_free(ut);
    nmlp_mem_free(v);
    nmlp_mem_free(loss);
    return st;
}

/* The eigenvectors of the output Gram are the factor u itself; v = u^T W. */
static nmlp_status extract_last(struct work *w, nmlp_nested *n, nmlp_err *err) {
    nmlp_status st = NMLP_E_NOMEM;
    double *v = nmlp_mem_new((size_t)(n->cols * n->rank), sizeof *v, err);
    double *loss = nmlp_mem_new((size_t)n->full + 1, sizeof *loss, err);
    if (v && loss) {
        double *ut = w->vectors[w->last];
        suffix_sums(loss, w->values[w->last], n->full);
        nmlp_weight_product last = product_of(w, w->last);
        st = nmlp_weight_multiply(&last, w->pool, n->rank, ut, v, n->cols, err);
        if (st == NMLP_OK) st = nmlp_nested_pack(n, ut, v, loss, w->pool, err);
    }
    nmlp_mem_free(v);
    nmlp_mem_free(loss);
    return st;
}

static nmlp_status solve(struct work *w, nmlp_err *err) {
    nmlp_eigen_task tasks[NMLP_NESTED_COUNT];
    int n_tasks = 0;
    for (int i = 0; i < NMLP_NESTED_COUNT; i++)
        if (is_wanted(w, i))
            tasks[n_tasks++] = (nmlp_eigen_task){.a = w->vectors[i], .values = w->values[i], .n = w->m->hidden};
    nmlp_compress_work before = nmlp_compress_times_enter(w->m->times, NMLP_COMPRESS_WORK_EIGEN);
    nmlp_status st = nmlp_linalg_eigen_all(w->pool, tasks, n_tasks, err);
    nmlp_compress_times_enter(w->m->times, before);
    return st;
}

static nmlp_nested shape_of(const struct work *w, int which) {
    const nmlp_module_moments *m = w->m;
    nmlp_nested n = {.rows = which < w->last ? m->rows[which] : m->hidden,
                     .cols = which == w->last ? m->inner : m->hidden,
                     .full = m->hidden,
                     .dtype = m->views[0].dtype,
                     .slices = 1};
    if (which == w->joint) {
        n.rows = 0;
        for (int i = 0; i < w->last; i++) n.rows += m->rows[i];
    }
    n.rank = nmlp_rank_break_even(n.rows, n.cols);
    return n;
}

nmlp_status nmlp_factorise_module(nmlp_nested *nested, const nmlp_module_moments *m, nmlp_pool *pool, nmlp_err *err) {
    struct work w = {.pool = pool,
                     .m = m,
                     .last = m->n_first,
                     .joint = m->n_first + 1,
                     .narrow = nmlp_dtype_bytes(m->views[0].dtype) == 2};
    nmlp_status st = NMLP_OK;
    nmlp_compress_work before = nmlp_compress_times_enter(m->times, NMLP_COMPRESS_WORK_PRODUCTS);
    memset(nested, 0, NMLP_NESTED_COUNT * sizeof *nested);
    nmlp_arena_init(&w.arena);
    NMLP_TRY(set_problems(&w, err));
    NMLP_TRY(solve(&w, err));
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        if (!is_wanted(&w, i)) continue;
        nested[i] = shape_of(&w, i);
        NMLP_TRY(i == w.last ? extract_last(&w, &nested[i], err) : extract_first(&w, &nested[i], i, err));
    }
out:
    nmlp_compress_times_enter(m->times, before);
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

nmlp_status nmlp_swiglu_weights(double *d_gate, double *d_up, const double *down, const double *gate2,
                                const double *slope2, int64_t hidden, int64_t intermediate, nmlp_err *err) {
    double *norm2 = d_up; /* row by row, as down lies in memory */
    memset(norm2, 0, (size_t)intermediate * sizeof *norm2);
    for (int64_t i = 0; i < hidden; i++)
        for (int64_t j = 0; j < intermediate; j++) norm2[j] += down[i * intermediate + j] * down[i * intermediate + j];
    for (int64_t j = 0; j < intermediate; j++) {
        d_gate[j] = sqrt(norm2[j] * slope2[j]);
        d_up[j] = sqrt(norm2[j] * gate2[j]);
    }
    NMLP_RETURN_IF_FAILED(floor_at_median(d_gate, intermediate, err));
    return floor_at_median(d_up, intermediate, err);
}
