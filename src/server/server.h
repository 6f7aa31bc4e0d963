/* An HTTP server that answers as OpenAI's API does, from one loaded model or two of the same tokenizer
 * (docs/serving.md), and a page to talk to them. */
#ifndef NMLP_SERVER_SERVER_H
#define NMLP_SERVER_SERVER_H

#include "service/loaded_model.h"
#include "text/tokenizer.h"

enum { NMLP_SERVER_MODELS_MAX = 2 };

typedef struct nmlp_server_model {
    const char *name; /* for clients */
    const nmlp_loaded *loaded;
} nmlp_server_model;

/* What is served: 1 to NMLP_SERVER_MODELS_MAX models with different names and one tokenizer. */
typedef struct nmlp_server_models {
    nmlp_server_model models[NMLP_SERVER_MODELS_MAX];
    int n_models;
    const nmlp_tokenizer *tokenizer;
} nmlp_server_models;

typedef struct nmlp_server_options {
    /* Loads what is served, on a thread of its own: the server listens meanwhile and answers with 503. The caller
     * releases it after nmlp_server_run. */
    nmlp_status (*load)(void *ctx, nmlp_server_models *out, nmlp_err *err);
    const char *host;    /* numeric address */
    int64_t port;        /* 0: any free one */
    const char *api_key; /* NULL: none is asked for */
    const char *cors;    /* origin that pages may ask from; NULL: none */
    int64_t context;     /* positions of a request; 0: the model's maximum, at most 4096 */
    int64_t slots;       /* requests that run together */
    int64_t kv_bytes;    /* of keys and values in all; 0: what `slots` of `context` need */
    int64_t max_waiting; /* requests in the queue */
    int64_t grace_s;     /* to finish requests after a signal */
    int64_t max_connections, max_per_address;
    double request_s;                            /* for a request to arrive whole */
    double answer_s;                             /* for an answer, from its request on; 0: any time */
    double ping_s;                               /* between signs of life on a stream that waits */
    bool log_prompts;                            /* log lines have them */
    void (*on_listening)(void *ctx, int port);   /* may be NULL, as may the others */
    void (*on_ready)(void *ctx, int port);       /* models are loaded */
    void (*on_abandoned)(void *ctx);             /* a signal came while they were: the caller may end the process */
    void (*on_log)(void *ctx, const char *line); /* one JSON object; may be NULL */
    void *ctx;
} nmlp_server_options;

nmlp_server_options nmlp_server_defaults(void);

/* Serves until SIGINT or SIGTERM, then finishes what runs and waits; a second signal ends it at once. */
nmlp_status nmlp_server_run(const nmlp_server_options *options, nmlp_err *err);

#endif
