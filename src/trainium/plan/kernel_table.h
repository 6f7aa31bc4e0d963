/* Kernels by name: each builds a tile program from a shape, a tiling and a machine.
 *
 * Shapes: S rows (tokens), H inputs, R rank, O outputs. xw-* computes y[S,O] = x w with x given transposed as xT[H,S];
 * the chains compute y = (x u) v with u[H,R], v[R,O]; the MLPs y = (silu(x Wg) * (x Wu)) Wd with O features in between,
 * where R is the rank of all three W (0: dense), or `ranks` has one for each.
 * Machine constants (partitions, moving size, banks) come from the machine, never from the code. */
#ifndef NMLP_TRAINIUM_PLAN_KERNEL_TABLE_H
#define NMLP_TRAINIUM_PLAN_KERNEL_TABLE_H

#include "base/str.h"
#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

enum { NMLP_TILING_MAX = 20, NMLP_TILING_KEY_MAX = 16 };

/* Ranks of an MLP's projections; 0: dense. */
typedef struct nmlp_mlp_ranks {
    int64_t gate, up, down;
    bool shared; /* gate and up have one first factor; then gate == up > 0 */
} nmlp_mlp_ranks;

/* What an MLP kernel does besides: y = residual x + mlp(rmsnorm(x)). The norm's weights belong to the rows of the
 * matrices that read x, so that the kernel divides by the root mean square only. */
typedef struct nmlp_mlp_fusion {
    int64_t norm_e12; /* epsilon of the norm in units of 1e-12; 0: x comes normalised */
    bool residual;    /* adds x to the result */
} nmlp_mlp_fusion;

typedef struct nmlp_kernel_shape {
    int64_t s, h, r, o; /* r is 0 where there is no rank */
} nmlp_kernel_shape;

/* Named whole numbers, e.g. tiles per block; which keys exist is the kernel's matter. */
typedef struct nmlp_tiling {
    struct {
        char key[NMLP_TILING_KEY_MAX];
        int64_t value;
    } entries[NMLP_TILING_MAX];
    int n;
} nmlp_tiling;

typedef struct nmlp_kernel_request {
    nmlp_kernel_shape shape;
    nmlp_mlp_ranks ranks;      /* of an MLP whose projections differ; then shape.r is 0 */
    nmlp_mlp_fusion fuse;      /* kernel mlp only */
    nmlp_nc_dtype dtype;       /* of tensors and SBUF data */
    bool fp8;                  /* kernel mlp: weights in fp8, with a scale in fp32 for each output */
    const nmlp_tiling *tiling; /* NULL: defaults */
    const nmlp_machine *machine;
} nmlp_kernel_request;

typedef struct nmlp_kernel {
    const char *name;
    const char *summary;
    bool has_rank;
    bool gated;              /* an MLP: O is the intermediate width, the output is [S,H], R may be 0 (dense) */
    const char *tiling_keys; /* "m,n,k": the keys a tiling may have, with meaning in docs/simulator.md */
    nmlp_status (*build)(nmlp_program **out, const nmlp_kernel_request *request, nmlp_err *err);
} nmlp_kernel;

/* Of the weights on their way to the tensor engine. */
static inline nmlp_nc_dtype nmlp_kernel_weight_dtype(const nmlp_kernel_request *request) {
    return request->fp8 ? NMLP_NC_FP8 : request->dtype;
}

/* The ranks of an MLP, however the request gives them: R for all, or one each; shared by `ranks` or by the tiling. */
nmlp_mlp_ranks nmlp_kernel_mlp_ranks(const nmlp_kernel_request *request);
/* Puts ranks into a request: as R where all are equal, so that equal problems look equal. */
void nmlp_kernel_set_ranks(nmlp_kernel_request *request, nmlp_mlp_ranks ranks);
/* "S,H,R,O", or "S,H,gate=…/up=…/down=…,O" where the projections differ; "/norm=…/residual" where fused,
 * "/fp8" where the weights are. */
enum { NMLP_KERNEL_SHAPE_TEXT_MAX = 192 };
void nmlp_kernel_shape_print(char text[NMLP_KERNEL_SHAPE_TEXT_MAX], const nmlp_kernel_request *request);

/* NULL past the end. */
const nmlp_kernel *nmlp_kernel_at(size_t index);
/* NULL with the list of names in `err` when there is none. */
const nmlp_kernel *nmlp_kernel_find(const char *name, nmlp_err *err);
/* Refuses shapes and tiling keys the kernel does not take. */
nmlp_status nmlp_kernel_check_request(const nmlp_kernel *kernel, const nmlp_kernel_request *request, nmlp_err *err);
/* Checks the request, builds, finishes. */
nmlp_status nmlp_kernel_build(nmlp_program **out, const nmlp_kernel *kernel, const nmlp_kernel_request *request,
                              nmlp_err *err);

/* "m=8,n=2,k=8" */
nmlp_status nmlp_tiling_parse(nmlp_tiling *tiling, const char *text, nmlp_err *err);
/* Appends or replaces. */
nmlp_status nmlp_tiling_set(nmlp_tiling *tiling, const char *key, int64_t value, nmlp_err *err);
/* The value, or `fallback` where tiling is NULL or lacks the key. */
int64_t nmlp_tiling_get(const nmlp_tiling *tiling, const char *key, int64_t fallback);
/* "rows=512,x=3,…" */
void nmlp_tiling_print(const nmlp_tiling *tiling, nmlp_str *out);

#endif
