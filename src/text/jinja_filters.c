/* Filters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"

typedef nmlp_jinja_value value;
typedef nmlp_jinja_args args_t;

static value need_string(nmlp_jinja_run *run, value v) { return nmlp_jinja_to_string(run, v); }

static int64_t int_arg(const args_t *args, size_t nth, const char *name, int64_t otherwise) {
    const value *v = nmlp_jinja_arg(args, nth, name);
    if (!v) return otherwise;
    return v->kind == NMLP_JINJA_INT ? v->as.i : v->kind == NMLP_JINJA_BOOL ? v->as.b : otherwise;
}

static bool bool_arg(const args_t *args, size_t nth, const char *name, bool otherwise) {
    const value *v = nmlp_jinja_arg(args, nth, name);
    return v ? nmlp_jinja_is_true(*v) : otherwise;
}

/* The same method under another name, with the filter's arguments. */
static value as_method(nmlp_jinja_run *run, value v, const char *method, const args_t *args) {
    v = need_string(run, v);
    return run->status == NMLP_OK ? nmlp_jinja_method(run, v, method, args) : v;
}

/* ---- filters of one value ---- */

static value filter_length(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    switch (v.kind) {
    case NMLP_JINJA_UNDEFINED: return nmlp_jinja_int(0);
    case NMLP_JINJA_STRING: return nmlp_jinja_int((int64_t)nmlp_jinja_chars(v.as.s));
    case NMLP_JINJA_LIST: return nmlp_jinja_int((int64_t)v.as.list->n);
    case NMLP_JINJA_DICT: return nmlp_jinja_int((int64_t)v.as.dict->n);
    default: return nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s has no length", nmlp_jinja_kind_name(v));
    }
}

static value filter_tojson(nmlp_jinja_run *run, value v, const args_t *args) {
    nmlp_jinja_text text;
    const value *indent = nmlp_jinja_arg(args, 1, "indent");
    nmlp_jinja_text_init(&text);
    nmlp_jinja_json_style style = {.indent = -1,
                                   .ensure_ascii = bool_arg(args, 0, "ensure_ascii", false),
                                   .sort_keys = bool_arg(args, 3, "sort_keys", false)};
    if (indent && indent->kind == NMLP_JINJA_INT && indent->as.i >= 0 && indent->as.i < 64)
        style.indent = (int)indent->as.i;
    const value *separators = nmlp_jinja_arg(args, 2, "separators");
    if (separators && separators->kind != NMLP_JINJA_NONE) {
        const nmlp_jinja_list *pair = nmlp_jinja_iterate(run, *separators);
        if (!pair || pair->n != 2 || pair->items[0].kind != NMLP_JINJA_STRING ||
            pair->items[1].kind != NMLP_JINJA_STRING)
            return nmlp_jinja_fail(run, NMLP_E_FORMAT, "tojson: separators must be two strings");
        style.item_separator = pair->items[0].as.s;
        style.key_separator = pair->items[1].as.s;
    }
    nmlp_jinja_json_write(run, &text, v, &style);
    return nmlp_jinja_text_take(run, &text);
}

static value filter_from_json(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    if (v.kind != NMLP_JINJA_STRING) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "from_json needs a string");
    return nmlp_jinja_json_read(run, v.as.s->data, v.as.s->len, v.as.s->user != NULL);
}

static value filter_trim(nmlp_jinja_run *run, value v, const args_t *args) { return as_method(run, v, "strip", args); }
static value filter_lower(nmlp_jinja_run *run, value v, const args_t *args) { return as_method(run, v, "lower", args); }
static value filter_upper(nmlp_jinja_run *run, value v, const args_t *args) { return as_method(run, v, "upper", args); }
static value filter_title(nmlp_jinja_run *run, value v, const args_t *args) { return as_method(run, v, "title", args); }
static value filter_capitalize(nmlp_jinja_run *run, value v, const args_t *args) {
    return as_method(run, v, "capitalize", args);
}
static value filter_replace(nmlp_jinja_run *run, value v, const args_t *args) {
    return as_method(run, v, "replace", args);
}
static value filter_format(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    return nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "filter \"format\" on %s is not supported",
                           nmlp_jinja_kind_name(v));
}

