/* Analytic costs shared by the estimate of a plan and the bounds of a problem. Times in ns. */
#ifndef NMLP_TRAINIUM_PLAN_STRIP_COST_H
#define NMLP_TRAINIUM_PLAN_STRIP_COST_H

#include "trainium/plan/strip_plan.h"

/* The products of an op: K inputs, N outputs, and how the result lies. */
typedef enum nmlp_strip_product_kind {
    NMLP_PRODUCT_TRANSPOSED,
    NMLP_PRODUCT_GATED,
    NMLP_PRODUCT_ROWS
} nmlp_strip_product_kind;
typedef struct nmlp_strip_product {
    nmlp_strip_product_kind kind;
    int64_t k, n;
    int64_t planes;
    int64_t k_second;                 /* K of the second plane where it is another; 0: the same */
    bool k_is_rank, k_second_is_rank; /* that K is a rank, cut evenly */
    bool from_x, from_act;            /* its input is cut by x_chunk, by act_chunk */
} nmlp_strip_product;

enum { NMLP_STRIP_PRODUCTS_MAX = 5 };
int nmlp_strip_products_of(nmlp_strip_product products[NMLP_STRIP_PRODUCTS_MAX], nmlp_plan_op op,
                           const nmlp_kernel_request *rq);
/* Multiplications per row: also the number of weights. */
double nmlp_strip_product_work(const nmlp_strip_product *product);

/* DMA engine time of `rows` runs of `bytes` each, spread over all engines. */
double nmlp_dma_rows_ns(const nmlp_machine *m, double rows, double bytes);
/* Largest rate of DMA into or out of the core. */
double nmlp_dma_peak_bytes_per_ns(const nmlp_machine *m);

#endif
