#include "server/reply.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const char *finish_reason(const nmlp_reply_choice *c, nmlp_finish finish) {
    if (finish != NMLP_FINISH_STOP) return "length"; /* a full context is a length too */
    return c->reader.n_calls > 0 ? "tool_calls" : "stop";
}

/* ---- choices ---- */

void nmlp_reply_choice_init(nmlp_reply_choice *c, bool calls_tools, nmlp_tool_format format) {
    *c = (nmlp_reply_choice){.calls_tools = calls_tools};
    nmlp_str_init(&c->text);
    nmlp_tool_reader_init(&c->reader, format);
}

static nmlp_reply_tool_call *add_call(nmlp_reply_choice *c) {
    void *calls = c->calls;
    if (nmlp_mem_grow(&calls, &c->calls_capacity, c->n_calls + 1, sizeof *c->calls, NULL) != NMLP_OK) return NULL;
    c->calls = calls;
    nmlp_reply_tool_call *call = &c->calls[c->n_calls++];
    nmlp_str_init(&call->name);
    nmlp_str_init(&call->arguments);
    return call;
}

/* Text and calls of a whole answer. */
static void keep_part(void *ctx, nmlp_tool_part_kind kind, const char *text, size_t len) {
    nmlp_reply_choice *c = ctx;
    if (kind == NMLP_TOOL_NAME && !add_call(c)) c->text.failed = true;
    nmlp_reply_tool_call *call = c->n_calls ? &c->calls[c->n_calls - 1] : NULL;
    if (kind == NMLP_TOOL_TEXT)
        nmlp_str_append(&c->text, text, len);
    else if (call)
        nmlp_str_append(kind == NMLP_TOOL_NAME ? &call->name : &call->arguments, text, len);
    if (call) c->text.failed |= call->name.failed || call->arguments.failed;
}

nmlp_status nmlp_reply_add_end(nmlp_reply_choice *c, nmlp_err *err) {
    if (c->calls_tools) nmlp_tool_reader_end(&c->reader, keep_part, c);
    return nmlp_str_status(&c->text, err);
}

nmlp_status nmlp_reply_add(nmlp_reply_choice *c, const nmlp_job_event *event, nmlp_err *err) {
    if (c->calls_tools) {
        nmlp_tool_reader_push(&c->reader, nmlp_str_text(&event->text), event->text.len, keep_part, c);
        c->text.failed |= c->reader.held.failed;
    } else {
        nmlp_str_append(&c->text, event->text.data, event->text.len);
    }
    if (c->n_tokens + event->n_tokens > c->capacity) {
        size_t capacity = 2 * (c->n_tokens + event->n_tokens);
        nmlp_server_token *more = nmlp_mem_new(capacity, sizeof *more, err);
        if (!more) return NMLP_E_NOMEM;
        if (c->n_tokens) memcpy(more, c->tokens, c->n_tokens * sizeof *more);
        nmlp_mem_free(c->tokens);
        c->tokens = more;
        c->capacity = capacity;
    }
    if (event->n_tokens) memcpy(c->tokens + c->n_tokens, event->tokens, event->n_tokens * sizeof *c->tokens);
    c->n_tokens += event->n_tokens;
    return nmlp_str_status(&c->text, err);
}

void nmlp_reply_choice_fini(nmlp_reply_choice *c) {
    nmlp_str_fini(&c->text);
    nmlp_tool_reader_fini(&c->reader);
    for (size_t i = 0; c->calls && i < c->n_calls; i++) {
        nmlp_str_fini(&c->calls[i].name);
        nmlp_str_fini(&c->calls[i].arguments);
    }
    nmlp_mem_free(c->calls);
    nmlp_mem_free(c->values);
    nmlp_mem_free(c->tokens);
}

/* ---- tokens ---- */

static void token_text(nmlp_str *out, const nmlp_reply_head *h, int32_t id) {
    nmlp_str_clear(out);
    if (id >= 0 && id < nmlp_tokenizer_vocab_size(h->tokenizer))
        out->failed |= nmlp_tokenizer_decode(h->tokenizer, &id, 1, false, out, NULL) != NMLP_OK;
}

static int64_t count_characters(const nmlp_str *text) {
    int64_t n = 0;
    for (size_t i = 0; i < text->len; i++) n += ((unsigned char)text->data[i] & 0xc0) != 0x80;
    return n;
}

