#define _DEFAULT_SOURCE /* eventfd, getnameinfo */
#include "server/http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { ADDRESS_MAX = 64, PATH_BYTES = 256, UNSENT_MAX_BYTES = 4 << 20, IDLE_S = 600 };

/* A connection from its acceptance to its end, by its bufferevent, of which a reference is held: libevent calls nobody
 * when a connection without a request ends. */
struct connection {
    nmlp_http *http;
    struct bufferevent *bev;
    struct connection *next;
    double waiting_since_s;
    bool busy; /* a request is worked on */
    char address[ADDRESS_MAX];
};

struct nmlp_http_request {
    nmlp_http *http;
    struct evhttp_request *ev;
    struct connection *connection;
    struct event *closed; /* the peer has closed its side */
    void (*on_gone)(void *ctx);
    void *gone_ctx;
    char path[PATH_BYTES];
};

struct nmlp_http {
    nmlp_http_options options;
    struct event_base *base;
    struct evhttp *server;
    struct evconnlistener *listener;
    struct event *wake, *sweep, *timer, *flush, *signals[2];
    void (*timer_fn)(void *ctx);
    void *timer_ctx;
    int wake_fd;
    int port;
    bool stopped_listening;
    struct connection *connections;
    int n_connections;
};

/* ---- connections ---- */

static void drop(struct connection *c) {
    int fd = bufferevent_getfd(c->bev);
    if (fd >= 0) shutdown(fd, SHUT_RDWR); /* libevent reads the end and frees it */
}

/* libevent has freed the connection where its callbacks are gone from the bufferevent. */
static bool is_over(const struct connection *c) {
    bufferevent_data_cb read_cb = NULL, write_cb = NULL;
    bufferevent_event_cb event_cb = NULL;
    bufferevent_getcb(c->bev, &read_cb, &write_cb, &event_cb, NULL);
    return !read_cb && !write_cb && !event_cb;
}

static void forget_connections(nmlp_http *http, bool all) {
    for (struct connection **at = &http->connections; *at;) {
        struct connection *c = *at;
        if (!all && (c->busy || !is_over(c))) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        bufferevent_decref(c->bev);
        nmlp_mem_free(c);
        http->n_connections--;
    }
    if (!all && !http->stopped_listening && http->n_connections < http->options.max_connections)
        evconnlistener_enable(http->listener);
}

static void sweep(evutil_socket_t fd, short what, void *ctx) {
    nmlp_http *http = ctx;
    double now = nmlp_clock_seconds();
    (void)fd, (void)what;
    forget_connections(http, false);
    for (struct connection *c = http->connections; c; c = c->next)
        if (!c->busy && now - c->waiting_since_s > http->options.request_s) drop(c);
    http->options.on_second(http->options.ctx);
}

