/* One Trainium kernel from a request to a program: machine, kernel, tiling, dtype, plan, tile program. Every door
 * (plan, simulate, emit, predict, bench, report, the public API) builds its kernels here. */
#ifndef NMLP_SERVICE_KERNEL_H
#define NMLP_SERVICE_KERNEL_H

#include "trainium/plan/planner.h"

typedef struct nmlp_kernel_problem {
    const char *target;          /* trn1, trn2, trn3 or a machine file; not used where `machine` is given */
    const nmlp_machine *machine; /* NULL: opened by `target` */
    const char *kernel;          /* name in the kernel table */
    nmlp_kernel_shape shape;
    nmlp_mlp_ranks ranks;   /* of an MLP whose projections differ; then shape.r is 0 */
    nmlp_mlp_fusion fuse;   /* of an MLP: norm before, residual after */
    bool fp8;               /* of an MLP: weights in fp8 with scales */
    const char *tiling;     /* "key=value,…"; NULL: none */
    const char *dtype;      /* bf16, fp16 or fp32; NULL: bf16 */
    const char *plan_cache; /* file that remembers plans; NULL: none */
} nmlp_kernel_problem;

typedef struct nmlp_built_kernel {
    nmlp_machine machine;
    const nmlp_kernel *kernel;
    nmlp_tiling given; /* as asked for */
    nmlp_nc_dtype dtype;
    nmlp_kernel_shape shape;
    nmlp_mlp_ranks ranks;
    nmlp_mlp_fusion fuse;
    bool fp8;
    bool planned; /* one of ours, and the tiling did not fix the rows of a strip */
    nmlp_kernel_plan plan;
    nmlp_program *program;
} nmlp_built_kernel;

/* Ours (xw, xuv, mlp) are planned, unless the tiling says how many rows a strip has: then it is taken as it is. Errors
 * name the field at fault (target, kernel, tiling, dtype, ranks). Release with nmlp_built_kernel_fini, also after a
 * failure. */
nmlp_status nmlp_kernel_build_problem(nmlp_built_kernel *out, const nmlp_kernel_problem *problem, nmlp_err *err);
/* The same without the program: the plan of one of our kernels. NMLP_E_ARG for any other. */
nmlp_status nmlp_kernel_plan_problem(nmlp_built_kernel *out, const nmlp_kernel_problem *problem, nmlp_err *err);
void nmlp_built_kernel_fini(nmlp_built_kernel *kernel);
/* Builds (planned where ours), simulates, releases. */
nmlp_status nmlp_kernel_cost_problem(nmlp_kernel_cost *cost, const nmlp_kernel_problem *problem, nmlp_err *err);

/* A planner that simulates on `machine`, which must outlive it. `cache_path` may be NULL. */
nmlp_planner nmlp_kernel_planner(const nmlp_machine *machine, const char *cache_path);
/* Simulated cost of a program: an nmlp_kernel_cost_fn; `ctx` is not used. */
nmlp_status nmlp_kernel_simulate_cost(void *ctx, const nmlp_program *program, const nmlp_machine *machine,
                                      nmlp_kernel_cost *out, nmlp_err *err);

#endif
