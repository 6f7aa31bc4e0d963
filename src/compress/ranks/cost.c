#include "compress/ranks/cost.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"

static double params(const void *ctx, int64_t rows, int64_t cols, int64_t rank) {
    (void)ctx;
    return rank > 0 ? (double)(rank * (rows + cols)) : (double)(rows * cols);
}

nmlp_cost nmlp_cost_params(void) { return (nmlp_cost){.matrix = params, .unit = "parameters"}; }

static double time_us(const void *ctx, int64_t rows, int64_t cols, int64_t rank) {
    const nmlp_cost_line *line = ctx;
    double start = rank > 0 ? line->start_lowrank_us : line->start_dense_us;
    if (line->start_elems > 0) start *= (double)(rows * cols) / line->start_elems;
    return start + line->us_per_param * params(NULL, rows, cols, rank);
}

nmlp_cost nmlp_cost_time(const nmlp_cost_line *line) {
    return (nmlp_cost){.matrix = time_us, .ctx = line, .unit = "us"};
}

enum { REPEATS = 15 };

/* Best of several runs of W [rows, cols] on one token. */
static nmlp_status time_product(double *us, const nmlp_kernels *kernels, int64_t rows, int64_t cols, nmlp_pool *pool,
                                nmlp_err *err) {
    nmlp_linear *linear = NULL;
    nmlp_status st = NMLP_E_NOMEM;
    void *workspace = NULL;
    nmlp_view none = {0};
    uint16_t *weight = nmlp_mem_new((size_t)(rows * cols), sizeof *weight, err);
    float *x = nmlp_mem_new((size_t)cols, sizeof *x, err);
    float *y = nmlp_mem_new((size_t)rows, sizeof *y, err);
    if (!weight || !x || !y) goto out;
    nmlp_view view = nmlp_view_2d(weight, NMLP_DTYPE_BF16, rows, cols);
    NMLP_TRY(nmlp_linear_create(&linear, kernels, &view, &none, pool, err));
    workspace = nmlp_mem_new(nmlp_linear_workspace_bytes(linear, 1, nmlp_pool_threads(pool)), 1, err);
    if (!workspace) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (int i = 0; i < REPEATS; i++) {
        double begin = nmlp_clock_seconds();
        nmlp_linear_run(linear, y, x, 1, workspace, pool);
        double took = 1e6 * (nmlp_clock_seconds() - begin);
        if (i == 0 || took < *us) *us = took;
    }
out:
    nmlp_linear_destroy(linear);
    nmlp_mem_free(workspace);
    nmlp_mem_free(weight);
    nmlp_mem_free(x);
    nmlp_mem_free(y);
    return st;
}

nmlp_status nmlp_cost_measure_cpu(nmlp_cost_line *line, const char *isa, int64_t rows, int64_t cols, nmlp_pool *pool,
                                  nmlp_err *err) {
    const nmlp_kernels *kernels;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    double full = 0;
    double half = 0;
    int64_t half_rows = rows > 1 ? rows / 2 : 1;
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select(&kernels, cpu, isa, err));
    NMLP_RETURN_IF_FAILED(time_product(&full, kernels, rows, cols, pool, err));
    NMLP_RETURN_IF_FAILED(time_product(&half, kernels, half_rows, cols, pool, err));
    double slope = (full - half) / (double)((rows - half_rows) * cols);
    if (!(slope > 0)) slope = full / (double)(rows * cols); /* too small to tell apart: all of it is per parameter */
    double start = full - slope * (double)(rows * cols);
    if (start < 0) start = 0;
    *line = (nmlp_cost_line){.start_dense_us = start, .start_lowrank_us = 2 * start, .us_per_param = slope};
    return NMLP_OK;
}
