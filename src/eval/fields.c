/* From a row to question, choices and gold, by a layout. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/task_internal.h"
#include "eval/template.h"
#include "text/unicode.h"
#include "text/utf8.h"

const nmlp_json *nmlp_json_at(const nmlp_json *object, const char *path) {
    char key[NMLP_TEMPLATE_NAME_MAX];
    while (object && *path) {
        size_t len = strcspn(path, ".");
        if (len >= sizeof key) return NULL;
        memcpy(key, path, len);
        key[len] = '\0';
        object = nmlp_json_get(object, key);
        path += len + (path[len] == '.');
    }
    return object;
}

const nmlp_json *nmlp_json_list_at(const nmlp_json *object, const char *path, const char **tail) {
    char head[NMLP_TEMPLATE_NAME_MAX];
    const char *mark = strstr(path, "[]");
    size_t len = mark ? (size_t)(mark - path) : strlen(path);
    *tail = "";
    if (len >= sizeof head) return NULL;
    memcpy(head, path, len);
    head[len] = '\0';
    if (mark) *tail = mark[2] == '.' ? mark + 3 : mark + 2;
    const nmlp_json *list = nmlp_json_at(object, head);
    return nmlp_json_is_array(list) ? list : NULL;
}

void nmlp_fields_init(nmlp_task_fields *f) { *f = (nmlp_task_fields){0}; }

void nmlp_fields_fini(nmlp_task_fields *f) {
    nmlp_str_fini(&f->question);
    for (size_t i = 0; i < NMLP_CHOICES_MAX; i++) nmlp_str_fini(&f->choices[i]);
    *f = (nmlp_task_fields){0};
}

static nmlp_status lookup_row(void *ctx, const char *name, const char **value, nmlp_err *err) {
    const nmlp_json *found = nmlp_json_at(ctx, name);
    if (nmlp_json_is_null(found)) return nmlp_fail(err, NMLP_E_MISSING, "key \"%s\" is missing", name);
    if (!nmlp_json_is_string(found)) return nmlp_fail(err, NMLP_E_FORMAT, "key \"%s\" must be a string", name);
    *value = nmlp_json_string(found);
    return NMLP_OK;
}

static nmlp_status lookup_value(void *ctx, const char *name, const char **value, nmlp_err *err) {
    (void)name;
    (void)err;
    *value = ctx;
    return NMLP_OK;
}

/* Runs the layout's filter over a finished text. */
static nmlp_status clean(nmlp_str *text, const char *filter, nmlp_err *err) {
    char template[NMLP_TEMPLATE_NAME_MAX];
    nmlp_str out;
    if (!filter) return NMLP_OK;
    nmlp_str_init(&out);
    snprintf(template, sizeof template, "{value|%s}", filter);
    nmlp_status st = nmlp_template_expand(&out, template, lookup_value, (void *)(uintptr_t)nmlp_str_text(text), err);
    nmlp_str_fini(text);
    *text = out;
    return st;
}

static nmlp_status fail_count(nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_FORMAT, "has more than %d choices", NMLP_CHOICES_MAX);
}

static nmlp_status read_list(nmlp_task_fields *f, const char *path, const nmlp_json *row, nmlp_err *err) {
    const char *tail;
    char head[NMLP_TEMPLATE_NAME_MAX];
    const nmlp_json *list = nmlp_json_list_at(row, path, &tail);
    snprintf(head, sizeof head, "%.*s", (int)strcspn(path, "["), path);
    if (!list) {
        if (nmlp_json_is_null(nmlp_json_at(row, head)))
            return nmlp_fail(err, NMLP_E_MISSING, "key \"%s\" is missing", head);
        return nmlp_fail(err, NMLP_E_FORMAT, "key \"%s\" must be a list", head);
    }
    for (const nmlp_json *item = nmlp_json_first(list); item; item = nmlp_json_next(item)) {
        const nmlp_json *text = nmlp_json_at(item, tail);
        if (f->n_choices == NMLP_CHOICES_MAX) return fail_count(err);
        if (!nmlp_json_is_string(text))
            return nmlp_fail(err, NMLP_E_FORMAT, "choice %zu of \"%s\" must be a string", f->n_choices, path);
        nmlp_str_puts(&f->choices[f->n_choices++], nmlp_json_string(text));
    }
    return NMLP_OK;
}

static nmlp_status put_choice(nmlp_task_fields *f, const char *text, size_t len, const char *strip, nmlp_err *err) {
    while (len > 0 && strchr(strip, text[len - 1])) len--;
    if (f->n_choices == NMLP_CHOICES_MAX) return fail_count(err);
    nmlp_str_append(&f->choices[f->n_choices++], text, len);
    return NMLP_OK;
}

