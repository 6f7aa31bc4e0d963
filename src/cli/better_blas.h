/* For commands that live on OpenBLAS. */
#ifndef NMLP_CLI_BETTER_BLAS_H
#define NMLP_CLI_BETTER_BLAS_H

/* Starts the program again, with the words of the command (argv[0] its name), where OpenBLAS chose slow kernels for
 * this CPU; returns where that is not needed or not possible, then with a note. */
void nmlp_better_blas_restart(int argc, char **argv);

#endif
