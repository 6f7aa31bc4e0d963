/* The vocabulary: entries, merges and added tokens, from `model` and `added_tokens` of tokenizer.json or from the
 * readers of other files. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"

nmlp_status nmlp_tokenizer_reserve(nmlp_tokenizer *t, int64_t n_ids, size_t n_entries, size_t key_bytes,
                                   nmlp_err *err) {
    if (key_bytes > UINT32_MAX) return nmlp_fail(err, NMLP_E_LIMIT, "vocabulary above 4 GB");
    t->tokens = nmlp_mem_new((size_t)n_ids, sizeof *t->tokens, err);
    t->keys = nmlp_mem_new(key_bytes, 1, err);
    if (!t->tokens || !t->keys) return NMLP_E_NOMEM;
    t->n_ids = n_ids;
    t->tokens_capacity = (size_t)n_ids;
    t->keys_capacity = key_bytes;
    for (int byte = 0; byte < 256; byte++) t->byte_ids[byte] = -1;
    return nmlp_hashmap_reserve(&t->vocab, n_entries, err);
}

static nmlp_status grow_ids(nmlp_tokenizer *t, int64_t id, nmlp_err *err) {
    if (id < t->n_ids) return NMLP_OK;
    void *tokens = t->tokens;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&tokens, &t->tokens_capacity, (size_t)id + 1, sizeof *t->tokens, err));
    t->tokens = tokens;
    t->n_ids = id + 1;
    return NMLP_OK;
}

static char *new_key(nmlp_tokenizer *t, const char *text, size_t len, nmlp_err *err) {
    if (t->keys_capacity - t->keys_len < len) return nmlp_arena_strndup(&t->arena, text, len, err);
    char *key = t->keys + t->keys_len;
    memcpy(key, text, len);
    t->keys_len += len;
    return key;
}

static nmlp_status fail_same_id(const nmlp_tokenizer *t, const char *origin, int64_t id, const char *text, size_t len,
                                nmlp_err *err) {
    const nmlp_token *token = &t->tokens[id];
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: id %" PRId64 " is given to both \"%.*s\" and \"%.*s\"", origin, id,
                     (int)(token->len < 80 ? token->len : 80), token->text, (int)(len < 80 ? len : 80), text);
}

/* <0xE2>, as sentencepiece writes bytes; -1 for anything else. */
static int byte_of_entry(const char *text, size_t len) {
    static const char digits[] = "0123456789ABCDEF";
    if (len != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    const char *high = memchr(digits, text[3], 16);
    const char *low = memchr(digits, text[4], 16);
    return high && low ? (int)(high - digits) * 16 + (int)(low - digits) : -1;
}

nmlp_status nmlp_tokenizer_add_entry(nmlp_tokenizer *t, const char *origin, int64_t id, const char *text, size_t len,
                                     nmlp_err *err) {
    uint32_t other;
    nmlp_token *token = &t->tokens[id];
    if (token->flags) return fail_same_id(t, origin, id, text, len, err);
    char *key = new_key(t, text, len, err);
    if (!key) return NMLP_E_NOMEM;
    nmlp_hashmap *map = &t->vocab;
    if (t->model == NMLP_TOKENIZER_BYTE_BPE) {
        int64_t n = nmlp_byte_alphabet_decode(text, len, key); /* not longer than the text */
        if (n < 0) {
            memcpy(key, text, len);
            map = &t->others;
        } else {
            len = (size_t)n;
            if (n == 1) t->byte_ids[(unsigned char)key[0]] = (int32_t)id;
        }
    } else {
        int byte = byte_of_entry(text, len);
        if (byte >= 0) t->byte_ids[byte] = (int32_t)id;
    }
    if (nmlp_hashmap_get(map, key, len, &other))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"%.*s\" is in the vocabulary twice, as %" PRIu32 " and %" PRId64,
                         origin, (int)(len < 80 ? len : 80), text, other, id);
    *token = (nmlp_token){.text = key, .len = (uint32_t)len, .flags = NMLP_TOKEN_EXISTS};
    return nmlp_hashmap_put(map, key, len, (uint32_t)id, err);
}

