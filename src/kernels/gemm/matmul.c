/* Matmuls of one input: a block of rows is packed once, then all weights pass. */
#include "kernels/gemm/matmul.h"

#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/row_driver.h"

struct matmuls {
    const nmlp_matmul *matmuls;
    float *const *ys;
    int n;
};

static nmlp_gemm_rows_run run_of(const struct matmuls *op) {
    const nmlp_matmul *first = &op->matmuls[0];
    int64_t quant_k = 0;
    bool q8 = true;
    for (int i = 0; i < op->n; i++) {
        quant_k = nmlp_max(quant_k, nmlp_gemm_weight_quant_k(op->matmuls[i].w));
        q8 = q8 && nmlp_gemm_weight_takes_int8(op->matmuls[i].w);
    }
    return (nmlp_gemm_rows_run){.kernels = first->kernels,
                                .k = first->w->k,
                                .quant_k = quant_k,
                                .q8_first = q8,
                                .first_weight = first->w,
                                .op = op};
}

size_t nmlp_matmul_workspace_bytes(const nmlp_matmul *matmul, int64_t s, int n_threads) {
    struct matmuls op = {.matmuls = matmul, .n = 1};
    nmlp_gemm_rows_run run = run_of(&op);
    return nmlp_gemm_rows_workspace_bytes(&run, s, 0, n_threads);
}

static void multiply(const nmlp_gemm_pass *pass, const nmlp_matmul *m, float *y) {
    nmlp_gemm_to_rows to = {.vec = m->kernels->vec,
                            .y = y + pass->row * m->w->n,
                            .bias = m->bias,
                            .n = m->w->n,
                            .add = pass->run->fused->add};
    nmlp_gemm_stage stage = nmlp_gemm_pass_stage(pass);
    stage.product[0] = (nmlp_gemm_product){.w = m->w, .a = *pass->x, .k = m->w->k_padded};
    stage.epilogue = nmlp_gemm_to_rows_run;
    stage.describe = nmlp_gemm_to_rows_describe;
    stage.epilogue_ctx = &to;
    nmlp_gemm_stage_work(&stage, pass->worker, pass->scratch);
}

static void run_block(const nmlp_gemm_pass *pass) {
    const struct matmuls *op = pass->run->op;
    for (int i = 0; i < op->n; i++) multiply(pass, &op->matmuls[i], op->ys[i]);
}

static int width_of(const struct matmuls *op, int64_t s, const nmlp_pool *pool) {
    double bytes = 0, elems = 0;
    for (int i = 0; i < op->n; i++) {
        bytes += (double)op->matmuls[i].w->bytes;
        elems += (double)op->matmuls[i].w->n * (double)op->matmuls[i].w->k;
    }
    return nmlp_gemm_rows_width(pool, s, bytes, elems);
}

void nmlp_matmul_run(const nmlp_matmul matmuls[], float *const ys[], int n, const float *x, int64_t s,
                     const nmlp_fused *fused, void *workspace, nmlp_pool *pool) {
    static const nmlp_fused nothing = {0};
    struct matmuls op = {.matmuls = matmuls, .ys = ys, .n = n};
    nmlp_gemm_rows_run run = run_of(&op);
    run.x = x;
    run.fused = fused ? fused : &nothing;
    run.block = run_block;
    nmlp_gemm_rows_init(&run, s, 0, width_of(&op, s, pool), workspace);
    nmlp_gemm_rows_run_all(&run, pool);
}
