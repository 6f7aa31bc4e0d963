#include "train/self_text.h"

#include <math.h>

#include "base/rng.h"

enum { PIECE_TOKENS = 128, MOST_AT_ONCE = 192 };

/* Pieces under way and what they are written with. */
struct text_batch {
    const nmlp_train_self_text *a;
    nmlp_train_net *net;
    nmlp_train_growth growth;
    int64_t n_pieces, per_window;
    int64_t length;              /* of a piece */
    int64_t at_once;             /* pieces */
    nmlp_rng rngs[MOST_AT_ONCE]; /* a piece's own, so that neighbours do not matter */
    int32_t newest[MOST_AT_ONCE];
    float *logits; /* [at_once, V] */
};

/* One token of softmax(logits), which are destroyed. */
static int32_t draw(float *logits, int64_t vocab, nmlp_rng *rng) {
    float max = logits[0];
    double sum = 0;
    for (int64_t i = 1; i < vocab; i++) max = logits[i] > max ? logits[i] : max;
    for (int64_t i = 0; i < vocab; i++) {
        logits[i] = expf(logits[i] - max);
        sum += (double)logits[i];
    }
    double left = nmlp_rng_uniform(rng) * sum;
    for (int64_t i = 0; i + 1 < vocab; i++) {
        left -= (double)logits[i];
        if (left < 0) return (int32_t)i;
    }
    return (int32_t)(vocab - 1);
}

static void draw_some(void *ctx, int64_t begin, int64_t end, int thread) {
    struct text_batch *d = ctx;
    int64_t vocab = d->a->model->config.vocab;
    (void)thread;
    for (int64_t i = begin; i < end; i++) d->newest[i] = draw(d->logits + i * vocab, vocab, &d->rngs[i]);
}

/* Where token `at` of a piece belongs; -1 past the end of its window. */
static int64_t place_of(const struct text_batch *d, int64_t piece, int64_t at) {
    int64_t in_window = piece % d->per_window * d->length + at;
    return in_window < d->a->window ? piece / d->per_window * d->a->window + in_window : -1;
}

static void put_newest(const struct text_batch *d, int32_t *ids, int64_t first, int64_t at) {
    for (int64_t i = 0; i < d->at_once && first + i < d->n_pieces; i++) {
        int64_t place = place_of(d, first + i, at);
        if (place >= 0) ids[place] = d->newest[i];
    }
}

static nmlp_status write_pieces(struct text_batch *d, int32_t *ids, int64_t first, nmlp_err *err) {
    const nmlp_train_self_text *a = d->a;
    d->growth.length = 0;
    for (int64_t i = 0; i < d->at_once; i++) {
        nmlp_rng_seed(&d->rngs[i],
                      a->seed * 0x9e3779b97f4a7c15u + (uint64_t)(a->first_window * d->per_window + first + i));
        d->newest[i] = (int32_t)nmlp_rng_below(&d->rngs[i], a->model->config.vocab);
    }
    put_newest(d, ids, first, 0);
    for (int64_t at = 1; at < d->length; at++) {
        double done = (double)(first * d->length + at * d->at_once);
        if (!nmlp_progress_update(a->progress, "teacher writes", done, (double)(d->n_pieces * d->length), "tokens"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped before training began");
        nmlp_train_net_next(d->net, &d->growth, d->newest, d->logits);
        nmlp_pool_for(a->pool, d->at_once, 1, draw_some, d);
        put_newest(d, ids, first, at);
    }
    return NMLP_OK;
}

nmlp_status nmlp_train_self_text_write(const nmlp_train_self_text *a, int32_t *ids, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct text_batch *d = nmlp_mem_new(1, sizeof *d, err);
    if (!d) return NMLP_E_NOMEM;
    d->a = a;
    d->per_window = a->window > PIECE_TOKENS ? a->window / PIECE_TOKENS : 1;
    d->length = (a->window + d->per_window - 1) / d->per_window;
    d->n_pieces = a->n_windows * d->per_window;
    d->at_once = d->n_pieces < MOST_AT_ONCE ? d->n_pieces : MOST_AT_ONCE;
    nmlp_train_net_options net = {
        .isa = a->isa, .pool = a->pool, .set = NMLP_TRAIN_NOTHING, .t = d->length, .s = d->at_once};
    NMLP_TRY(nmlp_train_net_create(&d->net, a->model, &net, err));
    NMLP_TRY(nmlp_train_growth_init(&d->growth, d->net, d->at_once, d->length, err));
    d->logits = nmlp_mem_new((size_t)(d->at_once * a->model->config.vocab), sizeof *d->logits, err);
    if (!d->logits) st = NMLP_E_NOMEM;
    for (int64_t first = 0; st == NMLP_OK && first < d->n_pieces; first += d->at_once)
        st = write_pieces(d, ids, first, err);
out:
    nmlp_mem_free(d->logits);
    nmlp_train_growth_fini(&d->growth);
    nmlp_train_net_destroy(d->net);
    nmlp_mem_free(d);
    return st;
}
