/* What needs no engine. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/chat_page.h"
#include "server/server_internal.h"
#include "text/chat_template.h"

void nmlp_server_get_health(nmlp_server *s, nmlp_http_request *r) {
    nmlp_str body;
    nmlp_str_init(&body);
    const char *status = s->draining ? "stopping" : s->ready ? "ok" : "loading";
    nmlp_str_printf(&body, "{\"status\":\"%s\"}", status);
    nmlp_server_answer(s, r, s->draining || !s->ready ? 503 : 200, "application/json", &body);
    nmlp_str_fini(&body);
}

static void put_model(nmlp_json_writer *w, const nmlp_server *s, const nmlp_served *m) {
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

void nmlp_server_get_models(nmlp_server *s, nmlp_http_request *r) {
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
    nmlp_server_answer(s, r, 200, "application/json", &body);
    nmlp_str_fini(&body);
}

/* Characters of a path that came as %XX. */
static void decode_name(char *out, size_t size, const char *text) {
    size_t n = 0;
    for (; *text && n + 1 < size; text++) {
        char hex[3] = {0}, *end = hex;
        if (text[0] == '%' && text[1] && text[2]) memcpy(hex, text + 1, 2);
        long c = hex[0] ? strtol(hex, &end, 16) : 0;
        bool coded = end == hex + 2 && c > 0;
        out[n++] = coded ? (char)c : *text;
        if (coded) text += 2;
    }
    out[n] = '\0';
}

void nmlp_server_get_model(nmlp_server *s, nmlp_http_request *r) {
    char name[256];
    nmlp_json_writer w;
    nmlp_str body;
    nmlp_err err;
    decode_name(name, sizeof name, nmlp_http_path(r) + strlen("/v1/models/"));
    for (int i = 0; i < s->n_models; i++) {
        if (strcmp(name, s->models[i].model.name) != 0) continue;
        nmlp_str_init(&body);
        nmlp_json_writer_init(&w, &body);
        put_model(&w, s, &s->models[i]);
        nmlp_server_answer(s, r, 200, "application/json", &body);
        nmlp_str_fini(&body);
        return;
    }
    nmlp_fail_field(&err, NMLP_E_MISSING, "model", "\"%s\" is not served here", name);
    nmlp_server_answer_error(s, r, 404, &err);
}

void nmlp_server_get_metrics(nmlp_server *s, nmlp_http_request *r) {
    nmlp_str body;
    nmlp_worker_state load = {0};
    nmlp_guide_stats grammar = {0};
    nmlp_str_init(&body);
    for (int i = 0; i < s->n_models; i++) {
        nmlp_worker_state one = nmlp_worker_look(s->models[i].worker);
        load.n_waiting += one.n_waiting;
        load.n_running += one.n_running;
        if (one.memory_used > load.memory_used) load.memory_used = one.memory_used; /* the fuller of two */
        nmlp_guide_stats some = nmlp_grammar_cache_stats(s->models[i].grammars);
        grammar.n_steps += some.n_steps;
        grammar.n_computed += some.n_computed;
        grammar.seconds += some.seconds;
    }
    nmlp_server_metrics_print(&body, &s->metrics, &load, nmlp_http_connections(s->http), &grammar);
    nmlp_server_answer(s, r, 200, "text/plain; version=0.0.4", &body);
    nmlp_str_fini(&body);
}

void nmlp_server_get_page(nmlp_server *s, nmlp_http_request *r) {
    nmlp_server_metrics_count(&s->metrics, 200);
    nmlp_server_log(s, "GET", "/", nmlp_http_peer(r), 200, 0, NULL);
    nmlp_http_add_header(r, "Content-Security-Policy", nmlp_chat_page_policy);
    nmlp_http_add_header(r, "X-Content-Type-Options", "nosniff");
    nmlp_http_add_header(r, "X-Frame-Options", "DENY");
    nmlp_http_add_header(r, "Referrer-Policy", "no-referrer");
    nmlp_http_add_header(r, "Cache-Control", "no-cache");
    nmlp_http_respond(r, 200, "text/html; charset=utf-8", nmlp_chat_page, nmlp_chat_page_bytes);
}

