/* What the parts of the second pass share: the state of one layer and the variants of its MLP. */
#ifndef NMLP_COMPRESS_REFIT_REFIT_INTERNAL_H
#define NMLP_COMPRESS_REFIT_REFIT_INTERNAL_H

#include "compress/factor/expert_ranks.h"
#include "compress/refit/refit.h"
#include "compress/refit/refit_solve.h"
#include "compress/work.h"

/* Pseudo tokens for each input channel of the matrices of one input, and of the last one. Fewer fit the calibration
 * text no better and other texts worse. */
enum { NMLP_REFIT_ANCHOR_FIRST = 8, NMLP_REFIT_ANCHOR_LAST = 16 };

/* Both models' tokens and the buffers of the layer at hand. */
typedef struct nmlp_refit_pass {
    const nmlp_refit_job *r;
    nmlp_hidden_states dense;
    nmlp_hidden_states compressed;
    float *x, *z, *y;   /* [T,H] */
    float *weights;     /* [T] */
    float *all_weights; /* [tokens of all processes], with token weights */
    double *w[NMLP_MLP_MATRICES];
    nmlp_hidden_states_progress progress;
    const nmlp_kernels *kernels;
} nmlp_refit_pass;

/* Matrices of the pass's dense weights that take part in a fit: gate and up come first. */
int nmlp_refit_widened(const nmlp_refit_job *job);
/* Of held-out rows of the dense stream, by the weights of the pass. */
nmlp_status nmlp_refit_energy(const nmlp_refit_pass *pass, double *energy, nmlp_err *err);

/* A norm between a module and the stream cannot be undone: an MLP then aims at the dense one's output, an attention
 * stays as it was factorised. */
bool nmlp_refit_has_norm_post(const nmlp_refit_pass *pass);

/* refit_attention.c. Fits the attention of a layer, if it has factors, to what the dense stream is behind it, and
 * writes its file; both streams stay in front of the layer. pass->x, y and z are spent. */
nmlp_status nmlp_refit_attention(nmlp_refit_pass *pass, int64_t layer, nmlp_work_tally *tally, nmlp_err *err);
/* The compressed stream through the finished attention of a layer; see nmlp_hidden_states_run_attention. */
nmlp_status nmlp_refit_run_attention(nmlp_refit_pass *pass, int64_t layer, const nmlp_layer_taps *taps, nmlp_err *err);

/* A layer with experts: fits them one after the other, each to what the others leave, writes their files and puts into
 * pass->y what the layer adds. */
nmlp_status nmlp_refit_experts(nmlp_refit_pass *pass, int64_t layer, nmlp_err *err);

/* One MLP on its way: token rows [T,H], those of calibration windows first. */
typedef struct nmlp_refit_layer {
    const nmlp_refit_job *r;
    int64_t layer;
    nmlp_layer_ranks ranks;
    const nmlp_factors *dense; /* [NMLP_MLP_MATRICES] */
    const nmlp_kernels *kernels;
    nmlp_pool *pool;
    int64_t hidden, intermediate;
    const nmlp_window_share *share; /* NULL: the rows are all there are */
    int owner;                      /* the process that solves */
    int64_t n_calib, n_heldout;     /* tokens of this process */
    int64_t calib_tokens;           /* of all processes */
    int64_t context;
    const float *x;               /* MLP input in the dense model */
    const float *z;               /* MLP input in the compressed model */
    const float *target;          /* what the MLP should add in the compressed model */
    const float *weights;         /* [T] */
    bool weighted;                /* weights are not all ones */
    const double *row_weights;    /* [2,I] of gate and up; NULL: ones */
    double *w[NMLP_MLP_MATRICES]; /* dense weights in f64 */
} nmlp_refit_layer;

/* An MLP some of whose matrices were fitted again. */
typedef struct nmlp_refit_variant {
    nmlp_mlp_desc desc;
    nmlp_nested nested[NMLP_MLP_MATRICES]; /* behind the v of refitted matrices */
    void *u[NMLP_MLP_MATRICES];            /* behind their u, or a refitted dense matrix */
} nmlp_refit_variant;

static inline const nmlp_process_group *nmlp_refit_group(const nmlp_refit_layer *l) {
    return l->share ? l->share->group : NULL;
}
static inline bool nmlp_refit_solves(const nmlp_refit_layer *l) {
    return nmlp_group_rank(nmlp_refit_group(l)) == l->owner;
}

void nmlp_refit_variant_fini(nmlp_refit_variant *variant);

/* The best of `base` and its fits by held-out error: what was fitted of gate and up is in `tall`, the result in `down`.
 * errors: of `base`, and of the result. */
nmlp_status nmlp_refit_mlp(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, nmlp_refit_variant *tall,
                           nmlp_refit_variant *down, double errors[2], nmlp_err *err);
/* The finished MLP as its file has it; errors are shares of `energy`. */
nmlp_layer_file nmlp_refit_file_of(const nmlp_refit_layer *l, const nmlp_refit_variant *result, const double errors[2],
                                   double energy);

/* Gate and up fitted again, down as in `base`. */
nmlp_status nmlp_refit_gate_up(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, nmlp_refit_variant *out,
                               nmlp_err *err);
/* Down fitted again behind the gate and up of `base`. */
nmlp_status nmlp_refit_down_of(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, nmlp_refit_variant *out,
                               nmlp_err *err);

/* refit_slices.c. Slice `s` of gate and up alone, into its vectors of ut [n*rank, n_matrices*rows] and v [n*rank, n].
 */
nmlp_status nmlp_refit_tall_slice(const nmlp_refit_layer *l, const nmlp_refit_tall *problem, int64_t s, double *ut,
                                  double *v, nmlp_err *err);
/* All slices of down, one after the other, each fitted to what the others leave of the target. */
nmlp_status nmlp_refit_down_slices(const nmlp_refit_layer *l, const nmlp_mlp_desc *base, const nmlp_refit_down *problem,
                                   double *ut, double *v, nmlp_err *err);

/* Sum over the held-out tokens of all processes, in their order, of values [n_heldout] of this one. */
nmlp_status nmlp_refit_sum_heldout(const nmlp_window_share *share, const double *values, int64_t n_heldout, double *sum,
                                   nmlp_err *err);

/* Weighted squared distance of an MLP's output from the target on held-out tokens. */
nmlp_status nmlp_refit_error(const nmlp_refit_layer *l, const nmlp_mlp_desc *desc, double *error, nmlp_err *err);

/* out [s,H] = MLP of rows z [s,H], window by window; act [s,I] may be NULL. */
nmlp_status nmlp_refit_run_mlp(const nmlp_refit_layer *l, const nmlp_mlp_desc *desc, const float *z, int64_t s,
                               float *out, float *act, nmlp_err *err);

#endif
