/* HTTP/1.1 on one thread: the only user of libevent. Requests arrive whole, within limits; answers are sent whole or as
 * a stream. All functions but nmlp_http_wake belong to the thread that runs the loop.
 *
 * Limits against clients that send slowly, much or often: bytes of headers and body, seconds until a request is
 * complete, connections in all and per address. A client that goes away while its request is worked on is noticed. */
#ifndef NMLP_SERVER_HTTP_H
#define NMLP_SERVER_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct nmlp_http nmlp_http;
typedef struct nmlp_http_request nmlp_http_request;

typedef struct nmlp_http_options {
    const char *host; /* numeric address */
    int port;         /* 0: any free one */
    int64_t max_header_bytes, max_body_bytes;
    int max_connections, max_per_address;
    double request_s; /* from accepting a connection, or the answer before, to a complete request */
    /* A request is there: it must be answered now or later, exactly once, unless its client goes away. */
    void (*on_request)(void *ctx, nmlp_http_request *request);
    void (*on_wake)(void *ctx);   /* after nmlp_http_wake */
    void (*on_second)(void *ctx); /* about once a second */
    void (*on_signal)(void *ctx); /* SIGINT or SIGTERM */
    void *ctx;
} nmlp_http_options;

/* Listens once it returns. */
nmlp_status nmlp_http_create(nmlp_http **out, const nmlp_http_options *options, nmlp_err *err);
void nmlp_http_destroy(nmlp_http *http); /* NULL is fine; open connections are closed */
int nmlp_http_port(const nmlp_http *http);
/* Runs until nmlp_http_stop. */
nmlp_status nmlp_http_run(nmlp_http *http, nmlp_err *err);
void nmlp_http_stop(nmlp_http *http);
/* The same once all answers are sent. */
void nmlp_http_stop_when_sent(nmlp_http *http);
/* No further connections. */
void nmlp_http_stop_listening(nmlp_http *http);
/* Calls fn once on the loop's thread; a later call takes the place of one still waiting. */
nmlp_status nmlp_http_after(nmlp_http *http, double seconds, void (*fn)(void *ctx), void *ctx, nmlp_err *err);
/* Any thread: has on_wake called soon. */
void nmlp_http_wake(nmlp_http *http);
int nmlp_http_connections(const nmlp_http *http);

/* ---- a request ---- */

const char *nmlp_http_method(const nmlp_http_request *request);                   /* "GET", "POST", … */
const char *nmlp_http_path(const nmlp_http_request *request);                     /* without query */
const char *nmlp_http_header(const nmlp_http_request *request, const char *name); /* NULL: absent */
const char *nmlp_http_body(const nmlp_http_request *request, size_t *len);        /* not NUL-ended */
const char *nmlp_http_peer(const nmlp_http_request *request);                     /* address */

/* fn is called when the client goes away before the answer is complete; the request is no more when it returns. */
void nmlp_http_on_gone(nmlp_http_request *request, void (*fn)(void *ctx), void *ctx);
/* For the answer that follows. */
void nmlp_http_add_header(nmlp_http_request *request, const char *name, const char *value);
/* Answers; the request is no more. */
void nmlp_http_respond(nmlp_http_request *request, int status, const char *content_type, const char *body, size_t len);
/* The same in pieces. */
void nmlp_http_stream_begin(nmlp_http_request *request, const char *content_type);
void nmlp_http_stream_write(nmlp_http_request *request, const char *bytes, size_t len);
/* The client sees that the answer ends too early: nothing more arrives, the end neither. */
void nmlp_http_stream_cut(nmlp_http_request *request);
void nmlp_http_stream_end(nmlp_http_request *request);

#endif
