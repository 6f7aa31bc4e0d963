/* How far a model's predictions are from those of another with the same vocabulary: the mean Kullback-Leibler
 * divergence of the next-token distributions, in nats, and how often both would choose the same token. */
#ifndef NMLP_EVAL_DIVERGENCE_H
#define NMLP_EVAL_DIVERGENCE_H

#include "eval/perplexity.h"

typedef struct nmlp_divergence {
    int64_t n_tokens;  /* of the text used */
    int64_t n_scored;  /* positions compared */
    double kl;         /* mean of KL(reference || model) */
    double nll;        /* of the model, per scored token */
    double nll_before; /* of the reference */
    double rise_error; /* standard error of nll - nll_before over the positions */
    double same_top;   /* share of positions where both have the same most likely token */
    double seconds;
} nmlp_divergence;

/* Windows, first tokens and BOS as for perplexity (`rolling` and overlaps are refused). Both models run on the CPU. */
nmlp_status nmlp_divergence_ids(nmlp_divergence *result, const nmlp_engine *reference, const nmlp_engine *engine,
                                const int32_t *ids, int64_t n, const nmlp_ppl_options *options, nmlp_err *err);
/* The same for a text, encoded by the model's tokenizer. */
nmlp_status nmlp_divergence_text(nmlp_divergence *result, const nmlp_engine *reference, const nmlp_engine *engine,
                                 const nmlp_tokenizer *tokenizer, const char *text, size_t len,
                                 const nmlp_ppl_options *options, nmlp_err *err);

/* Plain means over texts: each counts alike, whatever its length. */
nmlp_divergence nmlp_divergence_mean(const nmlp_divergence *results, size_t n);

#endif
