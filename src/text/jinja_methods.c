/* Methods of strings, lists, dictionaries and loops, as Python has them. */
#include <string.h>

#include "text/jinja_internal.h"
#include "text/unicode.h"
#include "text/utf8.h"

typedef nmlp_jinja_value value;
typedef nmlp_jinja_args args_t;
typedef nmlp_jinja_string string;

/* ---- strings ---- */

static const string *string_arg(nmlp_jinja_run *run, const args_t *args, size_t nth, const char *name) {
    const value *v = nmlp_jinja_arg(args, nth, name);
    if (v && v->kind == NMLP_JINJA_STRING) return v->as.s;
    if (v && v->kind != NMLP_JINJA_NONE) {
        value text = nmlp_jinja_to_string(run, *v);
        return run->status == NMLP_OK ? text.as.s : NULL;
    }
    return NULL;
}

static int64_t count_arg(const args_t *args, size_t nth, const char *name) {
    const value *v = nmlp_jinja_arg(args, nth, name);
    return v && v->kind == NMLP_JINJA_INT ? v->as.i : -1;
}

/* Where `what` begins in s at or after `from`; SIZE_MAX for nowhere. */
static size_t find(nmlp_jinja_run *run, const string *s, const string *what, size_t from) {
    for (size_t i = from; i + what->len <= s->len && nmlp_jinja_step(run, !(i % 64)); i++)
        if (memcmp(s->data + i, what->data, what->len) == 0) return i;
    return SIZE_MAX;
}

static bool is_stripped(uint32_t c, const string *chars) {
    if (!chars) return nmlp_unicode_is_space(c) || (c >= 0x1C && c <= 0x1F);
    for (size_t at = 0; at < chars->len;) {
        uint32_t other = 0;
        int n = nmlp_utf8_decode(chars->data + at, chars->len - at, &other);
        if (n <= 0) return false;
        if (other == c) return true;
        at += (size_t)n;
    }
    return false;
}

static value strip(nmlp_jinja_run *run, const string *s, const string *chars, bool left, bool right) {
    size_t begin = 0;
    size_t end = s->len;
    uint32_t c;
    while (left && begin < end) {
        int n = nmlp_utf8_decode(s->data + begin, end - begin, &c);
        if (n <= 0 || !is_stripped(c, chars)) break;
        begin += (size_t)n;
    }
    while (right && end > begin) {
        size_t n = nmlp_utf8_last(s->data, end, &c);
        if (!is_stripped(c, chars)) break;
        end -= n;
    }
    return nmlp_jinja_step(run, 1 + (s->len - (end - begin)) / 16) ? nmlp_jinja_substring(run, s, begin, end)
                                                                   : nmlp_jinja_undefined();
}

static value split_at_spaces(nmlp_jinja_run *run, const string *s, int64_t limit) {
    value list = nmlp_jinja_list_new(run, false);
    size_t at = 0;
    while (run->status == NMLP_OK) {
        uint32_t c;
        int n = 0;
        while (at < s->len && (n = nmlp_utf8_decode(s->data + at, s->len - at, &c)) > 0 && is_stripped(c, NULL))
            at += (size_t)n;
        if (at >= s->len || n <= 0) break;
        size_t end = at;
        if (limit >= 0 && (int64_t)list.as.list->n >= limit) {
            value rest = nmlp_jinja_substring(run, s, at, s->len);
            rest = run->status == NMLP_OK ? strip(run, rest.as.s, NULL, false, true) : rest;
            nmlp_jinja_list_push(run, list.as.list, rest);
            break;
        }
        while (end < s->len && (n = nmlp_utf8_decode(s->data + end, s->len - end, &c)) > 0 && !is_stripped(c, NULL))
            end += (size_t)n;
        value part = nmlp_jinja_substring(run, s, at, end);
        if (run->status == NMLP_OK) nmlp_jinja_list_push(run, list.as.list, part);
        at = end;
    }
    return list;
}

static value split(nmlp_jinja_run *run, const string *s, const string *separator, int64_t limit) {
    if (!separator) return split_at_spaces(run, s, limit);
    if (!separator->len) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "split needs a separator that is not empty");
    value list = nmlp_jinja_list_new(run, false);
    size_t at = 0;
    while (run->status == NMLP_OK) {
        bool more = limit < 0 || (int64_t)list.as.list->n < limit;
        size_t found = more ? find(run, s, separator, at) : SIZE_MAX;
        value part = nmlp_jinja_substring(run, s, at, found == SIZE_MAX ? s->len : found);
        if (run->status == NMLP_OK) nmlp_jinja_list_push(run, list.as.list, part);
        if (found == SIZE_MAX) break;
        at = found + separator->len;
    }
    return list;
}