/* Members of a chat's token. Part of a character has no text of its own, and its bytes are not known here. */
static void put_chat_token(nmlp_json_writer *w, const nmlp_reply_head *h, int32_t id, double logprob) {
    nmlp_str text;
    nmlp_str_init(&text);
    token_text(&text, h, id);
    nmlp_json_put_int(w, "id", id);
    nmlp_json_put_bytes(w, "token", nmlp_str_text(&text), text.len);
    nmlp_json_put_number(w, "logprob", logprob);
    if (strstr(nmlp_str_text(&text), "\xef\xbf\xbd")) {
        nmlp_json_put_null(w, "bytes");
    } else {
        nmlp_json_begin_array(w, "bytes");
        for (size_t i = 0; i < text.len; i++) nmlp_json_put_int(w, NULL, (unsigned char)text.data[i]);
        nmlp_json_end_array(w);
    }
    w->out->failed |= text.failed;
    nmlp_str_fini(&text);
}

static void put_chat_logprobs(nmlp_json_writer *w, const nmlp_reply_head *h, const nmlp_server_token *tokens,
                              size_t n) {
    nmlp_json_begin_object(w, "logprobs");
    nmlp_json_begin_array(w, "content");
    for (size_t i = 0; i < n; i++) {
        nmlp_json_begin_object(w, NULL);
        put_chat_token(w, h, tokens[i].id, tokens[i].logprob);
        nmlp_json_begin_array(w, "top_logprobs");
        for (int t = 0; t < tokens[i].n_top; t++) {
            nmlp_json_begin_object(w, NULL);
            put_chat_token(w, h, tokens[i].top[t].id, tokens[i].top[t].logprob);
            nmlp_json_end_object(w);
        }
        nmlp_json_end_array(w);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
}

/* {"text": logprob, …}: of tokens with the same text the likelier. */
static void put_top(nmlp_json_writer *w, const nmlp_reply_head *h, const nmlp_server_token *token) {
    nmlp_str text, seen;
    nmlp_str_init(&text);
    nmlp_str_init(&seen); /* texts so far, each between NULs */
    nmlp_json_begin_object(w, NULL);
    nmlp_str_putc(&seen, '\0');
    for (int t = 0; t < token->n_top; t++) {
        token_text(&text, h, token->top[t].id);
        nmlp_str_putc(&text, '\0');
        bool twice = false;
        for (size_t at = 1; at < seen.len && !twice; at += strlen(seen.data + at) + 1)
            twice = strcmp(seen.data + at, nmlp_str_text(&text)) == 0;
        if (!twice) nmlp_json_put_number(w, nmlp_str_text(&text), token->top[t].logprob);
        nmlp_str_append(&seen, text.data, text.len);
    }
    nmlp_json_end_object(w);
    w->out->failed |= text.failed || seen.failed;
    nmlp_str_fini(&seen);
    nmlp_str_fini(&text);
}

/* The four lists of a completion; `offset` is the number of characters before the first token. */
static int64_t put_text_logprobs(nmlp_json_writer *w, const nmlp_reply_head *h, const nmlp_server_token *tokens,
                                 size_t n, int64_t offset) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_json_begin_object(w, "logprobs");
    nmlp_json_begin_array(w, "tokens");
    for (size_t i = 0; i < n; i++) {
        token_text(&text, h, tokens[i].id);
        nmlp_json_put_bytes(w, NULL, nmlp_str_text(&text), text.len);
    }
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "token_ids");
    for (size_t i = 0; i < n; i++) nmlp_json_put_int(w, NULL, tokens[i].id);
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "token_logprobs");
    for (size_t i = 0; i < n; i++) nmlp_json_put_number(w, NULL, tokens[i].logprob);
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "top_logprobs");
    for (size_t i = 0; i < n; i++) {
        if (isnan(tokens[i].logprob)) {
            nmlp_json_put_null(w, NULL);
        } else {
            put_top(w, h, &tokens[i]);
        }
    }
    nmlp_json_end_array(w);
    nmlp_json_begin_array(w, "text_offset");
    for (size_t i = 0; i < n; i++) {
        nmlp_json_put_int(w, NULL, offset);
        token_text(&text, h, tokens[i].id);
        offset += count_characters(&text);
    }
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
    w->out->failed |= text.failed;
    nmlp_str_fini(&text);
    return offset;
}

