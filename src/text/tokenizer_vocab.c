/* The vocabulary side of tokenizer.json: model.vocab, model.merges and added_tokens. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"

static bool is_set_string(const nmlp_json *model, const char *key) {
    return nmlp_json_string(nmlp_json_get(model, key))[0];
}

/* Old files leave the model's type out; what has merges is BPE. */
static nmlp_status check_model(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model, nmlp_err *err) {
    const char *type = nmlp_tokenizer_part_type(model);
    bool byte_fallback = false;
    double dropout = 0;
    if (type ? strcmp(type, "BPE") != 0 : nmlp_json_is_null(nmlp_json_get(model, "merges")))
        return nmlp_tokenizer_refuse(doc, "model", type, "BPE", err);
    if (is_set_string(model, "continuing_subword_prefix"))
        return nmlp_tokenizer_refuse(doc, "model option", "continuing_subword_prefix", "byte-level BPE without it",
                                     err);
    if (is_set_string(model, "end_of_word_suffix"))
        return nmlp_tokenizer_refuse(doc, "model option", "end_of_word_suffix", "byte-level BPE without it", err);
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, model, "byte_fallback", &byte_fallback, err));
    if (byte_fallback)
        return nmlp_tokenizer_refuse(doc, "model option", "byte_fallback", "byte-level BPE without it", err);
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, model, "dropout", &dropout, err));
    if (dropout != 0) return nmlp_tokenizer_refuse(doc, "model option", "dropout", "BPE without dropout", err);
    return nmlp_json_optional_bool(doc, model, "ignore_merges", &t->ignore_merges, err);
}

/* Finds the highest id and the bytes all tokens take. */
static nmlp_status measure(const nmlp_json_doc *doc, const nmlp_json *vocab, const nmlp_json *added, int64_t *n_ids,
                           size_t *n_bytes, nmlp_err *err) {
    int64_t id;
    *n_ids = 0;
    *n_bytes = 0;
    for (const nmlp_json *v = nmlp_json_first(vocab); v; v = nmlp_json_next(v)) {
        if (!nmlp_json_int_in(v, 0, NMLP_VOCAB_MAX - 1, &id))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: vocabulary entry \"%.80s\" must have an id from 0 to %d",
                             doc->origin, nmlp_json_key(v), NMLP_VOCAB_MAX - 1);
        if (id >= *n_ids) *n_ids = id + 1;
        *n_bytes += strlen(nmlp_json_key(v));
    }
    for (const nmlp_json *a = nmlp_json_first(added); a; a = nmlp_json_next(a)) {
        const char *content;
        NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, a, "id", 0, NMLP_VOCAB_MAX - 1, &id, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, a, "content", &content, err));
        if (id >= *n_ids) *n_ids = id + 1;
        *n_bytes += strlen(content);
    }
    if (*n_bytes > UINT32_MAX) return nmlp_fail(err, NMLP_E_LIMIT, "%s: vocabulary above 4 GB", doc->origin);
    return NMLP_OK;
}

static nmlp_status fail_same_id(const nmlp_tokenizer *t, const nmlp_json_doc *doc, int64_t id, const char *text,
                                nmlp_err *err) {
    const nmlp_token *token = &t->tokens[id];
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: id %" PRId64 " is given to both \"%.*s\" and \"%.80s\"", doc->origin, id,
                     (int)(token->len < 80 ? token->len : 80), t->bytes + token->at, text);
}