/* From the right, at most `limit` cuts. */
static value rsplit(nmlp_jinja_run *run, const string *s, const string *separator, int64_t limit) {
    value all = split(run, s, separator, -1);
    if (limit < 0 || !separator || run->status != NMLP_OK || (int64_t)all.as.list->n <= limit + 1) return all;
    value list = nmlp_jinja_list_new(run, false);
    if (run->status != NMLP_OK) return list;
    size_t joined = all.as.list->n - (size_t)limit;
    size_t end = 0;
    for (size_t i = 0; i < joined; i++) end += all.as.list->items[i].as.s->len + (i ? separator->len : 0);
    nmlp_jinja_list_push(run, list.as.list, nmlp_jinja_substring(run, s, 0, end));
    for (size_t i = joined; i < all.as.list->n && run->status == NMLP_OK; i++)
        nmlp_jinja_list_push(run, list.as.list, all.as.list->items[i]);
    return list;
}

static value replace(nmlp_jinja_run *run, const string *s, const string *from, const string *to, int64_t limit) {
    nmlp_jinja_text text;
    if (!from || !to) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "replace needs two strings");
    if (!from->len) return nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "replace of an empty string is not supported");
    nmlp_jinja_text_init(&text);
    size_t at = 0;
    for (int64_t n = 0; (limit < 0 || n < limit) && run->status == NMLP_OK; n++) {
        size_t found = find(run, s, from, at);
        if (found == SIZE_MAX) break;
        nmlp_jinja_text_add(run, &text, s->data + at, found - at, s->user ? s->user + at : NULL);
        nmlp_jinja_text_add_string(run, &text, to);
        at = found + from->len;
    }
    nmlp_jinja_text_add(run, &text, s->data + at, s->len - at, s->user ? s->user + at : NULL);
    return nmlp_jinja_text_take(run, &text);
}

/* startswith and endswith take a string or a tuple of them. */
static bool has_affix(nmlp_jinja_run *run, const string *s, const value *affix, bool at_start) {
    if (affix && affix->kind == NMLP_JINJA_LIST) {
        for (size_t i = 0; i < affix->as.list->n; i++)
            if (has_affix(run, s, &affix->as.list->items[i], at_start)) return true;
        return false;
    }
    if (!affix || affix->kind != NMLP_JINJA_STRING) {
        nmlp_jinja_fail(run, NMLP_E_FORMAT, "startswith and endswith need a string");
        return false;
    }
    const string *a = affix->as.s;
    return a->len <= s->len && memcmp(at_start ? s->data : s->data + s->len - a->len, a->data, a->len) == 0;
}

typedef enum letter_case { LOWER, UPPER, TITLE, CAPITALIZE } letter_case;

