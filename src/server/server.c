#include "server/server.h"

#include <string.h>
#include <time.h>

#include "server/server_internal.h"

enum { HEADER_MAX_BYTES = 32 << 10, BODY_MAX_BYTES = 8 << 20 };

nmlp_server_options nmlp_server_defaults(void) {
    return (nmlp_server_options){.host = "127.0.0.1",
                                 .port = 8080,
                                 .slots = 8,
                                 .max_waiting = 64,
                                 .grace_s = 30,
                                 .max_connections = 4096,
                                 .max_per_address = 2048,
                                 .request_s = 30,
                                 .answer_s = 600,
                                 .ping_s = 15};
}

/* ---- routes ---- */

static const struct route {
    const char *method, *path;
    bool open; /* without a key */
    void (*handle)(nmlp_server *s, nmlp_http_request *r);
} routes[] = {
    {"GET", "/", true, nmlp_server_get_page},
    {"GET", "/health", true, nmlp_server_get_health},
    {"GET", "/v1/models", false, nmlp_server_get_models},
    {"GET", "/v1/models/", false, nmlp_server_get_model},
    {"GET", "/metrics", false, nmlp_server_get_metrics},
    {"POST", "/v1/chat/completions", false, nmlp_server_post_chat},
    {"POST", "/v1/completions", false, nmlp_server_post_completions},
    {"POST", "/v1/embeddings", false, nmlp_server_post_embeddings},
    {"GET", "/props", false, nmlp_server_get_props},
    {"GET", "/slots", false, nmlp_server_get_slots},
    {"GET", "/tokenizer_info", false, nmlp_server_get_tokenizer_info},
    {"POST", "/tokenize", false, nmlp_server_post_tokenize},
    {"POST", "/detokenize", false, nmlp_server_post_detokenize},
};

/* A path that ends with a slash stands for all below it. */
static bool is_path(const struct route *route, const char *path) {
    size_t n = strlen(route->path);
    if (n > 1 && route->path[n - 1] == '/') return strncmp(route->path, path, n) == 0 && path[n];
    return strcmp(route->path, path) == 0;
}

/* Takes the same time wherever the two differ. */
static bool same_key(const char *given, const char *key) {
    size_t n = strlen(key), len = strlen(given);
    unsigned char differ = (unsigned char)(n != len);
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(key[i] ^ (i < len ? given[i] : 0));
    return differ == 0;
}

static bool is_allowed(const nmlp_server *s, const nmlp_http_request *r) {
    const char *bearer = nmlp_http_header(r, "Authorization"), *plain = nmlp_http_header(r, "X-Api-Key");
    if (!s->options.api_key) return true;
    if (bearer && strncmp(bearer, "Bearer ", 7) == 0 && same_key(bearer + 7, s->options.api_key)) return true;
    return plain && same_key(plain, s->options.api_key);
}

/* Whether the browser only asks what it may ask. */
static bool allow_origin(nmlp_server *s, nmlp_http_request *r) {
    nmlp_str empty;
    if (!s->options.cors) return false;
    nmlp_http_add_header(r, "Access-Control-Allow-Origin", s->options.cors);
    if (strcmp(nmlp_http_method(r), "OPTIONS") != 0) return false;
    nmlp_http_add_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    nmlp_http_add_header(r, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key");
    nmlp_str_init(&empty);
    nmlp_server_answer(s, r, 204, "text/plain", &empty);
    return true;
}

static void on_request(void *ctx, nmlp_http_request *r) {
    nmlp_server *s = ctx;
    const char *path = nmlp_http_path(r), *method = nmlp_http_method(r);
    const struct route *route = NULL;
    bool other_method = false;
    nmlp_err err = {0};
    if (allow_origin(s, r)) return;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0] && !route; i++) {
        if (!is_path(&routes[i], path)) continue;
        other_method = true;
        bool head = strcmp(method, "HEAD") == 0; /* what GET would say, without its body */
        if (strcmp(routes[i].method, head ? "GET" : method) == 0) route = &routes[i];
    }
    if (!(route && route->open) && !is_allowed(s, r)) {
        nmlp_fail(&err, NMLP_E_ARG, "a valid API key is needed, as \"Authorization: Bearer KEY\"");
        nmlp_server_answer_error(s, r, 401, &err);
    } else if (!route) {
        nmlp_fail(&err, NMLP_E_MISSING, "%s %s is not served here", method, path);
        nmlp_server_answer_error(s, r, other_method ? 405 : 404, &err);
    } else if ((s->draining || !s->ready) && !route->open) {
        nmlp_fail(&err, NMLP_E_INTERRUPTED, s->ready ? "the server is shutting down" : "the model is being loaded");
        nmlp_server_answer_error(s, r, 503, &err);
    } else {
        route->handle(s, r);
    }
}

