/* tiktoken files: lines of a token's bytes in base64 and its rank, which is its id too. They hold neither the pattern
 * nor special tokens: the pattern is the one `transformers` takes for such files, special tokens come from
 * tokenizer_config.json. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

static const char default_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                                      "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                                      "\\s+(?!\\S)|\\s+";

/* One line: base64, a space, a number. Returns where the next begins, NULL when malformed. */
static const char *read_line(const char *at, const char *end, size_t *base64_len, int64_t *rank) {
    const char *line_end = memchr(at, '\n', (size_t)(end - at));
    if (!line_end) line_end = end;
    const char *space = memchr(at, ' ', (size_t)(line_end - at));
    if (!space || space == at || space + 1 == line_end) return NULL;
    *base64_len = (size_t)(space - at);
    *rank = 0;
    for (const char *c = space + 1; c < line_end; c++) {
        if (*c == '\r' && c + 1 == line_end) break;
        if (*c < '0' || *c > '9' || *rank >= NMLP_VOCAB_MAX) return NULL;
        *rank = *rank * 10 + (*c - '0');
    }
    return line_end < end ? line_end + 1 : end;
}

bool nmlp_tiktoken_looks_like(const char *data, size_t len) {
    size_t base64_len;
    int64_t rank;
    nmlp_str bytes;
    nmlp_str_init(&bytes);
    bool good = len && read_line(data, data + len, &base64_len, &rank) && base64_len < 1024 &&
                nmlp_base64_append(&bytes, data, base64_len);
    nmlp_str_fini(&bytes);
    return good;
}

/* Counts lines and bytes, and finds the highest rank. */
static nmlp_status measure(const char *data, size_t len, const char *origin, int64_t *n_ids, size_t *n_lines,
                           nmlp_err *err) {
    const char *end = data + len;
    *n_ids = 0;
    *n_lines = 0;
    for (const char *at = data; at < end; (*n_lines)++) {
        size_t base64_len;
        int64_t rank;
        at = read_line(at, end, &base64_len, &rank);
        if (!at || rank >= NMLP_VOCAB_MAX)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: line %zu is not \"BASE64 RANK\"", origin, *n_lines + 1);
        if (rank >= *n_ids) *n_ids = rank + 1;
    }
    return NMLP_OK;
}

static nmlp_status add_token_bytes(nmlp_tokenizer *t, const char *origin, int64_t id, const nmlp_str *bytes,
                                   nmlp_err *err) {
    enum { TOKEN_MAX_BYTES = 4096 };
    uint32_t other;
    if (!bytes->len || bytes->len > TOKEN_MAX_BYTES || t->tokens[id].flags ||
        nmlp_hashmap_get(&t->vocab, bytes->data, bytes->len, &other))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: token %" PRId64 " is empty, too long or given twice", origin, id);
    char *key = t->keys + t->keys_len; /* the file is longer than its bytes */
    memcpy(key, bytes->data, bytes->len);
    t->keys_len += bytes->len;
    t->tokens[id] = (nmlp_token){.text = key, .len = (uint32_t)bytes->len, .flags = NMLP_TOKEN_EXISTS};
    if (bytes->len == 1) t->byte_ids[(unsigned char)key[0]] = (int32_t)id;
    return nmlp_hashmap_put(&t->vocab, key, bytes->len, (uint32_t)id, err);
}

static nmlp_status add_tokens(nmlp_tokenizer *t, const char *data, size_t len, const char *origin, nmlp_err *err) {
    const char *end = data + len;
    nmlp_status st = NMLP_OK;
    nmlp_str bytes;
    nmlp_str_init(&bytes);
    for (const char *at = data; at < end && st == NMLP_OK;) {
        size_t base64_len = 0;
        int64_t rank = 0;
        const char *next = read_line(at, end, &base64_len, &rank);
        nmlp_str_clear(&bytes);
        if (!next || !nmlp_base64_append(&bytes, at, base64_len))
            st = nmlp_fail(err, NMLP_E_FORMAT, "%s: token %" PRId64 " is not base64", origin, rank);
        if (st == NMLP_OK) st = nmlp_str_status(&bytes, err);
        if (st == NMLP_OK) st = add_token_bytes(t, origin, rank, &bytes, err);
        at = next;
    }
    nmlp_str_fini(&bytes);
    return st;
}

/* A pair is joined by the rank of what it makes; ranks are ids. */
static nmlp_status build_merges(nmlp_tokenizer *t, nmlp_err *err) {
    nmlp_status st = NMLP_E_NOMEM;
    size_t n = 0;
    nmlp_token *order = nmlp_mem_new((size_t)t->n_ids, sizeof *order, err);
    int32_t *ids = nmlp_mem_new((size_t)t->n_ids, sizeof *ids, err);
    for (int64_t id = 0; order && ids && id < t->n_ids; id++) {
        if (!t->tokens[id].flags) continue;
        order[n] = t->tokens[id];
        ids[n++] = (int32_t)id;
    }
    if (order && ids) st = nmlp_tokenizer_pair_entries(t, order, ids, n, err);
    nmlp_mem_free(order);
    nmlp_mem_free(ids);
    return st;
}

nmlp_status nmlp_tokenizer_read_tiktoken(nmlp_tokenizer *t, const char *data, size_t len, const char *origin,
                                         nmlp_err *err) {
    const nmlp_split_spec split = {.pattern = default_pattern, .behavior = NMLP_SPLIT_ISOLATED};
    int64_t n_ids;
    size_t n_lines;
    NMLP_RETURN_IF_FAILED(measure(data, len, origin, &n_ids, &n_lines, err));
    t->model = NMLP_TOKENIZER_BYTE_BPE;
    t->ignore_merges = true; /* a piece that is a token is that token */
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_reserve(t, n_ids, n_lines, len, err));
    NMLP_RETURN_IF_FAILED(add_tokens(t, data, len, origin, err));
    NMLP_RETURN_IF_FAILED(build_merges(t, err));
    return nmlp_pretokenizer_add(t->pre, &split, err);
}
