/* Compute kernels of a decoder layer, behind one table.
 *
 * Letters: S tokens, H hidden, I intermediate, N outputs, K inputs, r rank, D head dimension, T cached positions.
 * Activations are f32 at every interface; a kernel set may round them to bf16 inside (nmlp_kernels_rounds_to_bf16).
 * Life of an operation: describe -> create (may fail, may pack the weight into the kernel's own order) -> run (cannot
 * fail, does not allocate; takes a workspace of *_workspace_bytes, which also does for fewer rows or threads). Created
 * objects are immutable and may be shared; run uses the pool given. Results do not depend on the number of threads; in
 * sets that compute in f32, the bits of a row do not depend on which rows come with it. */
#ifndef NMLP_KERNELS_KERNELS_H
#define NMLP_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "base/str.h"
#include "base/cpu.h"
#include "tensor/activation.h"
#include "tensor/factors.h"
#include "tensor/view.h"

typedef struct nmlp_kernels nmlp_kernels; /* one instruction set's implementations */

/* The set named `isa` ("ref", "avx2", "avx512", "avx512bf16", "amx"), or with NULL or "auto" the fastest one this CPU
 * supports that computes in f32. Fails naming the sets there are when the name is unknown or the CPU lacks it. */
nmlp_status nmlp_kernels_select(const nmlp_kernels **out, const nmlp_cpu *cpu, const char *isa, nmlp_err *err);
/* The same, but "auto" may also choose a set that rounds activations to bf16 ("amx", "avx512bf16"), where that is the
 * fastest. */
nmlp_status nmlp_kernels_select_bf16(const nmlp_kernels **out, const nmlp_cpu *cpu, const char *isa, nmlp_err *err);
const char *nmlp_kernels_name(const nmlp_kernels *kernels);
/* Names of the sets compiled in, fastest first, without those for tests only; NULL past the end. */
const char *nmlp_kernels_name_at(size_t index);
/* Quantised weights (tensor/quant.h) multiply activations rounded to int16 in groups of 32 inputs, 2^-16 of the largest
 * of a group: integer products are exact, scales are applied in f32. Sets that round to bf16 do so with them too, above
 * 8 rows ("avx512bf16": 12); there Q8 weights of 64 n inputs that read the rows given to a linear or an MLP multiply
 * them rounded to int8 instead, 1/254 of the largest of a row: products are exact again, scales of row and column are
 * applied in f32. True when matmuls round activations (and weights of other types) to bf16; sums are f32 everywhere. */
bool nmlp_kernels_rounds_to_bf16(const nmlp_kernels *kernels);

/* ---- linear: Y [S,N] = X [S,K] W^T + b, W [N,K] as checkpoints store it ---- */

typedef struct nmlp_linear nmlp_linear;

/* `bias` [N] may have data NULL. The weight's memory must outlive the linear unless nmlp_linear_owns_weight. */
nmlp_status nmlp_linear_create(nmlp_linear **out, const nmlp_kernels *kernels, const nmlp_view *weight,
                               const nmlp_view *bias, nmlp_pool *pool, nmlp_err *err);
void nmlp_linear_destroy(nmlp_linear *linear);
/* True when the weight was packed into memory of its own, so that the source may be released. */
bool nmlp_linear_owns_weight(const nmlp_linear *linear);
/* True when neither NaN nor Inf was met while the weight was packed. */
bool nmlp_linear_is_finite(const nmlp_linear *linear);
size_t nmlp_linear_workspace_bytes(const nmlp_linear *linear, int64_t s, int n_threads);
void nmlp_linear_run(const nmlp_linear *linear, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool);

/* What happens to rows on their way in and out, to the bit as nmlp_rmsnorm before and nmlp_add after would do it, but
 * without further passes through memory. */
typedef struct nmlp_fused {
    const float *norm; /* weight [K] of a norm of the input; NULL: none */
    float norm_eps;
    bool add; /* to what y holds; y may then be x */
} nmlp_fused;

/* Up to NMLP_LINEARS_MAX linears of the same input, which is laid out once. The workspace must do for each. */
enum { NMLP_LINEARS_MAX = 3 };
void nmlp_linear_run_all(const nmlp_linear *const linears[], float *const ys[], int n, const float *x, int64_t s,
                         const nmlp_fused *fused, void *workspace, nmlp_pool *pool);

