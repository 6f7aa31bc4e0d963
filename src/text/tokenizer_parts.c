/* Parts of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor. What is not known is refused: a
 * tokenizer that almost works feeds a model ids it was never trained on. */
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

bool nmlp_tokenizer_part_is(const nmlp_json *part, const char *wanted) {
    const char *type = nmlp_tokenizer_part_type(part);
    return type && strcmp(type, wanted) == 0;
}

nmlp_status nmlp_tokenizer_need_list(const nmlp_json_doc *doc, const nmlp_json *part, const char *key,
                                     const nmlp_json **list, nmlp_err *err) {
    *list = nmlp_json_get(part, key);
    if (nmlp_json_is_array(*list)) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be an array", doc->origin, key);
}

/* {"Regex": ...} or {"String": ...} */
static nmlp_status read_pattern(const nmlp_json_doc *doc, const nmlp_json *part, const char **pattern, bool *literal,
                                nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(part, "pattern");
    const nmlp_json *regex = nmlp_json_get(value, "Regex");
    const nmlp_json *string = nmlp_json_get(value, "String");
    if (!nmlp_json_is_string(regex) && !nmlp_json_is_string(string))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: %.40s: key \"pattern\" must be {\"Regex\": ...} or {\"String\": ...}",
                         doc->origin, nmlp_tokenizer_part_type(part));
    *literal = !nmlp_json_is_string(regex);
    *pattern = nmlp_json_string(*literal ? string : regex);
    return NMLP_OK;
}

/* Bytes of base64, which may end early; -1 for a letter outside its alphabet. */
static int base64_value(char c) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : -1;
}

bool nmlp_base64_append(nmlp_str *out, const char *text, size_t len) {
    uint32_t bits = 0;
    int n_bits = 0;
    while (len && text[len - 1] == '=') len--;
    for (size_t i = 0; i < len; i++) {
        int value = base64_value(text[i]);
        if (value < 0) return false;
        bits = bits << 6 | (uint32_t)value;
        n_bits += 6;
        if (n_bits >= 8) {
            n_bits -= 8;
            nmlp_str_putc(out, (char)(bits >> n_bits & 255));
        }
    }
    return true;
}

static nmlp_status add_precompiled(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(part, "precompiled_charsmap");
    nmlp_normalizer_spec spec = {.kind = NMLP_NORMALIZER_PRECOMPILED};
    nmlp_str bytes;
    nmlp_str_init(&bytes);
    nmlp_status st = NMLP_OK;
    const char *text = nmlp_json_string(value);
    if (!nmlp_base64_append(&bytes, text, strlen(text)))
        st = nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"precompiled_charsmap\" must be base64", doc->origin);
    if (st == NMLP_OK) st = nmlp_str_status(&bytes, err);
    spec.charsmap = bytes.data;
    spec.charsmap_len = bytes.len;
    if (st == NMLP_OK) st = nmlp_normalizer_add(t->normalizer, &spec, err);
    nmlp_str_fini(&bytes);
    return st;
}

typedef struct form_name {
    const char *type;
    nmlp_unicode_form form;
} form_name;

static const form_name form_names[] = {
    {"NFC", NMLP_UNICODE_NFC}, {"NFD", NMLP_UNICODE_NFD}, {"NFKC", NMLP_UNICODE_NFKC}, {"NFKD", NMLP_UNICODE_NFKD}};

