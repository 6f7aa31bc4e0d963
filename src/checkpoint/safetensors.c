#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* The reference implementation's limit; a header this long would describe a million tensors. */
enum { HEADER_MAX_BYTES = 100000000, LENGTH_BYTES = 8 };

struct entry {
    nmlp_named_tensor tensor;
    uint64_t begin;
    uint64_t end;
};

struct parse {
    const char *origin;
    const unsigned char *payload;
    uint64_t payload_bytes;
    nmlp_arena *arena;
    nmlp_err *err;
};

static nmlp_status read_header_length(uint64_t *length, const unsigned char *data, size_t bytes, const char *origin,
                                      nmlp_err *err) {
    if (bytes == 0) return nmlp_fail(err, NMLP_E_FORMAT, "%s: is empty, a safetensors file expected", origin);
    if (bytes < LENGTH_BYTES)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: is %zu bytes long, too short for a safetensors header", origin,
                         bytes);
    *length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) *length = *length << 8 | data[i];
    if (*length > HEADER_MAX_BYTES)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: header length %" PRIu64 " is above the limit of %d bytes", origin,
                         *length, HEADER_MAX_BYTES);
    if (*length > bytes - LENGTH_BYTES)
        return nmlp_fail(err, NMLP_E_FORMAT,
                         "%s: header length %" PRIu64 " runs past the end of the file (%zu bytes): truncated?", origin,
                         *length, bytes);
    return NMLP_OK;
}

size_t nmlp_named_tensor_elem_bytes(const nmlp_named_tensor *tensor) {
    return tensor->int_bytes ? (size_t)tensor->int_bytes : nmlp_dtype_bytes(tensor->view.dtype);
}

static nmlp_status read_shape(struct parse *p, const nmlp_json *value, nmlp_named_tensor *tensor, uint64_t *bytes) {
    const char *name = tensor->name;
    nmlp_view *view = &tensor->view;
    const nmlp_json *shape = nmlp_json_get(value, "shape");
    if (!nmlp_json_is_array(shape))
        return nmlp_fail(p->err, NMLP_E_FORMAT, "%s: tensor %s has no \"shape\" array", p->origin, name);
    size_t n_dims = nmlp_json_count(shape);
    if (n_dims > NMLP_DIMS_MAX)
        return nmlp_fail(p->err, NMLP_E_UNSUPPORTED, "%s: tensor %s has %zu dimensions, at most %d are supported",
                         p->origin, name, n_dims, NMLP_DIMS_MAX);
    *bytes = nmlp_named_tensor_elem_bytes(tensor);
    view->n_dims = (int)n_dims;
    int d = 0;
    for (const nmlp_json *dim = nmlp_json_first(shape); dim; dim = nmlp_json_next(dim)) {
        int64_t size;
        if (!nmlp_json_int_in(dim, 0, INT64_C(1) << 48, &size) || __builtin_mul_overflow(*bytes, (uint64_t)size, bytes))
            return nmlp_fail(p->err, NMLP_E_FORMAT, "%s: tensor %s: dimension %d of its shape is not a usable size",
                             p->origin, name, d);
        view->shape[d++] = size;
    }
    return NMLP_OK;
}

static nmlp_status read_offsets(struct parse *p, const nmlp_json *value, struct entry *entry, uint64_t bytes) {
    const char *name = entry->tensor.name;
    const nmlp_json *offsets = nmlp_json_get(value, "data_offsets");
    const nmlp_json *first = nmlp_json_first(offsets);
    int64_t begin;
    int64_t end;
    if (nmlp_json_count(offsets) != 2 || !nmlp_json_int_in(first, 0, INT64_MAX, &begin) ||
        !nmlp_json_int_in(nmlp_json_next(first), 0, INT64_MAX, &end) || end < begin)
        return nmlp_fail(p->err, NMLP_E_FORMAT, "%s: tensor %s: \"data_offsets\" must be [begin, end]", p->origin,
                         name);
    if ((uint64_t)end > p->payload_bytes)
        return nmlp_fail(p->err, NMLP_E_FORMAT,
                         "%s: tensor %s ends at byte %" PRId64 " of the data, the file holds %" PRIu64 ": truncated?",
                         p->origin, name, end, p->payload_bytes);
    if ((uint64_t)(end - begin) != bytes) {
        char shape[NMLP_SHAPE_TEXT_MAX];
        nmlp_shape_text(shape, entry->tensor.view.shape, entry->tensor.view.n_dims);
        return nmlp_fail(p->err, NMLP_E_FORMAT,
                         "%s: tensor %s %s of %s needs %" PRIu64 " bytes, its offsets span %" PRId64, p->origin, name,
                         shape, nmlp_json_string(nmlp_json_get(value, "dtype")), bytes, end - begin);
    }
    entry->begin = (uint64_t)begin;
    entry->end = (uint64_t)end;
    entry->tensor.view.data = p->payload + begin;
    /* Kernels read elements in place, so they must sit where the CPU and the C language want them. Integers are read by
     * bytes. */
    if (!entry->tensor.int_bytes &&
        (uintptr_t)entry->tensor.view.data % nmlp_dtype_bytes(entry->tensor.view.dtype) != 0)
        return nmlp_fail(p->err, NMLP_E_UNSUPPORTED, "%s: tensor %s is not aligned to its element size", p->origin,
                         name);
    return NMLP_OK;
}

