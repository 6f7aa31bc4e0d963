/* Runs a tile program for its values: operands rounded to their dtype, products and sums in fp32, results rounded to
 * nearest even on every write, in program order. Copies, overlap and spills do not exist here, so time cannot change a
 * value.
 *
 * Fresh buffers, outputs and scratch tensors hold a marked NaN. An instruction that reads one is refused, as is an
 * access outside its buffer or tensor; both name the instruction. Activation functions are exact to fp32, where the
 * hardware has piecewise polynomials. */
#ifndef NMLP_TRAINIUM_SIM_VALUES_H
#define NMLP_TRAINIUM_SIM_VALUES_H

#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"
#include "trainium/neuron/program.h"
#include "tensor/dtype.h"

typedef struct nmlp_values nmlp_values;

/* Allocates HBM and the buffers. The program must outlive the values. */
nmlp_status nmlp_values_create(nmlp_values **out, const nmlp_program *program, nmlp_pool *pool, nmlp_err *err);
void nmlp_values_destroy(nmlp_values *values);
/* A tensor's storage in its own dtype, row-major; fill inputs and weights before the run. */
void *nmlp_values_tensor(nmlp_values *values, int tensor);
/* Runs the program once; then checks that every element of every output was written. */
nmlp_status nmlp_values_run(nmlp_values *values, const nmlp_progress *progress, nmlp_err *err);

nmlp_dtype nmlp_nc_dtype_to_tensor(nmlp_nc_dtype dtype);

#endif
