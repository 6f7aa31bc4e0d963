/* Time of a whole decoder on a target, put together from planned kernels and a few analytic parts.
 *
 * MLPs (one kernel for every form), attention projections and output layer are our kernels, planned and simulated. The
 * rest is analytic, from the machine's numbers (docs/kernels.md says how): norms, attention itself, reading the KV
 * cache, all-reduces. One launch per forward pass. With tensor parallelism every core has its share of heads, of the
 * intermediate width and of the vocabulary, and two all-reduces per layer; factors are split by intermediate width or
 * by rank, whichever is faster, or, where asked, stand for slices that were factorised by themselves. */
#ifndef NMLP_TRAINIUM_PLAN_PREDICT_H
#define NMLP_TRAINIUM_PLAN_PREDICT_H

#include "trainium/plan/planner.h"

/* MLPs of one form, and how many layers have it. */
typedef struct nmlp_mlp_form {
    nmlp_mlp_ranks ranks;
    int64_t n_layers;
} nmlp_mlp_form;

typedef struct nmlp_decoder {
    int64_t hidden, intermediate, n_layers, n_heads, n_kv_heads, head_dim, vocab;
    const nmlp_mlp_form *forms; /* of all layers together; NULL: dense */
    size_t n_forms;
    int64_t slices; /* whose factors the ranks are of, each on one core; 0: of whole matrices */
} nmlp_decoder;

/* Whose kernels compute the MLPs. AWS's: a dense product (xw-opt) for each matrix, factors one after the other, silu
 * and product between them through HBM. The paper's: its fused kernels where there are factors, AWS's where not. */
typedef enum nmlp_mlp_kernels { NMLP_MLP_KERNELS_OURS, NMLP_MLP_KERNELS_PAPER, NMLP_MLP_KERNELS_AWS } nmlp_mlp_kernels;

const char *nmlp_mlp_kernels_name(nmlp_mlp_kernels kernels); /* ours, paper, aws */
bool nmlp_mlp_kernels_parse(const char *name, nmlp_mlp_kernels *kernels);

typedef struct nmlp_predict_request {
    nmlp_decoder decoder;
    int64_t prompt, generate; /* tokens of each sequence */
    int64_t batch;            /* sequences that run together; 0: one */
    int64_t tp;               /* cores */
    nmlp_mlp_kernels kernels;
    bool slices; /* what if each core's slice had factors of its own, with as many parameters in all */
    nmlp_nc_dtype dtype;
    bool fp8; /* weights of the MLPs; our kernels only */
} nmlp_predict_request;

#define NMLP_PREDICT_PARTS(X) X(mlp) X(projections) X(attention) X(norms) X(lm_head) X(all_reduce) X(launch)

/* One forward pass, in us. */
typedef struct nmlp_forward_time {
#define NMLP_PREDICT_FIELD(part) double part;
    NMLP_PREDICT_PARTS(NMLP_PREDICT_FIELD)
#undef NMLP_PREDICT_FIELD
} nmlp_forward_time;

typedef struct nmlp_prediction {
    nmlp_forward_time prefill; /* the prompt, and the first token */
    nmlp_forward_time decode;  /* one token, at the mean length of the context */
    double ttft_ms, tpot_ms, e2e_ms;
    double tokens_per_s; /* generated, all sequences, over the whole time */
    double weight_bytes; /* of all cores together */
    bool by_rank;        /* decode: factors are split by rank, else by intermediate width */
} nmlp_prediction;

/* One MLP on one core, bf16, without launches. */
nmlp_status nmlp_predict_mlp_us(double *us, const nmlp_planner *planner, nmlp_mlp_kernels kernels, int64_t rows,
                                const nmlp_decoder *decoder, nmlp_mlp_ranks ranks, nmlp_err *err);

double nmlp_forward_total_us(const nmlp_forward_time *t);
nmlp_status nmlp_predict(nmlp_prediction *out, const nmlp_planner *planner, const nmlp_predict_request *request,
                         nmlp_err *err);

#endif
