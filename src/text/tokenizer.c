#include "text/tokenizer.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/memory_limit.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"

static nmlp_status create(nmlp_tokenizer **out, nmlp_err *err) {
    nmlp_tokenizer *t = nmlp_mem_new(1, sizeof *t, err);
    if (!t) return NMLP_E_NOMEM;
    nmlp_hashmap_init(&t->vocab);
    nmlp_hashmap_init(&t->others);
    nmlp_added_tokens_init(&t->raw_added);
    nmlp_added_tokens_init(&t->normalized_added);
    nmlp_str_init(&t->decoded);
    t->bos_id = -1;
    t->eos_id = -1;
    t->unknown_id = -1;
    *out = t;
    NMLP_RETURN_IF_FAILED(nmlp_normalizer_create(&t->normalizer, err));
    return nmlp_pretokenizer_create(&t->pre, err);
}

static nmlp_status read_json(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    if (!nmlp_json_is_object(doc->root))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: a JSON object is expected", doc->origin);
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_normalizer(t, doc, err));
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_model(t, doc, err));
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_pretokenizer(t, doc, err));
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_post_processor(t, doc, err));
    t->has_own_template = true;
    return nmlp_tokenizer_read_decoder(t, doc, err);
}

/* What one file holds; `dir` has the files beside it, or is NULL. */
typedef struct source {
    const nmlp_json_doc *doc; /* tokenizer.json, or NULL: */
    const char *data;         /* tokenizer.model */
    size_t len;
    const char *origin;
    const char *dir;
} source;

/* A template that cannot be used matters to those who chat only: the reason is kept for them. */
static nmlp_status load_chat_template(nmlp_tokenizer *t, const char *dir, nmlp_err *err) {
    nmlp_err why = {0};
    if (nmlp_chat_template_load(&t->chat, dir, NULL, &why) == NMLP_OK) return NMLP_OK;
    size_t len = strlen(why.message);
    t->chat_refusal = nmlp_mem_new(len + 1, 1, err);
    if (!t->chat_refusal) return NMLP_E_NOMEM;
    memcpy(t->chat_refusal, why.message, len);
    return NMLP_OK;
}

const nmlp_chat_template *nmlp_tokenizer_chat_template(const nmlp_tokenizer *t) { return t->chat; }

static nmlp_status fill(nmlp_tokenizer *t, const source *from, nmlp_err *err) {
    if (from->doc)
        NMLP_RETURN_IF_FAILED(read_json(t, from->doc, err));
    else if (nmlp_tiktoken_looks_like(from->data, from->len))
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_tiktoken(t, from->data, from->len, from->origin, err));
    else
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_sentencepiece(t, from->data, from->len, from->origin, err));
    if (from->dir) NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_folder(t, from->dir, err));
    if (from->dir) NMLP_RETURN_IF_FAILED(load_chat_template(t, from->dir, err));
    return nmlp_tokenizer_decode_entries(t, from->doc ? from->doc->origin : from->origin, err);
}

static nmlp_status build(nmlp_tokenizer **out, const source *from, nmlp_err *err) {
    nmlp_tokenizer *t = NULL;
    nmlp_status st = create(&t, err);
    if (st == NMLP_OK) st = fill(t, from, err);
    if (st == NMLP_OK)
        *out = t;
    else
        nmlp_tokenizer_destroy(t);
    return st;
}

nmlp_status nmlp_tokenizer_parse(nmlp_tokenizer **out, const char *json, size_t len, const char *origin,
                                 nmlp_err *err) {
    nmlp_json_doc doc;
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_json_parse(&doc, json, len, origin, err));
    const source from = {.doc = &doc};
    nmlp_status st = build(out, &from, err);
    nmlp_json_free(&doc);
    return st;
}

nmlp_status nmlp_tokenizer_parse_model(nmlp_tokenizer **out, const char *data, size_t len, const char *origin,
                                       nmlp_err *err) {
    const source from = {.data = data, .len = len, .origin = origin};
    *out = NULL;
    return build(out, &from, err);
}

static nmlp_status load_json(nmlp_tokenizer **out, const char *file, const char *dir, nmlp_err *err) {
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, file, err));
    const source from = {.doc = &doc, .dir = dir};
    nmlp_status st = build(out, &from, err);
    nmlp_json_free(&doc);
    return st;
}

