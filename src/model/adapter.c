#include "model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "tensor/quant.h"

enum { PATH_MAX_BYTES = 4096, NAME_MAX_BYTES = 256, ROWS_PER_TASK = 8 };

struct adapter {
    const char *dir;
    nmlp_safetensors file;
    double scale; /* alpha / r, or alpha / sqrt(r) */
};

static nmlp_status refuse(const nmlp_json_doc *doc, const char *key, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: key \"%s\" asks for something that cannot be merged", doc->origin,
                     key);
}

/* Keys that change what an adapter computes must have the value at which they do not. */
static nmlp_status check_keys(const nmlp_json_doc *doc, nmlp_err *err) {
    static const char *const false_keys[] = {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora"};
    static const char *const empty_keys[] = {"rank_pattern",      "alpha_pattern",           "modules_to_save",
                                             "layer_replication", "trainable_token_indices", "exclude_modules"};
    const nmlp_json *type = nmlp_json_get(doc->root, "peft_type");
    const nmlp_json *bias = nmlp_json_get(doc->root, "bias");
    if (strcmp(nmlp_json_string(type), "LORA") != 0) return refuse(doc, "peft_type", err);
    if (!nmlp_json_is_null(bias) && strcmp(nmlp_json_string(bias), "none") != 0) return refuse(doc, "bias", err);
    for (size_t i = 0; i < sizeof false_keys / sizeof false_keys[0]; i++)
        if (nmlp_json_bool(nmlp_json_get(doc->root, false_keys[i]))) return refuse(doc, false_keys[i], err);
    for (size_t i = 0; i < sizeof empty_keys / sizeof empty_keys[0]; i++) {
        const nmlp_json *value = nmlp_json_get(doc->root, empty_keys[i]);
        if (!nmlp_json_is_null(value) && nmlp_json_count(value) > 0) return refuse(doc, empty_keys[i], err);
    }
    return NMLP_OK;
}

static nmlp_status read_config(struct adapter *a, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_json_doc doc;
    double alpha = 8;
    int64_t rank = 8;
    bool by_root = false;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, a->dir, "adapter_config.json", err));
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    nmlp_status st = check_keys(&doc, err);
    if (st == NMLP_OK) st = nmlp_json_need_int(&doc, doc.root, "r", 1, 1 << 20, &rank, err);
    if (st == NMLP_OK) st = nmlp_json_need_number(&doc, doc.root, "lora_alpha", &alpha, err);
    if (st == NMLP_OK) st = nmlp_json_optional_bool(&doc, doc.root, "use_rslora", &by_root, err);
    nmlp_json_free(&doc);
    a->scale = alpha / (by_root ? sqrt((double)rank) : (double)rank);
    return st;
}

static const nmlp_named_tensor *find(const struct adapter *a, const char *name) {
    for (size_t i = 0; i < a->file.n_tensors; i++)
        if (strcmp(a->file.tensors[i].name, name) == 0) return &a->file.tensors[i];
    return NULL;
}

struct merging {
    const nmlp_view *w;
    const nmlp_view *b; /* [N,r] */
    const float *a;     /* [r,K] */
    float *to;
    double scale;
};

static void merge_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct merging *m = ctx;
    int64_t k = m->w->shape[1], rank = m->b->shape[1];
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float *row = m->to + i * k;
        nmlp_quant_row_to_f32(row, m->w, i);
        for (int64_t r = 0; r < rank; r++) {
            float b;
            const char *at = (const char *)nmlp_view_row(m->b, i) + (size_t)r * nmlp_dtype_bytes(m->b->dtype);
            nmlp_to_f32(&b, at, m->b->dtype, 1);
            float factor = (float)((double)b * m->scale);
            for (int64_t j = 0; j < k; j++) row[j] += factor * m->a[r * k + j];
        }
    }
}

