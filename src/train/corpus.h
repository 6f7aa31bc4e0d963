/* Training text as windows, some held out, the others in an order that depends on the seed alone. */
#ifndef NMLP_TRAIN_CORPUS_H
#define NMLP_TRAIN_CORPUS_H

#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_train_corpus {
    const int32_t *ids; /* borrowed */
    int64_t context;
    int64_t n_train, n_heldout; /* windows */
    int64_t *train;             /* [n_train] first token of each, in the order of `epoch` */
    int64_t *heldout;           /* [n_heldout], spread evenly over the text */
    uint64_t seed;
    const int32_t *written; /* [n_written, context+1] windows of other text, borrowed; `explore` of the training windows
                               come from there */
    int64_t n_written;
    double explore;
    int64_t epoch; /* whose order `train` has; -1: none yet */
} nmlp_train_corpus;

/* Windows of `context` tokens without overlap; each needs the token behind it as a target. At most `n_heldout` windows
 * and a tenth of the text are held out, at least one; refuses a text of fewer than two windows. */
nmlp_status nmlp_train_corpus_init(nmlp_train_corpus *c, const int32_t *ids, int64_t n_ids, int64_t context,
                                   int64_t n_heldout, uint64_t seed, nmlp_err *err);
void nmlp_train_corpus_fini(nmlp_train_corpus *c);

/* ids and targets [context] of the index-th training window of the run: a written one, by chance, or the next of the
 * text; every pass over the text has its own order. */
void nmlp_train_corpus_train(nmlp_train_corpus *c, int64_t index, int32_t *ids, int32_t *targets);
void nmlp_train_corpus_heldout(const nmlp_train_corpus *c, int64_t index, int32_t *ids, int32_t *targets);

#endif
