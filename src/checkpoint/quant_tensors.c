#include "checkpoint/quant_tensors.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tensor/quant.h"

enum { CODES_PER_WORD = 8, GROUP_MAX = 64, NAME_MAX_BYTES = 320 };

/* ---- the tensors ---- */

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* The tensor whose name is the first `len` bytes of `name` and a suffix. */
static const nmlp_named_tensor *find(const nmlp_raw_tensors *raw, const char *name, size_t len, const char *suffix) {
    char full[NAME_MAX_BYTES];
    uint32_t index;
    size_t end = strlen(suffix);
    if (len + end >= sizeof full) return NULL;
    memcpy(full, name, len);
    memcpy(full + len, suffix, end);
    return nmlp_hashmap_get(raw->by_name, full, len + end, &index) ? &raw->tensors[index] : NULL;
}

static nmlp_status wrong_shape(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t, const char *want,
                               nmlp_err *err) {
    char shape[NMLP_SHAPE_TEXT_MAX];
    nmlp_shape_text(shape, t->view.shape, t->view.n_dims);
    return nmlp_fail(err, NMLP_E_SHAPE, "%s: tensor %s has shape %s, expected %s", raw->dir, t->name, shape, want);
}

/* Scales as rows x cols of one plain type. */
static nmlp_status find_scales(const nmlp_raw_tensors *raw, const nmlp_named_tensor *codes, size_t base_len,
                               const nmlp_named_tensor **scales, nmlp_err *err) {
    *scales = find(raw, codes->name, base_len, "_scale");
    if (!*scales)
        return nmlp_fail(err, NMLP_E_MISSING, "%s: tensor %s holds %s, but its scales %.*s_scale are missing", raw->dir,
                         codes->name, codes->int_bytes ? "integers" : "codes of 8 bits", (int)base_len, codes->name);
    if ((*scales)->int_bytes || nmlp_dtype_is_quantised((*scales)->view.dtype))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s holds codes, expected scales in F32, F16 or BF16",
                         raw->dir, (*scales)->name);
    return NMLP_OK;
}

/* One scale for each of `rows` rows, in f32. */
static nmlp_status row_scales(const nmlp_raw_tensors *raw, const nmlp_named_tensor *scales, int64_t rows,
                              const float **out, nmlp_err *err) {
    const nmlp_view *s = &scales->view;
    if (s->n_dims < 1 || s->shape[0] != rows || nmlp_view_elems(s) != rows)
        return wrong_shape(raw, scales, "one scale per row of the weight", err);
    *out = s->data;
    if (s->dtype == NMLP_DTYPE_F32) return NMLP_OK;
    float *wide = nmlp_arena_new(raw->arena, (size_t)rows, sizeof *wide, err);
    if (!wide) return NMLP_E_NOMEM;
    nmlp_to_f32(wide, s->data, s->dtype, (size_t)rows);
    *out = wide;
    return NMLP_OK;
}

/* Q8 and FP8. */
static nmlp_status join_bytes(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t, nmlp_named_tensor *out,
                              nmlp_err *err) {
    const nmlp_named_tensor *scales;
    const float *values = NULL;
    const nmlp_view *v = &t->view;
    NMLP_RETURN_IF_FAILED(find_scales(raw, t, strlen(t->name), &scales, err));
    if (v->n_dims != 2) return wrong_shape(raw, t, "two dimensions", err);
    NMLP_RETURN_IF_FAILED(row_scales(raw, scales, v->shape[0], &values, err));
    out->name = t->name;
    out->view = t->int_bytes ? nmlp_quant_view_q8(v->data, values, v->shape[0], v->shape[1])
                             : nmlp_quant_view_fp8(v->data, values, v->shape[0], v->shape[1]);
    return NMLP_OK;
}

