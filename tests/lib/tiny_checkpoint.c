#include "lib/tiny_checkpoint.h"

#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/checkpoint_write.h"
#include "tensor/quant.h"
#include "lib/testing.h"

static void fill(float *data, int64_t n, double deviation, nmlp_rng *rng) {
    for (int64_t i = 0; i < n; i++) data[i] = (float)(deviation * nmlp_rng_normal(rng));
}

tiny_tensor *tiny_add(tiny_checkpoint *c, const char *name, int64_t rows, int64_t cols) {
    assert_true(c->n < TINY_TENSORS_MAX);
    tiny_tensor *t = &c->tensors[c->n++];
    *t = (tiny_tensor){.n_dims = cols ? 2 : 1, .shape = {rows, cols}};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->data = nmlp_mem_new((size_t)(rows * (cols ? cols : 1)), sizeof *t->data, NULL);
    assert_non_null(t->data);
    return t;
}

static void add_random(tiny_checkpoint *c, const char *name, int64_t rows, int64_t cols, nmlp_rng *rng) {
    tiny_tensor *t = tiny_add(c, name, rows, cols);
    if (cols) {
        fill(t->data, rows * cols, 0.15, rng);
    } else {
        for (int64_t i = 0; i < rows; i++) t->data[i] = 1 + 0.1f * (float)nmlp_rng_normal(rng);
    }
}

void tiny_init(tiny_checkpoint *c, uint64_t seed) {
    static const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"input_layernorm", 32, 0},   {"self_attn.q_proj", 32, 32}, {"self_attn.k_proj", 16, 32},
        {"self_attn.v_proj", 16, 32}, {"self_attn.o_proj", 32, 32}, {"post_attention_layernorm", 32, 0},
        {"mlp.gate_proj", 48, 32},    {"mlp.up_proj", 48, 32},      {"mlp.down_proj", 32, 48},
    };
    nmlp_rng rng;
    nmlp_rng_seed(&rng, seed);
    *c = (tiny_checkpoint){0};
    snprintf(c->config, sizeof c->config,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":48,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
             "\"vocab_size\":64,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,"
             "\"tie_word_embeddings\":true,\"hidden_act\":\"silu\"}");
    add_random(c, "model.embed_tokens.weight", TINY_VOCAB, TINY_HIDDEN, &rng);
    for (int l = 0; l < TINY_LAYERS; l++) {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, parts[i].name);
            add_random(c, name, parts[i].rows, parts[i].cols, &rng);
        }
    }
    add_random(c, "model.norm.weight", TINY_HIDDEN, 0, &rng);
}

void tiny_fini(tiny_checkpoint *c) {
    for (size_t i = 0; i < c->n; i++) nmlp_mem_free(c->tensors[i].data);
    c->n = 0;
}

tiny_fixture *tiny_fixture_create(uint64_t seed) {
    tiny_fixture *f = nmlp_mem_new(1, sizeof *f, NULL);
    nmlp_test_mkdtemp(f->dir, sizeof f->dir);
    tiny_init(&f->c, seed);
    return f;
}

void tiny_fixture_destroy(tiny_fixture *f) {
    tiny_fini(&f->c);
    nmlp_test_rmdir(f->dir);
    nmlp_mem_free(f);
}

tiny_tensor *tiny_find(tiny_checkpoint *c, const char *name) {
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

void tiny_remove(tiny_checkpoint *c, const char *name) {
    tiny_tensor *t = tiny_find(c, name);
    nmlp_mem_free(t->data);
    *t = c->tensors[--c->n];
}

void tiny_mark_compressed(tiny_checkpoint *c) {
    size_t len = strlen(c->config);
    snprintf(c->config + len - 1, sizeof c->config - len + 1,
             ",\"neuronmlp\":{\"version\":1,\"ratio\":0.2,\"tile\":4}}");
}

void tiny_factorise(tiny_checkpoint *c, int layer, const char *matrix, int64_t rank, float *dense) {
    char name[96];
    nmlp_rng rng;
    const char *folder = strlen(matrix) == strlen("q_proj") ? "self_attn" : "mlp";
    nmlp_rng_seed(&rng, 1000u + (uint64_t)layer);
    snprintf(name, sizeof name, "model.layers.%d.%s.%s.weight", layer, folder, matrix);
    tiny_tensor *w = tiny_find(c, name);
    int64_t rows = w->shape[0];
    int64_t cols = w->shape[1];
    tiny_remove(c, name);
    snprintf(name, sizeof name, "model.layers.%d.%s.%s.u", layer, folder, matrix);
    tiny_tensor *u = tiny_add(c, name, rows, rank);
    fill(u->data, rows * rank, 0.3, &rng);
    snprintf(name, sizeof name, "model.layers.%d.%s.%s.v", layer, folder, matrix);
    tiny_tensor *v = tiny_add(c, name, rank, cols);
    fill(v->data, rank * cols, 0.3, &rng);
    for (int64_t i = 0; dense && i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            double sum = 0;
            for (int64_t r = 0; r < rank; r++) sum += (double)u->data[i * rank + r] * (double)v->data[r * cols + j];
            dense[i * cols + j] = (float)sum;
        }
    }
}

