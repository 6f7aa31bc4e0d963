/* Parts of the paper's kernels that more than one of them uses. */
#ifndef NMLP_TRAINIUM_PLAN_PAPER_H
#define NMLP_TRAINIUM_PLAN_PAPER_H

#include "trainium/plan/kernel_table.h"

typedef struct nmlp_paper_names {
    int x;   /* a tensor that exists already, or -1: declare x or xT */
    int acc; /* accumulators that exist already, or -1 */
    const char *u, *v;
} nmlp_paper_names;

/* Tiles per block: m of H, r of the rank, k of S, n of O. */
typedef struct nmlp_paper_blocks {
    int64_t s_from; /* rows from which a line of a table holds */
    int64_t m, r, k, n;
} nmlp_paper_blocks;

/* The earlier tiling, or the line of the reference's later table (most rows first, the last from 0) by number of rows;
 * --tiling table=1|2 chooses, m, r, k, n override. */
nmlp_paper_blocks nmlp_paper_choose_blocks(const nmlp_kernel_request *rq, nmlp_paper_blocks earlier,
                                           const nmlp_paper_blocks *later, int default_table);

/* Emits y = (x u) v into a program: declares weights, output and buffers, then the loops. */
void nmlp_paper_chain(nmlp_program *p, const nmlp_kernel_request *rq, bool x_transposed, const nmlp_paper_names *names);
void nmlp_paper_params(nmlp_program *p, const nmlp_kernel_shape *s);

#endif