static value change_case(nmlp_jinja_run *run, const string *s, letter_case how) {
    nmlp_jinja_text text;
    nmlp_str one;
    nmlp_jinja_text_init(&text);
    nmlp_str_init(&one);
    bool start = true;
    for (size_t at = 0; at < s->len && run->status == NMLP_OK;) {
        static const char users[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
        uint32_t c = 0;
        int n = nmlp_utf8_decode(s->data + at, s->len - at, &c);
        size_t bytes = n > 0 ? (size_t)n : 1;
        bool up = how == UPPER || (start && how != LOWER);
        nmlp_str_clear(&one);
        (up ? nmlp_unicode_append_uppercase : nmlp_unicode_append_lowercase)(&one, s->data + at, bytes);
        bool user = s->user && s->user[at];
        nmlp_jinja_text_add(run, &text, nmlp_str_text(&one), one.len, user && one.len <= sizeof users ? users : NULL);
        bool letter = nmlp_unicode_is_word(c) && !(c >= '0' && c <= '9') && c != '_';
        start = how == TITLE ? !letter : how == CAPITALIZE ? false : start;
        at += bytes;
    }
    nmlp_str_fini(&one);
    return nmlp_jinja_text_take(run, &text);
}

static value splitlines(nmlp_jinja_run *run, const string *s, bool keep) {
    value list = nmlp_jinja_list_new(run, false);
    for (size_t at = 0; at < s->len && run->status == NMLP_OK;) {
        size_t end = at;
        while (end < s->len && s->data[end] != '\n' && s->data[end] != '\r') end++;
        size_t next = end < s->len ? end + 1 : end;
        if (next < s->len && s->data[end] == '\r' && s->data[next] == '\n') next++;
        value line = nmlp_jinja_substring(run, s, at, keep ? next : end);
        if (run->status == NMLP_OK) nmlp_jinja_list_push(run, list.as.list, line);
        at = next;
    }
    return list;
}

static bool all_chars(const string *s, const char *which) {
    bool digits = which[2] == 'd';
    bool spaces = which[2] == 's';
    for (size_t at = 0; at < s->len;) {
        uint32_t c = 0;
        int n = nmlp_utf8_decode(s->data + at, s->len - at, &c);
        bool digit = c >= '0' && c <= '9';
        bool letter = nmlp_unicode_is_word(c) && !digit && c != '_';
        bool good = digits                          ? digit
                    : spaces                        ? nmlp_unicode_is_space(c)
                    : which[5] == 'u' /* isalnum */ ? digit || letter
                                                    : letter;
        if (n <= 0 || !good) return false;
        at += (size_t)n;
    }
    return s->len > 0;
}

/* {}, {0}, {name} of str.format; no format specifications. */
static value format(nmlp_jinja_run *run, const string *s, const args_t *args) {
    nmlp_jinja_text text;
    size_t automatic = 0;
    nmlp_jinja_text_init(&text);
    for (size_t at = 0; at < s->len && run->status == NMLP_OK; at++) {
        char c = s->data[at];
        bool doubled = at + 1 < s->len && s->data[at + 1] == c;
        if ((c != '{' && c != '}') || doubled) {
            nmlp_jinja_text_add(run, &text, &s->data[at], 1, s->user ? s->user + at : NULL);
            at += doubled && (c == '{' || c == '}');
            continue;
        }
        char name[64];
        size_t n = 0;
        while (++at < s->len && s->data[at] != '}' && n + 1 < sizeof name) name[n++] = s->data[at];
        name[n] = 0;
        bool digits = n > 0;
        size_t nth = 0;
        for (size_t i = 0; i < n; i++) {
            digits = digits && name[i] >= '0' && name[i] <= '9' && i < 4;
            nth = nth * 10 + (size_t)(name[i] - '0');
        }
        const value *v = n == 0 ? nmlp_jinja_arg(args, automatic++, NULL)
                                : nmlp_jinja_arg(args, digits ? nth : SIZE_MAX, digits ? NULL : name);
        if (c == '}' || at >= s->len || !v)
            nmlp_jinja_fail(run, NMLP_E_FORMAT, "format has no value for \"{%s}\"", name);
        else
            nmlp_jinja_text_add_value(run, &text, *v);
    }
    return nmlp_jinja_text_take(run, &text);
}

static value remove_affix(nmlp_jinja_run *run, const string *s, const value *affix, bool at_start) {
    if (!has_affix(run, s, affix, at_start) || run->status != NMLP_OK) return nmlp_jinja_substring(run, s, 0, s->len);
    size_t n = affix->as.s->len;
    return at_start ? nmlp_jinja_substring(run, s, n, s->len) : nmlp_jinja_substring(run, s, 0, s->len - n);
}

static int64_t count_of(nmlp_jinja_run *run, const string *s, const string *what) {
    int64_t n = 0;
    for (size_t at = 0; what && what->len && (at = find(run, s, what, at)) != SIZE_MAX; at += what->len) n++;
    return n;
}

static value find_char(nmlp_jinja_run *run, const string *s, const string *what) {
    size_t at = what ? find(run, s, what, 0) : SIZE_MAX;
    const string before = {.data = s->data, .len = at == SIZE_MAX ? 0 : at};
    return nmlp_jinja_int(at == SIZE_MAX ? -1 : (int64_t)nmlp_jinja_chars(&before));
}

typedef enum method_id {
    M_CAPITALIZE,
    M_COUNT,
    M_ENDSWITH,
    M_FIND,
    M_FORMAT,
    M_ISALNUM,
    M_ISALPHA,
    M_ISDIGIT,
    M_ISSPACE,
    M_JOIN,
    M_LOWER,
    M_LSTRIP,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_REPLACE,
    M_RSPLIT,
    M_RSTRIP,
    M_SPLIT,
    M_SPLITLINES,
    M_STARTSWITH,
    M_STRIP,
    M_TITLE,
    M_UPPER,
    M_APPEND,
    M_EXTEND,
    M_INDEX,
    M_INSERT,
    M_POP,
    M_GET,
    M_ITEMS,
    M_KEYS,
    M_UPDATE,
    M_VALUES,
    M_CHANGED,
    M_CYCLE
} method_id;

typedef struct method_entry {
    nmlp_jinja_kind of;
    const char *name;
    method_id id;
} method_entry;

static const method_entry methods[] = {
    {NMLP_JINJA_STRING, "capitalize", M_CAPITALIZE},
    {NMLP_JINJA_STRING, "count", M_COUNT},
    {NMLP_JINJA_STRING, "endswith", M_ENDSWITH},
    {NMLP_JINJA_STRING, "find", M_FIND},
    {NMLP_JINJA_STRING, "format", M_FORMAT},
    {NMLP_JINJA_STRING, "isalnum", M_ISALNUM},
    {NMLP_JINJA_STRING, "isalpha", M_ISALPHA},
    {NMLP_JINJA_STRING, "isdigit", M_ISDIGIT},
    {NMLP_JINJA_STRING, "isspace", M_ISSPACE},
    {NMLP_JINJA_STRING, "join", M_JOIN},
    {NMLP_JINJA_STRING, "lower", M_LOWER},
    {NMLP_JINJA_STRING, "lstrip", M_LSTRIP},
    {NMLP_JINJA_STRING, "removeprefix", M_REMOVEPREFIX},
    {NMLP_JINJA_STRING, "removesuffix", M_REMOVESUFFIX},
    {NMLP_JINJA_STRING, "replace", M_REPLACE},
    {NMLP_JINJA_STRING, "rsplit", M_RSPLIT},
    {NMLP_JINJA_STRING, "rstrip", M_RSTRIP},
    {NMLP_JINJA_STRING, "split", M_SPLIT},
    {NMLP_JINJA_STRING, "splitlines", M_SPLITLINES},
    {NMLP_JINJA_STRING, "startswith", M_STARTSWITH},
    {NMLP_JINJA_STRING, "strip", M_STRIP},
    {NMLP_JINJA_STRING, "title", M_TITLE},
    {NMLP_JINJA_STRING, "upper", M_UPPER},
    {NMLP_JINJA_LIST, "append", M_APPEND},
    {NMLP_JINJA_LIST, "count", M_COUNT},
    {NMLP_JINJA_LIST, "extend", M_EXTEND},
    {NMLP_JINJA_LIST, "index", M_INDEX},
    {NMLP_JINJA_LIST, "insert", M_INSERT},
    {NMLP_JINJA_LIST, "pop", M_POP},
    {NMLP_JINJA_DICT, "get", M_GET},
    {NMLP_JINJA_DICT, "items", M_ITEMS},
    {NMLP_JINJA_DICT, "keys", M_KEYS},
    {NMLP_JINJA_DICT, "pop", M_POP},
    {NMLP_JINJA_DICT, "update", M_UPDATE},
    {NMLP_JINJA_DICT, "values", M_VALUES},
    {NMLP_JINJA_LOOP, "changed", M_CHANGED},
    {NMLP_JINJA_LOOP, "cycle", M_CYCLE},
};

static const method_entry *find_method(value self, const char *name) {
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (methods[i].of == self.kind && strcmp(methods[i].name, name) == 0) return &methods[i];
    return NULL;
}

bool nmlp_jinja_has_method(value self, const char *name) { return find_method(self, name) != NULL; }

static value join(nmlp_jinja_run *run, const string *separator, const value *list) {
    const nmlp_jinja_list *items = list ? nmlp_jinja_iterate(run, *list) : NULL;
    nmlp_jinja_text text;
    nmlp_jinja_text_init(&text);
    for (size_t i = 0; items && i < items->n && run->status == NMLP_OK; i++) {
        if (i) nmlp_jinja_text_add_string(run, &text, separator);
        nmlp_jinja_text_add_value(run, &text, items->items[i]);
    }
    return nmlp_jinja_text_take(run, &text);
}

static value string_method(nmlp_jinja_run *run, const string *s, const method_entry *m, const args_t *args) {
    const value *first = nmlp_jinja_arg(args, 0, NULL);
    switch (m->id) {
    case M_CAPITALIZE: return change_case(run, s, CAPITALIZE);
    case M_COUNT: return nmlp_jinja_int(count_of(run, s, string_arg(run, args, 0, NULL)));
    case M_ENDSWITH: return nmlp_jinja_bool(has_affix(run, s, first, false));
    case M_FIND: return find_char(run, s, string_arg(run, args, 0, NULL));
    case M_FORMAT: return format(run, s, args);
    case M_ISALNUM:
    case M_ISALPHA:
    case M_ISDIGIT:
    case M_ISSPACE: return nmlp_jinja_bool(all_chars(s, m->name));
    case M_JOIN: return join(run, s, first);
    case M_LOWER: return change_case(run, s, LOWER);
    case M_LSTRIP: return strip(run, s, string_arg(run, args, 0, "chars"), true, false);
    case M_REMOVEPREFIX: return remove_affix(run, s, first, true);
    case M_REMOVESUFFIX: return remove_affix(run, s, first, false);
    case M_REPLACE:
        return replace(run, s, string_arg(run, args, 0, "old"), string_arg(run, args, 1, "new"),
                       count_arg(args, 2, "count"));
    case M_RSPLIT: return rsplit(run, s, string_arg(run, args, 0, "sep"), count_arg(args, 1, "maxsplit"));
    case M_RSTRIP: return strip(run, s, string_arg(run, args, 0, "chars"), false, true);
    case M_SPLIT: return split(run, s, string_arg(run, args, 0, "sep"), count_arg(args, 1, "maxsplit"));
    case M_SPLITLINES: return splitlines(run, s, first && nmlp_jinja_is_true(*first));
    case M_STARTSWITH: return nmlp_jinja_bool(has_affix(run, s, first, true));
    case M_STRIP: return strip(run, s, string_arg(run, args, 0, "chars"), true, true);
    case M_TITLE: return change_case(run, s, TITLE);
    case M_UPPER: return change_case(run, s, UPPER);
    default: return nmlp_jinja_undefined();
    }
}

/* ---- lists and dictionaries ---- */

static value pop_item(nmlp_jinja_run *run, nmlp_jinja_list *list, const value *index) {
    int64_t i = index && index->kind == NMLP_JINJA_INT ? index->as.i : -1;
    if (i < 0) i += (int64_t)list->n;
    if (i < 0 || i >= (int64_t)list->n) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "pop from an empty list");
    value item = list->items[i];
    memmove(&list->items[i], &list->items[i + 1], (list->n - (size_t)i - 1) * sizeof *list->items);
    list->n--;
    return item;
}

