#include "server/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"
#include "base/mem.h"

enum { BIASES_MAX = 4096, BIAS_MAX = 100 };

/* Fields that are read, and those that change nothing here. */
static const char *const known[] = {"model",
                                    "messages",
                                    "prompt",
                                    "stream",
                                    "stream_options",
                                    "max_tokens",
                                    "max_completion_tokens",
                                    "temperature",
                                    "top_p",
                                    "top_k",
                                    "min_p",
                                    "seed",
                                    "n",
                                    "stop",
                                    "logprobs",
                                    "top_logprobs",
                                    "echo",
                                    "ignore_eos",
                                    "repetition_penalty",
                                    "user",
                                    "store",
                                    "metadata",
                                    "logit_bias",
                                    "presence_penalty",
                                    "frequency_penalty",
                                    "response_format",
                                    "tools",
                                    "tool_choice",
                                    "best_of",
                                    "suffix",
                                    "parallel_tool_calls",
                                    "chat_template_kwargs",
                                    "grammar",
                                    "timeout",
                                    NULL};

static nmlp_status wrong(nmlp_err *err, const char *field, const char *expected) {
    return nmlp_fail_field(err, NMLP_E_ARG, field, "must be %s", expected);
}

static nmlp_status read_bool(const nmlp_json *object, const char *key, bool *out, nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return NMLP_OK;
    if (!nmlp_json_is_bool(value)) return wrong(err, key, "true or false");
    *out = nmlp_json_bool(value);
    return NMLP_OK;
}

static nmlp_status read_number(const nmlp_json *object, const char *key, double *out, nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return NMLP_OK;
    if (!nmlp_json_is_number(value)) return wrong(err, key, "a number");
    *out = nmlp_json_number(value);
    return NMLP_OK;
}

static nmlp_status read_int(const nmlp_json *object, const char *key, int64_t min, int64_t max, int64_t *out,
                            nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    if (nmlp_json_is_null(value)) return NMLP_OK;
    if (!nmlp_json_int_in(value, min, max, out))
        return nmlp_fail_field(err, NMLP_E_ARG, key, "must be a whole number from %lld to %lld", (long long)min,
                               (long long)max);
    return NMLP_OK;
}

/* ---- prompts ---- */

nmlp_status nmlp_request_ids(int32_t **ids, size_t *n, const nmlp_json *array, const char *field, nmlp_err *err) {
    size_t at = 0;
    *n = nmlp_json_count(array);
    *ids = nmlp_mem_new(*n ? *n : 1, sizeof **ids, err);
    if (!*ids) return NMLP_E_NOMEM;
    for (const nmlp_json *v = nmlp_json_first(array); v; v = nmlp_json_next(v)) {
        int64_t id;
        if (!nmlp_json_int_in(v, 0, INT32_MAX, &id))
            return nmlp_fail_field(err, NMLP_E_ARG, field, "holds something that is not a token id at place %zu", at);
        (*ids)[at++] = (int32_t)id;
    }
    return NMLP_OK;
}

static nmlp_status read_one_prompt(nmlp_completion_request *r, const nmlp_json *value, const char *key, nmlp_err *err) {
    int at = r->n_prompts++; /* counted first, so that it is released whatever happens */
    nmlp_text_prompt *p = &r->prompts[at];
    if (nmlp_json_is_string(value)) {
        p->text = nmlp_json_string(value);
        p->len = strlen(p->text);
    } else if (nmlp_json_is_array(value)) {
        NMLP_RETURN_IF_FAILED(nmlp_request_ids(&r->ids[at], &p->n_ids, value, key, err));
        p->ids = r->ids[at];
    } else {
        return wrong(err, key, "a string, a list of strings, a list of token ids or a list of such lists");
    }
    return NMLP_OK;
}

