#include "gguf/gguf_import.h"

#include <stdio.h>
#include <string.h>

#include "base/dir_stage.h"
#include "checkpoint/checkpoint_write.h"
#include "checkpoint/target.h"
#include "gguf/gguf_config.h"
#include "gguf/gguf_names.h"
#include "gguf/gguf_tokenizer.h"
#include "model/model.h"
#include "tensor/quant.h"

struct output {
    const nmlp_gguf_tensor *from;
    int64_t head_dim; /* of rows in pairs; 0: rows are in order */
};

struct import {
    nmlp_gguf file;
    nmlp_config config;
    bool in_pairs;
    nmlp_arena arena;
    struct output *outputs;
    nmlp_tensor_spec *specs;
    size_t n;
    float *row;   /* of the longest */
    char *bytes;  /* the same in the type written */
    char *scales; /* of all rows of the largest Q4 tensor */
};

static nmlp_dtype dtype_for(const nmlp_gguf_tensor *t) {
    if (t->n_dims == 1) return t->type == NMLP_GGUF_TYPE_BF16 ? NMLP_DTYPE_BF16 : NMLP_DTYPE_F32;
    switch (t->type) {
    case NMLP_GGUF_TYPE_F32: return NMLP_DTYPE_F32;
    case NMLP_GGUF_TYPE_F16: return NMLP_DTYPE_F16;
    case NMLP_GGUF_TYPE_Q4_0: return NMLP_DTYPE_Q4;
    default: return NMLP_DTYPE_BF16;
    }
}

static nmlp_status add_output(struct import *m, const nmlp_gguf_tensor *t, nmlp_err *err) {
    char name[NMLP_GGUF_NAME_MAX];
    nmlp_gguf_rows rows;
    if (strcmp(t->name, "rope_freqs.weight") == 0) return NMLP_OK; /* in config.json */
    if (!nmlp_gguf_name_to_hf(name, t->name, &rows) || t->n_dims > 2)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s is no part of a model that is supported",
                         m->file.origin, t->name);
    nmlp_tensor_spec *spec = &m->specs[m->n];
    *spec = (nmlp_tensor_spec){.name = nmlp_arena_strdup(&m->arena, name, err),
                               .dtype = dtype_for(t),
                               .group = 32,
                               .n_dims = t->n_dims,
                               .shape = {t->n_dims == 2 ? t->rows : t->cols, t->n_dims == 2 ? t->cols : 0}};
    if (!spec->name) return NMLP_E_NOMEM;
    if (!nmlp_tensor_spec_fits(spec)) spec->dtype = NMLP_DTYPE_BF16;
    bool in_pairs = m->in_pairs && rows != NMLP_GGUF_ROWS_PLAIN;
    if (in_pairs && spec->shape[0] % m->config.head_dim != 0)
        return nmlp_fail(err, NMLP_E_SHAPE, "%s: tensor %s has %lld rows, no multiple of heads of %lld", m->file.origin,
                         t->name, (long long)spec->shape[0], (long long)m->config.head_dim);
    m->outputs[m->n++] = (struct output){.from = t, .head_dim = in_pairs ? m->config.head_dim : 0};
    return NMLP_OK;
}

static nmlp_status list_outputs(struct import *m, nmlp_gguf_result *result, nmlp_err *err) {
    int64_t longest = 1;
    size_t scales_bytes = 1;
    m->outputs = nmlp_arena_new(&m->arena, m->file.n_tensors, sizeof *m->outputs, err);
    m->specs = nmlp_arena_new(&m->arena, m->file.n_tensors, sizeof *m->specs, err);
    if (!m->outputs || !m->specs) return NMLP_E_NOMEM;
    *result = (nmlp_gguf_result){0};
    for (size_t i = 0; i < m->file.n_tensors; i++) {
        const nmlp_gguf_tensor *t = &m->file.tensors[i];
        size_t before = m->n;
        NMLP_RETURN_IF_FAILED(add_output(m, t, err));
        if (m->n == before) continue;
        const nmlp_tensor_spec *spec = &m->specs[before];
        size_t bytes = nmlp_tensor_spec_bytes(spec);
        result->params += t->rows * t->cols;
        result->bytes += (int64_t)bytes;
        if (t->cols > longest) longest = t->cols;
        size_t scales = spec->dtype == NMLP_DTYPE_Q4 ? bytes - (size_t)(t->rows * t->cols) / 2 : 0;
        if (scales > scales_bytes) scales_bytes = scales;
    }
    m->row = nmlp_mem_new((size_t)longest, sizeof *m->row, err);
    m->bytes = nmlp_mem_new((size_t)longest, sizeof(float), err);
    m->scales = nmlp_mem_new(scales_bytes, 1, err);
    return m->row && m->bytes && m->scales ? NMLP_OK : NMLP_E_NOMEM;
}

