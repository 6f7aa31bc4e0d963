#include "checkpoint/tensor_spec.h"

#include <stdio.h>
#include <string.h>

#include "base/json_write.h"
#include "tensor/quant.h"

enum { CODES_PER_WORD = 8, F32_BYTES = 4 };

nmlp_tensor_spec nmlp_tensor_spec_of(const char *name, const nmlp_view *view) {
    nmlp_tensor_spec spec = {.name = name,
                             .dtype = view->dtype,
                             .group = view->group,
                             .zeros = view->dtype == NMLP_DTYPE_Q4 && view->per_group,
                             .n_dims = view->n_dims};
    memcpy(spec.shape, view->shape, sizeof spec.shape);
    return spec;
}

static nmlp_view view_of(const nmlp_tensor_spec *spec) {
    nmlp_view view = {.dtype = spec->dtype, .group = spec->group, .n_dims = spec->n_dims};
    memcpy(view.shape, spec->shape, sizeof view.shape);
    return view;
}

static size_t per_group_words(const nmlp_tensor_spec *spec) {
    return nmlp_quant_per_group_words(spec->shape[0], spec->shape[1] / spec->group);
}

size_t nmlp_tensor_spec_bytes(const nmlp_tensor_spec *spec) {
    nmlp_view view = view_of(spec);
    if (spec->bare) return nmlp_view_bytes(&view);
    bool has_zeros = spec->dtype == NMLP_DTYPE_Q4 && spec->zeros;
    return nmlp_quant_stored_bytes(&view) + (has_zeros ? per_group_words(spec) * sizeof(uint32_t) : 0);
}

bool nmlp_tensor_spec_fits(const nmlp_tensor_spec *spec) {
    int64_t rows = spec->shape[0], cols = spec->shape[1];
    if (!nmlp_dtype_is_quantised(spec->dtype) || spec->bare) return true;
    if (spec->n_dims != 2 || rows < 1 || cols < 1) return false;
    if (nmlp_quant_has_multipliers(spec->dtype)) /* shorter rows of 5 and 6 bits have as many words */
        return spec->group == NMLP_QUANT_MULTIPLIER_GROUP && cols % spec->group == 0 && cols > spec->group;
    if (nmlp_quant_widens_to_q8(spec->dtype)) return true; /* rows of whole words */
    if (nmlp_quant_scales_rows(spec->dtype)) return rows * cols % F32_BYTES == 0;
    return (spec->group == 32 || spec->group == 64) && cols % spec->group == 0 && rows * (cols / spec->group) % 2 == 0;
}

nmlp_status nmlp_tensor_spec_check(const nmlp_tensor_spec *spec, nmlp_err *err) {
    char shape[NMLP_SHAPE_TEXT_MAX];
    if (nmlp_tensor_spec_fits(spec)) return NMLP_OK;
    nmlp_shape_text(shape, spec->shape, spec->n_dims);
    if (nmlp_quant_scales_rows(spec->dtype) && !nmlp_quant_has_multipliers(spec->dtype))
        return nmlp_fail(err, NMLP_E_SHAPE, "tensor %s %s cannot be stored as %s: its elements are no multiple of 4",
                         spec->name, shape, nmlp_dtype_name(spec->dtype));
    return nmlp_fail(err, NMLP_E_SHAPE, "tensor %s %s cannot be stored as %s: groups of %d do not divide its rows",
                     spec->name, shape, nmlp_dtype_name(spec->dtype), spec->group);
}

static void add_part(nmlp_tensor_part *part, const nmlp_tensor_spec *spec, const char *suffix, const char *dtype,
                     int64_t rows, int64_t cols, size_t elem_bytes) {
    *part = (nmlp_tensor_part){.dtype = dtype, .n_dims = cols ? 2 : 1, .shape = {rows, cols}};
    part->bytes = (size_t)(rows * (cols ? cols : 1)) * elem_bytes;
    snprintf(part->name, sizeof part->name, "%s%s", spec->name, suffix);
}

int nmlp_tensor_spec_parts(const nmlp_tensor_spec *spec, nmlp_tensor_part parts[NMLP_TENSOR_PARTS_MAX]) {
    int64_t rows = spec->shape[0], cols = spec->shape[1];
    int64_t word_rows = (rows + CODES_PER_WORD - 1) / CODES_PER_WORD; /* of zero points and multipliers */
    if (nmlp_quant_widens_to_q8(spec->dtype)) {
        nmlp_view view = view_of(spec);
        int n = 2;
        int64_t words = (int64_t)(nmlp_view_bytes(&view) / sizeof(int32_t)) / rows;
        add_part(&parts[0], spec, "_packed", "I32", rows, words, sizeof(int32_t));
        add_part(&parts[1], spec, "_scale", "F32", rows, 1, F32_BYTES);
        if (nmlp_quant_has_multipliers(spec->dtype))
            add_part(&parts[n++], spec, "_multiplier", "I32", word_rows, cols / spec->group, sizeof(int32_t));
        add_part(&parts[n++], spec, "_shape", "I64", 2, 0, sizeof(int64_t));
        return n;
    }
    if (nmlp_quant_scales_rows(spec->dtype)) {
        add_part(&parts[0], spec, "", spec->dtype == NMLP_DTYPE_Q8 ? "I8" : "F8_E4M3", rows, cols, 1);
        if (spec->bare) return 1;
        add_part(&parts[1], spec, "_scale", "F32", rows, 1, F32_BYTES);
        return 2;
    }
    if (spec->dtype == NMLP_DTYPE_Q4) {
        add_part(&parts[0], spec, "_packed", "I32", rows, cols / CODES_PER_WORD, sizeof(int32_t));
        add_part(&parts[1], spec, "_scale", "F16", rows, cols / spec->group, sizeof(uint16_t));
        int n = 2;
        if (spec->zeros)
            add_part(&parts[n++], spec, "_zero_point", "I32", word_rows, cols / spec->group, sizeof(int32_t));
        add_part(&parts[n++], spec, "_shape", "I64", 2, 0, sizeof(int64_t));
        return n;
    }
    parts[0] = (nmlp_tensor_part){.dtype = nmlp_dtype_name(spec->dtype), .n_dims = spec->n_dims};
    snprintf(parts[0].name, sizeof parts[0].name, "%s", spec->name);
    memcpy(parts[0].shape, spec->shape, sizeof parts[0].shape);
    parts[0].bytes = nmlp_tensor_spec_bytes(spec);
    return 1;
}

