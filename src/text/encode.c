/* Encoding: text -> added tokens | the rest -> normalisation -> added tokens | the rest -> pieces -> model. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"
#include "text/word_cache.h"

/* Everything one encode needs, so that tokenizers have no state of their own. */
typedef struct encoder {
    const nmlp_tokenizer *t;
    bool parse_special;
    const nmlp_text_span *spans; /* parts of the text that are a user's */
    size_t n_spans;
    nmlp_ids *out;
    nmlp_pretokenize_run pre;
    nmlp_bpe_scratch bpe;
    nmlp_unigram_scratch unigram;
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

/* Ids of <0xHH> for bytes without an entry of their own; false where one is missing. */
static bool append_bytes(encoder *e, const char *text, size_t len) {
    const int32_t *byte_ids = e->t->byte_ids;
    if (!e->t->byte_fallback) return false;
    for (size_t i = 0; i < len; i++)
        if (byte_ids[(unsigned char)text[i]] < 0) return false;
    for (size_t i = 0; i < len; i++) e->symbols.data[e->symbols.len++] = byte_ids[(unsigned char)text[i]];
    return true;
}

static nmlp_status tokenize_bytes(encoder *e, const char *piece, size_t len, nmlp_err *err) {
    const nmlp_tokenizer *t = e->t;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)piece[i];
        e->symbols.data[i] = t->byte_ids[byte];
        if (t->byte_ids[byte] < 0)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "the vocabulary has no token for byte 0x%02X of the text", byte);
    }
    e->symbols.len = len;
    return nmlp_bpe_merge(&t->bpe, &e->bpe, e->symbols.data, &e->symbols.len, err);
}

/* Characters without an entry become bytes, else the unknown token, else nothing. An unknown token waits for its
 * neighbours and, as in `tokenizers`, lets bytes pass by. */
static nmlp_status tokenize_chars(encoder *e, const char *piece, size_t len, nmlp_err *err) {
    const nmlp_tokenizer *t = e->t;
    bool unknown = false;
    for (size_t at = 0; at < len;) {
        uint32_t c, id;
        int n = nmlp_utf8_decode(piece + at, len - at, &c);
        size_t bytes = n > 0 ? (size_t)n : 1;
        bool known = nmlp_hashmap_get(&t->vocab, piece + at, bytes, &id);
        if (known || !append_bytes(e, piece + at, bytes)) {
            if (unknown && (known || !t->fuse_unknown)) {
                e->symbols.data[e->symbols.len++] = t->unknown_id;
                unknown = false;
            }
            if (known)
                e->symbols.data[e->symbols.len++] = (int32_t)id;
            else
                unknown = t->unknown_id >= 0;
        }
        at += bytes;
    }
    if (unknown) e->symbols.data[e->symbols.len++] = t->unknown_id;
    return nmlp_bpe_merge(&t->bpe, &e->bpe, e->symbols.data, &e->symbols.len, err);
}

/* Neighbouring unknown parts are one: bytes, or one unknown token. */
static nmlp_status tokenize_unigram(encoder *e, const char *piece, size_t len, nmlp_err *err) {
    const nmlp_tokenizer *t = e->t;
    size_t n;
    NMLP_RETURN_IF_FAILED(nmlp_unigram_cut(&t->unigram, &e->unigram, piece, len, &n, err));
    const nmlp_unigram_part *parts = e->unigram.parts;
    for (size_t i = 0; i < n;) {
        if (parts[i].entry && parts[i].entry->id != t->unknown_id) {
            e->symbols.data[e->symbols.len++] = parts[i++].entry->id;
            continue;
        }
        size_t begin = parts[i].begin;
        size_t end = begin;
        for (; i < n && (!parts[i].entry || parts[i].entry->id == t->unknown_id); i++) end = parts[i].end;
        if (append_bytes(e, piece + begin, end - begin)) continue;
        if (t->unknown_id < 0)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "the vocabulary has no token for \"%.*s\" and no unknown token",
                             (int)(end - begin < 20 ? end - begin : 20), piece + begin);
        e->symbols.data[e->symbols.len++] = t->unknown_id;
    }
    return NMLP_OK;
}