static int64_t put_logprobs(nmlp_json_writer *w, const nmlp_reply_head *h, const nmlp_server_token *tokens, size_t n,
                            bool wanted, int64_t offset) {
    if (!wanted) {
        nmlp_json_put_null(w, "logprobs");
    } else if (h->chat) {
        put_chat_logprobs(w, h, tokens, n);
    } else {
        return put_text_logprobs(w, h, tokens, n, offset);
    }
    return offset;
}

/* ---- objects ---- */

static void begin(nmlp_json_writer *w, nmlp_str *out, const nmlp_reply_head *h, bool chunk) {
    nmlp_json_writer_init(w, out);
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "id", h->id);
    nmlp_json_put_string(w, "object",
                         !h->chat ? "text_completion" : (chunk ? "chat.completion.chunk" : "chat.completion"));
    nmlp_json_put_int(w, "created", h->created);
    nmlp_json_put_string(w, "model", h->model);
}

static void put_usage(nmlp_json_writer *w, const nmlp_reply_usage *u) {
    nmlp_json_begin_object(w, "usage");
    nmlp_json_put_int(w, "prompt_tokens", u->prompt);
    nmlp_json_put_int(w, "completion_tokens", u->completion);
    nmlp_json_put_int(w, "total_tokens", u->prompt + u->completion);
    nmlp_json_begin_object(w, "prompt_tokens_details");
    nmlp_json_put_int(w, "cached_tokens", u->cached);
    nmlp_json_end_object(w);
    nmlp_json_end_object(w);
}

/* Nine letters and digits: templates of Mistral refuse anything else when the call comes back. */
static void put_call_id(nmlp_json_writer *w, const nmlp_reply_head *h, int choice, size_t call) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char text[128], id[10] = "";
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    int n = snprintf(text, sizeof text, "%s %d %zu", h->id, choice, call);
    for (int i = 0; i < n; i++) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3u;
    hash ^= hash >> 32;
    for (int i = 0; i < 9; i++, hash /= 62) id[i] = digits[hash % 62];
    nmlp_json_put_string(w, "id", id);
    nmlp_json_put_string(w, "type", "function");
}

static void put_message(nmlp_json_writer *w, const nmlp_reply_head *h, int index, const nmlp_reply_choice *c) {
    nmlp_json_begin_object(w, "message");
    nmlp_json_put_string(w, "role", "assistant");
    if (c->n_calls > 0 && c->text.len == 0)
        nmlp_json_put_null(w, "content");
    else
        nmlp_json_put_bytes(w, "content", nmlp_str_text(&c->text), c->text.len);
    if (c->n_calls > 0) nmlp_json_begin_array(w, "tool_calls");
    for (size_t i = 0; i < c->n_calls; i++) {
        nmlp_json_begin_object(w, NULL);
        put_call_id(w, h, index, i);
        nmlp_json_begin_object(w, "function");
        nmlp_json_put_bytes(w, "name", nmlp_str_text(&c->calls[i].name), c->calls[i].name.len);
        nmlp_json_put_bytes(w, "arguments", nmlp_str_text(&c->calls[i].arguments), c->calls[i].arguments.len);
        nmlp_json_end_object(w);
        nmlp_json_end_object(w);
    }
    if (c->n_calls > 0) nmlp_json_end_array(w);
    nmlp_json_end_object(w);
}

void nmlp_reply_whole(nmlp_str *out, const nmlp_reply_head *h, const nmlp_reply_choice *choices, int n,
                      const nmlp_reply_usage *usage, bool logprobs) {
    nmlp_json_writer w;
    begin(&w, out, h, false);
    nmlp_json_begin_array(&w, "choices");
    for (int i = 0; i < n; i++) {
        const nmlp_reply_choice *c = &choices[i];
        nmlp_json_begin_object(&w, NULL);
        nmlp_json_put_int(&w, "index", i);
        if (h->chat) {
            put_message(&w, h, i, c);
        } else {
            nmlp_json_put_bytes(&w, "text", nmlp_str_text(&c->text), c->text.len);
        }
        (void)put_logprobs(&w, h, c->tokens, c->n_tokens, logprobs, 0);
        nmlp_json_put_string(&w, "finish_reason", finish_reason(c, c->finish));
        nmlp_json_end_object(&w);
    }
    nmlp_json_end_array(&w);
    put_usage(&w, usage);
    nmlp_json_end_object(&w);
}

