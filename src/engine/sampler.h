/* Choosing the next token from logits: greedy, or from the distribution after repetition penalty, temperature, top-k,
 * top-p and min-p, in that order (as llama.cpp and Hugging Face have them). The choice depends on seed and logits
 * alone. */
#ifndef NMLP_ENGINE_SAMPLER_H
#define NMLP_ENGINE_SAMPLER_H

#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"

typedef struct nmlp_sampling {
    double temperature;        /* 0: greedy */
    int64_t top_k;             /* 0: all */
    double top_p;              /* 1: all */
    double min_p;              /* 0: all */
    double repetition_penalty; /* 1: none */
    uint64_t seed;
} nmlp_sampling;

nmlp_sampling nmlp_sampling_greedy(void);
/* Refuses values outside their range, naming the field. */
nmlp_status nmlp_sampling_check(const nmlp_sampling *sampling, nmlp_err *err);

typedef struct nmlp_token_candidate {
    float logit;
    int32_t id;
} nmlp_token_candidate;

/* Memory in which one choice is made; samplers that choose one after the other may share it. */
typedef struct nmlp_sampler_scratch {
    nmlp_token_candidate *candidates; /* [V] */
    double *weights;                  /* [V] */
} nmlp_sampler_scratch;

nmlp_status nmlp_sampler_scratch_init(nmlp_sampler_scratch *scratch, int64_t vocab, nmlp_err *err);
void nmlp_sampler_scratch_fini(nmlp_sampler_scratch *scratch);

typedef struct nmlp_sampler {
    nmlp_sampling options;
    nmlp_rng rng;
    int64_t vocab;
    unsigned char *seen; /* [V] tokens already in the text; NULL without a repetition penalty */
} nmlp_sampler;

nmlp_status nmlp_sampler_init(nmlp_sampler *sampler, const nmlp_sampling *options, int64_t vocab, nmlp_err *err);
void nmlp_sampler_fini(nmlp_sampler *sampler);
/* Tells the sampler that a token is part of the text (for the repetition penalty). */
void nmlp_sampler_accept(nmlp_sampler *sampler, int32_t id);
int32_t nmlp_sampler_next(nmlp_sampler *sampler, nmlp_sampler_scratch *scratch, const float *logits);

/* What nmlp_sampler_next draws from at a temperature above 0: probs [V], 0 where the filters drop a token. */
void nmlp_sampler_distribution(const nmlp_sampler *sampler, nmlp_sampler_scratch *scratch, const float *logits,
                               float *probs);
/* Draws from probs [V], which need not add up to 1. */
int32_t nmlp_sampler_draw(nmlp_sampler *sampler, const float *probs);

/* Index of the largest value; the first of equal ones; NaN never wins. */
int64_t nmlp_argmax(const float *values, int64_t n);

#endif
