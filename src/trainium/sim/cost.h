/* What an instruction costs on its engine, from the machine's numbers alone. All times in ns. */
#ifndef NMLP_TRAINIUM_SIM_COST_H
#define NMLP_TRAINIUM_SIM_COST_H

#include "trainium/neuron/machine.h"
#include "trainium/neuron/walk.h"

typedef struct nmlp_cost_ctx {
    const nmlp_program *program;
    const nmlp_machine *machine;
} nmlp_cost_ctx;

/* TensorE: interval of the moving pass, and of loading the stationary operand, without warm-up. */
double nmlp_cost_moving(const nmlp_cost_ctx *c, const nmlp_step *step);
double nmlp_cost_load_stationary(const nmlp_cost_ctx *c, const nmlp_step *step);
/* VectorE, ScalarE, GpSimdE: time the engine is taken. */
double nmlp_cost_elementwise(const nmlp_cost_ctx *c, const nmlp_step *step);

/* One DMA of `tiles` runs of `row_bytes` on each of `parts` partitions. */
typedef struct nmlp_dma_cost {
    double engines;   /* how many take part */
    double engine_ns; /* time of each */
    double bytes;
} nmlp_dma_cost;
nmlp_dma_cost nmlp_cost_dma(const nmlp_machine *m, int64_t parts, int64_t runs, double row_bytes, bool transpose);

#endif