static value filter_string(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    return need_string(run, v);
}

static value filter_safe(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    return need_string(run, v);
}

static value filter_escape(nmlp_jinja_run *run, value v, const args_t *args) {
    static const char *const from = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    nmlp_jinja_text text;
    (void)args;
    v = need_string(run, v);
    if (run->status != NMLP_OK) return v;
    nmlp_jinja_text_init(&text);
    const nmlp_jinja_string *s = v.as.s;
    for (size_t i = 0; i < s->len && run->status == NMLP_OK; i++) {
        const char *known = s->data[i] ? strchr(from, s->data[i]) : NULL;
        if (known)
            nmlp_jinja_text_puts(run, &text, to[known - from]);
        else
            nmlp_jinja_text_add(run, &text, s->data + i, 1, s->user ? s->user + i : NULL);
    }
    return nmlp_jinja_text_take(run, &text);
}

static value filter_default(nmlp_jinja_run *run, value v, const args_t *args) {
    const value *otherwise = nmlp_jinja_arg(args, 0, "default_value");
    bool falsy = bool_arg(args, 1, "boolean", false) && !nmlp_jinja_is_true(v);
    if (v.kind != NMLP_JINJA_UNDEFINED && !falsy) return v;
    return otherwise ? *otherwise : nmlp_jinja_cstring(run, "");
}

static value filter_list(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    value list = nmlp_jinja_list_new(run, false);
    for (size_t i = 0; items && run->status == NMLP_OK && i < items->n; i++)
        nmlp_jinja_list_push(run, list.as.list, items->items[i]);
    return list;
}

static value filter_items(nmlp_jinja_run *run, value v, const args_t *args) {
    if (v.kind == NMLP_JINJA_UNDEFINED) return nmlp_jinja_list_new(run, false);
    if (v.kind != NMLP_JINJA_DICT) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "items needs a mapping");
    return nmlp_jinja_method(run, v, "items", args);
}

static value filter_first(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    return items && items->n ? items->items[0] : nmlp_jinja_undefined();
}

static value filter_last(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    return items && items->n ? items->items[items->n - 1] : nmlp_jinja_undefined();
}

static value filter_reverse(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    nmlp_jinja_text text;
    if (!items) return nmlp_jinja_undefined();
    value list = nmlp_jinja_list_new(run, false);
    for (size_t i = items->n; i-- > 0 && run->status == NMLP_OK;)
        nmlp_jinja_list_push(run, list.as.list, items->items[i]);
    if (v.kind != NMLP_JINJA_STRING || run->status != NMLP_OK) return list;
    nmlp_jinja_text_init(&text);
    for (size_t i = 0; i < list.as.list->n; i++) nmlp_jinja_text_add_string(run, &text, list.as.list->items[i].as.s);
    return nmlp_jinja_text_take(run, &text);
}

static value filter_int(nmlp_jinja_run *run, value v, const args_t *args) {
    char text[64];
    char *end;
    int64_t otherwise = int_arg(args, 0, "default", 0);
    (void)run;
    if (v.kind == NMLP_JINJA_INT) return v;
    if (v.kind == NMLP_JINJA_BOOL) return nmlp_jinja_int(v.as.b);
    if (v.kind == NMLP_JINJA_FLOAT && fabs(v.as.f) < 9e18) return nmlp_jinja_int((int64_t)v.as.f);
    if (v.kind != NMLP_JINJA_STRING || v.as.s->len >= sizeof text) return nmlp_jinja_int(otherwise);
    memcpy(text, v.as.s->data, v.as.s->len);
    text[v.as.s->len] = 0;
    double f = strtod(text, &end);
    while (*end == ' ') end++;
    return nmlp_jinja_int(*end || end == text || fabs(f) > 9e18 ? otherwise : (int64_t)f);
}

