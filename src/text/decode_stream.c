/* Decoding: ids -> bytes -> whole characters. */
#include <inttypes.h>
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void nmlp_decode_stream_init(nmlp_decode_stream *stream, const nmlp_tokenizer *t, bool skip_special) {
    *stream = (nmlp_decode_stream){.tokenizer = t, .skip_special = skip_special, .strip_left = t->decode.strip_start};
}

void nmlp_decode_stream_fini(nmlp_decode_stream *stream) { *stream = (nmlp_decode_stream){0}; }

/* `pending` is the well-formed start of a character; one more byte ends it, breaks it or lengthens it. */
static void push_byte(nmlp_decode_stream *stream, unsigned char byte, nmlp_str *out) {
    uint32_t c;
    stream->pending[stream->n_pending++] = byte;
    int n = nmlp_utf8_decode((const char *)stream->pending, stream->n_pending, &c);
    if (n == 0) return;
    if (n > 0) {
        nmlp_str_append(out, stream->pending, (size_t)n);
        stream->n_pending = 0;
        return;
    }
    nmlp_str_append(out, replacement, sizeof replacement - 1);
    bool retry = (size_t)-n < stream->n_pending; /* the new byte broke it and may start another */
    stream->n_pending = 0;
    if (retry) push_byte(stream, byte, out);
}

/* A run of byte tokens that ends or breaks: U+FFFD for every byte of the character that was not complete. */
static void drop_bytes(nmlp_decode_stream *stream, nmlp_str *out) {
    for (; stream->n_pending; stream->n_pending--) nmlp_str_append(out, replacement, sizeof replacement - 1);
}

static void push_byte_token(nmlp_decode_stream *stream, unsigned char byte, nmlp_str *out) {
    uint32_t c;
    stream->pending[stream->n_pending++] = byte;
    int n = nmlp_utf8_decode((const char *)stream->pending, stream->n_pending, &c);
    if (n > 0) {
        nmlp_str_append(out, stream->pending, (size_t)n);
        stream->n_pending = 0;
    } else if (n < 0) {
        bool retry = (size_t)-n < stream->n_pending; /* the new byte broke it and may start another */
        stream->n_pending -= retry;
        drop_bytes(stream, out);
        if (retry) push_byte_token(stream, byte, out);
    }
}

/* The text of one token as it stands in the whole text. */
static void append_token(nmlp_decode_stream *stream, const nmlp_token *token, nmlp_str *out) {
    const nmlp_decode_rules *rules = &stream->tokenizer->decode;
    bool drop_spaces = rules->drop_first_metaspace && !stream->started && !(token->flags & NMLP_TOKEN_ADDED);
    for (size_t i = 0; i < token->len;) {
        uint32_t c = 0;
        int n = nmlp_utf8_decode(token->text + i, token->len - i, &c);
        size_t bytes = n > 0 ? (size_t)n : 1;
        bool strip = stream->strip_left && c == rules->strip_char;
        stream->strip_left = strip ? stream->strip_left - 1 : 0;
        if (n <= 0)
            nmlp_str_append(out, replacement, sizeof replacement - 1);
        else if (!strip && !(drop_spaces && c == ' '))
            nmlp_str_append(out, token->text + i, bytes);
        i += bytes;
    }
}

/* Vocabularies of characters: no token ends inside a character, but byte tokens do. */
static void push_char_token(nmlp_decode_stream *stream, const nmlp_token *token, nmlp_str *out) {
    if (token->flags & NMLP_TOKEN_BYTE) {
        stream->strip_left = 0;
        push_byte_token(stream, (unsigned char)token->text[0], out);
    } else {
        drop_bytes(stream, out);
        if (stream->tokenizer->decode.join_with_spaces && stream->started) nmlp_str_putc(out, ' ');
        append_token(stream, token, out);
    }
    stream->started = true;
}