/* NAME_shape, which may stand at any address. */
static nmlp_status read_shape(const nmlp_raw_tensors *raw, const nmlp_named_tensor *packed, size_t base_len,
                              int64_t shape[2], nmlp_err *err) {
    const nmlp_named_tensor *t = find(raw, packed->name, base_len, "_shape");
    if (!t)
        return nmlp_fail(err, NMLP_E_MISSING, "%s: tensor %s has no %.*s_shape beside it", raw->dir, packed->name,
                         (int)base_len, packed->name);
    if (nmlp_view_elems(&t->view) != 2 || t->int_bytes < 4) return wrong_shape(raw, t, "two integers", err);
    for (int d = 0; d < 2; d++) {
        const char *at = (const char *)t->view.data + d * t->int_bytes;
        int32_t narrow;
        memcpy(&narrow, at, sizeof narrow);
        shape[d] = narrow;
        if (t->int_bytes == 8) memcpy(&shape[d], at, sizeof shape[d]);
    }
    return NMLP_OK;
}

/* Words that `cols` weights of some bits take, one behind the other. */
static int64_t words_of(int64_t cols, int bits) { return (bits * cols + 31) / 32; }

/* How many bits a weight has, from the words of a row and what NAME_shape says: 4 or 6, or 5 with multipliers. */
static nmlp_status packed_bits(const nmlp_raw_tensors *raw, const nmlp_named_tensor *packed, size_t base_len,
                               const int64_t shape[2], int *bits, nmlp_err *err) {
    static const int known[] = {6, 5, 4}; /* rows too short to tell have no groups */
    const nmlp_view *v = &packed->view;
    bool multiplied = find(raw, packed->name, base_len, "_multiplier") != NULL;
    bool sane =
        shape[0] > 0 && shape[1] > 0 && shape[1] < INT64_C(1) << 40 && v->n_dims == 2 && v->shape[0] == shape[0];
    for (size_t i = 0; sane && i < sizeof known / sizeof known[0]; i++) {
        *bits = known[i];
        if (*bits != 5 || multiplied)
            if (v->shape[1] == words_of(shape[1], known[i])) return NMLP_OK;
    }
    if (sane && v->shape[1] == words_of(shape[1], 8))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tensor %s packs 8 bits per weight; packed weights have 4 or 6 here", raw->dir,
                         packed->name);
    if (sane && v->shape[1] == (shape[1] + 4) / 5)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tensor %s packs five weights of 6 bits into a word; words without gaps are read",
                         raw->dir, packed->name);
    return nmlp_fail(err, NMLP_E_SHAPE,
                     "%s: tensor %s has %" PRId64 " x %" PRId64
                     " words of packed weights, which is no matrix of %" PRId64 " x %" PRId64 " as %.*s_shape says",
                     raw->dir, packed->name, v->shape[0], v->n_dims == 2 ? v->shape[1] : 0, shape[0], shape[1],
                     (int)base_len, packed->name);
}

/* f16 scales of groups of 32 or 64: in another type they are rounded, of larger groups repeated. */
static nmlp_status convert_scales(const nmlp_raw_tensors *raw, const nmlp_named_tensor *scales, int repeat,
                                  const uint16_t **out, nmlp_err *err) {
    int64_t n = nmlp_view_elems(&scales->view);
    *out = scales->view.data;
    if (scales->view.dtype == NMLP_DTYPE_F16 && repeat == 1) return NMLP_OK;
    uint16_t *halves = nmlp_arena_new(raw->arena, (size_t)n * (size_t)repeat, sizeof *halves, err);
    if (!halves) return NMLP_E_NOMEM;
    size_t elem = nmlp_dtype_bytes(scales->view.dtype);
    for (int64_t i = 0; i < n; i++) {
        float value;
        nmlp_to_f32(&value, (const char *)scales->view.data + (size_t)i * elem, scales->view.dtype, 1);
        uint16_t half = nmlp_f32_to_f16(value);
        if (isfinite(value) && fabsf(nmlp_f16_to_f32(half) - value) > 0x1p-9f * fabsf(value))
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s holds the scale %g, which f16 cannot hold",
                             raw->dir, scales->name, (double)value);
        for (int r = 0; r < repeat; r++) halves[i * repeat + r] = half;
    }
    *out = halves;
    return NMLP_OK;
}

