#define _DEFAULT_SOURCE /* setenv */
#include "cli/better_blas.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "linalg/linalg.h"

enum { ARGS_MAX = 256 };

/* OpenBLAS chose its kernels before main: the way to other ones is a new start with a word in the environment. */
void nmlp_better_blas_restart(int argc, char **argv) {
    const char *core = nmlp_linalg_better_core();
    char *again[ARGS_MAX];
    if (!core || argc + 2 > ARGS_MAX) return;
    if (getenv("OPENBLAS_CORETYPE")) {
        fprintf(stderr, "note: OpenBLAS runs its slow %s kernels; OPENBLAS_CORETYPE=%s suits this CPU\n",
                nmlp_linalg_core(), core);
        return;
    }
    if (setenv("OPENBLAS_CORETYPE", core, 1) != 0) { /* other kernels would give other bits */
        fprintf(stderr, "neuronmlp: out of memory before it began\n");
        exit(1);
    }
    again[0] = (char *)(uintptr_t)"neuronmlp";
    for (int i = 0; i < argc; i++) again[i + 1] = argv[i];
    again[argc + 1] = NULL;
    execv("/proc/self/exe", again);
    fprintf(stderr, "note: OpenBLAS runs its slow %s kernels; set OPENBLAS_CORETYPE=%s\n", nmlp_linalg_core(), core);
}
