/* From a GGUF file to tokenizer.json or tokenizer.model. */
#include <inttypes.h>
#include <string.h>

#include "base/json_write.h"
#include "gguf/gguf_tokenizer.h"

enum { PATH_MAX_BYTES = 4096, TOKENS_MAX = 1 << 24 };
enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_BYTE = 6 };

/* Of Llama 3 and of Qwen, as their tokenizer.json have them; GPT-2's is the byte-level pre-tokenizer's own. */
#define LETTERS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const nmlp_gguf_split *nmlp_gguf_split_at(size_t i) {
    static const nmlp_gguf_split splits[] = {
        {"llama-bpe", LETTERS "\\p{N}{1,3}" REST, true},    {"llama3", LETTERS "\\p{N}{1,3}" REST, true},
        {"llama-v3", LETTERS "\\p{N}{1,3}" REST, true},     {"qwen2", LETTERS "\\p{N}" REST, false},
        {"deepseek-r1-qwen", LETTERS "\\p{N}" REST, false}, {"gpt-2", NULL, false},
    };
    return i < sizeof splits / sizeof splits[0] ? &splits[i] : NULL;
}

static nmlp_status find_split(nmlp_gguf *file, const nmlp_gguf_split **split, nmlp_err *err) {
    const char *name;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_string(file, "tokenizer.ggml.pre", &name, err));
    for (size_t i = 0; name && (*split = nmlp_gguf_split_at(i)); i++)
        if (strcmp((*split)->name, name) == 0) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                     "%s: tokenizer.ggml.pre \"%.40s\" is not supported; supported are llama-bpe, qwen2, gpt-2",
                     file->origin, name ? name : "");
}

static nmlp_status save_text(const char *dir, const char *name, const nmlp_str *text, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_str_status(text, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, name, err));
    return nmlp_file_write_text(path, nmlp_str_text(text), text->len, err);
}

/* Token by token, with its type and score where there are any. */
struct tokens {
    nmlp_gguf_items texts, types, scores;
    bool has_types, has_scores;
};

struct token {
    const char *text;
    size_t len;
    int type;
    float score;
};

static nmlp_status open_tokens(struct tokens *t, const nmlp_gguf *file, nmlp_err *err) {
    nmlp_err absent;
    *t = (struct tokens){0};
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_items(file, "tokenizer.ggml.tokens", NMLP_GGUF_STRING, &t->texts, err));
    if (t->texts.left > TOKENS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: %" PRIu64 " tokens; at most %d", file->origin, t->texts.left,
                         TOKENS_MAX);
    t->has_types = nmlp_gguf_get_items(file, "tokenizer.ggml.token_type", NMLP_GGUF_I32, &t->types, &absent) == NMLP_OK;
    t->has_scores = nmlp_gguf_get_items(file, "tokenizer.ggml.scores", NMLP_GGUF_F32, &t->scores, &absent) == NMLP_OK;
    return NMLP_OK;
}

static bool next_token(struct tokens *t, struct token *token) {
    double type = TYPE_NORMAL, score = 0;
    if (t->has_types) (void)nmlp_gguf_next_number(&t->types, &type);
    if (t->has_scores) (void)nmlp_gguf_next_number(&t->scores, &score);
    token->type = type >= 0 && type < 16 ? (int)type : TYPE_NORMAL;
    token->score = (float)score;
    return nmlp_gguf_next_string(&t->texts, &token->text, &token->len);
}

/* ---- byte-level BPE ---- */

