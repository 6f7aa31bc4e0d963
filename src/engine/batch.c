/* What every backend would have to check and count, once: handles, lengths, token ids, the rows of a step. */
#include "engine/batch.h"

#include "base/mem.h"
#include "engine/backend.h"
#include "engine/engine_internal.h"

struct sequence {
    bool open;
    bool in_step; /* while a step is checked */
    bool chosen;  /* the device chooses or has chosen the next token */
    int64_t length;
};

struct nmlp_batch {
    const nmlp_engine *engine;
    const nmlp_backend *backend;
    nmlp_batch_options limits;
    struct sequence *sequences; /* [max_sequences] */
    void *state;                /* the backend's */
};

static nmlp_status fill_limits(nmlp_batch_options *o, const nmlp_backend *backend, const nmlp_config *c,
                               nmlp_err *err) {
    if (o->context < 1 || o->context > c->max_positions)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "context", "is %lld; this model takes 1 to %lld tokens",
                               (long long)o->context, (long long)c->max_positions);
    if (o->max_sequences == 0) o->max_sequences = 1;
    if (o->max_sequences < 1 || o->max_sequences > NMLP_SEQUENCES_MAX)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "max_sequences", "is %lld; it must be 1 to %d",
                               (long long)o->max_sequences, NMLP_SEQUENCES_MAX);
    if (o->positions == 0) o->positions = o->max_sequences * o->context;
    if (o->positions < 1 || o->positions > INT32_MAX)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "positions", "is %lld; it must be 1 to %d", (long long)o->positions,
                               INT32_MAX);
    if (o->max_rows == 0) o->max_rows = backend->step_rows;
    if (o->max_rows > o->positions) o->max_rows = o->positions;
    if (o->max_rows < 1)
        return nmlp_fail_field(err, NMLP_E_LIMIT, "max_rows", "is %lld; it must be 1 or more", (long long)o->max_rows);
    return NMLP_OK;
}

nmlp_status nmlp_batch_create(nmlp_batch **out, const nmlp_engine *engine, const nmlp_batch_options *options,
                              nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_batch *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    b->engine = engine;
    b->backend = nmlp_engine_backend(engine);
    b->limits = *options;
    NMLP_TRY(fill_limits(&b->limits, b->backend, &nmlp_engine_model(engine)->config, err));
    b->sequences = nmlp_mem_new((size_t)b->limits.max_sequences, sizeof *b->sequences, err);
    if (!b->sequences) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(b->backend->batch_create(&b->state, nmlp_engine_weights(engine), &b->limits, err));
    *out = b;
out:
    if (st != NMLP_OK) nmlp_batch_destroy(b);
    return st;
}

void nmlp_batch_destroy(nmlp_batch *b) {
    if (!b) return;
    b->backend->batch_destroy(b->state);
    nmlp_mem_free(b->sequences);
    nmlp_mem_free(b);
}

const nmlp_engine *nmlp_batch_engine(const nmlp_batch *b) { return b->engine; }
const nmlp_batch_options *nmlp_batch_limits(const nmlp_batch *b) { return &b->limits; }

/* ---- sequences ---- */

static struct sequence *find(const nmlp_batch *b, int32_t sequence) {
    if (sequence < 0 || sequence >= b->limits.max_sequences || !b->sequences[sequence].open) return NULL;
    return &b->sequences[sequence];
}

static nmlp_status take_free(const nmlp_batch *b, int32_t *sequence, nmlp_err *err) {
    for (int32_t i = 0; i < b->limits.max_sequences; i++) {
        if (!b->sequences[i].open) {
            *sequence = i;
            return NMLP_OK;
        }
    }
    return nmlp_fail(err, NMLP_E_LIMIT, "all %lld sequences of the batch are open", (long long)b->limits.max_sequences);
}