static value filter_float(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)run;
    (void)args;
    char text[64] = "";
    if (v.kind == NMLP_JINJA_FLOAT) return v;
    double f = v.kind == NMLP_JINJA_INT ? (double)v.as.i : v.kind == NMLP_JINJA_BOOL ? (double)v.as.b : 0;
    if (v.kind == NMLP_JINJA_STRING && v.as.s->len < sizeof text) {
        memcpy(text, v.as.s->data, v.as.s->len);
        f = strtod(text, NULL);
    }
    return (value){.kind = NMLP_JINJA_FLOAT, .as.f = f};
}

static value filter_abs(nmlp_jinja_run *run, value v, const args_t *args) {
    (void)args;
    if (v.kind == NMLP_JINJA_FLOAT) return (value){.kind = NMLP_JINJA_FLOAT, .as.f = fabs(v.as.f)};
    if (v.kind == NMLP_JINJA_INT && v.as.i != INT64_MIN) return nmlp_jinja_int(v.as.i < 0 ? -v.as.i : v.as.i);
    return nmlp_jinja_fail(run, NMLP_E_FORMAT, "abs needs a number");
}

static value filter_round(nmlp_jinja_run *run, value v, const args_t *args) {
    int64_t digits = int_arg(args, 0, "precision", 0);
    double f = v.kind == NMLP_JINJA_INT ? (double)v.as.i : v.kind == NMLP_JINJA_FLOAT ? v.as.f : 0;
    double scale = pow(10, (double)(digits < 0 ? 0 : digits > 15 ? 15 : digits));
    (void)run;
    return (value){.kind = NMLP_JINJA_FLOAT, .as.f = nearbyint(f * scale) / scale};
}

/* Lines behind the first get `width` spaces, but empty ones only with `blank`. */
static value filter_indent(nmlp_jinja_run *run, value v, const args_t *args) {
    char spaces[256];
    const value *width = nmlp_jinja_arg(args, 0, "width");
    bool first = bool_arg(args, 1, "first", false);
    bool blank = bool_arg(args, 2, "blank", false);
    v = need_string(run, v);
    if (run->status != NMLP_OK) return v;
    size_t n = width && width->kind == NMLP_JINJA_INT && width->as.i >= 0 ? (size_t)width->as.i : 4;
    const char *unit = spaces;
    memset(spaces, ' ', sizeof spaces);
    if (width && width->kind == NMLP_JINJA_STRING) {
        unit = width->as.s->data;
        n = width->as.s->len;
    } else if (n > sizeof spaces) {
        n = sizeof spaces;
    }
    nmlp_jinja_text text;
    nmlp_jinja_text_init(&text);
    const nmlp_jinja_string *s = v.as.s;
    for (size_t at = 0; at <= s->len && run->status == NMLP_OK;) {
        const char *newline = memchr(s->data + at, '\n', s->len - at);
        size_t end = newline ? (size_t)(newline - s->data) : s->len;
        if ((at ? end > at || blank : first) && n) nmlp_jinja_text_add(run, &text, unit, n, NULL);
        size_t stop = newline ? end + 1 : end;
        nmlp_jinja_text_add(run, &text, s->data + at, stop - at, s->user ? s->user + at : NULL);
        at = stop + !newline;
        if (newline && at == s->len) {
            if (blank && n) nmlp_jinja_text_add(run, &text, unit, n, NULL);
            break;
        }
    }
    return nmlp_jinja_text_take(run, &text);
}

/* ---- filters of lists ---- */

