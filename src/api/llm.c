/* nmlp_llm: a loaded model, its tokenizer and a session in one object. */
#include "neuronmlp/llm.h"

#include <math.h>
#include <string.h>

#include "api/llm_internal.h"
#include "api/options.h"
#include "base/mem.h"

enum { NEW_TOKENS_DEFAULT = 128 };

static const nmlp_llm_options option_defaults = {
    .struct_bytes = sizeof option_defaults, .device = "auto", .precision = "auto"};
static const nmlp_llm_request request_defaults = {
    .struct_bytes = sizeof request_defaults, .max_new = NEW_TOKENS_DEFAULT, .top_p = 1, .repetition_penalty = 1};

const char *nmlp_version(void) { return NMLP_VERSION_STRING; }

void nmlp_llm_options_init(nmlp_llm_options *options, size_t struct_bytes) {
    nmlp_options_give(options, struct_bytes, &option_defaults, sizeof option_defaults);
}

void nmlp_llm_request_init(nmlp_llm_request *request, size_t struct_bytes) {
    nmlp_options_give(request, struct_bytes, &request_defaults, sizeof request_defaults);
}

void nmlp_llm_info_init(nmlp_llm_info *info, size_t struct_bytes) {
    nmlp_llm_info ours = {0};
    nmlp_options_give(info, struct_bytes, &ours, sizeof ours);
}

void nmlp_llm_result_init(nmlp_llm_result *result, size_t struct_bytes) {
    nmlp_llm_result ours = {0};
    nmlp_options_give(result, struct_bytes, &ours, sizeof ours);
}

/* ---- open and close ---- */

static nmlp_status open_parts(nmlp_llm *llm, const char *dir, const nmlp_llm_options *o, nmlp_err *err) {
    nmlp_api_progress forward = {o->on_progress, o->progress_ctx};
    nmlp_progress progress = nmlp_api_progress_of(&forward);
    nmlp_load_options load = {.isa = o->isa,
                              .precision = o->precision,
                              .device = o->device,
                              .n_threads = o->n_threads,
                              .progress = &progress};
    if (o->context < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "context", "is %lld; it must be 0 or more", (long long)o->context);
    if (o->n_threads < 0 || o->n_threads > NMLP_LOAD_THREADS_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "n_threads", "is %d; it must be 0 to %d", o->n_threads,
                               NMLP_LOAD_THREADS_MAX);
    NMLP_RETURN_IF_FAILED(nmlp_load(&llm->loaded, dir, &load, err));
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_load(&llm->tokenizer, dir, err));
    int64_t context = nmlp_text_context(&llm->loaded.model.config, o->context, 0, INT64_MAX);
    NMLP_RETURN_IF_FAILED(nmlp_text_session_create(&llm->session, &llm->loaded, llm->tokenizer, context, err));
    if (!o->draft_dir) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_load(&llm->draft, o->draft_dir, &load, err));
    return nmlp_text_session_set_draft(llm->session, &llm->draft, err);
}

nmlp_status nmlp_llm_open(nmlp_llm **out, const char *dir, const nmlp_llm_options *options, nmlp_err *err) {
    nmlp_llm_options ours = option_defaults;
    if (!out || !dir) return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_open needs a place for the model and a directory");
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, options, "nmlp_llm_options", err));
    nmlp_llm *llm = nmlp_mem_new(1, sizeof *llm, err);
    if (!llm) return NMLP_E_NOMEM;
    nmlp_text_result_init(&llm->result);
    nmlp_ids_init(&llm->ids);
    nmlp_str_init(&llm->text);
    nmlp_status st = open_parts(llm, dir, &ours, err);
    if (st != NMLP_OK) {
        nmlp_llm_close(llm);
        return st;
    }
    *out = llm;
    return NMLP_OK;
}

void nmlp_llm_close(nmlp_llm *llm) {
    if (!llm) return;
    nmlp_text_session_destroy(llm->session);
    nmlp_tokenizer_destroy(llm->tokenizer);
    nmlp_unload(&llm->draft);
    nmlp_unload(&llm->loaded);
    nmlp_text_result_fini(&llm->result);
    nmlp_ids_fini(&llm->ids);
    nmlp_str_fini(&llm->text);
    nmlp_mem_free(llm);
}

nmlp_status nmlp_llm_describe(const nmlp_llm *llm, nmlp_llm_info *info, nmlp_err *err) {
    nmlp_llm_info ours;
    if (!llm || !info) return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_describe needs a model and a place for its figures");
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, info, "nmlp_llm_info", err));
    const nmlp_config *c = &llm->loaded.model.config;
    nmlp_model_size size = nmlp_model_measure(&llm->loaded.model);
    ours = (nmlp_llm_info){.context = nmlp_text_session_context(llm->session),
                           .max_context = c->max_positions,
                           .vocab = c->vocab,
                           .n_layers = c->n_layers,
                           .hidden = c->hidden,
                           .intermediate = c->intermediate,
                           .params = size.params,
                           .bytes = size.bytes,
                           .kernels = nmlp_loaded_name(&llm->loaded)};
    nmlp_options_give(info, info->struct_bytes, &ours, sizeof ours);
    return NMLP_OK;
}