static value insert_item(nmlp_jinja_run *run, nmlp_jinja_list *list, const value *index, const value *item) {
    if (!index || index->kind != NMLP_JINJA_INT || !item)
        return nmlp_jinja_fail(run, NMLP_E_FORMAT, "insert needs a place and a value");
    int64_t i = index->as.i < 0 ? index->as.i + (int64_t)list->n : index->as.i;
    i = i<0 ? 0 : i>(int64_t) list->n ? (int64_t)list->n : i;
    nmlp_jinja_list_push(run, list, *item);
    if (run->status != NMLP_OK) return nmlp_jinja_undefined();
    memmove(&list->items[i + 1], &list->items[i], (list->n - (size_t)i - 1) * sizeof *list->items);
    list->items[i] = *item;
    return nmlp_jinja_none();
}

static value list_method(nmlp_jinja_run *run, nmlp_jinja_list *list, method_id id, const args_t *args) {
    const value *first = nmlp_jinja_arg(args, 0, NULL);
    int64_t count = 0;
    if (id == M_POP) return pop_item(run, list, first);
    if (!first) return nmlp_jinja_fail(run, NMLP_E_FORMAT, "a method of a list needs a value");
    switch (id) {
    case M_APPEND: nmlp_jinja_list_push(run, list, *first); return nmlp_jinja_none();
    case M_INSERT: return insert_item(run, list, first, nmlp_jinja_arg(args, 1, NULL));
    case M_EXTEND: {
        const nmlp_jinja_list *more = nmlp_jinja_iterate(run, *first);
        size_t n = more ? more->n : 0;
        for (size_t i = 0; i < n && run->status == NMLP_OK; i++) nmlp_jinja_list_push(run, list, more->items[i]);
        return nmlp_jinja_none();
    }
    default:
        for (size_t i = 0; i < list->n && run->status == NMLP_OK; i++) {
            bool equal = nmlp_jinja_equal(run, list->items[i], *first);
            if (equal && id == M_INDEX) return nmlp_jinja_int((int64_t)i);
            count += equal;
        }
        return id == M_COUNT ? nmlp_jinja_int(count) : nmlp_jinja_fail(run, NMLP_E_FORMAT, "index: not in the list");
    }
}

