/* Factorised MLPs of which every factor is shared by processes, on the CPU: each has rows of the thin factors too, so
 * nothing is read twice, but rows of ranks travel between the factors. Three waits an MLP: the products of the v of
 * gate and up are gathered, those of down's v summed, those of its u gathered. */
#ifndef NMLP_ENGINE_SPLIT_MLP_CPU_H
#define NMLP_ENGINE_SPLIT_MLP_CPU_H

#include "engine/weights_cpu.h"

/* Room for S rows. */
typedef struct nmlp_cpu_split_room {
    float *message; /* [S, columns gathered at once], block by block of each process */
    float *thin[2]; /* [S,r] of gate and up; the first then of down */
    float *gate;    /* [S,I/P] */
    float *up;
    int64_t *first; /* [processes+1] */
    void *workspace;
} nmlp_cpu_split_room;

/* Columns that the largest layer needs of each buffer; 0: no layer is shared so. */
typedef struct nmlp_cpu_split_columns {
    int64_t message, thin[2], inner;
} nmlp_cpu_split_columns;

nmlp_cpu_split_columns nmlp_cpu_split_measure(const nmlp_cpu_weights *weights);
/* Of the workspace, for `s` rows. */
size_t nmlp_cpu_split_workspace_bytes(const nmlp_cpu_split_mlp *mlp, int64_t s, int n_threads);

/* y [S,H] = the MLP of rows x [S,H], which `norm` norms before; the same in every process. */
nmlp_status nmlp_cpu_split_run(const nmlp_cpu_split_room *room, const nmlp_cpu_weights *weights,
                               const nmlp_cpu_split_mlp *mlp, float *y, const float *x, int64_t s,
                               const nmlp_fused *norm, nmlp_err *err);

#endif
