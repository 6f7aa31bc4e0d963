/* The other parts of tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder. What is not known is refused:
 * a tokenizer that almost works feeds a model ids it was never trained on. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer_internal.h"

nmlp_status nmlp_tokenizer_refuse(const nmlp_json_doc *doc, const char *part, const char *type, const char *supported,
                                  nmlp_err *err) {
    if (!type)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %s has no type (supported: %s)", doc->origin, part, supported);
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %s \"%.100s\" is not supported (supported: %s)", doc->origin, part,
                     type, supported);
}

const char *nmlp_tokenizer_part_type(const nmlp_json *part) {
    const nmlp_json *type = nmlp_json_get(part, "type");
    return nmlp_json_is_string(type) ? nmlp_json_string(type) : NULL;
}

static bool is_type(const nmlp_json *part, const char *wanted) {
    const char *type = nmlp_tokenizer_part_type(part);
    return type && strcmp(type, wanted) == 0;
}

/* The members of a Sequence, under the name this kind of part uses. */
static nmlp_status need_list(const nmlp_json_doc *doc, const nmlp_json *part, const char *key, const nmlp_json **list,
                             nmlp_err *err) {
    *list = nmlp_json_get(part, key);
    if (nmlp_json_is_array(*list)) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be an array", doc->origin, key);
}

static nmlp_status read_normalizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    const nmlp_json *list;
    if (nmlp_json_is_null(part)) return NMLP_OK;
    if (is_type(part, "NFC")) {
        t->nfc = true;
        return NMLP_OK;
    }
    if (!is_type(part, "Sequence"))
        return nmlp_tokenizer_refuse(doc, "normalizer", nmlp_tokenizer_part_type(part), "NFC, Sequence", err);
    NMLP_RETURN_IF_FAILED(need_list(doc, part, "normalizers", &list, err));
    for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
        NMLP_RETURN_IF_FAILED(read_normalizer(t, doc, p, err));
    return NMLP_OK;
}

static nmlp_status read_behavior(const nmlp_json_doc *doc, const nmlp_json *part, nmlp_split_behavior *out,
                                 nmlp_err *err) {
    static const char *const names[] = {
        [NMLP_SPLIT_ISOLATED] = "Isolated",
        [NMLP_SPLIT_REMOVED] = "Removed",
        [NMLP_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [NMLP_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [NMLP_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, part, "behavior", &name, err));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (nmlp_split_behavior)i;
            return NMLP_OK;
        }
    }
    return nmlp_tokenizer_refuse(doc, "Split behavior", name,
                                 "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous", err);
}

static nmlp_status add_step(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_split_spec *spec, nmlp_err *err) {
    nmlp_status st = nmlp_pretokenizer_add(t->pre, spec, err);
    if (st != NMLP_OK) nmlp_fail_context(err, "%s: pre_tokenizer", doc->origin);
    return st;
}

static nmlp_status add_split(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    nmlp_split_spec spec = {0};
    const nmlp_json *pattern = nmlp_json_get(part, "pattern");
    const nmlp_json *regex = nmlp_json_get(pattern, "Regex");
    const nmlp_json *literal = nmlp_json_get(pattern, "String");
    if (!nmlp_json_is_string(regex) && !nmlp_json_is_string(literal))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: Split: key \"pattern\" must be {\"Regex\": ...} or {\"String\": ...}",
                         doc->origin);
    spec.literal = !nmlp_json_is_string(regex);
    spec.pattern = nmlp_json_string(spec.literal ? literal : regex);
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "invert", &spec.invert, err));
    NMLP_RETURN_IF_FAILED(read_behavior(doc, part, &spec.behavior, err));
    return add_step(t, doc, &spec, err);
}

static nmlp_status add_byte_level(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    bool use_regex = true;
    nmlp_split_spec spec = {.behavior = NMLP_SPLIT_ISOLATED, .prefix_space = true};
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "use_regex", &use_regex, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "add_prefix_space", &spec.prefix_space, err));
    if (use_regex) spec.pattern = nmlp_split_gpt2_pattern;
    if (!spec.pattern && !spec.prefix_space) return NMLP_OK;
    return add_step(t, doc, &spec, err);
}

/* ByteLevel turns text into letters of the byte alphabet. Here pieces stay bytes, which is the same as long as it comes
 * last. */
static nmlp_status read_pretokenizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part,
                                     bool *byte_level, nmlp_err *err) {
    static const char supported[] = "ByteLevel, Split, Sequence; ByteLevel last";
    const nmlp_json *list;
    if (nmlp_json_is_null(part)) return NMLP_OK;
    if (is_type(part, "Sequence")) {
        NMLP_RETURN_IF_FAILED(need_list(doc, part, "pretokenizers", &list, err));
        for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
            NMLP_RETURN_IF_FAILED(read_pretokenizer(t, doc, p, byte_level, err));
        return NMLP_OK;
    }
    if (!is_type(part, "ByteLevel") && !is_type(part, "Split"))
        return nmlp_tokenizer_refuse(doc, "pre_tokenizer", nmlp_tokenizer_part_type(part), supported, err);
    if (*byte_level)
        return nmlp_tokenizer_refuse(doc, "pre_tokenizer after ByteLevel:", nmlp_tokenizer_part_type(part), supported,
                                     err);
    if (is_type(part, "Split")) return add_split(t, doc, part, err);
    *byte_level = true;
    return add_byte_level(t, doc, part, err);
}

