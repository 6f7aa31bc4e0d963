#include "cuda/mlp_many.h"

#include "cuda/program.h"

static int32_t widest(int32_t a, int32_t b) { return a > b ? a : b; }

void nmlp_cuda_mlp_rows_take(nmlp_cuda_mlp_rows *rows, nmlp_cuda_block *block, const nmlp_cuda_mlp_weights *const *mlps, int64_t n,
                             int64_t s) {
    int32_t basis = 0;
    int32_t wide = 0;
    int32_t inner = 0;
    for (int64_t i = 0; i < n; i++) {
        basis = widest(basis, nmlp_cuda_pad(mlps[i]->basis.n));
        wide = widest(wide, nmlp_cuda_pad(mlps[i]->gate.n));
        inner = widest(inner, nmlp_cuda_pad(mlps[i]->down_basis.n));
    }
    rows->basis = nmlp_cuda_block_take(block, (size_t)s * (size_t)basis * 2);
    rows->gate = nmlp_cuda_block_take(block, (size_t)s * (size_t)wide * 2);
    rows->up = nmlp_cuda_block_take(block, (size_t)s * (size_t)wide * 2);
    rows->inner = nmlp_cuda_block_take(block, (size_t)s * (size_t)inner * 2);
}

struct operand {
    const uint16_t *x;
    int32_t pitch;
};

static nmlp_status multiply(const nmlp_cuda_mlp_many *m, void *y, bool last, struct operand x, const nmlp_cuda_matrix *w,
                            nmlp_err *err) {
    nmlp_cuda_gemm g = {.y = y,
                        .x = x.x,
                        .w = w->data,
                        .s = m->s,
                        .n = w->n,
                        .k = w->k,
                        .y_pitch = nmlp_cuda_pad(w->n),
                        .x_pitch = x.pitch,
                        .w_pitch = w->k,
                        .y_is_f32 = last,
                        .accumulate = last && m->accumulate};
    return nmlp_cuda_blas_run(m->blas, &g, m->stream, err);
}

nmlp_status nmlp_cuda_mlp_many_run(const nmlp_cuda_mlp_many *m, nmlp_err *err) {
    const nmlp_cuda_mlp_weights *w = m->w;
    const nmlp_cuda_mlp_rows *rows = m->rows;
    int32_t wide = nmlp_cuda_pad(w->gate.n);
    struct operand x = {.x = m->x, .pitch = w->gate_rank ? w->basis.k : w->gate.k};
    struct operand basis = {.x = rows->basis, .pitch = nmlp_cuda_pad(w->basis.n)};
    struct operand up_basis = {.x = basis.x + w->up_start, .pitch = basis.pitch};
    struct operand act = {.x = rows->gate, .pitch = wide};
    if (w->basis.n) NMLP_RETURN_IF_FAILED(multiply(m, rows->basis, false, x, &w->basis, err));
    NMLP_RETURN_IF_FAILED(multiply(m, rows->gate, false, w->gate_rank ? basis : x, &w->gate, err));
    NMLP_RETURN_IF_FAILED(multiply(m, rows->up, false, w->up_rank ? up_basis : x, &w->up, err));
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(
        nmlp_cuda_launch_silu_mul(rows->gate, rows->gate, rows->up, (int64_t)m->s * wide, m->stream), "launching silu*mul", err));
    if (!w->down_basis.n) return multiply(m, m->y, true, act, &w->down, err);
    struct operand inner = {.x = rows->inner, .pitch = nmlp_cuda_pad(w->down_basis.n)};
    NMLP_RETURN_IF_FAILED(multiply(m, rows->inner, false, act, &w->down_basis, err));
    return multiply(m, m->y, true, inner, &w->down, err);
}
