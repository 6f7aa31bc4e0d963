/* Completions: from a request to the answer, whole or streamed. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/server_internal.h"
#include "text/chat_template.h"

static void end_call(nmlp_server_call *call) {
    nmlp_server_call **at = &call->server->calls;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    for (int i = 0; i < call->n_choices; i++) nmlp_reply_choice_fini(&call->choices[i]);
    nmlp_mem_free(call->choices);
    if (call->served) nmlp_grammar_cache_give_back(call->served->grammars, call->job.grammar);
    nmlp_completion_request_fini(&call->job.request);
    nmlp_mem_free(call);
}

static void client_gone(void *ctx) {
    nmlp_server_call *call = ctx;
    call->http = NULL;
    atomic_store(&call->job.cancelled, true);
}

/* Without what was added last, part of which may be missing; there is room for an error then. */
static void cut_back(nmlp_str *out, size_t len) {
    out->len = len;
    if (out->data) out->data[len] = '\0';
    out->failed = false;
}

static void send_text(nmlp_server_call *call, nmlp_str *text) {
    if (!call->streaming) {
        nmlp_http_stream_begin(call->http, "text/event-stream");
        call->streaming = true;
    }
    if (text->failed) nmlp_http_stream_cut(call->http);
    nmlp_http_stream_write(call->http, nmlp_str_text(text), text->len);
    cut_back(text, 0);
    call->sent_s = nmlp_clock_seconds();
}

static nmlp_status take_event(nmlp_server_call *call, nmlp_job_event *e, nmlp_str *out, nmlp_err *err) {
    const nmlp_completion_request *r = &call->job.request;
    nmlp_reply_choice *choice = &call->choices[e->choice];
    if (e->kind == NMLP_JOB_PIECE) {
        if (!r->stream) return nmlp_reply_add(choice, e, err);
        nmlp_reply_chunk(out, &call->head, e->choice, choice, e, r->logprobs);
        return nmlp_str_status(out, err);
    }
    choice->finish = e->finish;
    if (!r->stream) NMLP_RETURN_IF_FAILED(nmlp_reply_add_end(choice, err));
    choice->values = e->values;
    choice->n_values = e->n_values;
    e->values = NULL;
    if (e->choice % r->n == 0) call->usage.prompt += e->n_prompt;
    if (e->choice % r->n == 0) call->usage.cached += e->n_cached;
    call->usage.completion += e->n_generated;
    if (e->n_generated > 0 && (call->ttft_ms == 0 || e->ttft_ms < call->ttft_ms)) call->ttft_ms = e->ttft_ms;
    if (e->n_generated > 1) {
        call->decode_ms += e->decode_ms;
        call->n_decoded += e->n_generated - 1;
    }
    nmlp_server_metrics_add(&call->server->metrics, e);
    if (r->stream) nmlp_reply_chunk_end(out, &call->head, e->choice, choice, e->finish);
    return nmlp_str_status(out, err);
}

/* The last words of a stream, or the whole answer; the client is there. `status` is that of HTTP; returns the one that
   was sent. */
static int finish_answer(nmlp_server_call *call, int status, const nmlp_err *err, nmlp_str *out) {
    const nmlp_completion_request *r = &call->job.request;
    nmlp_http_request *http = call->http;
    nmlp_status st = status == 200 ? NMLP_OK : NMLP_E_INTERRUPTED;
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
        if (out->failed) nmlp_http_stream_cut(http);
        nmlp_http_stream_write(http, nmlp_str_text(out), out->len);
        nmlp_http_stream_end(http);
        return status;
    }
    if (st == NMLP_OK && r->embeds)
        nmlp_reply_embeddings(out, &call->head, call->choices, call->n_choices, &call->usage, r->base64);
    else if (st == NMLP_OK)
        nmlp_reply_whole(out, &call->head, call->choices, call->n_choices, &call->usage, r->logprobs);
    else
        nmlp_reply_error(out, status, err);
    return nmlp_server_respond(http, status, "application/json", out);
}