/* ---- generate ---- */

static bool hand_text(void *ctx, const char *text, size_t len) {
    const nmlp_llm_request *r = ctx;
    return r->on_text(r->ctx, text, len) == 0;
}

static bool hand_token(void *ctx, const nmlp_text_token *t) {
    const nmlp_llm_request *r = ctx;
    nmlp_llm_logprob top[NMLP_TOP_LOGPROBS_MAX];
    for (int i = 0; i < t->n_top; i++) top[i] = (nmlp_llm_logprob){.id = t->top[i].id, .logprob = t->top[i].logprob};
    nmlp_llm_token token = {.id = t->id, .logprob = t->logprob, .top = top, .n_top = t->n_top};
    return r->on_token(r->ctx, &token) == 0;
}

static bool ask_to_go_on(void *ctx) {
    const nmlp_llm_request *r = ctx;
    return r->on_cancel(r->ctx) == 0;
}

/* Messages of the service from those of a caller; free with nmlp_mem_free. */
static nmlp_status copy_messages(nmlp_chat_message **out, const nmlp_llm_message *messages, size_t n, nmlp_err *err) {
    *out = NULL;
    if (!messages) return NMLP_OK;
    *out = nmlp_mem_new(n ? n : 1, sizeof **out, err);
    if (!*out) return NMLP_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        (*out)[i] = (nmlp_chat_message){.role = messages[i].role, .content = messages[i].content};
    return NMLP_OK;
}

static nmlp_text_request service_request(nmlp_llm_request *r, const nmlp_chat_message *messages) {
    return (nmlp_text_request){.prompt = {.text = r->prompt,
                                          .len = r->prompt ? strlen(r->prompt) : 0,
                                          .no_bos = r->no_bos != 0,
                                          .messages = messages,
                                          .n_messages = r->n_messages,
                                          .ids = r->ids,
                                          .n_ids = r->n_ids},
                               .max_new = r->max_new,
                               .sampling = {.temperature = r->temperature,
                                            .top_k = r->top_k,
                                            .top_p = r->top_p,
                                            .min_p = r->min_p,
                                            .repetition_penalty = r->repetition_penalty,
                                            .seed = r->seed},
                               .ignore_eos = r->ignore_eos != 0,
                               .fresh = r->fresh != 0,
                               .stop = r->stop,
                               .n_stop = r->n_stop,
                               .logprobs = r->logprobs != 0,
                               .n_top = r->top_logprobs,
                               .on_token = r->on_token ? hand_token : NULL,
                               .on_text = r->on_text ? hand_text : NULL,
                               .go_on = r->on_cancel ? ask_to_go_on : NULL,
                               .ctx = r};
}

static void give_result(nmlp_llm_result *theirs, const nmlp_text_result *r) {
    nmlp_llm_result ours = {.text = nmlp_str_text(&r->text),
                            .text_bytes = r->text.len,
                            .ids = r->ids.data,
                            .prompt_tokens = r->n_prompt,
                            .cached_tokens = r->n_cached,
                            .generated_tokens = (int64_t)r->ids.len,
                            .finish = (nmlp_llm_finish)r->finish,
                            .ttft_ms = r->ttft_ms,
                            .decode_ms = r->decode_ms,
                            .decode_tok_s = nmlp_text_decode_rate(r),
                            .proposed_tokens = r->n_proposed,
                            .accepted_tokens = r->n_accepted};
    nmlp_options_give(theirs, theirs->struct_bytes, &ours, sizeof ours);
}

nmlp_status nmlp_llm_run(nmlp_llm *llm, const nmlp_llm_request *request, nmlp_llm_result *result, nmlp_err *err) {
    nmlp_llm_request ours = request_defaults;
    nmlp_llm_result ignored;
    nmlp_chat_message *messages = NULL;
    nmlp_status st = NMLP_OK;
    if (!llm || !request) return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_run needs a model and a request");
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, request, "nmlp_llm_request", err));
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ignored, sizeof ignored, result, "nmlp_llm_result", err));
    NMLP_RETURN_IF_FAILED(copy_messages(&messages, ours.messages, ours.n_messages, err));
    nmlp_text_request service = service_request(&ours, messages);
    NMLP_TRY(nmlp_text_session_run(llm->session, &service, &llm->result, err));
    if (result) give_result(result, &llm->result);
out:
    nmlp_mem_free(messages);
    return st;
}

