/* Choosing the next token from logits: greedy, or from the distribution after biases, penalties, temperature, top-k,
 * top-p and min-p, in that order (as llama.cpp and Hugging Face have them). The choice depends on seed and logits
 * alone. */
#ifndef NMLP_ENGINE_SAMPLER_H
#define NMLP_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"

/* Added to the logit of a token. */
typedef struct nmlp_token_bias {
    int32_t id;
    float bias;
} nmlp_token_bias;

typedef struct nmlp_sampling {
    double temperature;            /* 0: greedy */
    int64_t top_k;                 /* 0: all */
    double top_p;                  /* 1: all */
    double min_p;                  /* 0: all */
    double repetition_penalty;     /* of tokens in the prompt or the answer; 1: none */
    double presence_penalty;       /* taken off the logit of a token that is in the answer; 0: none */
    double frequency_penalty;      /* taken off as often as it is there; 0: none */
    const nmlp_token_bias *biases; /* [n_biases] borrowed while a sampler is initialised */
    int64_t n_biases;
    uint64_t seed;
} nmlp_sampling;

nmlp_sampling nmlp_sampling_greedy(void);
/* Refuses values outside their range, naming the field. */
nmlp_status nmlp_sampling_check(const nmlp_sampling *sampling, nmlp_err *err);
/* Whether logits are used as they are: no biases, no penalties. */
bool nmlp_sampling_is_plain(const nmlp_sampling *sampling);

typedef struct nmlp_token_candidate {
    float logit;
    int32_t id;
} nmlp_token_candidate;

/* Memory in which one choice is made; samplers that choose one after the other may share it. */
typedef struct nmlp_sampler_scratch {
    nmlp_token_candidate *candidates; /* [V] */
    nmlp_token_candidate *other;      /* [V] while they are sorted */
    double *weights;                  /* [V] */
} nmlp_sampler_scratch;

nmlp_status nmlp_sampler_scratch_init(nmlp_sampler_scratch *scratch, int64_t vocab, nmlp_err *err);
void nmlp_sampler_scratch_fini(nmlp_sampler_scratch *scratch);

typedef struct nmlp_sampler {
    nmlp_sampling options;
    nmlp_rng rng;
    int64_t vocab;
    unsigned char *seen;     /* [V] 1: in the text, 2: in the answer; NULL: without penalties */
    float *added;            /* [V] to the logits; NULL: nothing is */
    const uint32_t *allowed; /* [ceil(V/32)] bits of the tokens that may be chosen, set by the owner; NULL: all */
} nmlp_sampler;

nmlp_status nmlp_sampler_init(nmlp_sampler *sampler, const nmlp_sampling *options, int64_t vocab, nmlp_err *err);
void nmlp_sampler_fini(nmlp_sampler *sampler);
/* Tells the sampler that a token is part of the prompt, or of the answer. */
void nmlp_sampler_accept_prompt(nmlp_sampler *sampler, int32_t id);
void nmlp_sampler_accept(nmlp_sampler *sampler, int32_t id);
/* -1: none of the `allowed` tokens has a logit that is a number. */
int32_t nmlp_sampler_next(nmlp_sampler *sampler, nmlp_sampler_scratch *scratch, const float *logits);

/* What nmlp_sampler_next draws from at a temperature above 0: probs [V], 0 where the filters drop a token. */
void nmlp_sampler_distribution(const nmlp_sampler *sampler, nmlp_sampler_scratch *scratch, const float *logits,
                               float *probs);
/* Draws from probs [V], which need not add up to 1. */
int32_t nmlp_sampler_draw(nmlp_sampler *sampler, const float *probs);

/* Index of the largest value; the first of equal ones; NaN never wins. */
int64_t nmlp_argmax(const float *values, int64_t n);

#endif
