#define _POSIX_C_SOURCE 200809L /* isatty, select */
#include "cli/conversation.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/stop.h"

enum { LINE_MAX_BYTES = 4096, MESSAGES_MAX = 4096 };

struct conversation {
    nmlp_text_session *session;
    const nmlp_conversation_options *options;
    nmlp_chat_message *messages; /* [MESSAGES_MAX + 1], contents in `texts` */
    nmlp_str *texts;             /* [MESSAGES_MAX + 1] */
    size_t n, n_fixed;           /* messages; of them at the beginning: the system's */
    nmlp_text_result result;
};

static const char help[] = "  /new    forget what was said\n"
                           "  /again  another answer to the last message\n"
                           "  /exit   leave (as Ctrl-D)\n"
                           "  Ctrl-C stops an answer; a backslash at the end of a line joins the next one to it\n";

bool nmlp_conversation_possible(void) { return isatty(STDIN_FILENO) != 0; }

/* ---- messages ---- */

static nmlp_status add(struct conversation *c, const char *role, const char *text, size_t len, nmlp_err *err) {
    if (c->n > MESSAGES_MAX) return nmlp_fail(err, NMLP_E_LIMIT, "the conversation has %zu messages", c->n);
    nmlp_str *kept = &c->texts[c->n];
    nmlp_str_clear(kept);
    nmlp_str_append(kept, text, len);
    NMLP_RETURN_IF_FAILED(nmlp_str_status(kept, err));
    c->messages[c->n++] = (nmlp_chat_message){.role = role, .content = nmlp_str_text(kept)};
    return NMLP_OK;
}

static bool is_last(const struct conversation *c, const char *role) {
    return c->n > c->n_fixed && strcmp(c->messages[c->n - 1].role, role) == 0;
}

/* ---- answers ---- */

/* Prints text; characters that would command the terminal become U+FFFD, whatever the model says. */
static bool print_text(void *ctx, const char *text, size_t len) {
    (void)ctx;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i], next = i + 1 < len ? (unsigned char)text[i + 1] : 0;
        bool c1 = byte == 0xc2 && next >= 0x80 && next < 0xa0;
        if (c1 || (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
            fputs("\xef\xbf\xbd", stdout);
            i += c1;
        } else {
            putchar(byte);
        }
    }
    return fflush(stdout) == 0;
}

static bool goes_on(void *ctx) {
    (void)ctx;
    return !nmlp_cli_stop_asked();
}

static void print_facts(const nmlp_text_result *r) {
    fprintf(stderr, "[%zu tokens", r->ids.len);
    if (nmlp_text_decode_rate(r) > 0) fprintf(stderr, ", %.1f tokens/s", nmlp_text_decode_rate(r));
    fprintf(stderr, ", first after %.0f ms, %" PRId64 " of %" PRId64 " prompt tokens cached%s]\n", r->ttft_ms,
            r->n_cached, r->n_prompt,
            r->finish == NMLP_FINISH_CALLER    ? ", stopped"
            : r->finish == NMLP_FINISH_LENGTH  ? ", cut at the limit"
            : r->finish == NMLP_FINISH_CONTEXT ? ", the context is full: /new forgets it"
                                               : "");
}

