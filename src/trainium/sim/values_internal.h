/* Shared by the files of the value simulator. */
#ifndef NMLP_TRAINIUM_SIM_VALUES_INTERNAL_H
#define NMLP_TRAINIUM_SIM_VALUES_INTERNAL_H

#include "trainium/neuron/walk.h"
#include "trainium/sim/matmul.h"
#include "trainium/sim/values.h"

/* The marked NaN: one pattern in every dtype, equal after widening. */
#define NMLP_POISON_F32 0x7fd50000u
#define NMLP_POISON_BF16 0x7fd5u
#define NMLP_POISON_F16 0x7ea8u

enum { NMLP_MOVING_LIMIT = 8192, NMLP_PENDING_MAX = 16 };

/* Products into one PSUM tile that wait to be computed together: threads then meet once per tile, not once per product.
 * Nothing else can see the difference, since every other instruction computes them first. */
typedef struct nmlp_pending {
    nmlp_sim_matmul matmuls[NMLP_PENDING_MAX];
    nmlp_step steps[NMLP_PENDING_MAX];
    int count;
    int64_t n; /* columns */
} nmlp_pending;

struct nmlp_values {
    const nmlp_program *p;
    nmlp_pool *pool;
    nmlp_sim_matmul_fn *matmul_fn;
    void **tensors;
    float **buffers; /* [partitions][free elements], widened to fp32, holding values of the buffer's dtype */
    float *scratch;  /* per thread */
    float *packed;   /* operands whose free elements are not one run */
    float *row[2];   /* one partition of an operand */
    nmlp_pending pending;
};

/* Computes the products that wait. */
nmlp_status nmlp_values_flush(nmlp_values *v, nmlp_err *err);
/* Executes one instruction other than alloc; ranges are already checked. */
nmlp_status nmlp_values_step(nmlp_values *v, const nmlp_step *step, nmlp_err *err);
nmlp_status nmlp_values_refuse(const nmlp_values *v, const nmlp_step *step, nmlp_status code, const char *what,
                               nmlp_err *err);

#endif
