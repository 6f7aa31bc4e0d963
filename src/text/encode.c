/* Encoding: text -> added tokens | the rest -> normalisation -> added tokens | the rest -> pieces -> BPE. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"
#include "text/word_cache.h"

/* Everything one encode needs, so that tokenizers have no state of their own. */
typedef struct encoder {
    const nmlp_tokenizer *t;
    bool parse_special;
    nmlp_ids *out;
    nmlp_pretokenize_run pre;
    nmlp_bpe_scratch bpe;
    nmlp_word_cache cache;
    nmlp_ids symbols; /* of the piece at hand */
    nmlp_str normalized;
} encoder;

static nmlp_status reserve_ids(nmlp_ids *ids, size_t extra, nmlp_err *err) {
    void *data = ids->data;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&data, &ids->capacity, ids->len + extra, sizeof *ids->data, err));
    ids->data = data;
    return NMLP_OK;
}

static nmlp_status append_ids(nmlp_ids *out, const int32_t *ids, size_t n, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(reserve_ids(out, n, err));
    if (n == 1)
        out->data[out->len] = ids[0];
    else if (n)
        memcpy(out->data + out->len, ids, n * sizeof *ids);
    out->len += n;
    return NMLP_OK;
}

/* The ids of a piece, into e->symbols. */
static nmlp_status tokenize(encoder *e, const char *piece, size_t len, nmlp_err *err) {
    const nmlp_tokenizer *t = e->t;
    uint32_t id;
    e->symbols.len = 0;
    if (t->ignore_merges && nmlp_hashmap_get(&t->by_bytes, piece, len, &id))
        return nmlp_ids_push(&e->symbols, (int32_t)id, err);
    NMLP_RETURN_IF_FAILED(reserve_ids(&e->symbols, len, err));
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)piece[i];
        e->symbols.data[i] = t->byte_ids[byte];
        if (t->byte_ids[byte] < 0)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "the vocabulary has no token for byte 0x%02X of the text", byte);
    }
    e->symbols.len = len;
    return nmlp_bpe_merge(&t->bpe, &e->bpe, e->symbols.data, &e->symbols.len, err);
}

static nmlp_status encode_piece(void *ctx, const char *piece, size_t len, nmlp_err *err) {
    encoder *e = ctx;
    nmlp_word word;
    if (!nmlp_word_cache_get(&e->cache, piece, len, &word)) {
        NMLP_RETURN_IF_FAILED(tokenize(e, piece, len, err));
        word.ids = e->symbols.data;
        word.n_ids = e->symbols.len;
        NMLP_RETURN_IF_FAILED(nmlp_word_cache_put(&e->cache, piece, len, &word, err));
    }
    return append_ids(e->out, word.ids, word.n_ids, err);
}

typedef nmlp_status stretch_fn(encoder *e, const char *text, size_t len, nmlp_err *err);

/* Pushes the ids of added tokens and hands what lies between them to `between`. */
static nmlp_status split_off_added(encoder *e, const nmlp_added_tokens *set, const char *text, size_t len,
                                   stretch_fn *between, nmlp_err *err) {
    size_t done = 0;
    nmlp_added_match match;
    while (nmlp_added_tokens_find(set, text, len, done, e->parse_special, &match)) {
        NMLP_RETURN_IF_FAILED(between(e, text + done, match.begin - done, err));
        NMLP_RETURN_IF_FAILED(nmlp_ids_push(e->out, match.id, err));
        done = match.end;
    }
    return between(e, text + done, len - done, err);
}

static nmlp_status encode_normalized(encoder *e, const char *text, size_t len, nmlp_err *err) {
    return nmlp_pretokenize_feed(&e->pre, text, len, err);
}

static nmlp_status encode_raw(encoder *e, const char *text, size_t len, nmlp_err *err) {
    if (e->t->nfc) {
        nmlp_str_clear(&e->normalized);
        NMLP_RETURN_IF_FAILED(nmlp_unicode_append_nfc(&e->normalized, text, len, err));
        text = nmlp_str_text(&e->normalized);
        len = e->normalized.len;
    }
    return split_off_added(e, &e->t->normalized_added, text, len, encode_normalized, err);
}

static nmlp_status encode_valid(const nmlp_tokenizer *t, const char *text, size_t len, bool parse_special,
                                nmlp_ids *out, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    encoder e = {.t = t, .parse_special = parse_special, .out = out};
    NMLP_TRY(nmlp_pretokenize_begin(&e.pre, t->pre, encode_piece, &e, err));
    NMLP_TRY(nmlp_word_cache_init(&e.cache, len, err));
    NMLP_TRY(split_off_added(&e, &t->raw_added, text, len, encode_raw, err));
out:
    nmlp_str_fini(&e.normalized);
    nmlp_ids_fini(&e.symbols);
    nmlp_word_cache_fini(&e.cache);
    nmlp_bpe_scratch_fini(&e.bpe);
    nmlp_pretokenize_end(&e.pre);
    return st;
}

nmlp_status nmlp_tokenizer_encode(const nmlp_tokenizer *t, const char *text, size_t len, bool add_bos,
                                  bool parse_special, nmlp_ids *out, nmlp_err *err) {
    if (len > INT32_MAX / 3) /* U+FFFD and NFC can make it three times as long */
        return nmlp_fail(err, NMLP_E_LIMIT, "a text of %zu bytes is too long for one call (at most %d)", len,
                         INT32_MAX / 3);
    size_t before = out->len;
    nmlp_str repaired;
    nmlp_str_init(&repaired);
    nmlp_status st = add_bos ? append_ids(out, t->prefix_ids, t->n_prefix_ids, err) : NMLP_OK;
    if (st == NMLP_OK && nmlp_utf8_valid_prefix(text, len) != len) {
        nmlp_utf8_append_lossy(&repaired, text, len);
        st = nmlp_str_status(&repaired, err);
        text = nmlp_str_text(&repaired);
        len = repaired.len;
    }
    if (st == NMLP_OK) st = encode_valid(t, text, len, parse_special, out, err);
    if (st != NMLP_OK) out->len = before;
    nmlp_str_fini(&repaired);
    return st;
}
