/* One program for several physical cores that run it together, each on its part of the intermediate width.
 *
 * The given program is one core's share. The result has a loop "core" around it: tensors named in `split` hold the
 * cores' packed weights side by side, outputs one below the other. In the printed kernel the loop is not a loop: each
 * core takes the iteration of its program id. A host adds the cores' outputs. */
#ifndef NMLP_TRAINIUM_NEURON_PROGRAM_CORES_H
#define NMLP_TRAINIUM_NEURON_PROGRAM_CORES_H

#include "trainium/neuron/program.h"

/* Of the parameter that says how many cores a program is for. */
#define NMLP_PROGRAM_CORES_PARAM "cores"

/* `split` by tensor: true where each core has columns of its own. */
nmlp_status nmlp_program_over_cores(nmlp_program **out, const nmlp_program *program, int64_t cores, const bool *split,
                                    nmlp_err *err);
/* 1 for an ordinary program. */
int64_t nmlp_program_cores(const nmlp_program *program);

#endif
