/* Values of the interpreter: memory, strings that know which bytes are a user's, lists, dictionaries, comparison. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/jinja_internal.h"
#include "text/utf8.h"

struct nmlp_jinja_chunk {
    nmlp_jinja_chunk *next;
    size_t bytes;
};

enum { CHUNK_BYTES = 64 << 10, ALIGN_BYTES = 16 };

void *nmlp_jinja_alloc(nmlp_jinja_heap *heap, size_t bytes) {
    if (bytes > NMLP_JINJA_MEMORY_MAX_BYTES) return NULL;
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    size_t head = (sizeof(nmlp_jinja_chunk) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (!heap->chunks || heap->chunks->bytes - heap->used_bytes < bytes) {
        size_t chunk_bytes = bytes + head > CHUNK_BYTES ? bytes + head : CHUNK_BYTES;
        if (heap->total_bytes + chunk_bytes > NMLP_JINJA_MEMORY_MAX_BYTES) return NULL;
        nmlp_jinja_chunk *chunk = nmlp_mem_new(chunk_bytes, 1, NULL);
        if (!chunk) return NULL;
        *chunk = (nmlp_jinja_chunk){.next = heap->chunks, .bytes = chunk_bytes};
        heap->chunks = chunk;
        heap->used_bytes = head;
        heap->total_bytes += chunk_bytes;
    }
    void *block = (char *)heap->chunks + heap->used_bytes;
    heap->used_bytes += bytes;
    return block;
}

void nmlp_jinja_heap_fini(nmlp_jinja_heap *heap) {
    for (nmlp_jinja_chunk *chunk = heap->chunks; chunk;) {
        nmlp_jinja_chunk *next = chunk->next;
        nmlp_mem_free(chunk);
        chunk = next;
    }
    *heap = (nmlp_jinja_heap){0};
}

nmlp_jinja_value nmlp_jinja_fail(nmlp_jinja_run *run, nmlp_status code, const char *fmt, ...) {
    if (run->status == NMLP_OK) {
        char text[512];
        va_list args;
        va_start(args, fmt);
        vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        run->status = nmlp_fail(run->err, code, "chat template line %d: %s", run->line, text);
    }
    return nmlp_jinja_undefined();
}

bool nmlp_jinja_step(nmlp_jinja_run *run, size_t steps) {
    if (run->status != NMLP_OK) return false;
    run->steps += (int64_t)steps;
    if (run->steps <= NMLP_JINJA_STEPS_MAX) return true;
    nmlp_jinja_fail(run, NMLP_E_LIMIT, "more than %d steps", (int)NMLP_JINJA_STEPS_MAX);
    return false;
}

static void *alloc(nmlp_jinja_run *run, size_t bytes) {
    void *block = run->status == NMLP_OK ? nmlp_jinja_alloc(&run->heap, bytes) : NULL;
    if (!block)
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "more than %d MB of memory", (int)(NMLP_JINJA_MEMORY_MAX_BYTES >> 20));
    return block;
}

nmlp_jinja_value nmlp_jinja_undefined(void) { return (nmlp_jinja_value){.kind = NMLP_JINJA_UNDEFINED}; }
nmlp_jinja_value nmlp_jinja_none(void) { return (nmlp_jinja_value){.kind = NMLP_JINJA_NONE}; }
nmlp_jinja_value nmlp_jinja_bool(bool b) { return (nmlp_jinja_value){.kind = NMLP_JINJA_BOOL, .as.b = b}; }
nmlp_jinja_value nmlp_jinja_int(int64_t i) { return (nmlp_jinja_value){.kind = NMLP_JINJA_INT, .as.i = i}; }

static nmlp_jinja_value make_string(nmlp_jinja_run *run, const char *data, size_t len, const char *user) {
    nmlp_jinja_string *s = alloc(run, sizeof *s);
    if (!s) return nmlp_jinja_undefined();
    *s = (nmlp_jinja_string){.data = data, .len = len, .user = user};
    return (nmlp_jinja_value){.kind = NMLP_JINJA_STRING, .as.s = s};
}

nmlp_jinja_value nmlp_jinja_string_new(nmlp_jinja_run *run, const char *data, size_t len, bool user) {
    char *copy = alloc(run, len + 1);
    char *mask = user && len ? alloc(run, len) : NULL;
    if (!copy || (user && len && !mask)) return nmlp_jinja_undefined();
    if (len) memcpy(copy, data, len);
    if (mask) memset(mask, 1, len);
    return make_string(run, copy, len, mask);
}

nmlp_jinja_value nmlp_jinja_cstring(nmlp_jinja_run *run, const char *text) {
    return nmlp_jinja_string_new(run, text, strlen(text), false);
}

nmlp_jinja_value nmlp_jinja_substring(nmlp_jinja_run *run, const nmlp_jinja_string *s, size_t begin, size_t end) {
    return make_string(run, s->data + begin, end - begin, s->user ? s->user + begin : NULL);
}

nmlp_jinja_value nmlp_jinja_list_new(nmlp_jinja_run *run, bool is_tuple) {
    nmlp_jinja_list *list = alloc(run, sizeof *list);
    if (!list) return nmlp_jinja_undefined();
    list->is_tuple = is_tuple;
    return (nmlp_jinja_value){.kind = NMLP_JINJA_LIST, .as.list = list};
}

static bool grow(nmlp_jinja_run *run, nmlp_jinja_value **items, size_t n, size_t capacity) {
    nmlp_jinja_value *grown = alloc(run, capacity * sizeof *grown);
    if (!grown) return false;
    if (n) memcpy(grown, *items, n * sizeof *grown);
    *items = grown;
    return true;
}

void nmlp_jinja_list_push(nmlp_jinja_run *run, nmlp_jinja_list *list, nmlp_jinja_value item) {
    if (!nmlp_jinja_step(run, 1)) return;
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 4;
        if (!grow(run, &list->items, list->n, capacity)) return;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
}

nmlp_jinja_value nmlp_jinja_dict_new(nmlp_jinja_run *run) {
    nmlp_jinja_dict *dict = alloc(run, sizeof *dict);
    if (!dict) return nmlp_jinja_undefined();
    return (nmlp_jinja_value){.kind = NMLP_JINJA_DICT, .as.dict = dict};
}

const nmlp_jinja_value *nmlp_jinja_dict_get(nmlp_jinja_run *run, const nmlp_jinja_dict *dict, nmlp_jinja_value key) {
    if (!nmlp_jinja_step(run, 1 + dict->n / 8)) return NULL;
    for (size_t i = 0; i < dict->n; i++)
        if (nmlp_jinja_equal(run, dict->keys[i], key)) return &dict->values[i];
    return NULL;
}

const nmlp_jinja_value *nmlp_jinja_dict_find(nmlp_jinja_run *run, const nmlp_jinja_dict *dict, const char *key) {
    const nmlp_jinja_string s = {.data = key, .len = strlen(key)};
    return nmlp_jinja_dict_get(run, dict, (nmlp_jinja_value){.kind = NMLP_JINJA_STRING, .as.s = &s});
}

void nmlp_jinja_dict_put(nmlp_jinja_run *run, nmlp_jinja_dict *dict, nmlp_jinja_value key, nmlp_jinja_value value) {
    nmlp_jinja_value *known = (nmlp_jinja_value *)(uintptr_t)nmlp_jinja_dict_get(run, dict, key);
    if (known) {
        *known = value;
        return;
    }
    if (run->status != NMLP_OK) return;
    if (dict->n == dict->capacity) {
        size_t capacity = dict->capacity ? 2 * dict->capacity : 8;
        if (!grow(run, &dict->keys, dict->n, capacity) || !grow(run, &dict->values, dict->n, capacity)) return;
        dict->capacity = capacity;
    }
    dict->keys[dict->n] = key;
    dict->values[dict->n++] = value;
}

bool nmlp_jinja_is_true(nmlp_jinja_value v) {
    switch (v.kind) {
    case NMLP_JINJA_UNDEFINED:
    case NMLP_JINJA_NONE: return false;
    case NMLP_JINJA_BOOL: return v.as.b;
    case NMLP_JINJA_INT: return v.as.i != 0;
    case NMLP_JINJA_FLOAT: return v.as.f != 0;
    case NMLP_JINJA_STRING: return v.as.s->len > 0;
    case NMLP_JINJA_LIST: return v.as.list->n > 0;
    case NMLP_JINJA_DICT: return v.as.dict->n > 0 || v.as.dict->is_namespace;
    default: return true;
    }
}

static bool is_number(nmlp_jinja_value v) {
    return v.kind == NMLP_JINJA_BOOL || v.kind == NMLP_JINJA_INT || v.kind == NMLP_JINJA_FLOAT;
}

static double number_of(nmlp_jinja_value v) {
    return v.kind == NMLP_JINJA_FLOAT ? v.as.f : v.kind == NMLP_JINJA_INT ? (double)v.as.i : (double)v.as.b;
}

static bool equal_lists(nmlp_jinja_run *run, const nmlp_jinja_list *a, const nmlp_jinja_list *b) {
    if (a->n != b->n || a->is_tuple != b->is_tuple) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!nmlp_jinja_equal(run, a->items[i], b->items[i])) return false;
    return true;
}

static bool equal_dicts(nmlp_jinja_run *run, const nmlp_jinja_dict *a, const nmlp_jinja_dict *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const nmlp_jinja_value *other = nmlp_jinja_dict_get(run, b, a->keys[i]);
        if (!other || !nmlp_jinja_equal(run, a->values[i], *other)) return false;
    }
    return true;
}

bool nmlp_jinja_equal(nmlp_jinja_run *run, nmlp_jinja_value a, nmlp_jinja_value b) {
    bool equal = false;
    if (is_number(a) && is_number(b)) return number_of(a) == number_of(b);
    if (a.kind != b.kind || !nmlp_jinja_step(run, 1)) return false;
    if (run->depth >= NMLP_JINJA_DEPTH_MAX) {
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "values nested too deeply");
        return false;
    }
    run->depth++;
    switch (a.kind) {
    case NMLP_JINJA_UNDEFINED:
    case NMLP_JINJA_NONE: equal = true; break;
    case NMLP_JINJA_STRING:
        equal = a.as.s->len == b.as.s->len && memcmp(a.as.s->data, b.as.s->data, a.as.s->len) == 0;
        break;
    case NMLP_JINJA_LIST: equal = equal_lists(run, a.as.list, b.as.list); break;
    case NMLP_JINJA_DICT: equal = a.as.dict == b.as.dict || equal_dicts(run, a.as.dict, b.as.dict); break;
    case NMLP_JINJA_CALLABLE: equal = a.as.callable == b.as.callable; break;
    default: break;
    }
    run->depth--;
    return equal;
}

int nmlp_jinja_order(nmlp_jinja_run *run, nmlp_jinja_value a, nmlp_jinja_value b) {
    if (is_number(a) && is_number(b)) return (number_of(a) > number_of(b)) - (number_of(a) < number_of(b));
    if (a.kind == NMLP_JINJA_STRING && b.kind == NMLP_JINJA_STRING) { /* UTF-8 keeps the order of code points */
        size_t n = a.as.s->len < b.as.s->len ? a.as.s->len : b.as.s->len;
        int order = memcmp(a.as.s->data, b.as.s->data, n);
        return order ? (order > 0) - (order < 0) : (a.as.s->len > b.as.s->len) - (a.as.s->len < b.as.s->len);
    }
    if (a.kind == NMLP_JINJA_LIST && b.kind == NMLP_JINJA_LIST && run->depth < NMLP_JINJA_DEPTH_MAX) {
        const nmlp_jinja_list *left = a.as.list;
        const nmlp_jinja_list *right = b.as.list;
        for (size_t i = 0; i < left->n && i < right->n && nmlp_jinja_step(run, 1); i++) {
            run->depth++;
            int order = nmlp_jinja_order(run, left->items[i], right->items[i]);
            run->depth--;
            if (order) return order;
        }
        return (left->n > right->n) - (left->n < right->n);
    }
    nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s and %s have no order", nmlp_jinja_kind_name(a), nmlp_jinja_kind_name(b));
    return 0;
}

