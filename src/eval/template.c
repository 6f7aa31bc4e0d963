#include "eval/template.h"

#include <string.h>

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void keep(nmlp_str *text, size_t begin, size_t end) {
    memmove(text->data, text->data + begin, end - begin);
    text->len = end - begin;
    text->data[text->len] = '\0';
}

static nmlp_status strip(nmlp_str *text, const char *arg, nmlp_err *err) {
    size_t begin = 0, end = text->len;
    (void)arg;
    (void)err;
    while (begin < end && is_space(text->data[begin])) begin++;
    while (end > begin && is_space(text->data[end - 1])) end--;
    keep(text, begin, end);
    return NMLP_OK;
}

static nmlp_status capitalize(nmlp_str *text, const char *arg, nmlp_err *err) {
    (void)arg;
    (void)err;
    for (size_t i = 0; i < text->len; i++) {
        char c = text->data[i];
        if (i == 0 && c >= 'a' && c <= 'z') text->data[i] = (char)(c - 'a' + 'A');
        if (i > 0 && c >= 'A' && c <= 'Z') text->data[i] = (char)(c - 'A' + 'a');
    }
    return NMLP_OK;
}

static nmlp_status find(const nmlp_str *text, const char *mark, const char **at, nmlp_err *err) {
    *at = strstr(text->data, mark);
    return *at ? NMLP_OK : nmlp_fail(err, NMLP_E_FORMAT, "has no \"%s\" in it", mark);
}

static nmlp_status before(nmlp_str *text, const char *arg, nmlp_err *err) {
    const char *at;
    NMLP_RETURN_IF_FAILED(find(text, arg, &at, err));
    keep(text, 0, (size_t)(at - text->data));
    return NMLP_OK;
}

static nmlp_status after(nmlp_str *text, const char *arg, nmlp_err *err) {
    const char *at;
    NMLP_RETURN_IF_FAILED(find(text, arg, &at, err));
    keep(text, (size_t)(at - text->data) + strlen(arg), text->len);
    return NMLP_OK;
}

/* text.replace(from, to) of Python: left to right, not looking at what was put in. */
static void replace_all(nmlp_str *text, const char *from, const char *to) {
    nmlp_str out;
    const char *at = text->data;
    nmlp_str_init(&out);
    for (const char *hit; (hit = strstr(at, from)) != NULL; at = hit + strlen(from)) {
        nmlp_str_append(&out, at, (size_t)(hit - at));
        nmlp_str_puts(&out, to);
    }
    nmlp_str_puts(&out, at);
    nmlp_str_fini(text);
    *text = out;
}

/* re.sub("\\[.*?\\]", "", text): a bracket, the shortest rest up to a closing one on the same line. */
static void drop_brackets(nmlp_str *text) {
    size_t out = 0;
    for (size_t i = 0; i < text->len; i++) {
        if (text->data[i] == '[') {
            size_t close = i + strcspn(text->data + i, "]\n");
            if (text->data[close] == ']') {
                i = close;
                continue;
            }
        }
        text->data[out++] = text->data[i];
    }
    keep(text, 0, out);
}

static nmlp_status hellaswag(nmlp_str *text, const char *arg, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(strip(text, arg, err));
    replace_all(text, " [title]", ". ");
    if (text->failed) return nmlp_str_status(text, err);
    drop_brackets(text);
    replace_all(text, "  ", " ");
    return nmlp_str_status(text, err);
}

static const struct filter {
    const char *name;
    bool takes_arg;
    nmlp_status (*apply)(nmlp_str *text, const char *arg, nmlp_err *err);
} filters[] = {
    {"strip", false, strip}, {"capitalize", false, capitalize}, {"before", true, before},
    {"after", true, after},  {"hellaswag", false, hellaswag},
};

/* One part of a template: literal text, or name and filters as they stand between the braces. */
struct part {
    const char *text;
    size_t len;
    bool is_name;
};

/* Takes the next part; false at the end or, with *bad set, at an unclosed brace. */
static bool next_part(const char **at, struct part *part, bool *bad) {
    const char *text = *at;
    *bad = false;
    if (*text == '\0') return false;
    if (*text != '{') {
        *part = (struct part){.text = text, .len = strcspn(text, "{")};
        *at = text + part->len;
        return true;
    }
    if (text[1] == '{') {
        *part = (struct part){.text = text, .len = 1};
        *at = text + 2;
        return true;
    }
    size_t len = strcspn(text + 1, "}");
    *bad = text[1 + len] != '}';
    if (*bad) return false;
    *part = (struct part){.text = text + 1, .len = len, .is_name = true};
    *at = text + len + 2;
    return true;
}

