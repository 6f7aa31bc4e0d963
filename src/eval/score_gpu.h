/* Log-likelihoods of token sequences on a GPU: what eval/logprob.h is to sessions of the CPU. */
#ifndef NMLP_EVAL_SCORE_GPU_H
#define NMLP_EVAL_SCORE_GPU_H

#include "base/progress.h"
#include "eval/choice_encode.h"
#include "engine/engine.h"

typedef struct nmlp_gpu_scoring {
    const char *stage;             /* of the progress */
    const nmlp_progress *progress; /* may be NULL */
    int64_t n_run;                 /* out: positions computed */
} nmlp_gpu_scoring;

/* loglik[i] = the sum of log p(token) over the scored tokens of sequence i. The engine stands for a GPU (engine/gpu.h).
 */
nmlp_status nmlp_score_on_gpu(double *loglik, const nmlp_engine *engine, const nmlp_sequence *sequences, int64_t n,
                              nmlp_gpu_scoring *scoring, nmlp_err *err);

#endif
