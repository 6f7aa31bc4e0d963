/* From tokenizer.json or tokenizer.model to the metadata of a GGUF file. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "gguf/gguf_tokenizer.h"

enum { PATH_MAX_BYTES = 4096, FILE_MAX_BYTES = 256 << 20 };
enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5 };

struct token {
    const char *text;
    size_t len;
    float score;
    int type;
};

struct vocabulary {
    nmlp_arena arena;
    struct token *tokens;
    int64_t n;
};

static nmlp_status set_token(struct vocabulary *v, const char *origin, int64_t id, struct token token, nmlp_err *err) {
    if (id < 0 || id >= v->n)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: token id %" PRId64 " is outside the model's vocabulary of %" PRId64,
                         origin, id, v->n);
    v->tokens[id] = token;
    return NMLP_OK;
}

static nmlp_status fill_gaps(struct vocabulary *v, nmlp_err *err) {
    for (int64_t i = 0; i < v->n; i++) {
        char name[32];
        if (v->tokens[i].text) continue;
        snprintf(name, sizeof name, "[PAD%" PRId64 "]", i);
        v->tokens[i] =
            (struct token){.text = nmlp_arena_strdup(&v->arena, name, err), .len = strlen(name), .type = TYPE_UNUSED};
        if (!v->tokens[i].text) return NMLP_E_NOMEM;
    }
    return NMLP_OK;
}

static void add_tokens(nmlp_gguf_metadata *m, const struct vocabulary *v, bool scores) {
    nmlp_gguf_add_array(m, "tokenizer.ggml.tokens", NMLP_GGUF_STRING, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) nmlp_gguf_put_text(&m->bytes, v->tokens[i].text, v->tokens[i].len);
    if (scores) {
        nmlp_gguf_add_array(m, "tokenizer.ggml.scores", NMLP_GGUF_F32, (uint64_t)v->n);
        for (int64_t i = 0; i < v->n; i++) nmlp_gguf_put_f32(&m->bytes, v->tokens[i].score);
    }
    nmlp_gguf_add_array(m, "tokenizer.ggml.token_type", NMLP_GGUF_I32, (uint64_t)v->n);
    for (int64_t i = 0; i < v->n; i++) nmlp_gguf_put_int(&m->bytes, (uint64_t)v->tokens[i].type, 4);
}

/* ---- byte-level BPE ---- */

/* The name of the way a tokenizer.json cuts text. */
static nmlp_status name_split(const nmlp_json_doc *doc, const char **name, nmlp_err *err) {
    const nmlp_json *part = nmlp_json_get(doc->root, "pre_tokenizer");
    const char *regex = NULL;
    if (strcmp(nmlp_json_string(nmlp_json_get(part, "type")), "Sequence") == 0)
        part = nmlp_json_first(nmlp_json_get(part, "pretokenizers"));
    const char *type = nmlp_json_string(nmlp_json_get(part, "type"));
    if (strcmp(type, "Split") == 0) regex = nmlp_json_string(nmlp_json_get(nmlp_json_get(part, "pattern"), "Regex"));
    bool known = regex || (strcmp(type, "ByteLevel") == 0 && !nmlp_json_bool(nmlp_json_get(part, "add_prefix_space")));
    const nmlp_gguf_split *split;
    for (size_t i = 0; known && (split = nmlp_gguf_split_at(i)); i++) {
        *name = split->name;
        if (!regex && !split->regex) return NMLP_OK;
        if (regex && split->regex && strcmp(regex, split->regex) == 0) return NMLP_OK;
    }
    return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                     "%s: its pre_tokenizer has no name in GGUF files; those of Llama 3, Qwen and GPT-2 do",
                     doc->origin);
}

static nmlp_status add_merges(nmlp_gguf_metadata *m, const nmlp_json *merges) {
    nmlp_gguf_add_array(m, "tokenizer.ggml.merges", NMLP_GGUF_STRING, nmlp_json_count(merges));
    for (const nmlp_json *merge = nmlp_json_first(merges); merge; merge = nmlp_json_next(merge)) {
        if (!nmlp_json_is_array(merge)) {
            nmlp_gguf_put_text(&m->bytes, nmlp_json_string(merge), strlen(nmlp_json_string(merge)));
            continue;
        }
        const char *left = nmlp_json_string(nmlp_json_first(merge));
        const char *right = nmlp_json_string(nmlp_json_next(nmlp_json_first(merge)));
        nmlp_gguf_put_int(&m->bytes, strlen(left) + strlen(right) + 1, 8);
        nmlp_str_puts(&m->bytes, left);
        nmlp_str_putc(&m->bytes, ' ');
        nmlp_str_puts(&m->bytes, right);
    }
    return NMLP_OK;
}

