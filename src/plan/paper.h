/* Parts of the paper's kernels that more than one of them uses. */
#ifndef NMLP_PLAN_PAPER_H
#define NMLP_PLAN_PAPER_H

#include "plan/kernel_table.h"

typedef struct nmlp_paper_names {
    int x;   /* a tensor that exists already, or -1: declare x or xT */
    int acc; /* accumulators that exist already, or -1 */
    const char *u, *v;
} nmlp_paper_names;

/* Emits y = (x u) v into a program: declares weights, output and buffers, then the loops. */
void nmlp_paper_chain(nmlp_program *p, const nmlp_kernel_request *rq, bool x_transposed, const nmlp_paper_names *names);
void nmlp_paper_params(nmlp_program *p, const nmlp_kernel_shape *s);

#endif