/* Where row `row` of an output stands in the file. */
static const unsigned char *source_row(const struct output *o, int64_t row) {
    if (o->head_dim) row = nmlp_gguf_row_in_pairs(row, o->head_dim);
    return o->from->data + o->from->bytes / (size_t)o->from->rows * (size_t)row;
}

static nmlp_status put_q4(struct import *m, const struct output *o, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    int64_t k = o->from->cols;
    size_t row_scales = (size_t)(k / 32) * sizeof(uint16_t);
    for (int64_t i = 0; i < o->from->rows; i++) {
        uint16_t *scales = (uint16_t *)(void *)(m->scales + row_scales * (size_t)i);
        nmlp_gguf_row_to_q4((uint8_t *)m->bytes, scales, source_row(o, i), k);
        NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(writer, m->bytes, (size_t)k / 2, err));
    }
    return nmlp_checkpoint_put(writer, m->scales, row_scales * (size_t)o->from->rows, err);
}

/* Elements of a vector in pairs, as biases of q and k are. */
static void put_in_halves(float *row, float *scratch, int64_t n, int64_t head_dim) {
    memcpy(scratch, row, (size_t)n * sizeof *row);
    for (int64_t i = 0; i < n; i++) row[i] = scratch[nmlp_gguf_row_in_pairs(i, head_dim)];
}

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    struct import *m = ctx;
    const struct output *o = &m->outputs[i];
    nmlp_dtype dtype = m->specs[i].dtype;
    int64_t k = o->from->cols;
    if (dtype == NMLP_DTYPE_Q4) return put_q4(m, o, writer, err);
    for (int64_t r = 0; r < o->from->rows; r++) {
        bool vector = o->from->n_dims == 1;
        nmlp_gguf_row_to_f32(m->row, vector ? o->from->data : source_row(o, r), o->from->type, k);
        if (vector && o->head_dim) put_in_halves(m->row, (float *)(void *)m->bytes, k, o->head_dim);
        nmlp_from_f32(m->bytes, dtype, m->row, (size_t)k);
        NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(writer, m->bytes, (size_t)k * nmlp_dtype_bytes(dtype), err));
    }
    nmlp_file_map_release(o->from->data, o->from->bytes);
    return NMLP_OK;
}

/* Files with too few tensors, or of other shapes, would otherwise become a folder that nobody can open. */
static nmlp_status check_whole(const struct import *m, const char *dir, nmlp_err *err) {
    nmlp_model model;
    nmlp_err why = {0};
    nmlp_status st = nmlp_model_open(&model, dir, &why);
    if (st != NMLP_OK) return nmlp_fail(err, st, "%s: holds no whole model: %s", m->file.origin, why.message);
    nmlp_model_close(&model);
    return NMLP_OK;
}

static nmlp_status write_dir(struct import *m, const char *dir, const nmlp_progress *progress, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_dir_stage stage = {0};
    nmlp_checkpoint_source source = {
        .specs = m->specs, .n_specs = m->n, .put = put, .ctx = m, .progress = progress, .stage = "importing"};
    NMLP_TRY(nmlp_dir_stage_open(&stage, dir, false, err));
    NMLP_TRY(nmlp_checkpoint_write(stage.temp_path, &source, err));
    NMLP_TRY(nmlp_config_save(&m->config, NULL, m->specs, m->n, stage.temp_path, err));
    NMLP_TRY(nmlp_gguf_tokenizer_save(&m->file, stage.temp_path, err));
    NMLP_TRY(check_whole(m, stage.temp_path, err));
    NMLP_TRY(nmlp_dir_stage_commit(&stage, err));
out:
    nmlp_dir_stage_abort(&stage);
    return st;
}

nmlp_status nmlp_gguf_import(const char *path, const char *dir, const nmlp_progress *progress, nmlp_gguf_result *result,
                             nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct import m = {0};
    NMLP_RETURN_IF_FAILED(nmlp_target_check(dir, NULL, err));
    NMLP_RETURN_IF_FAILED(nmlp_gguf_open(&m.file, path, err));
    nmlp_arena_init(&m.arena);
    NMLP_TRY(nmlp_gguf_config_read(&m.config, &m.in_pairs, &m.file, err));
    NMLP_TRY(list_outputs(&m, result, err));
    NMLP_TRY(write_dir(&m, dir, progress, err));
out:
    nmlp_mem_free(m.row);
    nmlp_mem_free(m.bytes);
    nmlp_mem_free(m.scales);
    nmlp_arena_fini(&m.arena);
    nmlp_gguf_close(&m.file);
    return st;
}