/* ---- embeddings ---- */

static void put_base64(nmlp_json_writer *w, const char *key, const void *data, size_t len) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = data;
    nmlp_str text;
    nmlp_str_init(&text);
    for (size_t i = 0; i < len; i += 3) {
        size_t n = len - i < 3 ? len - i : 3;
        uint32_t group =
            (uint32_t)bytes[i] << 16 | (n > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) | (n > 2 ? bytes[i + 2] : 0);
        for (size_t k = 0; k < 4; k++) nmlp_str_putc(&text, k <= n ? letters[group >> (18 - 6 * k) & 63] : '=');
    }
    nmlp_json_put_bytes(w, key, nmlp_str_text(&text), text.len);
    w->out->failed |= text.failed;
    nmlp_str_fini(&text);
}

void nmlp_reply_embeddings(nmlp_str *out, const nmlp_reply_head *h, const nmlp_reply_choice *choices, int n,
                           const nmlp_reply_usage *usage, bool base64) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "object", "list");
    nmlp_json_begin_array(&w, "data");
    for (int i = 0; i < n; i++) {
        nmlp_json_begin_object(&w, NULL);
        nmlp_json_put_string(&w, "object", "embedding");
        nmlp_json_put_int(&w, "index", i);
        if (base64) {
            put_base64(&w, "embedding", choices[i].values, (size_t)choices[i].n_values * sizeof(float));
        } else {
            nmlp_json_begin_array(&w, "embedding");
            for (int64_t k = 0; k < choices[i].n_values; k++)
                nmlp_json_put_number(&w, NULL, (double)choices[i].values[k]);
            nmlp_json_end_array(&w);
        }
        nmlp_json_end_object(&w);
    }
    nmlp_json_end_array(&w);
    nmlp_json_put_string(&w, "model", h->model);
    nmlp_json_begin_object(&w, "usage");
    nmlp_json_put_int(&w, "prompt_tokens", usage->prompt);
    nmlp_json_put_int(&w, "total_tokens", usage->prompt);
    nmlp_json_end_object(&w);
    nmlp_json_end_object(&w);
}

/* ---- chunks ---- */

static void put_delta(nmlp_json_writer *w, const nmlp_reply_head *h, const char *role, const char *text, size_t len) {
    if (!h->chat) {
        nmlp_json_put_bytes(w, "text", text ? text : "", len);
        return;
    }
    nmlp_json_begin_object(w, "delta");
    if (role) nmlp_json_put_string(w, "role", role);
    if (text) nmlp_json_put_bytes(w, "content", text, len);
    nmlp_json_end_object(w);
}

static void begin_chunk(nmlp_json_writer *w, nmlp_str *out, const nmlp_reply_head *h, int index) {
    nmlp_str_puts(out, "data: ");
    begin(w, out, h, true);
    nmlp_json_begin_array(w, "choices");
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_int(w, "index", index);
}

static void end_chunk(nmlp_json_writer *w, nmlp_str *out, const char *finish) {
    if (finish) {
        nmlp_json_put_string(w, "finish_reason", finish);
    } else {
        nmlp_json_put_null(w, "finish_reason");
    }
    nmlp_json_end_object(w);
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
    nmlp_str_puts(out, "\n\n");
}

/* A chat's answer begins with its role. */
static void begin_choice(nmlp_str *out, const nmlp_reply_head *h, int index, nmlp_reply_choice *c) {
    nmlp_json_writer w;
    if (c->begun) return;
    c->begun = true;
    if (!h->chat) return;
    begin_chunk(&w, out, h, index);
    put_delta(&w, h, "assistant", "", 0);
    nmlp_json_put_null(&w, "logprobs");
    end_chunk(&w, out, NULL);
}

/* Where the parts of a streamed answer go. */
struct tool_stream {
    nmlp_str *out;
    const nmlp_reply_head *head;
    int index;
    nmlp_reply_choice *choice;
};