/* ---- quantization_config ---- */

/* The kinds of quantised weights a checkpoint may hold, each a group of the configuration. */
static const struct kind {
    nmlp_dtype dtype;
    int group;
    bool zeros;
    const char *format;
} kinds[] = {{NMLP_DTYPE_Q8, 0, false, "int-quantized"},      {NMLP_DTYPE_Q4, 32, false, "pack-quantized"},
             {NMLP_DTYPE_Q4, 64, false, "pack-quantized"},    {NMLP_DTYPE_Q4, 32, true, "pack-quantized"},
             {NMLP_DTYPE_Q4, 64, true, "pack-quantized"},     {NMLP_DTYPE_FP8, 0, false, "float-quantized"},
             {NMLP_DTYPE_Q6, 0, false, "pack-quantized"},     {NMLP_DTYPE_Q6M, 16, false, "neuronmlp-packed"},
             {NMLP_DTYPE_Q5M, 16, false, "neuronmlp-packed"}, {NMLP_DTYPE_Q4M, 16, false, "neuronmlp-packed"}};

enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static bool is_kind(const nmlp_tensor_spec *spec, const struct kind *kind) {
    return spec->dtype == kind->dtype &&
           (kind->dtype != NMLP_DTYPE_Q4 || (spec->group == kind->group && spec->zeros == kind->zeros));
}

static size_t count_kind(const nmlp_tensor_spec *specs, size_t n, const struct kind *kind) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) found += is_kind(&specs[i], kind);
    return found;
}

/* Modules are named without ".weight"; factors, which no other program knows, by their whole name. */
static void put_target(nmlp_json_writer *w, const char *name) {
    size_t len = strlen(name);
    static const char end[] = ".weight";
    if (len > sizeof end - 1 && strcmp(name + len - (sizeof end - 1), end) == 0) len -= sizeof end - 1;
    nmlp_json_put_bytes(w, NULL, name, len);
}

static void put_scheme(nmlp_json_writer *w, const char *key, const struct kind *kind, const char *strategy,
                       bool dynamic) {
    nmlp_json_begin_object(w, key);
    nmlp_json_put_int(w, "num_bits", nmlp_dtype_bits(kind->dtype));
    nmlp_json_put_string(w, "type", kind->dtype == NMLP_DTYPE_FP8 ? "float" : "int");
    nmlp_json_put_bool(w, "symmetric", !kind->zeros);
    nmlp_json_put_string(w, "strategy", strategy);
    if (kind->group) nmlp_json_put_int(w, "group_size", kind->group);
    nmlp_json_put_bool(w, "dynamic", dynamic);
    nmlp_json_end_object(w);
}

static void put_kind(nmlp_json_writer *w, const nmlp_tensor_spec *specs, size_t n, const struct kind *kind,
                     int number) {
    char key[24];
    bool q8 = kind->dtype == NMLP_DTYPE_Q8;
    snprintf(key, sizeof key, "group_%d", number);
    nmlp_json_begin_object(w, key);
    nmlp_json_put_string(w, "format", kind->format);
    nmlp_json_begin_array(w, "targets");
    for (size_t i = 0; i < n; i++)
        if (is_kind(&specs[i], kind)) put_target(w, specs[i].name);
    nmlp_json_end_array(w);
    put_scheme(w, "weights", kind, kind->group ? "group" : "channel", false);
    if (q8)
        put_scheme(w, "input_activations", kind, "token", true); /* without it other programs have no kernels */
    else
        nmlp_json_put_null(w, "input_activations");
    nmlp_json_put_null(w, "output_activations");
    nmlp_json_end_object(w);
}

void nmlp_tensor_specs_quant_config(const nmlp_tensor_spec *specs, size_t n, nmlp_str *out) {
    nmlp_json_writer w;
    const char *format = NULL;
    for (int i = 0; i < N_KINDS; i++) {
        if (count_kind(specs, n, &kinds[i]) == 0) continue;
        format = format && strcmp(format, kinds[i].format) != 0 ? "mixed-precision" : kinds[i].format;
    }
    if (!format) return;
    nmlp_json_writer_init(&w, out);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "quant_method", "compressed-tensors");
    nmlp_json_put_string(&w, "format", format);
    nmlp_json_put_string(&w, "quantization_status", "compressed");
    nmlp_json_begin_object(&w, "config_groups");
    for (int i = 0, number = 0; i < N_KINDS; i++)
        if (count_kind(specs, n, &kinds[i]) > 0) put_kind(&w, specs, n, &kinds[i], number++);
    nmlp_json_end_object(&w);
    nmlp_json_begin_array(&w, "ignore");
    nmlp_json_end_array(&w);
    nmlp_json_put_null(&w, "kv_cache_scheme");
    nmlp_json_end_object(&w);
}
