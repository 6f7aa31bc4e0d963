#define _POSIX_C_SOURCE 200809L /* gmtime_r */
#include "server/server.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/chat_page.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/reply.h"

enum { HEADER_MAX_BYTES = 32 << 10, BODY_MAX_BYTES = 8 << 20, RETRY_AFTER_S = 1 };

struct server;

/* A model, and the thread that runs it. */
struct served {
    nmlp_server_model model;
    int64_t context;
    nmlp_worker *worker;
};

/* A completion under way. */
struct call {
    struct server *server;
    const struct served *served;
    nmlp_http_request *http; /* NULL: the client is gone */
    nmlp_job job;
    nmlp_reply_head head;
    nmlp_reply_choice *choices;
    int n_choices;
    nmlp_reply_usage usage;
    bool streaming;
    double started_s;
    char peer[64];
    struct call *next;
};

struct server {
    nmlp_server_options options;
    struct served models[NMLP_SERVER_MODELS_MAX];
    int n_models;
    const nmlp_tokenizer *tokenizer;
    nmlp_http *http;
    struct call *calls;
    nmlp_server_metrics metrics;
    uint64_t n_ids;
    int64_t started; /* seconds since 1970 */
    bool draining;
};

nmlp_server_options nmlp_server_defaults(void) {
    return (nmlp_server_options){.host = "127.0.0.1",
                                 .port = 8080,
                                 .slots = 8,
                                 .max_waiting = 64,
                                 .grace_s = 30,
                                 .max_connections = 4096,
                                 .max_per_address = 2048,
                                 .request_s = 30};
}

/* ---- answers and log lines ---- */

static void log_line(const struct server *s, const char *method, const char *path, const char *peer, int status,
                     double ms, const struct call *call) {
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    nmlp_json_writer w;
    nmlp_str line;
    if (!s->options.on_log) return;
    nmlp_str_init(&line);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    nmlp_json_writer_init(&w, &line);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "time", when);
    nmlp_json_put_string(&w, "peer", peer);
    nmlp_json_put_string(&w, "method", method);
    nmlp_json_put_string(&w, "path", path);
    nmlp_json_put_int(&w, "status", status);
    nmlp_json_put_number(&w, "ms", ms);
    if (call) {
        nmlp_json_put_string(&w, "model", call->head.model);
        nmlp_json_put_int(&w, "prompt_tokens", call->usage.prompt);
        nmlp_json_put_int(&w, "cached_tokens", call->usage.cached);
        nmlp_json_put_int(&w, "generated_tokens", call->usage.completion);
        if (call->job.request.ignored.len)
            nmlp_json_put_string(&w, "ignored", nmlp_str_text(&call->job.request.ignored));
    }
    nmlp_json_end_object(&w);
    s->options.on_log(s->options.ctx, nmlp_str_text(&line));
    nmlp_str_fini(&line);
}

/* A whole answer to a request that needs no engine. */
static void answer(struct server *s, nmlp_http_request *r, int status, const char *type, const nmlp_str *body) {
    nmlp_server_metrics_count(&s->metrics, status);
    log_line(s, nmlp_http_method(r), nmlp_http_path(r), nmlp_http_peer(r), status, 0, NULL);
    if (status == 401) nmlp_http_add_header(r, "WWW-Authenticate", "Bearer");
    nmlp_http_respond(r, status, type, nmlp_str_text(body), body->len);
}

static void answer_error(struct server *s, nmlp_http_request *r, int status, const nmlp_err *err) {
    nmlp_str body;
    nmlp_str_init(&body);
    nmlp_reply_error(&body, status, err);
    answer(s, r, status, "application/json", &body);
    nmlp_str_fini(&body);
}

/* ---- completions ---- */

static void end_call(struct call *call) {
    struct call **at = &call->server->calls;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    for (int i = 0; i < call->n_choices; i++) nmlp_reply_choice_fini(&call->choices[i]);
    nmlp_mem_free(call->choices);
    nmlp_completion_request_fini(&call->job.request);
    nmlp_mem_free(call);
}

static void client_gone(void *ctx) {
    struct call *call = ctx;
    call->http = NULL;
    atomic_store(&call->job.cancelled, true);
}

static void send_text(struct call *call, nmlp_str *text) {
    if (!call->streaming) {
        nmlp_http_stream_begin(call->http, "text/event-stream");
        call->streaming = true;
    }
    nmlp_http_stream_write(call->http, nmlp_str_text(text), text->len);
    nmlp_str_clear(text);
}