static nmlp_status read_prompts(nmlp_completion_request *r, const char *key, nmlp_err *err) {
    const nmlp_json *prompt = nmlp_json_get(r->doc.root, key), *first;
    if (nmlp_json_is_null(prompt)) return nmlp_fail_field(err, NMLP_E_ARG, key, "is missing");
    bool several = nmlp_json_is_array(prompt) && (first = nmlp_json_first(prompt)) && !nmlp_json_is_number(first);
    size_t n = several ? nmlp_json_count(prompt) : 1;
    if (n > NMLP_CHOICES_PER_REQUEST_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, key, "holds %zu texts; %d are taken", n, NMLP_CHOICES_PER_REQUEST_MAX);
    r->prompts = nmlp_mem_new(n, sizeof *r->prompts, err);
    r->ids = nmlp_mem_new(n, sizeof *r->ids, err);
    if (!r->prompts || !r->ids) return NMLP_E_NOMEM;
    if (!several) return read_one_prompt(r, prompt, key, err);
    for (const nmlp_json *v = nmlp_json_first(prompt); v; v = nmlp_json_next(v))
        NMLP_RETURN_IF_FAILED(read_one_prompt(r, v, key, err));
    return NMLP_OK;
}

/* ---- the rest ---- */

static nmlp_status read_stop(nmlp_completion_request *r, nmlp_err *err) {
    const nmlp_json *stop = nmlp_json_get(r->doc.root, "stop");
    if (nmlp_json_is_null(stop)) return NMLP_OK;
    if (nmlp_json_is_string(stop)) r->stop[r->n_stop++] = nmlp_json_string(stop);
    for (const nmlp_json *v = nmlp_json_is_array(stop) ? nmlp_json_first(stop) : NULL; v; v = nmlp_json_next(v)) {
        if (r->n_stop == NMLP_STOP_STRINGS_MAX)
            return nmlp_fail_field(err, NMLP_E_ARG, "stop", "holds too many strings; %d are taken",
                                   NMLP_STOP_STRINGS_MAX);
        if (!nmlp_json_is_string(v)) return wrong(err, "stop", "a string or a list of strings");
        r->stop[r->n_stop++] = nmlp_json_string(v);
    }
    if (!nmlp_json_is_string(stop) && !nmlp_json_is_array(stop)) return wrong(err, "stop", "a string or a list");
    for (size_t i = 0; i < r->n_stop; i++)
        if (!r->stop[i][0]) return wrong(err, "stop", "without empty strings");
    return NMLP_OK;
}

static nmlp_status read_logprobs(nmlp_completion_request *r, bool chat, nmlp_err *err) {
    int64_t n = -1;
    if (chat) {
        NMLP_RETURN_IF_FAILED(read_bool(r->doc.root, "logprobs", &r->logprobs, err));
        NMLP_RETURN_IF_FAILED(read_int(r->doc.root, "top_logprobs", 0, NMLP_TOP_LOGPROBS_MAX, &n, err));
        if (n > 0 && !r->logprobs)
            return nmlp_fail_field(err, NMLP_E_ARG, "top_logprobs", "needs `logprobs` to be true");
    } else {
        NMLP_RETURN_IF_FAILED(read_int(r->doc.root, "logprobs", 0, NMLP_TOP_LOGPROBS_MAX, &n, err));
        r->logprobs = n >= 0;
    }
    r->n_top = n > 0 ? (int)n : 0;
    return NMLP_OK;
}

/* {"ID": BIAS, …} */
static nmlp_status read_biases(nmlp_completion_request *r, nmlp_err *err) {
    const nmlp_json *biases = nmlp_json_get(r->doc.root, "logit_bias");
    size_t n = nmlp_json_count(biases);
    if (nmlp_json_is_null(biases)) return NMLP_OK;
    if (!nmlp_json_is_object(biases)) return wrong(err, "logit_bias", "an object of token ids and numbers");
    if (n > BIASES_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "logit_bias", "has %zu tokens; %d are taken", n, BIASES_MAX);
    r->biases = nmlp_mem_new(n ? n : 1, sizeof *r->biases, err);
    if (!r->biases) return NMLP_E_NOMEM;
    for (const nmlp_json *m = nmlp_json_first(biases); m; m = nmlp_json_next(m)) {
        const char *key = nmlp_json_key(m);
        char *end;
        long id = strtol(key, &end, 10);
        double bias = nmlp_json_number(m);
        if (key[0] < '0' || key[0] > '9' || *end || id > INT32_MAX)
            return nmlp_fail_field(err, NMLP_E_ARG, "logit_bias", "has \"%.40s\", which is no token id", key);
        if (!nmlp_json_is_number(m) || !(bias >= -BIAS_MAX && bias <= BIAS_MAX))
            return nmlp_fail_field(err, NMLP_E_ARG, "logit_bias", "of token %ld must be a number from -%d to %d", id,
                                   BIAS_MAX, BIAS_MAX);
        r->biases[r->sampling.n_biases++] = (nmlp_token_bias){.id = (int32_t)id, .bias = (float)bias};
    }
    r->sampling.biases = r->biases;
    return NMLP_OK;
}