static nmlp_status add_vocab_entry(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *entry, nmlp_err *err) {
    const char *text = nmlp_json_key(entry);
    size_t len = strlen(text);
    int64_t id = 0;
    uint32_t other;
    nmlp_json_int_in(entry, 0, NMLP_VOCAB_MAX - 1, &id);
    nmlp_token *token = &t->tokens[id];
    if (token->flags) return fail_same_id(t, doc, id, text, err);
    char *at = t->bytes + t->n_bytes;
    int64_t n = nmlp_byte_alphabet_decode(text, len, at);
    bool literal = n < 0;
    if (literal) {
        memcpy(at, text, len);
        n = (int64_t)len;
    }
    nmlp_hashmap *map = literal ? &t->by_text : &t->by_bytes;
    if (nmlp_hashmap_get(map, at, (size_t)n, &other))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"%.80s\" is in the vocabulary twice, as %" PRIu32 " and %" PRId64,
                         doc->origin, text, other, id);
    *token = (nmlp_token){.at = (uint32_t)t->n_bytes, .len = (uint32_t)n, .flags = NMLP_TOKEN_EXISTS};
    t->n_bytes += (size_t)n;
    if (n == 1 && !literal) t->byte_ids[(unsigned char)at[0]] = (int32_t)id;
    return nmlp_hashmap_put(map, at, (size_t)n, (uint32_t)id, err);
}

static nmlp_status fail_merge(const nmlp_json_doc *doc, size_t rank, const char *what, size_t what_len, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: merge %zu: \"%.*s\" is not in the vocabulary", doc->origin, rank,
                     (int)(what_len < 200 ? what_len : 200), what);
}

static nmlp_status add_merge(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *merge, size_t rank,
                             nmlp_str *joined, nmlp_err *err) {
    const char *left = nmlp_json_string(merge);
    const char *right = strchr(left, ' ');
    size_t left_len = right ? (size_t)(right - left) : 0;
    bool good = right && !strchr(++right, ' ');
    if (nmlp_json_is_array(merge)) {
        const nmlp_json *first = nmlp_json_first(merge);
        const nmlp_json *second = first ? nmlp_json_next(first) : NULL;
        good = nmlp_json_is_string(first) && nmlp_json_is_string(second) && !nmlp_json_next(second);
        left = nmlp_json_string(first);
        left_len = strlen(left);
        right = nmlp_json_string(second);
    }
    if (!good)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: merge %zu must be \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]",
                         doc->origin, rank);
    size_t right_len = strlen(right);
    nmlp_str_clear(joined);
    nmlp_str_append(joined, left, left_len);
    nmlp_str_append(joined, right, right_len);
    NMLP_RETURN_IF_FAILED(nmlp_str_status(joined, err));
    int64_t left_id = nmlp_tokenizer_find_len(t, left, left_len);
    if (left_id < 0) return fail_merge(doc, rank, left, left_len, err);
    int64_t right_id = nmlp_tokenizer_find_len(t, right, right_len);
    if (right_id < 0) return fail_merge(doc, rank, right, right_len, err);
    int64_t joined_id = nmlp_tokenizer_find_len(t, joined->data, joined->len);
    if (joined_id < 0) return fail_merge(doc, rank, joined->data, joined->len, err);
    nmlp_bpe_put(&t->bpe, (uint32_t)left_id, (uint32_t)right_id, (uint32_t)rank, (uint32_t)joined_id);
    return NMLP_OK;
}

static nmlp_status read_merges(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model, nmlp_err *err) {
    const nmlp_json *merges = nmlp_json_get(model, "merges");
    if (!nmlp_json_is_array(merges))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"model.merges\" must be an array", doc->origin);
    nmlp_str joined;
    size_t rank = 0;
    nmlp_str_init(&joined);
    nmlp_status st = nmlp_bpe_init(&t->bpe, nmlp_json_count(merges), err);
    for (const nmlp_json *m = nmlp_json_first(merges); m && st == NMLP_OK; m = nmlp_json_next(m))
        st = add_merge(t, doc, m, rank++, &joined, err);
    nmlp_str_fini(&joined);
    return st;
}

