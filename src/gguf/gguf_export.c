#include "gguf/gguf_export.h"

#include <stdio.h>
#include <string.h>

#include "gguf/gguf_config.h"
#include "gguf/gguf_names.h"
#include "gguf/gguf_tokenizer.h"
#include "gguf/gguf_write.h"
#include "tensor/quant.h"

enum { ALIGN = 32, VERSION = 3, KEY_BYTES = 96, FILE_TYPE_BF16 = 32, FILE_TYPE_Q8_0 = 7, FILE_TYPE_Q4_0 = 2 };

struct input {
    const char *name; /* borrowed */
    const nmlp_view *view;
    nmlp_gguf_type type;
    int64_t head_dim; /* of rows that go into pairs; 0: rows stay in order */
    size_t bytes;
};

struct export {
    const nmlp_model *model;
    const char *arch;
    nmlp_gguf_type type;
    nmlp_gguf_metadata metadata;
    nmlp_str table; /* of tensors */
    uint64_t n_tensors;
    struct input *inputs;
    size_t n_inputs;
    float *freqs; /* [D/2] divisors of rope; NULL: none */
    uint64_t offset;
    nmlp_file_writer file;
    nmlp_gguf_result *result;
};

static nmlp_status check_model(struct export *x, nmlp_err *err) {
    const nmlp_model *m = x->model;
    const char *family = m->config.family;
    bool llama = strcmp(family, "llama") == 0 || strcmp(family, "mistral") == 0;
    if (m->config.compressed) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: has factorised matrices, which GGUF files cannot hold",
                  m->checkpoint.dir);
        nmlp_fail_hint(err, "expand the model first");
        return NMLP_E_UNSUPPORTED;
    }
    if (!llama && strcmp(family, "qwen2") != 0 && strcmp(family, "qwen3") != 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: models of family %s are not exported; llama, mistral, qwen2 and qwen3 are",
                         m->checkpoint.dir, family);
    const char *beyond = nmlp_config_beyond_plain(&m->config);
    if (!beyond && m->config.rope.kind != NMLP_ROPE_DEFAULT && m->config.rope.kind != NMLP_ROPE_LLAMA3)
        beyond = "this scaling of rope";
    if (beyond) return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %s is not exported", m->checkpoint.dir, beyond);
    x->arch = llama ? "llama" : family;
    return NMLP_OK;
}

