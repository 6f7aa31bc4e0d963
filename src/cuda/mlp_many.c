#include "cuda/mlp_many.h"

#include "cuda/program.h"

/* Of the L2 cache, for gate and up together. */
static const double L2_SHARE = 0.6;

/* Rows of gate and up that leave room in L2 for the weights passing through; at least ROWS_MIN, below which matmuls get slow. */
static int32_t rows_at_once(int64_t s, int32_t wide, size_t l2_bytes) {
    enum { ROWS_MIN = 512 };
    int64_t fit = (int64_t)(L2_SHARE * (double)l2_bytes) / ((int64_t)wide * 2 * 2) / 128 * 128;
    if (fit < ROWS_MIN) fit = ROWS_MIN;
    if (fit >= s) return (int32_t)s;
    int64_t turns = (s + fit - 1) / fit;
    return (int32_t)(((s + turns - 1) / turns + 127) / 128 * 128);
}

static int32_t widest(int32_t a, int32_t b) { return a > b ? a : b; }

void nmlp_cuda_mlp_rows_take(nmlp_cuda_mlp_rows *rows, nmlp_cuda_block *block, const nmlp_cuda_mlp_weights *const *mlps, int64_t n,
                             int64_t s, size_t l2_bytes) {
    int32_t basis = 0;
    int32_t wide = 0;
    int32_t inner = 0;
    for (int64_t i = 0; i < n; i++) {
        basis = widest(basis, nmlp_cuda_pad(mlps[i]->basis.n));
        wide = widest(wide, nmlp_cuda_pad(mlps[i]->gate.n));
        inner = widest(inner, nmlp_cuda_pad(mlps[i]->down_basis.n));
    }
    rows->basis = nmlp_cuda_block_take(block, (size_t)s * (size_t)basis * 2);
    rows->wide_rows = rows_at_once(s, wide, l2_bytes);
    rows->gate = nmlp_cuda_block_take(block, (size_t)rows->wide_rows * (size_t)wide * 2);
    rows->up = nmlp_cuda_block_take(block, (size_t)rows->wide_rows * (size_t)wide * 2);
    rows->inner = nmlp_cuda_block_take(block, (size_t)s * (size_t)inner * 2);
}

struct operand {
    const uint16_t *x;
    int32_t pitch;
};

static struct operand from_row(struct operand x, int32_t row) {
    return (struct operand){.x = x.x + (int64_t)row * x.pitch, .pitch = x.pitch};
}

static nmlp_status multiply(const nmlp_cuda_mlp_many *m, void *y, bool last, struct operand x, const nmlp_cuda_matrix *w, int32_t s,
                            nmlp_err *err) {
    nmlp_cuda_gemm g = {.y = y,
                        .x = x.x,
                        .w = w->data,
                        .s = s,
                        .n = w->n,
                        .k = w->k,
                        .y_pitch = nmlp_cuda_pad(w->n),
                        .x_pitch = x.pitch,
                        .w_pitch = w->k,
                        .y_is_f32 = last,
                        .accumulate = last && m->accumulate};
    return nmlp_cuda_blas_run(m->blas, &g, m->stream, err);
}

/* Rows at.. of gate and up, their product, and the matmul that makes it narrow again. */
static nmlp_status run_wide(const nmlp_cuda_mlp_many *m, struct operand gate_x, struct operand up_x, int32_t at, int32_t s, nmlp_err *err) {
    const nmlp_cuda_mlp_weights *w = m->w;
    const nmlp_cuda_mlp_rows *rows = m->rows;
    int32_t wide = nmlp_cuda_pad(w->gate.n);
    struct operand act = {.x = rows->gate, .pitch = wide};
    NMLP_RETURN_IF_FAILED(multiply(m, rows->gate, false, from_row(gate_x, at), &w->gate, s, err));
    NMLP_RETURN_IF_FAILED(multiply(m, rows->up, false, from_row(up_x, at), &w->up, s, err));
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(
        nmlp_cuda_launch_silu_mul(rows->gate, rows->gate, rows->up, (int64_t)s * wide, m->stream), "launching silu*mul", err));
    if (!w->down_basis.n) return multiply(m, m->y + (int64_t)at * nmlp_cuda_pad(w->down.n), true, act, &w->down, s, err);
    uint16_t *inner = (uint16_t *)rows->inner + (int64_t)at * nmlp_cuda_pad(w->down_basis.n);
    return multiply(m, inner, false, act, &w->down_basis, s, err);
}

nmlp_status nmlp_cuda_mlp_many_run(const nmlp_cuda_mlp_many *m, nmlp_err *err) {
    const nmlp_cuda_mlp_weights *w = m->w;
    const nmlp_cuda_mlp_rows *rows = m->rows;
    struct operand x = {.x = m->x, .pitch = w->gate_rank ? w->basis.k : w->gate.k};
    struct operand basis = {.x = rows->basis, .pitch = nmlp_cuda_pad(w->basis.n)};
    struct operand up_basis = {.x = basis.x + w->up_start, .pitch = basis.pitch};
    if (w->basis.n) NMLP_RETURN_IF_FAILED(multiply(m, rows->basis, false, x, &w->basis, m->s, err));
    for (int32_t at = 0; at < m->s; at += rows->wide_rows) {
        int32_t s = m->s - at < rows->wide_rows ? m->s - at : rows->wide_rows;
        NMLP_RETURN_IF_FAILED(run_wide(m, w->gate_rank ? basis : x, w->up_rank ? up_basis : x, at, s, err));
    }
    if (!w->down_basis.n) return NMLP_OK;
    struct operand inner = {.x = rows->inner, .pitch = nmlp_cuda_pad(w->down_basis.n)};
    return multiply(m, m->y, true, inner, &w->down, m->s, err);
}