static nmlp_status take_event(struct call *call, const nmlp_job_event *e, nmlp_str *out, nmlp_err *err) {
    const nmlp_completion_request *r = &call->job.request;
    nmlp_reply_choice *choice = &call->choices[e->choice];
    if (e->kind == NMLP_JOB_PIECE) {
        if (!r->stream) return nmlp_reply_add(choice, e, err);
        nmlp_reply_chunk(out, &call->head, e->choice, choice, e, r->logprobs);
        return nmlp_str_status(out, err);
    }
    choice->finish = e->finish;
    if (e->choice % r->n == 0) call->usage.prompt += e->n_prompt;
    if (e->choice % r->n == 0) call->usage.cached += e->n_cached;
    call->usage.completion += e->n_generated;
    nmlp_server_metrics_add(&call->server->metrics, e);
    if (r->stream) nmlp_reply_chunk_end(out, &call->head, e->choice, choice, e->finish);
    return nmlp_str_status(out, err);
}

/* The last words of a stream, or the whole answer; the client is there. */
static int finish_answer(struct call *call, nmlp_status st, const nmlp_err *err, nmlp_str *out) {
    const nmlp_completion_request *r = &call->job.request;
    nmlp_http_request *http = call->http;
    int status = nmlp_reply_status(st);
    if (out->len || (r->stream && st == NMLP_OK)) send_text(call, out); /* events that came together with the end */
    call->http = NULL;
    if (call->streaming) {
        if (st != NMLP_OK) {
            nmlp_str_puts(out, "data: ");
            nmlp_reply_error(out, status, err);
            nmlp_str_puts(out, "\n\n");
        } else {
            if (r->include_usage) nmlp_reply_chunk_usage(out, &call->head, &call->usage);
            nmlp_str_puts(out, "data: [DONE]\n\n");
        }
        nmlp_http_stream_write(http, nmlp_str_text(out), out->len);
        nmlp_http_stream_end(http);
        return status;
    }
    if (st == NMLP_OK)
        nmlp_reply_whole(out, &call->head, call->choices, call->n_choices, &call->usage, r->logprobs);
    else
        nmlp_reply_error(out, status, err);
    nmlp_http_respond(http, status, "application/json", nmlp_str_text(out), out->len);
    return status;
}

static void finish_call(struct call *call, nmlp_status st, const nmlp_err *err, nmlp_str *out) {
    struct server *s = call->server;
    int status = 499; /* the client went away, as nginx logs it */
    if (call->http) status = finish_answer(call, st, err, out);
    nmlp_server_metrics_count(&s->metrics, status);
    log_line(s, "POST", call->head.chat ? "/v1/chat/completions" : "/v1/completions", call->peer, status,
             1e3 * (nmlp_clock_seconds() - call->started_s), call);
    end_call(call);
    if (s->draining && !s->calls) nmlp_http_stop_when_sent(s->http);
}

/* False: the call is no more. */
static bool take_events(struct call *call) {
    nmlp_status st = NMLP_OK;
    nmlp_err err = {0};
    nmlp_str out;
    bool goes_on = true;
    nmlp_str_init(&out);
    for (nmlp_job_event *e = nmlp_worker_take(call->served->worker, &call->job), *next; e; e = next) {
        next = e->next;
        if (e->kind == NMLP_JOB_DONE) {
            if (st == NMLP_OK && e->st != NMLP_OK) {
                st = e->st;
                err = e->err;
            }
            if (st == NMLP_E_INTERRUPTED && !err.message[0]) nmlp_fail(&err, st, "the server is shutting down");
            finish_call(call, st, &err, &out);
            goes_on = false;
        } else if (call->http && st == NMLP_OK) {
            st = take_event(call, e, &out, &err);
            if (st != NMLP_OK) atomic_store(&call->job.cancelled, true);
        }
        nmlp_job_event_destroy(e);
    }
    if (goes_on && call->http && out.len) send_text(call, &out);
    nmlp_str_fini(&out);
    return goes_on;
}

static void on_wake(void *ctx) {
    struct server *s = ctx;
    for (struct call *call = s->calls, *next; call; call = next) {
        next = call->next;
        (void)take_events(call);
    }
}

