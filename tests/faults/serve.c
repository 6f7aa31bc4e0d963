/* A server with a fault in it, and its client.
 *
 * Every request is made twice, so that at least one of the two meets no fault. An answer is right, an error that says
 * so, or cut off where a client sees it; what was printed is every different answer that looked right, once: the same
 * lines as without a fault, or something is wrong. After that the server is asked to end. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "faults/campaign.h"

enum { ANSWER_BYTES = 1 << 17, WAIT_MS = 30000, STEP_MS = 20, REFUSED = 9 };

typedef struct server {
    pid_t pid;
    int log;    /* its stderr */
    int port;   /* 0: not known yet */
    bool ready; /* it has said so */
    bool ended; /* waited for */
    int status; /* of waitpid */
    size_t n;   /* of line */
    char line[4096];
} server;

static const char *const requests[] = {
    "POST /v1/completions {\"prompt\":\"the cat\",\"max_tokens\":4,\"temperature\":0}",
    "POST /v1/completions {\"prompt\":\"a mat\",\"max_tokens\":4,\"temperature\":0,\"stream\":true,\"logprobs\":1}",
    "POST /v1/completions {\"prompt\":[\"on\",\"at\"],\"max_tokens\":2,\"temperature\":0,\"stop\":[\"zz\"]}",
    "POST /v1/completions {\"prompt\":",
    "GET /v1/models ",
};

static void look_at_log_line(server *s) {
    const char *url = strstr(s->line, "\"url\":\"http://127.0.0.1:");
    if (url) s->port = atoi(url + strlen("\"url\":\"http://127.0.0.1:"));
    s->ready |= strstr(s->line, "\"event\":\"ready\"") != NULL;
    fprintf(stderr, "%s\n", s->line);
}

/* Takes in what the server has said, for at most STEP_MS, and whether it has ended. */
static void follow(server *s) {
    char bytes[4096];
    struct pollfd log = {.fd = s->log, .events = POLLIN};
    ssize_t n = poll(&log, 1, STEP_MS) > 0 ? read(s->log, bytes, sizeof bytes) : 0;
    for (ssize_t i = 0; i < n; i++) {
        if (bytes[i] != '\n' && s->n + 1 < sizeof s->line) {
            s->line[s->n++] = bytes[i];
            continue;
        }
        s->line[s->n] = '\0';
        s->n = 0;
        look_at_log_line(s);
    }
    if (s->ended || n > 0) return;
    s->ended = waitpid(s->pid, &s->status, WNOHANG) == s->pid;
    if (!s->ended && log.revents) (void)poll(NULL, 0, STEP_MS); /* it has closed its end and is about to go */
}

static void start(server *s, const char *preload, char **argv) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) exit(3);
    *s = (server){.log = ends[0]};
    s->pid = fork();
    if (s->pid < 0) exit(3);
    if (s->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (preload[0]) setenv("LD_PRELOAD", preload, 1);
        if (dup2(ends[1], 2) < 0) _exit(3);
        execv(argv[0], argv);
        _exit(3);
    }
    close(ends[1]);
}

/* Returns the bytes of the answer; -1 where it does not end. */
static ssize_t ask(server *s, const char *request, char *answer) {
    char head[512], method[8] = {0}, path[64] = {0};
    int at = 0;
    size_t n = 0;
    if (sscanf(request, "%7s %63s %n", method, path, &at) < 2) exit(3);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)s->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (fd >= 0) close(fd);
        return 0;
    }
    int len = snprintf(head, sizeof head,
                       "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                       "Content-Length: %zu\r\n\r\n%s",
                       method, path, strlen(request + at), request + at);
    (void)!send(fd, head, (size_t)len, MSG_NOSIGNAL);
    for (int ms = 0; n + 1 < ANSWER_BYTES; ms += STEP_MS) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        if (ms > WAIT_MS) {
            close(fd);
            return -1;
        }
        if (poll(&in, 1, STEP_MS) <= 0) {
            follow(s);
            continue;
        }
        ssize_t got = recv(fd, answer + n, ANSWER_BYTES - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
    }
    close(fd);
    answer[n] = '\0';
    return (ssize_t)n;
}

/* A good status, and the end that its way of framing has. */
static bool is_whole(const char *answer, ssize_t n) {
    const char *body = n > 0 ? strstr(answer, "\r\n\r\n") : NULL, *len = strcasestr(answer, "content-length:");
    if (!body || strncmp(answer, "HTTP/1.1 200", 12) != 0) return false;
    body += 4;
    if (len && len < body) return strlen(body) == (size_t)atol(len + strlen("content-length:"));
    return n > 5 && strcmp(answer + n - 5, "0\r\n\r\n") == 0 &&
           (!strstr(answer, "text/event-stream") || (strstr(body, "data: [DONE]") && !strstr(body, "\"error\"")));
}

/* What must repeat: texts and why they ended. */
static void summarize(char *out, size_t bytes, const char *answer) {
    static const char *const keys[] = {"\"text\":", "\"finish_reason\":", "\"object\":", "\"index\":"};
    size_t n = 0;
    out[0] = '\0';
    for (const char *at = strstr(answer, "\r\n\r\n"); at && *at; at++) {
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            if (strncmp(at, keys[k], strlen(keys[k])) != 0) continue;
            size_t len = strcspn(at + strlen(keys[k]), ",}");
            n += (size_t)snprintf(out + n, bytes - n, "%.*s ", (int)(len + strlen(keys[k])), at);
            if (n >= bytes) exit(3);
        }
    }
}

static void end_as(const server *s) {
    if (WIFSIGNALED(s->status)) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* the server's is the one to look at */
        (void)signal(WTERMSIG(s->status), SIG_DFL);
        (void)raise(WTERMSIG(s->status));
    }
    exit(WIFEXITED(s->status) ? WEXITSTATUS(s->status) : REFUSED);
}

static void make_requests(server *s) {
    static char answer[ANSWER_BYTES], lines[2][ANSWER_BYTES];
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        bool good[2];
        for (int turn = 0; turn < 2; turn++) {
            ssize_t n = ask(s, requests[i], answer);
            if (n < 0) {
                fprintf(stderr, "no end of the answer to: %s\n", requests[i]);
                exit(REFUSED);
            }
            good[turn] = is_whole(answer, n);
            summarize(lines[turn], sizeof lines[turn], answer);
        }
        if (good[0]) printf("%zu %s\n", i, lines[0]);
        if (good[1] && !(good[0] && strcmp(lines[0], lines[1]) == 0)) printf("%zu %s\n", i, lines[1]);
    }
}

int fault_serve(const char *preload, char **argv) {
    server s;
    start(&s, preload, argv);
    for (int ms = 0; !s.ready && !s.ended && ms < WAIT_MS; ms += STEP_MS) follow(&s);
    if (s.ended) end_as(&s); /* a start that was refused */
    if (!s.ready) return REFUSED;
    make_requests(&s);
    follow(&s);
    if (s.ended) {
        fprintf(stderr, "the server ended unasked\n");
        if (WIFEXITED(s.status)) return REFUSED;
        end_as(&s);
    }
    (void)kill(s.pid, SIGTERM);
    for (int ms = 0; !s.ended && ms < WAIT_MS; ms += STEP_MS) follow(&s);
    if (!s.ended) return REFUSED;
    end_as(&s);
    return REFUSED;
}