static nmlp_status read_vocab(struct vocabulary *v, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *model = nmlp_json_get(doc->root, "model");
    const char *type = nmlp_json_string(nmlp_json_get(model, "type"));
    if (strcmp(type, "BPE") != 0 || nmlp_json_bool(nmlp_json_get(model, "byte_fallback"))) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: is no byte-level BPE, which is what can be exported from this file",
                  doc->origin);
        nmlp_fail_hint(err, "a sentencepiece tokenizer is exported from its tokenizer.model");
        return NMLP_E_UNSUPPORTED;
    }
    for (const nmlp_json *t = nmlp_json_first(nmlp_json_get(model, "vocab")); t; t = nmlp_json_next(t)) {
        const char *text = nmlp_json_key(t);
        struct token token = {.text = text, .len = strlen(text), .type = TYPE_NORMAL};
        NMLP_RETURN_IF_FAILED(set_token(v, doc->origin, (int64_t)nmlp_json_number(t), token, err));
    }
    for (const nmlp_json *t = nmlp_json_first(nmlp_json_get(doc->root, "added_tokens")); t; t = nmlp_json_next(t)) {
        const char *text = nmlp_json_string(nmlp_json_get(t, "content"));
        bool special = nmlp_json_bool(nmlp_json_get(t, "special"));
        struct token token = {.text = text, .len = strlen(text), .type = special ? TYPE_CONTROL : TYPE_USER_DEFINED};
        NMLP_RETURN_IF_FAILED(set_token(v, doc->origin, (int64_t)nmlp_json_number(nmlp_json_get(t, "id")), token, err));
    }
    return fill_gaps(v, err);
}

static nmlp_status add_bpe(nmlp_gguf_metadata *m, struct vocabulary *v, const char *path, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const char *split = NULL;
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    NMLP_TRY(read_vocab(v, &doc, err));
    NMLP_TRY(name_split(&doc, &split, err));
    nmlp_gguf_add_string(m, "tokenizer.ggml.model", "gpt2");
    nmlp_gguf_add_string(m, "tokenizer.ggml.pre", split);
    add_tokens(m, v, false);
    NMLP_TRY(add_merges(m, nmlp_json_get(nmlp_json_get(doc.root, "model"), "merges")));
    bool template =
        !nmlp_json_is_null(nmlp_json_get(doc.root, "post_processor")) &&
        strcmp(nmlp_json_string(nmlp_json_get(nmlp_json_get(doc.root, "post_processor"), "type")), "ByteLevel") != 0;
    nmlp_gguf_add_bool(m, "tokenizer.ggml.add_bos_token", template);
out:
    nmlp_json_free(&doc);
    return st;
}

/* ---- sentencepiece ---- */

struct cursor {
    const unsigned char *at;
    const unsigned char *end;
};

