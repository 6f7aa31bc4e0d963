#include "cuda/mlp/mlp_gemm.h"

#include "cuda/layout.h"
#include "cuda/mlp/swiglu_gemm_sm90.h"
#include "cuda/tensor_map.h"

void nmlp_cuda_mlp_gemm_buffers_take(nmlp_cuda_mlp_gemm_buffers *rows, nmlp_cuda_arena *arena,
                                     const nmlp_cuda_mlp_weights *const *mlps, int64_t n, int64_t s) {
    int32_t basis = 0;
    int32_t wide = 0;
    int32_t inner = 0;
    for (int64_t i = 0; i < n; i++) {
        basis = nmlp_cuda_larger(basis, nmlp_cuda_pad(mlps[i]->basis.n));
        wide = nmlp_cuda_larger(wide, nmlp_cuda_pad(mlps[i]->gate.n));
        inner = nmlp_cuda_larger(inner, nmlp_cuda_pad(mlps[i]->down_basis.n));
    }
    rows->basis = nmlp_cuda_arena_take(arena, (size_t)s * (size_t)basis * 2);
    rows->act = nmlp_cuda_arena_take(arena, (size_t)s * (size_t)wide * 2);
    rows->up = nmlp_cuda_arena_take(
        arena, (size_t)(s < NMLP_CUDA_MLP_GEMM_UNFUSED_ROWS ? s : NMLP_CUDA_MLP_GEMM_UNFUSED_ROWS) * (size_t)wide * 2);
    rows->inner = nmlp_cuda_arena_take(arena, (size_t)s * (size_t)inner * 2);
}

struct operand {
    const uint16_t *x;
    int32_t pitch;
};

static nmlp_status multiply(const nmlp_cuda_mlp_gemm *m, void *y, bool last, struct operand x,
                            const nmlp_cuda_matrix *w, nmlp_err *err) {
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

/* act = silu(gate) * up, few rows: two matmuls, then a pass over both. */
static nmlp_status run_pair(const nmlp_cuda_mlp_gemm *m, struct operand gate, struct operand up, nmlp_err *err) {
    const nmlp_cuda_mlp_gemm_buffers *rows = m->rows;
    int64_t n = (int64_t)m->s * nmlp_cuda_pad(m->w->gate.n);
    NMLP_RETURN_IF_FAILED(multiply(m, rows->act, false, gate, &m->w->gate, err));
    NMLP_RETURN_IF_FAILED(multiply(m, rows->up, false, up, &m->w->up, err));
    return NMLP_CUDA_CHECK(nmlp_cuda_launch_silu_mul(rows->act, rows->act, rows->up, n, m->stream),
                           "launching silu*mul", err);
}

static nmlp_status make_sm90_args(nmlp_cuda_swiglu_gemm_sm90 *job, const nmlp_cuda_swiglu_gemm *g, nmlp_err *err) {
    for (int i = 0; i < 2; i++) {
        NMLP_RETURN_IF_FAILED(nmlp_cuda_tensor_map_make(&job->x[i], g->x[i], g->s, g->k[i], g->x_pitch[i],
                                                        NMLP_CUDA_SWIGLU_GEMM_ROWS, err));
        NMLP_RETURN_IF_FAILED(nmlp_cuda_tensor_map_make(&job->w[i], g->w[i], g->n, g->k[i], g->k[i],
                                                        NMLP_CUDA_SWIGLU_GEMM_COLS / 2, err));
        job->steps[i] = g->k[i] / NMLP_CUDA_SWIGLU_GEMM_STEP;
    }
    job->row_pairs = nmlp_cuda_divide_up(g->s, 2 * NMLP_CUDA_SWIGLU_GEMM_ROWS);
    job->col_tiles = nmlp_cuda_divide_up(g->out_pitch, NMLP_CUDA_SWIGLU_GEMM_COLS);
    return nmlp_cuda_tensor_map_make(&job->out, g->out, g->s, g->out_pitch, g->out_pitch,
                                     NMLP_CUDA_SWIGLU_GEMM_ROWS / 2, err);
}

/* The same in one kernel. */
static nmlp_status run_swiglu_gemm(const nmlp_cuda_mlp_gemm *m, struct operand gate, struct operand up, nmlp_err *err) {
    const nmlp_cuda_swiglu_gemm g = {.out = m->rows->act,
                                     .x = {gate.x, up.x},
                                     .w = {m->w->gate.data, m->w->up.data},
                                     .k = {m->w->gate.k, m->w->up.k},
                                     .x_pitch = {gate.pitch, up.pitch},
                                     .out_pitch = nmlp_cuda_pad(m->w->gate.n),
                                     .s = m->s,
                                     .n = m->w->gate.n};
    if (m->portable || !nmlp_cuda_swiglu_gemm_has_sm90())
        return NMLP_CUDA_CHECK(nmlp_cuda_swiglu_gemm_sm80_launch(&g, m->stream), "launching gate and up", err);
    nmlp_cuda_swiglu_gemm_sm90 job;
    NMLP_RETURN_IF_FAILED(make_sm90_args(&job, &g, err));
    return NMLP_CUDA_CHECK(nmlp_cuda_swiglu_gemm_sm90_launch(&job, m->n_multiprocessors, m->stream),
                           "launching gate and up", err);
}

nmlp_status nmlp_cuda_mlp_gemm_run(const nmlp_cuda_mlp_gemm *m, nmlp_err *err) {
    const nmlp_cuda_mlp_weights *w = m->w;
    const nmlp_cuda_mlp_gemm_buffers *rows = m->rows;
    struct operand x = {.x = m->x, .pitch = w->gate_rank ? w->basis.k : w->gate.k};
    struct operand basis = {.x = rows->basis, .pitch = nmlp_cuda_pad(w->basis.n)};
    struct operand up_basis = {.x = basis.x + w->up_start, .pitch = basis.pitch};
    struct operand act = {.x = rows->act, .pitch = nmlp_cuda_pad(w->gate.n)};
    struct operand gate_in = w->gate_rank ? basis : x;
    struct operand up_in = w->up_rank ? up_basis : x;
    if (w->basis.n) NMLP_RETURN_IF_FAILED(multiply(m, rows->basis, false, x, &w->basis, err));
    NMLP_RETURN_IF_FAILED(m->s > NMLP_CUDA_MLP_GEMM_UNFUSED_ROWS ? run_swiglu_gemm(m, gate_in, up_in, err)
                                                                 : run_pair(m, gate_in, up_in, err));
    if (!w->down_basis.n) return multiply(m, m->y, true, act, &w->down, err);
    struct operand inner = {.x = rows->inner, .pitch = nmlp_cuda_pad(w->down_basis.n)};
    NMLP_RETURN_IF_FAILED(multiply(m, rows->inner, false, act, &w->down_basis, err));
    return multiply(m, m->y, true, inner, &w->down, err);
}
