/* Helpers of the tests around tile programs. */
#ifndef NMLP_TESTS_NEURON_TESTING_H
#define NMLP_TESTS_NEURON_TESTING_H

#include "lib/testing.h"
#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

/* The built-in machine; fails the test when it cannot be read. */
nmlp_machine nmlp_test_machine(const char *name);
/* Parses a program; fails the test when it cannot. */
nmlp_program *nmlp_test_program(const char *text);
/* Builds a named kernel; r is ignored where the kernel has no rank; tiling like "m=8,n=2". */
nmlp_program *nmlp_test_kernel(const char *name, const nmlp_machine *m, nmlp_nc_dtype dtype, const int64_t shape[4],
                               const char *tiling);

#endif