/* What a run of few rows on these linears or on an MLP reads first, for threads that wait for it. */
nmlp_pool_ahead nmlp_linear_ahead(const nmlp_linear *const linears[], int n);

/* ---- gated MLP: Y = (f(X G^T) * (X U^T)) D^T, each weight dense or a product of two factors ---- */

typedef struct nmlp_mlp_desc {
    nmlp_factors gate; /* N = I, K = H; a shared basis is gate.v.data == up.v.data */
    nmlp_factors up;   /* N = I, K = H */
    nmlp_factors down; /* N = H, K = I */
    nmlp_activation activation;
} nmlp_mlp_desc;

typedef struct nmlp_mlp nmlp_mlp;

nmlp_status nmlp_mlp_create(nmlp_mlp **out, const nmlp_kernels *kernels, const nmlp_mlp_desc *desc, nmlp_pool *pool,
                            nmlp_err *err);
void nmlp_mlp_destroy(nmlp_mlp *mlp);
bool nmlp_mlp_owns_weights(const nmlp_mlp *mlp);
bool nmlp_mlp_is_finite(const nmlp_mlp *mlp);
size_t nmlp_mlp_workspace_bytes(const nmlp_mlp *mlp, int64_t s, int n_threads);
void nmlp_mlp_run(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool);

void nmlp_mlp_run_fused(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, const nmlp_fused *fused,
                        void *workspace, nmlp_pool *pool);

nmlp_pool_ahead nmlp_mlp_ahead(const nmlp_mlp *mlp);

/* Appends the block sizes chosen for s rows: block sizes, chunk of I, memory they occupy. One line of "name=value". */
void nmlp_mlp_describe_blocking(const nmlp_mlp *mlp, int64_t s, int n_threads, nmlp_str *out);

/* The same MLP, unfused, with a look inside: act [S,I] receives f(gate)*up, and gate/up [S,I] the projections
 * before the activation (each may be NULL). y may be NULL where only they are wanted. For calibration, not for
 * speed. */
void nmlp_mlp_run_observed(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, float *gate, float *up, float *act,
                           void *workspace, nmlp_pool *pool);
size_t nmlp_mlp_observed_workspace_bytes(const nmlp_mlp *mlp, int64_t s, int n_threads);

/* ---- keys and values of a layer's tokens ---- */

/* In the order that attention of the set reads: sets that round to bf16 keep them rounded, in strips as weights lie;
 * the others as rows of f32. */
typedef struct nmlp_kv {
    const nmlp_kernels *kernels;
    int64_t len; /* positions */
    int64_t n_heads;
    int64_t head_dim;
    void *memory; /* nmlp_kv_bytes of it, aligned to 64 bytes, zeros before the first use; the caller's */
    /* In pages of `page` positions, a multiple of nmlp_kv_page_size: page i of the text is at memory + pages[i] *
     * page_step_bytes and has nmlp_kv_bytes. NULL: all positions lie in one piece. */
    const int32_t *pages;
    int64_t page;
    size_t page_step_bytes;
} nmlp_kv;

/* Positions from one multiple of this to the next share cache lines. */
enum { NMLP_KV_GROUP = 32 };

/* Positions of the smallest page that attention reads as fast as one piece. */
int64_t nmlp_kv_page_size(const nmlp_kernels *kernels);
/* Of all positions, or of one page (with `pages` set to anything but NULL). */
size_t nmlp_kv_bytes(const nmlp_kv *kv);
/* Rows of k (rotated) and v, each [S, n_heads*D], become positions first..first+S-1. Threads may store at the same
 * time what is in different groups. */
void nmlp_kv_store(const nmlp_kv *kv, const float *k, const float *v, int64_t first, int64_t s);

/* Angles of every position, cos|sin of R/2 each: row p of [positions, R] is cos(p*f_0..), sin(p*f_0..). */
typedef struct nmlp_rotation {
    const float *angles; /* NULL: nothing is rotated */
    int64_t dim;         /* R, at most D */
} nmlp_rotation;

/* ---- attention over it: causal, grouped queries ---- */