/* re.findall("[abcd] \\) .*?, |e \\) .*?$") as the harness does it: four letters end at ", ", the fifth at the end. */
static nmlp_status split_letters(nmlp_task_fields *f, const char *text, nmlp_err *err) {
    for (const char *at = text; *at;) {
        const char *end = NULL;
        bool marked = *at >= 'a' && *at <= 'e' && strncmp(at + 1, " ) ", 3) == 0;
        if (marked && *at == 'e') end = at + strlen(at);
        if (marked && *at != 'e') end = strstr(at + 4, ", ");
        if (!end) {
            at++;
            continue;
        }
        NMLP_RETURN_IF_FAILED(put_choice(f, at + 4, (size_t)(end - at) - 4, " ,", err));
        at = *end ? end + 2 : end;
    }
    return NMLP_OK;
}

/* "stem (A) one (B) two": a choice goes up to the next letter's mark. */
static nmlp_status split_paren(nmlp_task_fields *f, const char *text, nmlp_err *err) {
    char mark[4] = "(A)";
    const char *at = strstr(text, mark);
    while (at) {
        mark[1]++;
        const char *begin = at + 3;
        while (*begin == ' ') begin++;
        const char *next = strstr(begin, mark);
        size_t len = next ? (size_t)(next - begin) : strlen(begin);
        NMLP_RETURN_IF_FAILED(put_choice(f, begin, len, " ", err));
        at = next;
    }
    return NMLP_OK;
}

static nmlp_status read_choices(nmlp_task_fields *f, const nmlp_task_layout *layout, const nmlp_json *row,
                                nmlp_err *err) {
    nmlp_str text;
    void *ctx = (void *)(uintptr_t)row;
    if (layout->choices_kind == NMLP_CHOICES_LIST) return read_list(f, layout->choices[0], row, err);
    if (layout->choices_kind == NMLP_CHOICES_FIELDS) {
        for (size_t i = 0; i < layout->n_choices; i++)
            NMLP_RETURN_IF_FAILED(
                nmlp_template_expand(&f->choices[f->n_choices++], layout->choices[i], lookup_row, ctx, err));
        return NMLP_OK;
    }
    nmlp_str_init(&text);
    nmlp_status st = nmlp_template_expand(&text, layout->choices[0], lookup_row, ctx, err);
    if (st == NMLP_OK) {
        st = layout->choices_kind == NMLP_CHOICES_LETTERS ? split_letters(f, nmlp_str_text(&text), err)
                                                          : split_paren(f, nmlp_str_text(&text), err);
    }
    nmlp_str_fini(&text);
    return st;
}

static bool same_text(const nmlp_json *label, const nmlp_json *gold) {
    if (nmlp_json_is_string(label) && nmlp_json_is_string(gold))
        return strcmp(nmlp_json_string(label), nmlp_json_string(gold)) == 0;
    return nmlp_json_is_number(label) && nmlp_json_is_number(gold) && nmlp_json_number(label) == nmlp_json_number(gold);
}