static void read_address(struct connection *c) {
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    int fd = bufferevent_getfd(c->bev), yes = 1;
    /* A token is sent when it is there, not when the client has confirmed the one before. */
    if (fd >= 0) (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (fd < 0 || getpeername(fd, (struct sockaddr *)&peer, &len) != 0) return;
    (void)getnameinfo((struct sockaddr *)&peer, len, c->address, sizeof c->address, NULL, 0, NI_NUMERICHOST);
}

/* The socket is known only after libevent has taken the bufferevent. */
static void check_address(evutil_socket_t fd, short what, void *ctx) {
    nmlp_http *http = ctx;
    (void)fd, (void)what;
    forget_connections(http, false); /* those that are over do not count */
    for (struct connection *c = http->connections; c; c = c->next) {
        int same = 0;
        if (c->address[0]) continue;
        read_address(c);
        for (struct connection *other = http->connections; other; other = other->next)
            same += strcmp(other->address, c->address) == 0;
        if (same > http->options.max_per_address) drop(c);
    }
}

static struct bufferevent *new_connection(struct event_base *base, void *ctx) {
    nmlp_http *http = ctx;
    struct timeval now = {0};
    struct bufferevent *bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    struct connection *c = bev ? nmlp_mem_new(1, sizeof *c, NULL) : NULL;
    if (!c) return bev;
    *c = (struct connection){.http = http, .bev = bev, .waiting_since_s = nmlp_clock_seconds()};
    bufferevent_incref(bev);
    c->next = http->connections;
    http->connections = c;
    if (++http->n_connections >= http->options.max_connections) evconnlistener_disable(http->listener);
    (void)event_base_once(base, -1, EV_TIMEOUT, check_address, http, &now);
    return bev;
}

int nmlp_http_connections(const nmlp_http *http) { return http->n_connections; }

/* ---- requests ---- */

static void free_request(nmlp_http_request *r) {
    if (r->closed) event_free(r->closed);
    if (r->connection) {
        r->connection->busy = false;
        r->connection->waiting_since_s = nmlp_clock_seconds();
    }
    nmlp_mem_free(r);
}

/* libevent frees the connection, and its request with it, unless it noticed itself, while an answer was streamed, that
 * the client went away: then it has parted the two and leaves the request to us. */
static void connection_closes(struct evhttp_connection *connection, void *ctx) {
    nmlp_http_request *r = ctx;
    (void)connection;
    if (r->on_gone) r->on_gone(r->gone_ctx);
    if (!evhttp_request_get_connection(r->ev)) evhttp_request_free(r->ev);
    free_request(r);
}

static void peer_closed(evutil_socket_t fd, short what, void *ctx) {
    nmlp_http_request *r = ctx;
    (void)fd, (void)what;
    evhttp_connection_free(evhttp_request_get_connection(r->ev)); /* calls connection_closes */
}

/* Where a body ends must be said once and plainly: what a proxy in front reads otherwise than libevent does is how one
 * request is smuggled behind another. */
static bool has_plain_length(struct evhttp_request *ev) {
    int n = 0;
    struct evkeyval *header;
    for (header = evhttp_request_get_input_headers(ev)->tqh_first; header; header = header->next.tqe_next) {
        const char *key = header->key, *value = header->value;
        bool length = strcasecmp(key, "Content-Length") == 0, coded = strcasecmp(key, "Transfer-Encoding") == 0;
        n += length || coded;
        if (strpbrk(key, " \t")) return false;
        if (length && (!value[0] || value[strspn(value, "0123456789")])) return false;
        if (coded && strcasecmp(value, "chunked") != 0) return false;
    }
    return n <= 1;
}

static void request_arrives(struct evhttp_request *ev, void *ctx) {
    nmlp_http *http = ctx;
    struct evhttp_connection *connection = evhttp_request_get_connection(ev);
    struct bufferevent *bev = evhttp_connection_get_bufferevent(connection);
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(ev);
    const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
    nmlp_http_request *r = nmlp_mem_new(1, sizeof *r, NULL);
    if (!has_plain_length(ev) || !r) {
        evhttp_add_header(evhttp_request_get_output_headers(ev), "Connection", "close");
        evhttp_send_reply(ev, r ? 400 : 503, NULL, NULL);
        nmlp_mem_free(r);
        return;
    }
    *r = (nmlp_http_request){.http = http, .ev = ev};
    snprintf(r->path, sizeof r->path, "%s", path && path[0] ? path : "/"); /* no path of ours is that long */
    for (struct connection *c = http->connections; c && !r->connection; c = c->next)
        if (c->bev == bev) r->connection = c;
    if (r->connection) r->connection->busy = true;
    evhttp_connection_set_closecb(connection, connection_closes, r);
    /* Reading stays off while a request is worked on, so the end of the connection is asked for apart from data. */
    r->closed = event_new(http->base, bufferevent_getfd(bev), EV_CLOSED, peer_closed, r);
    if (r->closed) event_add(r->closed, NULL);
    http->options.on_request(http->options.ctx, r);
}

const char *nmlp_http_method(const nmlp_http_request *r) {
    switch (evhttp_request_get_command(r->ev)) {
    case EVHTTP_REQ_GET: return "GET";
    case EVHTTP_REQ_POST: return "POST";
    case EVHTTP_REQ_OPTIONS: return "OPTIONS";
    case EVHTTP_REQ_HEAD: return "HEAD";
    case EVHTTP_REQ_PUT: return "PUT";
    case EVHTTP_REQ_DELETE: return "DELETE";
    case EVHTTP_REQ_PATCH: return "PATCH";
    default: return "other";
    }
}

const char *nmlp_http_path(const nmlp_http_request *r) { return r->path; }

const char *nmlp_http_header(const nmlp_http_request *r, const char *name) {
    return evhttp_find_header(evhttp_request_get_input_headers(r->ev), name);
}

const char *nmlp_http_body(const nmlp_http_request *r, size_t *len) {
    struct evbuffer *buffer = evhttp_request_get_input_buffer(r->ev);
    *len = evbuffer_get_length(buffer);
    const unsigned char *bytes = *len ? evbuffer_pullup(buffer, -1) : NULL;
    if (!bytes) *len = 0;
    return bytes ? (const char *)bytes : "";
}

const char *nmlp_http_peer(const nmlp_http_request *r) { return r->connection ? r->connection->address : ""; }

void nmlp_http_on_gone(nmlp_http_request *r, void (*fn)(void *ctx), void *ctx) {
    r->on_gone = fn;
    r->gone_ctx = ctx;
}

void nmlp_http_add_header(nmlp_http_request *r, const char *name, const char *value) {
    evhttp_add_header(evhttp_request_get_output_headers(r->ev), name, value);
}

/* The answer is libevent's from here on. */
static struct evhttp_request *release(nmlp_http_request *r) {
    struct evhttp_request *ev = r->ev;
    evhttp_connection_set_closecb(evhttp_request_get_connection(ev), NULL, NULL);
    free_request(r);
    return ev;
}

void nmlp_http_respond(nmlp_http_request *r, int status, const char *content_type, const char *body, size_t len) {
    struct evbuffer *buffer = evbuffer_new();
    nmlp_http_add_header(r, "Content-Type", content_type);
    bool whole = buffer && evbuffer_add(buffer, body, len) == 0;
    evhttp_send_reply(release(r), whole ? status : 503, NULL, buffer);
    if (buffer) evbuffer_free(buffer);
}

void nmlp_http_stream_begin(nmlp_http_request *r, const char *content_type) {
    nmlp_http_add_header(r, "Content-Type", content_type);
    nmlp_http_add_header(r, "Cache-Control", "no-cache");
    evhttp_send_reply_start(r->ev, 200, NULL);
}

void nmlp_http_stream_write(nmlp_http_request *r, const char *bytes, size_t len) {
    struct bufferevent *bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(r->ev));
    struct evbuffer *unsent = bufferevent_get_output(bev), *buffer = evbuffer_new();
    char size[32]; /* the line in front of a chunk */
    size_t before = evbuffer_get_length(unsent), need = len + 2 + (size_t)snprintf(size, sizeof size, "%zx\r\n", len);
    bool whole = buffer && evbuffer_add(buffer, bytes, len) == 0;
    if (whole && len) evhttp_send_reply_chunk(r->ev, buffer);
    if (buffer) evbuffer_free(buffer);
    size_t after = evbuffer_get_length(unsent);
    /* Without memory libevent leaves out a part: a stream that is cut off shows it, one with a gap does not. */
    if (!whole || (len && after - before < need)) nmlp_http_stream_cut(r);
    if (after > UNSENT_MAX_BYTES && r->connection) drop(r->connection); /* nobody reads */
}

