/* Runs through the instructions of a tile program in order, without unrolling it: memory does not grow with the trip
 * counts. Instructions that an edge leaves nothing to do (a size of 0) are passed over. */
#ifndef NMLP_TRAINIUM_NEURON_WALK_H
#define NMLP_TRAINIUM_NEURON_WALK_H

#include "trainium/neuron/program.h"

/* A buffer reference with its numbers put in. Ranges are as written: the walk checks nothing. */
typedef struct nmlp_box {
    int buffer; /* -1: absent */
    int n_dims;
    int64_t part, parts;
    int64_t start[NMLP_FREE_DIMS_MAX], count[NMLP_FREE_DIMS_MAX];
} nmlp_box;

typedef struct nmlp_step {
    const nmlp_instr *instr;
    int instr_index;
    nmlp_box dst, a, b;
    int64_t row, rows, col, cols, tiles; /* DMA: the HBM side */
    bool accumulate;                     /* nc_matmul adds */
} nmlp_step;

typedef struct nmlp_walk {
    const nmlp_program *program;
    int64_t *values; /* by loop variable */
    int64_t *trips;
    int stack[NMLP_LOOP_DEPTH_MAX]; /* open LOOP and IF nodes */
    int depth;
    int at;
} nmlp_walk;

nmlp_status nmlp_walk_init(nmlp_walk *walk, const nmlp_program *program, nmlp_err *err);
void nmlp_walk_fini(nmlp_walk *walk);
/* False at the end. */
bool nmlp_walk_next(nmlp_walk *walk, nmlp_step *step);

/* Elements per partition. */
static inline int64_t nmlp_box_free(const nmlp_box *box) {
    int64_t n = 1;
    for (int d = 0; d < box->n_dims; d++) n *= box->count[d];
    return n;
}

#endif