/* The ids of a piece, into e->symbols. */
static nmlp_status tokenize(encoder *e, const char *piece, size_t len, nmlp_err *err) {
    const nmlp_tokenizer *t = e->t;
    uint32_t id;
    e->symbols.len = 0;
    if (t->ignore_merges && nmlp_hashmap_get(&t->vocab, piece, len, &id))
        return nmlp_ids_push(&e->symbols, (int32_t)id, err);
    NMLP_RETURN_IF_FAILED(reserve_ids(&e->symbols, len + 1, err));
    switch (t->model) {
    case NMLP_TOKENIZER_BYTE_BPE: return tokenize_bytes(e, piece, len, err);
    case NMLP_TOKENIZER_CHAR_BPE: return tokenize_chars(e, piece, len, err);
    case NMLP_TOKENIZER_UNIGRAM: return tokenize_unigram(e, piece, len, err);
    }
    return NMLP_OK;
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

/* True when a byte of text[begin..end) is a user's. */
static bool is_users(const encoder *e, size_t begin, size_t end) {
    size_t low = 0;
    size_t high = e->n_spans;
    while (low < high) { /* the first span that ends behind `begin` */
        size_t middle = low + (high - low) / 2;
        if (e->spans[middle].end <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low < e->n_spans && e->spans[low].begin < end;
}

static nmlp_status encode_normalized(encoder *e, const char *text, size_t len, bool parse_special, bool first,
                                     nmlp_err *err) {
    size_t done = 0;
    nmlp_added_match match;
    const nmlp_added_tokens *set = &e->t->normalized_added;
    while (nmlp_added_tokens_find(set, text, len, done, parse_special, &match)) {
        NMLP_RETURN_IF_FAILED(nmlp_pretokenize_feed(&e->pre, text + done, match.begin - done, first && !done, err));
        NMLP_RETURN_IF_FAILED(nmlp_ids_push(e->out, match.id, err));
        done = match.end;
    }
    return nmlp_pretokenize_feed(&e->pre, text + done, len - done, first && !done, err);
}

/* Where a user's part spells a special token that is looked for in normalised text, none is looked for: offsets there
 * cannot tell whose text it is. */
static nmlp_status user_spells_special(encoder *e, const char *text, size_t at, size_t len, bool *spells,
                                       nmlp_err *err) {
    *spells = false;
    for (size_t i = 0; i < e->n_spans && !*spells && e->t->normalized_added.n_tokens; i++) {
        size_t begin = e->spans[i].begin > at ? e->spans[i].begin : at;
        size_t end = e->spans[i].end < at + len ? e->spans[i].end : at + len;
        if (begin >= end) continue;
        NMLP_RETURN_IF_FAILED(nmlp_normalizer_run(e->t->normalizer, text + begin, end - begin, &e->normalized, err));
        nmlp_added_match match;
        size_t from = 0;
        while (!*spells && nmlp_added_tokens_find(&e->t->normalized_added, nmlp_str_text(&e->normalized),
                                                  e->normalized.len, from, true, &match)) {
            *spells = nmlp_tokenizer_is_special(e->t, match.id);
            from = match.end;
        }
    }
    return NMLP_OK;
}

/* text[at..at+len), without tokens that are looked for in the text as it comes. */
static nmlp_status encode_raw(encoder *e, const char *text, size_t at, size_t len, nmlp_err *err) {
    bool spells = false;
    const char *part = text + at;
    if (e->n_spans) NMLP_RETURN_IF_FAILED(user_spells_special(e, text, at, len, &spells, err));
    if (!nmlp_normalizer_is_empty(e->t->normalizer)) {
        NMLP_RETURN_IF_FAILED(nmlp_normalizer_run(e->t->normalizer, part, len, &e->normalized, err));
        part = nmlp_str_text(&e->normalized);
        len = e->normalized.len;
    }
    return encode_normalized(e, part, len, e->parse_special && !spells, at == 0, err);
}

static nmlp_status split_off_added(encoder *e, const char *text, size_t len, nmlp_err *err) {
    size_t done = 0;
    size_t from = 0;
    nmlp_added_match match;
    while (nmlp_added_tokens_find(&e->t->raw_added, text, len, from, e->parse_special, &match)) {
        if (nmlp_tokenizer_is_special(e->t, match.id) && is_users(e, match.token_begin, match.token_end)) {
            from = match.token_end;
            continue;
        }
        size_t begin = match.begin < done ? done : match.begin;
        NMLP_RETURN_IF_FAILED(encode_raw(e, text, done, begin - done, err));
        NMLP_RETURN_IF_FAILED(nmlp_ids_push(e->out, match.id, err));
        done = from = match.end;
    }
    return encode_raw(e, text, done, len - done, err);
}

static nmlp_status encode_valid(encoder *e, const char *text, size_t len, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_pretokenize_begin(&e->pre, e->t->pre, encode_piece, e, err));
    NMLP_TRY(nmlp_word_cache_init(&e->cache, len, err));
    NMLP_TRY(split_off_added(e, text, len, err));
out:
    nmlp_str_fini(&e->normalized);
    nmlp_ids_fini(&e->symbols);
    nmlp_word_cache_fini(&e->cache);
    nmlp_bpe_scratch_fini(&e->bpe);
    nmlp_unigram_scratch_fini(&e->unigram);
    nmlp_pretokenize_end(&e->pre);
    return st;
}

static nmlp_status check_length(size_t len, nmlp_err *err) {
    if (len <= INT32_MAX / 3) return NMLP_OK; /* U+FFFD and NFC can make it three times as long */
    return nmlp_fail(err, NMLP_E_LIMIT, "a text of %zu bytes is too long for one call (at most %d)", len,
                     INT32_MAX / 3);
}

static nmlp_status push_front(const nmlp_tokenizer *t, nmlp_bos bos, nmlp_ids *out, nmlp_err *err) {
    if (bos == NMLP_BOS_NONE) return NMLP_OK;
    if (t->prefix.len || bos == NMLP_BOS_TEMPLATE) return append_ids(out, t->prefix.data, t->prefix.len, err);
    if (t->bos_id < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "bos", "is asked for, but the tokenizer names no begin-of-text token");
    return nmlp_ids_push(out, (int32_t)t->bos_id, err);
}

nmlp_status nmlp_tokenizer_encode(const nmlp_tokenizer *t, const char *text, size_t len, nmlp_bos bos,
                                  bool parse_special, nmlp_ids *out, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_length(len, err));
    size_t before = out->len;
    nmlp_str repaired;
    nmlp_str_init(&repaired);
    encoder e = {.t = t, .parse_special = parse_special, .out = out};
    nmlp_status st = push_front(t, bos, out, err);
    if (st == NMLP_OK && nmlp_utf8_valid_prefix(text, len) != len) {
        nmlp_utf8_append_lossy(&repaired, text, len);
        st = nmlp_str_status(&repaired, err);
        text = nmlp_str_text(&repaired);
        len = repaired.len;
    }
    if (st == NMLP_OK) st = encode_valid(&e, text, len, err);
    if (st == NMLP_OK && bos == NMLP_BOS_TEMPLATE) st = append_ids(out, t->suffix.data, t->suffix.len, err);
    if (st != NMLP_OK) out->len = before;
    nmlp_str_fini(&repaired);
    return st;
}

nmlp_status nmlp_tokenizer_encode_spans(const nmlp_tokenizer *t, const char *text, size_t len,
                                        const nmlp_text_span *spans, size_t n_spans, nmlp_ids *out, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(check_length(len, err));
    if (nmlp_utf8_valid_prefix(text, len) != len)
        return nmlp_fail(err, NMLP_E_ARG, "a text with a user's parts must be valid UTF-8");
    size_t before = out->len;
    encoder e = {.t = t, .parse_special = true, .spans = spans, .n_spans = n_spans, .out = out};
    nmlp_status st = encode_valid(&e, text, len, err);
    if (st != NMLP_OK) out->len = before;
    return st;
}

nmlp_status nmlp_tokenizer_encode_file(const char *model_dir, const char *path, nmlp_ids *ids, nmlp_err *err) {
    const size_t text_max_bytes = (size_t)1 << 32;
    nmlp_status st = NMLP_OK;
    nmlp_tokenizer *tokenizer = NULL;
    nmlp_str text;
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_tokenizer_load(&tokenizer, model_dir, err));
    NMLP_TRY(nmlp_file_read(&text, path, text_max_bytes, err));
    NMLP_TRY(nmlp_tokenizer_encode(tokenizer, nmlp_str_text(&text), text.len, NMLP_BOS_NONE, false, ids, err));
out:
    nmlp_str_fini(&text);
    nmlp_tokenizer_destroy(tokenizer);
    return st;
}
