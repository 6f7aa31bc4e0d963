/* Decoding: ids -> bytes -> whole characters. */
#include <inttypes.h>
#include <string.h>

#include "text/tokenizer_internal.h"
#include "text/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

void nmlp_decode_stream_init(nmlp_decode_stream *stream, const nmlp_tokenizer *t, bool skip_special) {
    *stream = (nmlp_decode_stream){.tokenizer = t, .skip_special = skip_special};
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

nmlp_status nmlp_decode_stream_push(nmlp_decode_stream *stream, int32_t id, nmlp_str *out, nmlp_err *err) {
    const nmlp_tokenizer *t = stream->tokenizer;
    if (id < 0 || id >= t->n_ids)
        return nmlp_fail(err, NMLP_E_ARG, "token id %" PRId32 " is outside the vocabulary of %" PRId64 " ids", id,
                         t->n_ids);
    const nmlp_token *token = &t->tokens[id];
    if (stream->skip_special && (token->flags & NMLP_TOKEN_SPECIAL)) return NMLP_OK;
    const char *bytes = t->bytes + token->at;
    size_t at = 0;
    while (at < token->len) {
        if (!stream->n_pending) {
            size_t whole = nmlp_utf8_valid_prefix(bytes + at, token->len - at);
            nmlp_str_append(out, bytes + at, whole);
            at += whole;
            if (at == token->len) break;
        }
        push_byte(stream, (unsigned char)bytes[at++], out);
    }
    return nmlp_str_status(out, err);
}

nmlp_status nmlp_decode_stream_flush(nmlp_decode_stream *stream, nmlp_str *out, nmlp_err *err) {
    if (stream->n_pending) nmlp_str_append(out, replacement, sizeof replacement - 1);
    stream->n_pending = 0;
    return nmlp_str_status(out, err);
}

nmlp_status nmlp_tokenizer_decode(const nmlp_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                  nmlp_str *out, nmlp_err *err) {
    nmlp_decode_stream stream;
    nmlp_decode_stream_init(&stream, t, skip_special);
    for (size_t i = 0; i < n; i++) NMLP_RETURN_IF_FAILED(nmlp_decode_stream_push(&stream, ids[i], out, err));
    nmlp_status st = nmlp_decode_stream_flush(&stream, out, err);
    nmlp_decode_stream_fini(&stream);
    return st;
}
