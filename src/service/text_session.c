#include "service/text_session.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/logprob.h"
#include "service/stop_text.h"

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

/* ---- prompts ---- */

nmlp_status nmlp_text_prompt_encode(nmlp_ids *ids, const nmlp_tokenizer *tokenizer, const nmlp_text_prompt *p,
                                    nmlp_err *err) {
    if ((p->text != NULL) + (p->messages != NULL) + (p->ids != NULL) > 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "prompt", "must be one of a text, messages and token ids");
    if (!p->text && !p->messages) {
        for (size_t i = 0; i < p->n_ids; i++) NMLP_RETURN_IF_FAILED(nmlp_ids_push(ids, p->ids[i], err));
        return NMLP_OK;
    }
    if (!tokenizer) return nmlp_fail_field(err, NMLP_E_ARG, "prompt", "is text, but no tokenizer is loaded");
    if (p->text)
        return nmlp_tokenizer_encode(tokenizer, p->text, p->len, p->no_bos ? NMLP_BOS_NONE : NMLP_BOS_TEMPLATE,
                                     !p->no_special, ids, err);
    for (size_t i = 0; i < p->n_messages; i++)
        if (!p->messages[i].role || !p->messages[i].content)
            return nmlp_fail_field(err, NMLP_E_ARG, "messages", "[%zu] lacks its role or content", i);
    return nmlp_chat_encode(tokenizer, p->messages, p->n_messages, ids, err);
}

int64_t nmlp_text_context(const nmlp_config *config, int64_t asked, int64_t n_prompt, int64_t max_new) {
    if (asked > 0) return asked;
    int64_t cap = config->max_positions < NMLP_TEXT_CONTEXT_MAX ? config->max_positions : NMLP_TEXT_CONTEXT_MAX;
    if (n_prompt >= cap) cap = config->max_positions; /* a long prompt says what it needs by being there */
    return max_new < cap - n_prompt ? n_prompt + max_new : cap;
}

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

/* Ids mean the same in both models where their tokenizer files are the same. */
static nmlp_status check_tokenizers(const char *dir, const char *draft_dir, nmlp_err *err) {
    enum { PATH_BYTES = 4096 };
    char path[PATH_BYTES];
    nmlp_file_map own = {0}, other = {0};
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_path_join(path, sizeof path, dir, "tokenizer.json", err));
    NMLP_TRY(nmlp_file_map_open(&own, path, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, draft_dir, "tokenizer.json", err));
    NMLP_TRY(nmlp_file_map_open(&other, path, err));
    if (own.bytes != other.bytes || memcmp(own.data, other.data, own.bytes) != 0)
        st = nmlp_fail_field(err, NMLP_E_ARG, "draft", "is %s, whose tokenizer.json is not that of %s", draft_dir, dir);
out:
    nmlp_file_map_close(&own);
    nmlp_file_map_close(&other);
    return st;
}

nmlp_status nmlp_text_session_set_draft(nmlp_text_session *s, const nmlp_loaded *draft, nmlp_err *err) {
    int64_t most = draft->model.config.max_positions;
    nmlp_batch_options options = {.context = s->context < most ? s->context : most};
    NMLP_RETURN_IF_FAILED(check_tokenizers(s->loaded->model.checkpoint.dir, draft->model.checkpoint.dir, err));
    nmlp_batch_destroy(s->draft);
    s->draft = NULL;
    return nmlp_batch_create(&s->draft, draft->engine, &options, err);
}