void nmlp_http_stream_cut(nmlp_http_request *r) {
    int fd = bufferevent_getfd(evhttp_connection_get_bufferevent(evhttp_request_get_connection(r->ev)));
    if (fd >= 0) shutdown(fd, SHUT_RDWR);
}

void nmlp_http_stream_end(nmlp_http_request *r) { evhttp_send_reply_end(release(r)); }

/* ---- the loop ---- */

static void woken(evutil_socket_t fd, short what, void *ctx) {
    nmlp_http *http = ctx;
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof count) == (ssize_t)sizeof count) http->options.on_wake(http->options.ctx);
}

static void signalled(evutil_socket_t fd, short what, void *ctx) {
    nmlp_http *http = ctx;
    (void)fd, (void)what;
    http->options.on_signal(http->options.ctx);
}

static nmlp_status bind_address(nmlp_http *http, nmlp_err *err) {
    const nmlp_http_options *o = &http->options;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_PASSIVE}, *address = NULL;
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    char port[16], service[16];
    snprintf(port, sizeof port, "%d", o->port);
    int code = getaddrinfo(o->host, port, &hints, &address);
    if (code == EAI_MEMORY || code == EAI_SYSTEM)
        return nmlp_fail(err, NMLP_E_NOMEM, "the server's address cannot be looked up: %s", gai_strerror(code));
    if (code != 0) return nmlp_fail_field(err, NMLP_E_ARG, "host", "is \"%s\"; it must be a numeric address", o->host);
    http->listener = evconnlistener_new_bind(http->base, NULL, NULL,
                                             LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 1024,
                                             address->ai_addr, (int)address->ai_addrlen);
    freeaddrinfo(address);
    if (!http->listener || !evhttp_bind_listener(http->server, http->listener))
        return nmlp_fail_field(err, NMLP_E_IO, "port", "%d of %s: cannot listen: %s", o->port, o->host,
                               strerror(errno));
    if (getsockname(evconnlistener_get_fd(http->listener), (struct sockaddr *)&bound, &len) == 0 &&
        getnameinfo((struct sockaddr *)&bound, len, NULL, 0, service, sizeof service, NI_NUMERICSERV) == 0)
        http->port = atoi(service);
    return NMLP_OK;
}

