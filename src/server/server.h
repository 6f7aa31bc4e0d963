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

typedef struct nmlp_server_options {
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
    void (*on_ready)(void *ctx, int port);       /* listens; may be NULL */
    void (*on_log)(void *ctx, const char *line); /* one JSON object, without the text of prompts; may be NULL */
    void *ctx;
} nmlp_server_options;

nmlp_server_options nmlp_server_defaults(void);

/* Serves n_models (1 to NMLP_SERVER_MODELS_MAX, with different names) until SIGINT or SIGTERM, then finishes what runs
 * and waits; a second signal ends it at once. */
nmlp_status nmlp_server_run(const nmlp_server_model *models, int n_models, const nmlp_tokenizer *tokenizer,
                            const nmlp_server_options *options, nmlp_err *err);

#endif
