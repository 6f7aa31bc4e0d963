/* What a model's folder says about its tokenizer outside the tokenizer's own file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "text/tokenizer_internal.h"

/* A token is named by a string or by an object with "content"; "" for neither. */
static const char *token_name(const nmlp_json *config, const char *key) {
    const nmlp_json *value = nmlp_json_get(config, key);
    return nmlp_json_string(nmlp_json_is_object(value) ? nmlp_json_get(value, "content") : value);
}

static bool parse_id(const char *text, int64_t *id) {
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    long long value = strtoll(text, &end, 10);
    *id = value;
    return !*end && value < NMLP_VOCAB_MAX;
}

/* {"32000": {"content": "<|im_end|>", "special": true, ...}, ...}; those the tokenizer's file has too stay as there. */
static nmlp_status read_added_decoder(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *list = nmlp_json_get(doc->root, "added_tokens_decoder");
    for (const nmlp_json *member = nmlp_json_first(list); member; member = nmlp_json_next(member)) {
        int64_t id;
        const char *content = nmlp_json_string(nmlp_json_get(member, "content"));
        if (!nmlp_json_is_object(list) || !parse_id(nmlp_json_key(member), &id))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: keys of \"added_tokens_decoder\" must be token ids", doc->origin);
        int64_t known = nmlp_tokenizer_find(t, content);
        if (known >= 0 && (known != id || (t->tokens[known].flags & NMLP_TOKEN_ADDED))) continue;
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_added(t, doc, member, id, err));
    }
    return NMLP_OK;
}

/* {"<|im_end|>": 32000, ...} */
static nmlp_status read_added_file(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    for (const nmlp_json *member = nmlp_json_first(doc->root); member; member = nmlp_json_next(member)) {
        const char *content = nmlp_json_key(member);
        int64_t id;
        if (!nmlp_json_is_object(doc->root) || !nmlp_json_int_in(member, 0, NMLP_VOCAB_MAX - 1, &id))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: must be an object of token ids", doc->origin);
        const nmlp_added_token token = {.id = (int32_t)id};
        if (nmlp_tokenizer_find(t, content) >= 0) continue;
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_add_token(t, doc->origin, content, strlen(content), true, &token, err));
    }
    return NMLP_OK;
}

static nmlp_status replace_side(nmlp_ids *side, bool wanted, int64_t id, nmlp_err *err) {
    side->len = 0;
    return wanted && id >= 0 ? nmlp_ids_push(side, (int32_t)id, err) : NMLP_OK;
}

/* add_bos_token and add_eos_token say what tokenizer.model cannot. tokenizer.json has a template of its own or none,
 * and `transformers` lets it stand. */
static nmlp_status read_bos(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    bool add_bos = false;
    bool add_eos = false;
    const char *bos = token_name(doc->root, "bos_token");
    const char *eos = token_name(doc->root, "eos_token");
    if (bos[0]) t->bos_id = nmlp_tokenizer_find(t, bos);
    if (eos[0]) t->eos_id = nmlp_tokenizer_find(t, eos);
    bool given = !nmlp_json_is_null(nmlp_json_get(doc->root, "add_bos_token")) ||
                 !nmlp_json_is_null(nmlp_json_get(doc->root, "add_eos_token"));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "add_bos_token", &add_bos, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, doc->root, "add_eos_token", &add_eos, err));
    if (!given || t->has_own_template) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(replace_side(&t->prefix, add_bos, t->bos_id, err));
    return replace_side(&t->suffix, add_eos, t->eos_id, err);
}

typedef nmlp_status read_fn(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err);

static nmlp_status read_config(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(read_added_decoder(t, doc, err));
    return read_bos(t, doc, err);
}

static nmlp_status read_if_there(nmlp_tokenizer *t, const char *dir, const char *name, read_fn *read, nmlp_err *err) {
    char path[4096];
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, name, err));
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    nmlp_status st = read(t, &doc, err);
    nmlp_json_free(&doc);
    return st;
}

nmlp_status nmlp_tokenizer_read_folder(nmlp_tokenizer *t, const char *dir, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(read_if_there(t, dir, "added_tokens.json", read_added_file, err));
    return read_if_there(t, dir, "tokenizer_config.json", read_config, err);
}
