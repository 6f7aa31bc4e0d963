#include "gguf/gguf.h"

#include <inttypes.h>
#include <string.h>

enum { VALUES_MAX = 1 << 16, TENSORS_MAX = 1 << 16, NAME_MAX_BYTES = 256, KEY_MAX_BYTES = 1 << 10, DIMS_MAX = 4 };
enum { ALIGN_DEFAULT = 32, ALIGN_MAX = 1 << 16 };

/* What is left of the file's front. */
struct cursor {
    const unsigned char *at;
    const unsigned char *end;
    const char *origin;
    nmlp_err *err;
};

static nmlp_status truncated(const struct cursor *c, const char *what) {
    return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: the GGUF file ends inside %s: truncated?", c->origin, what);
}

static bool take(struct cursor *c, uint64_t bytes, const unsigned char **at) {
    if ((uint64_t)(c->end - c->at) < bytes) return false;
    *at = c->at;
    c->at += bytes;
    return true;
}

static uint64_t little_endian(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static bool take_int(struct cursor *c, int bytes, uint64_t *value) {
    const unsigned char *at;
    if (!take(c, (uint64_t)bytes, &at)) return false;
    *value = little_endian(at, bytes);
    return true;
}

static nmlp_status take_name(struct cursor *c, nmlp_arena *arena, uint64_t most, const char *what, const char **name) {
    uint64_t len;
    const unsigned char *at;
    if (!take_int(c, 8, &len)) return truncated(c, what);
    if (len > most)
        return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: a name of %" PRIu64 " bytes in %s; at most %" PRIu64, c->origin,
                         len, what, most);
    if (!take(c, len, &at)) return truncated(c, what);
    *name = nmlp_arena_strndup(arena, (const char *)at, (size_t)len, c->err);
    return *name ? NMLP_OK : NMLP_E_NOMEM;
}

/* Of one item; 0: of no fixed size. */
static int kind_bytes(nmlp_gguf_kind kind) {
    static const int bytes[NMLP_GGUF_KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return bytes[kind];
}

/* Past n items, which are checked to be there. */
static nmlp_status skip_items(struct cursor *c, const nmlp_gguf_value *v, nmlp_gguf_kind kind, uint64_t n) {
    const unsigned char *at;
    uint64_t left = (uint64_t)(c->end - c->at);
    if (kind != NMLP_GGUF_STRING) {
        uint64_t each = (uint64_t)kind_bytes(kind);
        if (n > left / each || !take(c, n * each, &at)) return truncated(c, v->key);
        return NMLP_OK;
    }
    if (n > left / 8) return truncated(c, v->key);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len;
        if (!take_int(c, 8, &len) || !take(c, len, &at)) return truncated(c, v->key);
    }
    return NMLP_OK;
}

static nmlp_status read_kind(struct cursor *c, const char *key, nmlp_gguf_kind *kind) {
    uint64_t number;
    if (!take_int(c, 4, &number)) return truncated(c, key);
    if (number >= NMLP_GGUF_KINDS)
        return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: key \"%s\" has the unknown type %" PRIu64, c->origin, key, number);
    *kind = (nmlp_gguf_kind)number;
    return NMLP_OK;
}

static nmlp_status read_value(struct cursor *c, nmlp_arena *arena, nmlp_gguf_value *v) {
    *v = (nmlp_gguf_value){.n = 1};
    NMLP_RETURN_IF_FAILED(take_name(c, arena, KEY_MAX_BYTES, "the metadata", &v->key));
    NMLP_RETURN_IF_FAILED(read_kind(c, v->key, &v->kind));
    if (v->kind == NMLP_GGUF_STRING) {
        if (!take_int(c, 8, &v->n) || !take(c, v->n, &v->data)) return truncated(c, v->key);
        return NMLP_OK;
    }
    v->item_kind = v->kind;
    if (v->kind == NMLP_GGUF_ARRAY) {
        NMLP_RETURN_IF_FAILED(read_kind(c, v->key, &v->item_kind));
        if (v->item_kind == NMLP_GGUF_ARRAY)
            return nmlp_fail(c->err, NMLP_E_UNSUPPORTED, "%s: key \"%s\" is an array of arrays", c->origin, v->key);
        if (!take_int(c, 8, &v->n)) return truncated(c, v->key);
    }
    v->data = c->at;
    return skip_items(c, v, v->item_kind, v->n);
}