static void finish_call(nmlp_server_call *call, nmlp_str *out) {
    nmlp_server *s = call->server;
    int status = call->status ? call->status : 499; /* the client went away, as nginx logs it */
    if (call->http) {
        status = finish_answer(call, nmlp_reply_status(call->st), &call->err, out);
    }
    nmlp_server_metrics_count(&s->metrics, status);
    nmlp_server_log(s, "POST", call->path, call->peer, status, 1e3 * (nmlp_clock_seconds() - call->started_s), call);
    end_call(call);
    if (s->draining && !s->calls) nmlp_http_stop_when_sent(s->http);
}

/* False: the call is no more. */
static bool take_events(nmlp_server_call *call) {
    nmlp_str out;
    bool goes_on = true;
    nmlp_str_init(&out);
    for (nmlp_job_event *e = nmlp_worker_take(call->served->worker, &call->job), *next; e; e = next) {
        next = e->next;
        if (e->kind == NMLP_JOB_DONE) {
            if (call->st == NMLP_OK && e->st != NMLP_OK) {
                call->st = e->st;
                call->err = e->err;
            }
            if (call->st == NMLP_E_INTERRUPTED && !call->err.message[0])
                nmlp_fail(&call->err, call->st, "the server is shutting down");
            finish_call(call, &out);
            goes_on = false;
        } else if (call->http && call->st == NMLP_OK) {
            size_t len = out.len;
            call->st = take_event(call, e, &out, &call->err);
            if (call->st != NMLP_OK) {
                atomic_store(&call->job.cancelled, true);
                cut_back(&out, len);
            }
        }
        nmlp_job_event_destroy(e);
    }
    if (goes_on && call->http && out.len) send_text(call, &out);
    nmlp_str_fini(&out);
    return goes_on;
}

void nmlp_server_take_events(nmlp_server *s) {
    for (nmlp_server_call *call = s->calls, *next; call; call = next) {
        next = call->next;
        (void)take_events(call);
    }
}

/* ---- time ---- */

/* Answers that the request took too long; its job ends in the next step of the engine. */
static void give_up(nmlp_server_call *call, nmlp_str *out) {
    nmlp_err err = {0};
    nmlp_fail(&err, NMLP_E_LIMIT, "the answer took longer than %g s", call->deadline_s - call->started_s);
    call->status = 504;
    nmlp_http_on_gone(call->http, NULL, NULL);
    nmlp_str_clear(out);
    (void)finish_answer(call, 504, &err, out);
    atomic_store(&call->job.cancelled, true);
}

void nmlp_server_check_times(nmlp_server *s) {
    double now = nmlp_clock_seconds();
    nmlp_str out;
    nmlp_str_init(&out);
    for (nmlp_server_call *call = s->calls; call; call = call->next) {
        if (!call->http) continue;
        if (now >= call->deadline_s) {
            give_up(call, &out);
        } else if (call->job.request.stream && now - call->sent_s >= s->options.ping_s) {
            nmlp_str_puts(&out, ": waiting\n\n"); /* a comment: proxies and clients see that the stream lives */
            send_text(call, &out);
        }
    }
    nmlp_str_fini(&out);
}

/* ---- requests ---- */

/* What is asked for. */
typedef struct call_kind {
    const char *path, *prefix; /* of ids */
    bool chat, embeds;
} call_kind;

/* With one model every name means it; with two, a name that is neither's is refused. */
static nmlp_status choose_model(const nmlp_served **out, const nmlp_server *s, const char *name, nmlp_err *err) {
    *out = &s->models[0];
    if (!name || s->n_models == 1) return NMLP_OK;
    for (int i = 0; i < s->n_models; i++) {
        *out = &s->models[i];
        if (strcmp(s->models[i].model.name, name) == 0) return NMLP_OK;
    }
    return nmlp_fail_field(err, NMLP_E_MISSING, "model", "is \"%s\"; there are \"%s\" and \"%s\"", name,
                           s->models[0].model.name, s->models[1].model.name);
}

/* The grammar of the answers, which end as others do. */
static nmlp_status take_grammar(const nmlp_server *s, nmlp_server_call *call, bool chat, nmlp_err *err) {
    const nmlp_completion_request *r = &call->job.request;
    const nmlp_config *config = &call->served->model.loaded->model.config;
    int64_t ends[NMLP_STOP_IDS_MAX + 1];
    int n = 0;
    if (!r->grammar_field) return NMLP_OK;
    for (int i = 0; i < config->n_stop_ids && !r->ignore_eos; i++) ends[n++] = config->stop_ids[i];
    if (chat && !r->ignore_eos) ends[n++] = nmlp_chat_end_id(s->tokenizer);
    const nmlp_grammar_key key = {.text = &r->grammar, .end_ids = ends, .n_end_ids = n, .marks = r->calls_tools};
    return nmlp_grammar_cache_take(call->served->grammars, &key, r->grammar_field, &call->job.grammar, err);
}