bool nmlp_jinja_is_text(nmlp_jinja_value v, const char *text) {
    return v.kind == NMLP_JINJA_STRING && v.as.s->len == strlen(text) && memcmp(v.as.s->data, text, v.as.s->len) == 0;
}

size_t nmlp_jinja_chars(const nmlp_jinja_string *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->len; i++) n += ((unsigned char)s->data[i] & 0xC0) != 0x80;
    return n;
}

const char *nmlp_jinja_kind_name(nmlp_jinja_value v) {
    static const char *const names[] = {"undefined", "none", "boolean", "integer",  "float",
                                        "string",    "list", "mapping", "callable", "loop"};
    return names[v.kind];
}

static const nmlp_jinja_list *chars_of(nmlp_jinja_run *run, const nmlp_jinja_string *s) {
    nmlp_jinja_value list = nmlp_jinja_list_new(run, false);
    for (size_t at = 0; at < s->len && run->status == NMLP_OK;) {
        uint32_t c;
        int n = nmlp_utf8_decode(s->data + at, s->len - at, &c);
        size_t bytes = n > 0 ? (size_t)n : 1;
        nmlp_jinja_value one = nmlp_jinja_substring(run, s, at, at + bytes);
        if (run->status == NMLP_OK) nmlp_jinja_list_push(run, list.as.list, one);
        at += bytes;
    }
    return run->status == NMLP_OK ? list.as.list : NULL;
}

