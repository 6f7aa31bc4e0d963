#include "service/text_batch.h"

#include <stddef.h>

#include "base/mem.h"
#include "engine/scheduler.h"

enum { POSITIONS_COUNTED = 1024 };

struct item {
    nmlp_text_batch *batch;
    nmlp_text_request request;
    nmlp_text_on_done *on_done;
    uint64_t number;
    nmlp_ids prompt;
    nmlp_text_result result;
    nmlp_text_answer answer;
    nmlp_err err;
};

struct nmlp_text_batch {
    const nmlp_loaded *loaded;
    const nmlp_tokenizer *tokenizer;
    nmlp_batch *batch;
    nmlp_scheduler *scheduler;
    int64_t context, max_sequences;
    struct item **items; /* [max_sequences] NULL: free */
};

nmlp_status nmlp_text_batch_create(nmlp_text_batch **out, const nmlp_loaded *loaded, const nmlp_tokenizer *tokenizer,
                                   const nmlp_text_batch_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_batch_options limits = {.context = options->context, .max_sequences = options->max_sequences};
    *out = NULL;
    nmlp_text_batch *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    b->loaded = loaded;
    b->tokenizer = tokenizer;
    b->context = options->context;
    b->max_sequences = options->max_sequences;
    b->items = nmlp_mem_new((size_t)b->max_sequences, sizeof(struct item *), err);
    if (!b->items) NMLP_TRY(NMLP_E_NOMEM);
    if (options->kv_bytes > 0) {
        double each = (double)nmlp_engine_cache_bytes(loaded->engine, POSITIONS_COUNTED) / POSITIONS_COUNTED;
        limits.positions = (int64_t)((double)options->kv_bytes / each);
        if (limits.positions < options->context)
            NMLP_TRY(nmlp_fail_field(err, NMLP_E_LIMIT, "kv_bytes", "is %lld; one request of `context` %lld needs %.0f",
                                     (long long)options->kv_bytes, (long long)options->context,
                                     each * (double)options->context));
    }
    NMLP_TRY(nmlp_batch_create(&b->batch, loaded->engine, &limits, err));
    NMLP_TRY(nmlp_scheduler_create(&b->scheduler, b->batch, err));
    *out = b;
out:
    if (st != NMLP_OK) nmlp_text_batch_destroy(b);
    return st;
}

static void free_item(struct item *item) {
    nmlp_text_answer_fini(&item->answer);
    nmlp_text_result_fini(&item->result);
    nmlp_ids_fini(&item->prompt);
    nmlp_mem_free(item);
}

void nmlp_text_batch_destroy(nmlp_text_batch *b) {
    if (!b) return;
    nmlp_scheduler_destroy(b->scheduler);
    for (int64_t i = 0; b->items && i < b->max_sequences; i++)
        if (b->items[i]) free_item(b->items[i]);
    nmlp_batch_destroy(b->batch);
    nmlp_mem_free(b->items);
    nmlp_mem_free(b);
}

static void done(void *ctx, nmlp_status status, const nmlp_generation_stats *stats, const nmlp_err *err) {
    nmlp_text_answer *answer = ctx; /* inside its item */
    struct item *item = (struct item *)(void *)((char *)ctx - offsetof(struct item, answer));
    nmlp_text_batch *b = item->batch;
    item->result.n_cached = stats->n_cached;
    if (status == NMLP_OK) {
        status = nmlp_text_answer_end(answer, stats, &item->err);
        err = &item->err;
    }
    for (int64_t i = 0; i < b->max_sequences; i++)
        if (b->items[i] == item) b->items[i] = NULL;
    item->on_done(item->request.ctx, status, &item->result, status == NMLP_OK ? NULL : err);
    free_item(item);
}

static nmlp_status submit(struct item *item) {
    nmlp_text_batch *b = item->batch;
    NMLP_RETURN_IF_FAILED(nmlp_text_answer_begin(&item->answer, &b->loaded->model, b->tokenizer, &item->request,
                                                 &item->result, &item->err));
    NMLP_RETURN_IF_FAILED(nmlp_text_prompt_encode(&item->prompt, b->tokenizer, &item->request.prompt, &item->err));
    NMLP_RETURN_IF_FAILED(nmlp_text_check_room(&b->loaded->model.config, &item->prompt, b->context, &item->err));
    nmlp_scheduler_request asked = {.generation = nmlp_text_answer_generation(&item->answer, &item->prompt),
                                    .sequence = NMLP_SEQUENCE_NEW,
                                    .on_done = done};
    return nmlp_scheduler_submit(b->scheduler, &asked, &item->number, &item->err);
}

nmlp_status nmlp_text_batch_submit(nmlp_text_batch *b, const nmlp_text_request *request, nmlp_text_on_done *on_done,
                                   uint64_t *number, nmlp_err *err) {
    int64_t at = 0;
    while (at < b->max_sequences && b->items[at]) at++;
    if (at == b->max_sequences)
        return nmlp_fail(err, NMLP_E_LIMIT, "%lld requests are under way; no more run at once", (long long)at);
    struct item *item = nmlp_mem_new(1, sizeof *item, err);
    if (!item) return NMLP_E_NOMEM;
    *item = (struct item){.batch = b, .request = *request, .on_done = on_done};
    nmlp_ids_init(&item->prompt);
    nmlp_text_result_init(&item->result);
    nmlp_status st = submit(item);
    if (st != NMLP_OK) {
        if (err) *err = item->err;
        free_item(item);
        return st;
    }
    *number = item->number;
    b->items[at] = item;
    return NMLP_OK;
}

void nmlp_text_batch_cancel(nmlp_text_batch *b, uint64_t number) { nmlp_scheduler_cancel(b->scheduler, number); }

int64_t nmlp_text_batch_count(const nmlp_text_batch *b) { return nmlp_scheduler_count(b->scheduler); }

double nmlp_text_batch_memory_used(const nmlp_text_batch *b) { return nmlp_scheduler_memory_used(b->scheduler); }

void nmlp_text_batch_step(nmlp_text_batch *b) {
    nmlp_err err;
    (void)nmlp_scheduler_step(b->scheduler, &err); /* requests that fail hear of it themselves */
}
