/* What a matrix costs as a function of its rank: parameters, or time on a machine. */
#ifndef NMLP_COMPRESS_RANKS_COST_H
#define NMLP_COMPRESS_RANKS_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "kernels/kernels.h"

typedef struct nmlp_cost {
    /* Cost of W [rows, cols] at a rank, 0: dense. A shared basis is one matrix of twice the rows. */
    double (*matrix)(const void *ctx, int64_t rows, int64_t cols, int64_t rank);
    const void *ctx;
    const char *unit; /* "parameters", "us" */
} nmlp_cost;

nmlp_cost nmlp_cost_params(void);

/* Time as a straight line: t(rank) = start + per_param * rank (rows+cols), dense the same with its own start. */
typedef struct nmlp_cost_line {
    double start_dense_us;   /* of one product */
    double start_lowrank_us; /* of the two products of a factorised matrix */
    double us_per_param;
    double start_elems; /* above 0: the starts belong to so many elements of W, and grow with it, as where one kernel
                         * computes all matrices; 0: to each product */
} nmlp_cost_line;

nmlp_cost nmlp_cost_time(const nmlp_cost_line *line);

/* One product of W [rows,cols] with `tokens` inputs on this CPU. */
typedef struct nmlp_cost_product {
    const nmlp_kernels *kernels;
    nmlp_dtype dtype; /* BF16, or quantised */
    int group;        /* Q4 */
    bool zeros;       /* Q4: with zero points */
    int64_t rows, cols;
    int64_t tokens;
    int copies; /* of the weights, run in turns: more bytes than the caches hold are read from memory */
} nmlp_cost_product;

/* Best of some runs. */
nmlp_status nmlp_cost_time_product(double *us, const nmlp_cost_product *product, nmlp_pool *pool, nmlp_err *err);

/* Decode on this CPU: times products of the model's shapes with one token and fits the line. Not reproducible to the
 * last digit, as clocks are not. */
nmlp_status nmlp_cost_measure_cpu(nmlp_cost_line *line, const char *isa, int64_t rows, int64_t cols, nmlp_pool *pool,
                                  nmlp_err *err);

#endif