/* With one model every name means it; with two, a name that is neither's is refused. */
static nmlp_status choose_model(const struct served **out, const struct server *s, const char *name, nmlp_err *err) {
    *out = &s->models[0];
    if (!name || s->n_models == 1) return NMLP_OK;
    for (int i = 0; i < s->n_models; i++) {
        *out = &s->models[i];
        if (strcmp(s->models[i].model.name, name) == 0) return NMLP_OK;
    }
    return nmlp_fail_field(err, NMLP_E_MISSING, "model", "is \"%s\"; there are \"%s\" and \"%s\"", name,
                           s->models[0].model.name, s->models[1].model.name);
}

static nmlp_status begin_call(struct server *s, struct call *call, nmlp_http_request *r, bool chat, nmlp_err *err) {
    size_t len;
    const char *body = nmlp_http_body(r, &len);
    uint64_t number = ++s->n_ids;
    nmlp_completion_request *request = &call->job.request;
    NMLP_RETURN_IF_FAILED(
        nmlp_completion_request_read(request, chat, body, len, (uint64_t)s->started * 1000003u + number, err));
    NMLP_RETURN_IF_FAILED(choose_model(&call->served, s, request->model, err));
    call->n_choices = request->n * request->n_prompts;
    call->choices = nmlp_mem_new((size_t)call->n_choices, sizeof *call->choices, err);
    if (!call->choices) {
        call->n_choices = 0;
        return NMLP_E_NOMEM;
    }
    for (int i = 0; i < call->n_choices; i++) nmlp_str_init(&call->choices[i].text);
    snprintf(call->head.id, sizeof call->head.id, "%s-%llx%06llx", chat ? "chatcmpl" : "cmpl",
             (unsigned long long)s->started, (unsigned long long)number);
    call->head.created = (int64_t)time(NULL);
    call->head.model = call->served->model.name;
    call->head.chat = chat;
    call->head.tokenizer = s->tokenizer;
    return NMLP_OK;
}

static void complete(struct server *s, nmlp_http_request *r, bool chat) {
    nmlp_err err = {0};
    int status = 0;
    struct call *call = nmlp_mem_new(1, sizeof *call, &err);
    if (!call) {
        answer_error(s, r, 503, &err);
        return;
    }
    *call = (struct call){.server = s, .http = r, .started_s = nmlp_clock_seconds(), .next = s->calls};
    s->calls = call;
    snprintf(call->peer, sizeof call->peer, "%s", nmlp_http_peer(r));
    nmlp_status st = begin_call(s, call, r, chat, &err);
    if (st != NMLP_OK) {
        status = nmlp_reply_status(st);
    } else if (nmlp_worker_submit(call->served->worker, &call->job, &err) != NMLP_OK) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", RETRY_AFTER_S);
        nmlp_http_add_header(r, "Retry-After", seconds);
        status = 429;
    }
    if (status) {
        end_call(call);
        answer_error(s, r, status, &err);
        return;
    }
    nmlp_http_on_gone(r, client_gone, call);
}

static void post_chat(struct server *s, nmlp_http_request *r) { complete(s, r, true); }
static void post_completions(struct server *s, nmlp_http_request *r) { complete(s, r, false); }

/* ---- what needs no engine ---- */

static void get_health(struct server *s, nmlp_http_request *r) {
    nmlp_str body;
    nmlp_str_init(&body);
    nmlp_str_puts(&body, s->draining ? "{\"status\":\"stopping\"}" : "{\"status\":\"ok\"}");
    answer(s, r, s->draining ? 503 : 200, "application/json", &body);
    nmlp_str_fini(&body);
}

static void put_model(nmlp_json_writer *w, const struct server *s, const struct served *m) {
    nmlp_model_size size = nmlp_model_measure(&m->model.loaded->model);
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "id", m->model.name);
    nmlp_json_put_string(w, "object", "model");
    nmlp_json_put_int(w, "created", s->started);
    nmlp_json_put_string(w, "owned_by", "neuronmlp");
    nmlp_json_put_int(w, "max_model_len", m->context);
    nmlp_json_put_bool(w, "chat", nmlp_chat_is_known(s->tokenizer));
    nmlp_json_begin_object(w, "meta");
    nmlp_json_put_int(w, "n_params", size.params);
    nmlp_json_put_int(w, "size", size.bytes);
    nmlp_json_end_object(w);
    nmlp_json_end_object(w);
}

static void get_models(struct server *s, nmlp_http_request *r) {
    nmlp_json_writer w;
    nmlp_str body;
    nmlp_str_init(&body);
    nmlp_json_writer_init(&w, &body);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "object", "list");
    nmlp_json_begin_array(&w, "data");
    for (int i = 0; i < s->n_models; i++) put_model(&w, s, &s->models[i]);
    nmlp_json_end_array(&w);
    nmlp_json_end_object(&w);
    answer(s, r, 200, "application/json", &body);
    nmlp_str_fini(&body);
}

