#define _POSIX_C_SOURCE 200809L /* gmtime_r */
#include <stdio.h>
#include <time.h>

#include "base/json_write.h"
#include "server/server_internal.h"

void nmlp_server_log(const nmlp_server *s, const char *method, const char *path, const char *peer, int status,
                     double ms, const nmlp_server_call *call) {
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
        if (call->ttft_ms > 0) nmlp_json_put_number(&w, "ttft_ms", call->ttft_ms);
        if (call->n_decoded > 0) nmlp_json_put_number(&w, "tpot_ms", call->decode_ms / (double)call->n_decoded);
        for (int i = 0; i < 3 && s->options.log_prompts; i++) {
            static const char *const keys[] = {"messages", "prompt", "input"};
            const nmlp_json *value = nmlp_json_get(call->job.request.doc.root, keys[i]);
            if (value) nmlp_json_put_value(&w, keys[i], value);
        }
        if (call->job.request.ignored.len) {
            nmlp_json_put_string(&w, "warning", "fields that are not known were ignored");
            nmlp_json_put_string(&w, "ignored", nmlp_str_text(&call->job.request.ignored));
        }
    }
    nmlp_json_end_object(&w);
    if (!line.failed) s->options.on_log(s->options.ctx, nmlp_str_text(&line));
    nmlp_str_fini(&line);
}

int nmlp_server_respond(nmlp_http_request *r, int status, const char *type, const nmlp_str *body) {
    static const char lack[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":503}}";
    if (body->failed) status = 503;
    if (status == 503) nmlp_server_add_retry(r);
    if (body->failed)
        nmlp_http_respond(r, status, "application/json", lack, sizeof lack - 1);
    else
        nmlp_http_respond(r, status, type, nmlp_str_text(body), body->len);
    return status;
}

/* A whole answer to a request that needs no engine. */
void nmlp_server_answer(nmlp_server *s, nmlp_http_request *r, int status, const char *type, const nmlp_str *body) {
    if (body->failed) status = 503;
    nmlp_server_metrics_count(&s->metrics, status);
    nmlp_server_log(s, nmlp_http_method(r), nmlp_http_path(r), nmlp_http_peer(r), status, 0, NULL);
    if (status == 401) nmlp_http_add_header(r, "WWW-Authenticate", "Bearer");
    (void)nmlp_server_respond(r, status, type, body);
}

void nmlp_server_answer_error(nmlp_server *s, nmlp_http_request *r, int status, const nmlp_err *err) {
    nmlp_str body;
    nmlp_str_init(&body);
    nmlp_reply_error(&body, status, err);
    nmlp_server_answer(s, r, status, "application/json", &body);
    nmlp_str_fini(&body);
}

void nmlp_server_add_retry(nmlp_http_request *r) { nmlp_http_add_header(r, "Retry-After", "1"); }