static nmlp_status read_dims(struct cursor *c, nmlp_gguf_tensor *t) {
    uint64_t n_dims;
    if (!take_int(c, 4, &n_dims)) return truncated(c, t->name);
    if (n_dims < 1 || n_dims > DIMS_MAX)
        return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: tensor %s has %" PRIu64 " dimensions, expected 1 to %d", c->origin,
                         t->name, n_dims, DIMS_MAX);
    t->n_dims = (int)n_dims;
    t->rows = 1;
    for (uint64_t d = 0; d < n_dims; d++) {
        uint64_t size;
        if (!take_int(c, 8, &size)) return truncated(c, t->name);
        if (size < 1 || size > INT64_C(1) << 31 || (d > 0 && t->rows > (INT64_C(1) << 40) / (int64_t)size))
            return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: tensor %s: dimension %" PRIu64 " is not a usable size",
                             c->origin, t->name, d);
        if (d == 0)
            t->cols = (int64_t)size;
        else
            t->rows *= (int64_t)size;
    }
    return NMLP_OK;
}

/* The offset waits in `data` for the place where tensors begin. */
static nmlp_status read_tensor(struct cursor *c, nmlp_arena *arena, nmlp_gguf_tensor *t, uint64_t *offset) {
    uint64_t type;
    *t = (nmlp_gguf_tensor){0};
    NMLP_RETURN_IF_FAILED(take_name(c, arena, NAME_MAX_BYTES, "the table of tensors", &t->name));
    NMLP_RETURN_IF_FAILED(read_dims(c, t));
    if (!take_int(c, 4, &type) || !take_int(c, 8, offset)) return truncated(c, t->name);
    const nmlp_gguf_layout *layout = nmlp_gguf_layout_of((uint32_t)type);
    if (!layout)
        return nmlp_fail(c->err, NMLP_E_UNSUPPORTED,
                         "%s: tensor %s has type %" PRIu64 "; supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
                         "Q5_1, Q4_K, Q5_K, Q6_K",
                         c->origin, t->name, type);
    t->type = (nmlp_gguf_type)type;
    if (t->cols % layout->block != 0)
        return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: tensor %s has rows of %" PRId64 ", no multiple of a block of %s",
                         c->origin, t->name, t->cols, layout->name);
    size_t row_bytes = (size_t)(t->cols / layout->block) * layout->bytes;
    if (nmlp_mul_overflows((size_t)t->rows, row_bytes, &t->bytes))
        return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: tensor %s is too large", c->origin, t->name);
    return NMLP_OK;
}

static nmlp_status read_counts(struct cursor *c, uint64_t *n_tensors, uint64_t *n_values) {
    const unsigned char *magic;
    uint64_t version;
    if (!take(c, 4, &magic) || memcmp(magic, "GGUF", 4) != 0)
        return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: is no GGUF file: it does not begin with \"GGUF\"", c->origin);
    if (!take_int(c, 4, &version)) return truncated(c, "the header");
    if (version != 2 && version != 3)
        return nmlp_fail(c->err, NMLP_E_UNSUPPORTED, "%s: GGUF version %" PRIu64 "; versions 2 and 3 are supported%s",
                         c->origin, version, version > 0xffffff ? " (a big-endian file?)" : "");
    if (!take_int(c, 8, n_tensors) || !take_int(c, 8, n_values)) return truncated(c, "the header");
    if (*n_tensors > TENSORS_MAX || *n_values > VALUES_MAX)
        return nmlp_fail(c->err, NMLP_E_LIMIT, "%s: %" PRIu64 " tensors and %" PRIu64 " keys; at most %d and %d",
                         c->origin, *n_tensors, *n_values, TENSORS_MAX, VALUES_MAX);
    return NMLP_OK;
}

