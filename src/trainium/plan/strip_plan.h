/* Which strip plans there are for a shape on a machine, and how good each looks before anything is simulated.
 *
 * The analytic estimate is the largest of what the engines need (tensor at the sustained rate, DMA at the rate of its
 * runs, vector, scalar) plus the part of the first load and the last store that nothing hides. It serves to order and
 * prune candidates; the planner simulates those that are left. */
#ifndef NMLP_TRAINIUM_PLAN_STRIP_PLAN_H
#define NMLP_TRAINIUM_PLAN_STRIP_PLAN_H

#include "trainium/plan/kernel_table.h"
#include "trainium/plan/strip.h"

typedef enum nmlp_plan_op { NMLP_PLAN_XW, NMLP_PLAN_XUV, NMLP_PLAN_MLP } nmlp_plan_op;

/* "xw", "xuv", "mlp": also the name of our kernel for it. */
const char *nmlp_plan_op_name(nmlp_plan_op op);
bool nmlp_plan_op_parse(const char *name, nmlp_plan_op *op);

/* What an op on a shape needs at least, whatever the tiling, in ns. */
typedef struct nmlp_bounds {
    double tensor_ns; /* at the sustained rate */
    double dma_ns;    /* inputs, outputs and weights once, at the rate of long runs */
    double vector_ns; /* every result out of PSUM once, shared with ... */
    double scalar_ns; /* ... the scalar engine where it applies the activation */
    double largest_ns;
    const char *binding; /* name of the largest */
    double floor_ns;     /* the largest with the latencies before and after it that no tiling can hide */
} nmlp_bounds;

nmlp_bounds nmlp_bounds_of(nmlp_plan_op op, const nmlp_kernel_request *rq);

typedef struct nmlp_strip_estimate {
    double tensor_ns, dma_ns, vector_ns, scalar_ns;
    double first_tensor_ns, first_dma_ns; /* of the products that read x, which x may hold up */
    double staged_ns;                     /* sum over the other products of the larger of tensor and DMA */
    double total_ns;
    double hbm_bytes;
    int64_t held_bytes; /* of weights that have room of their own, per partition */
    int64_t sbuf_bytes; /* per partition */
} nmlp_strip_estimate;

nmlp_strip_estimate nmlp_strip_estimate_of(nmlp_plan_op op, const nmlp_kernel_request *rq, const nmlp_strip_plan *plan);

/* The candidates that fit the machine, best estimate first; free with nmlp_mem_free. Never empty on success. `tiling`
 * of the request fixes what it names. */
nmlp_status nmlp_strip_candidates(nmlp_strip_plan **out, size_t *n, size_t *n_tried, nmlp_plan_op op,
                                  const nmlp_kernel_request *rq, nmlp_err *err);
/* The best of them: what a kernel uses without a planner. */
nmlp_status nmlp_strip_plan_of(nmlp_strip_plan *plan, nmlp_plan_op op, const nmlp_kernel_request *rq, nmlp_err *err);
/* Builds and finishes the program of a plan that was found for this request. */
nmlp_status nmlp_strip_plan_build(nmlp_program **out, nmlp_plan_op op, const nmlp_kernel_request *rq,
                                  const nmlp_strip_plan *plan, nmlp_err *err);
/* As named numbers, the form a request's tiling has. */
nmlp_status nmlp_strip_plan_tiling(nmlp_tiling *tiling, const nmlp_strip_plan *plan, nmlp_err *err);

#define NMLP_STRIP_KEYS "rows,x,xc,xl,ac,cols,turn,wkb,ring,on,tail,taper,xcopies,oring,okb,ocopies,shared"

#endif