/* Where it is to be looked for: as it is in the text as it comes, or normalised in the normalised text. */
static nmlp_status add_to_matcher(nmlp_tokenizer *t, const char *content, bool normalized,
                                  const nmlp_added_token *token, nmlp_err *err) {
    size_t len = strlen(content);
    if (!len) return NMLP_OK; /* stands nowhere */
    if (!normalized) return nmlp_added_tokens_put(&t->raw_added, content, len, token, err);
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_status st = NMLP_OK;
    if (t->nfc)
        st = nmlp_unicode_append_nfc(&text, content, len, err);
    else
        nmlp_str_append(&text, content, len);
    if (st == NMLP_OK) st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_added_tokens_put(&t->normalized_added, text.data, text.len, token, err);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status add_added_token(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *added, nmlp_err *err) {
    const char *content;
    int64_t id;
    nmlp_added_token token = {0};
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, added, "id", 0, NMLP_VOCAB_MAX - 1, &id, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, added, "content", &content, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "special", &token.special, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "lstrip", &token.lstrip, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "rstrip", &token.rstrip, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "single_word", &token.single_word, err));
    bool normalized = !token.special;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "normalized", &normalized, err));
    size_t len = strlen(content);
    if (nmlp_utf8_valid_prefix(content, len) != len)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: added token %" PRId64 " is not valid UTF-8", doc->origin, id);
    int64_t known = nmlp_tokenizer_find_len(t, content, len);
    if (known >= 0 && known != id)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "%s: \"%.80s\" is %" PRId64 " in the vocabulary and %" PRId64 " among the added tokens",
                         doc->origin, content, known, id);
    if (known < 0 && t->tokens[id].flags) return fail_same_id(t, doc, id, content, err);
    char *at = t->bytes + t->n_bytes;
    memcpy(at, content, len);
    t->tokens[id] = (nmlp_token){.at = (uint32_t)t->n_bytes,
                                 .len = (uint32_t)len,
                                 .flags = NMLP_TOKEN_EXISTS | NMLP_TOKEN_ADDED |
                                          (token.special ? (uint32_t)NMLP_TOKEN_SPECIAL : 0)};
    t->n_bytes += len;
    NMLP_RETURN_IF_FAILED(nmlp_hashmap_put(&t->by_text, at, len, (uint32_t)id, err));
    token.id = (int32_t)id;
    return add_to_matcher(t, content, normalized, &token, err);
}

/* An unknown token is only ever needed for a byte without a token of its own. */
static nmlp_status check_unknown(const nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model,
                                 nmlp_err *err) {
    if (!is_set_string(model, "unk_token")) return NMLP_OK;
    for (int byte = 0; byte < 256; byte++) {
        if (t->byte_ids[byte] < 0)
            return nmlp_tokenizer_refuse(doc, "model option", "unk_token", "byte-level BPE with a token for every byte",
                                         err);
    }
    return NMLP_OK;
}

nmlp_status nmlp_tokenizer_read_vocab(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *model;
    const nmlp_json *vocab;
    size_t n_bytes;
    const nmlp_json *added = nmlp_json_get(doc->root, "added_tokens");
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, doc->root, "model", &model, err));
    NMLP_RETURN_IF_FAILED(check_model(t, doc, model, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, model, "vocab", &vocab, err));
    if (!nmlp_json_is_null(added) && !nmlp_json_is_array(added))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"added_tokens\" must be an array", doc->origin);
    NMLP_RETURN_IF_FAILED(measure(doc, vocab, added, &t->n_ids, &n_bytes, err));
    t->tokens = nmlp_mem_new((size_t)t->n_ids, sizeof *t->tokens, err);
    t->bytes = nmlp_mem_new(n_bytes, 1, err);
    if (!t->tokens || !t->bytes) return NMLP_E_NOMEM;
    for (int byte = 0; byte < 256; byte++) t->byte_ids[byte] = -1;
    NMLP_RETURN_IF_FAILED(nmlp_hashmap_reserve(&t->by_bytes, nmlp_json_count(vocab), err));
    for (const nmlp_json *v = nmlp_json_first(vocab); v; v = nmlp_json_next(v))
        NMLP_RETURN_IF_FAILED(add_vocab_entry(t, doc, v, err));
    NMLP_RETURN_IF_FAILED(check_unknown(t, doc, model, err));
    NMLP_RETURN_IF_FAILED(read_merges(t, doc, model, err));
    for (const nmlp_json *a = nmlp_json_first(added); a; a = nmlp_json_next(a))
        NMLP_RETURN_IF_FAILED(add_added_token(t, doc, a, err));
    return NMLP_OK;
}