/* Zero points of groups of 32 or 64, if there are any: words of eight rows, or bytes; of larger groups repeated. */
static nmlp_status find_zeros(const nmlp_raw_tensors *raw, const nmlp_named_tensor *scales, size_t base_len, int repeat,
                              const int8_t **out, nmlp_err *err) {
    const nmlp_named_tensor *t = find(raw, scales->name, base_len, "_zero_point");
    int64_t rows = scales->view.shape[0], groups = scales->view.shape[1];
    *out = NULL;
    if (!t) return NMLP_OK;
    bool packed = t->int_bytes == 4;
    int64_t stored_rows = packed ? (rows + CODES_PER_WORD - 1) / CODES_PER_WORD : rows;
    if ((!packed && t->int_bytes != 1) || t->view.n_dims != 2 || t->view.shape[0] != stored_rows ||
        t->view.shape[1] != groups)
        return wrong_shape(raw, t, "one zero point of 4 bits per scale of the weight", err);
    int8_t *zeros = nmlp_arena_new(raw->arena, (size_t)(rows * groups) * (size_t)repeat, 1, err);
    if (!zeros) return NMLP_E_NOMEM;
    if (packed)
        nmlp_quant_per_group_unpack(zeros, NMLP_DTYPE_Q4, t->view.data, rows, groups);
    else
        memcpy(zeros, t->view.data, (size_t)(rows * groups));
    for (int64_t i = rows * groups - 1; i >= 0; i--) {
        int8_t zero = zeros[i];
        if (zero < -8 || zero > 7)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s holds the zero point %d, expected -8 to 7",
                             raw->dir, t->name, zero);
        for (int r = 0; r < repeat; r++) zeros[i * repeat + r] = zero;
    }
    *out = zeros;
    return NMLP_OK;
}

static nmlp_status join_q4(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t, const nmlp_named_tensor *scales,
                           const int64_t shape[2], nmlp_named_tensor *out, nmlp_err *err) {
    const uint16_t *halves;
    size_t base_len = strlen(t->name) - strlen("_packed");
    const nmlp_view *s = &scales->view;
    if (s->n_dims != 2 || s->shape[0] != shape[0] || s->shape[1] < 1)
        return wrong_shape(raw, scales, "one row of scales per row of the weight", err);
    if (shape[1] % s->shape[1] != 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tensor %s has %" PRId64 " scales for rows of %" PRId64
                         " weights: groups must divide rows",
                         raw->dir, scales->name, s->shape[1], shape[1]);
    int64_t group = shape[1] / s->shape[1];
    if (group != 32 && group % GROUP_MAX != 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tensor %s has groups of %" PRId64 " weights; 32 and multiples of 64 are supported",
                         raw->dir, scales->name, group);
    int kept = group == 32 ? 32 : GROUP_MAX;
    NMLP_RETURN_IF_FAILED(convert_scales(raw, scales, (int)(group / kept), &halves, err));
    out->view = nmlp_quant_view_q4(t->view.data, halves, kept, shape[0], shape[1]);
    return find_zeros(raw, scales, base_len, (int)(group / kept), &out->view.per_group, err);
}

static nmlp_status join_q6(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t, const nmlp_named_tensor *scales,
                           const int64_t shape[2], nmlp_named_tensor *out, nmlp_err *err) {
    const float *values = NULL;
    size_t base_len = strlen(t->name) - strlen("_packed");
    if (find(raw, t->name, base_len, "_zero_point"))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tensor %.*s_zero_point: only weights of 4 bits may have zero points", raw->dir,
                         (int)base_len, t->name);
    NMLP_RETURN_IF_FAILED(row_scales(raw, scales, shape[0], &values, err));
    out->view = nmlp_quant_view_q6(t->view.data, values, shape[0], shape[1]);
    return NMLP_OK;
}

