#include "engine/backend_shared.h"

#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "engine/engine_internal.h"

enum { BATCHES_MAX = 16, FRONT_BYTES = 1024, QUEUE_BYTES = 1 << 16 };

enum call {
    CALL_END,
    CALL_CREATE,
    CALL_DESTROY,
    CALL_OPEN,
    CALL_CLOSE,
    CALL_TRUNCATE,
    CALL_FORK,
    CALL_RESERVE,
    CALL_STEP
};

/* A call on its way; its words come behind it. */
struct packet {
    int32_t call, batch, sequence, child;
    int64_t n; /* tokens, a length, or the items of a step */
    nmlp_batch_options options;
    int64_t n_words; /* even, so that the next packet is aligned */
};

/* Calls travel in one message, several at a time; what does not fit into it comes in a second one. */
struct front {
    int64_t bytes;
    char data[FRONT_BYTES];
};

/* Of an item of a step: three words, then its ids. */
enum { ITEM_WORDS = 3 };

/* ---- the first member ---- */

struct shared_weights {
    void *own;
    const nmlp_process_group *group;
    bool taken[BATCHES_MAX];
    char *queue; /* calls that the others have not heard of */
    size_t used, room;
};

struct shared_batch {
    struct shared_weights *weights;
    void *own;
    int32_t number;
    int32_t *words; /* of a step, or of a text to open */
    int64_t room;
};

static nmlp_status flush(struct shared_weights *w, nmlp_err *err) {
    struct front front = {.bytes = (int64_t)w->used};
    size_t some = w->used < FRONT_BYTES ? w->used : FRONT_BYTES;
    memcpy(front.data, w->queue, some);
    NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(w->group, &front, sizeof front, err));
    size_t rest = w->used - some;
    w->used = 0;
    return rest > 0 ? nmlp_group_broadcast(w->group, w->queue + some, (int64_t)rest, err) : NMLP_OK;
}

/* The others need to answer nothing, so a call waits until a step, or much else, goes with it: one message a step. */
static nmlp_status send(struct shared_weights *w, struct packet *p, const int32_t *words, int64_t n_words, bool now,
                        nmlp_err *err) {
    p->n_words = n_words + n_words % 2;
    size_t bytes = sizeof *p + (size_t)p->n_words * sizeof *words, need;
    if (nmlp_add_overflows(w->used, bytes, &need)) return NMLP_E_LIMIT;
    if (need > w->room) {
        char *larger = nmlp_mem_new(2 * need, 1, err);
        if (!larger) return NMLP_E_NOMEM;
        if (w->used > 0) memcpy(larger, w->queue, w->used);
        nmlp_mem_free(w->queue);
        w->queue = larger;
        w->room = 2 * need;
    }
    memset(w->queue + w->used, 0, bytes);
    memcpy(w->queue + w->used, p, sizeof *p);
    if (n_words > 0) memcpy(w->queue + w->used + sizeof *p, words, (size_t)n_words * sizeof *words);
    w->used = need;
    return now || w->used > QUEUE_BYTES ? flush(w, err) : NMLP_OK;
}

static nmlp_status probe(nmlp_err *err) { return nmlp_backend_cpu()->probe(err); }

static nmlp_status weights_create(void **out, const nmlp_model *model, const nmlp_engine_options *options,
                                  nmlp_err *err) {
    struct shared_weights *w = nmlp_mem_new(1, sizeof *w, err);
    if (!w) return NMLP_E_NOMEM;
    w->group = options->tensor_group;
    nmlp_status st = nmlp_backend_cpu()->weights_create(&w->own, model, options, err);
    if (st != NMLP_OK) {
        nmlp_mem_free(w);
        return st;
    }
    *out = w;
    return NMLP_OK;
}

static void weights_destroy(void *weights) {
    struct shared_weights *w = weights;
    struct packet end = {.call = CALL_END};
    if (!w) return;
    (void)send(w, &end, NULL, 0, true, NULL);
    nmlp_backend_cpu()->weights_destroy(w->own);
    nmlp_mem_free(w->queue);
    nmlp_mem_free(w);
}

