/* Load on a running server, and what its clients notice:
 *
 *   load_server PORT decode STREAMS PROMPT NEW   streams at once: tokens/s while all of them run, gaps between tokens
 *                                                of a stream (in all, and against its median), time to first token
 *   load_server PORT long STREAMS PROMPT NEW LONG   the same, and a prompt of LONG tokens comes when all run
 *   load_server PORT prefix PROMPT REQUESTS      time to first token of prompts that share nothing, and nine tenths
 *   load_server PORT idle STREAMS                streams that wait for their answer (queue), for the server's memory
 *
 * Prompts are token ids below 8000. /health is asked every 10 ms meanwhile. Prints one JSON object. */
#define _DEFAULT_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { STREAMS_MAX = 4096, IDS_BELOW = 8000, READ_BYTES = 1 << 16, HEALTH_MAX = 1 << 20 };

struct stream {
    int fd;
    int new_tokens;
    int matched;  /* bytes of "data: {" seen so far */
    int n_events; /* with the one that says the reason of the end */
    double sent, first, last;
    double *arrivals; /* [new_tokens + 2] seconds */
    bool done, failed;
    char head[16]; /* of the answer: its status */
    int n_head;
};

static int port;
static uint32_t seed = 1;
static double health_ms[HEALTH_MAX];
static int n_health;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "load_server: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int connect_server(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static void send_all(int fd, const char *bytes, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t some = send(fd, bytes + at, n - at, MSG_NOSIGNAL);
        if (some < 0 && errno != EINTR) die("send");
        if (some > 0) at += (size_t)some;
    }
}

static void random_ids(int *ids, int from, int n) {
    for (int i = from; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int)((seed >> 8) % (IDS_BELOW - 300)) + 300;
    }
}

static void start(struct stream *s, const int *ids, int n, int new_tokens) {
    size_t capacity = 512 + 8 * (size_t)n, at;
    char *body = malloc(capacity), head[256];
    if (!body) die("malloc");
    at = (size_t)snprintf(body, capacity,
                          "{\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,\"prompt\":[",
                          new_tokens);
    for (int i = 0; i < n; i++) at += (size_t)snprintf(body + at, capacity - at, "%s%d", i ? "," : "", ids[i]);
    at += (size_t)snprintf(body + at, capacity - at, "]}");
    *s = (struct stream){.fd = connect_server(), .new_tokens = new_tokens};
    s->arrivals = calloc((size_t)new_tokens + 2, sizeof *s->arrivals);
    if (!s->arrivals) die("malloc");
    int len =
        snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", at);
    s->sent = now();
    send_all(s->fd, head, (size_t)len);
    send_all(s->fd, body, at);
    fcntl(s->fd, F_SETFL, O_NONBLOCK);
    free(body);
}

static void take_bytes(struct stream *s, const char *bytes, ssize_t n, double at) {
    static const char pattern[] = "data: {", end[] = "data: [";
    for (ssize_t i = 0; i < n; i++) {
        if (s->n_head < 15) s->head[s->n_head++] = bytes[i];
        if (bytes[i] == end[s->matched] && s->matched == 6) s->done = true;
        s->matched = bytes[i] == pattern[s->matched] ? s->matched + 1 : bytes[i] == 'd';
        if (s->matched < 7) continue;
        s->matched = 0;
        if (s->n_events <= s->new_tokens) s->arrivals[s->n_events] = at;
        if (s->n_events++ == 0) s->first = at;
        s->last = at;
    }
    if (s->n_head == 15 && strncmp(s->head + 9, "200", 3) != 0) s->failed = s->done = true;
}

static void read_stream(struct stream *s) {
    static char bytes[READ_BYTES];
    for (;;) {
        ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) {
            s->failed = s->failed || !s->done;
            s->done = true;
            return;
        }
        take_bytes(s, bytes, n, now());
        if (s->done) return;
    }
}

/* ---- /health beside it ---- */

static int health_fd = -1;
static double health_sent, health_next;

