/* Fitting the factors of slices again: vector i of slice s is vector i*n+s of the whole matrix's block diagonal
 * factors, zero outside of its slice. */
#include <string.h>

#include "base/mem.h"
#include "compress/factor/products.h"
#include "compress/refit/refit_internal.h"

nmlp_status nmlp_refit_tall_slice(const nmlp_refit_layer *l, const nmlp_refit_tall *problem, int64_t s, double *ut,
                                  double *v, nmlp_err *err) {
    nmlp_refit_tall part = *problem;
    int64_t n = l->r->slices, width = problem->rows[0] / n, k = problem->rank, rows = nmlp_refit_tall_rows(problem);
    for (int m = 0; m < problem->n_matrices; m++) {
        part.rows[m] = width;
        part.w[m] = problem->w[m] + s * width * problem->n;
        part.views[m] = nmlp_view_rows(&problem->views[m], s * width, width);
        part.weight[m] = problem->weight[m] ? problem->weight[m] + s * width : NULL;
    }
    double *part_ut = nmlp_mem_new((size_t)(k * problem->n_matrices * width), sizeof *part_ut, err);
    double *part_v = nmlp_mem_new((size_t)(k * problem->n), sizeof *part_v, err);
    nmlp_status st = part_ut && part_v ? nmlp_refit_tall_solve(&part, part_ut, part_v, l->pool, err) : NMLP_E_NOMEM;
    for (int64_t i = 0; i < k && st == NMLP_OK; i++) {
        for (int m = 0; m < problem->n_matrices; m++)
            memcpy(ut + (i * n + s) * rows + m * problem->rows[0] + s * width,
                   part_ut + (i * problem->n_matrices + m) * width, (size_t)width * sizeof *ut);
        memcpy(v + (i * n + s) * problem->n, part_v + i * problem->n, (size_t)problem->n * sizeof *v);
    }
    nmlp_mem_free(part_ut);
    nmlp_mem_free(part_v);
    return st;
}

/* Columns first..first+width-1 of a [rows,cols]. */
static void take_columns(double *to, const double *a, int64_t rows, int64_t cols, int64_t first, int64_t width) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * width, a + i * cols + first, (size_t)width * sizeof *to);
}

/* The product of the factors that `base` has, in f64. */
static nmlp_status widen_product(const nmlp_refit_layer *l, const nmlp_factors *f, double *w, nmlp_err *err) {
    double *u = nmlp_mem_new((size_t)nmlp_view_elems(&f->u), sizeof *u, err);
    double *v = nmlp_mem_new((size_t)nmlp_view_elems(&f->v), sizeof *v, err);
    if (u && v) {
        nmlp_widen(l->pool, u, &f->u);
        nmlp_widen(l->pool, v, &f->v);
        nmlp_linalg_gemm(l->pool, NMLP_PLAIN, NMLP_PLAIN, f->u.shape[0], f->v.shape[1], f->u.shape[1], u, v, w);
    }
    nmlp_status st = u && v ? NMLP_OK : NMLP_E_NOMEM;
    nmlp_mem_free(u);
    nmlp_mem_free(v);
    return st;
}

/* Room for one slice of down; n_in inputs, of which the slice has `width`. */
struct down_slice {
    double *gram;   /* [width,width] */
    double *cross;  /* [H,width] what is wanted of the slice: the target less what the others give */
    double *w;      /* [H,width] */
    double *others; /* [n_in,width] columns of the Gram matrix */
    double *ut, *v; /* [k,H], [k,width] */
    double *whole;  /* [H,n_in] the factors' products as they are now, zero in the slice at hand */
};

static nmlp_status solve_down_slice(const nmlp_refit_layer *l, const nmlp_refit_down *problem, int64_t s,
                                    struct down_slice *d, double *ut, double *v, nmlp_err *err) {
    int64_t h = problem->m, n_in = problem->n, n = l->r->slices, width = n_in / n, first = s * width, k = problem->rank;
    for (int64_t i = 0; i < h; i++) memset(d->whole + i * n_in + first, 0, (size_t)width * sizeof *d->whole);
    take_columns(d->others, problem->gram, n_in, n_in, first, width);
    memcpy(d->gram, d->others + first * width, (size_t)(width * width) * sizeof *d->gram);
    take_columns(d->w, problem->w, h, n_in, first, width);
    nmlp_linalg_gemm(l->pool, NMLP_PLAIN, NMLP_PLAIN, h, width, n_in, d->whole, d->others, d->cross);
    for (int64_t i = 0; i < h; i++)
        for (int64_t j = 0; j < width; j++)
            d->cross[i * width + j] = problem->cross[i * n_in + first + j] - d->cross[i * width + j];
    nmlp_refit_down part = {.m = h,
                            .n = width,
                            .w = d->w,
                            .gram = d->gram,
                            .cross = d->cross,
                            .ridge = problem->ridge / (double)n,
                            .rank = k};
    NMLP_RETURN_IF_FAILED(nmlp_refit_down_solve(&part, d->ut, d->v, l->pool, err));
    for (int64_t i = 0; i < k; i++) {
        memcpy(ut + (i * n + s) * h, d->ut + i * h, (size_t)h * sizeof *ut);
        memcpy(v + (i * n + s) * n_in + first, d->v + i * width, (size_t)width * sizeof *v);
    }
    nmlp_linalg_gemm_into(l->pool, NMLP_TRANSPOSED, NMLP_PLAIN, h, width, k, d->ut, d->v, d->whole + first, n_in);
    return NMLP_OK;
}

/* One slice after the other, each fitted to what the others leave. */
nmlp_status nmlp_refit_down_slices(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, const nmlp_refit_down *problem,
                                   double *ut, double *v, nmlp_err *err) {
    int64_t h = problem->m, n_in = problem->n, width = n_in / l->r->slices;
    nmlp_arena arena;
    nmlp_status st = NMLP_OK;
    nmlp_arena_init(&arena);
    struct down_slice d = {
        .gram = nmlp_arena_new(&arena, (size_t)(width * width), sizeof(double), err),
        .cross = nmlp_arena_new(&arena, (size_t)(h * width), sizeof(double), err),
        .w = nmlp_arena_new(&arena, (size_t)(h * width), sizeof(double), err),
        .others = nmlp_arena_new(&arena, (size_t)(n_in * width), sizeof(double), err),
        .ut = nmlp_arena_new(&arena, (size_t)(problem->rank * h), sizeof(double), err),
        .v = nmlp_arena_new(&arena, (size_t)(problem->rank * width), sizeof(double), err),
        .whole = nmlp_arena_new(&arena, (size_t)(h * n_in), sizeof(double), err),
    };
    if (!d.gram || !d.cross || !d.w || !d.others || !d.ut || !d.v || !d.whole) st = NMLP_E_NOMEM;
    if (st == NMLP_OK) st = widen_product(l, &base->down, d.whole, err);
    for (int64_t s = 0; s < l->r->slices && st == NMLP_OK; s++) st = solve_down_slice(l, problem, s, &d, ut, v, err);
    nmlp_arena_fini(&arena);
    return st;
}
