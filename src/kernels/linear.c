/* Y [S,N] = X [S,K] W^T + b with the weight used where it lies. */
#include <string.h>

#include "base/mem.h"
#include "kernels/kernels_int.h"

enum { LANES = 16, ROWS_PER_TASK = 16 };

struct nmlp_linear {
    nmlp_view weight; /* [N,K] */
    float *bias;      /* [N] or NULL */
};

static nmlp_status copy_bias(nmlp_linear *linear, const nmlp_view *bias, nmlp_err *err) {
    int64_t n = linear->weight.shape[0];
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
    (void)kernels;
    (void)pool;
    *out = NULL;
    if (!weight->data || weight->n_dims != 2)
        return nmlp_fail(err, NMLP_E_SHAPE, "a weight of %d dimensions, expected [N,K]", weight->n_dims);
    nmlp_linear *linear = nmlp_mem_new(1, sizeof *linear, err);
    if (!linear) return NMLP_E_NOMEM;
    linear->weight = *weight;
    nmlp_status st = copy_bias(linear, bias, err);
    if (st != NMLP_OK) {
        nmlp_linear_destroy(linear);
        return st;
    }
    *out = linear;
    return NMLP_OK;
}

void nmlp_linear_destroy(nmlp_linear *linear) {
    if (!linear) return;
    nmlp_mem_free(linear->bias);
    nmlp_mem_free(linear);
}

bool nmlp_linear_owns_weight(const nmlp_linear *linear) {
    (void)linear;
    return false;
}

static size_t row_stride(const nmlp_linear *linear) { return nmlp_round_up((size_t)linear->weight.shape[1], LANES); }

size_t nmlp_linear_workspace_bytes(const nmlp_linear *linear, int64_t s, int n_threads) {
    (void)s;
    return row_stride(linear) * sizeof(float) * (size_t)n_threads;
}

static float dot(const float *a, const float *b, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += a[i + j] * b[i + j];
    float sum = 0.0f;
    for (; i < n; i++) sum += a[i] * b[i];
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

struct run {
    const nmlp_linear *linear;
    float *y;
    const float *x;
    int64_t s;
    float *rows; /* one f32 weight row per thread */
};

static void run_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct run *run = arg;
    const nmlp_view *weight = &run->linear->weight;
    int64_t n_out = weight->shape[0];
    int64_t n_in = weight->shape[1];
    float *scratch = run->rows + row_stride(run->linear) * (size_t)thread;
    for (int64_t n = begin; n < end; n++) {
        const float *row = nmlp_view_row(weight, n);
        if (weight->dtype != NMLP_DTYPE_F32) {
            nmlp_to_f32(scratch, row, weight->dtype, (size_t)n_in);
            row = scratch;
        }
        float bias = run->linear->bias ? run->linear->bias[n] : 0.0f;
        for (int64_t s = 0; s < run->s; s++) run->y[s * n_out + n] = dot(run->x + s * n_in, row, n_in) + bias;
    }
}

void nmlp_linear_run(const nmlp_linear *linear, float *y, const float *x, int64_t s, void *workspace,
                     nmlp_pool *pool) {
    struct run run = {.linear = linear, .y = y, .x = x, .s = s, .rows = workspace};
    nmlp_pool_for(pool, linear->weight.shape[0], ROWS_PER_TASK, run_rows, &run);
}