static void push_bytes(nmlp_decode_stream *stream, const nmlp_token *token, nmlp_str *out) {
    size_t at = 0;
    while (at < token->len) {
        if (!stream->n_pending) {
            size_t whole = nmlp_utf8_valid_prefix(token->text + at, token->len - at);
            nmlp_str_append(out, token->text + at, whole);
            at += whole;
            if (at == token->len) break;
        }
        push_byte(stream, (unsigned char)token->text[at++], out);
    }
}

static bool is_skipped(const nmlp_decode_stream *stream, const nmlp_token *token) {
    return !token->flags || (stream->skip_special && (token->flags & NMLP_TOKEN_SPECIAL));
}

nmlp_status nmlp_decode_stream_push(nmlp_decode_stream *stream, int32_t id, nmlp_str *out, nmlp_err *err) {
    const nmlp_tokenizer *t = stream->tokenizer;
    if (id < 0 || id >= t->n_ids)
        return nmlp_fail(err, NMLP_E_ARG, "token id %" PRId32 " is outside the vocabulary of %" PRId64 " ids", id,
                         t->n_ids);
    const nmlp_token *token = &t->tokens[id];
    if (is_skipped(stream, token)) return NMLP_OK;
    (t->model == NMLP_TOKENIZER_BYTE_BPE ? push_bytes : push_char_token)(stream, token, out);
    return nmlp_str_status(out, err);
}

nmlp_status nmlp_decode_stream_flush(nmlp_decode_stream *stream, nmlp_str *out, nmlp_err *err) {
    if (stream->tokenizer->model == NMLP_TOKENIZER_BYTE_BPE) {
        if (stream->n_pending) nmlp_str_append(out, replacement, sizeof replacement - 1);
        stream->n_pending = 0;
    } else {
        drop_bytes(stream, out);
    }
    stream->started = false;
    stream->strip_left = stream->tokenizer->decode.strip_start;
    return nmlp_str_status(out, err);
}

/* Byte tokens ids[*at..], up to the next token that is shown: their text, or U+FFFD for each when they are malformed.
 * Moves *at behind them. */
static nmlp_status decode_byte_run(nmlp_decode_stream *stream, const int32_t *ids, size_t n, size_t *at, nmlp_str *out,
                                   nmlp_err *err) {
    const nmlp_tokenizer *t = stream->tokenizer;
    nmlp_str run;
    nmlp_str_init(&run);
    for (; *at < n && ids[*at] >= 0 && ids[*at] < t->n_ids; ++*at) {
        const nmlp_token *token = &t->tokens[ids[*at]];
        if (is_skipped(stream, token)) continue;
        if (!(token->flags & NMLP_TOKEN_BYTE)) break;
        nmlp_str_putc(&run, token->text[0]);
    }
    nmlp_status st = nmlp_str_status(&run, err);
    if (run.len) {
        stream->started = true;
        bool whole = nmlp_utf8_valid_prefix(run.data, run.len) == run.len;
        const nmlp_token text = {.text = run.data, .len = (uint32_t)run.len, .flags = NMLP_TOKEN_ADDED};
        if (st == NMLP_OK && whole) append_token(stream, &text, out);
        for (size_t i = 0; !whole && i < run.len; i++) nmlp_str_append(out, replacement, sizeof replacement - 1);
        if (!whole) stream->strip_left = 0;
    }
    nmlp_str_fini(&run);
    return st;
}

nmlp_status nmlp_tokenizer_decode(const nmlp_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                  nmlp_str *out, nmlp_err *err) {
    nmlp_decode_stream stream;
    nmlp_decode_stream_init(&stream, t, skip_special);
    for (size_t i = 0; i < n;) {
        if (t->decode.byte_fallback) NMLP_RETURN_IF_FAILED(decode_byte_run(&stream, ids, n, &i, out, err));
        if (i < n) NMLP_RETURN_IF_FAILED(nmlp_decode_stream_push(&stream, ids[i++], out, err));
    }
    nmlp_status st = nmlp_decode_stream_flush(&stream, out, err);
    nmlp_decode_stream_fini(&stream);
    return st;
}