static int int_bytes_of(const char *dtype) {
    return strcmp(dtype, "I8") == 0 ? 1 : strcmp(dtype, "I32") == 0 ? 4 : strcmp(dtype, "I64") == 0 ? 8 : 0;
}

static nmlp_status read_entry(struct parse *p, const nmlp_json *value, struct entry *entry) {
    uint64_t bytes = 0;
    const char *name = nmlp_arena_strdup(p->arena, nmlp_json_key(value), p->err);
    if (!name) return NMLP_E_NOMEM;
    *entry = (struct entry){.tensor.name = name};
    if (!nmlp_json_is_object(value))
        return nmlp_fail(p->err, NMLP_E_FORMAT, "%s: header entry %s is not an object", p->origin, name);
    const char *dtype = nmlp_json_string(nmlp_json_get(value, "dtype"));
    entry->tensor.int_bytes = int_bytes_of(dtype);
    if (strcmp(dtype, "F8_E4M3") == 0)
        entry->tensor.view.dtype = NMLP_DTYPE_FP8;
    else if (!entry->tensor.int_bytes && !nmlp_dtype_parse(dtype, &entry->tensor.view.dtype))
        return nmlp_fail(p->err, NMLP_E_UNSUPPORTED, "%s: tensor %s has dtype \"%s\"; supported are F32, BF16, F16",
                         p->origin, name, dtype);
    NMLP_RETURN_IF_FAILED(read_shape(p, value, &entry->tensor, &bytes));
    return read_offsets(p, value, entry, bytes);
}

static int by_begin(const void *a, const void *b) {
    const struct entry *x = a;
    const struct entry *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Tensors must follow each other without overlap. */
static nmlp_status check_layout(struct parse *p, struct entry *entries, size_t n) {
    qsort(entries, n, sizeof *entries, by_begin);
    for (size_t i = 1; i < n; i++) {
        if (entries[i].begin < entries[i - 1].end)
            return nmlp_fail(p->err, NMLP_E_FORMAT, "%s: tensors %s and %s overlap", p->origin,
                             entries[i - 1].tensor.name, entries[i].tensor.name);
    }
    return NMLP_OK;
}

static nmlp_status read_entries(nmlp_safetensors *file, struct parse *p, const nmlp_json *root) {
    nmlp_status st = NMLP_OK;
    size_t n = 0;
    struct entry *entries = nmlp_mem_new(nmlp_json_count(root), sizeof *entries, p->err);
    if (!entries) return NMLP_E_NOMEM;
    for (const nmlp_json *v = nmlp_json_first(root); v; v = nmlp_json_next(v)) {
        if (strcmp(nmlp_json_key(v), "__metadata__") == 0) continue;
        NMLP_TRY(read_entry(p, v, &entries[n]));
        n++;
    }
    NMLP_TRY(check_layout(p, entries, n));
    file->tensors = nmlp_arena_new(p->arena, n, sizeof *file->tensors, p->err);
    if (!file->tensors) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (size_t i = 0; i < n; i++) file->tensors[i] = entries[i].tensor;
    file->n_tensors = n;
out:
    nmlp_mem_free(entries);
    return st;
}

static nmlp_status parse_bytes(nmlp_safetensors *file, const unsigned char *data, size_t bytes, const char *origin,
                               nmlp_err *err) {
    uint64_t length = 0;
    nmlp_json_doc doc = {0};
    nmlp_arena_init(&file->arena);
    NMLP_RETURN_IF_FAILED(read_header_length(&length, data, bytes, origin, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_parse(&doc, (const char *)data + LENGTH_BYTES, length, origin, err));
    struct parse p = {.origin = origin,
                      .payload = data + LENGTH_BYTES + length,
                      .payload_bytes = bytes - LENGTH_BYTES - length,
                      .arena = &file->arena,
                      .err = err};
    nmlp_status st = NMLP_OK;
    if (!nmlp_json_is_object(doc.root)) {
        st = nmlp_fail(err, NMLP_E_FORMAT, "%s: the safetensors header is not a JSON object", origin);
    } else {
        st = read_entries(file, &p, doc.root);
    }
    nmlp_json_free(&doc);
    return st;
}

nmlp_status nmlp_safetensors_parse(nmlp_safetensors *file, const unsigned char *data, size_t bytes, const char *origin,
                                   nmlp_err *err) {
    *file = (nmlp_safetensors){0};
    nmlp_status st = parse_bytes(file, data, bytes, origin, err);
    if (st != NMLP_OK) nmlp_safetensors_close(file);
    return st;
}

nmlp_status nmlp_safetensors_open(nmlp_safetensors *file, const char *path, nmlp_err *err) {
    *file = (nmlp_safetensors){0};
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&file->map, path, err));
    nmlp_status st = parse_bytes(file, file->map.data, file->map.bytes, path, err);
    if (st != NMLP_OK) nmlp_safetensors_close(file);
    return st;
}

void nmlp_safetensors_close(nmlp_safetensors *file) {
    nmlp_arena_fini(&file->arena);
    nmlp_file_map_close(&file->map);
    *file = (nmlp_safetensors){0};
}
