#include "kernels/gemm/matmul.h"

#include "base/mem.h"

struct nmlp_linear {
    const nmlp_kernels *kernels;
    nmlp_gemm_weight weight;
    float *bias; /* [N] or NULL */
};

static nmlp_status copy_bias(nmlp_linear *linear, const nmlp_view *bias, nmlp_err *err) {
    int64_t n = linear->weight.n;
    if (!bias || !bias->data) return NMLP_OK;
    if (nmlp_view_elems(bias) != n)
        return nmlp_fail(err, NMLP_E_SHAPE, "bias has %lld elements, the weight has %lld rows",
                         (long long)nmlp_view_elems(bias), (long long)n);
    linear->bias = nmlp_mem_new((size_t)n, sizeof *linear->bias, err);
    if (!linear->bias) return NMLP_E_NOMEM;
    nmlp_to_f32(linear->bias, bias->data, bias->dtype, (size_t)n);
    return NMLP_OK;
}

nmlp_status nmlp_linear_create(nmlp_linear **out, const nmlp_kernels *kernels, const nmlp_view *weight,
                               const nmlp_view *bias, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_linear *linear = nmlp_mem_new(1, sizeof *linear, err);
    if (!linear) return NMLP_E_NOMEM;
    linear->kernels = kernels;
    NMLP_TRY(nmlp_gemm_weight_init(&linear->weight, kernels, weight, pool, err));
    NMLP_TRY(copy_bias(linear, bias, err));
    *out = linear;
    linear = NULL;
out:
    nmlp_linear_destroy(linear);
    return st;
}

void nmlp_linear_destroy(nmlp_linear *linear) {
    if (!linear) return;
    nmlp_gemm_weight_fini(&linear->weight);
    nmlp_mem_free(linear->bias);
    nmlp_mem_free(linear);
}

bool nmlp_linear_owns_weight(const nmlp_linear *linear) { return linear->weight.strips != NULL; }

bool nmlp_linear_is_finite(const nmlp_linear *linear) { return linear->weight.finite; }

static nmlp_matmul matmul_of(const nmlp_linear *linear) {
    return (nmlp_matmul){.kernels = linear->kernels, .w = &linear->weight, .bias = linear->bias};
}

size_t nmlp_linear_workspace_bytes(const nmlp_linear *linear, int64_t s, int n_threads) {
    nmlp_matmul matmul = matmul_of(linear);
    return nmlp_matmul_workspace_bytes(&matmul, s, n_threads);
}

void nmlp_linear_run(const nmlp_linear *linear, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool) {
    nmlp_linear_run_all(&linear, &y, 1, x, s, NULL, workspace, pool);
}

void nmlp_linear_run_all(const nmlp_linear *const linears[], float *const ys[], int n, const float *x, int64_t s,
                         const nmlp_fused *fused, void *workspace, nmlp_pool *pool) {
    nmlp_matmul matmuls[NMLP_LINEARS_MAX];
    for (int i = 0; i < n; i++) matmuls[i] = matmul_of(linears[i]);
    nmlp_matmul_run(matmuls, ys, n, x, s, fused, workspace, pool);
}

nmlp_pool_ahead nmlp_linear_ahead(const nmlp_linear *const linears[], int n) {
    const nmlp_gemm_weight *weights[NMLP_LINEARS_MAX];
    for (int i = 0; i < n; i++) weights[i] = &linears[i]->weight;
    return nmlp_gemm_weights_ahead(weights, n);
}
