#include "service/text_session.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum { LOGITS_ROWS_MAX = 64 };

struct nmlp_text_session {
    const nmlp_loaded *loaded;
    const nmlp_tokenizer *tokenizer;
    nmlp_batch *batch;
    nmlp_batch *draft; /* NULL: none */
    int32_t sequence;
    int64_t context;
    nmlp_ids held; /* the tokens whose keys and values the sequence has */
};

/* ---- sessions ---- */

nmlp_status nmlp_text_session_create(nmlp_text_session **out, const nmlp_loaded *loaded,
                                     const nmlp_tokenizer *tokenizer, int64_t context, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_batch_options options = {.context = context};
    *out = NULL;
    nmlp_text_session *s = nmlp_mem_new(1, sizeof *s, err);
    if (!s) return NMLP_E_NOMEM;
    s->loaded = loaded;
    s->tokenizer = tokenizer;
    s->context = context;
    nmlp_ids_init(&s->held);
    NMLP_TRY(nmlp_batch_create(&s->batch, loaded->engine, &options, err));
    NMLP_TRY(nmlp_batch_open(s->batch, NULL, 0, &s->sequence, err));
    *out = s;
out:
    if (st != NMLP_OK) nmlp_text_session_destroy(s);
    return st;
}

void nmlp_text_session_destroy(nmlp_text_session *s) {
    if (!s) return;
    nmlp_batch_destroy(s->batch);
    nmlp_batch_destroy(s->draft);
    nmlp_ids_fini(&s->held);
    nmlp_mem_free(s);
}

int64_t nmlp_text_session_context(const nmlp_text_session *s) { return s->context; }

nmlp_status nmlp_text_session_set_draft(nmlp_text_session *s, const nmlp_loaded *draft, nmlp_err *err) {
    int64_t most = draft->model.config.max_positions;
    nmlp_batch_options options = {.context = s->context < most ? s->context : most};
    NMLP_RETURN_IF_FAILED(nmlp_text_check_tokenizers(&s->loaded->model, &draft->model, "draft", err));
    nmlp_batch_destroy(s->draft);
    s->draft = NULL;
    return nmlp_batch_create(&s->draft, draft->engine, &options, err);
}

/* A sequence of which only the first `length` tokens are left. */
static void keep(nmlp_text_session *s, int64_t length) {
    nmlp_batch_truncate(s->batch, s->sequence, length);
    int64_t left = nmlp_batch_length(s->batch, s->sequence);
    s->held.len = (size_t)(left < length ? left : length);
}

/* After a step that failed the sequence can only be closed. */
static nmlp_status start_anew(nmlp_text_session *s, nmlp_err *err) {
    nmlp_batch_close(s->batch, s->sequence);
    s->held.len = 0;
    return nmlp_batch_open(s->batch, NULL, 0, &s->sequence, err);
}

static nmlp_status hold(nmlp_text_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    for (int64_t i = 0; i < n; i++) NMLP_RETURN_IF_FAILED(nmlp_ids_push(&s->held, ids[i], err));
    return NMLP_OK;
}

/* Appends ids to sequence and list; an interrupted or failed session begins anew. */
static nmlp_status append(nmlp_text_session *s, const int32_t *ids, int64_t n, nmlp_err *err) {
    nmlp_status st = nmlp_batch_append(s->batch, s->sequence, ids, n, NULL, NULL, err);
    return st == NMLP_OK ? hold(s, ids, n, err) : st;
}

/* ---- generation ---- */

static int64_t shared_tokens(const nmlp_text_session *s, const nmlp_ids *prompt) {
    int64_t n = 0, most = (int64_t)prompt->len - 1; /* the last token is always run: its logits are needed */
    while (n < most && n < (int64_t)s->held.len && s->held.data[n] == prompt->data[n]) n++;
    return n;
}

/* Appends the prompt up to its last step, so that the caller can end it between steps. */
static nmlp_status run_prompt(nmlp_text_session *s, const nmlp_text_answer *a, const nmlp_ids *prompt, bool *go_on,
                              nmlp_err *err) {
    int64_t step = nmlp_batch_limits(s->batch)->max_rows, n = (int64_t)prompt->len;
    *go_on = nmlp_text_answer_goes_on(a);
    while (*go_on && n - (int64_t)s->held.len > step) {
        NMLP_RETURN_IF_FAILED(append(s, prompt->data + s->held.len, step, err));
        *go_on = nmlp_text_answer_goes_on(a);
    }
    return NMLP_OK;
}

/* What the sequence holds after a generation: the prompt and the answer, except tokens chosen but not run. */
static nmlp_status remember(nmlp_text_session *s, const nmlp_ids *prompt, const nmlp_ids *answer, nmlp_err *err) {
    int64_t length = nmlp_batch_length(s->batch, s->sequence), n = (int64_t)s->held.len;
    int64_t from_prompt = (int64_t)prompt->len < length ? (int64_t)prompt->len : length;
    if (n < from_prompt) NMLP_RETURN_IF_FAILED(hold(s, prompt->data + n, from_prompt - n, err));
    if (length > from_prompt) NMLP_RETURN_IF_FAILED(hold(s, answer->data, length - from_prompt, err));
    return NMLP_OK;
}