/* A sequence of which only the first `length` tokens are left. */
static void keep(nmlp_text_session *s, int64_t length) {
    nmlp_batch_truncate(s->batch, s->sequence, length);
    s->held.len = (size_t)length;
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

void nmlp_text_result_init(nmlp_text_result *result) {
    *result = (nmlp_text_result){0};
    nmlp_str_init(&result->text);
    nmlp_ids_init(&result->ids);
}

void nmlp_text_result_fini(nmlp_text_result *result) {
    nmlp_str_fini(&result->text);
    nmlp_ids_fini(&result->ids);
}

const char *nmlp_finish_name(nmlp_finish finish) {
    static const char *const names[] = {"length", "stop", "context", "caller"};
    return names[finish];
}

static int64_t n_decoded(const nmlp_text_result *r) { return r->ids.len > 1 ? (int64_t)r->ids.len - 1 : 0; }

double nmlp_text_prefill_rate(const nmlp_text_result *r) {
    return r->ttft_ms > 0 ? 1e3 * (double)(r->n_prompt - r->n_cached) / r->ttft_ms : 0;
}

double nmlp_text_decode_rate(const nmlp_text_result *r) {
    return r->decode_ms > 0 ? 1e3 * (double)n_decoded(r) / r->decode_ms : 0;
}

double nmlp_text_decode_ms_per_token(const nmlp_text_result *r) {
    return n_decoded(r) ? r->decode_ms / (double)n_decoded(r) : 0;
}

/* A generation under way. */
struct answer {
    nmlp_text_session *session;
    const nmlp_text_request *request;
    nmlp_text_result *result;
    nmlp_decode_stream decoder;
    nmlp_stop_text stop;
    size_t released; /* bytes of the text given out */
    bool stopped;    /* by a stop string */
    double logprob;  /* of the next token */
    nmlp_token_logprob top[NMLP_TOP_LOGPROBS_MAX];
    nmlp_status st;
    nmlp_err *err;
};

static bool goes_on(const nmlp_text_request *r) { return !r->go_on || r->go_on(r->ctx); }

static void on_logits(void *ctx, const float *logits, int32_t id) {
    struct answer *a = ctx;
    a->logprob = nmlp_token_logprobs(logits, a->session->loaded->model.config.vocab, id, a->top, a->request->n_top);
}

/* Gives out what cannot become a stop string any more; at the end of the text, all of it. */
static bool release_text(struct answer *a, bool at_end) {
    const nmlp_text_request *r = a->request;
    nmlp_str *text = &a->result->text;
    size_t upto = nmlp_stop_text_release(&a->stop, text->data, text->len, a->released, &a->stopped);
    if (at_end && !a->stopped) upto = text->len;
    bool go_on = upto == a->released || !r->on_text || r->on_text(r->ctx, text->data + a->released, upto - a->released);
    a->released = upto;
    if (a->stopped) text->data[text->len = upto] = '\0';
    return go_on && !a->stopped;
}

static bool on_token(void *ctx, int32_t id) {
    struct answer *a = ctx;
    const nmlp_text_request *r = a->request;
    nmlp_text_token token = {.id = id, .logprob = r->logprobs ? a->logprob : (double)NAN, .top = a->top};
    token.n_top = r->logprobs ? r->n_top : 0;
    a->st = nmlp_ids_push(&a->result->ids, id, a->err);
    if (a->st != NMLP_OK) return false;
    if (r->on_token && !r->on_token(r->ctx, &token)) return false;
    /* Checkpoints pad their vocabulary: an id the tokenizer has no text for gives none. */
    if (a->session->tokenizer && id < nmlp_tokenizer_vocab_size(a->session->tokenizer)) {
        a->st = nmlp_decode_stream_push(&a->decoder, id, &a->result->text, a->err);
        if (a->st == NMLP_OK) a->st = nmlp_str_status(&a->result->text, a->err);
        if (a->st != NMLP_OK || (a->result->text.len && !release_text(a, false))) return false;
    }
    return goes_on(r);
}

static nmlp_status check_request(const nmlp_text_request *r, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_sampling_check(&r->sampling, err));
    if (r->max_new < 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "max_new", "is %lld; it must be 1 or more", (long long)r->max_new);
    if (r->n_top < 0 || r->n_top > NMLP_TOP_LOGPROBS_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "top_logprobs", "is %d; it must be 0 to %d", r->n_top,
                               NMLP_TOP_LOGPROBS_MAX);
    if (r->n_stop > NMLP_STOP_STRINGS_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "stop", "has %zu strings; %d are taken", r->n_stop,
                               NMLP_STOP_STRINGS_MAX);
    for (size_t i = 0; i < r->n_stop; i++)
        if (!r->stop[i] || !r->stop[i][0])
            return nmlp_fail_field(err, NMLP_E_ARG, "stop", "[%zu] is empty; every stop string needs a character", i);
    return NMLP_OK;
}

static int64_t shared_tokens(const nmlp_text_session *s, const nmlp_ids *prompt) {
    int64_t n = 0, most = (int64_t)prompt->len - 1; /* the last token is always run: its logits are needed */
    while (n < most && n < (int64_t)s->held.len && s->held.data[n] == prompt->data[n]) n++;
    return n;
}

/* Appends the prompt up to its last step, so that the caller can end it between steps. */
static nmlp_status run_prompt(struct answer *a, const nmlp_ids *prompt, bool *go_on, nmlp_err *err) {
    nmlp_text_session *s = a->session;
    int64_t step = nmlp_batch_limits(s->batch)->max_rows, n = (int64_t)prompt->len;
    *go_on = goes_on(a->request);
    while (*go_on && n - (int64_t)s->held.len > step) {
        NMLP_RETURN_IF_FAILED(append(s, prompt->data + s->held.len, step, err));
        *go_on = goes_on(a->request);
    }
    return NMLP_OK;
}

static nmlp_status check_room(const nmlp_text_session *s, const nmlp_ids *prompt, nmlp_err *err) {
    if (prompt->len < 1) return nmlp_fail_field(err, NMLP_E_ARG, "prompt", "is empty; at least one token is needed");
    if ((int64_t)prompt->len < s->context) return NMLP_OK;
    nmlp_fail(err, NMLP_E_LIMIT, "the prompt has %zu tokens; the context of %lld leaves no room for an answer",
              prompt->len, (long long)s->context);
    nmlp_fail_hint(err, "shorten the prompt or raise `context` (this model takes up to %lld)",
                   (long long)s->loaded->model.config.max_positions);
    return NMLP_E_LIMIT;
}