const nmlp_jinja_list *nmlp_jinja_iterate(nmlp_jinja_run *run, nmlp_jinja_value v) {
    nmlp_jinja_value list;
    switch (v.kind) {
    case NMLP_JINJA_LIST: return v.as.list;
    case NMLP_JINJA_STRING: return chars_of(run, v.as.s);
    case NMLP_JINJA_UNDEFINED:
    case NMLP_JINJA_DICT:
        list = nmlp_jinja_list_new(run, false);
        for (size_t i = 0; v.kind == NMLP_JINJA_DICT && run->status == NMLP_OK && i < v.as.dict->n; i++)
            nmlp_jinja_list_push(run, list.as.list, v.as.dict->keys[i]);
        return run->status == NMLP_OK ? list.as.list : NULL;
    default: nmlp_jinja_fail(run, NMLP_E_FORMAT, "%s cannot be iterated over", nmlp_jinja_kind_name(v)); return NULL;
    }
}

const nmlp_jinja_value *nmlp_jinja_arg(const nmlp_jinja_args *args, size_t nth, const char *name) {
    for (size_t i = 0; i < args->n; i++) {
        bool found = args->names[i] ? name && strcmp(args->names[i], name) == 0 : i == nth;
        if (found) return &args->values[i];
    }
    return NULL;
}

