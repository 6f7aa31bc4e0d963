/* The tokens that one expert is factorised by: those the router sent to it, each counting by the square of its weight,
 * and, where few came, tokens of the whole text beside them. So the statistics of an expert are its own as far as it
 * was seen, and those of the layer beyond. */
#ifndef NMLP_COMPRESS_CALIBRATE_EXPERT_SAMPLE_H
#define NMLP_COMPRESS_CALIBRATE_EXPERT_SAMPLE_H

#include "base/mem.h"
#include "engine/session.h"

/* Tokens of one MLP, and what it does with them. */
typedef struct nmlp_mlp_sample {
    float *x, *y;                  /* [n,H] inputs and outputs, scaled by the roots of the tokens' weights */
    int64_t n;                     /* the mean over n rows is that over all tokens of the text */
    double *gate2, *slope2, *act2; /* [I] means of f(gate)^2, (up f'(gate))^2, and of (f(gate) up)^2 with the weights */
} nmlp_mlp_sample;

/* What the samples of one layer share. */
typedef struct nmlp_expert_sampler {
    const nmlp_engine *engine;
    const nmlp_kernels *kernels;
    int64_t layer;
    const float *x;              /* [T,H] what the layer's experts see */
    int64_t n_tokens;            /* T */
    nmlp_expert_choice *choices; /* [T,k] */
    double mean_weight2;         /* of all choices */
    float *gate, *up, *act;      /* rows of one step */
    double *factors;             /* [T+H] roots of the weights of a sample's rows */
    double *sums;                /* [2,3,I] of tokens that came, and of the others */
    nmlp_mlp_sample sample;      /* memory for T+H rows */
    double *act_gram;            /* [I,I] borrowed, receives the mean of act act^T with the weights; NULL: not wanted */
    nmlp_arena arena;
} nmlp_expert_sampler;

nmlp_status nmlp_expert_sampler_init(nmlp_expert_sampler *sampler, const nmlp_engine *engine,
                                     const nmlp_kernels *kernels, int64_t n_tokens, nmlp_err *err);
void nmlp_expert_sampler_fini(nmlp_expert_sampler *sampler);
/* Routes the rows x [T,H] of a layer; they must stay. */
nmlp_status nmlp_expert_sampler_route(nmlp_expert_sampler *sampler, int64_t layer, const float *x, nmlp_err *err);
/* Fills sampler->sample for one expert. */
nmlp_status nmlp_expert_sampler_take(nmlp_expert_sampler *sampler, int64_t expert, nmlp_err *err);

/* choices [n,k] of rows x [n,H] of a layer. */
nmlp_status nmlp_expert_route_rows(const nmlp_engine *engine, int64_t layer, const float *x, int64_t n,
                                   nmlp_expert_choice *choices, nmlp_err *err);

#endif