/* Where each tensor's bytes are, once their beginning is known. */
static nmlp_status place_tensors(nmlp_gguf *file, const struct cursor *c, const uint64_t *offsets,
                                 const unsigned char *start) {
    int64_t align = ALIGN_DEFAULT;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_int(file, "general.alignment", 1, ALIGN_MAX, &align, c->err));
    uint64_t front = (uint64_t)(c->at - start), bytes = (uint64_t)(c->end - start);
    uint64_t begin = (front + (uint64_t)align - 1) / (uint64_t)align * (uint64_t)align;
    for (size_t i = 0; i < file->n_tensors; i++) {
        nmlp_gguf_tensor *t = &file->tensors[i];
        if (begin > bytes || offsets[i] > bytes - begin || t->bytes > bytes - begin - offsets[i])
            return nmlp_fail(c->err, NMLP_E_FORMAT, "%s: tensor %s runs past the end of the file: truncated?",
                             c->origin, t->name);
        t->data = start + begin + offsets[i];
    }
    return NMLP_OK;
}

static nmlp_status read_all(nmlp_gguf *file, const unsigned char *data, size_t bytes, nmlp_err *err) {
    struct cursor c = {.at = data, .end = data + bytes, .origin = file->origin, .err = err};
    uint64_t n_tensors = 0, n_values = 0;
    NMLP_RETURN_IF_FAILED(read_counts(&c, &n_tensors, &n_values));
    file->values = nmlp_arena_new(&file->arena, (size_t)n_values, sizeof *file->values, err);
    file->tensors = nmlp_arena_new(&file->arena, (size_t)n_tensors, sizeof *file->tensors, err);
    uint64_t *offsets = nmlp_arena_new(&file->arena, (size_t)n_tensors, sizeof *offsets, err);
    if (!file->values || !file->tensors || !offsets) return NMLP_E_NOMEM;
    for (; file->n_values < n_values; file->n_values++)
        NMLP_RETURN_IF_FAILED(read_value(&c, &file->arena, &file->values[file->n_values]));
    for (; file->n_tensors < n_tensors; file->n_tensors++)
        NMLP_RETURN_IF_FAILED(
            read_tensor(&c, &file->arena, &file->tensors[file->n_tensors], &offsets[file->n_tensors]));
    return place_tensors(file, &c, offsets, data);
}

nmlp_status nmlp_gguf_parse(nmlp_gguf *file, const unsigned char *data, size_t bytes, const char *origin,
                            nmlp_err *err) {
    *file = (nmlp_gguf){0};
    nmlp_arena_init(&file->arena);
    if (bytes == 0) return nmlp_fail(err, NMLP_E_FORMAT, "%s: is empty", origin);
    file->origin = nmlp_arena_strdup(&file->arena, origin, err);
    nmlp_status st = file->origin ? read_all(file, data, bytes, err) : NMLP_E_NOMEM;
    if (st != NMLP_OK) nmlp_gguf_close(file);
    return st;
}

nmlp_status nmlp_gguf_open(nmlp_gguf *file, const char *path, nmlp_err *err) {
    nmlp_file_map map;
    *file = (nmlp_gguf){0};
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&map, path, err));
    nmlp_status st = nmlp_gguf_parse(file, map.data, map.bytes, path, err);
    if (st == NMLP_OK)
        file->map = map;
    else
        nmlp_file_map_close(&map);
    return st;
}

void nmlp_gguf_close(nmlp_gguf *file) {
    nmlp_arena_fini(&file->arena);
    nmlp_file_map_close(&file->map);
    *file = (nmlp_gguf){0};
}

const nmlp_gguf_value *nmlp_gguf_find(const nmlp_gguf *file, const char *key) {
    for (size_t i = 0; i < file->n_values; i++)
        if (strcmp(file->values[i].key, key) == 0) return &file->values[i];
    return NULL;
}