static void write_config(const tiny_checkpoint *c, const char *dir) {
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", dir);
    nmlp_test_write_file(path, c->config, strlen(c->config));
}

struct writing {
    const tiny_checkpoint *c;
    const nmlp_tensor_spec *specs;
};

/* Rounded to nearest. */
static nmlp_status put_quantised(nmlp_checkpoint_writer *writer, const tiny_tensor *t, const nmlp_tensor_spec *spec,
                                 nmlp_err *err) {
    nmlp_view view = {
        .dtype = spec->dtype, .group = spec->group, .n_dims = 2, .shape = {spec->shape[0], spec->shape[1]}};
    void *codes = nmlp_mem_new(nmlp_view_bytes(&view), 1, NULL);
    void *scales = nmlp_mem_new(nmlp_quant_scale_bytes(&view), 1, NULL);
    void *multipliers = NULL;
    view.data = codes;
    view.scales = scales;
    if (nmlp_quant_has_multipliers(view.dtype))
        view.per_group = multipliers = nmlp_mem_new((size_t)(view.shape[0] * nmlp_quant_groups(&view)), 1, NULL);
    for (int64_t i = 0; i < t->shape[0]; i++) nmlp_quant_row_from_f32(&view, i, t->data + i * t->shape[1]);
    nmlp_status st = nmlp_checkpoint_put_view(writer, &view, err);
    nmlp_mem_free(codes);
    nmlp_mem_free(scales);
    nmlp_mem_free(multipliers);
    return st;
}

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const struct writing *w = ctx;
    const tiny_tensor *t = &w->c->tensors[i];
    size_t n = (size_t)t->shape[0] * (t->n_dims == 2 ? (size_t)t->shape[1] : 1);
    nmlp_dtype dtype = w->specs[i].dtype;
    if (nmlp_dtype_is_quantised(dtype)) return put_quantised(writer, t, &w->specs[i], err);
    size_t bytes = n * nmlp_dtype_bytes(dtype);
    void *data = nmlp_mem_new(bytes, 1, NULL);
    nmlp_from_f32(data, dtype, t->data, n);
    nmlp_status st = nmlp_checkpoint_put(writer, data, bytes, err);
    nmlp_mem_free(data);
    return st;
}

/* config.json with the "quantization_config" of these tensors. */
static void write_quantised_config(const tiny_checkpoint *c, const nmlp_tensor_spec *specs, const char *dir) {
    tiny_checkpoint changed = *c;
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_tensor_specs_quant_config(specs, c->n, &text);
    size_t end = strlen(c->config);
    while (end > 0 && c->config[end - 1] != '}') end--;
    snprintf(changed.config, sizeof changed.config, "%.*s,\"quantization_config\":%s}", (int)end - 1, c->config,
             nmlp_str_text(&text));
    nmlp_str_fini(&text);
    write_config(&changed, dir);
}

void tiny_write_quantised(const tiny_checkpoint *c, const char *dir, nmlp_dtype dtype, int group) {
    nmlp_tensor_spec specs[TINY_TENSORS_MAX];
    struct writing writing = {.c = c, .specs = specs};
    nmlp_checkpoint_source source = {.specs = specs, .n_specs = c->n, .put = put, .ctx = &writing};
    nmlp_err err;
    for (size_t i = 0; i < c->n; i++) {
        const tiny_tensor *t = &c->tensors[i];
        specs[i] = (nmlp_tensor_spec){
            .name = t->name, .dtype = dtype, .group = group, .n_dims = t->n_dims, .shape = {t->shape[0], t->shape[1]}};
        if (!nmlp_tensor_spec_fits(&specs[i])) specs[i].dtype = NMLP_DTYPE_BF16;
    }
    write_quantised_config(c, specs, dir);
    nmlp_assert_ok(nmlp_checkpoint_write(dir, &source, &err), &err);
}

void tiny_write(const tiny_checkpoint *c, const char *dir, nmlp_dtype dtype) {
    nmlp_tensor_spec specs[TINY_TENSORS_MAX];
    struct writing writing = {.c = c, .specs = specs};
    nmlp_checkpoint_source source = {.specs = specs, .n_specs = c->n, .put = put, .ctx = &writing};
    nmlp_err err;
    write_config(c, dir);
    for (size_t i = 0; i < c->n; i++) {
        const tiny_tensor *t = &c->tensors[i];
        specs[i] = (nmlp_tensor_spec){
            .name = t->name, .dtype = dtype, .n_dims = t->n_dims, .shape = {t->shape[0], t->shape[1]}};
    }
    nmlp_assert_ok(nmlp_checkpoint_write(dir, &source, &err), &err);
}