/* ---- beginning and end ---- */

static void end_now(void *ctx) {
    nmlp_server *s = ctx;
    nmlp_http_stop(s->http);
}

static void on_signal(void *ctx) {
    nmlp_server *s = ctx;
    if (!s->ready && s->options.on_abandoned) s->options.on_abandoned(s->options.ctx);
    if (s->draining || !s->calls || nmlp_http_after(s->http, (double)s->options.grace_s, end_now, s, NULL) != NMLP_OK) {
        end_now(s);
        return;
    }
    s->draining = true;
    nmlp_http_stop_listening(s->http);
}

static void wake_loop(void *ctx) {
    nmlp_server *s = ctx;
    nmlp_http_wake(s->http);
}

static nmlp_status start_model(nmlp_server *s, const nmlp_server_model *model, nmlp_err *err) {
    const nmlp_server_options *options = &s->options;
    nmlp_served *served = &s->models[s->n_models];
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
    int64_t vocab = model->loaded->model.config.vocab;
    NMLP_RETURN_IF_FAILED(nmlp_grammar_cache_create(&served->grammars, s->tokenizer, vocab, err));
    NMLP_RETURN_IF_FAILED(nmlp_worker_create(&served->worker, &worker, err));
    s->n_models++;
    return NMLP_OK;
}

/* ---- loading ---- */

static nmlp_status load(nmlp_server *s, nmlp_err *err) {
    nmlp_server_models loaded = {0};
    NMLP_RETURN_IF_FAILED(s->options.load(s->options.ctx, &loaded, err));
    s->tokenizer = loaded.tokenizer;
    for (int i = 0; i < loaded.n_models; i++) NMLP_RETURN_IF_FAILED(start_model(s, &loaded.models[i], err));
    return NMLP_OK;
}

static void *run_loader(void *ctx) {
    nmlp_server *s = ctx;
    s->load_status = load(s, &s->load_err);
    atomic_store(&s->loading, s->load_status == NMLP_OK ? NMLP_SERVER_READY : NMLP_SERVER_FAILED);
    nmlp_http_wake(s->http);
    return NULL;
}

static void on_wake(void *ctx) {
    nmlp_server *s = ctx;
    if (!s->ready) {
        int state = atomic_load(&s->loading);
        if (state == NMLP_SERVER_FAILED) nmlp_http_stop(s->http);
        if (state != NMLP_SERVER_READY) return;
        s->ready = true;
        if (s->options.on_ready) s->options.on_ready(s->options.ctx, nmlp_http_port(s->http));
    }
    nmlp_server_take_events(s);
}

static void on_second(void *ctx) {
    nmlp_server *s = ctx;
    if (s->ready) nmlp_server_check_times(s);
}

nmlp_status nmlp_server_run(const nmlp_server_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    bool loads = false;
    nmlp_server s = {.options = *options, .started = (int64_t)time(NULL)};
    nmlp_http_options http = {.host = options->host,
                              .port = (int)options->port,
                              .max_header_bytes = HEADER_MAX_BYTES,
                              .max_body_bytes = BODY_MAX_BYTES,
                              .max_connections = (int)options->max_connections,
                              .max_per_address = (int)options->max_per_address,
                              .request_s = options->request_s,
                              .on_request = on_request,
                              .on_wake = on_wake,
                              .on_second = on_second,
                              .on_signal = on_signal,
                              .ctx = &s};
    NMLP_TRY(nmlp_http_create(&s.http, &http, err));
    loads = pthread_create(&s.loader, NULL, run_loader, &s) == 0;
    if (!loads) NMLP_TRY(nmlp_fail(err, NMLP_E_NOMEM, "the thread that loads could not be started"));
    if (options->on_listening) options->on_listening(options->ctx, nmlp_http_port(s.http));
    st = nmlp_http_run(s.http, err);
out:
    if (loads) pthread_join(s.loader, NULL);
    if (st == NMLP_OK && s.load_status != NMLP_OK) {
        st = s.load_status;
        if (err) *err = s.load_err;
    }
    for (int i = 0; i < s.n_models; i++) nmlp_worker_destroy(s.models[i].worker);
    nmlp_server_drop_calls(&s);
    for (int i = 0; i < NMLP_SERVER_MODELS_MAX; i++) nmlp_grammar_cache_destroy(s.models[i].grammars);
    nmlp_http_destroy(s.http);
    return st;
}
