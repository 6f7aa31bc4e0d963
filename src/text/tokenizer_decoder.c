/* The decoder of tokenizer.json: how tokens become text. What it does to single tokens is done once, at loading. */
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"
#include "text/utf8.h"

static nmlp_status read_strip(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, bool fused,
                              nmlp_err *err) {
    const char *content;
    int64_t start = 0;
    int64_t stop = 0;
    uint32_t c = 0;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, part, "content", &content, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, part, "start", 0, 1 << 20, &start, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_int(doc, part, "stop", 0, 1 << 20, &stop, err));
    if (stop) return nmlp_tokenizer_refuse(doc, "decoder Strip option", "stop", "Strip at the start", err);
    if (!content[0] || nmlp_utf8_decode(content, strlen(content), &c) != (int)strlen(content))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: decoder Strip: \"content\" must be one character", doc->origin);
    if (fused) {
        t->decode.strip_char = c;
        t->decode.strip_start = (size_t)start;
    } else {
        t->decode.token_strip_char = c;
        t->decode.token_strip_start = (size_t)start;
    }
    return NMLP_OK;
}

static nmlp_status add_replace(nmlp_tokenizer *t, const nmlp_normalizer_spec *spec, nmlp_err *err) {
    if (!t->decode.replace) NMLP_RETURN_IF_FAILED(nmlp_normalizer_create(&t->decode.replace, err));
    return nmlp_normalizer_add(t->decode.replace, spec, err);
}

static nmlp_status read_replace(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    const nmlp_json *pattern = nmlp_json_get(part, "pattern");
    const nmlp_json *string = nmlp_json_get(pattern, "String");
    const nmlp_json *regex = nmlp_json_get(pattern, "Regex");
    nmlp_normalizer_spec spec = {.kind = NMLP_NORMALIZER_REPLACE, .literal = nmlp_json_is_string(string)};
    spec.pattern = nmlp_json_string(spec.literal ? string : regex);
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, part, "content", &spec.content, err));
    return add_replace(t, &spec, err);
}

static nmlp_status read_metaspace(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    nmlp_metaspace_prepend prepend;
    nmlp_normalizer_spec spec = {.kind = NMLP_NORMALIZER_REPLACE, .literal = true, .content = " "};
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, part, "replacement", &spec.pattern, err));
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_prepend(doc, part, &prepend, err));
    t->decode.drop_first_metaspace = prepend != NMLP_METASPACE_NEVER;
    return add_replace(t, &spec, err);
}

/* `fused`: what comes now sees the whole text. */
static nmlp_status read_decoder(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, bool *fused,
                                nmlp_err *err) {
    static const char supported[] = "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, Sequence";
    const nmlp_json *list;
    bool byte_bpe = t->model == NMLP_TOKENIZER_BYTE_BPE;
    if (nmlp_tokenizer_part_is(part, "Sequence")) {
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_need_list(doc, part, "decoders", &list, err));
        for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
            NMLP_RETURN_IF_FAILED(read_decoder(t, doc, p, fused, err));
        return NMLP_OK;
    }
    if (nmlp_tokenizer_part_is(part, "ByteLevel") && byte_bpe) return NMLP_OK;
    if (nmlp_tokenizer_part_is(part, "Fuse")) {
        *fused = true;
        return NMLP_OK;
    }
    if (byte_bpe || (*fused && !nmlp_tokenizer_part_is(part, "Strip")))
        return nmlp_tokenizer_refuse(doc, "decoder", nmlp_tokenizer_part_type(part),
                                     byte_bpe ? "ByteLevel for byte-level BPE" : "Strip after Fuse", err);
    if (nmlp_tokenizer_part_is(part, "ByteFallback")) {
        t->decode.byte_fallback = true;
        return NMLP_OK;
    }
    if (nmlp_tokenizer_part_is(part, "Strip")) return read_strip(t, doc, part, *fused, err);
    if (nmlp_tokenizer_part_is(part, "Replace")) return read_replace(t, doc, part, err);
    if (nmlp_tokenizer_part_is(part, "Metaspace")) return read_metaspace(t, doc, part, err);
    return nmlp_tokenizer_refuse(doc, "decoder", nmlp_tokenizer_part_type(part), supported, err);
}

nmlp_status nmlp_tokenizer_read_decoder(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    const nmlp_json *part = nmlp_json_get(doc->root, "decoder");
    bool fused = false;
    if (nmlp_json_is_null(part)) {
        t->decode.join_with_spaces = t->model != NMLP_TOKENIZER_BYTE_BPE;
        return NMLP_OK;
    }
    return read_decoder(t, doc, part, &fused, err);
}

/* Of all tokens together; large vocabularies have 3 MB. */
enum { DECODED_MAX_BYTES = 1 << 28 };

/* Appends the text of one token to t->decoded. */
static nmlp_status append_decoded(nmlp_tokenizer *t, const nmlp_token *token, nmlp_str *scratch, nmlp_err *err) {
    const char *text = token->text;
    size_t len = token->len;
    if (t->decode.replace) {
        NMLP_RETURN_IF_FAILED(nmlp_normalizer_run(t->decode.replace, text, len, scratch, err));
        text = nmlp_str_text(scratch);
        len = scratch->len;
    }
    for (size_t i = 0; i < t->decode.token_strip_start && len; i++) {
        uint32_t c = 0;
        int n = nmlp_utf8_decode(text, len, &c);
        if (n <= 0 || c != t->decode.token_strip_char) break;
        text += n;
        len -= (size_t)n;
    }
    nmlp_str_append(&t->decoded, text, len);
    return nmlp_str_status(&t->decoded, err);
}

nmlp_status nmlp_tokenizer_decode_entries(nmlp_tokenizer *t, const char *origin, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_str scratch;
    if (t->model == NMLP_TOKENIZER_BYTE_BPE) return NMLP_OK;
    nmlp_str_init(&scratch);
    size_t *begins = nmlp_mem_new((size_t)t->n_ids + 1, sizeof *begins, err);
    if (!begins) return NMLP_E_NOMEM;
    for (int64_t id = 0; id < t->n_ids && st == NMLP_OK; id++) {
        begins[id] = t->decoded.len;
        if (t->tokens[id].flags) st = append_decoded(t, &t->tokens[id], &scratch, err); /* ids may have gaps */
        if (st == NMLP_OK && t->decoded.len > DECODED_MAX_BYTES)
            st = nmlp_fail(err, NMLP_E_LIMIT, "%s: the decoder makes more than %d bytes of the vocabulary", origin,
                           DECODED_MAX_BYTES);
    }
    begins[t->n_ids] = t->decoded.len;
    for (int64_t id = 0; id < t->n_ids && st == NMLP_OK; id++) {
        t->tokens[id].text = nmlp_str_text(&t->decoded) + begins[id];
        t->tokens[id].len = (uint32_t)(begins[id + 1] - begins[id]);
    }
    for (int byte = 0; byte < 256 && st == NMLP_OK && t->decode.byte_fallback; byte++) {
        int32_t id = t->byte_ids[byte];
        if (id < 0) continue;
        t->tokens[id].text = nmlp_arena_strndup(&t->arena, (const char[]){(char)byte, 0}, 1, err);
        if (!t->tokens[id].text) st = NMLP_E_NOMEM;
        t->tokens[id].len = 1;
        t->tokens[id].flags |= NMLP_TOKEN_BYTE;
    }
    nmlp_mem_free(begins);
    nmlp_str_fini(&scratch);
    return st;
}