static const char *weights_name(const void *weights) {
    return nmlp_backend_cpu()->weights_name(((const struct shared_weights *)weights)->own);
}

static size_t cache_bytes(const void *weights, int64_t positions) {
    return nmlp_backend_cpu()->cache_bytes(((const struct shared_weights *)weights)->own, positions);
}

static nmlp_status batch_create(void **out, const void *weights, const nmlp_batch_options *options, nmlp_err *err) {
    struct shared_weights *w = (struct shared_weights *)(uintptr_t)weights; /* a batch takes a number of it */
    int32_t number = 0;
    *out = NULL;
    while (number < BATCHES_MAX && w->taken[number]) number++;
    if (number == BATCHES_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%d batches of a shared model are open already", BATCHES_MAX);
    struct shared_batch *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    *b = (struct shared_batch){.weights = w, .number = number};
    b->room = nmlp_max(options->max_rows, options->context) + ITEM_WORDS * options->max_sequences;
    b->words = nmlp_mem_new((size_t)b->room, sizeof *b->words, err);
    struct packet p = {.call = CALL_CREATE, .batch = number, .options = *options};
    nmlp_status st = b->words ? send(w, &p, NULL, 0, true, err) : NMLP_E_NOMEM;
    if (st == NMLP_OK) st = nmlp_backend_cpu()->batch_create(&b->own, w->own, options, err);
    if (st != NMLP_OK) {
        nmlp_mem_free(b->words);
        nmlp_mem_free(b);
        return st;
    }
    w->taken[number] = true;
    *out = b;
    return NMLP_OK;
}

static void batch_destroy(void *batch) {
    struct shared_batch *b = batch;
    if (!b) return;
    struct packet p = {.call = CALL_DESTROY, .batch = b->number};
    (void)send(b->weights, &p, NULL, 0, true, NULL);
    b->weights->taken[b->number] = false;
    nmlp_backend_cpu()->batch_destroy(b->own);
    nmlp_mem_free(b->words);
    nmlp_mem_free(b);
}

static nmlp_status open_sequence(void *batch, int32_t sequence, const int32_t *ids, int64_t n, int64_t *n_cached,
                                 nmlp_err *err) {
    struct shared_batch *b = batch;
    struct packet p = {.call = CALL_OPEN, .batch = b->number, .sequence = sequence, .n = n};
    NMLP_RETURN_IF_FAILED(send(b->weights, &p, ids, n, false, err));
    return nmlp_backend_cpu()->open(b->own, sequence, ids, n, n_cached, err);
}

static void close_sequence(void *batch, int32_t sequence) {
    struct shared_batch *b = batch;
    struct packet p = {.call = CALL_CLOSE, .batch = b->number, .sequence = sequence};
    (void)send(b->weights, &p, NULL, 0, false, NULL);
    nmlp_backend_cpu()->close(b->own, sequence);
}

static int64_t truncate_sequence(void *batch, int32_t sequence, int64_t length) {
    struct shared_batch *b = batch;
    struct packet p = {.call = CALL_TRUNCATE, .batch = b->number, .sequence = sequence, .n = length};
    (void)send(b->weights, &p, NULL, 0, false, NULL);
    return nmlp_backend_cpu()->truncate(b->own, sequence, length);
}

static nmlp_status fork_sequence(void *batch, int32_t parent, int64_t length, int32_t child, nmlp_err *err) {
    struct shared_batch *b = batch;
    struct packet p = {.call = CALL_FORK, .batch = b->number, .sequence = parent, .child = child, .n = length};
    NMLP_RETURN_IF_FAILED(send(b->weights, &p, NULL, 0, false, err));
    return nmlp_backend_cpu()->fork(b->own, parent, length, child, err);
}

static nmlp_status reserve(void *batch, int32_t sequence, int64_t n, nmlp_err *err) {
    struct shared_batch *b = batch;
    struct packet p = {.call = CALL_RESERVE, .batch = b->number, .sequence = sequence, .n = n};
    NMLP_RETURN_IF_FAILED(send(b->weights, &p, NULL, 0, false, err));
    return nmlp_backend_cpu()->reserve(b->own, sequence, n, err);
}

static nmlp_status step(void *batch, const nmlp_step_item *items, int64_t n_items, nmlp_err *err) {
    struct shared_batch *b = batch;
    struct packet p = {.call = CALL_STEP, .batch = b->number, .n = n_items};
    int64_t at = 0;
    for (int64_t i = 0; i < n_items; i++) {
        const nmlp_step_item *item = &items[i];
        if (at + ITEM_WORDS + item->n > b->room)
            return nmlp_fail(err, NMLP_E_LIMIT, "a step of %lld items is more than a shared batch takes",
                             (long long)n_items);
        b->words[at] = item->sequence;
        b->words[at + 1] = (int32_t)item->n;
        b->words[at + 2] = (int32_t)item->n_logits;
        memcpy(b->words + at + ITEM_WORDS, item->ids, (size_t)item->n * sizeof *b->words);
        at += ITEM_WORDS + item->n;
    }
    NMLP_RETURN_IF_FAILED(send(b->weights, &p, b->words, at, true, err));
    return nmlp_backend_cpu()->step(b->own, items, n_items, err);
}

static nmlp_status scorer_create(void **out, const void *weights, int64_t positions, nmlp_err *err) {
    (void)weights, (void)positions;
    *out = NULL;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "a model shared by processes does not score texts");
}