/* a.b.0 of an item; the item itself without a name. */
static value follow(nmlp_jinja_run *run, value v, const value *path) {
    if (!path || path->kind == NMLP_JINJA_NONE) return v;
    if (path->kind == NMLP_JINJA_INT) return nmlp_jinja_item(run, v, *path);
    if (path->kind != NMLP_JINJA_STRING) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "an attribute needs a name");
    const nmlp_jinja_string *s = path->as.s;
    for (size_t at = 0; at <= s->len && run->status == NMLP_OK;) {
        const char *dot = memchr(s->data + at, '.', s->len - at);
        size_t end = dot ? (size_t)(dot - s->data) : s->len;
        if (v.kind == NMLP_JINJA_UNDEFINED) return v;
        bool digits = end > at && end - at < 10;
        for (size_t i = at; i < end; i++) digits = digits && s->data[i] >= '0' && s->data[i] <= '9';
        v = nmlp_jinja_item(
            run, v, digits ? nmlp_jinja_int(strtoll(s->data + at, NULL, 10)) : nmlp_jinja_substring(run, s, at, end));
        at = end + 1;
    }
    return v;
}

static value filter_join(nmlp_jinja_run *run, value v, const args_t *args) {
    const value *separator = nmlp_jinja_arg(args, 0, "d");
    const value *attribute = nmlp_jinja_arg(args, 1, "attribute");
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    nmlp_jinja_text text;
    nmlp_jinja_text_init(&text);
    for (size_t i = 0; items && i < items->n && run->status == NMLP_OK; i++) {
        if (i && separator) nmlp_jinja_text_add_value(run, &text, *separator);
        value item = follow(run, items->items[i], attribute);
        if (run->status == NMLP_OK) nmlp_jinja_text_add_value(run, &text, item);
    }
    return nmlp_jinja_text_take(run, &text);
}

static args_t rest_of(const args_t *args, size_t n) {
    n = n < args->n ? n : args->n;
    return (args_t){.values = args->values + n, .names = args->names + n, .n = args->n - n};
}

static const char *name_of(nmlp_jinja_run *run, const value *v, char *name, size_t bytes) {
    if (!v || v->kind != NMLP_JINJA_STRING || v->as.s->len >= bytes) {
        nmlp_jinja_fail(run, NMLP_E_FORMAT, "the name of a filter or test is missing");
        return "";
    }
    memcpy(name, v->as.s->data, v->as.s->len);
    name[v->as.s->len] = 0;
    return name;
}

/* select, reject: [test, args...]; selectattr, rejectattr: attribute, [test, args...]. */
static value choose(nmlp_jinja_run *run, value v, const args_t *args, bool by_attribute, bool wanted) {
    char name[64];
    const value *attribute = by_attribute ? nmlp_jinja_arg(args, 0, NULL) : NULL;
    args_t rest = rest_of(args, by_attribute ? 1 : 0);
    const nmlp_jinja_list *items = nmlp_jinja_is_true(v) ? nmlp_jinja_iterate(run, v) : NULL; /* none is empty */
    value list = nmlp_jinja_list_new(run, false);
    const char *test = rest.n ? name_of(run, &rest.values[0], name, sizeof name) : NULL;
    args_t test_args = rest_of(&rest, 1);
    for (size_t i = 0; items && i < items->n && run->status == NMLP_OK; i++) {
        value item = follow(run, items->items[i], attribute);
        if (run->status != NMLP_OK) break;
        bool passes = test ? nmlp_jinja_test(run, test, item, &test_args) : nmlp_jinja_is_true(item);
        if (passes == wanted) nmlp_jinja_list_push(run, list.as.list, items->items[i]);
    }
    return list;
}

static value filter_select(nmlp_jinja_run *run, value v, const args_t *a) { return choose(run, v, a, false, true); }
static value filter_reject(nmlp_jinja_run *run, value v, const args_t *a) { return choose(run, v, a, false, false); }
static value filter_selectattr(nmlp_jinja_run *run, value v, const args_t *a) { return choose(run, v, a, true, true); }
static value filter_rejectattr(nmlp_jinja_run *run, value v, const args_t *a) { return choose(run, v, a, true, false); }