/* Answers the last message. A message too long for the context is taken back; that ends nothing. */
static nmlp_status answer(struct conversation *c, nmlp_err *err) {
    nmlp_text_request request = {.prompt = {.messages = c->messages, .n_messages = c->n},
                                 .is_chat = true,
                                 .max_new = c->options->max_new,
                                 .sampling = c->options->sampling,
                                 .ignore_eos = c->options->ignore_eos,
                                 .on_text = print_text,
                                 .go_on = goes_on};
    request.sampling.seed += c->n; /* another answer to other words, the same to the same */
    nmlp_cli_stop_clear();
    nmlp_status st = nmlp_text_session_run(c->session, &request, &c->result, err);
    nmlp_cli_stop_clear();
    if (st == NMLP_E_LIMIT) {
        c->n--;
        fprintf(stderr, "[%s; /new forgets what was said]\n", err->message);
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(st);
    printf("\n");
    fflush(stdout);
    print_facts(&c->result);
    return add(c, "assistant", nmlp_str_text(&c->result.text), c->result.text.len, err);
}

/* ---- lines ---- */

/* False: Ctrl-C came. It is looked for between short waits, since it may come just before one, or to another thread. */
static bool wait_for_line(void) {
    int ready = 0;
    while (ready == 0 && !nmlp_cli_stop_asked()) {
        fd_set input;
        FD_ZERO(&input);
        FD_SET(STDIN_FILENO, &input);
        ready = select(STDIN_FILENO + 1, &input, NULL, NULL, &(struct timeval){.tv_usec = 100000});
        if (ready < 0 && errno == EINTR) ready = 0;
    }
    return !nmlp_cli_stop_asked();
}

/* One message: a line, and those that backslashes join to it. False: the input is over. */
static bool read_message(nmlp_str *out) {
    char line[LINE_MAX_BYTES];
    bool whole = true;
    nmlp_str_clear(out);
    fputs("\n> ", stdout);
    fflush(stdout);
    for (;;) {
        if (whole && !wait_for_line()) {
            nmlp_cli_stop_clear();
            nmlp_str_clear(out);
            fputs("\n[/exit or Ctrl-D leaves]\n> ", stdout);
            fflush(stdout);
            continue;
        }
        if (!fgets(line, sizeof line, stdin)) return out->len > 0;
        size_t len = strlen(line);
        whole = len > 0 && line[len - 1] == '\n';
        if (whole) len--;
        bool joins = whole && len > 0 && line[len - 1] == '\\';
        nmlp_str_append(out, line, len - joins);
        if (joins) nmlp_str_putc(out, '\n');
        if (whole && !joins) return true;
    }
}

/* False: leave. */
static bool obey(struct conversation *c, const char *line, nmlp_status *st, nmlp_err *err) {
    if (strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/new") == 0) {
        c->n = c->n_fixed;
        fputs("[forgotten]\n", stderr);
    } else if (strcmp(line, "/again") == 0) {
        if (is_last(c, "assistant")) c->n--;
        if (is_last(c, "user"))
            *st = answer(c, err);
        else
            fputs("[nothing was said yet]\n", stderr);
    } else if (line[0] == '/') {
        fputs(help, stderr);
    } else if (line[0]) {
        *st = add(c, "user", line, strlen(line), err);
        if (*st == NMLP_OK) *st = answer(c, err);
    }
    return *st == NMLP_OK;
}

nmlp_status nmlp_conversation_run(nmlp_text_session *session, const nmlp_tokenizer *tokenizer,
                                  const nmlp_conversation_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct conversation c = {.session = session, .options = options};
    nmlp_chat_message trial = {.role = "user", .content = "x"};
    nmlp_ids ids;
    nmlp_str line;
    nmlp_ids_init(&ids);
    nmlp_str_init(&line);
    nmlp_text_result_init(&c.result);
    c.messages = nmlp_mem_new(MESSAGES_MAX + 1, sizeof *c.messages, err);
    c.texts = nmlp_mem_new(MESSAGES_MAX + 1, sizeof *c.texts, err);
    if (!c.messages || !c.texts) NMLP_TRY(NMLP_E_NOMEM);
    for (size_t i = 0; i <= MESSAGES_MAX; i++) nmlp_str_init(&c.texts[i]);
    NMLP_TRY(nmlp_chat_encode(tokenizer, &trial, 1, &ids, err)); /* a model that cannot chat says so at once */
    if (options->system) NMLP_TRY(add(&c, "system", options->system, strlen(options->system), err));
    c.n_fixed = c.n;
    nmlp_cli_interrupts_install();
    fputs("[/help lists what can be typed besides messages]\n", stderr);
    while (read_message(&line) && obey(&c, nmlp_str_text(&line), &st, err)) continue;
    putchar('\n');
out:
    for (size_t i = 0; c.texts && i <= MESSAGES_MAX; i++) nmlp_str_fini(&c.texts[i]);
    nmlp_mem_free(c.texts);
    nmlp_mem_free(c.messages);
    nmlp_text_result_fini(&c.result);
    nmlp_str_fini(&line);
    nmlp_ids_fini(&ids);
    return st;
}