static nmlp_status load_model(nmlp_tokenizer **out, const char *file, const char *dir, nmlp_err *err) {
    enum { MODEL_MAX_BYTES = 256 << 20 };
    nmlp_str data;
    nmlp_str_init(&data);
    nmlp_status st = nmlp_file_read(&data, file, MODEL_MAX_BYTES, err);
    const source from = {.data = nmlp_str_text(&data), .len = data.len, .origin = file, .dir = dir};
    if (st == NMLP_OK) st = build(out, &from, err);
    nmlp_str_fini(&data);
    return st;
}

nmlp_status nmlp_tokenizer_path(char *out, size_t out_bytes, const char *dir, nmlp_err *err) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        NMLP_RETURN_IF_FAILED(nmlp_path_join(out, out_bytes, dir, names[i], err));
        if (nmlp_file_exists(out)) return NMLP_OK;
    }
    nmlp_fail(err, NMLP_E_MISSING, "%s: no tokenizer.json and no tokenizer.model in this folder", dir);
    nmlp_fail_hint(err, "copy tokenizer.json of the model into the folder");
    return NMLP_E_MISSING;
}

static bool ends_with(const char *text, const char *end) {
    size_t len = strlen(text);
    size_t end_len = strlen(end);
    return len > end_len && strcmp(text + len - end_len, end) == 0;
}

/* Memory that loading this file takes at least. Measured, as multiples of what is returned: tokenizer.json 1.02 to
   1.22 (four of 8,192 to 151,643 entries), sentencepiece 1.3 and 1.7, tiktoken 1.8. */
static size_t least_bytes(const char *data, size_t len, bool is_model) {
    enum { MODEL_BYTES_PER_BYTE = 8, TABLE_BYTES_PER_STRING = 32 };
    if (is_model) return MODEL_BYTES_PER_BYTE * len;
    nmlp_json_size size = nmlp_json_measure(data, len);
    return size.bytes + TABLE_BYTES_PER_STRING * size.n_strings;
}

/* Refuses a file that cannot be held. `scarce`: whether it is large beside what there is; only then it is read. */
static nmlp_status check_memory(const char *file, bool is_model, size_t available, bool *scarce, nmlp_err *err) {
    enum { SCARCE_BYTES_PER_BYTE = 32 };
    nmlp_file_map map;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, file, err));
    *scarce = map.bytes > available / SCARCE_BYTES_PER_BYTE;
    size_t need = *scarce ? least_bytes((const char *)map.data, map.bytes, is_model) : 0;
    nmlp_file_map_close(&map);
    if (need <= available) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_NOMEM, "%s: out of memory: the tokenizer needs at least %zu bytes, %zu are available",
                     file, need, available);
}

static nmlp_status load_file(nmlp_tokenizer **out, const char *file, const char *dir, nmlp_err *err) {
    bool is_model = ends_with(file, ".model") || ends_with(file, ".tiktoken");
    bool scarce;
    size_t available = nmlp_memory_available_bytes();
    NMLP_RETURN_IF_FAILED(check_memory(file, is_model, available, &scarce, err));
    nmlp_status st = (is_model ? load_model : load_json)(out, file, dir, err);
    if (st == NMLP_E_NOMEM && scarce)
        nmlp_fail(err, st, "%s: out of memory: the tokenizer needs more than the %zu bytes that are available", file,
                  available);
    return st;
}

nmlp_status nmlp_tokenizer_load(nmlp_tokenizer **out, const char *dir_or_file, nmlp_err *err) {
    *out = NULL;
    if (nmlp_file_is_dir(dir_or_file)) {
        char path[4096];
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_path(path, sizeof path, dir_or_file, err));
        return load_file(out, path, dir_or_file, err);
    }
    if (!nmlp_file_exists(dir_or_file)) {
        nmlp_fail(err, NMLP_E_MISSING, "%s: not found", dir_or_file);
        nmlp_fail_hint(
            err,
            "MODEL is a directory with config.json, tokenizer.json and *.safetensors, as Hugging Face lays them out");
        return NMLP_E_MISSING;
    }
    return load_file(out, dir_or_file, NULL, err);
}