static void scorer_destroy(void *scorer) { (void)scorer; }

const nmlp_backend *nmlp_backend_shared(void) {
    static const nmlp_backend table = {
        .name = "cpu",
        .gives_hidden = true,
        .step_rows = 1024,
        .probe = probe,
        .weights_create = weights_create,
        .weights_destroy = weights_destroy,
        .weights_name = weights_name,
        .cache_bytes = cache_bytes,
        .batch_create = batch_create,
        .batch_destroy = batch_destroy,
        .open = open_sequence,
        .close = close_sequence,
        .truncate = truncate_sequence,
        .fork = fork_sequence,
        .reserve = reserve,
        .step = step,
        .scorer_create = scorer_create,
        .scorer_destroy = scorer_destroy,
    };
    return &table;
}

/* ---- the others ---- */

struct follower {
    const nmlp_engine *engine;
    const nmlp_process_group *group;
    void *batches[BATCHES_MAX];
    char *calls; /* of one message */
    int64_t room;
    const struct packet *packet; /* of the call at hand */
    const int32_t *words;        /* behind it */
    nmlp_step_item *items;
    int64_t items_room;
    float *logits;
    int64_t logits_room;
};

/* *memory has room for n items of so many bytes; what was in it is gone. */
static nmlp_status grow(void **memory, int64_t *room, int64_t n, size_t item_bytes, nmlp_err *err) {
    if (n <= *room) return NMLP_OK;
    nmlp_mem_free(*memory);
    *room = 0;
    *memory = nmlp_mem_new((size_t)n, item_bytes, err);
    if (!*memory) return NMLP_E_NOMEM;
    *room = n;
    return NMLP_OK;
}

static nmlp_status receive(struct follower *f, int64_t *bytes, nmlp_err *err) {
    struct front front;
    void *calls = f->calls;
    NMLP_RETURN_IF_FAILED(nmlp_group_await(f->group, &front, sizeof front, err));
    *bytes = front.bytes;
    nmlp_status st = grow(&calls, &f->room, front.bytes, 1, err);
    f->calls = calls;
    NMLP_RETURN_IF_FAILED(st);
    int64_t some = nmlp_min(front.bytes, FRONT_BYTES);
    memcpy(f->calls, front.data, (size_t)some);
    return front.bytes > some ? nmlp_group_broadcast(f->group, f->calls + some, front.bytes - some, err) : NMLP_OK;
}