/* As OpenAI bounds them. */
static nmlp_status read_penalty(const nmlp_json *o, const char *key, double *out, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(read_number(o, key, out, err));
    if (*out >= -2 && *out <= 2) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, key, "is %g; it must be from -2 to 2", *out);
}

static nmlp_status read_sampling(nmlp_completion_request *r, nmlp_err *err) {
    const nmlp_json *o = r->doc.root;
    nmlp_sampling *s = &r->sampling;
    int64_t seed = -1;
    NMLP_RETURN_IF_FAILED(read_number(o, "temperature", &s->temperature, err));
    NMLP_RETURN_IF_FAILED(read_number(o, "top_p", &s->top_p, err));
    NMLP_RETURN_IF_FAILED(read_number(o, "min_p", &s->min_p, err));
    NMLP_RETURN_IF_FAILED(read_number(o, "repetition_penalty", &s->repetition_penalty, err));
    NMLP_RETURN_IF_FAILED(read_penalty(o, "presence_penalty", &s->presence_penalty, err));
    NMLP_RETURN_IF_FAILED(read_penalty(o, "frequency_penalty", &s->frequency_penalty, err));
    NMLP_RETURN_IF_FAILED(read_biases(r, err));
    NMLP_RETURN_IF_FAILED(read_int(o, "top_k", -1, INT32_MAX, &s->top_k, err));
    if (s->top_k < 0) s->top_k = 0; /* vLLM's "all" */
    NMLP_RETURN_IF_FAILED(read_int(o, "seed", INT64_MIN / 1024, INT64_MAX / 1024, &seed, err));
    if (!nmlp_json_is_null(nmlp_json_get(o, "seed"))) s->seed = (uint64_t)seed;
    return nmlp_sampling_check(s, err);
}

/* What is understood and not done is refused: a silent no would be a wrong answer. */
static nmlp_status refuse_unsupported(const nmlp_json *o, nmlp_err *err) {
    int64_t best_of = 1;
    NMLP_RETURN_IF_FAILED(read_int(o, "best_of", 1, NMLP_CHOICES_PER_REQUEST_MAX, &best_of, err));
    const char *field = best_of != 1 ? "best_of" : !nmlp_json_is_null(nmlp_json_get(o, "suffix")) ? "suffix" : NULL;
    return field ? nmlp_fail_field(err, NMLP_E_UNSUPPORTED, field, "is not supported by this server") : NMLP_OK;
}

static void note_unknown(nmlp_completion_request *r) {
    for (const nmlp_json *m = nmlp_json_first(r->doc.root); m; m = nmlp_json_next(m)) {
        size_t i = 0;
        while (known[i] && strcmp(known[i], nmlp_json_key(m)) != 0) i++;
        if (known[i]) continue;
        if (r->ignored.len) nmlp_str_putc(&r->ignored, ',');
        nmlp_str_puts(&r->ignored, nmlp_json_key(m));
    }
}

static nmlp_status read_model(nmlp_completion_request *r, nmlp_err *err) {
    const nmlp_json *model = nmlp_json_get(r->doc.root, "model");
    if (!nmlp_json_is_null(model) && !nmlp_json_is_string(model)) return wrong(err, "model", "a string");
    if (nmlp_json_is_string(model)) r->model = nmlp_json_string(model);
    return NMLP_OK;
}

