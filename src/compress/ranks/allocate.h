/* Which rank each matrix gets: exact multiple-choice knapsack over the options of every group. Pure arithmetic, no
 * model. */
#ifndef NMLP_COMPRESS_RANKS_ALLOCATE_H
#define NMLP_COMPRESS_RANKS_ALLOCATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "compress/ranks/cost.h"
#include "compress/factor/factor_file.h"

/* One way to store a group of matrices. */
typedef struct nmlp_rank_option {
    double cost; /* parameters, or microseconds */
    double loss;
    int64_t rank[NMLP_MODULE_MATRICES_MAX - 1]; /* of the matrices of one input, or of the last alone; 0: dense */
    bool joint;
    int format[2]; /* of gate and up, or down,  matrices where formats are chosen too, else 0 */
} nmlp_rank_option;

typedef struct nmlp_rank_group {
    nmlp_rank_option *options;
    int64_t n_options;
} nmlp_rank_group;

/* One option of each group with the least total loss among those whose total cost is at most `budget`. Costs are
 * integers in units of `unit` after rounding up; with a unit that divides them all the result is exact. Fails with
 * NMLP_E_LIMIT when even the cheapest do not fit. */
nmlp_status nmlp_knapsack_solve(const nmlp_rank_group *groups, int64_t n_groups, double budget, double unit,
                                int64_t *chosen, nmlp_err *err);

/* Sorts options by cost and drops every one that costs at least as much as one that loses no more; returns how many
 * are left. */
int64_t nmlp_rank_options_prune(nmlp_rank_option *options, int64_t n);

/* Nearest multiple of `tile` to the rank that keeps 1-ratio of the parameters: at least one tile, never above
 * break-even. 0 when no multiple of the tile saves parameters. */
int64_t nmlp_rank_uniform(int64_t rows, int64_t cols, double ratio, int64_t tile);

/* How groups are made from the error curves of all blocks. */
typedef struct nmlp_allocation {
    const nmlp_factor_file *factor_files; /* [n_blocks] */
    const nmlp_block *blocks;             /* [n_blocks] */
    int64_t n_blocks;
    int64_t tile;
    const nmlp_cost *cost;
    double budget;                   /* in the unit of `cost` */
    bool separate;                   /* matrices of one input may have a v each */
    bool joint;                      /* or share one */
    bool dense;                      /* a matrix may stay as it is */
    double floor;                    /* least rank, as a share of the uniform one */
    const nmlp_layer_ranks *uniform; /* [n_blocks]; NULL with floor 0 */
    double cap;                      /* largest relative error of a matrix; infinite: none */
    const double *s_first;           /* [n_blocks] sensitivity of the first matrices: what a unit of loss costs */
    const double *s_last;            /* [n_blocks] */
    double power;                    /* loss counts as s * L^power */
} nmlp_allocation;

nmlp_status nmlp_allocate(const nmlp_allocation *a, nmlp_layer_ranks *ranks, nmlp_err *err);

#endif