static nmlp_status check_ids(const nmlp_batch *b, const int32_t *ids, int64_t n, nmlp_err *err) {
    int64_t vocab = nmlp_engine_model(b->engine)->config.vocab;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return nmlp_fail(err, NMLP_E_ARG, "token id %d at position %lld is outside the vocabulary of %lld", ids[i],
                             (long long)i, (long long)vocab);
    }
    return NMLP_OK;
}

nmlp_status nmlp_batch_open(nmlp_batch *b, const int32_t *ids, int64_t n, int32_t *sequence, nmlp_err *err) {
    int64_t n_cached = 0;
    *sequence = -1;
    int32_t i = -1;
    NMLP_RETURN_IF_FAILED(check_ids(b, ids, n, err));
    NMLP_RETURN_IF_FAILED(take_free(b, &i, err));
    NMLP_RETURN_IF_FAILED(b->backend->open(b->state, i, ids, n, &n_cached, err));
    b->sequences[i] = (struct sequence){.open = true, .length = n_cached};
    *sequence = i;
    return NMLP_OK;
}

void nmlp_batch_close(nmlp_batch *b, int32_t sequence) {
    struct sequence *s = find(b, sequence);
    if (!s) return;
    b->backend->close(b->state, sequence);
    *s = (struct sequence){0};
}

int64_t nmlp_batch_length(const nmlp_batch *b, int32_t sequence) {
    const struct sequence *s = find(b, sequence);
    return s ? s->length : 0;
}

void nmlp_batch_truncate(nmlp_batch *b, int32_t sequence, int64_t length) {
    struct sequence *s = find(b, sequence);
    if (!s || length < 0 || length >= s->length) return;
    s->length = b->backend->truncate(b->state, sequence, length);
    s->chosen = false;
}

static nmlp_status unknown_sequence(int32_t sequence, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_ARG, "sequence %d is not open", sequence);
}

nmlp_status nmlp_batch_fork(nmlp_batch *b, int32_t parent, int64_t length, int32_t *child, nmlp_err *err) {
    const struct sequence *s = find(b, parent);
    int32_t i = -1;
    *child = -1;
    if (!s) return unknown_sequence(parent, err);
    if (length < 0 || length > s->length)
        return nmlp_fail(err, NMLP_E_ARG, "%lld tokens are to be shared; the sequence has %lld", (long long)length,
                         (long long)s->length);
    if (!b->backend->fork)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "device %s cannot share the beginning of a sequence",
                         b->backend->name);
    NMLP_RETURN_IF_FAILED(take_free(b, &i, err));
    NMLP_RETURN_IF_FAILED(b->backend->fork(b->state, parent, length, i, err));
    b->sequences[i] = (struct sequence){.open = true, .length = length};
    *child = i;
    return NMLP_OK;
}

nmlp_status nmlp_batch_reserve(nmlp_batch *b, int32_t sequence, int64_t n, nmlp_err *err) {
    const struct sequence *s = find(b, sequence);
    if (!s) return unknown_sequence(sequence, err);
    if (n > b->limits.context - s->length) {
        nmlp_fail(err, NMLP_E_LIMIT, "%lld tokens do not fit: the context holds %lld, %lld are used", (long long)n,
                  (long long)b->limits.context, (long long)s->length);
        nmlp_fail_hint(err, "shorten the text or raise `context` (this model takes up to %lld)",
                       (long long)nmlp_engine_model(b->engine)->config.max_positions);
        return NMLP_E_LIMIT;
    }
    return b->backend->reserve(b->state, sequence, n, err);
}

/* ---- running ---- */