/* All but Sequence and Precompiled. */
static nmlp_status read_normalizer_spec(const nmlp_json_doc *doc, const nmlp_json *part, nmlp_normalizer_spec *spec,
                                        nmlp_err *err) {
    for (size_t i = 0; i < sizeof form_names / sizeof form_names[0]; i++) {
        if (!nmlp_tokenizer_part_is(part, form_names[i].type)) continue;
        *spec = (nmlp_normalizer_spec){.kind = NMLP_NORMALIZER_FORM, .form = form_names[i].form};
        return NMLP_OK;
    }
    if (nmlp_tokenizer_part_is(part, "Lowercase")) {
        spec->kind = NMLP_NORMALIZER_LOWERCASE;
        return NMLP_OK;
    }
    if (nmlp_tokenizer_part_is(part, "Strip")) {
        *spec = (nmlp_normalizer_spec){.kind = NMLP_NORMALIZER_STRIP, .left = true, .right = true};
        NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "strip_left", &spec->left, err));
        return nmlp_json_optional_bool(doc, part, "strip_right", &spec->right, err);
    }
    if (nmlp_tokenizer_part_is(part, "Prepend")) {
        spec->kind = NMLP_NORMALIZER_PREPEND;
        return nmlp_json_need_string(doc, part, "prepend", &spec->content, err);
    }
    if (nmlp_tokenizer_part_is(part, "Replace")) {
        spec->kind = NMLP_NORMALIZER_REPLACE;
        NMLP_RETURN_IF_FAILED(read_pattern(doc, part, &spec->pattern, &spec->literal, err));
        return nmlp_json_need_string(doc, part, "content", &spec->content, err);
    }
    return nmlp_tokenizer_refuse(doc, "normalizer", nmlp_tokenizer_part_type(part),
                                 "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Replace, Prepend, Precompiled, Sequence",
                                 err);
}

static nmlp_status read_normalizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    const nmlp_json *list;
    nmlp_normalizer_spec spec = {0};
    if (nmlp_json_is_null(part)) return NMLP_OK;
    if (nmlp_tokenizer_part_is(part, "Sequence")) {
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_need_list(doc, part, "normalizers", &list, err));
        for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
            NMLP_RETURN_IF_FAILED(read_normalizer(t, doc, p, err));
        return NMLP_OK;
    }
    nmlp_status st = NMLP_OK;
    if (nmlp_tokenizer_part_is(part, "Precompiled")) {
        st = add_precompiled(t, doc, part, err);
    } else {
        NMLP_RETURN_IF_FAILED(read_normalizer_spec(doc, part, &spec, err));
        st = nmlp_normalizer_add(t->normalizer, &spec, err);
    }
    if (st != NMLP_OK) nmlp_fail_context(err, "%s: normalizer", doc->origin);
    return st;
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
    NMLP_RETURN_IF_FAILED(read_pattern(doc, part, &spec.pattern, &spec.literal, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "invert", &spec.invert, err));
    NMLP_RETURN_IF_FAILED(read_behavior(doc, part, &spec.behavior, err));
    return add_step(t, doc, &spec, err);
}

static nmlp_status add_digits(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    bool individual = false;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "individual_digits", &individual, err));
    const nmlp_split_spec spec = {.pattern = "\\p{N}",
                                  .behavior = individual ? NMLP_SPLIT_ISOLATED : NMLP_SPLIT_CONTIGUOUS};
    return add_step(t, doc, &spec, err);
}

nmlp_status nmlp_tokenizer_read_prepend(const nmlp_json_doc *doc, const nmlp_json *part, nmlp_metaspace_prepend *out,
                                        nmlp_err *err) {
    static const char *const names[] = {
        [NMLP_METASPACE_NEVER] = "never", [NMLP_METASPACE_FIRST] = "first", [NMLP_METASPACE_ALWAYS] = "always"};
    bool prefix = true;
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "add_prefix_space", &prefix, err));
    *out = prefix ? NMLP_METASPACE_ALWAYS : NMLP_METASPACE_NEVER;
    const char *name = nmlp_json_string(nmlp_json_get(part, "prepend_scheme"));
    if (!name[0]) return NMLP_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (nmlp_metaspace_prepend)i;
        return NMLP_OK;
    }
    return nmlp_tokenizer_refuse(doc, "Metaspace prepend_scheme", name, "never, first, always", err);
}