/* Multipliers of groups of 16: words of eight rows. */
static nmlp_status read_multipliers(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t, const int64_t shape[2],
                                    nmlp_dtype dtype, const int8_t **out, nmlp_err *err) {
    int64_t rows = shape[0], groups = shape[1] / NMLP_QUANT_MULTIPLIER_GROUP;
    int lowest = nmlp_quant_multiplier_lowest(dtype), highest = nmlp_quant_multiplier_highest(dtype);
    if (shape[1] % NMLP_QUANT_MULTIPLIER_GROUP != 0 || groups < 2)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: tensor %s belongs to rows of %" PRId64
                         " weights, expected whole groups of %d, two or more",
                         raw->dir, t->name, shape[1], NMLP_QUANT_MULTIPLIER_GROUP);
    if (t->int_bytes != 4 || t->view.n_dims != 2 || t->view.shape[1] != groups ||
        t->view.shape[0] != (rows + CODES_PER_WORD - 1) / CODES_PER_WORD)
        return wrong_shape(raw, t, "one multiplier of 4 bits per 16 weights", err);
    int8_t *values = nmlp_arena_new(raw->arena, (size_t)(rows * groups), 1, err);
    if (!values) return NMLP_E_NOMEM;
    nmlp_quant_per_group_unpack(values, dtype, t->view.data, rows, groups);
    for (int64_t i = 0; i < rows * groups; i++)
        if (values[i] < lowest || values[i] > highest)
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s holds the multiplier %d, expected %d to %d",
                             raw->dir, t->name, values[i], lowest, highest);
    *out = values;
    return NMLP_OK;
}

static nmlp_status join_multiplied(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t,
                                   const nmlp_named_tensor *scales, const nmlp_named_tensor *multipliers,
                                   const int64_t shape[2], int bits, nmlp_named_tensor *out, nmlp_err *err) {
    const float *rows = NULL;
    const int8_t *values = NULL;
    size_t base_len = strlen(t->name) - strlen("_packed");
    if (find(raw, t->name, base_len, "_zero_point"))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s has multipliers, and so no zero points", raw->dir,
                         t->name);
    nmlp_dtype dtype = bits == 6 ? NMLP_DTYPE_Q6M : bits == 5 ? NMLP_DTYPE_Q5M : NMLP_DTYPE_Q4M;
    NMLP_RETURN_IF_FAILED(row_scales(raw, scales, shape[0], &rows, err));
    NMLP_RETURN_IF_FAILED(read_multipliers(raw, multipliers, shape, dtype, &values, err));
    out->view = nmlp_quant_view_multiplied(t->view.data, dtype, rows, values, shape[0], shape[1]);
    return NMLP_OK;
}

/* All types in words. */
static nmlp_status join_packed(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t, nmlp_named_tensor *out,
                               nmlp_err *err) {
    const nmlp_named_tensor *scales;
    int64_t shape[2] = {0};
    int bits = 0;
    size_t base_len = strlen(t->name) - strlen("_packed");
    NMLP_RETURN_IF_FAILED(read_shape(raw, t, base_len, shape, err));
    NMLP_RETURN_IF_FAILED(packed_bits(raw, t, base_len, shape, &bits, err));
    NMLP_RETURN_IF_FAILED(find_scales(raw, t, base_len, &scales, err));
    out->name = nmlp_arena_strndup(raw->arena, t->name, base_len, err);
    if (!out->name) return NMLP_E_NOMEM;
    const nmlp_named_tensor *multipliers = find(raw, t->name, base_len, "_multiplier");
    if (multipliers) return join_multiplied(raw, t, scales, multipliers, shape, bits, out, err);
    return bits == 6 ? join_q6(raw, t, scales, shape, out, err) : join_q4(raw, t, scales, shape, out, err);
}

/* Whether a tensor is the scales, the zero points, the multipliers or the shape of another. */
static bool is_part(const nmlp_raw_tensors *raw, const nmlp_named_tensor *t) {
    static const char *const of_packed[] = {"_zero_point", "_multiplier"};
    for (int i = 0; i < 2; i++)
        if (ends_with(t->name, of_packed[i]))
            return find(raw, t->name, strlen(t->name) - strlen(of_packed[i]), "_packed") != NULL;
    if (!ends_with(t->name, "_scale") && !ends_with(t->name, "_shape")) return false;
    size_t base_len = strlen(t->name) - strlen("_scale");
    const nmlp_named_tensor *codes = find(raw, t->name, base_len, "");
    return (codes && (codes->int_bytes == 1 || codes->view.dtype == NMLP_DTYPE_FP8)) ||
           find(raw, t->name, base_len, "_packed");
}

