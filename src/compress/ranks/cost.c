#include "compress/ranks/cost.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tensor/quant.h"

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
static const double seconds_max = 0.1; /* long products are repeated less */

static nmlp_status new_linear(nmlp_linear **linear, const nmlp_cost_product *p, nmlp_arena *arena, nmlp_pool *pool,
                              nmlp_err *err) {
    nmlp_view none = {0}, view = nmlp_view_2d(NULL, p->dtype, p->rows, p->cols);
    view.group = p->group;
    view.data = nmlp_arena_new(arena, nmlp_view_bytes(&view), 1, err);
    view.scales = nmlp_arena_new(arena, nmlp_quant_scale_bytes(&view) + 1, 1, err);
    if (!view.data || !view.scales) return NMLP_E_NOMEM;
    if (p->zeros || nmlp_quant_has_multipliers(p->dtype)) {
        view.per_group = nmlp_arena_new(arena, (size_t)(p->rows * nmlp_quant_groups(&view)), 1, err);
        if (!view.per_group) return NMLP_E_NOMEM;
    }
    return nmlp_linear_create(linear, p->kernels, &view, &none, pool, err);
}

nmlp_status nmlp_cost_time_product(double *us, const nmlp_cost_product *p, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_arena arena;
    double begun = nmlp_clock_seconds();
    nmlp_arena_init(&arena);
    nmlp_linear **linears = nmlp_arena_new(&arena, (size_t)p->copies, sizeof(nmlp_linear *), err);
    float *x = nmlp_arena_new(&arena, (size_t)(p->tokens * p->cols), sizeof *x, err);
    float *y = nmlp_arena_new(&arena, (size_t)(p->tokens * p->rows), sizeof *y, err);
    if (!linears || !x || !y) NMLP_TRY(NMLP_E_NOMEM);
    for (int i = 0; i < p->copies; i++) NMLP_TRY(new_linear(&linears[i], p, &arena, pool, err));
    for (int64_t i = 0; i < p->tokens * p->cols; i++) x[i] = 1;
    size_t bytes = nmlp_linear_workspace_bytes(linears[0], p->tokens, nmlp_pool_threads(pool));
    void *workspace = nmlp_arena_new(&arena, bytes + 1, 1, err);
    if (!workspace) NMLP_TRY(NMLP_E_NOMEM);
    for (int i = 0; i < REPEATS && (i < 3 || nmlp_clock_seconds() - begun < seconds_max); i++) {
        double begin = nmlp_clock_seconds();
        for (int k = 0; k < p->copies; k++) nmlp_linear_run(linears[k], y, x, p->tokens, workspace, pool);
        double took = 1e6 * (nmlp_clock_seconds() - begin) / p->copies;
        if (i == 0 || took < *us) *us = took;
    }
out:
    for (int i = 0; linears && i < p->copies; i++) nmlp_linear_destroy(linears[i]);
    nmlp_arena_fini(&arena);
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
    nmlp_cost_product product = {
        .kernels = kernels, .dtype = NMLP_DTYPE_BF16, .rows = rows, .cols = cols, .tokens = 1, .copies = 1};
    NMLP_RETURN_IF_FAILED(nmlp_cost_time_product(&full, &product, pool, err));
    product.rows = half_rows;
    NMLP_RETURN_IF_FAILED(nmlp_cost_time_product(&half, &product, pool, err));
    double slope = (full - half) / (double)((rows - half_rows) * cols);
    if (!(slope > 0)) slope = full / (double)(rows * cols); /* too small to tell apart: all of it is per parameter */
    double start = full - slope * (double)(rows * cols);
    if (start < 0) start = 0;
    *line = (nmlp_cost_line){.start_dense_us = start, .start_lowrank_us = 2 * start, .us_per_param = slope};
    return NMLP_OK;
}