static nmlp_status add_metaspace(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    bool split = true;
    nmlp_split_spec spec = {.literal = true, .behavior = NMLP_SPLIT_MERGED_WITH_NEXT};
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, part, "replacement", &spec.metaspace, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, part, "split", &split, err));
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_read_prepend(doc, part, &spec.metaspace_prepend, err));
    if (split) spec.pattern = spec.metaspace;
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

typedef struct pretokenizer_reader {
    const char *type;
    nmlp_status (*add)(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err);
} pretokenizer_reader;

static const pretokenizer_reader pretokenizer_readers[] = {
    {"ByteLevel", add_byte_level}, {"Split", add_split}, {"Digits", add_digits}, {"Metaspace", add_metaspace}};

/* ByteLevel turns text into letters of the byte alphabet. Here pieces stay bytes, which is the same as long as it comes
 * last. */
static nmlp_status read_pretokenizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part,
                                     bool *byte_level, nmlp_err *err) {
    static const char supported[] = "ByteLevel, Split, Digits, Metaspace, Sequence; ByteLevel last";
    const nmlp_json *list;
    if (nmlp_json_is_null(part)) return NMLP_OK;
    if (nmlp_tokenizer_part_is(part, "Sequence")) {
        NMLP_RETURN_IF_FAILED(nmlp_tokenizer_need_list(doc, part, "pretokenizers", &list, err));
        for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
            NMLP_RETURN_IF_FAILED(read_pretokenizer(t, doc, p, byte_level, err));
        return NMLP_OK;
    }
    const pretokenizer_reader *reader = NULL;
    for (size_t i = 0; i < sizeof pretokenizer_readers / sizeof pretokenizer_readers[0]; i++)
        if (nmlp_tokenizer_part_is(part, pretokenizer_readers[i].type)) reader = &pretokenizer_readers[i];
    if (!reader) return nmlp_tokenizer_refuse(doc, "pre_tokenizer", nmlp_tokenizer_part_type(part), supported, err);
    if (*byte_level)
        return nmlp_tokenizer_refuse(doc, "pre_tokenizer after ByteLevel:", nmlp_tokenizer_part_type(part), supported,
                                     err);
    *byte_level = nmlp_tokenizer_part_is(part, "ByteLevel");
    return reader->add(t, doc, part, err);
}

static bool has_byte_level(const nmlp_json *part) {
    if (nmlp_tokenizer_part_is(part, "ByteLevel")) return true;
    const nmlp_json *list = nmlp_json_get(part, "pretokenizers");
    for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
        if (has_byte_level(p)) return true;
    return false;
}

bool nmlp_tokenizer_is_byte_level(const nmlp_json_doc *doc) {
    return has_byte_level(nmlp_json_get(doc->root, "pre_tokenizer"));
}

static nmlp_status push_template_id(nmlp_tokenizer *t, const nmlp_json_doc *doc, int64_t id, nmlp_ids *side,
                                    nmlp_err *err) {
    if (id >= t->n_ids || !t->tokens[id].flags)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: id %" PRId64 " is not in the vocabulary",
                         doc->origin, id);
    return nmlp_ids_push(side, (int32_t)id, err);
}

static nmlp_status add_template_token(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *special_tokens,
                                      const nmlp_json *piece, nmlp_ids *side, nmlp_err *err) {
    const char *name;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, piece, "id", &name, err));
    const nmlp_json *ids = nmlp_json_get(nmlp_json_get(special_tokens, name), "ids");
    if (!nmlp_json_first(ids))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: special_tokens has no ids for \"%.80s\"",
                         doc->origin, name);
    for (const nmlp_json *v = nmlp_json_first(ids); v; v = nmlp_json_next(v)) {
        int64_t id;
        if (!nmlp_json_int_in(v, 0, NMLP_VOCAB_MAX - 1, &id))
            return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: ids of \"%.80s\" must be token ids",
                             doc->origin, name);
        NMLP_RETURN_IF_FAILED(push_template_id(t, doc, id, side, err));
    }
    return NMLP_OK;
}