nmlp_status nmlp_quant_tensor_join(const nmlp_raw_tensors *raw, size_t i, nmlp_named_tensor *out, bool *part,
                                   nmlp_err *err) {
    const nmlp_named_tensor *t = &raw->tensors[i];
    *out = *t;
    *part = is_part(raw, t);
    if (!*part && !t->int_bytes && t->view.dtype == NMLP_DTYPE_FP8) return join_bytes(raw, t, out, err);
    if (*part || !t->int_bytes) return NMLP_OK;
    out->int_bytes = 0;
    if (ends_with(t->name, "_zero_point"))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s: only weights of 4 bits may have zero points",
                         raw->dir, t->name);
    if (t->int_bytes == 4 && ends_with(t->name, "_packed")) return join_packed(raw, t, out, err);
    if (t->int_bytes == 1) return join_bytes(raw, t, out, err);
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s has dtype I%d, which only quantised weights may have",
                     raw->dir, t->name, 8 * t->int_bytes);
}

/* ---- the configuration ---- */

static nmlp_status refuse(const nmlp_json_doc *doc, const char *what, const char *found, nmlp_err *err) {
    nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: quantization_config: %s \"%s\" is not supported", doc->origin, what, found);
    nmlp_fail_hint(
        err,
        "int8, int6, int4 and float8 weights of compressed-tensors are; or take the checkpoint that it was made from");
    return NMLP_E_UNSUPPORTED;
}

/* Static activation scales would be tensors of their own, which are refused as such; other types would compute
 * something else. */
static nmlp_status check_scheme(const nmlp_json_doc *doc, const nmlp_json *scheme, bool weights, nmlp_err *err) {
    int64_t bits = 0;
    bool symmetric = true;
    const char *type = nmlp_json_string(nmlp_json_get(scheme, "type"));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, scheme, "num_bits", 1, 64, &bits, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, scheme, "symmetric", &symmetric, err));
    bool is_float = strcmp(type, "float") == 0;
    if (type[0] && !is_float && strcmp(type, "int") != 0) return refuse(doc, "type", type, err);
    if (is_float && bits != 8)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: quantization_config: floats of %" PRId64 " bits are not supported; they have 8",
                         doc->origin, bits);
    if (!symmetric && !(bits == 4 && weights)) return refuse(doc, "symmetric", "false", err);
    if (bits != 8 && !(bits >= 4 && bits <= 6 && weights))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: quantization_config: %s of %" PRId64 " bits are not supported; weights have 8, 6, 5 or 4",
                         doc->origin, weights ? "weights" : "activations", bits);
    return NMLP_OK;
}

nmlp_status nmlp_quant_config_check(const nmlp_json_doc *doc, bool *found, nmlp_err *err) {
    const nmlp_json *object = nmlp_json_get(doc->root, "quantization_config");
    *found = false;
    if (nmlp_json_is_null(object)) return NMLP_OK;
    const char *method = nmlp_json_string(nmlp_json_get(object, "quant_method"));
    const char *format = nmlp_json_string(nmlp_json_get(object, "format"));
    if (strcmp(method, "compressed-tensors") != 0) return refuse(doc, "method", method, err);
    if (strcmp(format, "int-quantized") != 0 && strcmp(format, "pack-quantized") != 0 &&
        strcmp(format, "float-quantized") != 0 && strcmp(format, "mixed-precision") != 0 &&
        strcmp(format, "neuronmlp-packed") != 0)
        return refuse(doc, "format", format, err);
    if (!nmlp_json_is_null(nmlp_json_get(object, "kv_cache_scheme"))) return refuse(doc, "key", "kv_cache_scheme", err);
    const nmlp_json *groups;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, object, "config_groups", &groups, err));
    for (const nmlp_json *g = nmlp_json_first(groups); g; g = nmlp_json_next(g)) {
        const nmlp_json *weights;
        const nmlp_json *inputs = nmlp_json_get(g, "input_activations");
        NMLP_RETURN_IF_FAILED(nmlp_json_need_object(doc, g, "weights", &weights, err));
        NMLP_RETURN_IF_FAILED(check_scheme(doc, weights, true, err));
        if (!nmlp_json_is_null(inputs)) NMLP_RETURN_IF_FAILED(check_scheme(doc, inputs, false, err));
    }
    *found = true;
    return NMLP_OK;
}