static value pop_key(nmlp_jinja_run *run, nmlp_jinja_dict *dict, const value *key, const value *otherwise) {
    for (size_t i = 0; key && i < dict->n; i++) {
        if (!nmlp_jinja_equal(run, dict->keys[i], *key)) continue;
        value item = dict->values[i];
        memmove(&dict->keys[i], &dict->keys[i + 1], (dict->n - i - 1) * sizeof *dict->keys);
        memmove(&dict->values[i], &dict->values[i + 1], (dict->n - i - 1) * sizeof *dict->values);
        dict->n--;
        return item;
    }
    return otherwise ? *otherwise : nmlp_jinja_fail(run, NMLP_E_FORMAT, "pop: no such key");
}

static value dict_members(nmlp_jinja_run *run, const nmlp_jinja_dict *dict, method_id id) {
    value list = nmlp_jinja_list_new(run, false);
    for (size_t i = 0; i < dict->n && run->status == NMLP_OK; i++) {
        value item = id == M_KEYS ? dict->keys[i] : dict->values[i];
        if (id == M_ITEMS) {
            item = nmlp_jinja_list_new(run, true);
            if (run->status != NMLP_OK) break;
            nmlp_jinja_list_push(run, item.as.list, dict->keys[i]);
            nmlp_jinja_list_push(run, item.as.list, dict->values[i]);
        }
        nmlp_jinja_list_push(run, list.as.list, item);
    }
    return list;
}