static nmlp_status generate(nmlp_text_session *s, nmlp_text_answer *a, const nmlp_ids *prompt,
                            nmlp_generation_stats *stats, nmlp_err *err) {
    double started = nmlp_clock_seconds();
    bool go_on;
    NMLP_RETURN_IF_FAILED(run_prompt(s, a, prompt, &go_on, err));
    nmlp_generation generation = nmlp_text_answer_generation(a, prompt);
    if (!go_on) return NMLP_OK;
    double waited_ms = 1e3 * (nmlp_clock_seconds() - started);
    generation.n_held = (int64_t)s->held.len;
    generation.draft = s->draft;
    NMLP_RETURN_IF_FAILED(nmlp_generate(s->batch, s->sequence, &generation, stats, err));
    stats->ttft_ms += waited_ms;
    return remember(s, prompt, &a->result->ids, err);
}

static nmlp_status run(nmlp_text_session *s, nmlp_text_answer *a, const nmlp_ids *prompt, nmlp_err *err) {
    nmlp_generation_stats stats = {.finish = NMLP_FINISH_CALLER};
    NMLP_RETURN_IF_FAILED(nmlp_text_check_room(a->config, prompt, s->context, err));
    int64_t shared = a->request->fresh ? 0 : shared_tokens(s, prompt);
    keep(s, shared);
    a->result->n_cached = shared;
    nmlp_status st = generate(s, a, prompt, &stats, err);
    if (st == NMLP_OK) return nmlp_text_answer_end(a, &stats, err);
    (void)start_anew(s, NULL);
    return st;
}

nmlp_status nmlp_text_session_run(nmlp_text_session *s, const nmlp_text_request *r, nmlp_text_result *result,
                                  nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_text_answer a;
    nmlp_ids prompt;
    nmlp_ids_init(&prompt);
    NMLP_TRY(nmlp_text_answer_begin(&a, &s->loaded->model, s->tokenizer, r, result, err));
    NMLP_TRY(nmlp_text_prompt_encode(&prompt, s->tokenizer, &r->prompt, err));
    NMLP_TRY(run(s, &a, &prompt, err));
out:
    nmlp_text_answer_fini(&a);
    nmlp_ids_fini(&prompt);
    return st;
}

/* ---- the model's opinion of given tokens ---- */

static nmlp_status run_rows(nmlp_text_session *s, const int32_t *ids, int64_t n, int64_t first, float *rows,
                            nmlp_text_on_logits *on_row, void *ctx, nmlp_err *err) {
    int64_t vocab = s->loaded->model.config.vocab, most = nmlp_batch_limits(s->batch)->max_rows;
    int64_t piece = most < LOGITS_ROWS_MAX ? most : LOGITS_ROWS_MAX;
    if (first > 0) NMLP_RETURN_IF_FAILED(append(s, ids, first, err));
    for (int64_t done = first; done < n;) {
        int64_t some = n - done < piece ? n - done : piece;
        nmlp_step_item item = {.sequence = s->sequence, .ids = ids + done, .n = some, .n_logits = some, .logits = rows};
        NMLP_RETURN_IF_FAILED(nmlp_batch_step(s->batch, &item, 1, err));
        NMLP_RETURN_IF_FAILED(hold(s, ids + done, some, err));
        for (int64_t i = 0; i < some; i++)
            if (!on_row(ctx, done + i, rows + i * vocab)) return nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped");
        done += some;
    }
    return NMLP_OK;
}

nmlp_status nmlp_text_session_logits(nmlp_text_session *s, const int32_t *ids, int64_t n, int64_t first,
                                     nmlp_text_on_logits *on_row, void *ctx, nmlp_err *err) {
    if (n < 1) return nmlp_fail_field(err, NMLP_E_ARG, "ids", "is empty; at least one token is needed");
    if (first < 0 || first >= n)
        return nmlp_fail_field(err, NMLP_E_ARG, "first", "is %lld; it must be 0 to %lld", (long long)first,
                               (long long)n - 1);
    size_t rows_elems = (size_t)LOGITS_ROWS_MAX * (size_t)s->loaded->model.config.vocab;
    float *rows = nmlp_mem_new(rows_elems, sizeof *rows, err);
    if (!rows) return NMLP_E_NOMEM;
    keep(s, 0);
    nmlp_status st = run_rows(s, ids, n, first, rows, on_row, ctx, err);
    if (st != NMLP_OK) (void)start_anew(s, NULL);
    nmlp_mem_free(rows);
    return st;
}