static nmlp_status follow_step(struct follower *f, void *batch, nmlp_err *err) {
    const struct packet *p = f->packet;
    int64_t vocab = nmlp_engine_model(f->engine)->config.vocab, n_logits = 0, at = 0;
    void *items = f->items, *logits = f->logits;
    nmlp_status st = grow(&items, &f->items_room, p->n, sizeof *f->items, err);
    f->items = items;
    NMLP_RETURN_IF_FAILED(st);
    for (int64_t i = 0; i < p->n; i++) {
        const int32_t *w = f->words + at;
        f->items[i] = (nmlp_step_item){.sequence = w[0], .ids = w + ITEM_WORDS, .n = w[1], .n_logits = w[2]};
        n_logits += w[2];
        at += ITEM_WORDS + w[1];
    }
    st = grow(&logits, &f->logits_room, n_logits * vocab, sizeof *f->logits, err);
    f->logits = logits;
    NMLP_RETURN_IF_FAILED(st);
    float *next = f->logits;
    for (int64_t i = 0; i < p->n; next += f->items[i++].n_logits * vocab)
        if (f->items[i].n_logits > 0) f->items[i].logits = next;
    return nmlp_backend_cpu()->step(batch, f->items, p->n, err);
}

/* A refusal of memory is the first member's too, who deals with it. */
static nmlp_status unless_limit(nmlp_status st) { return st == NMLP_E_LIMIT ? NMLP_OK : st; }

static nmlp_status follow_call(struct follower *f, nmlp_err *err) {
    const struct packet *p = f->packet;
    const nmlp_backend *cpu = nmlp_backend_cpu();
    void **batch = &f->batches[p->batch];
    int64_t n_cached;
    switch ((enum call)p->call) {
    case CALL_CREATE: return cpu->batch_create(batch, nmlp_engine_weights(f->engine), &p->options, err);
    case CALL_DESTROY:
        cpu->batch_destroy(*batch);
        *batch = NULL;
        return NMLP_OK;
    case CALL_OPEN: return unless_limit(cpu->open(*batch, p->sequence, f->words, p->n, &n_cached, err));
    case CALL_CLOSE: cpu->close(*batch, p->sequence); return NMLP_OK;
    case CALL_TRUNCATE: (void)cpu->truncate(*batch, p->sequence, p->n); return NMLP_OK;
    case CALL_FORK: return unless_limit(cpu->fork(*batch, p->sequence, p->n, p->child, err));
    case CALL_RESERVE: return unless_limit(cpu->reserve(*batch, p->sequence, p->n, err));
    case CALL_STEP: return follow_step(f, *batch, err);
    default: return nmlp_fail(err, NMLP_E_FORMAT, "the first process sent call %d, which is not known", p->call);
    }
}

nmlp_status nmlp_engine_follow(const nmlp_engine *engine, const nmlp_process_group *group, nmlp_err *err) {
    struct follower f = {.engine = engine, .group = group};
    nmlp_status st = NMLP_OK;
    bool ended = false;
    while (!ended) {
        int64_t bytes;
        NMLP_TRY(receive(&f, &bytes, err));
        for (int64_t at = 0; at < bytes && !ended;) {
            f.packet = (const struct packet *)(const void *)(f.calls + at);
            f.words = (const int32_t *)(f.packet + 1);
            at += (int64_t)(sizeof *f.packet + (size_t)f.packet->n_words * sizeof *f.words);
            ended = f.packet->call == CALL_END;
            if (!ended) NMLP_TRY(follow_call(&f, err));
        }
    }
out:
    for (int i = 0; i < BATCHES_MAX; i++) nmlp_backend_cpu()->batch_destroy(f.batches[i]);
    nmlp_mem_free(f.calls);
    nmlp_mem_free(f.items);
    nmlp_mem_free(f.logits);
    return st;
}