static void get_metrics(struct server *s, nmlp_http_request *r) {
    nmlp_str body;
    int n_waiting = 0, n_running = 0;
    nmlp_str_init(&body);
    for (int i = 0; i < s->n_models; i++) {
        int waiting, running;
        nmlp_worker_load(s->models[i].worker, &waiting, &running);
        n_waiting += waiting;
        n_running += running;
    }
    nmlp_server_metrics_print(&body, &s->metrics, n_waiting, n_running, nmlp_http_connections(s->http));
    answer(s, r, 200, "text/plain; version=0.0.4", &body);
    nmlp_str_fini(&body);
}

static void get_page(struct server *s, nmlp_http_request *r) {
    nmlp_server_metrics_count(&s->metrics, 200);
    log_line(s, "GET", "/", nmlp_http_peer(r), 200, 0, NULL);
    nmlp_http_add_header(r, "Content-Security-Policy", nmlp_chat_page_policy);
    nmlp_http_add_header(r, "X-Content-Type-Options", "nosniff");
    nmlp_http_add_header(r, "X-Frame-Options", "DENY");
    nmlp_http_add_header(r, "Referrer-Policy", "no-referrer");
    nmlp_http_add_header(r, "Cache-Control", "no-cache");
    nmlp_http_respond(r, 200, "text/html; charset=utf-8", nmlp_chat_page, nmlp_chat_page_bytes);
}

/* A conversation as a chat would run it: {"role", "content"} with plain text. */
static nmlp_status encode_messages(nmlp_ids *ids, const struct server *s, const nmlp_json *list, nmlp_err *err) {
    size_t n = nmlp_json_is_array(list) ? nmlp_json_count(list) : 0, i = 0;
    nmlp_chat_message *messages = nmlp_mem_new(n + 1, sizeof *messages, err);
    nmlp_status st = messages ? NMLP_OK : NMLP_E_NOMEM;
    if (st == NMLP_OK && n == 0)
        st = nmlp_fail_field(err, NMLP_E_ARG, "messages", "must be a list of at least one message");
    for (const nmlp_json *m = nmlp_json_first(list); st == NMLP_OK && m; m = nmlp_json_next(m), i++) {
        const nmlp_json *role = nmlp_json_get(m, "role"), *content = nmlp_json_get(m, "content");
        messages[i] = (nmlp_chat_message){nmlp_json_string(role), nmlp_json_string(content)};
        if (!nmlp_json_is_string(role) || !nmlp_json_is_string(content))
            st = nmlp_fail_field(err, NMLP_E_ARG, "messages", "[%zu] must have a role and a content of text", i);
    }
    if (st == NMLP_OK) st = nmlp_chat_encode(s->tokenizer, messages, n, ids, err);
    nmlp_mem_free(messages);
    return st;
}

static nmlp_status encode_content(nmlp_ids *ids, const struct server *s, const nmlp_json *body, nmlp_err *err) {
    const nmlp_json *text = nmlp_json_get(body, "content"), *special = nmlp_json_get(body, "add_special_tokens"),
                    *messages = nmlp_json_get(body, "messages");
    if (messages) return encode_messages(ids, s, messages, err);
    if (!text) text = nmlp_json_get(body, "prompt");
    if (!nmlp_json_is_string(text)) return nmlp_fail_field(err, NMLP_E_ARG, "content", "must be a string");
    const char *bytes = nmlp_json_string(text);
    bool bos = !nmlp_json_is_bool(special) || nmlp_json_bool(special);
    nmlp_text_prompt prompt = {.text = bytes, .len = strlen(bytes), .no_bos = !bos};
    return nmlp_text_prompt_encode(ids, s->tokenizer, &prompt, err);
}

static nmlp_status tokenize(const struct server *s, const nmlp_json *body, nmlp_str *out, nmlp_err *err) {
    nmlp_json_writer w;
    nmlp_ids ids;
    nmlp_ids_init(&ids);
    nmlp_status st = encode_content(&ids, s, body, err);
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_begin_array(&w, "tokens");
    for (size_t i = 0; i < ids.len; i++) nmlp_json_put_int(&w, NULL, ids.data[i]);
    nmlp_json_end_array(&w);
    nmlp_json_put_int(&w, "count", (int64_t)ids.len);
    nmlp_json_put_int(&w, "max_model_len", s->models[0].context);
    nmlp_json_end_object(&w);
    nmlp_ids_fini(&ids);
    return st;
}