static nmlp_status check_item(const nmlp_batch *b, const nmlp_step_item *item, nmlp_err *err) {
    struct sequence *s = find(b, item->sequence);
    if (!s) return unknown_sequence(item->sequence, err);
    if (s->in_step) return nmlp_fail(err, NMLP_E_ARG, "sequence %d is twice in one step", item->sequence);
    s->in_step = true;
    if (item->n < 1 || item->n_logits < 0 || item->n_logits > item->n)
        return nmlp_fail(err, NMLP_E_ARG, "sequence %d: %lld rows with the logits of %lld", item->sequence,
                         (long long)item->n, (long long)item->n_logits);
    if (item->hidden && !b->backend->gives_hidden)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "device %s does not give the states of tokens", b->backend->name);
    if (item->choose && !nmlp_batch_can_choose(b, item->choose))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "device %s cannot choose tokens that way", b->backend->name);
    return check_ids(b, item->ids, item->n, err);
}

static nmlp_status check_step(nmlp_batch *b, const nmlp_step_item *items, int64_t n_items, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int64_t n_rows = 0;
    for (int64_t i = 0; i < n_items && st == NMLP_OK; i++) {
        st = check_item(b, &items[i], err);
        n_rows += items[i].n;
    }
    for (int64_t i = 0; i < n_items; i++) {
        struct sequence *s = find(b, items[i].sequence);
        if (s) s->in_step = false;
    }
    if (st == NMLP_OK && n_rows > b->limits.max_rows)
        st = nmlp_fail(err, NMLP_E_LIMIT, "a step of %lld rows; this batch takes %lld", (long long)n_rows,
                       (long long)b->limits.max_rows);
    for (int64_t i = 0; i < n_items && st == NMLP_OK; i++)
        st = nmlp_batch_reserve(b, items[i].sequence, items[i].n, err);
    return st;
}

nmlp_status nmlp_batch_step(nmlp_batch *b, const nmlp_step_item *items, int64_t n_items, nmlp_err *err) {
    if (n_items == 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(check_step(b, items, n_items, err));
    NMLP_RETURN_IF_FAILED(b->backend->step(b->state, items, n_items, err));
    for (int64_t i = 0; i < n_items; i++) {
        b->sequences[items[i].sequence].length += items[i].n;
        b->sequences[items[i].sequence].chosen = items[i].choose != NULL;
    }
    return NMLP_OK;
}

nmlp_status nmlp_batch_append(nmlp_batch *b, int32_t sequence, const int32_t *ids, int64_t n, float *logits,
                              const nmlp_sampling *choose, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_ids(b, ids, n, err));
    NMLP_RETURN_IF_FAILED(nmlp_batch_reserve(b, sequence, n, err));
    for (int64_t done = 0; done < n;) {
        int64_t some = n - done < b->limits.max_rows ? n - done : b->limits.max_rows;
        bool last = done + some == n;
        nmlp_step_item item = {.sequence = sequence,
                               .ids = ids + done,
                               .n = some,
                               .n_logits = last && logits,
                               .logits = logits,
                               .choose = last ? choose : NULL};
        NMLP_RETURN_IF_FAILED(nmlp_batch_step(b, &item, 1, err));
        done += some;
    }
    return NMLP_OK;
}

bool nmlp_batch_gives_hidden(const nmlp_batch *b) { return b->backend->gives_hidden; }

bool nmlp_batch_can_choose(const nmlp_batch *b, const nmlp_sampling *sampling) {
    return b->backend->can_choose && b->backend->can_choose(sampling);
}

nmlp_status nmlp_batch_choose(nmlp_batch *b, nmlp_choice_item *items, int64_t n_items, int64_t more, nmlp_err *err) {
    for (int64_t i = 0; i < n_items; i++) {
        const struct sequence *s = find(b, items[i].sequence);
        if (!s) return unknown_sequence(items[i].sequence, err);
        if (!s->chosen)
            return nmlp_fail(err, NMLP_E_ARG, "the last step of sequence %d did not ask for a choice",
                             items[i].sequence);
    }
    return b->backend->choose(b->state, items, n_items, more, err);
}

int64_t nmlp_batch_steps_ahead(const nmlp_batch *b) {
    return b->backend->steps_ahead ? b->backend->steps_ahead(b->state) : 0;
}