typedef struct nmlp_attention {
    float *out;         /* [S, n_heads*D] */
    const float *q;     /* [S, n_heads*D] */
    nmlp_rotation rope; /* by which queries are rotated; none: they are as they should be */
    nmlp_kv kv;         /* its heads divide n_heads */
    int64_t s;          /* queries */
    int64_t first_pos;  /* position of query 0; query i sees positions 0..first_pos+i */
    int64_t n_heads;
    int64_t window; /* a query sees so many positions at most, itself the last; 0: all before it */
    /* Keys and values of the queries' tokens that are yet to be stored, [S, kv heads*D] each, where rows are few
     * (below): the thread that reads a head of them rotates and stores it first. NULL: all are in the cache. */
    float *k;
    const float *v;
    nmlp_rotation k_rope;
    float scale;
    float softcap; /* scaled scores become softcap * tanh(score / softcap); 0: they stay */
} nmlp_attention;

/* Up to this many rows (queries x heads of one key head) attention computes in f32 in every set; above, a set that
 * rounds to bf16 rounds queries and probabilities, as it has keys and values. */
enum { NMLP_ATTENTION_FEW_ROWS = 16 };

/* Attention with a window reads keys and values from a multiple of this on, the last before what its first query sees.
 */
enum { NMLP_ATTENTION_SPAN = 512 };

/* Memory that does not grow with S*T: bounded by threads and head size. */
size_t nmlp_attention_workspace_bytes(const nmlp_attention *shape, int n_threads);
void nmlp_attention_run(const nmlp_attention *args, void *workspace, nmlp_pool *pool);
/* Several sequences at once, all of the same heads, head size and kernels. In f32 a sequence's bits do not depend on
 * the others. */
void nmlp_attention_run_all(const nmlp_attention *args, int64_t n, void *workspace, nmlp_pool *pool);

/* ---- the small ones ---- */

/* y [S,H] = x / rms(x) * weight; y may be x. */
void nmlp_rmsnorm(float *y, const float *x, const float *weight, float eps, int64_t s, int64_t h, nmlp_pool *pool);
/* Rotates the first R dimensions of the heads of x [S, n_heads*D] in place (Hugging Face half-split pairing). */
void nmlp_rope(float *x, const nmlp_rotation *rope, int64_t s, int64_t first_pos, int64_t n_heads, int64_t head_dim,
               nmlp_pool *pool);
/* How softmax(x) [n] sees x and another row y: log of the sum of e^x, and the mean of x-y under softmax(x) (0 with y
 * NULL). The KL divergence of softmax(y) from softmax(x) is the mean less the first logarithm plus the second.
 * Exponentials to 2 ulp of f32, sums in f64. */
typedef struct nmlp_softmax_view {
    double log_sum;
    double mean_difference;
} nmlp_softmax_view;
nmlp_softmax_view nmlp_softmax_compare(const float *x, const float *y, int64_t n);

/* Sums of squares over rows of gate and up [S,N], f the activation. */
typedef struct nmlp_glu_squares {
    nmlp_activation activation;
    double *gate2;  /* [N] f(gate)^2 */
    double *slope2; /* [N] (up*f'(gate))^2 */
    double *act2;   /* [N] (f(gate)*up)^2 */
} nmlp_glu_squares;
/* Adds to them; runs of 32 rows are summed in f32, those in f64. */
void nmlp_glu_squares_add(const nmlp_glu_squares *squares, const float *gate, const float *up, int64_t s, int64_t n,
                          nmlp_pool *pool);
/* act = f(gate) * up, n elements; act may be one of them. */
void nmlp_glu(const nmlp_kernels *kernels, nmlp_activation activation, float *act, const float *gate, const float *up,
              int64_t n, nmlp_pool *pool);
/* x = cap * tanh(x * factor), n elements. */
void nmlp_softcap(float *x, float factor, float cap, int64_t n, nmlp_pool *pool);
/* y = x * factor; y may be x. */
void nmlp_multiply(float *y, const float *x, float factor, int64_t n, nmlp_pool *pool);
/* x += y, n elements. */
void nmlp_add(float *x, const float *y, int64_t n, nmlp_pool *pool);

#endif