static nmlp_status add_events(nmlp_http *http, nmlp_err *err) {
    static const int numbers[] = {SIGINT, SIGTERM};
    struct timeval second = {.tv_sec = 1};
    http->wake = event_new(http->base, http->wake_fd, EV_READ | EV_PERSIST, woken, http);
    http->sweep = event_new(http->base, -1, EV_PERSIST, sweep, http);
    bool ok = http->wake && event_add(http->wake, NULL) == 0 && http->sweep && event_add(http->sweep, &second) == 0;
    for (int i = 0; i < 2 && ok; i++) {
        http->signals[i] = evsignal_new(http->base, numbers[i], signalled, http);
        ok = http->signals[i] && event_add(http->signals[i], NULL) == 0;
    }
    return ok ? NMLP_OK : nmlp_fail(err, NMLP_E_NOMEM, "the events of the server could not be made");
}

/* ---- memory of libevent ---- */

/* It does not survive the lack of some small blocks (2.1 frees requests that are half made): who lacks one waits for
 * others to give back theirs, and where that takes too long the server ends with a line that says why. */
static bool waits_for_memory(int *n_tries) {
    static const char lack[] = "neuronmlp serve: out of memory: the server cannot go on\n";
    enum { TRIES_MAX = 100, PAUSE_NS = 20000000 };
    if (++*n_tries < TRIES_MAX) return nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL) == 0 || errno == EINTR;
    (void)!write(STDERR_FILENO, lack, sizeof lack - 1);
    _exit(1);
}

static void *patient_malloc(size_t bytes) {
    int n_tries = 0;
    void *block = malloc(bytes);
    while (!block && bytes && waits_for_memory(&n_tries)) block = malloc(bytes);
    return block;
}

static void *patient_realloc(void *old, size_t bytes) {
    int n_tries = 0;
    void *block = realloc(old, bytes);
    while (!block && bytes && waits_for_memory(&n_tries)) block = realloc(old, bytes);
    return block;
}

