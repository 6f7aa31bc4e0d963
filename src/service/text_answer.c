#include "service/text_answer.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "engine/logprob.h"
#include "text/chat_template.h"

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
    const nmlp_chat_template *own = nmlp_tokenizer_chat_template(tokenizer);
    if (own && p->messages_json) {
        const nmlp_chat_render_options options = {
            .add_generation_prompt = true, .tools_json = p->tools_json, .kwargs_json = p->kwargs_json};
        return nmlp_chat_template_encode(own, tokenizer, p->messages_json, &options, ids, err);
    }
    return nmlp_chat_encode(tokenizer, p->messages, p->n_messages, ids, err);
}

int64_t nmlp_text_context(const nmlp_config *config, int64_t asked, int64_t n_prompt, int64_t max_new) {
    if (asked > 0) return asked;
    int64_t cap = config->max_positions < NMLP_TEXT_CONTEXT_MAX ? config->max_positions : NMLP_TEXT_CONTEXT_MAX;
    if (n_prompt >= cap) cap = config->max_positions; /* a long prompt says what it needs by being there */
    return max_new < cap - n_prompt ? n_prompt + max_new : cap;
}

/* ---- requests and results ---- */

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

/* ---- an answer under way ---- */

bool nmlp_text_answer_goes_on(const nmlp_text_answer *a) {
    return !a->request->go_on || a->request->go_on(a->request->ctx);
}

static void on_logits(void *ctx, const float *logits, int32_t id) {
    nmlp_text_answer *a = ctx;
    a->logprob = nmlp_token_logprobs(logits, a->config->vocab, id, a->top, a->request->n_top);
}

/* After a token of the prompt: what is thought of the next one. */
static void on_prompt_logits(void *ctx, int64_t position, const float *logits) {
    const nmlp_text_answer *a = ctx;
    const nmlp_text_request *r = a->request;
    nmlp_token_logprob top[NMLP_TOP_LOGPROBS_MAX];
    if (position + 1 == (int64_t)a->prompt->len) return;
    nmlp_text_token token = {.id = a->prompt->data[position + 1], .top = top, .n_top = r->n_top};
    token.logprob = nmlp_token_logprobs(logits, a->config->vocab, token.id, top, r->n_top);
    r->on_prompt_token(r->ctx, position + 1, &token);
}

/* Gives out what cannot become a stop string any more; at the end of the text, all of it. */
static bool release_text(nmlp_text_answer *a, bool at_end) {
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
    nmlp_text_answer *a = ctx;
    const nmlp_text_request *r = a->request;
    nmlp_text_token token = {.id = id, .logprob = r->logprobs ? a->logprob : (double)NAN, .top = a->top};
    token.n_top = r->logprobs ? r->n_top : 0;
    a->st = nmlp_ids_push(&a->result->ids, id, a->err);
    if (a->st != NMLP_OK) return false;
    if (r->on_token && !r->on_token(r->ctx, &token)) return false;
    /* Checkpoints pad their vocabulary: an id the tokenizer has no text for gives none. */
    if (a->tokenizer && id < nmlp_tokenizer_vocab_size(a->tokenizer)) {
        a->st = nmlp_decode_stream_push(&a->decoder, id, &a->result->text, a->err);
        if (a->st == NMLP_OK) a->st = nmlp_str_status(&a->result->text, a->err);
        if (a->st != NMLP_OK || (a->result->text.len && !release_text(a, false))) return false;
    }
    return nmlp_text_answer_goes_on(a);
}

static nmlp_status check_request(const nmlp_text_request *r, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_sampling_check(&r->sampling, err));
    if (r->max_new < (r->on_prompt_token || r->hidden ? 0 : 1))
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

nmlp_status nmlp_text_answer_begin(nmlp_text_answer *a, const nmlp_model *model, const nmlp_tokenizer *tokenizer,
                                   const nmlp_text_request *r, nmlp_text_result *result, nmlp_err *err) {
    *a = (nmlp_text_answer){.config = &model->config,
                            .tokenizer = tokenizer,
                            .request = r,
                            .result = result,
                            .stop = {r->stop, r->n_stop},
                            .err = err};
    if (tokenizer) nmlp_decode_stream_init(&a->decoder, tokenizer, !r->show_special);
    nmlp_str_clear(&result->text);
    result->ids.len = 0;
    result->n_prompt = result->n_cached = 0;
    result->ttft_ms = result->decode_ms = 0;
    result->n_proposed = result->n_accepted = 0;
    result->finish = NMLP_FINISH_CALLER;
    return check_request(r, err);
}