static value filter_map(nmlp_jinja_run *run, value v, const args_t *args) {
    char name[64];
    const value *attribute = nmlp_jinja_arg(args, SIZE_MAX, "attribute");
    const value *otherwise = nmlp_jinja_arg(args, SIZE_MAX, "default");
    const char *filter = attribute ? NULL : name_of(run, nmlp_jinja_arg(args, 0, NULL), name, sizeof name);
    args_t rest = rest_of(args, 1);
    const nmlp_jinja_list *items = nmlp_jinja_is_true(v) ? nmlp_jinja_iterate(run, v) : NULL;
    value list = nmlp_jinja_list_new(run, false);
    for (size_t i = 0; items && i < items->n && run->status == NMLP_OK; i++) {
        value item =
            filter ? nmlp_jinja_filter(run, filter, items->items[i], &rest) : follow(run, items->items[i], attribute);
        if (item.kind == NMLP_JINJA_UNDEFINED && otherwise) item = *otherwise;
        if (run->status == NMLP_OK) nmlp_jinja_list_push(run, list.as.list, item);
    }
    return list;
}

static value folded(nmlp_jinja_run *run, value v, bool case_sensitive) {
    const args_t none = {0};
    return v.kind == NMLP_JINJA_STRING && !case_sensitive ? nmlp_jinja_method(run, v, "lower", &none) : v;
}

/* Stable: items of one rank keep their order. */
static void sort_by(nmlp_jinja_run *run, value *keys, value *items, size_t n, bool reverse) {
    for (size_t i = 1; i < n && run->status == NMLP_OK; i++) {
        value key = keys[i];
        value item = items[i];
        size_t at = i;
        for (; at > 0 && nmlp_jinja_step(run, 1); at--) {
            int order = nmlp_jinja_order(run, keys[at - 1], key);
            if (reverse ? order >= 0 : order <= 0) break;
            keys[at] = keys[at - 1];
            items[at] = items[at - 1];
        }
        keys[at] = key;
        items[at] = item;
    }
}

static value filter_sort(nmlp_jinja_run *run, value v, const args_t *args) {
    bool case_sensitive = bool_arg(args, 1, "case_sensitive", false);
    const value *attribute = nmlp_jinja_arg(args, 2, "attribute");
    const args_t none = {0};
    value list = filter_list(run, v, &none);
    value keys = filter_list(run, v, &none);
    if (run->status != NMLP_OK) return list;
    for (size_t i = 0; i < keys.as.list->n && run->status == NMLP_OK; i++)
        keys.as.list->items[i] = folded(run, follow(run, keys.as.list->items[i], attribute), case_sensitive);
    sort_by(run, keys.as.list->items, list.as.list->items, list.as.list->n, bool_arg(args, 0, "reverse", false));
    return list;
}

static value filter_dictsort(nmlp_jinja_run *run, value v, const args_t *args) {
    const args_t none = {0};
    const value *by = nmlp_jinja_arg(args, 1, "by");
    bool by_value = by && nmlp_jinja_is_text(*by, "value");
    if (v.kind != NMLP_JINJA_DICT) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "dictsort needs a mapping");
    value list = nmlp_jinja_method(run, v, "items", &none);
    value keys = nmlp_jinja_list_new(run, false);
    for (size_t i = 0; i < v.as.dict->n && run->status == NMLP_OK; i++) {
        value key = by_value ? v.as.dict->values[i] : v.as.dict->keys[i];
        nmlp_jinja_list_push(run, keys.as.list, folded(run, key, bool_arg(args, 0, "case_sensitive", false)));
    }
    if (run->status != NMLP_OK) return list;
    sort_by(run, keys.as.list->items, list.as.list->items, list.as.list->n, bool_arg(args, 2, "reverse", false));
    return list;
}