static nmlp_status read_label(nmlp_task_fields *f, const nmlp_task_layout *layout, const nmlp_json *row,
                              const nmlp_json *gold, nmlp_err *err) {
    const char *text = nmlp_json_string(gold);
    const char *tail;
    if (!layout->labels) {
        bool letter = strlen(text) == 1 && ((*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z'));
        if (!letter)
            return nmlp_fail(err, NMLP_E_FORMAT, "key \"%s\" is \"%s\", a letter expected", layout->gold, text);
        f->gold = *text >= 'a' ? *text - 'a' : *text - 'A';
        return NMLP_OK;
    }
    const nmlp_json *list = nmlp_json_list_at(row, layout->labels, &tail);
    if (!list) return nmlp_fail(err, NMLP_E_MISSING, "key \"%s\" is missing", layout->labels);
    int64_t i = 0;
    for (const nmlp_json *item = nmlp_json_first(list); item; item = nmlp_json_next(item), i++) {
        if (same_text(nmlp_json_at(item, tail), gold)) {
            f->gold = i;
            return NMLP_OK;
        }
    }
    return nmlp_fail(err, NMLP_E_FORMAT, "key \"%s\" is \"%s\", which none of the choices' labels is", layout->gold,
                     text);
}

static nmlp_status read_gold(nmlp_task_fields *f, const nmlp_task_layout *layout, const nmlp_json *row, nmlp_err *err) {
    f->gold = -1;
    if (layout->gold_kind == NMLP_GOLD_LABELS_FILE) return NMLP_OK;
    const nmlp_json *gold = nmlp_json_at(row, layout->gold);
    if (nmlp_json_is_null(gold)) return nmlp_fail(err, NMLP_E_MISSING, "key \"%s\" is missing", layout->gold);
    if (layout->gold_kind == NMLP_GOLD_LABEL) return read_label(f, layout, row, gold, err);
    int64_t value = -1, from = layout->gold_kind == NMLP_GOLD_INDEX1 ? 1 : 0;
    char *end = NULL;
    const char *text = nmlp_json_string(gold);
    bool ok = nmlp_json_int_in(gold, INT32_MIN, INT32_MAX, &value);
    if (*text) {
        value = strtol(text, &end, 10);
        ok = *end == '\0';
    }
    if (!ok) return nmlp_fail(err, NMLP_E_FORMAT, "key \"%s\" must be a whole number", layout->gold);
    f->gold = value - from;
    if (f->gold < 0 || f->gold >= (int64_t)f->n_choices)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "key \"%s\" is %" PRId64 ", but there are %zu choices (%" PRId64 " to %" PRId64 ")",
                         layout->gold, value, f->n_choices, from, from + (int64_t)f->n_choices - 1);
    return NMLP_OK;
}

static bool is_blank(const nmlp_str *text) {
    for (size_t at = 0; at < text->len;) {
        uint32_t c = 0;
        int bytes = nmlp_utf8_decode(text->data + at, text->len - at, &c);
        if (bytes <= 0 || !nmlp_unicode_is_space(c)) return false;
        at += (size_t)bytes;
    }
    return true;
}

nmlp_status nmlp_fields_read(nmlp_task_fields *f, const nmlp_task_layout *layout, const nmlp_json *row, nmlp_err *err) {
    nmlp_str_clear(&f->question);
    for (size_t i = 0; i < NMLP_CHOICES_MAX; i++) nmlp_str_clear(&f->choices[i]);
    f->n_choices = 0;
    NMLP_RETURN_IF_FAILED(
        nmlp_template_expand(&f->question, layout->question, lookup_row, (void *)(uintptr_t)row, err));
    NMLP_RETURN_IF_FAILED(clean(&f->question, layout->clean, err));
    NMLP_RETURN_IF_FAILED(read_choices(f, layout, row, err));
    if (f->n_choices < 2) return nmlp_fail(err, NMLP_E_FORMAT, "has %zu choices, 2 or more expected", f->n_choices);
    for (size_t i = 0; i < f->n_choices; i++) {
        NMLP_RETURN_IF_FAILED(clean(&f->choices[i], layout->clean, err));
        NMLP_RETURN_IF_FAILED(nmlp_str_status(&f->choices[i], err));
        if (is_blank(&f->choices[i])) return nmlp_fail(err, NMLP_E_FORMAT, "choice %zu is empty", i);
    }
    if (is_blank(&f->question)) return nmlp_fail(err, NMLP_E_FORMAT, "the question is empty");
    NMLP_RETURN_IF_FAILED(read_gold(f, layout, row, err));
    if (f->gold >= (int64_t)f->n_choices)
        return nmlp_fail(err, NMLP_E_FORMAT, "the right choice is number %" PRId64 ", but there are %zu choices",
                         f->gold + 1, f->n_choices);
    return NMLP_OK;
}

struct match {
    const nmlp_json *row;
    int n;
    int n_found;
};

static nmlp_status count_name(void *ctx, const char *name, const char **value, nmlp_err *err) {
    struct match *m = ctx;
    (void)err;
    const nmlp_json *found = nmlp_json_at(m->row, name);
    m->n++;
    m->n_found += nmlp_json_is_string(found);
    *value = nmlp_json_string(found);
    return NMLP_OK;
}

static void count_template(struct match *m, const char *template) {
    nmlp_str ignored;
    nmlp_err why;
    nmlp_str_init(&ignored);
    /* A filter that does not find its mark is the row's fault, reported when the row is read. */
    (void)nmlp_template_expand(&ignored, template, count_name, m, &why);
    nmlp_str_fini(&ignored);
}

double nmlp_layout_match(const nmlp_task_layout *layout, const nmlp_json *row) {
    struct match m = {.row = row};
    const char *tail;
    count_template(&m, layout->question);
    if (layout->choices_kind == NMLP_CHOICES_LIST) {
        m.n++;
        m.n_found += nmlp_json_list_at(row, layout->choices[0], &tail) != NULL;
    } else {
        for (size_t i = 0; i < layout->n_choices; i++) count_template(&m, layout->choices[i]);
    }
    if (layout->gold_kind != NMLP_GOLD_LABELS_FILE) {
        m.n++;
        m.n_found += !nmlp_json_is_null(nmlp_json_at(row, layout->gold));
    }
    return (double)m.n_found / (double)m.n;
}