static nmlp_status push_prefix(nmlp_tokenizer *t, const nmlp_json_doc *doc, int64_t id, nmlp_err *err) {
    if (id >= t->n_ids || !t->tokens[id].flags)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: id %" PRId64 " is not in the vocabulary",
                         doc->origin, id);
    t->prefix_ids[t->n_prefix_ids++] = (int32_t)id;
    return NMLP_OK;
}

static nmlp_status add_template_token(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *special_tokens,
                                      const nmlp_json *piece, nmlp_err *err) {
    const char *name;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, piece, "id", &name, err));
    const nmlp_json *ids = nmlp_json_get(nmlp_json_get(special_tokens, name), "ids");
    if (!nmlp_json_first(ids))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: special_tokens has no ids for \"%.80s\"",
                         doc->origin, name);
    size_t n = t->n_prefix_ids + nmlp_json_count(ids);
    int32_t *grown = nmlp_mem_new(n, sizeof *grown, err);
    if (!grown) return NMLP_E_NOMEM;
    if (t->n_prefix_ids) memcpy(grown, t->prefix_ids, t->n_prefix_ids * sizeof *grown);
    nmlp_mem_free(t->prefix_ids);
    t->prefix_ids = grown;
    for (const nmlp_json *v = nmlp_json_first(ids); v; v = nmlp_json_next(v)) {
        int64_t id;
        if (!nmlp_json_int_in(v, 0, NMLP_VOCAB_MAX - 1, &id))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: ids of \"%.80s\" must be token ids",
                             doc->origin, name);
        NMLP_RETURN_IF_FAILED(push_prefix(t, doc, id, err));
    }
    return NMLP_OK;
}

static nmlp_status read_template(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    const nmlp_json *list;
    bool text_seen = false;
    NMLP_RETURN_IF_FAILED(need_list(doc, part, "single", &list, err));
    for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p)) {
        const nmlp_json *token = nmlp_json_get(p, "SpecialToken");
        const nmlp_json *sequence = nmlp_json_get(p, "Sequence");
        if (!token == !sequence)
            return nmlp_fail(err, NMLP_E_FORMAT,
                             "%s: TemplateProcessing: \"single\" holds SpecialToken and Sequence only", doc->origin);
        if (text_seen)
            return nmlp_tokenizer_refuse(doc, "TemplateProcessing with something behind the text:",
                                         nmlp_json_string(nmlp_json_get(token ? token : sequence, "id")),
                                         "tokens in front", err);
        if (token) NMLP_RETURN_IF_FAILED(add_template_token(t, doc, nmlp_json_get(part, "special_tokens"), token, err));
        text_seen = sequence != NULL;
    }
    if (text_seen) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: \"single\" has no Sequence, where the text goes",
                     doc->origin);
}

static nmlp_status read_post_processor(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part,
                                       nmlp_err *err) {
    const nmlp_json *list;
    if (nmlp_json_is_null(part) || is_type(part, "ByteLevel")) return NMLP_OK; /* ByteLevel moves offsets only */
    if (is_type(part, "TemplateProcessing")) {
        if (t->n_prefix_ids)
            return nmlp_tokenizer_refuse(doc, "post_processor", "TemplateProcessing twice", "one template", err);
        return read_template(t, doc, part, err);
    }
    if (!is_type(part, "Sequence"))
        return nmlp_tokenizer_refuse(doc, "post_processor", nmlp_tokenizer_part_type(part),
                                     "ByteLevel, TemplateProcessing, Sequence", err);
    NMLP_RETURN_IF_FAILED(need_list(doc, part, "processors", &list, err));
    for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
        NMLP_RETURN_IF_FAILED(read_post_processor(t, doc, p, err));
    return NMLP_OK;
}

static nmlp_status check_decoder(const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    const nmlp_json *list;
    if (nmlp_json_is_null(part) || is_type(part, "ByteLevel")) return NMLP_OK;
    if (!is_type(part, "Sequence"))
        return nmlp_tokenizer_refuse(doc, "decoder", nmlp_tokenizer_part_type(part), "ByteLevel, Sequence", err);
    NMLP_RETURN_IF_FAILED(need_list(doc, part, "decoders", &list, err));
    for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
        NMLP_RETURN_IF_FAILED(check_decoder(doc, p, err));
    return NMLP_OK;
}

nmlp_status nmlp_tokenizer_read_normalizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    return read_normalizer(t, doc, nmlp_json_get(doc->root, "normalizer"), err);
}

nmlp_status nmlp_tokenizer_read_parts(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    bool byte_level = false;
    NMLP_RETURN_IF_FAILED(nmlp_pretokenizer_create(&t->pre, err));
    NMLP_RETURN_IF_FAILED(read_pretokenizer(t, doc, nmlp_json_get(doc->root, "pre_tokenizer"), &byte_level, err));
    if (!byte_level)
        return nmlp_tokenizer_refuse(doc, "pre_tokenizer", "without ByteLevel",
                                     "ByteLevel, or a Sequence that ends with it", err);
    NMLP_RETURN_IF_FAILED(read_post_processor(t, doc, nmlp_json_get(doc->root, "post_processor"), err));
    return check_decoder(doc, nmlp_json_get(doc->root, "decoder"), err);
}