static void add_sizes(struct export *x) {
    const nmlp_config *c = &x->model->config;
    char key[KEY_BYTES];
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"block_count", c->n_layers},          {"context_length", c->max_positions},
                 {"embedding_length", c->hidden},       {"feed_forward_length", c->intermediate},
                 {"attention.head_count", c->n_heads},  {"attention.head_count_kv", c->n_kv_heads},
                 {"attention.key_length", c->head_dim}, {"attention.value_length", c->head_dim},
                 {"rope.dimension_count", c->head_dim}, {"vocab_size", c->vocab}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", x->arch, sizes[i].name);
        nmlp_gguf_add_u32(&x->metadata, key, sizes[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", x->arch);
    nmlp_gguf_add_f32(&x->metadata, key, c->rms_eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", x->arch);
    nmlp_gguf_add_f32(&x->metadata, key, c->rope.theta);
}

static nmlp_status add_metadata(struct export *x, nmlp_err *err) {
    nmlp_gguf_metadata *m = &x->metadata;
    nmlp_gguf_add_string(m, "general.architecture", x->arch);
    nmlp_gguf_add_string(m, "general.type", "model");
    nmlp_gguf_add_u32(m, "general.alignment", ALIGN);
    nmlp_gguf_add_u32(m, "general.quantization_version", 2);
    nmlp_gguf_add_u32(m, "general.file_type",
                      x->type == NMLP_GGUF_TYPE_Q8_0   ? FILE_TYPE_Q8_0
                      : x->type == NMLP_GGUF_TYPE_Q4_0 ? FILE_TYPE_Q4_0
                                                       : FILE_TYPE_BF16);
    add_sizes(x);
    return nmlp_gguf_tokenizer_add(m, x->model->checkpoint.dir, &x->model->config, err);
}

static void add_entry(struct export *x, const char *name, int64_t rows, int64_t cols, int n_dims, nmlp_gguf_type type,
                      size_t bytes) {
    nmlp_gguf_put_text(&x->table, name, strlen(name));
    nmlp_gguf_put_int(&x->table, (uint64_t)n_dims, 4);
    nmlp_gguf_put_int(&x->table, (uint64_t)cols, 8);
    if (n_dims == 2) nmlp_gguf_put_int(&x->table, (uint64_t)rows, 8);
    nmlp_gguf_put_int(&x->table, type, 4);
    nmlp_gguf_put_int(&x->table, x->offset, 8);
    x->offset = (x->offset + bytes + ALIGN - 1) / ALIGN * ALIGN;
    x->n_tensors++;
    x->result->params += rows * cols;
    x->result->bytes += (int64_t)bytes;
}

static nmlp_status add_tensor(struct export *x, const nmlp_named_tensor *t, nmlp_err *err) {
    char name[NMLP_GGUF_NAME_MAX];
    nmlp_gguf_rows rows_of;
    const nmlp_view *v = &t->view;
    if (x->model->config.tied && strcmp(t->name, "lm_head.weight") == 0) return NMLP_OK;
    if (!nmlp_gguf_name_from_hf(name, t->name, &rows_of))
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: tensor %s has no name in GGUF files", x->model->checkpoint.dir,
                         t->name);
    struct input *in = &x->inputs[x->n_inputs++];
    int64_t rows = v->n_dims == 2 ? v->shape[0] : 1, cols = v->n_dims == 2 ? v->shape[1] : v->shape[0];
    *in = (struct input){.name = t->name, .view = v, .type = v->n_dims == 2 ? x->type : NMLP_GGUF_TYPE_F32};
    if (cols % nmlp_gguf_layout_of(in->type)->block != 0) in->type = NMLP_GGUF_TYPE_BF16;
    const nmlp_gguf_layout *layout = nmlp_gguf_layout_of(in->type);
    in->bytes = (size_t)(rows * (cols / layout->block)) * layout->bytes;
    if (strcmp(x->arch, "llama") == 0 && rows_of != NMLP_GGUF_ROWS_PLAIN) in->head_dim = x->model->config.head_dim;
    add_entry(x, name, rows, cols, v->n_dims, in->type, in->bytes);
    return NMLP_OK;
}

/* Files have llama3's scaling as divisors of frequencies. */
static nmlp_status add_rope_table(struct export *x, nmlp_err *err) {
    const nmlp_config *c = &x->model->config;
    const nmlp_rope_config *r = &c->rope;
    int64_t n = c->head_dim / 2;
    if (r->kind == NMLP_ROPE_DEFAULT) return NMLP_OK;
    if (r->kind != NMLP_ROPE_LLAMA3)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: its rope scaling has no place in GGUF files",
                         x->model->checkpoint.dir);
    x->freqs = nmlp_mem_new((size_t)n, sizeof *x->freqs, err);
    if (!x->freqs) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < n; i++) x->freqs[i] = (float)nmlp_gguf_rope_divisor(r, c->head_dim, i);
    nmlp_gguf_add_f32(&x->metadata, NMLP_GGUF_KEY_FACTOR, r->factor);
    nmlp_gguf_add_f32(&x->metadata, NMLP_GGUF_KEY_LOW, r->low_freq_factor);
    nmlp_gguf_add_f32(&x->metadata, NMLP_GGUF_KEY_HIGH, r->high_freq_factor);
    nmlp_gguf_add_f32(&x->metadata, NMLP_GGUF_KEY_ORIGINAL, r->original_max_positions);
    add_entry(x, "rope_freqs.weight", 1, n, 1, NMLP_GGUF_TYPE_F32, (size_t)n * sizeof *x->freqs);
    return NMLP_OK;
}

static nmlp_status list_tensors(struct export *x, nmlp_err *err) {
    const nmlp_checkpoint *c = &x->model->checkpoint;
    x->inputs = nmlp_mem_new(c->n_tensors, sizeof *x->inputs, err);
    if (!x->inputs) return NMLP_E_NOMEM;
    for (size_t i = 0; i < c->n_tensors; i++) NMLP_RETURN_IF_FAILED(add_tensor(x, &c->tensors[i], err));
    return add_rope_table(x, err);
}

static nmlp_status pad(struct export *x, uint64_t bytes, nmlp_err *err) {
    static const char zeros[ALIGN];
    return nmlp_file_writer_write(&x->file, zeros, (size_t)((ALIGN - bytes % ALIGN) % ALIGN), err);
}

/* One row of a matrix, or all of a vector, in the type written; false: it has values that the type has not. */
static bool make_row(const struct input *in, int64_t row, float *wide, unsigned char *out) {
    const nmlp_view *v = in->view;
    int64_t cols = v->n_dims == 2 ? v->shape[1] : v->shape[0];
    if (in->head_dim && v->n_dims == 2) row = nmlp_gguf_row_in_halves(row, in->head_dim);
    if (v->dtype == NMLP_DTYPE_Q4 && v->group == 32 && !v->per_group && in->type == NMLP_GGUF_TYPE_Q4_0) {
        nmlp_gguf_row_from_q4(out, nmlp_view_row(v, row), (const uint16_t *)v->scales + row * (cols / 32), cols);
        return true;
    }
    if (v->n_dims == 2)
        nmlp_quant_row_to_f32(wide, v, row);
    else
        nmlp_to_f32(wide, v->data, v->dtype, (size_t)cols);
    if (in->head_dim && v->n_dims == 1) { /* a bias, element by element */
        for (int64_t i = 0; i < cols; i++)
            (void)nmlp_gguf_row_from_f32(out + (size_t)i * sizeof(float), NMLP_GGUF_TYPE_F32,
                                         wide + nmlp_gguf_row_in_halves(i, in->head_dim), 1);
        return true;
    }
    return nmlp_gguf_row_from_f32(out, in->type, wide, cols);
}