/* ---- text ---- */

void nmlp_jinja_text_init(nmlp_jinja_text *text) {
    nmlp_str_init(&text->bytes);
    nmlp_str_init(&text->user);
}

void nmlp_jinja_text_fini(nmlp_jinja_text *text) {
    nmlp_str_fini(&text->bytes);
    nmlp_str_fini(&text->user);
}

void nmlp_jinja_text_add(nmlp_jinja_run *run, nmlp_jinja_text *text, const char *data, size_t len, const char *user) {
    static const char zeros[256];
    if (!nmlp_jinja_step(run, 1 + len / 64)) return;
    if (text->bytes.len + len > NMLP_JINJA_OUTPUT_MAX_BYTES) {
        nmlp_jinja_fail(run, NMLP_E_LIMIT, "more than %d MB of text", (int)(NMLP_JINJA_OUTPUT_MAX_BYTES >> 20));
        return;
    }
    nmlp_str_append(&text->bytes, data, len);
    if (user) nmlp_str_append(&text->user, user, len);
    for (size_t done = 0; !user && done < len; done += sizeof zeros)
        nmlp_str_append(&text->user, zeros, len - done < sizeof zeros ? len - done : sizeof zeros);
    if (text->bytes.failed || text->user.failed) nmlp_jinja_fail(run, NMLP_E_NOMEM, "out of memory");
}

void nmlp_jinja_text_puts(nmlp_jinja_run *run, nmlp_jinja_text *text, const char *data) {
    nmlp_jinja_text_add(run, text, data, strlen(data), NULL);
}

void nmlp_jinja_text_add_string(nmlp_jinja_run *run, nmlp_jinja_text *text, const nmlp_jinja_string *s) {
    nmlp_jinja_text_add(run, text, s->data, s->len, s->user);
}

nmlp_jinja_value nmlp_jinja_text_take(nmlp_jinja_run *run, nmlp_jinja_text *text) {
    size_t len = text->bytes.len;
    char *data = alloc(run, len + 1);
    char *user = len ? alloc(run, len) : NULL;
    nmlp_jinja_value v = nmlp_jinja_undefined();
    if (data && (user || !len)) {
        if (len) memcpy(data, text->bytes.data, len);
        if (len) memcpy(user, text->user.data, len);
        v = make_string(run, data, len, user);
    }
    nmlp_jinja_text_fini(text);
    return v;
}

nmlp_jinja_value nmlp_jinja_to_string(nmlp_jinja_run *run, nmlp_jinja_value v) {
    if (v.kind == NMLP_JINJA_STRING) return v;
    nmlp_jinja_text text;
    nmlp_jinja_text_init(&text);
    nmlp_jinja_text_add_value(run, &text, v);
    return nmlp_jinja_text_take(run, &text);
}