static nmlp_status detokenize(const struct server *s, const nmlp_json *body, nmlp_str *out, nmlp_err *err) {
    const nmlp_json *tokens = nmlp_json_get(body, "tokens");
    nmlp_json_writer w;
    nmlp_str text;
    int32_t *ids = NULL;
    size_t n = 0;
    if (!nmlp_json_is_array(tokens)) return nmlp_fail_field(err, NMLP_E_ARG, "tokens", "must be a list of token ids");
    nmlp_str_init(&text);
    nmlp_status st = nmlp_request_ids(&ids, &n, tokens, "tokens", err);
    if (st == NMLP_OK) st = nmlp_tokenizer_decode(s->tokenizer, ids, n, false, &text, err);
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_bytes(&w, "content", nmlp_str_text(&text), text.len);
    nmlp_json_put_bytes(&w, "prompt", nmlp_str_text(&text), text.len);
    nmlp_json_end_object(&w);
    nmlp_str_fini(&text);
    nmlp_mem_free(ids);
    return st;
}

typedef nmlp_status text_fn(const struct server *s, const nmlp_json *body, nmlp_str *out, nmlp_err *err);

static void with_body(struct server *s, nmlp_http_request *r, text_fn *fn) {
    nmlp_err err = {0};
    nmlp_json_doc doc = {0};
    nmlp_str out;
    size_t len;
    const char *body = nmlp_http_body(r, &len);
    nmlp_str_init(&out);
    nmlp_status st = nmlp_json_parse(&doc, body, len, "body", &err);
    if (st == NMLP_OK) st = fn(s, doc.root, &out, &err);
    if (st == NMLP_OK) st = nmlp_str_status(&out, &err);
    if (st == NMLP_OK)
        answer(s, r, 200, "application/json", &out);
    else
        answer_error(s, r, nmlp_reply_status(st), &err);
    nmlp_str_fini(&out);
    nmlp_json_free(&doc);
}

static void post_tokenize(struct server *s, nmlp_http_request *r) { with_body(s, r, tokenize); }
static void post_detokenize(struct server *s, nmlp_http_request *r) { with_body(s, r, detokenize); }

/* ---- routes ---- */

static const struct route {
    const char *method, *path;
    bool open; /* without a key */
    void (*handle)(struct server *s, nmlp_http_request *r);
} routes[] = {
    {"GET", "/", true, get_page},
    {"GET", "/health", true, get_health},
    {"GET", "/v1/models", false, get_models},
    {"GET", "/metrics", false, get_metrics},
    {"POST", "/v1/chat/completions", false, post_chat},
    {"POST", "/v1/completions", false, post_completions},
    {"POST", "/tokenize", false, post_tokenize},
    {"POST", "/detokenize", false, post_detokenize},
};

/* Takes the same time wherever the two differ. */
static bool same_key(const char *given, const char *key) {
    size_t n = strlen(key), len = strlen(given);
    unsigned char differ = (unsigned char)(n != len);
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(key[i] ^ (i < len ? given[i] : 0));
    return differ == 0;
}

static bool is_allowed(const struct server *s, const nmlp_http_request *r) {
    const char *bearer = nmlp_http_header(r, "Authorization"), *plain = nmlp_http_header(r, "X-Api-Key");
    if (!s->options.api_key) return true;
    if (bearer && strncmp(bearer, "Bearer ", 7) == 0 && same_key(bearer + 7, s->options.api_key)) return true;
    return plain && same_key(plain, s->options.api_key);
}