void nmlp_tokenizer_destroy(nmlp_tokenizer *t) {
    if (!t) return;
    nmlp_mem_free(t->keys);
    nmlp_arena_fini(&t->arena);
    nmlp_mem_free(t->tokens);
    nmlp_hashmap_fini(&t->vocab);
    nmlp_hashmap_fini(&t->others);
    nmlp_bpe_fini(&t->bpe);
    nmlp_unigram_fini(&t->unigram);
    nmlp_normalizer_destroy(t->normalizer);
    nmlp_normalizer_destroy(t->decode.replace);
    nmlp_pretokenizer_destroy(t->pre);
    nmlp_str_fini(&t->decoded);
    nmlp_added_tokens_fini(&t->raw_added);
    nmlp_added_tokens_fini(&t->normalized_added);
    nmlp_ids_fini(&t->prefix);
    nmlp_ids_fini(&t->suffix);
    nmlp_chat_template_destroy(t->chat);
    nmlp_mem_free(t->chat_refusal);
    nmlp_mem_free(t);
}

int64_t nmlp_tokenizer_vocab_size(const nmlp_tokenizer *t) { return t->n_ids; }

int64_t nmlp_tokenizer_eos_id(const nmlp_tokenizer *t) { return t->eos_id; }

int64_t nmlp_tokenizer_bos_id(const nmlp_tokenizer *t) { return t->prefix.len ? t->prefix.data[0] : t->bos_id; }

const char *nmlp_tokenizer_bytes(const nmlp_tokenizer *t, int64_t id, size_t *len) {
    *len = 0;
    if (id < 0 || id >= t->n_ids) return NULL;
    const nmlp_token *token = &t->tokens[id];
    if (!(token->flags & NMLP_TOKEN_EXISTS) || (token->flags & NMLP_TOKEN_SPECIAL) || token->len == 0) return NULL;
    *len = token->len;
    return token->text;
}

const char *nmlp_tokenizer_special_text(const nmlp_tokenizer *t, int64_t id, size_t *len) {
    *len = 0;
    if (!nmlp_tokenizer_is_special(t, id)) return NULL;
    *len = t->tokens[id].len;
    return t->tokens[id].text;
}

bool nmlp_tokenizer_strips_space(const nmlp_tokenizer *t) {
    return t->decode.drop_first_metaspace || (t->decode.strip_start > 0 && t->decode.strip_char == ' ');
}

bool nmlp_tokenizer_joins_plainly(const nmlp_tokenizer *t) { return !t->decode.join_with_spaces; }

bool nmlp_tokenizer_is_special(const nmlp_tokenizer *t, int64_t id) {
    return id >= 0 && id < t->n_ids && (t->tokens[id].flags & NMLP_TOKEN_SPECIAL);
}

int64_t nmlp_tokenizer_find_len(const nmlp_tokenizer *t, const char *piece, size_t len) {
    char small[512];
    uint32_t id;
    if (nmlp_hashmap_get(&t->others, piece, len, &id)) return id;
    if (t->model != NMLP_TOKENIZER_BYTE_BPE) return nmlp_hashmap_get(&t->vocab, piece, len, &id) ? (int64_t)id : -1;
    char *bytes = len <= sizeof small ? small : nmlp_mem_new(len, 1, NULL);
    if (!bytes) return -1;
    int64_t n = nmlp_byte_alphabet_decode(piece, len, bytes);
    bool found = n >= 0 && nmlp_hashmap_get(&t->vocab, bytes, (size_t)n, &id);
    if (bytes != small) nmlp_mem_free(bytes);
    return found ? (int64_t)id : -1;
}

int64_t nmlp_tokenizer_find(const nmlp_tokenizer *t, const char *piece) {
    return nmlp_tokenizer_find_len(t, piece, strlen(piece));
}

void nmlp_ids_init(nmlp_ids *ids) { *ids = (nmlp_ids){0}; }

void nmlp_ids_fini(nmlp_ids *ids) {
    nmlp_mem_free(ids->data);
    *ids = (nmlp_ids){0};
}

nmlp_status nmlp_ids_push(nmlp_ids *ids, int32_t id, nmlp_err *err) {
    void *data = ids->data;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&data, &ids->capacity, ids->len + 1, sizeof *ids->data, err));
    ids->data = data;
    ids->data[ids->len++] = id;
    return NMLP_OK;
}
