/* Token sequences of a data set's choices. */
#ifndef NMLP_EVAL_CHOICE_ENCODE_H
#define NMLP_EVAL_CHOICE_ENCODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"
#include "eval/questions.h"
#include "text/tokenizer.h"

/* One choice: n ids, of which score..n-1 are scored. All but the last are run. */
typedef struct nmlp_sequence {
    const int32_t *ids;
    int64_t n;
    int64_t score; /* 1 or more */
} nmlp_sequence;

typedef struct nmlp_encoded {
    nmlp_sequence *sequences; /* of all questions, in order */
    int64_t *first;           /* [n+1] where each question's begin */
    nmlp_ids *ids;            /* [n] their memory */
    int64_t n;
    int64_t n_truncated;
    int64_t longest; /* tokens to run of the longest sequence */
} nmlp_encoded;

/* Sequences are cut at their beginning so that at most max_positions tokens are run. */
nmlp_status nmlp_encoded_create(nmlp_encoded *encoded, const nmlp_questions *questions, const nmlp_tokenizer *tokenizer,
                                bool bos, int64_t max_positions, nmlp_pool *pool, nmlp_err *err);
void nmlp_encoded_destroy(nmlp_encoded *encoded);

/* Tokens at the beginning that question i's sequences share and that are run (at most the shortest one's). */
int64_t nmlp_encoded_shared(const nmlp_encoded *encoded, int64_t i);

#endif