static value dict_method(nmlp_jinja_run *run, nmlp_jinja_dict *dict, method_id id, const args_t *args) {
    const value *first = nmlp_jinja_arg(args, 0, "key");
    const value *second = nmlp_jinja_arg(args, 1, "default");
    if (id == M_GET) {
        const value *found = first ? nmlp_jinja_dict_get(run, dict, *first) : NULL;
        return found ? *found : second ? *second : nmlp_jinja_none();
    }
    if (id == M_POP) return pop_key(run, dict, first, second);
    if (id != M_UPDATE) return dict_members(run, dict, id);
    for (size_t i = 0; i < args->n && run->status == NMLP_OK; i++) {
        const value *v = &args->values[i];
        if (args->names[i]) nmlp_jinja_dict_put(run, dict, nmlp_jinja_cstring(run, args->names[i]), *v);
        size_t n = !args->names[i] && v->kind == NMLP_JINJA_DICT ? v->as.dict->n : 0;
        for (size_t k = 0; k < n; k++) nmlp_jinja_dict_put(run, dict, v->as.dict->keys[k], v->as.dict->values[k]);
    }
    return nmlp_jinja_none();
}

static value loop_method(nmlp_jinja_run *run, nmlp_jinja_loop *loop, method_id id, const args_t *args) {
    if (id == M_CYCLE) return args->n ? args->values[loop->index % args->n] : nmlp_jinja_undefined();
    const value now = args->n ? args->values[0] : nmlp_jinja_none();
    bool changed = loop->last_changed.kind == NMLP_JINJA_UNDEFINED || !nmlp_jinja_equal(run, now, loop->last_changed);
    loop->last_changed = now;
    return nmlp_jinja_bool(changed);
}

value nmlp_jinja_method(nmlp_jinja_run *run, value self, const char *name, const args_t *args) {
    const method_entry *m = find_method(self, name);
    if (!nmlp_jinja_step(run, 1)) return nmlp_jinja_undefined();
    if (!m)
        return nmlp_jinja_fail(run, NMLP_E_UNSUPPORTED, "%s has no method \"%.60s\"", nmlp_jinja_kind_name(self), name);
    switch (self.kind) {
    case NMLP_JINJA_STRING: return string_method(run, self.as.s, m, args);
    case NMLP_JINJA_LIST: return list_method(run, self.as.list, m->id, args);
    case NMLP_JINJA_DICT: return dict_method(run, self.as.dict, m->id, args);
    default: return loop_method(run, self.as.loop, m->id, args);
    }
}
