#include "compress/quantize/quant_factors.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "linalg/linalg.h"
#include "tensor/quant.h"

static const double ridge = 1e-6; /* of the mean of a diagonal */

struct basis {
    const nmlp_quant_factors *f;
    int64_t rows, cols, rank;
    double *u;       /* [rows, rank], all of u */
    double *v;       /* [rank, cols] */
    double *rounded; /* [rank, cols] v as it is stored */
    double *seen;    /* [cols, rank] C rounded^T */
    double *square;  /* [rank, rank] */
    double *gram;    /* [rank, rank] rounded C rounded^T */
    double *fitted;  /* [rows, rank] u* */
    float *narrow;   /* [max(rows,rank), max(cols,rank)] */
};

static nmlp_status new_basis(struct basis *b, nmlp_arena *arena, nmlp_err *err) {
    int64_t rank = b->rank, elems = b->rows * rank > rank * b->cols ? b->rows * rank : rank * b->cols;
    struct {
        double **at;
        int64_t n;
    } parts[] = {{&b->u, b->rows * rank},     {&b->v, rank * b->cols},   {&b->rounded, rank * b->cols},
                 {&b->seen, b->cols * rank},  {&b->square, rank * rank}, {&b->gram, rank * rank},
                 {&b->fitted, b->rows * rank}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].at = nmlp_arena_new(arena, (size_t)parts[i].n, sizeof(double), err);
        if (!*parts[i].at) return NMLP_E_NOMEM;
    }
    b->narrow = nmlp_arena_new(arena, (size_t)elems, sizeof *b->narrow, err);
    return b->narrow ? NMLP_OK : NMLP_E_NOMEM;
}

static void widen(double *to, float *row, const nmlp_view *view) {
    int64_t n = view->shape[1];
    for (int64_t i = 0; i < view->shape[0]; i++) {
        nmlp_quant_row_to_f32(row, view, i);
        for (int64_t j = 0; j < n; j++) to[i * n + j] = (double)row[j];
    }
}

static void read_factors(struct basis *b) {
    int64_t at = 0;
    for (int i = 0; i < b->f->n; i++) {
        widen(b->u + at * b->rank, b->narrow, &b->f->source[i].u);
        at += b->f->source[i].u.shape[0];
    }
    widen(b->v, b->narrow, &b->f->source[0].v);
}

static void add_ridge(double *a, int64_t n) {
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += a[i * n + i] / (double)n;
    for (int64_t i = 0; i < n; i++) a[i * n + i] += (mean > 0 ? ridge * mean : 1);
}

/* u <- u L^-T, v <- L^T v with L L^T = u^T u. */
static nmlp_status orthonormalise(struct basis *b, nmlp_err *err) {
    nmlp_pool *pool = b->f->pool;
    nmlp_linalg_gemm(pool, NMLP_TRANSPOSED, NMLP_PLAIN, b->rank, b->rank, b->rows, b->u, b->u, b->square);
    add_ridge(b->square, b->rank);
    if (!nmlp_linalg_cholesky(pool, b->square, b->rank))
        return nmlp_fail(err, NMLP_E_NUMERIC, "u of rank %lld has columns that are no numbers", (long long)b->rank);
    nmlp_linalg_solve_right_transposed(pool, b->square, b->u, b->rows, b->rank);
    nmlp_linalg_gemm(pool, NMLP_TRANSPOSED, NMLP_PLAIN, b->rank, b->cols, b->rank, b->square, b->v, b->rounded);
    memcpy(b->v, b->rounded, (size_t)(b->rank * b->cols) * sizeof *b->v);
    return NMLP_OK;
}

/* n numbers `stride` apart: signs, then a Hadamard transform of every block of `block` (a power of two). */
static void rotate(double *x, int64_t n, int64_t stride, int64_t block, const double *signs) {
    for (int64_t i = 0; i < n; i++) x[i * stride] *= signs[i];
    for (int64_t half = 1; half < block; half *= 2)
        for (int64_t first = 0; first < n; first += 2 * half)
            for (int64_t i = first; i < first + half; i++) {
                double a = x[i * stride], c = x[(i + half) * stride];
                x[i * stride] = (a + c) * sqrt(0.5);
                x[(i + half) * stride] = (a - c) * sqrt(0.5);
            }
}