static nmlp_status generate(struct answer *a, const nmlp_ids *prompt, nmlp_err *err) {
    const nmlp_text_request *r = a->request;
    nmlp_text_session *s = a->session;
    const nmlp_config *c = &s->loaded->model.config;
    int64_t stop_ids[NMLP_STOP_IDS_MAX + 1];
    nmlp_generation_stats stats;
    bool go_on;
    double started = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(run_prompt(a, prompt, &go_on, err));
    a->result->finish = NMLP_FINISH_CALLER;
    if (!go_on) return NMLP_OK;
    double waited_ms = 1e3 * (nmlp_clock_seconds() - started);
    nmlp_generation generation = {.prompt = prompt->data,
                                  .n_prompt = (int64_t)prompt->len,
                                  .n_held = (int64_t)s->held.len,
                                  .max_new = r->max_new,
                                  .sampling = r->sampling,
                                  .stop_ids = stop_ids,
                                  .draft = s->draft,
                                  .on_logits = r->logprobs ? on_logits : NULL,
                                  .on_token = on_token,
                                  .ctx = a};
    if (!r->ignore_eos) {
        memcpy(stop_ids, c->stop_ids, sizeof c->stop_ids);
        generation.n_stop_ids = c->n_stop_ids;
        if ((r->prompt.messages || r->is_chat) && s->tokenizer)
            stop_ids[generation.n_stop_ids++] = nmlp_chat_end_id(s->tokenizer);
    }
    NMLP_RETURN_IF_FAILED(nmlp_generate(s->batch, s->sequence, &generation, &stats, err));
    NMLP_RETURN_IF_FAILED(a->st);
    a->result->finish = a->stopped ? NMLP_FINISH_STOP : stats.finish;
    a->result->ttft_ms = waited_ms + stats.ttft_ms;
    a->result->decode_ms = stats.decode_ms;
    a->result->n_proposed = stats.n_proposed;
    a->result->n_accepted = stats.n_accepted;
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

static nmlp_status run(struct answer *a, const nmlp_ids *prompt, nmlp_err *err) {
    nmlp_text_session *s = a->session;
    nmlp_text_result *result = a->result;
    NMLP_RETURN_IF_FAILED(check_room(s, prompt, err));
    int64_t shared = a->request->fresh ? 0 : shared_tokens(s, prompt);
    keep(s, shared);
    result->n_prompt = (int64_t)prompt->len;
    result->n_cached = shared;
    nmlp_status st = generate(a, prompt, err);
    if (st == NMLP_OK) st = remember(s, prompt, &result->ids, err);
    if (st != NMLP_OK) {
        (void)start_anew(s, NULL);
        return st;
    }
    if (!s->tokenizer || a->stopped) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_decode_stream_flush(&a->decoder, &result->text, err));
    NMLP_RETURN_IF_FAILED(nmlp_str_status(&result->text, err));
    if (result->text.len) (void)release_text(a, true);
    return NMLP_OK;
}

nmlp_status nmlp_text_session_run(nmlp_text_session *s, const nmlp_text_request *r, nmlp_text_result *result,
                                  nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_ids prompt;
    struct answer a = {.session = s, .request = r, .result = result, .stop = {r->stop, r->n_stop}, .err = err};
    nmlp_ids_init(&prompt);
    nmlp_str_clear(&result->text);
    result->ids.len = 0;
    result->n_prompt = result->n_cached = 0;
    result->ttft_ms = result->decode_ms = 0;
    if (s->tokenizer) nmlp_decode_stream_init(&a.decoder, s->tokenizer, true);
    NMLP_TRY(check_request(r, err));
    NMLP_TRY(nmlp_text_prompt_encode(&prompt, s->tokenizer, &r->prompt, err));
    NMLP_TRY(run(&a, &prompt, err));
out:
    nmlp_decode_stream_fini(&a.decoder);
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

double nmlp_token_logprobs(const float *logits, int64_t vocab, int32_t id, nmlp_token_logprob *top, int n_top) {
    double sum = nmlp_log_sum_exp(logits, vocab);
    int n = 0;
    for (int64_t v = 0; v < vocab && n_top > 0; v++) {
        double logprob = (double)logits[v] - sum;
        if (n == n_top && !(logprob > top[n - 1].logprob)) continue;
        int at = n < n_top ? n++ : n - 1;
        while (at > 0 && top[at - 1].logprob < logprob) {
            top[at] = top[at - 1];
            at--;
        }
        top[at] = (nmlp_token_logprob){.id = (int32_t)v, .logprob = logprob};
    }
    return (double)logits[id] - sum;
}