static void ask_health(void) {
    static const char words[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
    if (health_sent != 0 || now() < health_next) return;
    if (health_fd < 0) health_fd = connect_server();
    health_sent = now();
    send_all(health_fd, words, sizeof words - 1);
}

static void read_health(void) {
    char bytes[1024];
    if (recv(health_fd, bytes, sizeof bytes, 0) <= 0) die("/health");
    if (n_health < HEALTH_MAX) health_ms[n_health++] = 1e3 * (now() - health_sent);
    health_next = health_sent + 0.01;
    health_sent = 0;
}

/* Until all are done, or `enough` says so. */
static void run(struct stream *streams, int n, bool (*enough)(const struct stream *streams, int n)) {
    static struct pollfd fds[STREAMS_MAX + 1];
    for (;;) {
        int waiting = 0;
        ask_health();
        for (int i = 0; i < n; i++) {
            fds[i] = (struct pollfd){.fd = streams[i].done ? -1 : streams[i].fd, .events = POLLIN};
            waiting += !streams[i].done;
        }
        if (waiting == 0 || (enough && enough(streams, n))) return;
        fds[n] = (struct pollfd){.fd = health_sent != 0 ? health_fd : -1, .events = POLLIN};
        if (poll(fds, (nfds_t)n + 1, 5) < 0 && errno != EINTR) die("poll");
        if (fds[n].revents) read_health();
        for (int i = 0; i < n; i++)
            if (fds[i].revents && !streams[i].done) read_stream(&streams[i]);
    }
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, int n, double q) {
    if (n == 0) return 0;
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[(int)(q * (n - 1) + 0.5)];
}

struct gaps {
    double median, largest; /* seconds */
    int n, n_over;          /* all, and those of more than twice the median */
    int largest_at;         /* which of them */
};

/* Between arrivals of a stream; pieces that came together are one. */
static struct gaps gaps_of(const struct stream *s) {
    double *sorted = calloc((size_t)s->n_events + 1, sizeof *sorted);
    struct gaps g = {0};
    int last = s->n_events < s->new_tokens ? s->n_events : s->new_tokens;
    if (!sorted) die("malloc");
    for (int i = 1; i < last; i++) {
        double gap = s->arrivals[i] - s->arrivals[i - 1];
        if (gap <= 0) continue;
        sorted[g.n++] = gap;
        if (gap > g.largest) g.largest_at = i;
        g.largest = fmax(g.largest, gap);
    }
    g.median = quantile(sorted, g.n, 0.5);
    for (int i = 0; i < g.n; i++) g.n_over += sorted[i] > 2 * g.median;
    free(sorted);
    return g;
}

/* The largest gap that ended by `until`, over the stream's median gap. */
static double gap_ratio_until(const struct stream *s, double until) {
    double largest = 0, median = gaps_of(s).median;
    for (int i = 1; i < s->n_events && i < s->new_tokens && s->arrivals[i] <= until; i++)
        largest = fmax(largest, s->arrivals[i] - s->arrivals[i - 1]);
    return median > 0 ? largest / median : 0;
}

/* Tokens per second from when the last stream has its first token until the first stream ends. */
static double rate(const struct stream *streams, int n) {
    double from = 0, to = INFINITY, tokens = 0;
    for (int i = 0; i < n; i++) {
        from = fmax(from, streams[i].first);
        to = fmin(to, streams[i].last);
    }
    for (int i = 0; i < n; i++) {
        int events = 0, all = streams[i].n_events - 1; /* a token that ends no character has no event: scaled */
        for (int k = 0; k < all && k < streams[i].new_tokens; k++)
            events += streams[i].arrivals[k] > from && streams[i].arrivals[k] <= to;
        tokens += all > 0 ? (double)events * streams[i].new_tokens / all : 0;
    }
    return to > from ? tokens / (to - from) : 0;
}

static void print_common(const struct stream *streams, int n) {
    static double ttft[STREAMS_MAX], medians[STREAMS_MAX], ratios[STREAMS_MAX];
    int failed = 0, n_gaps = 0, n_over = 0;
    double largest = 0;
    int largest_at = 0;
    for (int i = 0; i < n; i++) {
        struct gaps g = gaps_of(&streams[i]);
        ttft[i] = 1e3 * (streams[i].first - streams[i].sent);
        medians[i] = 1e3 * g.median;
        ratios[i] = g.median > 0 ? g.largest / g.median : 0;
        failed += streams[i].failed;
        n_gaps += g.n;
        n_over += g.n_over;
        if (g.largest > largest) largest_at = g.largest_at;
        largest = fmax(largest, g.largest);
    }
    printf("\"streams\":%d,\"failed\":%d,\"tokens_per_s\":%.2f,\"ttft_ms_p50\":%.1f,\"ttft_ms_max\":%.1f,", n, failed,
           rate(streams, n), quantile(ttft, n, 0.5), quantile(ttft, n, 1));
    printf("\"gap_ms_p50\":%.2f,\"gap_ms_max\":%.2f,\"gap_max_at\":%d,\"gaps\":%d,\"gaps_over_2\":%d,",
           quantile(medians, n, 0.5), 1e3 * largest, largest_at, n_gaps, n_over);
    printf("\"gap_ratio_p50\":%.2f,\"gap_ratio_max\":%.2f,", quantile(ratios, n, 0.5), quantile(ratios, n, 1));
    printf("\"health\":%d,\"health_ms_p50\":%.2f,\"health_ms_p99\":%.2f,\"health_ms_max\":%.2f", n_health,
           quantile(health_ms, n_health, 0.5), quantile(health_ms, n_health, 0.99), quantile(health_ms, n_health, 1));
}

/* ---- loads ---- */

static struct stream streams[STREAMS_MAX];

static void start_streams(int n, int prompt, int new_tokens) {
    int *ids = calloc((size_t)prompt, sizeof *ids);
    if (n > STREAMS_MAX || !ids) die("too many streams");
    for (int i = 0; i < n; i++) {
        random_ids(ids, 0, prompt);
        start(&streams[i], ids, prompt, new_tokens);
    }
    free(ids);
}

static void decode_load(int n, int prompt, int new_tokens) {
    start_streams(n, prompt, new_tokens);
    run(streams, n, NULL);
    printf("{");
    print_common(streams, n);
    printf("}\n");
}

static bool all_run(const struct stream *all, int n) {
    for (int i = 0; i < n; i++)
        if (all[i].n_events < 12) return false;
    return true;
}

static void long_load(int n, int prompt, int new_tokens, int long_prompt) {
    int *ids = calloc((size_t)long_prompt, sizeof *ids);
    start_streams(n, prompt, new_tokens);
    run(streams, n, all_run);
    for (int i = 0; i < n; i++) { /* what came before is not looked at */
        struct stream *s = &streams[i];
        int keep = s->n_events - 1;
        memmove(s->arrivals, s->arrivals + keep, (size_t)(s->new_tokens + 2 - keep) * sizeof *s->arrivals);
        s->n_events -= keep;
        s->new_tokens -= keep;
    }
    random_ids(ids, 0, long_prompt);
    start(&streams[n], ids, long_prompt, 4);
    run(streams, n + 1, NULL);
    int behind = 0;   /* streams that ended before the long prompt was done say little */
    double ratio = 0; /* while the long request was there: what comes later is not its doing */
    for (int i = 0; i < n; i++) {
        behind += streams[i].last < streams[n].first;
        ratio = fmax(ratio, gap_ratio_until(&streams[i], streams[n].last));
    }
    printf("{\"long_ttft_ms\":%.1f,\"long_failed\":%d,\"ended_before\":%d,\"long_gap_ratio\":%.2f,",
           1e3 * (streams[n].first - streams[n].sent), streams[n].failed, behind, ratio);
    print_common(streams, n);
    printf("}\n");
    free(ids);
}

static void prefix_load(int prompt, int requests) {
    int *ids = calloc((size_t)prompt, sizeof *ids), n_cold = 0, n_shared = 0;
    double *cold = calloc((size_t)requests, sizeof *cold), *shared = calloc((size_t)requests, sizeof *shared);
    for (int i = 0; i < requests; i++) {
        random_ids(ids, 0, prompt);
        for (int again = 0; again < 2; again++) {
            if (again) random_ids(ids, prompt * 9 / 10, prompt);
            start(&streams[0], ids, prompt, 2);
            run(streams, 1, NULL);
            if (streams[0].failed) die("a request failed");
            double ms = 1e3 * (streams[0].first - streams[0].sent);
            if (again)
                shared[n_shared++] = ms;
            else
                cold[n_cold++] = ms;
            close(streams[0].fd);
        }
    }
    double a = quantile(cold, n_cold, 0.5), b = quantile(shared, n_shared, 0.5);
    printf("{\"cold_ttft_ms\":%.2f,\"shared_ttft_ms\":%.2f,\"ratio\":%.3f}\n", a, b, b / a);
    free(cold);
    free(shared);
    free(ids);
}

static void idle_load(int n) {
    start_streams(n, 4, 1000000);
    sleep(2);
    for (int i = 0; i < 100; i++) {
        health_next = 0;
        ask_health();
        read_health();
    }
    printf("{\"streams\":%d,\"health_ms_p99\":%.2f}\n", n, quantile(health_ms, n_health, 0.99));
    fflush(stdout);
    (void)getchar(); /* the caller looks at the server, then closes our input */
}

int main(int argc, char **argv) {
    int number[5] = {0};
    for (int i = 3; i < argc && i < 8; i++) number[i - 3] = atoi(argv[i]);
    if (argc >= 3) port = atoi(argv[1]);
    seed = (uint32_t)getpid() * 2654435761u; /* prompts that the server has not seen */
    if (argc == 6 && strcmp(argv[2], "decode") == 0)
        decode_load(number[0], number[1], number[2]);
    else if (argc == 7 && strcmp(argv[2], "long") == 0)
        long_load(number[0], number[1], number[2], number[3]);
    else if (argc == 5 && strcmp(argv[2], "prefix") == 0)
        prefix_load(number[0], number[1]);
    else if (argc == 4 && strcmp(argv[2], "idle") == 0)
        idle_load(number[0]);
    else
        return fputs("usage: load_server PORT decode|long|prefix|idle NUMBERS (see the source)\n", stderr), 2;
    return 0;
}
