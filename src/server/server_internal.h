/* The parts of a server that its files share: models, completions under way, answers. All of it belongs to the thread
 * of the loop, but what loading says. */
#ifndef NMLP_SERVER_SERVER_INTERNAL_H
#define NMLP_SERVER_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/http.h"
#include "server/metrics.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/worker.h"

/* A model, and the thread that runs it. */
typedef struct nmlp_served {
    nmlp_server_model model;
    int64_t context;
    nmlp_worker *worker;
    nmlp_grammar_cache *grammars;
} nmlp_served;

/* A completion under way. */
typedef struct nmlp_server_call {
    struct nmlp_server *server;
    const nmlp_served *served;
    nmlp_http_request *http; /* NULL: the client is gone or answered */
    nmlp_job job;
    nmlp_reply_head head;
    nmlp_reply_choice *choices;
    int n_choices;
    nmlp_reply_usage usage;
    double ttft_ms, decode_ms; /* of the first choice that had a token; of all tokens after the first of a choice */
    int64_t n_decoded;         /* those tokens */
    const char *path;
    bool streaming;
    int status;     /* of the answer that was sent before the job ended; 0: none */
    nmlp_status st; /* of the first failure, kept until the job has ended */
    nmlp_err err;
    double started_s, sent_s, deadline_s;
    char peer[64];
    struct nmlp_server_call *next;
} nmlp_server_call;

typedef enum nmlp_server_state { NMLP_SERVER_LOADING, NMLP_SERVER_READY, NMLP_SERVER_FAILED } nmlp_server_state;

typedef struct nmlp_server {
    nmlp_server_options options;
    nmlp_served models[NMLP_SERVER_MODELS_MAX];
    int n_models;
    const nmlp_tokenizer *tokenizer;
    nmlp_http *http;
    nmlp_server_call *calls;
    nmlp_server_metrics metrics;
    uint64_t n_ids;
    int64_t started; /* seconds since 1970 */
    bool draining;
    bool ready; /* models are loaded, as far as the loop knows */
    pthread_t loader;
    atomic_int loading; /* nmlp_server_state, set by the loader last of all */
    nmlp_status load_status;
    nmlp_err load_err;
} nmlp_server;

/* server_answer.c: whole answers, and log lines. `call` may be NULL. */
void nmlp_server_log(const nmlp_server *s, const char *method, const char *path, const char *peer, int status,
                     double ms, const nmlp_server_call *call);
/* Returns the status that was sent: 503 where there was no memory for the body. */
int nmlp_server_respond(nmlp_http_request *r, int status, const char *type, const nmlp_str *body);
void nmlp_server_answer(nmlp_server *s, nmlp_http_request *r, int status, const char *type, const nmlp_str *body);
void nmlp_server_answer_error(nmlp_server *s, nmlp_http_request *r, int status, const nmlp_err *err);
/* When to try again, as a header of an answer with 429 or 503. */
void nmlp_server_add_retry(nmlp_http_request *r);

/* completions.c */
void nmlp_server_post_chat(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_post_completions(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_post_embeddings(nmlp_server *s, nmlp_http_request *r);
/* Takes what workers have produced. */
void nmlp_server_take_events(nmlp_server *s);
/* About once a second: deadlines, and signs of life on streams that wait. */
void nmlp_server_check_times(nmlp_server *s);
void nmlp_server_drop_calls(nmlp_server *s);

/* endpoints.c: what needs no engine. */
void nmlp_server_get_page(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_get_health(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_get_models(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_get_model(nmlp_server *s, nmlp_http_request *r); /* /v1/models/NAME */
void nmlp_server_get_metrics(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_get_props(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_get_slots(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_get_tokenizer_info(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_post_tokenize(nmlp_server *s, nmlp_http_request *r);
void nmlp_server_post_detokenize(nmlp_server *s, nmlp_http_request *r);

#endif