static bool take_varint(struct cursor *c, uint64_t *value) {
    *value = 0;
    for (int shift = 0; c->at < c->end && shift < 64; shift += 7) {
        unsigned char byte = *c->at++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

/* The next field; its bytes, or its number. */
static bool take_field(struct cursor *c, uint64_t *field, struct cursor *bytes, uint64_t *number) {
    uint64_t tag, len;
    if (c->at == c->end || !take_varint(c, &tag)) return false;
    *field = tag >> 3;
    if ((tag & 7) == 0) return take_varint(c, number);
    if ((tag & 7) == 2) {
        if (!take_varint(c, &len)) return false;
    } else if ((tag & 7) == 5 || (tag & 7) == 1) {
        len = (tag & 7) == 5 ? 4 : 8;
    } else {
        return false;
    }
    if (len > (uint64_t)(c->end - c->at)) return false;
    *bytes = (struct cursor){c->at, c->at + len};
    c->at += len;
    return true;
}

static struct token read_piece(struct cursor piece) {
    struct token token = {.text = "", .type = TYPE_NORMAL};
    struct cursor bytes = {0};
    uint64_t field, number = 0;
    while (take_field(&piece, &field, &bytes, &number)) {
        if (field == 1) {
            token.text = (const char *)bytes.at;
            token.len = (size_t)(bytes.end - bytes.at);
        }
        if (field == 2 && bytes.end - bytes.at == 4) memcpy(&token.score, bytes.at, sizeof token.score);
        if (field == 3) token.type = (int)(number & 15);
    }
    return token;
}

static nmlp_status add_sentencepiece(nmlp_gguf_metadata *m, struct vocabulary *v, const char *path, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_str text;
    uint64_t field, number = 0;
    struct cursor bytes = {0};
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_file_read(&text, path, FILE_MAX_BYTES, err));
    struct cursor all = {(const unsigned char *)nmlp_str_text(&text),
                         (const unsigned char *)nmlp_str_text(&text) + text.len};
    int64_t id = 0;
    while (take_field(&all, &field, &bytes, &number))
        if (field == 1) NMLP_TRY(set_token(v, path, id++, read_piece(bytes), err));
    if (id == 0 || all.at != all.end) NMLP_TRY(nmlp_fail(err, NMLP_E_FORMAT, "%s: is no sentencepiece model", path));
    NMLP_TRY(fill_gaps(v, err));
    nmlp_gguf_add_string(m, "tokenizer.ggml.model", "llama");
    nmlp_gguf_add_string(m, "tokenizer.ggml.pre", "default");
    add_tokens(m, v, true);
    nmlp_gguf_add_bool(m, "tokenizer.ggml.add_bos_token", true);
out:
    nmlp_str_fini(&text);
    return st;
}

/* ---- what stands beside it ---- */

static nmlp_status add_template(nmlp_gguf_metadata *m, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_str text;
    nmlp_json_doc doc;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "chat_template.jinja", err));
    if (nmlp_file_exists(path)) {
        nmlp_str_init(&text);
        nmlp_status st = nmlp_file_read(&text, path, FILE_MAX_BYTES, err);
        if (st == NMLP_OK) nmlp_gguf_add_string(m, "tokenizer.chat_template", nmlp_str_text(&text));
        nmlp_str_fini(&text);
        return st;
    }
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "tokenizer_config.json", err));
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    const nmlp_json *template = nmlp_json_get(doc.root, "chat_template");
    if (nmlp_json_is_string(template)) nmlp_gguf_add_string(m, "tokenizer.chat_template", nmlp_json_string(template));
    nmlp_json_free(&doc);
    return NMLP_OK;
}

nmlp_status nmlp_gguf_tokenizer_add(nmlp_gguf_metadata *m, const char *dir, const nmlp_config *config, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    char bpe[PATH_MAX_BYTES], pieces[PATH_MAX_BYTES];
    struct vocabulary v = {.n = config->vocab};
    nmlp_arena_init(&v.arena);
    NMLP_TRY(nmlp_path_join(bpe, sizeof bpe, dir, "tokenizer.json", err));
    NMLP_TRY(nmlp_path_join(pieces, sizeof pieces, dir, "tokenizer.model", err));
    v.tokens = nmlp_arena_new(&v.arena, (size_t)v.n, sizeof *v.tokens, err);
    if (!v.tokens) NMLP_TRY(NMLP_E_NOMEM);
    if (nmlp_file_exists(pieces))
        NMLP_TRY(add_sentencepiece(m, &v, pieces, err));
    else if (nmlp_file_exists(bpe))
        NMLP_TRY(add_bpe(m, &v, bpe, err));
    else
        nmlp_gguf_add_string(m, "tokenizer.ggml.model", "none");
    if (config->bos_id >= 0) nmlp_gguf_add_u32(m, "tokenizer.ggml.bos_token_id", config->bos_id);
    if (config->n_stop_ids > 0) nmlp_gguf_add_u32(m, "tokenizer.ggml.eos_token_id", config->stop_ids[0]);
    NMLP_TRY(add_template(m, dir, err));
out:
    nmlp_arena_fini(&v.arena);
    return st;
}