static nmlp_status mix_ranks(struct basis *b, nmlp_err *err) {
    int64_t block = 1;
    nmlp_rng rng;
    double *signs = nmlp_mem_new((size_t)b->rank, sizeof *signs, err);
    if (!signs) return NMLP_E_NOMEM;
    while (b->rank % (2 * block) == 0) block *= 2;
    nmlp_rng_seed(&rng, 1);
    for (int64_t i = 0; i < b->rank; i++) signs[i] = nmlp_rng_next(&rng) >> 63 ? -1 : 1;
    for (int64_t i = 0; i < b->rows; i++) rotate(b->u + i * b->rank, b->rank, 1, block, signs);
    for (int64_t j = 0; j < b->cols; j++) rotate(b->v + j, b->rank, b->cols, block, signs);
    nmlp_mem_free(signs);
    return NMLP_OK;
}

static void to_float(float *to, const double *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (float)from[i];
}

static nmlp_status round_v(struct basis *b, nmlp_err *err) {
    const nmlp_quant_factors *f = b->f;
    nmlp_view view;
    NMLP_RETURN_IF_FAILED(nmlp_quant_view_new(&view, f->arena, f->format, b->rank, b->cols, err));
    to_float(b->narrow, b->v, b->rank * b->cols);
    NMLP_RETURN_IF_FAILED(nmlp_gptq_round(f->gptq, b->narrow, &view, NULL, err));
    for (int i = 0; i < f->n; i++) f->out[i].v = view;
    widen(b->rounded, b->narrow, &view);
    return NMLP_OK;
}

/* fitted = u (v C r^T) (r C r^T)^-1 with r the rounded v. */
static nmlp_status fit_u(struct basis *b, nmlp_err *err) {
    nmlp_pool *pool = b->f->pool;
    int64_t r = b->rank;
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_TRANSPOSED, b->cols, r, b->cols, b->f->moments, b->rounded, b->seen);
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_PLAIN, r, r, b->cols, b->rounded, b->seen, b->gram);
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_PLAIN, r, r, b->cols, b->v, b->seen, b->square);
    nmlp_linalg_gemm(pool, NMLP_PLAIN, NMLP_PLAIN, b->rows, r, r, b->u, b->square, b->fitted);
    memcpy(b->square, b->gram, (size_t)(r * r) * sizeof *b->gram);
    add_ridge(b->square, r);
    if (!nmlp_linalg_cholesky(pool, b->square, r))
        return nmlp_fail(err, NMLP_E_NUMERIC, "second moments of %lld latent values are not positive", (long long)r);
    nmlp_linalg_solve_right_transposed(pool, b->square, b->fitted, b->rows, r);
    nmlp_linalg_solve_right(pool, b->square, b->fitted, b->rows, r);
    return NMLP_OK;
}

static nmlp_status round_u(struct basis *b, nmlp_err *err) {
    const nmlp_quant_factors *f = b->f;
    nmlp_gptq gptq;
    int64_t at = 0;
    nmlp_status st = NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_gptq_init(&gptq, f->pool, b->gram, b->rank, err));
    for (int i = 0; i < f->n && st == NMLP_OK; i++) {
        int64_t rows = f->source[i].u.shape[0];
        to_float(b->narrow, b->fitted + at * b->rank, rows * b->rank);
        st = nmlp_quant_view_new(&f->out[i].u, f->arena, f->format, rows, b->rank, err);
        if (st == NMLP_OK) st = nmlp_gptq_round(&gptq, b->narrow, &f->out[i].u, NULL, err);
        at += rows;
    }
    nmlp_gptq_fini(&gptq);
    return st;
}

nmlp_status nmlp_quant_factors_make(const nmlp_quant_factors *f, nmlp_err *err) {
    struct basis b = {.f = f, .cols = f->source[0].v.shape[1], .rank = f->source[0].v.shape[0]};
    nmlp_arena arena;
    nmlp_status st = NMLP_OK;
    for (int i = 0; i < f->n; i++) b.rows += f->source[i].u.shape[0];
    nmlp_arena_init(&arena);
    NMLP_TRY(new_basis(&b, &arena, err));
    read_factors(&b);
    NMLP_TRY(orthonormalise(&b, err));
    NMLP_TRY(mix_ranks(&b, err));
    NMLP_TRY(round_v(&b, err));
    NMLP_TRY(fit_u(&b, err));
    NMLP_TRY(round_u(&b, err));
out:
    nmlp_arena_fini(&arena);
    return st;
}
