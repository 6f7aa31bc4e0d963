#include "trainium/sim/cost.h"

#include <math.h>

static nmlp_nc_dtype dtype_of(const nmlp_cost_ctx *c, const nmlp_box *box) {
    return c->program->buffers[box->buffer].dtype;
}
static bool in_psum(const nmlp_cost_ctx *c, const nmlp_box *box) {
    return c->program->buffers[box->buffer].space == NMLP_SPACE_PSUM;
}
static bool is_16bit(const nmlp_cost_ctx *c, const nmlp_box *box) { return dtype_of(c, box) != NMLP_NC_FP32; }

static double passes(const nmlp_cost_ctx *c, const nmlp_step *step) {
    if (dtype_of(c, &step->a) != NMLP_NC_FP32) return 1.0;
    bool fast = step->instr->op == NMLP_OP_TRANSPOSE && c->machine->generation >= 3; /* transposes in fp32 take half */
    return fast ? c->machine->tensor_fp32_passes / 2 : c->machine->tensor_fp32_passes;
}

double nmlp_cost_moving(const nmlp_cost_ctx *c, const nmlp_step *step) {
    const nmlp_machine *m = c->machine;
    double columns = step->instr->op == NMLP_OP_TRANSPOSE ? (double)step->a.parts : (double)nmlp_box_free(&step->b);
    double cycles = fmax(columns, m->tensor_min_cycles) * passes(c, step);
    return cycles / m->tensor_clock_ghz / m->tensor_sustained;
}

double nmlp_cost_load_stationary(const nmlp_cost_ctx *c, const nmlp_step *step) {
    const nmlp_machine *m = c->machine;
    return (double)nmlp_box_free(&step->a) / m->tensor_load_speedup * passes(c, step) / m->tensor_clock_ghz;
}

/* Cycles per element on VectorE. */
static double vector_cycles(const nmlp_cost_ctx *c, const nmlp_step *step) {
    bool fast = c->machine->vector_fast_modes > 0;
    bool scalar = step->instr->op == NMLP_OP_TENSOR_SCALAR; /* whose b is one number, free of charge */
    bool narrow = is_16bit(c, &step->dst) && (step->a.buffer < 0 || is_16bit(c, &step->a)) &&
                  (scalar || step->b.buffer < 0 || is_16bit(c, &step->b));
    bool psum = in_psum(c, &step->dst) || (step->a.buffer >= 0 && in_psum(c, &step->a)) ||
                (step->b.buffer >= 0 && in_psum(c, &step->b));
    switch (step->instr->op) {
    case NMLP_OP_MEMSET: return narrow && step->instr->value == 0.0 ? 0.5 : 1.0;
    case NMLP_OP_TENSOR_SCALAR:
    case NMLP_OP_COPY: return !fast || !narrow ? 1.0 : psum ? 0.5 : 0.25;
    case NMLP_OP_TENSOR_TENSOR:
        if (psum) return 1.0;
        if (narrow) return fast ? 0.5 : 1.0;
        return 2.0;
    default: return 1.0;
    }
}

double nmlp_cost_elementwise(const nmlp_cost_ctx *c, const nmlp_step *step) {
    const nmlp_machine *m = c->machine;
    double n = (double)nmlp_box_free(&step->dst);
    switch (step->instr->engine) {
    case NMLP_ENGINE_VECTOR:
        return fmax(m->vector_min_cycles, n * vector_cycles(c, step)) / m->vector_clock_ghz + m->vector_overhead_ns;
    case NMLP_ENGINE_SCALAR: {
        bool copy = step->instr->op == NMLP_OP_COPY && m->scalar_fast_modes > 0 && is_16bit(c, &step->dst) &&
                    is_16bit(c, &step->a);
        return fmax(m->scalar_min_cycles, copy ? n / 2 : n) / m->scalar_clock_ghz + m->scalar_overhead_ns;
    }
    default: return n / m->gpsimd_clock_ghz + m->gpsimd_overhead_ns;
    }
}

/* Rows below the recommended size run at the small rate, but never cost more than a row of that size. */
static double row_ns(const nmlp_machine *m, double bytes) {
    if (bytes >= m->dma_small_row_bytes) return m->dma_row_ns + bytes / m->dma_bytes_per_ns;
    double small = fmax(m->dma_row_ns, bytes / m->dma_small_bytes_per_ns);
    return fmin(small, m->dma_row_ns + m->dma_small_row_bytes / m->dma_bytes_per_ns);
}

nmlp_dma_cost nmlp_cost_dma(const nmlp_machine *m, int64_t parts, int64_t runs, double row_bytes, bool transpose) {
    double per = m->dma_partitions_per_engine;
    nmlp_dma_cost cost;
    cost.engines = fmin(m->dma_engines, ceil((double)parts / per));
    double rows = ceil((double)parts / cost.engines) * (double)runs;
    cost.engine_ns = rows * row_ns(m, row_bytes) * (transpose ? m->dma_transpose_slowdown : 1.0);
    cost.bytes = (double)parts * (double)runs * row_bytes;
    return cost;
}