static nmlp_status read_template(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, nmlp_err *err) {
    const nmlp_json *list;
    bool text_seen = false;
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_need_list(doc, part, "single", &list, err));
    for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p)) {
        const nmlp_json *token = nmlp_json_get(p, "SpecialToken");
        const nmlp_json *sequence = nmlp_json_get(p, "Sequence");
        if (!token == !sequence)
            return nmlp_fail(err, NMLP_E_FORMAT,
                             "%s: TemplateProcessing: \"single\" holds SpecialToken and Sequence only", doc->origin);
        if (sequence && text_seen)
            return nmlp_tokenizer_refuse(doc, "TemplateProcessing with the text twice:",
                                         nmlp_json_string(nmlp_json_get(sequence, "id")), "the text once", err);
        if (token)
            NMLP_RETURN_IF_FAILED(add_template_token(t, doc, nmlp_json_get(part, "special_tokens"), token,
                                                     text_seen ? &t->suffix : &t->prefix, err));
        else
            text_seen = true;
    }
    if (text_seen) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: TemplateProcessing: \"single\" has no Sequence, where the text goes",
                     doc->origin);
}

/* BertProcessing and RobertaProcessing: "cls" and "sep" are [TEXT, ID]. */
static nmlp_status read_pair(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part, const char *key,
                             nmlp_ids *side, nmlp_err *err) {
    const nmlp_json *text = nmlp_json_first(nmlp_json_get(part, key));
    int64_t id;
    if (!text || !nmlp_json_int_in(nmlp_json_next(text), 0, NMLP_VOCAB_MAX - 1, &id))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: post_processor: key \"%s\" must be [TEXT, ID]", doc->origin, key);
    return push_template_id(t, doc, id, side, err);
}

static nmlp_status read_post_processor(nmlp_tokenizer *t, const nmlp_json_doc *doc, const nmlp_json *part,
                                       nmlp_err *err) {
    const nmlp_json *list;
    if (nmlp_json_is_null(part) || nmlp_tokenizer_part_is(part, "ByteLevel"))
        return NMLP_OK; /* ByteLevel moves offsets only */
    bool template = nmlp_tokenizer_part_is(part, "TemplateProcessing");
    bool pair = nmlp_tokenizer_part_is(part, "BertProcessing") || nmlp_tokenizer_part_is(part, "RobertaProcessing");
    if ((template || pair) && (t->prefix.len || t->suffix.len))
        return nmlp_tokenizer_refuse(doc, "post_processor", "TemplateProcessing twice", "one template", err);
    if (template) return read_template(t, doc, part, err);
    if (pair) {
        NMLP_RETURN_IF_FAILED(read_pair(t, doc, part, "cls", &t->prefix, err));
        return read_pair(t, doc, part, "sep", &t->suffix, err);
    }
    if (!nmlp_tokenizer_part_is(part, "Sequence"))
        return nmlp_tokenizer_refuse(doc, "post_processor", nmlp_tokenizer_part_type(part),
                                     "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence", err);
    NMLP_RETURN_IF_FAILED(nmlp_tokenizer_need_list(doc, part, "processors", &list, err));
    for (const nmlp_json *p = nmlp_json_first(list); p; p = nmlp_json_next(p))
        NMLP_RETURN_IF_FAILED(read_post_processor(t, doc, p, err));
    return NMLP_OK;
}

nmlp_status nmlp_tokenizer_read_normalizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    return read_normalizer(t, doc, nmlp_json_get(doc->root, "normalizer"), err);
}

nmlp_status nmlp_tokenizer_read_pretokenizer(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    bool byte_level = false;
    return read_pretokenizer(t, doc, nmlp_json_get(doc->root, "pre_tokenizer"), &byte_level, err);
}

nmlp_status nmlp_tokenizer_read_post_processor(nmlp_tokenizer *t, const nmlp_json_doc *doc, nmlp_err *err) {
    return read_post_processor(t, doc, nmlp_json_get(doc->root, "post_processor"), err);
}