void nmlp_text_answer_fini(nmlp_text_answer *a) { nmlp_decode_stream_fini(&a->decoder); }

nmlp_generation nmlp_text_answer_generation(nmlp_text_answer *a, const nmlp_ids *prompt) {
    const nmlp_text_request *r = a->request;
    nmlp_generation g = {.prompt = prompt->data,
                         .n_prompt = (int64_t)prompt->len,
                         .max_new = r->max_new,
                         .sampling = r->sampling,
                         .stop_ids = a->stop_ids,
                         .constraint = r->constraint,
                         .hidden = r->hidden,
                         .on_prompt_logits = r->on_prompt_token ? on_prompt_logits : NULL,
                         .on_logits = r->logprobs ? on_logits : NULL,
                         .on_token = on_token,
                         .ctx = a};
    a->prompt = prompt;
    a->result->n_prompt = g.n_prompt;
    if (r->ignore_eos) return g;
    memcpy(a->stop_ids, a->config->stop_ids, sizeof a->config->stop_ids);
    g.n_stop_ids = a->config->n_stop_ids;
    if ((r->prompt.messages || r->is_chat) && a->tokenizer)
        a->stop_ids[g.n_stop_ids++] = nmlp_chat_end_id(a->tokenizer);
    return g;
}

nmlp_status nmlp_text_answer_end(nmlp_text_answer *a, const nmlp_generation_stats *stats, nmlp_err *err) {
    nmlp_str *text = &a->result->text;
    NMLP_RETURN_IF_FAILED(a->st);
    a->result->finish = a->stopped ? NMLP_FINISH_STOP : stats->finish;
    a->result->ttft_ms = stats->ttft_ms;
    a->result->decode_ms = stats->decode_ms;
    a->result->n_proposed = stats->n_proposed;
    a->result->n_accepted = stats->n_accepted;
    if (!a->tokenizer || a->stopped) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_decode_stream_flush(&a->decoder, text, err));
    NMLP_RETURN_IF_FAILED(nmlp_str_status(text, err));
    if (text->len) (void)release_text(a, true);
    return NMLP_OK;
}

nmlp_status nmlp_text_check_room(const nmlp_config *config, const nmlp_ids *prompt, int64_t context, nmlp_err *err) {
    if (prompt->len < 1) return nmlp_fail_field(err, NMLP_E_ARG, "prompt", "is empty; at least one token is needed");
    if ((int64_t)prompt->len < context) return NMLP_OK;
    nmlp_fail(err, NMLP_E_LIMIT, "the prompt has %zu tokens; the context of %lld leaves no room for an answer",
              prompt->len, (long long)context);
    nmlp_fail_hint(err, "shorten the prompt or raise `context` (this model takes up to %lld)",
                   (long long)config->max_positions);
    return NMLP_E_LIMIT;
}

nmlp_status nmlp_text_check_tokenizers(const nmlp_model *model, const nmlp_model *other, const char *field,
                                       nmlp_err *err) {
    enum { PATH_BYTES = 4096 };
    const char *dir = model->checkpoint.dir, *other_dir = other->checkpoint.dir;
    char path[PATH_BYTES];
    nmlp_file_map own_file = {0}, other_file = {0};
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_tokenizer_path(path, sizeof path, dir, err));
    NMLP_TRY(nmlp_file_map_open(&own_file, path, err));
    NMLP_TRY(nmlp_tokenizer_path(path, sizeof path, other_dir, err));
    NMLP_TRY(nmlp_file_map_open(&other_file, path, err));
    if (own_file.bytes != other_file.bytes || memcmp(own_file.data, other_file.data, own_file.bytes) != 0)
        st = nmlp_fail_field(err, NMLP_E_ARG, field, "is %s, whose tokenizer is not that of %s", other_dir, dir);
out:
    nmlp_file_map_close(&own_file);
    nmlp_file_map_close(&other_file);
    return st;
}