/* A conversation as a chat would run it, with its tools and variables of the template. */
static nmlp_status encode_messages(nmlp_ids *ids, const nmlp_server *s, const nmlp_json *body, nmlp_err *err) {
    const nmlp_chat_template *template = nmlp_tokenizer_chat_template(s->tokenizer);
    nmlp_completion_request request;
    nmlp_text_prompt prompt;
    nmlp_json_writer w;
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_put_value(&w, NULL, body);
    nmlp_status st = nmlp_completion_request_read(&request, true, nmlp_str_text(&text), text.len, 0,
                                                  template ? nmlp_chat_template_source(template) : NULL, err);
    if (st == NMLP_OK) {
        nmlp_request_chat_prompt(&prompt, &request);
        st = nmlp_text_prompt_encode(ids, s->tokenizer, &prompt, err);
    }
    nmlp_completion_request_fini(&request);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status encode_content(nmlp_ids *ids, const nmlp_server *s, const nmlp_json *body, nmlp_err *err) {
    const nmlp_json *text = nmlp_json_get(body, "content"), *special = nmlp_json_get(body, "add_special_tokens"),
                    *messages = nmlp_json_get(body, "messages");
    if (messages) return encode_messages(ids, s, body, err);
    if (!text) text = nmlp_json_get(body, "prompt");
    if (!nmlp_json_is_string(text)) return nmlp_fail_field(err, NMLP_E_ARG, "content", "must be a string");
    const char *bytes = nmlp_json_string(text);
    bool bos = !nmlp_json_is_bool(special) || nmlp_json_bool(special);
    nmlp_text_prompt prompt = {.text = bytes, .len = strlen(bytes), .no_bos = !bos};
    return nmlp_text_prompt_encode(ids, s->tokenizer, &prompt, err);
}

static nmlp_status tokenize(const nmlp_server *s, const nmlp_json *body, nmlp_str *out, nmlp_err *err) {
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

static nmlp_status detokenize(const nmlp_server *s, const nmlp_json *body, nmlp_str *out, nmlp_err *err) {
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

typedef nmlp_status text_fn(const nmlp_server *s, const nmlp_json *body, nmlp_str *out, nmlp_err *err);

static void with_body(nmlp_server *s, nmlp_http_request *r, text_fn *fn) {
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
        nmlp_server_answer(s, r, 200, "application/json", &out);
    else
        nmlp_server_answer_error(s, r, nmlp_reply_status(st), &err);
    nmlp_str_fini(&out);
    nmlp_json_free(&doc);
}

void nmlp_server_post_tokenize(nmlp_server *s, nmlp_http_request *r) { with_body(s, r, tokenize); }
void nmlp_server_post_detokenize(nmlp_server *s, nmlp_http_request *r) { with_body(s, r, detokenize); }

/* ---- what the server is ---- */

static void put_token(nmlp_json_writer *w, const nmlp_server *s, const char *key, int64_t id) {
    int32_t one = (int32_t)id;
    nmlp_str text;
    nmlp_str_init(&text);
    if (id >= 0 && id < nmlp_tokenizer_vocab_size(s->tokenizer) &&
        nmlp_tokenizer_decode(s->tokenizer, &one, 1, false, &text, NULL) == NMLP_OK)
        nmlp_json_put_bytes(w, key, nmlp_str_text(&text), text.len);
    else
        nmlp_json_put_null(w, key);
    nmlp_str_fini(&text);
}

/* bos_token, eos_token and chat_template, under the names that tokenizer_config.json has for them. */
static void put_tokenizer(nmlp_json_writer *w, const nmlp_server *s) {
    const nmlp_config *config = &s->models[0].model.loaded->model.config;
    const nmlp_chat_template *template = nmlp_tokenizer_chat_template(s->tokenizer);
    put_token(w, s, "bos_token", nmlp_tokenizer_bos_id(s->tokenizer));
    put_token(w, s, "eos_token", config->n_stop_ids > 0 ? config->stop_ids[0] : -1);
    if (template)
        nmlp_json_put_string(w, "chat_template", nmlp_chat_template_source(template));
    else
        nmlp_json_put_null(w, "chat_template");
}

static void answer_json(nmlp_server *s, nmlp_http_request *r, void (*put)(nmlp_json_writer *w, const nmlp_server *s)) {
    nmlp_json_writer w;
    nmlp_str body;
    nmlp_str_init(&body);
    nmlp_json_writer_init(&w, &body);
    put(&w, s);
    nmlp_server_answer(s, r, 200, "application/json", &body);
    nmlp_str_fini(&body);
}

static void put_tokenizer_info(nmlp_json_writer *w, const nmlp_server *s) {
    nmlp_json_begin_object(w, NULL);
    put_tokenizer(w, s);
    nmlp_json_put_int(w, "vocab_size", nmlp_tokenizer_vocab_size(s->tokenizer));
    nmlp_json_put_int(w, "model_max_length", s->models[0].context);
    nmlp_json_end_object(w);
}

static void put_props(nmlp_json_writer *w, const nmlp_server *s) {
    nmlp_json_begin_object(w, NULL);
    nmlp_json_begin_object(w, "default_generation_settings");
    nmlp_json_put_int(w, "n_ctx", s->models[0].context);
    nmlp_json_put_number(w, "temperature", 1);
    nmlp_json_put_number(w, "top_p", 1);
    nmlp_json_put_number(w, "min_p", 0);
    nmlp_json_put_int(w, "top_k", 0);
    nmlp_json_end_object(w);
    nmlp_json_put_int(w, "total_slots", s->options.slots);
    nmlp_json_put_string(w, "model_alias", s->models[0].model.name);
    put_tokenizer(w, s);
    nmlp_json_end_object(w);
}

/* As many as may run at once; those that do come first. */
static void put_slots(nmlp_json_writer *w, const nmlp_server *s) {
    nmlp_json_begin_array(w, NULL);
    for (int m = 0; m < s->n_models; m++) {
        int running = nmlp_worker_look(s->models[m].worker).n_running;
        for (int64_t i = 0; i < s->options.slots; i++) {
            nmlp_json_begin_object(w, NULL);
            nmlp_json_put_int(w, "id", m * s->options.slots + i);
            nmlp_json_put_string(w, "model", s->models[m].model.name);
            nmlp_json_put_int(w, "n_ctx", s->models[m].context);
            nmlp_json_put_bool(w, "is_processing", i < running);
            nmlp_json_end_object(w);
        }
    }
    nmlp_json_end_array(w);
}

void nmlp_server_get_tokenizer_info(nmlp_server *s, nmlp_http_request *r) { answer_json(s, r, put_tokenizer_info); }
void nmlp_server_get_props(nmlp_server *s, nmlp_http_request *r) { answer_json(s, r, put_props); }
void nmlp_server_get_slots(nmlp_server *s, nmlp_http_request *r) { answer_json(s, r, put_slots); }