/* Whether the browser only asks what it may ask. */
static bool allow_origin(struct server *s, nmlp_http_request *r) {
    nmlp_str empty;
    if (!s->options.cors) return false;
    nmlp_http_add_header(r, "Access-Control-Allow-Origin", s->options.cors);
    if (strcmp(nmlp_http_method(r), "OPTIONS") != 0) return false;
    nmlp_http_add_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    nmlp_http_add_header(r, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key");
    nmlp_str_init(&empty);
    answer(s, r, 204, "text/plain", &empty);
    return true;
}

static void on_request(void *ctx, nmlp_http_request *r) {
    struct server *s = ctx;
    const char *path = nmlp_http_path(r), *method = nmlp_http_method(r);
    const struct route *route = NULL;
    bool other_method = false;
    nmlp_err err = {0};
    if (allow_origin(s, r)) return;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0] && !route; i++) {
        if (strcmp(routes[i].path, path) != 0) continue;
        other_method = true;
        if (strcmp(routes[i].method, method) == 0) route = &routes[i];
    }
    if (!(route && route->open) && !is_allowed(s, r)) {
        nmlp_fail(&err, NMLP_E_ARG, "a valid API key is needed, as \"Authorization: Bearer KEY\"");
        answer_error(s, r, 401, &err);
    } else if (!route) {
        nmlp_fail(&err, NMLP_E_MISSING, "%s %s is not served here", method, path);
        answer_error(s, r, other_method ? 405 : 404, &err);
    } else if (s->draining && !route->open) {
        nmlp_fail(&err, NMLP_E_INTERRUPTED, "the server is shutting down");
        answer_error(s, r, 503, &err);
    } else {
        route->handle(s, r);
    }
}

/* ---- beginning and end ---- */

static void end_now(void *ctx) {
    struct server *s = ctx;
    nmlp_http_stop(s->http);
}

static void on_signal(void *ctx) {
    struct server *s = ctx;
    if (s->draining || !s->calls || nmlp_http_after(s->http, (double)s->options.grace_s, end_now, s, NULL) != NMLP_OK) {
        end_now(s);
        return;
    }
    s->draining = true;
    nmlp_http_stop_listening(s->http);
}

static void wake_loop(void *ctx) {
    struct server *s = ctx;
    nmlp_http_wake(s->http);
}

static void drop_calls(struct server *s) {
    for (struct call *call = s->calls; call; call = call->next) {
        if (call->http) nmlp_http_on_gone(call->http, NULL, NULL);
        call->http = NULL;
    }
    while (s->calls) {
        for (nmlp_job_event *e = s->calls->job.first, *next; e; e = next) {
            next = e->next;
            nmlp_job_event_destroy(e);
        }
        end_call(s->calls);
    }
}

static nmlp_status start_model(struct server *s, const nmlp_server_model *model, nmlp_err *err) {
    const nmlp_server_options *options = &s->options;
    struct served *served = &s->models[s->n_models];
    if (s->n_models > 0) {
        const nmlp_server_model *first = &s->models[0].model;
        NMLP_RETURN_IF_FAILED(nmlp_text_check_tokenizers(&first->loaded->model, &model->loaded->model, "compare", err));
        if (strcmp(first->name, model->name) == 0)
            return nmlp_fail_field(err, NMLP_E_ARG, "name", "of both models is \"%s\"", model->name);
    }
    served->model = *model;
    served->context = nmlp_text_context(&model->loaded->model.config, options->context, 0, INT64_MAX);
    nmlp_worker_options worker = {
        .loaded = model->loaded,
        .tokenizer = s->tokenizer,
        .batch = {.context = served->context, .max_sequences = options->slots, .kv_bytes = options->kv_bytes},
        .max_waiting = (int)options->max_waiting,
        .on_event = wake_loop,
        .ctx = s};
    NMLP_RETURN_IF_FAILED(nmlp_worker_create(&served->worker, &worker, err));
    s->n_models++;
    return NMLP_OK;
}

nmlp_status nmlp_server_run(const nmlp_server_model *models, int n_models, const nmlp_tokenizer *tokenizer,
                            const nmlp_server_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct server s = {.options = *options, .tokenizer = tokenizer, .started = (int64_t)time(NULL)};
    nmlp_http_options http = {.host = options->host,
                              .port = (int)options->port,
                              .max_header_bytes = HEADER_MAX_BYTES,
                              .max_body_bytes = BODY_MAX_BYTES,
                              .max_connections = (int)options->max_connections,
                              .max_per_address = (int)options->max_per_address,
                              .request_s = options->request_s,
                              .on_request = on_request,
                              .on_wake = on_wake,
                              .on_signal = on_signal,
                              .ctx = &s};
    NMLP_TRY(nmlp_http_create(&s.http, &http, err));
    for (int i = 0; i < n_models; i++) NMLP_TRY(start_model(&s, &models[i], err));
    if (options->on_ready) options->on_ready(options->ctx, nmlp_http_port(s.http));
    st = nmlp_http_run(s.http, err);
out:
    for (int i = 0; i < s.n_models; i++) nmlp_worker_destroy(s.models[i].worker);
    drop_calls(&s);
    nmlp_http_destroy(s.http);
    return st;
}