const nmlp_gguf_tensor *nmlp_gguf_find_tensor(const nmlp_gguf *file, const char *name) {
    for (size_t i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

/* ---- typed values ---- */

/* A number of any kind; false for strings and arrays. */
static bool number_at(const unsigned char *at, nmlp_gguf_kind kind, double *number) {
    if (kind == NMLP_GGUF_STRING || kind == NMLP_GGUF_ARRAY) return false;
    int bytes = kind_bytes(kind);
    uint64_t bits = little_endian(at, bytes);
    if (kind == NMLP_GGUF_F32) {
        uint32_t narrow = (uint32_t)bits;
        float value;
        memcpy(&value, &narrow, sizeof value);
        *number = (double)value;
    } else if (kind == NMLP_GGUF_F64) {
        memcpy(number, &bits, sizeof *number);
    } else if (kind == NMLP_GGUF_I8 || kind == NMLP_GGUF_I16 || kind == NMLP_GGUF_I32 || kind == NMLP_GGUF_I64) {
        int shift = 64 - 8 * bytes;
        *number = (double)((int64_t)(bits << shift) >> shift);
    } else {
        *number = (double)bits;
    }
    return true;
}

nmlp_status nmlp_gguf_get_number(const nmlp_gguf *file, const char *key, double *out, nmlp_err *err) {
    const nmlp_gguf_value *v = nmlp_gguf_find(file, key);
    if (!v) return NMLP_OK;
    if (number_at(v->data, v->kind, out)) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be a number", file->origin, key);
}

nmlp_status nmlp_gguf_get_int(const nmlp_gguf *file, const char *key, int64_t min, int64_t max, int64_t *out,
                              nmlp_err *err) {
    double number = (double)*out;
    if (!nmlp_gguf_find(file, key)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_number(file, key, &number, err));
    if (!(number >= (double)min && number <= (double)max) || number != (double)(int64_t)number)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "%s: key \"%s\" is %g; expected a whole number from %" PRId64 " to %" PRId64, file->origin,
                         key, number, min, max);
    *out = (int64_t)number;
    return NMLP_OK;
}

nmlp_status nmlp_gguf_get_bool(const nmlp_gguf *file, const char *key, bool *out, nmlp_err *err) {
    int64_t number = *out;
    NMLP_RETURN_IF_FAILED(nmlp_gguf_get_int(file, key, 0, 1, &number, err));
    *out = number != 0;
    return NMLP_OK;
}

nmlp_status nmlp_gguf_get_string(nmlp_gguf *file, const char *key, const char **out, nmlp_err *err) {
    const nmlp_gguf_value *v = nmlp_gguf_find(file, key);
    *out = NULL;
    if (!v) return NMLP_OK;
    if (v->kind != NMLP_GGUF_STRING || memchr(v->data, 0, (size_t)v->n))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: key \"%s\" must be a string", file->origin, key);
    *out = nmlp_arena_strndup(&file->arena, (const char *)v->data, (size_t)v->n, err);
    return *out ? NMLP_OK : NMLP_E_NOMEM;
}

nmlp_status nmlp_gguf_get_items(const nmlp_gguf *file, const char *key, nmlp_gguf_kind kind, nmlp_gguf_items *items,
                                nmlp_err *err) {
    const nmlp_gguf_value *v = nmlp_gguf_find(file, key);
    if (!v || v->kind != NMLP_GGUF_ARRAY || v->item_kind != kind)
        return nmlp_fail(err, NMLP_E_MISSING, "%s: key \"%s\" with an array of %s is missing", file->origin, key,
                         kind == NMLP_GGUF_STRING ? "strings" : "numbers");
    *items = (nmlp_gguf_items){.at = v->data, .left = v->n, .kind = kind};
    return NMLP_OK;
}

bool nmlp_gguf_next_string(nmlp_gguf_items *items, const char **text, size_t *len) {
    if (items->left == 0) return false;
    *len = (size_t)little_endian(items->at, 8);
    *text = (const char *)items->at + 8;
    items->at += 8 + *len;
    items->left--;
    return true;
}

bool nmlp_gguf_next_number(nmlp_gguf_items *items, double *number) {
    if (items->left == 0 || !number_at(items->at, items->kind, number)) return false;
    items->at += kind_bytes(items->kind);
    items->left--;
    return true;
}
