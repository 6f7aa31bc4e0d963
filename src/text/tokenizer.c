#include "text/tokenizer.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_internal.h"

static nmlp_status build(nmlp_tokenizer **out, const nmlp_json_doc *doc, nmlp_err *err) {
    nmlp_tokenizer *t = nmlp_mem_new(1, sizeof *t, err);
    if (!t) return NMLP_E_NOMEM;
    nmlp_hashmap_init(&t->by_bytes);
    nmlp_hashmap_init(&t->by_text);
    nmlp_added_tokens_init(&t->raw_added);
    nmlp_added_tokens_init(&t->normalized_added);
    nmlp_status st = NMLP_OK;
    if (!nmlp_json_is_object(doc->root))
        st = nmlp_fail(err, NMLP_E_FORMAT, "%s: a JSON object is expected", doc->origin);
    if (st == NMLP_OK) st = nmlp_tokenizer_read_normalizer(t, doc, err);
    if (st == NMLP_OK) st = nmlp_tokenizer_read_vocab(t, doc, err);
    if (st == NMLP_OK) st = nmlp_tokenizer_read_parts(t, doc, err);
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
    nmlp_status st = build(out, &doc, err);
    nmlp_json_free(&doc);
    return st;
}

nmlp_status nmlp_tokenizer_load(nmlp_tokenizer **out, const char *dir_or_file, nmlp_err *err) {
    char path[4096];
    nmlp_json_doc doc;
    *out = NULL;
    const char *file = dir_or_file;
    if (nmlp_file_is_dir(dir_or_file)) {
        NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir_or_file, "tokenizer.json", err));
        file = path;
        if (!nmlp_file_exists(file)) {
            nmlp_fail(err, NMLP_E_MISSING, "%s: no tokenizer.json in this folder", dir_or_file);
            nmlp_fail_hint(err, "copy tokenizer.json of the model into the folder");
            return NMLP_E_MISSING;
        }
    }
    if (!nmlp_file_exists(file)) {
        nmlp_fail(err, NMLP_E_MISSING, "%s: not found", file);
        nmlp_fail_hint(
            err,
            "MODEL is a directory with config.json, tokenizer.json and *.safetensors, as Hugging Face lays them out");
        return NMLP_E_MISSING;
    }
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, file, err));
    nmlp_status st = build(out, &doc, err);
    nmlp_json_free(&doc);
    return st;
}

void nmlp_tokenizer_destroy(nmlp_tokenizer *t) {
    if (!t) return;
    nmlp_mem_free(t->bytes);
    nmlp_mem_free(t->tokens);
    nmlp_hashmap_fini(&t->by_bytes);
    nmlp_hashmap_fini(&t->by_text);
    nmlp_bpe_fini(&t->bpe);
    nmlp_pretokenizer_destroy(t->pre);
    nmlp_added_tokens_fini(&t->raw_added);
    nmlp_added_tokens_fini(&t->normalized_added);
    nmlp_mem_free(t->prefix_ids);
    nmlp_mem_free(t);
}

int64_t nmlp_tokenizer_vocab_size(const nmlp_tokenizer *t) { return t->n_ids; }

int64_t nmlp_tokenizer_bos_id(const nmlp_tokenizer *t) { return t->n_prefix_ids ? t->prefix_ids[0] : -1; }

bool nmlp_tokenizer_is_special(const nmlp_tokenizer *t, int64_t id) {
    return id >= 0 && id < t->n_ids && (t->tokens[id].flags & NMLP_TOKEN_SPECIAL);
}

int64_t nmlp_tokenizer_find_len(const nmlp_tokenizer *t, const char *piece, size_t len) {
    char small[512];
    uint32_t id;
    if (nmlp_hashmap_get(&t->by_text, piece, len, &id)) return id;
    char *bytes = len <= sizeof small ? small : nmlp_mem_new(len, 1, NULL);
    if (!bytes) return -1;
    int64_t n = nmlp_byte_alphabet_decode(piece, len, bytes);
    bool found = n >= 0 && nmlp_hashmap_get(&t->by_bytes, bytes, (size_t)n, &id);
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
