#include "train/corpus.h"

#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

nmlp_status nmlp_train_corpus_init(nmlp_train_corpus *c, const int32_t *ids, int64_t n_ids, int64_t context,
                                   int64_t n_heldout, uint64_t seed, nmlp_err *err) {
    int64_t windows = n_ids > 0 ? (n_ids - 1) / context : 0;
    *c = (nmlp_train_corpus){.ids = ids, .context = context, .seed = seed, .epoch = -1};
    if (windows < 2)
        return nmlp_fail(err, NMLP_E_LIMIT, "the text has %lld tokens; training in windows of %lld needs at least %lld",
                         (long long)n_ids, (long long)context, (long long)(2 * context + 1));
    int64_t held = n_heldout < windows / 10 ? n_heldout : windows / 10;
    c->n_heldout = held > 0 ? held : 1;
    c->n_train = windows - c->n_heldout;
    c->train = nmlp_mem_new((size_t)c->n_train, sizeof *c->train, err);
    c->heldout = nmlp_mem_new((size_t)c->n_heldout, sizeof *c->heldout, err);
    if (!c->train || !c->heldout) {
        nmlp_train_corpus_fini(c);
        return NMLP_E_NOMEM;
    }
    for (int64_t i = 0; i < c->n_heldout; i++) /* the middle of the i-th of n_heldout equal parts */
        c->heldout[i] = (2 * i + 1) * windows / (2 * c->n_heldout) * context;
    return NMLP_OK;
}

void nmlp_train_corpus_fini(nmlp_train_corpus *c) {
    nmlp_mem_free(c->train);
    nmlp_mem_free(c->heldout);
    *c = (nmlp_train_corpus){0};
}

/* Text order, then shuffled by a generator that knows seed and pass only. */
static void order_for(nmlp_train_corpus *c, int64_t epoch) {
    nmlp_rng rng;
    int64_t next_held = 0;
    int64_t n = 0;
    for (int64_t at = 0; n < c->n_train; at += c->context) {
        if (next_held < c->n_heldout && at == c->heldout[next_held]) {
            next_held++;
        } else {
            c->train[n++] = at;
        }
    }
    nmlp_rng_seed(&rng, c->seed * 0x9e3779b97f4a7c15u + (uint64_t)epoch + 1);
    for (int64_t i = c->n_train - 1; i > 0; i--) {
        int64_t j = nmlp_rng_below(&rng, i + 1);
        int64_t swap = c->train[i];
        c->train[i] = c->train[j];
        c->train[j] = swap;
    }
    c->epoch = epoch;
}

static void copy_window(const nmlp_train_corpus *c, const int32_t *from, int32_t *ids, int32_t *targets) {
    memcpy(ids, from, (size_t)c->context * sizeof *ids);
    memcpy(targets, from + 1, (size_t)c->context * sizeof *targets);
}

void nmlp_train_corpus_train(nmlp_train_corpus *c, int64_t index, int32_t *ids, int32_t *targets) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, c->seed * 0xd1342543de82ef95u + (uint64_t)index);
    if (c->n_written > 0 && nmlp_rng_uniform(&rng) < c->explore) {
        copy_window(c, c->written + nmlp_rng_below(&rng, c->n_written) * (c->context + 1), ids, targets);
        return;
    }
    if (index / c->n_train != c->epoch) order_for(c, index / c->n_train);
    copy_window(c, c->ids + c->train[index % c->n_train], ids, targets);
}

void nmlp_train_corpus_heldout(const nmlp_train_corpus *c, int64_t index, int32_t *ids, int32_t *targets) {
    copy_window(c, c->ids + c->heldout[index], ids, targets);
}