static nmlp_status fail_unclosed(const char *text, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_FORMAT, "template \"%s\": a brace is not closed (\"{{\" stands for a brace itself)",
                     text);
}

/* Copies the field up to '|' or the end; returns what follows, or NULL when it is too long. */
static const char *take_field(const char *at, const char *end, char field[NMLP_TEMPLATE_NAME_MAX]) {
    const char *stop = memchr(at, '|', (size_t)(end - at));
    size_t len = (size_t)((stop ? stop : end) - at);
    if (len >= NMLP_TEMPLATE_NAME_MAX) return NULL;
    memcpy(field, at, len);
    field[len] = '\0';
    return stop ? stop + 1 : end;
}

static nmlp_status find_filter(const struct filter **out, char field[NMLP_TEMPLATE_NAME_MAX], const char **arg,
                               nmlp_err *err) {
    char *colon = strchr(field, ':');
    if (colon) *colon = '\0';
    *arg = colon ? colon + 1 : "";
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, field) != 0) continue;
        if (filters[i].takes_arg != (**arg != '\0'))
            return nmlp_fail(err, NMLP_E_FORMAT, "filter %s %s", field,
                             filters[i].takes_arg ? "needs a text after a colon" : "takes no text after a colon");
        *out = &filters[i];
        return NMLP_OK;
    }
    return nmlp_fail(err, NMLP_E_FORMAT,
                     "unknown filter \"%s\"; there are strip, capitalize, before:X, after:X, hellaswag", field);
}

static nmlp_status expand_name(nmlp_str *out, const struct part *part, nmlp_template_lookup *lookup, void *ctx,
                               nmlp_err *err) {
    char name[NMLP_TEMPLATE_NAME_MAX], field[NMLP_TEMPLATE_NAME_MAX];
    const char *end = part->text + part->len;
    const char *value = "";
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&text);
    const char *at = take_field(part->text, end, name);
    if (!at) return nmlp_fail(err, NMLP_E_FORMAT, "a name of a template is longer than %d", NMLP_TEMPLATE_NAME_MAX - 1);
    if (lookup) NMLP_TRY(lookup(ctx, name, &value, err));
    nmlp_str_puts(&text, value);
    NMLP_TRY(nmlp_str_status(&text, err));
    while (at < end) {
        const struct filter *filter = NULL;
        const char *arg;
        at = take_field(at, end, field);
        if (!at) {
            st = nmlp_fail(err, NMLP_E_FORMAT, "a filter of \"%s\" is too long", name);
            goto out;
        }
        NMLP_TRY(find_filter(&filter, field, &arg, err));
        if (!lookup) continue; /* only checking */
        st = filter->apply(&text, arg, err);
        if (st != NMLP_OK) {
            nmlp_fail_context(err, "\"%s\"", name);
            goto out;
        }
    }
    nmlp_str_append(out, nmlp_str_text(&text), text.len);
    st = nmlp_str_status(out, err);
out:
    nmlp_str_fini(&text);
    return st;
}

nmlp_status nmlp_template_expand(nmlp_str *out, const char *text, nmlp_template_lookup *lookup, void *ctx,
                                 nmlp_err *err) {
    struct part part;
    bool bad;
    for (const char *at = text; next_part(&at, &part, &bad);) {
        if (part.is_name) {
            NMLP_RETURN_IF_FAILED(expand_name(out, &part, lookup, ctx, err));
        } else {
            nmlp_str_append(out, part.text, part.len);
        }
    }
    if (bad) return fail_unclosed(text, err);
    return nmlp_str_status(out, err);
}

nmlp_status nmlp_template_check(const char *text, nmlp_err *err) {
    nmlp_str ignored;
    nmlp_str_init(&ignored);
    nmlp_status st = nmlp_template_expand(&ignored, text, NULL, NULL, err);
    nmlp_str_fini(&ignored);
    return st;
}

bool nmlp_template_uses(const char *text, const char *name) {
    struct part part;
    bool bad;
    size_t len = strlen(name);
    for (const char *at = text; next_part(&at, &part, &bad);) {
        if (part.is_name && part.len >= len && memcmp(part.text, name, len) == 0 &&
            (part.len == len || part.text[len] == '|'))
            return true;
    }
    return false;
}