static nmlp_status put_added(nmlp_json_writer *w, const nmlp_gguf *file, nmlp_err *err) {
    struct tokens tokens;
    struct token token;
    NMLP_RETURN_IF_FAILED(open_tokens(&tokens, file, err));
    nmlp_json_begin_array(w, "added_tokens");
    for (int64_t id = 0; next_token(&tokens, &token); id++) {
        if (token.type != TYPE_CONTROL && token.type != TYPE_USER_DEFINED) continue;
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_int(w, "id", id);
        nmlp_json_put_bytes(w, "content", token.text, token.len);
        nmlp_json_put_bool(w, "single_word", false);
        nmlp_json_put_bool(w, "lstrip", false);
        nmlp_json_put_bool(w, "rstrip", false);
        nmlp_json_put_bool(w, "normalized", false);
        nmlp_json_put_bool(w, "special", token.type == TYPE_CONTROL);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    return NMLP_OK;
}

static void put_byte_level(nmlp_json_writer *w, const char *key, bool use_regex) {
    nmlp_json_begin_object(w, key);
    nmlp_json_put_string(w, "type", "ByteLevel");
    nmlp_json_put_bool(w, "add_prefix_space", false);
    nmlp_json_put_bool(w, "trim_offsets", true);
    nmlp_json_put_bool(w, "use_regex", use_regex);
    nmlp_json_end_object(w);
}

static void put_split(nmlp_json_writer *w, const nmlp_gguf_split *split) {
    if (!split->regex) {
        put_byte_level(w, "pre_tokenizer", true);
        return;
    }
    nmlp_json_begin_object(w, "pre_tokenizer");
    nmlp_json_put_string(w, "type", "Sequence");
    nmlp_json_begin_array(w, "pretokenizers");
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "type", "Split");
    nmlp_json_begin_object(w, "pattern");
    nmlp_json_put_string(w, "Regex", split->regex);
    nmlp_json_end_object(w);
    nmlp_json_put_string(w, "behavior", "Isolated");
    nmlp_json_put_bool(w, "invert", false);
    nmlp_json_end_object(w);
    put_byte_level(w, NULL, false);
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
}

static nmlp_status put_model(nmlp_json_writer *w, nmlp_gguf *file, const nmlp_gguf_split *split, nmlp_err *err) {
    struct tokens tokens;
    struct token token;
    nmlp_gguf_items merges;
    NMLP_RETURN_IF_FAILED(open_tokens(&tokens, file, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_items(file, "tokenizer.ggml.merges", NMLP_GGUF_STRING, &merges, err));
    nmlp_json_begin_object(w, "model");
    nmlp_json_put_string(w, "type", "BPE");
    nmlp_json_put_bool(w, "ignore_merges", split->ignore_merges);
    nmlp_json_begin_object(w, "vocab");
    for (int64_t id = 0; next_token(&tokens, &token); id++) {
        char *key = nmlp_arena_strndup(&file->arena, token.text, token.len, err);
        if (!key) return NMLP_E_NOMEM;
        if (token.type != TYPE_CONTROL && token.type != TYPE_USER_DEFINED) nmlp_json_put_int(w, key, id);
    }
    nmlp_json_end_object(w);
    nmlp_json_begin_array(w, "merges");
    for (const char *text; nmlp_gguf_next_string(&merges, &text, &token.len);)
        nmlp_json_put_bytes(w, NULL, text, token.len);
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
    return NMLP_OK;
}

static nmlp_status save_bpe(nmlp_gguf *file, const char *dir, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_gguf_split *split;
    nmlp_json_writer w;
    nmlp_str text;
    NMLP_RETURN_IF_FAILED(find_split(file, &split, err));
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "version", "1.0");
    NMLP_TRY(put_added(&w, file, err));
    nmlp_json_put_null(&w, "normalizer");
    put_split(&w, split);
    put_byte_level(&w, "decoder", true);
    NMLP_TRY(put_model(&w, file, split, err));
    nmlp_json_end_object(&w);
    NMLP_TRY(save_text(dir, "tokenizer.json", &text, err));
out:
    nmlp_str_fini(&text);
    return st;
}

/* ---- sentencepiece: the protobuf messages ModelProto, SentencePiece, TrainerSpec, NormalizerSpec ---- */

static void put_varint(nmlp_str *out, uint64_t value) {
    for (; value >= 128; value >>= 7) nmlp_str_putc(out, (char)(value | 128));
    nmlp_str_putc(out, (char)value);
}

static void put_number_field(nmlp_str *out, int field, uint64_t value) {
    put_varint(out, (uint64_t)field << 3);
    put_varint(out, value);
}

static void put_bytes_field(nmlp_str *out, int field, const char *bytes, size_t len) {
    put_varint(out, (uint64_t)field << 3 | 2);
    put_varint(out, len);
    nmlp_str_append(out, bytes, len);
}

static void put_piece(nmlp_str *out, nmlp_str *piece, const struct token *token) {
    nmlp_str_clear(piece);
    put_bytes_field(piece, 1, token->text, token->len);
    put_varint(piece, 2 << 3 | 5);
    nmlp_gguf_put_f32(piece, token->score);
    put_number_field(piece, 3, (uint64_t)token->type);
    put_bytes_field(out, 1, nmlp_str_text(piece), piece->len);
}