nmlp_status nmlp_llm_generate(nmlp_llm *llm, const char *prompt, const nmlp_llm_request *request,
                              nmlp_llm_on_text *on_text, void *ctx, nmlp_err *err) {
    nmlp_llm_request ours = request_defaults;
    if (!llm || !prompt) return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_generate needs a model and a prompt");
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, request, "nmlp_llm_request", err));
    ours.prompt = prompt;
    ours.messages = NULL;
    ours.ids = NULL;
    ours.on_text = on_text;
    ours.on_token = NULL;
    ours.on_cancel = NULL;
    ours.ctx = ctx;
    return nmlp_llm_run(llm, &ours, NULL, err);
}

/* ---- tokens ---- */

static nmlp_status encode(nmlp_llm *llm, const nmlp_text_prompt *prompt, const int32_t **ids, size_t *n,
                          nmlp_err *err) {
    llm->ids.len = 0;
    NMLP_RETURN_IF_FAILED(nmlp_text_prompt_encode(&llm->ids, llm->tokenizer, prompt, err));
    *ids = llm->ids.data;
    *n = llm->ids.len;
    return NMLP_OK;
}

nmlp_status nmlp_llm_tokenize(nmlp_llm *llm, const char *text, size_t len, int no_bos, const int32_t **ids, size_t *n,
                              nmlp_err *err) {
    if (!llm || !text || !ids || !n)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_tokenize needs a model, a text and a place for its ids");
    nmlp_text_prompt prompt = {.text = text, .len = len, .no_bos = no_bos != 0};
    return encode(llm, &prompt, ids, n, err);
}

nmlp_status nmlp_llm_tokenize_chat(nmlp_llm *llm, const nmlp_llm_message *messages, size_t n_messages,
                                   const int32_t **ids, size_t *n, nmlp_err *err) {
    nmlp_chat_message *ours = NULL;
    if (!llm || !messages || !ids || !n)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_tokenize_chat needs a model, messages and a place for their ids");
    NMLP_RETURN_IF_FAILED(copy_messages(&ours, messages, n_messages, err));
    nmlp_text_prompt prompt = {.messages = ours, .n_messages = n_messages};
    nmlp_status st = encode(llm, &prompt, ids, n, err);
    nmlp_mem_free(ours);
    return st;
}

nmlp_status nmlp_llm_detokenize(nmlp_llm *llm, const int32_t *ids, size_t n, const char **text, size_t *len,
                                nmlp_err *err) {
    if (!llm || (!ids && n) || !text || !len)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_detokenize needs a model, token ids and a place for their text");
    nmlp_str_clear(&llm->text);
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_decode(llm->tokenizer, ids, n, false, &llm->text, err));
    NMLP_RETURN_IF_FAILED(nmlp_str_status(&llm->text, err));
    *text = nmlp_str_text(&llm->text);
    *len = llm->text.len;
    return NMLP_OK;
}

/* ---- score ---- */

struct scores {
    const int32_t *ids;
    int64_t n, vocab;
    double *logprobs;
};

static bool keep_logprob(void *ctx, int64_t position, const float *logits) {
    struct scores *s = ctx;
    if (position + 1 < s->n)
        s->logprobs[position + 1] = nmlp_token_logprobs(logits, s->vocab, s->ids[position + 1], NULL, 0);
    return true;
}

nmlp_status nmlp_llm_score(nmlp_llm *llm, const int32_t *ids, size_t n, double *logprobs, nmlp_err *err) {
    if (!llm || !ids || !logprobs)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_score needs a model, token ids and a place for their scores");
    struct scores s = {.ids = ids, .n = (int64_t)n, .vocab = llm->loaded.model.config.vocab, .logprobs = logprobs};
    NMLP_RETURN_IF_FAILED(nmlp_text_session_logits(llm->session, ids, (int64_t)n, 0, keep_logprob, &s, err));
    logprobs[0] = (double)NAN;
    return NMLP_OK;
}

struct kept_logits {
    float *logits;
    int64_t first, vocab;
};

static bool keep_logits(void *ctx, int64_t position, const float *logits) {
    struct kept_logits *k = ctx;
    memcpy(k->logits + (position - k->first) * k->vocab, logits, (size_t)k->vocab * sizeof *logits);
    return true;
}

nmlp_status nmlp_llm_logits(nmlp_llm *llm, const int32_t *ids, size_t n, size_t first, float *logits, nmlp_err *err) {
    if (!llm || !ids || !logits)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_logits needs a model, token ids and a place for their logits");
    struct kept_logits k = {.logits = logits, .first = (int64_t)first, .vocab = llm->loaded.model.config.vocab};
    return nmlp_text_session_logits(llm->session, ids, (int64_t)n, (int64_t)first, keep_logits, &k, err);
}