nmlp_status nmlp_http_create(nmlp_http **out, const nmlp_http_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *out = NULL;
    nmlp_http *http = nmlp_mem_new(1, sizeof *http, err);
    if (!http) return NMLP_E_NOMEM;
    http->options = *options;
    event_set_mem_functions(patient_malloc, patient_realloc, free);
    http->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    http->base = event_base_new();
    http->server = http->base ? evhttp_new(http->base) : NULL;
    if (http->wake_fd < 0 || !http->server)
        NMLP_TRY(nmlp_fail(err, NMLP_E_NOMEM, "the loop of the server could not be made: %s", strerror(errno)));
    evhttp_set_max_headers_size(http->server, options->max_header_bytes);
    evhttp_set_max_body_size(http->server, options->max_body_bytes);
    evhttp_set_timeout(http->server, IDLE_S); /* slow requests end by the sweep, slow answers here */
    /* What is not served is refused as other errors are, not with libevent's page. */
    evhttp_set_allowed_methods(http->server, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_HEAD |
                                                 EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE | EVHTTP_REQ_PATCH);
    evhttp_set_default_content_type(http->server, NULL);
    evhttp_set_gencb(http->server, request_arrives, http);
    evhttp_set_bevcb(http->server, new_connection, http);
    NMLP_TRY(bind_address(http, err));
    NMLP_TRY(add_events(http, err));
    *out = http;
out:
    if (st != NMLP_OK) nmlp_http_destroy(http);
    return st;
}

void nmlp_http_destroy(nmlp_http *http) {
    if (!http) return;
    for (int i = 0; i < 2; i++)
        if (http->signals[i]) event_free(http->signals[i]);
    if (http->flush) event_free(http->flush);
    if (http->timer) event_free(http->timer);
    if (http->sweep) event_free(http->sweep);
    if (http->wake) event_free(http->wake);
    if (http->server) evhttp_free(http->server);
    forget_connections(http, true);
    if (http->base) event_base_free(http->base);
    if (http->wake_fd >= 0) close(http->wake_fd);
    nmlp_mem_free(http);
}

int nmlp_http_port(const nmlp_http *http) { return http->port; }

nmlp_status nmlp_http_run(nmlp_http *http, nmlp_err *err) {
    if (event_base_dispatch(http->base) < 0) return nmlp_fail(err, NMLP_E_IO, "the loop of the server failed");
    return NMLP_OK;
}

void nmlp_http_stop(nmlp_http *http) { event_base_loopexit(http->base, NULL); }

static void stop_if_sent(evutil_socket_t fd, short what, void *ctx) {
    nmlp_http *http = ctx;
    (void)fd, (void)what;
    for (const struct connection *c = http->connections; c; c = c->next)
        if (!is_over(c) && evbuffer_get_length(bufferevent_get_output(c->bev)) > 0) return;
    nmlp_http_stop(http);
}

void nmlp_http_stop_when_sent(nmlp_http *http) {
    struct timeval often = {.tv_usec = 5000};
    if (!http->flush) http->flush = event_new(http->base, -1, EV_PERSIST, stop_if_sent, http);
    if (!http->flush || event_add(http->flush, &often) != 0) nmlp_http_stop(http);
}

void nmlp_http_stop_listening(nmlp_http *http) {
    http->stopped_listening = true;
    evconnlistener_disable(http->listener);
}

static void run_timer(evutil_socket_t fd, short what, void *ctx) {
    nmlp_http *http = ctx;
    (void)fd, (void)what;
    http->timer_fn(http->timer_ctx);
}

nmlp_status nmlp_http_after(nmlp_http *http, double seconds, void (*fn)(void *ctx), void *ctx, nmlp_err *err) {
    time_t whole = (time_t)seconds;
    struct timeval wait = {.tv_sec = whole, .tv_usec = (suseconds_t)(1e6 * (seconds - (double)whole))};
    if (!http->timer) http->timer = evtimer_new(http->base, run_timer, http);
    http->timer_fn = fn;
    http->timer_ctx = ctx;
    if (http->timer && event_add(http->timer, &wait) == 0) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_NOMEM, "a timer could not be made");
}

void nmlp_http_wake(nmlp_http *http) {
    uint64_t one = 1;
    ssize_t written = write(http->wake_fd, &one, sizeof one);
    (void)written; /* a full counter wakes too */
}