static nmlp_status put_specs(nmlp_str *out, nmlp_str *spec, const nmlp_gguf *file, bool has_bytes, nmlp_err *err) {
    int64_t ids[3] = {0, 1, 2};
    bool prefix = true;
    static const char *const keys[] = {"tokenizer.ggml.unknown_token_id", "tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.eos_token_id"};
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_bool(file, "tokenizer.ggml.add_space_prefix", &prefix, err));
    nmlp_str_clear(spec);
    put_number_field(spec, 3, 2);          /* BPE */
    put_number_field(spec, 35, has_bytes); /* byte_fallback */
    for (int i = 0; i < 3; i++) {
        NMLP_RETURN_IF_FAILED(nmlp_gguf_get_int(file, keys[i], 0, TOKENS_MAX, &ids[i], err));
        put_number_field(spec, 40 + i, (uint64_t)ids[i]);
    }
    put_bytes_field(out, 2, nmlp_str_text(spec), spec->len);
    nmlp_str_clear(spec);
    put_bytes_field(spec, 1, "identity", 8);
    put_number_field(spec, 3, prefix);
    put_number_field(spec, 4, 0); /* spaces stay as they are */
    put_number_field(spec, 5, 1);
    put_bytes_field(out, 3, nmlp_str_text(spec), spec->len);
    return NMLP_OK;
}

static nmlp_status save_sentencepiece(nmlp_gguf *file, const char *dir, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct tokens tokens;
    struct token token;
    nmlp_str text, part;
    nmlp_str_init(&text);
    nmlp_str_init(&part);
    NMLP_TRY(open_tokens(&tokens, file, err));
    bool has_bytes = false;
    while (next_token(&tokens, &token)) {
        put_piece(&text, &part, &token);
        has_bytes = has_bytes || token.type == TYPE_BYTE;
    }
    NMLP_TRY(put_specs(&text, &part, file, has_bytes, err));
    NMLP_TRY(nmlp_str_status(&part, err));
    NMLP_TRY(save_text(dir, "tokenizer.model", &text, err));
out:
    nmlp_str_fini(&part);
    nmlp_str_fini(&text);
    return st;
}

/* ---- what stands beside it ---- */

static nmlp_status put_token_name(nmlp_json_writer *w, const char *key, const nmlp_gguf *file, const char *id_key,
                                  nmlp_err *err) {
    int64_t id = -1;
    struct tokens tokens;
    struct token token;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_int(file, id_key, 0, TOKENS_MAX, &id, err));
    if (id < 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(open_tokens(&tokens, file, err));
    for (int64_t i = 0; next_token(&tokens, &token); i++)
        if (i == id) nmlp_json_put_bytes(w, key, token.text, token.len);
    return NMLP_OK;
}

static nmlp_status save_config(nmlp_gguf *file, const char *dir, bool add_bos, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const char *template;
    bool add_eos = false;
    nmlp_json_writer w;
    nmlp_str text;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_string(file, "tokenizer.chat_template", &template, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_bool(file, "tokenizer.ggml.add_bos_token", &add_bos, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_bool(file, "tokenizer.ggml.add_eos_token", &add_eos, err));
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_bool(&w, "add_bos_token", add_bos);
    nmlp_json_put_bool(&w, "add_eos_token", add_eos);
    NMLP_TRY(put_token_name(&w, "bos_token", file, "tokenizer.ggml.bos_token_id", err));
    NMLP_TRY(put_token_name(&w, "eos_token", file, "tokenizer.ggml.eos_token_id", err));
    if (template) nmlp_json_put_string(&w, "chat_template", template);
    nmlp_json_end_object(&w);
    NMLP_TRY(save_text(dir, "tokenizer_config.json", &text, err));
out:
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_gguf_tokenizer_save(nmlp_gguf *file, const char *dir, nmlp_err *err) {
    const char *model, *pre;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_string(file, "tokenizer.ggml.model", &model, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_string(file, "tokenizer.ggml.pre", &pre, err));
    if (!model || strcmp(model, "none") == 0 || strcmp(model, "no_vocab") == 0) return NMLP_OK;
    bool bpe = strcmp(model, "gpt2") == 0;
    if (!bpe && strcmp(model, "llama") != 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tokenizer.ggml.model \"%.40s\" is not supported; supported are gpt2, llama", file->origin,
                         model);
    NMLP_RETURN_IF_FAILED(bpe ? save_bpe(file, dir, err) : save_sentencepiece(file, dir, err));
    /* Where the file does not say: as llama.cpp takes it. */
    bool add_bos = !bpe || (pre && strncmp(pre, "llama", 5) == 0);
    return save_config(file, dir, add_bos, err);
}
