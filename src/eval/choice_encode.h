/* Token sequences of a data set's choices. */
#ifndef NMLP_EVAL_CHOICE_ENCODE_H
#define NMLP_EVAL_CHOICE_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "engine/score.h"
#include "eval/questions.h"
#include "text/tokenizer.h"

typedef struct nmlp_encoded {
    nmlp_score_text *sequences; /* one for each choice, of all questions, in order; loglik is left to the caller */
    int64_t *first;             /* [n+1] where each question's begin */
    nmlp_ids *ids;              /* [n] their memory */
    int64_t n;
    int64_t n_truncated;
    int64_t longest; /* tokens to run of the longest sequence */
} nmlp_encoded;

/* Sequences are cut at their beginning so that at most max_positions tokens are run. */
nmlp_status nmlp_encoded_create(nmlp_encoded *encoded, const nmlp_questions *questions, const nmlp_tokenizer *tokenizer,
                                nmlp_bos bos, int64_t max_positions, nmlp_pool *pool, nmlp_err *err);
void nmlp_encoded_destroy(nmlp_encoded *encoded);

#endif