/* Where it is to be looked for: as it is in the text as it comes, or normalised in the normalised text. */
static nmlp_status add_to_matcher(nmlp_tokenizer *t, const char *content, size_t len, bool normalized,
                                  const nmlp_added_token *token, nmlp_err *err) {
    if (!len) return NMLP_OK; /* stands nowhere */
    if (!normalized) return nmlp_added_tokens_put(&t->raw_added, content, len, token, err);
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_status st = nmlp_normalizer_run(t->normalizer, content, len, &text, err);
    if (st == NMLP_OK && text.len) st = nmlp_added_tokens_put(&t->normalized_added, text.data, text.len, token, err);
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_tokenizer_add_token(nmlp_tokenizer *t, const char *origin, const char *content, size_t len,
                                     bool normalized, const nmlp_added_token *token, nmlp_err *err) {
    int64_t id = token->id;
    if (nmlp_utf8_valid_prefix(content, len) != len)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: added token %" PRId64 " is not valid UTF-8", origin, id);
    int64_t known = nmlp_tokenizer_find_len(t, content, len);
    if (known >= 0 && known != id)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "%s: \"%.*s\" is %" PRId64 " in the vocabulary and %" PRId64 " among the added tokens", origin,
                         (int)(len < 80 ? len : 80), content, known, id);
    NMLP_RETURN_IF_FAILED(grow_ids(t, id, err));
    if (known < 0 && t->tokens[id].flags) return fail_same_id(t, origin, id, content, len, err);
    char *key = new_key(t, content, len, err);
    if (!key) return NMLP_E_NOMEM;
    t->tokens[id] = (nmlp_token){.text = key,
                                 .len = (uint32_t)len,
                                 .flags = NMLP_TOKEN_EXISTS | NMLP_TOKEN_ADDED |
                                          (token->special ? (uint32_t)NMLP_TOKEN_SPECIAL : 0)};
    NMLP_RETURN_IF_FAILED(nmlp_hashmap_put(&t->others, key, len, (uint32_t)id, err));
    return add_to_matcher(t, content, len, normalized, token, err);
}

nmlp_status nmlp_tokenizer_read_added(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *added, int64_t id,
                                      nmlp_err *err) {
    const char *content;
    nmlp_added_token token = {.id = (int32_t)id};
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, added, "content", &content, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "special", &token.special, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "lstrip", &token.lstrip, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "rstrip", &token.rstrip, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "single_word", &token.single_word, err));
    bool normalized = !token.special;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, added, "normalized", &normalized, err));
    return nmlp_tokenizer_add_token(t, doc->origin, content, strlen(content), normalized, &token, err);
}