static nmlp_status read_rest(nmlp_completion_request *r, bool chat, nmlp_err *err) {
    const nmlp_json *o = r->doc.root;
    int64_t n = 1;
    NMLP_RETURN_IF_FAILED(read_model(r, err));
    NMLP_RETURN_IF_FAILED(refuse_unsupported(o, err));
    NMLP_RETURN_IF_FAILED(read_bool(o, "stream", &r->stream, err));
    NMLP_RETURN_IF_FAILED(read_bool(nmlp_json_get(o, "stream_options"), "include_usage", &r->include_usage, err));
    NMLP_RETURN_IF_FAILED(read_number(o, "timeout", &r->timeout_s, err));
    if (!(r->timeout_s >= 0)) return wrong(err, "timeout", "a number of seconds");
    NMLP_RETURN_IF_FAILED(read_bool(o, "ignore_eos", &r->ignore_eos, err));
    if (!chat) NMLP_RETURN_IF_FAILED(read_bool(o, "echo", &r->echo, err));
    NMLP_RETURN_IF_FAILED(read_int(o, "max_tokens", r->echo ? 0 : 1, INT32_MAX, &r->max_new, err));
    if (chat) NMLP_RETURN_IF_FAILED(read_int(o, "max_completion_tokens", 1, INT32_MAX, &r->max_new, err));
    NMLP_RETURN_IF_FAILED(read_int(o, "n", 1, NMLP_CHOICES_PER_REQUEST_MAX, &n, err));
    r->n = (int)n;
    if (r->n * r->n_prompts > NMLP_CHOICES_PER_REQUEST_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "n", "times the prompts is %d; %d answers are given",
                               r->n * r->n_prompts, NMLP_CHOICES_PER_REQUEST_MAX);
    NMLP_RETURN_IF_FAILED(read_logprobs(r, chat, err));
    NMLP_RETURN_IF_FAILED(read_sampling(r, err));
    return read_stop(r, err);
}

/* An empty request with the body's JSON. */
static nmlp_status begin(nmlp_completion_request *r, const char *body, size_t len, nmlp_err *err) {
    *r = (nmlp_completion_request){.n = 1, .sampling = nmlp_sampling_greedy()};
    nmlp_str_init(&r->ignored);
    nmlp_str_init(&r->messages_json);
    nmlp_str_init(&r->kwargs_json);
    nmlp_str_init(&r->tools_json);
    nmlp_str_init(&r->system);
    nmlp_str_init(&r->grammar);
    NMLP_RETURN_IF_FAILED(nmlp_json_parse(&r->doc, body, len, "body", err));
    if (!nmlp_json_is_object(r->doc.root)) return nmlp_fail(err, NMLP_E_ARG, "the body must be a JSON object");
    return NMLP_OK;
}

nmlp_status nmlp_completion_request_read(nmlp_completion_request *r, bool chat, const char *body, size_t len,
                                         uint64_t seed, const char *template_source, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(begin(r, body, len, err));
    r->max_new = chat ? -1 : 16;
    r->sampling.temperature = 1;
    r->sampling.seed = seed;
    NMLP_RETURN_IF_FAILED(chat ? nmlp_request_read_messages(r, template_source, err) : read_prompts(r, "prompt", err));
    note_unknown(r);
    NMLP_RETURN_IF_FAILED(read_rest(r, chat, err));
    return nmlp_request_read_output(r, chat, template_source, err);
}

nmlp_status nmlp_embedding_request_read(nmlp_completion_request *r, const char *body, size_t len, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(begin(r, body, len, err));
    const nmlp_json *o = r->doc.root, *format = nmlp_json_get(o, "encoding_format");
    r->embeds = true;
    NMLP_RETURN_IF_FAILED(read_prompts(r, "input", err));
    NMLP_RETURN_IF_FAILED(read_model(r, err));
    if (!nmlp_json_is_null(nmlp_json_get(o, "dimensions")))
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "dimensions", "is not supported by this server");
    if (nmlp_json_is_null(format)) return NMLP_OK;
    r->base64 = strcmp(nmlp_json_string(format), "base64") == 0;
    return r->base64 || strcmp(nmlp_json_string(format), "float") == 0
               ? NMLP_OK
               : wrong(err, "encoding_format", "float or base64");
}

void nmlp_completion_request_fini(nmlp_completion_request *r) {
    for (size_t i = 0; r->texts && i < r->n_messages; i++) nmlp_str_fini(&r->texts[i]);
    for (int i = 0; r->ids && r->prompts && i < r->n_prompts; i++) nmlp_mem_free(r->ids[i]);
    nmlp_mem_free(r->texts);
    nmlp_mem_free(r->messages);
    nmlp_mem_free(r->ids);
    nmlp_mem_free(r->prompts);
    nmlp_mem_free(r->biases);
    nmlp_str_fini(&r->ignored);
    nmlp_str_fini(&r->messages_json);
    nmlp_str_fini(&r->kwargs_json);
    nmlp_str_fini(&r->tools_json);
    nmlp_str_fini(&r->system);
    nmlp_str_fini(&r->grammar);
    nmlp_json_free(&r->doc);
}
