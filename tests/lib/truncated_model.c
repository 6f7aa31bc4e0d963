#include "lib/truncated_model.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "checkpoint/checkpoint_write.h"
#include "lib/testing.h"
#include "model/expand.h"
#include "model/model.h"

enum { OUTPUTS_MAX = 512 };

typedef struct output {
    nmlp_tensor_spec spec;
    char name[128];
    float *data;
} output;

/* Rows of v [r,k] orthonormal, in order. */
static void orthonormalise(float *v, int64_t r, int64_t k) {
    for (int64_t i = 0; i < r; i++) {
        float *row = v + i * k;
        for (int64_t j = 0; j < i; j++) {
            double dot = 0;
            for (int64_t p = 0; p < k; p++) dot += (double)row[p] * (double)v[j * k + p];
            for (int64_t p = 0; p < k; p++) row[p] -= (float)dot * v[j * k + p];
        }
        double norm = 0;
        for (int64_t p = 0; p < k; p++) norm += (double)row[p] * (double)row[p];
        for (int64_t p = 0; p < k; p++) row[p] *= (float)(1 / sqrt(norm));
    }
}

static void factorise(const nmlp_view *weight, int64_t r, float *u, float *v, nmlp_rng *rng) {
    int64_t n = weight->shape[0];
    int64_t k = weight->shape[1];
    float *w = nmlp_mem_new((size_t)(n * k), sizeof *w, NULL);
    assert_non_null(w);
    nmlp_to_f32(w, weight->data, weight->dtype, (size_t)(n * k));
    for (int64_t i = 0; i < r; i++) { /* a few random rows each: cheap, and random enough */
        for (int pick = 0; pick < 8; pick++) {
            const float *row = w + nmlp_rng_below(rng, n) * k;
            float sign = nmlp_rng_next(rng) & 1 ? 1.0f : -1.0f;
            for (int64_t p = 0; p < k; p++) v[i * k + p] += sign * row[p];
        }
    }
    orthonormalise(v, r, k);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < r; j++) {
            float dot = 0;
            for (int64_t p = 0; p < k; p++) dot += w[i * k + p] * v[j * k + p];
            u[i * r + j] = dot;
        }
    }
    nmlp_mem_free(w);
}

static output *add(output *outputs, size_t *n, const char *name, int64_t rows, int64_t cols) {
    assert_true(*n < OUTPUTS_MAX);
    output *o = &outputs[(*n)++];
    snprintf(o->name, sizeof o->name, "%s", name);
    o->spec =
        (nmlp_tensor_spec){.name = o->name, .dtype = NMLP_DTYPE_F32, .n_dims = cols ? 2 : 1, .shape = {rows, cols}};
    o->data = nmlp_mem_new((size_t)(rows * (cols ? cols : 1)), sizeof(float), NULL);
    assert_non_null(o->data);
    return o;
}

static void add_tensor(output *outputs, size_t *n, const nmlp_named_tensor *t, int64_t rank, nmlp_rng *rng) {
    const char *dot = strrchr(t->name, '.');
    char name[128];
    if (!strstr(t->name, ".mlp.")) {
        output *o = add(outputs, n, t->name, t->view.shape[0], t->view.n_dims == 2 ? t->view.shape[1] : 0);
        nmlp_to_f32(o->data, t->view.data, t->view.dtype, (size_t)nmlp_view_elems(&t->view));
        return;
    }
    snprintf(name, sizeof name, "%.*s.u", (int)(dot - t->name), t->name);
    output *u = add(outputs, n, name, t->view.shape[0], rank);
    snprintf(name, sizeof name, "%.*s.v", (int)(dot - t->name), t->name);
    output *v = add(outputs, n, name, rank, t->view.shape[1]);
    factorise(&t->view, rank, u->data, v->data, rng);
}

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const output *o = &((const output *)ctx)[i];
    return nmlp_checkpoint_put(writer, o->data, nmlp_tensor_spec_bytes(&o->spec), err);
}

static void write_all(const char *dir, const nmlp_config *config, output *outputs, size_t n) {
    static nmlp_tensor_spec specs[OUTPUTS_MAX];
    nmlp_checkpoint_source source = {.specs = specs, .n_specs = n, .put = put, .ctx = outputs};
    nmlp_err err;
    nmlp_str text;
    char path[512];
    for (size_t i = 0; i < n; i++) specs[i] = outputs[i].spec;
    nmlp_assert_ok(nmlp_checkpoint_write(dir, &source, &err), &err);
    nmlp_str_init(&text);
    nmlp_config_write(config, "{\"version\":1,\"ratio\":0.5,\"tile\":16}", NULL, 0, &text);
    snprintf(path, sizeof path, "%s/config.json", dir);
    nmlp_test_write_file(path, nmlp_str_text(&text), text.len);
    nmlp_str_fini(&text);
}

void truncated_model_write(const char *source_dir, const char *out_dir, int64_t rank) {
    output *outputs = calloc(OUTPUTS_MAX, sizeof *outputs);
    nmlp_model model;
    nmlp_err err;
    nmlp_rng rng;
    size_t n = 0;
    assert_non_null(outputs);
    nmlp_rng_seed(&rng, 3);
    nmlp_assert_ok(nmlp_model_open(&model, source_dir, &err), &err);
    for (size_t i = 0; i < model.checkpoint.n_tensors; i++)
        add_tensor(outputs, &n, &model.checkpoint.tensors[i], rank, &rng);
    write_all(out_dir, &model.config, outputs, n);
    nmlp_assert_ok(nmlp_model_copy_side_files(source_dir, out_dir, &err), &err);
    for (size_t i = 0; i < n; i++) nmlp_mem_free(outputs[i].data);
    free(outputs);
    nmlp_model_close(&model);
}