/* Finds the highest id and the bytes all tokens take. */
static nmlp_status measure(const nmlp_json_doc *doc, const nmlp_json *vocab, const nmlp_json *added, int64_t *n_ids,
                           size_t *n_bytes, nmlp_err *err) {
    int64_t id;
    *n_ids = 0;
    *n_bytes = 0;
    bool listed = nmlp_json_is_array(vocab); /* Unigram: ids count the list's members */
    if (listed) *n_ids = (int64_t)nmlp_json_count(vocab);
    if (*n_ids > NMLP_VOCAB_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d vocabulary entries", doc->origin, NMLP_VOCAB_MAX);
    for (const nmlp_json *v = nmlp_json_first(vocab); v; v = nmlp_json_next(v)) {
        if (listed) {
            *n_bytes += strlen(nmlp_json_string(nmlp_json_first(v)));
            continue;
        }
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
    return NMLP_OK;
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
    int64_t joined_id = nmlp_tokenizer_find_len(t, nmlp_str_text(joined), joined->len);
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

/* Calls nmlp_bpe_put (t->bpe has room) or only counts, for the pairs that make one entry. */
static size_t pair_entry(nmlp_tokenizer *t, const nmlp_token *entry, uint32_t rank, int32_t id, bool put) {
    size_t n = 0;
    for (size_t cut = 1; cut < entry->len; cut++) {
        uint32_t left, right;
        if (!nmlp_hashmap_get(&t->vocab, entry->text, cut, &left)) continue;
        if (!nmlp_hashmap_get(&t->vocab, entry->text + cut, entry->len - cut, &right)) continue;
        if (put) nmlp_bpe_put(&t->bpe, left, right, rank, (uint32_t)id);
        n++;
    }
    return n;
}

nmlp_status nmlp_tokenizer_pair_entries(nmlp_tokenizer *t, const nmlp_token *order, const int32_t *order_ids, size_t n,
                                        nmlp_err *err) {
    size_t n_pairs = 0;
    for (size_t i = 0; i < n; i++) n_pairs += pair_entry(t, &order[i], 0, 0, false);
    NMLP_RETURN_IF_FAILED(nmlp_bpe_init(&t->bpe, n_pairs, err));
    uint32_t rank = 0;
    for (size_t i = 0; i < n; i++)
        if (pair_entry(t, &order[i], rank, order_ids[i], true)) rank++;
    return NMLP_OK;
}

/* The options of a BPE model. */
static nmlp_status read_bpe_options(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model,
                                    nmlp_err *err) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    double dropout = 0;
    for (size_t i = 0; i < 2; i++) {
        if (nmlp_json_string(nmlp_json_get(model, affixes[i]))[0])
            return nmlp_tokenizer_refuse(doc, "model option", affixes[i], "BPE without it", err);
    }
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, model, "byte_fallback", &t->byte_fallback, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, model, "fuse_unk", &t->fuse_unknown, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_number(doc, model, "dropout", &dropout, err));
    if (dropout != 0) return nmlp_tokenizer_refuse(doc, "model option", "dropout", "BPE without dropout", err);
    return nmlp_json_optional_bool(doc, model, "ignore_merges", &t->ignore_merges, err);
}

/* An unknown token of a byte-level vocabulary would be needed only for a byte without a token of its own. */
static nmlp_status read_unknown(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model, nmlp_err *err) {
    const char *name = nmlp_json_string(nmlp_json_get(model, "unk_token"));
    if (!name[0]) return NMLP_OK;
    if (t->model == NMLP_TOKENIZER_CHAR_BPE) {
        int64_t id = nmlp_tokenizer_find(t, name);
        if (id < 0)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"model.unk_token\" \"%.80s\" is not in the vocabulary",
                             doc->origin, name);
        t->unknown_id = (int32_t)id;
        return NMLP_OK;
    }
    for (int byte = 0; byte < 256; byte++) {
        if (t->byte_ids[byte] < 0)
            return nmlp_tokenizer_refuse(doc, "model option", "unk_token", "byte-level BPE with a token for every byte",
                                         err);
    }
    return NMLP_OK;
}

static nmlp_status read_bpe(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model, nmlp_err *err) {
    const nmlp_json *vocab;
    NMLP_RETURN_IF_FAILED(read_bpe_options(t, doc, model, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, model, "vocab", &vocab, err));
    for (const nmlp_json *v = nmlp_json_first(vocab); v; v = nmlp_json_next(v)) {
        int64_t id = 0;
        nmlp_json_int_in(v, 0, NMLP_VOCAB_MAX - 1, &id);
        const char *text = nmlp_json_key(v);
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_add_entry(t, doc->origin, id, text, strlen(text), err));
    }
    NMLP_RETURN_IF_FAILED(read_unknown(t, doc, model, err));
    return read_merges(t, doc, model, err);
}

/* `tokenizers` reads numbers with serde_json, which divides the digits as a double by a power of ten; that can be one
 * unit off, and decides between cuts of equal score. Takes the shortest digits, which is how such files are written. */
static double read_as_serde(double value) {
    char text[40];
    int precision = 15;
    do snprintf(text, sizeof text, "%.*e", precision - 1, value);
    while (strtod(text, NULL) != value && ++precision <= 17);
    uint64_t digits = 0;
    int exponent = 0;
    const char *c = text;
    for (; *c && *c != 'e'; c++)
        if (*c >= '0' && *c <= '9') digits = digits * 10 + (uint64_t)(*c - '0');
    if (*c == 'e') exponent = (int)strtol(c + 1, NULL, 10) - (precision - 1);
    for (; digits && digits % 10 == 0; digits /= 10) exponent++;
    if (exponent >= 0 || exponent < -300) return value;
    snprintf(text, sizeof text, "1e%d", -exponent);
    double magnitude = (double)digits / strtod(text, NULL);
    return value < 0 ? -magnitude : magnitude;
}