static nmlp_status write_tensor(struct export *x, const struct input *in, nmlp_err *err) {
    const nmlp_view *v = in->view;
    int64_t rows = v->n_dims == 2 ? v->shape[0] : 1, cols = v->n_dims == 2 ? v->shape[1] : v->shape[0];
    size_t row_bytes = in->bytes / (size_t)rows;
    float *wide = nmlp_mem_new((size_t)cols, sizeof *wide, err);
    unsigned char *out = nmlp_mem_new(row_bytes, 1, err);
    nmlp_status st = wide && out ? NMLP_OK : NMLP_E_NOMEM;
    for (int64_t i = 0; st == NMLP_OK && i < rows; i++) {
        if (!make_row(in, i, wide, out))
            st = nmlp_fail(err, NMLP_E_NUMERIC, "%s: row %lld of tensor %s is not finite, or too large for %s",
                           x->model->checkpoint.dir, (long long)i, in->name, nmlp_gguf_layout_of(in->type)->name);
        if (st == NMLP_OK) st = nmlp_file_writer_write(&x->file, out, row_bytes, err);
    }
    if (st == NMLP_OK) st = pad(x, in->bytes, err);
    nmlp_file_map_release(v->data, nmlp_view_bytes(v));
    nmlp_mem_free(wide);
    nmlp_mem_free(out);
    return st;
}

static nmlp_status write_front(struct export *x, nmlp_err *err) {
    nmlp_str front;
    nmlp_str_init(&front);
    nmlp_str_append(&front, "GGUF", 4);
    nmlp_gguf_put_int(&front, VERSION, 4);
    nmlp_gguf_put_int(&front, x->n_tensors, 8);
    nmlp_gguf_put_int(&front, x->metadata.n, 8);
    nmlp_str_append(&front, nmlp_str_text(&x->metadata.bytes), x->metadata.bytes.len);
    nmlp_str_append(&front, nmlp_str_text(&x->table), x->table.len);
    nmlp_status st = nmlp_str_status(&x->metadata.bytes, err);
    if (st == NMLP_OK) st = nmlp_str_status(&x->table, err);
    if (st == NMLP_OK) st = nmlp_str_status(&front, err);
    if (st == NMLP_OK) st = nmlp_file_writer_write(&x->file, front.data, front.len, err);
    if (st == NMLP_OK) st = pad(x, front.len, err);
    nmlp_str_fini(&front);
    return st;
}

static nmlp_status write_file(struct export *x, const char *path, const nmlp_progress *progress, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_open(&x->file, path, err));
    NMLP_RETURN_IF_FAILED(write_front(x, err));
    double done = 0;
    for (size_t i = 0; i < x->n_inputs; i++) {
        NMLP_RETURN_IF_FAILED(write_tensor(x, &x->inputs[i], err));
        done += (double)x->inputs[i].bytes;
        if (!nmlp_progress_update(progress, "exporting", done, (double)x->result->bytes, "B"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "exporting was stopped");
    }
    if (x->freqs) {
        size_t bytes = (size_t)(x->model->config.head_dim / 2) * sizeof *x->freqs;
        NMLP_RETURN_IF_FAILED(nmlp_file_writer_write(&x->file, x->freqs, bytes, err));
        NMLP_RETURN_IF_FAILED(pad(x, bytes, err));
    }
    return nmlp_file_writer_commit(&x->file, err);
}

static nmlp_status parse_type(struct export *x, const char *name, nmlp_err *err) {
    if (strcmp(name, "bf16") == 0)
        x->type = NMLP_GGUF_TYPE_BF16;
    else if (strcmp(name, "q8_0") == 0)
        x->type = NMLP_GGUF_TYPE_Q8_0;
    else if (strcmp(name, "q4_0") == 0)
        x->type = NMLP_GGUF_TYPE_Q4_0;
    else
        return nmlp_fail_field(err, NMLP_E_ARG, "type", "is \"%s\"; it must be bf16, q8_0 or q4_0", name);
    return NMLP_OK;
}

nmlp_status nmlp_gguf_export(const nmlp_model *model, const char *path, const char *type, const nmlp_progress *progress,
                             nmlp_gguf_result *result, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct export x = {.model = model, .result = result, .file.fd = -1};
    *result = (nmlp_gguf_result){0};
    NMLP_RETURN_IF_FAILED(parse_type(&x, type, err));
    NMLP_RETURN_IF_FAILED(check_model(&x, err));
    nmlp_str_init(&x.metadata.bytes);
    nmlp_str_init(&x.table);
    NMLP_TRY(add_metadata(&x, err));
    NMLP_TRY(list_tensors(&x, err));
    NMLP_TRY(write_file(&x, path, progress, err));
out:
    nmlp_file_writer_abort(&x.file);
    nmlp_mem_free(x.inputs);
    nmlp_mem_free(x.freqs);
    nmlp_str_fini(&x.table);
    nmlp_str_fini(&x.metadata.bytes);
    return st;
}