static void send_part(void *ctx, nmlp_tool_part_kind kind, const char *text, size_t len) {
    const struct tool_stream *s = ctx;
    nmlp_json_writer w;
    begin_chunk(&w, s->out, s->head, s->index);
    if (kind == NMLP_TOOL_TEXT) {
        put_delta(&w, s->head, NULL, text, len);
    } else {
        bool first = kind == NMLP_TOOL_NAME;
        size_t call = first ? s->choice->n_calls++ : s->choice->n_calls - 1;
        nmlp_json_begin_object(&w, "delta");
        nmlp_json_begin_array(&w, "tool_calls");
        nmlp_json_begin_object(&w, NULL);
        nmlp_json_put_int(&w, "index", (int64_t)call);
        if (first) put_call_id(&w, s->head, s->index, call);
        nmlp_json_begin_object(&w, "function");
        if (first) nmlp_json_put_bytes(&w, "name", text, len);
        nmlp_json_put_bytes(&w, "arguments", first ? "" : text, first ? 0 : len);
        nmlp_json_end_object(&w);
        nmlp_json_end_object(&w);
        nmlp_json_end_array(&w);
        nmlp_json_end_object(&w);
    }
    nmlp_json_put_null(&w, "logprobs");
    end_chunk(&w, s->out, NULL);
}

void nmlp_reply_chunk(nmlp_str *out, const nmlp_reply_head *h, int index, nmlp_reply_choice *c,
                      const nmlp_job_event *event, bool logprobs) {
    nmlp_json_writer w;
    begin_choice(out, h, index, c);
    if (c->calls_tools) {
        struct tool_stream stream = {out, h, index, c};
        nmlp_tool_reader_push(&c->reader, nmlp_str_text(&event->text), event->text.len, send_part, &stream);
        out->failed |= c->reader.held.failed;
        return;
    }
    if (!event->text.len && !(logprobs && event->n_tokens)) return;
    begin_chunk(&w, out, h, index);
    put_delta(&w, h, NULL, nmlp_str_text(&event->text), event->text.len);
    c->text_offset = put_logprobs(&w, h, event->tokens, event->n_tokens, logprobs, c->text_offset);
    end_chunk(&w, out, NULL);
}

void nmlp_reply_chunk_end(nmlp_str *out, const nmlp_reply_head *h, int index, nmlp_reply_choice *c,
                          nmlp_finish finish) {
    nmlp_json_writer w;
    begin_choice(out, h, index, c);
    if (c->calls_tools) {
        struct tool_stream stream = {out, h, index, c};
        nmlp_tool_reader_end(&c->reader, send_part, &stream);
    }
    begin_chunk(&w, out, h, index);
    put_delta(&w, h, NULL, NULL, 0);
    nmlp_json_put_null(&w, "logprobs");
    end_chunk(&w, out, finish_reason(c, finish));
}

void nmlp_reply_chunk_usage(nmlp_str *out, const nmlp_reply_head *h, const nmlp_reply_usage *usage) {
    nmlp_json_writer w;
    nmlp_str_puts(out, "data: ");
    begin(&w, out, h, true);
    nmlp_json_begin_array(&w, "choices");
    nmlp_json_end_array(&w);
    put_usage(&w, usage);
    nmlp_json_end_object(&w);
    nmlp_str_puts(out, "\n\n");
}

/* ---- errors ---- */

int nmlp_reply_status(nmlp_status st) {
    switch (st) {
    case NMLP_OK: return 200;
    case NMLP_E_ARG:
    case NMLP_E_FORMAT:
    case NMLP_E_LIMIT:
    case NMLP_E_UNSUPPORTED: return 400;
    case NMLP_E_MISSING: return 404;
    case NMLP_E_NOMEM:
    case NMLP_E_INTERRUPTED: return 503;
    default: return 500;
    }
}

void nmlp_reply_error(nmlp_str *out, int status, const nmlp_err *err) {
    nmlp_json_writer w;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_begin_object(&w, "error");
    nmlp_json_put_string(&w, "message", err->message);
    nmlp_json_put_string(&w, "type",
                         status == 401   ? "authentication_error"
                         : status == 429 ? "rate_limit_error"
                         : status < 500  ? "invalid_request_error"
                                         : "server_error");
    if (err->field[0]) {
        nmlp_json_put_string(&w, "param", err->field);
    } else {
        nmlp_json_put_null(&w, "param");
    }
    nmlp_json_put_int(&w, "code", status);
    nmlp_json_end_object(&w);
    nmlp_json_end_object(&w);
}