static nmlp_status read_unigram(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model, nmlp_err *err) {
    const nmlp_json *vocab = nmlp_json_get(model, "vocab");
    int64_t unknown = -1;
    int64_t id = 0;
    double lowest = 0;
    size_t n = nmlp_json_count(vocab);
    if (!nmlp_json_is_array(vocab) || !n)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"model.vocab\" must be an array of [TEXT, SCORE]", doc->origin);
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, model, "byte_fallback", &t->byte_fallback, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, model, "unk_id", 0, (int64_t)n - 1, &unknown, err));
    t->unknown_id = (int32_t)unknown;
    t->fuse_unknown = true;
    NMLP_RETURN_IF_FAILED(nmlp_unigram_init(&t->unigram, n, err));
    for (const nmlp_json *v = nmlp_json_first(vocab); v; v = nmlp_json_next(v), id++) {
        const nmlp_json *text = nmlp_json_first(v);
        const nmlp_json *score = text ? nmlp_json_next(text) : NULL;
        if (!nmlp_json_is_array(v) || !nmlp_json_is_string(text) || !nmlp_json_is_number(score))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: vocabulary entry %" PRId64 " must be [TEXT, SCORE]", doc->origin,
                             id);
        const char *piece = nmlp_json_string(text);
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_add_entry(t, doc->origin, id, piece, strlen(piece), err));
        t->unigram.entries[id] = (nmlp_unigram_entry){.text = t->tokens[id].text,
                                                      .len = t->tokens[id].len,
                                                      .id = (int32_t)id,
                                                      .score = read_as_serde(nmlp_json_number(score))};
        if (!id || t->unigram.entries[id].score < lowest) lowest = t->unigram.entries[id].score;
    }
    nmlp_unigram_sort(&t->unigram, lowest);
    return NMLP_OK;
}

/* Old files leave the model's type out; what has merges is BPE. */
static nmlp_status choose_model(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *model, nmlp_err *err) {
    const char *type = nmlp_tokenizer_part_type(model);
    bool byte_level = nmlp_tokenizer_is_byte_level(doc);
    if (type ? strcmp(type, "BPE") == 0 : !nmlp_json_is_null(nmlp_json_get(model, "merges"))) {
        t->model = byte_level ? NMLP_TOKENIZER_BYTE_BPE : NMLP_TOKENIZER_CHAR_BPE;
        return NMLP_OK;
    }
    if (type && strcmp(type, "Unigram") == 0) {
        t->model = NMLP_TOKENIZER_UNIGRAM;
        return byte_level ? nmlp_tokenizer_refuse(doc, "model", "Unigram with ByteLevel", "Unigram without it", err)
                          : NMLP_OK;
    }
    return nmlp_tokenizer_refuse(doc, "model", type, "BPE, Unigram", err);
}

nmlp_status nmlp_tokenizer_read_model(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *model;
    size_t n_bytes;
    int64_t n_ids;
    const nmlp_json *added = nmlp_json_get(doc->root, "added_tokens");
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, doc->root, "model", &model, err));
    NMLP_RETURN_IF_FAILED(choose_model(t, doc, model, err));
    if (!nmlp_json_is_null(added) && !nmlp_json_is_array(added))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"added_tokens\" must be an array", doc->origin);
    const nmlp_json *vocab = nmlp_json_get(model, "vocab");
    NMLP_RETURN_IF_FAILED(measure(doc, vocab, added, &n_ids, &n_bytes, err));
    nmlp_status st = nmlp_tokenizer_reserve(t, n_ids, nmlp_json_count(vocab), n_bytes, err);
    if (st != NMLP_OK) {
        nmlp_fail_context(err, "%s", doc->origin);
        return st;
    }
    NMLP_RETURN_IF_FAILED((t->model == NMLP_TOKENIZER_UNIGRAM ? read_unigram : read_bpe)(t, doc, model, err));
    for (const nmlp_json *a = nmlp_json_first(added); a; a = nmlp_json_next(a)) {
        int64_t id;
        NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, a, "id", 0, NMLP_VOCAB_MAX - 1, &id, err));
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_added(t, doc, a, id, err));
    }
    return NMLP_OK;
}