static nmlp_status begin_call(nmlp_server *s, nmlp_server_call *call, nmlp_http_request *r, const call_kind *kind,
                              nmlp_err *err) {
    size_t len;
    const char *body = nmlp_http_body(r, &len);
    uint64_t number = ++s->n_ids;
    nmlp_completion_request *request = &call->job.request;
    const nmlp_chat_template *template = nmlp_tokenizer_chat_template(s->tokenizer);
    const char *source = template ? nmlp_chat_template_source(template) : NULL;
    uint64_t seed = (uint64_t)s->started * 1000003u + number;
    NMLP_RETURN_IF_FAILED(kind->embeds
                              ? nmlp_embedding_request_read(request, body, len, err)
                              : nmlp_completion_request_read(request, kind->chat, body, len, seed, source, err));
    double limit_s = s->options.answer_s;
    if (request->timeout_s > 0 && !(limit_s > 0 && limit_s < request->timeout_s)) limit_s = request->timeout_s;
    call->deadline_s = limit_s > 0 ? call->started_s + limit_s : (double)INFINITY;
    NMLP_RETURN_IF_FAILED(choose_model(&call->served, s, request->model, err));
    call->n_choices = request->n * request->n_prompts;
    call->choices = nmlp_mem_new((size_t)call->n_choices, sizeof *call->choices, err);
    if (!call->choices) {
        call->n_choices = 0;
        return NMLP_E_NOMEM;
    }
    for (int i = 0; i < call->n_choices; i++)
        nmlp_reply_choice_init(&call->choices[i], request->calls_tools, request->tool_format);
    NMLP_RETURN_IF_FAILED(take_grammar(s, call, kind->chat, err));
    snprintf(call->head.id, sizeof call->head.id, "%s-%llx%06llx", kind->prefix, (unsigned long long)s->started,
             (unsigned long long)number);
    call->head.created = (int64_t)time(NULL);
    call->head.model = call->served->model.name;
    call->head.chat = kind->chat;
    call->head.tokenizer = s->tokenizer;
    return NMLP_OK;
}

static void complete(nmlp_server *s, nmlp_http_request *r, const call_kind *kind) {
    double now = nmlp_clock_seconds();
    nmlp_err err = {0};
    int status = 0;
    nmlp_server_call *call = nmlp_mem_new(1, sizeof *call, &err);
    if (!call) {
        nmlp_server_answer_error(s, r, 503, &err);
        return;
    }
    *call = (nmlp_server_call){.server = s, .http = r, .started_s = now, .sent_s = now, .next = s->calls};
    call->path = kind->path;
    s->calls = call;
    snprintf(call->peer, sizeof call->peer, "%s", nmlp_http_peer(r));
    nmlp_status st = begin_call(s, call, r, kind, &err);
    if (st != NMLP_OK) {
        status = nmlp_reply_status(st);
    } else if (nmlp_worker_submit(call->served->worker, &call->job, &err) != NMLP_OK) {
        nmlp_server_add_retry(r);
        status = 429;
    }
    if (status) {
        end_call(call);
        nmlp_server_answer_error(s, r, status, &err);
        return;
    }
    nmlp_http_on_gone(r, client_gone, call);
}

void nmlp_server_post_chat(nmlp_server *s, nmlp_http_request *r) {
    complete(s, r, &(const call_kind){.path = "/v1/chat/completions", .prefix = "chatcmpl", .chat = true});
}

void nmlp_server_post_completions(nmlp_server *s, nmlp_http_request *r) {
    complete(s, r, &(const call_kind){.path = "/v1/completions", .prefix = "cmpl"});
}

void nmlp_server_post_embeddings(nmlp_server *s, nmlp_http_request *r) {
    complete(s, r, &(const call_kind){.path = "/v1/embeddings", .prefix = "embd", .embeds = true});
}

void nmlp_server_drop_calls(nmlp_server *s) {
    for (nmlp_server_call *call = s->calls; call; call = call->next) {
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