static value filter_unique(nmlp_jinja_run *run, value v, const args_t *args) {
    bool case_sensitive = bool_arg(args, 0, "case_sensitive", false);
    const value *attribute = nmlp_jinja_arg(args, 1, "attribute");
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    value list = nmlp_jinja_list_new(run, false);
    value seen = nmlp_jinja_dict_new(run);
    for (size_t i = 0; items && i < items->n && run->status == NMLP_OK; i++) {
        value key = folded(run, follow(run, items->items[i], attribute), case_sensitive);
        if (run->status != NMLP_OK || nmlp_jinja_dict_get(run, seen.as.dict, key)) continue;
        nmlp_jinja_dict_put(run, seen.as.dict, key, nmlp_jinja_none());
        nmlp_jinja_list_push(run, list.as.list, items->items[i]);
    }
    return list;
}

static value extreme(nmlp_jinja_run *run, value v, int sign, const args_t *args) {
    const value *attribute = nmlp_jinja_arg(args, 1, "attribute");
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    value best = nmlp_jinja_undefined();
    for (size_t i = 0; items && i < items->n && run->status == NMLP_OK; i++)
        if (!i || nmlp_jinja_order(run, follow(run, items->items[i], attribute), follow(run, best, attribute)) == sign)
            best = items->items[i];
    return best;
}

static value filter_min(nmlp_jinja_run *run, value v, const args_t *args) { return extreme(run, v, -1, args); }
static value filter_max(nmlp_jinja_run *run, value v, const args_t *args) { return extreme(run, v, 1, args); }

static value filter_sum(nmlp_jinja_run *run, value v, const args_t *args) {
    const value *attribute = nmlp_jinja_arg(args, 0, "attribute");
    const nmlp_jinja_list *items = nmlp_jinja_iterate(run, v);
    double total = 0;
    bool is_float = false;
    for (size_t i = 0; items && i < items->n && run->status == NMLP_OK; i++) {
        value item = follow(run, items->items[i], attribute);
        if (item.kind != NMLP_JINJA_INT && item.kind != NMLP_JINJA_FLOAT)
            return nmlp_jinja_fail(run, NMLP_E_FORMAT, "sum needs numbers");
        is_float = is_float || item.kind == NMLP_JINJA_FLOAT;
        total += item.kind == NMLP_JINJA_FLOAT ? item.as.f : (double)item.as.i;
    }
    return is_float || fabs(total) > 9e15 ? (value){.kind = NMLP_JINJA_FLOAT, .as.f = total}
                                          : nmlp_jinja_int((int64_t)total);
}

static value filter_attr(nmlp_jinja_run *run, value v, const args_t *args) {
    char name[64];
    const char *text = name_of(run, nmlp_jinja_arg(args, 0, "name"), name, sizeof name);
    if (run->status != NMLP_OK) return v;
    value copy = nmlp_jinja_cstring(run, text);
    return run->status == NMLP_OK ? nmlp_jinja_attribute(run, v, copy.as.s->data, false) : v;
}

typedef struct filter_entry {
    const char *name;
    value (*apply)(nmlp_jinja_run *run, value v, const args_t *args);
} filter_entry;

static const filter_entry filters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_capitalize},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"first", filter_first},
    {"float", filter_float},
    {"format", filter_format},
    {"from_json", filter_from_json},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_lower},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", filter_upper},
};

value nmlp_jinja_filter(nmlp_jinja_run *run, const char *name, value v, const args_t *args) {
    if (!nmlp_jinja_step(run, 1)) return nmlp_jinja_undefined();
    if (run->depth >= NMLP_JINJA_DEPTH_MAX) return nmlp_jinja_fail(run, NMLP_E_LIMIT, "nested too deeply");
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        if (strcmp(filters[i].name, name) != 0) continue;
        run->depth++;
        value result = filters[i].apply(run, v, args);
        run->depth--;
        return result;
    }
    return nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "filter \"%.60s\" is not supported", name);
}