/* Merges what the adapter has for one matrix; *used counts its tensors. */
static nmlp_status merge(const struct adapter *adapter, nmlp_model *model, nmlp_view *w, const char *module,
                         nmlp_pool *pool, size_t *used, nmlp_err *err) {
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "base_model.model.%s.lora_A.weight", module);
    const nmlp_named_tensor *a = find(adapter, name);
    snprintf(name, sizeof name, "base_model.model.%s.lora_B.weight", module);
    const nmlp_named_tensor *b = find(adapter, name);
    if (!w->data || (!a && !b)) return NMLP_OK;
    bool fits = a && b && !a->int_bytes && !b->int_bytes && !nmlp_dtype_is_quantised(a->view.dtype) &&
                !nmlp_dtype_is_quantised(b->view.dtype) && a->view.n_dims == 2 && b->view.n_dims == 2 &&
                a->view.shape[0] == b->view.shape[1] && a->view.shape[1] == w->shape[1] &&
                b->view.shape[0] == w->shape[0];
    if (!fits)
        return nmlp_fail(err, NMLP_E_SHAPE, "%s: lora_A and lora_B of %s do not fit the model's matrix", adapter->dir,
                         module);
    struct merging m = {.w = w, .b = &b->view, .scale = adapter->scale};
    float *wide = nmlp_mem_new((size_t)nmlp_view_elems(&a->view), sizeof *wide, err);
    m.to = nmlp_arena_new(&model->widened, (size_t)nmlp_view_elems(w), sizeof *m.to, err);
    if (wide && m.to) {
        nmlp_to_f32(wide, a->view.data, a->view.dtype, (size_t)nmlp_view_elems(&a->view));
        m.a = wide;
        nmlp_pool_for(pool, w->shape[0], ROWS_PER_TASK, merge_rows, &m);
        *w = nmlp_view_2d(m.to, NMLP_DTYPE_F32, w->shape[0], w->shape[1]);
        *used += 2;
    }
    nmlp_mem_free(wide);
    return wide && m.to ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status merge_layer(const struct adapter *adapter, nmlp_model *model, int64_t l, nmlp_pool *pool,
                               size_t *used, nmlp_err *err) {
    static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                        "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    nmlp_layer *layer = &model->layers[l];
    nmlp_view *const views[] = {&layer->attention[NMLP_ATTENTION_Q].w, &layer->attention[NMLP_ATTENTION_K].w,
                                &layer->attention[NMLP_ATTENTION_V].w, &layer->attention[NMLP_ATTENTION_O].w,
                                &layer->mlp[NMLP_MLP_GATE].w,          &layer->mlp[NMLP_MLP_UP].w,
                                &layer->mlp[NMLP_MLP_DOWN].w};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char module[NAME_MAX_BYTES / 2];
        snprintf(module, sizeof module, "model.layers.%lld.%s", (long long)l, names[i]);
        NMLP_RETURN_IF_FAILED(merge(adapter, model, views[i], module, pool, used, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_model_merge_adapter(nmlp_model *model, const char *dir, nmlp_pool *pool, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    struct adapter a = {.dir = dir};
    nmlp_status st = NMLP_OK;
    size_t used = 0;
    NMLP_RETURN_IF_FAILED(read_config(&a, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "adapter_model.safetensors", err));
    NMLP_RETURN_IF_FAILED(nmlp_safetensors_open(&a.file, path, err));
    for (int64_t l = 0; l < model->config.n_layers; l++) NMLP_TRY(merge_layer(&a, model, l, pool, &used, err));
    if (used != a.file.n_tensors || used == 0) {
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: %zu of its %zu tensors fit dense matrices of attention and MLP in %s",
                  path, used, a.file.n_tensors, model->checkpoint.dir);
        nmlp_fail_hint(err, "only LoRA of q, k, v, o, gate, up and down is merged");
        st = NMLP_E_UNSUPPORTED;
    }
out:
    nmlp_safetensors_close(&a.file);
    return st;
}
