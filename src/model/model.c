#include "model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "tensor/quant.h"

enum { NAME_MAX_BYTES = 160 };

const char *nmlp_mlp_matrix_name(nmlp_mlp_matrix matrix) { return nmlp_module_of(NMLP_MODULE_MLP)->names[matrix]; }

static nmlp_status check_shape(const nmlp_model *m, const nmlp_named_tensor *t, int64_t rows, int64_t cols,
                               nmlp_err *err) {
    int64_t want[2] = {rows, cols};
    int n_dims = cols ? 2 : 1;
    char found_text[NMLP_SHAPE_TEXT_MAX];
    char want_text[NMLP_SHAPE_TEXT_MAX];
    const nmlp_view *v = &t->view;
    if (v->n_dims == n_dims && v->shape[0] == rows && (n_dims == 1 || v->shape[1] == cols)) return NMLP_OK;
    nmlp_shape_text(found_text, v->shape, v->n_dims);
    nmlp_shape_text(want_text, want, n_dims);
    nmlp_fail(err, NMLP_E_SHAPE, "%s: tensor %s has shape %s, expected %s by config.json", m->checkpoint.dir, t->name,
              found_text, want_text);
    nmlp_fail_hint(err, "config.json and the weights do not belong together, or one of them is damaged");
    return NMLP_E_SHAPE;
}

/* A tensor of a given shape; cols 0 means a vector. */
static nmlp_status bind(const nmlp_model *m, nmlp_view *out, const char *name, int64_t rows, int64_t cols,
                        nmlp_err *err) {
    const nmlp_named_tensor *t = nmlp_checkpoint_find(&m->checkpoint, name);
    if (!t) return nmlp_fail(err, NMLP_E_MISSING, "%s: tensor %s is missing", m->checkpoint.dir, name);
    NMLP_RETURN_IF_FAILED(check_shape(m, t, rows, cols, err));
    *out = t->view;
    return NMLP_OK;
}

static nmlp_status bind_layer(const nmlp_model *m, nmlp_view *out, int64_t layer, const char *name, int64_t rows,
                              int64_t cols, nmlp_err *err) {
    char full[NAME_MAX_BYTES];
    snprintf(full, sizeof full, "model.layers.%lld.%s", (long long)layer, name);
    return bind(m, out, full, rows, cols, err);
}

static nmlp_status bind_attention_vectors(const nmlp_model *m, nmlp_layer *layer, int64_t l, nmlp_err *err) {
    const nmlp_config *c = &m->config;
    int64_t q_dim = c->n_heads * c->head_dim;
    int64_t kv_dim = c->n_kv_heads * c->head_dim;
    if (c->qkv_bias) {
        NMLP_RETURN_IF_FAILED(bind_layer(m, &layer->q_bias, l, "self_attn.q_proj.bias", q_dim, 0, err));
        NMLP_RETURN_IF_FAILED(bind_layer(m, &layer->k_bias, l, "self_attn.k_proj.bias", kv_dim, 0, err));
        NMLP_RETURN_IF_FAILED(bind_layer(m, &layer->v_bias, l, "self_attn.v_proj.bias", kv_dim, 0, err));
    }
    if (c->o_bias) NMLP_RETURN_IF_FAILED(bind_layer(m, &layer->o_bias, l, "self_attn.o_proj.bias", c->hidden, 0, err));
    if (c->features->qk_norm == NMLP_QK_NORM_NONE) return NMLP_OK;
    bool per_head = c->features->qk_norm == NMLP_QK_NORM_HEAD;
    NMLP_RETURN_IF_FAILED(
        bind_layer(m, &layer->q_norm, l, "self_attn.q_norm.weight", per_head ? c->head_dim : q_dim, 0, err));
    return bind_layer(m, &layer->k_norm, l, "self_attn.k_norm.weight", per_head ? c->head_dim : kv_dim, 0, err);
}

const nmlp_module *nmlp_module_of(nmlp_module_kind kind) {
    static const nmlp_module modules[NMLP_MODULES] = {
        {.name = "mlp",
         .folder = "mlp",
         .n_first = 2,
         .names = {"gate_proj", "up_proj", "down_proj", NULL},
         .shared = "gate_up_proj"},
        {.name = "attn",
         .folder = "self_attn",
         .n_first = 3,
         .names = {"q_proj", "k_proj", "v_proj", "o_proj"},
         .shared = "qkv_proj"},
    };
    return &modules[kind];
}

void nmlp_module_shape(const nmlp_config *c, nmlp_module_kind kind, int64_t layer, int matrix, int64_t *rows,
                       int64_t *cols) {
    int64_t q_dim = c->n_heads * c->head_dim;
    bool mlp = kind == NMLP_MODULE_MLP;
    int64_t wide = mlp                          ? nmlp_config_mlp_inner(c, layer)
                   : matrix == NMLP_ATTENTION_K ? c->n_kv_heads * c->head_dim
                   : matrix == NMLP_ATTENTION_V ? c->n_kv_heads * c->head_dim
                                                : q_dim;
    bool last = matrix == nmlp_module_of(kind)->n_first;
    *rows = last ? c->hidden : wide;
    *cols = last ? wide : c->hidden;
}

void nmlp_module_matrix_path(char path[NMLP_MATRIX_PATH_MAX], const nmlp_config *c, nmlp_module_kind kind,
                             int64_t layer, int64_t index, int matrix) {
    const nmlp_module *module = nmlp_module_of(kind);
    if (kind == NMLP_MODULE_MLP) {
        nmlp_mlp_matrix_path(path, c, layer, index, matrix);
        return;
    }
    snprintf(path, NMLP_MATRIX_PATH_MAX, "model.layers.%lld.%s.%s", (long long)layer, module->folder,
             matrix > module->n_first ? module->shared : module->names[matrix]);
}

void nmlp_mlp_matrix_path(char path[NMLP_MATRIX_PATH_MAX], const nmlp_config *c, int64_t layer, int64_t index,
                          int matrix) {
    static const char *const mixtral[NMLP_MLP_MATRICES] = {"w1", "w3", "w2"};
    bool has_experts = nmlp_config_has_experts(c, layer);
    bool is_mixtral = has_experts && c->features->experts == NMLP_EXPERTS_MIXTRAL;
    const char *name = matrix == NMLP_MLP_MATRICES ? "gate_up_proj"
                       : is_mixtral                ? mixtral[matrix]
                                                   : nmlp_mlp_matrix_name((nmlp_mlp_matrix)matrix);
    if (has_experts)
        snprintf(path, NMLP_MATRIX_PATH_MAX, "model.layers.%lld.%s.experts.%lld.%s", (long long)layer,
                 is_mixtral ? "block_sparse_moe" : "mlp", (long long)index, name);
    else
        snprintf(path, NMLP_MATRIX_PATH_MAX, "model.layers.%lld.mlp.%s", (long long)layer, name);
}

static const nmlp_named_tensor *find_part(const nmlp_model *m, const char *path, const char *part) {
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "%s.%s", path, part);
    return nmlp_checkpoint_find(&m->checkpoint, name);
}

/* Where the factors of a matrix are looked for. */
struct matrix {
    const char *path;   /* "model.layers.3.mlp.gate_proj" */
    const char *shared; /* the same of a v that it may share; NULL: none */
    int64_t rows, cols;
    int64_t slices; /* of the outputs, or with `down` of the inputs, each with factors of its own; 1: none */
    bool down;
};

static nmlp_status bind_factors(const nmlp_model *m, nmlp_factors *f, const struct matrix *matrix,
                                const nmlp_named_tensor *u, bool *is_shared, nmlp_err *err) {
    const nmlp_named_tensor *v = find_part(m, matrix->path, "v");
    const nmlp_named_tensor *shared = matrix->shared ? find_part(m, matrix->shared, "v") : NULL;
    if (v && shared)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: tensors %s and %s are both there; a matrix has one v",
                         m->checkpoint.dir, v->name, shared->name);
    if (!v) v = shared;
    if (!v) return nmlp_fail(err, NMLP_E_MISSING, "%s: tensor %s has no matching v", m->checkpoint.dir, u->name);
    int64_t rank = u->view.n_dims == 2 ? u->view.shape[1] : 0, n = matrix->slices;
    NMLP_RETURN_IF_FAILED(check_shape(m, u, matrix->down ? n * matrix->rows : matrix->rows, rank ? rank : 1, err));
    NMLP_RETURN_IF_FAILED(check_shape(m, v, n * rank, matrix->down ? matrix->cols / n : matrix->cols, err));
    f->u = u->view;
    f->v = v->view;
    if (shared) *is_shared = true;
    return NMLP_OK;
}

/* Binds factors where there are some; *found says so. */
static nmlp_status bind_if_factored(const nmlp_model *m, nmlp_factors *f, const struct matrix *matrix, bool *is_shared,
                                    bool *found, nmlp_err *err) {
    const nmlp_named_tensor *w = find_part(m, matrix->path, "weight");
    const nmlp_named_tensor *u = find_part(m, matrix->path, "u");
    *found = u != NULL;
    if (w && u)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: tensors %s and %s are both there; a matrix is dense or factorised",
                         m->checkpoint.dir, w->name, u->name);
    if (u && !m->config.compressed)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: tensor %s is a factor, but config.json has no \"neuronmlp\" object",
                         m->checkpoint.dir, u->name);
    return u ? bind_factors(m, f, matrix, u, is_shared, err) : NMLP_OK;
}

static nmlp_status bind_dense(const nmlp_model *m, nmlp_factors *f, const struct matrix *matrix, nmlp_err *err) {
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "%s.weight", matrix->path);
    return bind(m, &f->w, name, matrix->rows, matrix->cols, err);
}

/* Rows of matrix i where the family has those of the same input in one tensor. */
static nmlp_status bind_fused(const nmlp_model *m, nmlp_factors *f, nmlp_module_kind kind, int64_t l, int i,
                              nmlp_err *err) {
    const nmlp_module *module = nmlp_module_of(kind);
    char name[64];
    int64_t all = 0, first = 0, rows = 0, cols = 0, own = 0;
    nmlp_view fused;
    for (int k = 0; k < module->n_first; k++) {
        nmlp_module_shape(&m->config, kind, l, k, &rows, &cols);
        if (k < i) first += rows;
        if (k == i) own = rows;
        all += rows;
    }
    snprintf(name, sizeof name, "%s.%s.weight", module->folder, module->shared);
    NMLP_RETURN_IF_FAILED(bind_layer(m, &fused, l, name, all, cols, err));
    f->w = nmlp_view_rows(&fused, first, own);
    return NMLP_OK;
}

/* Matrix i of a module of layer l; `index` counts the layer's MLPs. */
static nmlp_status bind_matrix(const nmlp_model *m, nmlp_factors *f, nmlp_module_kind kind, int64_t l, int64_t index,
                               int i, bool *is_shared, nmlp_err *err) {
    char path[NMLP_MATRIX_PATH_MAX], shared[NMLP_MATRIX_PATH_MAX];
    const nmlp_config *c = &m->config;
    int n_first = nmlp_module_of(kind)->n_first;
    struct matrix matrix = {.path = path,
                            .shared = i == n_first ? NULL : shared,
                            .slices = kind == NMLP_MODULE_MLP && c->slices > 0 ? c->slices : 1,
                            .down = i == n_first};
    bool found;
    nmlp_module_shape(c, kind, l, i, &matrix.rows, &matrix.cols);
    nmlp_module_matrix_path(path, c, kind, l, index, i);
    nmlp_module_matrix_path(shared, c, kind, l, index, n_first + 1);
    NMLP_RETURN_IF_FAILED(bind_if_factored(m, f, &matrix, is_shared, &found, err));
    if (found) return NMLP_OK;
    /* Compressed, each has a name of its own even where the other stays dense. */
    if (!c->features->fused || i == n_first || find_part(m, path, "weight")) return bind_dense(m, f, &matrix, err);
    return bind_fused(m, f, kind, l, i, err);
}

static nmlp_status bind_attention(nmlp_model *m, nmlp_layer *layer, int64_t l, nmlp_err *err) {
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        nmlp_factors *f = &layer->attention[i];
        NMLP_RETURN_IF_FAILED(bind_matrix(m, f, NMLP_MODULE_ATTENTION, l, 0, i, &layer->attention_shares_basis, err));
        if (!nmlp_factors_is_dense(f)) m->config.attention_factored = true;
    }
    if (layer->attention_shares_basis)
        for (int i = 0; i < NMLP_ATTENTION_O; i++)
            if (layer->attention[i].v.data != layer->attention[0].v.data)
                return nmlp_fail(err, NMLP_E_FORMAT, "%s: q, k and v of layer %lld share a v only in part",
                                 m->checkpoint.dir, (long long)l);
    return bind_attention_vectors(m, layer, l, err);
}

static nmlp_status bind_norms(const nmlp_model *m, nmlp_layer *layer, int64_t l, nmlp_err *err) {
    nmlp_norm_place place = m->config.features->norm_place;
    const struct {
        nmlp_view *view;
        const char *name;
    } norms[] = {{&layer->attention_norm, place == NMLP_NORM_AFTER ? NULL : "input_layernorm.weight"},
                 {&layer->attention_norm_post, place == NMLP_NORM_BEFORE ? NULL : "post_attention_layernorm.weight"},
                 {&layer->mlp_norm, place == NMLP_NORM_BEFORE   ? "post_attention_layernorm.weight"
                                    : place == NMLP_NORM_AROUND ? "pre_feedforward_layernorm.weight"
                                                                : NULL},
                 {&layer->mlp_norm_post, place == NMLP_NORM_BEFORE ? NULL : "post_feedforward_layernorm.weight"}};
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++)
        if (norms[i].name)
            NMLP_RETURN_IF_FAILED(bind_layer(m, norms[i].view, l, norms[i].name, m->config.hidden, 0, err));
    return NMLP_OK;
}

static nmlp_status bind_experts(nmlp_model *m, nmlp_layer *layer, int64_t l, nmlp_err *err) {
    const nmlp_config *c = &m->config;
    bool is_mixtral = c->features->experts == NMLP_EXPERTS_MIXTRAL;
    const char *router = is_mixtral ? "block_sparse_moe.gate.weight" : "mlp.gate.weight";
    layer->experts = nmlp_arena_new(&m->widened, (size_t)c->n_experts, sizeof *layer->experts, err);
    if (!layer->experts) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(bind_layer(m, &layer->router, l, router, c->n_experts, c->hidden, err));
    for (int64_t e = 0; e < c->n_experts; e++)
        for (int i = 0; i < NMLP_MLP_MATRICES; i++)
            NMLP_RETURN_IF_FAILED(bind_matrix(m, &layer->experts[e].mlp[i], NMLP_MODULE_MLP, l, e, i,
                                              &layer->experts[e].shared_basis, err));
    return NMLP_OK;
}

static nmlp_status bind_layers(nmlp_model *m, nmlp_err *err) {
    const nmlp_config *c = &m->config;
    m->layers = nmlp_mem_new((size_t)c->n_layers, sizeof *m->layers, err);
    if (!m->layers) return NMLP_E_NOMEM;
    for (int64_t l = 0; l < c->n_layers; l++) {
        nmlp_layer *layer = &m->layers[l];
        NMLP_RETURN_IF_FAILED(bind_norms(m, layer, l, err));
        NMLP_RETURN_IF_FAILED(bind_attention(m, layer, l, err));
        if (nmlp_config_has_experts(c, l)) {
            NMLP_RETURN_IF_FAILED(bind_experts(m, layer, l, err));
            continue;
        }
        for (int i = 0; i < NMLP_MLP_MATRICES; i++)
            NMLP_RETURN_IF_FAILED(bind_matrix(m, &layer->mlp[i], NMLP_MODULE_MLP, l, 0, i, &layer->shared_basis, err));
        for (int i = 0; i < NMLP_MLP_MATRICES; i++)
            if (!nmlp_factors_is_dense(&layer->mlp[i])) layer->slices = c->slices;
    }
    return NMLP_OK;
}

static bool is_same_matrix(const nmlp_view *a, const nmlp_view *b) {
    return a->dtype == b->dtype && a->group == b->group && memcmp(a->data, b->data, nmlp_view_bytes(a)) == 0 &&
           (!a->scales || memcmp(a->scales, b->scales, nmlp_quant_scale_bytes(a)) == 0) &&
           !a->per_group == !b->per_group &&
           (!a->per_group || memcmp(a->per_group, b->per_group, nmlp_quant_per_group_bytes(a)) == 0);
}

/* A head of its own beside tie_word_embeddings is used, as transformers does; one that equals the embedding is the
 * embedding. */
static nmlp_status bind_head(nmlp_model *m, nmlp_err *err) {
    const nmlp_config *c = &m->config;
    const nmlp_named_tensor *own = nmlp_checkpoint_find(&m->checkpoint, "lm_head.weight");
    if (!c->tied || own) NMLP_RETURN_IF_FAILED(bind(m, &m->lm_head, "lm_head.weight", c->vocab, c->hidden, err));
    if (!c->tied) return NMLP_OK;
    if (own && !is_same_matrix(&own->view, &m->embedding)) {
        m->config.tied = false;
        return NMLP_OK;
    }
    m->lm_head = m->embedding;
    return NMLP_OK;
}

static bool is_in_factors(const nmlp_factors *factors, int n, const void *data) {
    for (int i = 0; i < n; i++)
        if (factors[i].w.data == data || factors[i].u.data == data || factors[i].v.data == data) return true;
    return false;
}

static bool is_in_layer(const nmlp_layer *l, int64_t n_mlps, const void *data) {
    const nmlp_view *views[] = {&l->attention_norm, &l->attention_norm_post,
                                &l->q_bias,         &l->k_bias,
                                &l->v_bias,         &l->o_bias,
                                &l->q_norm,         &l->k_norm,
                                &l->mlp_norm,       &l->router,
                                &l->mlp_norm_post};
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++)
        if (views[i]->data == data) return true;
    for (int64_t e = 0; e < n_mlps; e++)
        if (is_in_factors(nmlp_layer_mlp_at(l, e), NMLP_MLP_MATRICES, data)) return true;
    return is_in_factors(l->attention, NMLP_ATTENTION_MATRICES, data);
}

/* Of two kinds of tensor the model is the same without: angles stored by old versions, and a second copy of the head.
 */
static bool is_needless(const nmlp_model *m, const nmlp_named_tensor *t) {
    size_t len = strlen(t->name);
    static const char angles[] = ".rotary_emb.inv_freq";
    if (len >= sizeof angles && strcmp(t->name + len - (sizeof angles - 1), angles) == 0) return true;
    return m->config.tied && strcmp(t->name, "lm_head.weight") == 0;
}

/* A tensor that nothing uses belongs to another model than the configuration describes: its result would be silently
 * wrong. */
static nmlp_status refuse_unknown_tensors(const nmlp_model *m, nmlp_err *err) {
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        const void *data = t->view.data;
        bool known = data == m->embedding.data || data == m->final_norm.data || data == m->lm_head.data;
        for (int64_t l = 0; !known && l < m->config.n_layers; l++)
            known = is_in_layer(&m->layers[l], nmlp_config_mlp_count(&m->config, l), data);
        if (known || is_needless(m, t)) continue;
        nmlp_fail(err, NMLP_E_UNSUPPORTED,
                  "%s: tensor %s is no part of a %s model of %lld layers, which config.json describes",
                  m->checkpoint.dir, t->name, m->config.family, (long long)m->config.n_layers);
        nmlp_fail_hint(
            err, "config.json and the weights do not belong together, or the model has parts that are not known here");
        return NMLP_E_UNSUPPORTED;
    }
    return NMLP_OK;
}

nmlp_status nmlp_model_open(nmlp_model *m, const char *dir, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *m = (nmlp_model){0};
    nmlp_arena_init(&m->widened);
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_open(&m->checkpoint, dir, err));
    m->config = m->checkpoint.config;
    const nmlp_config *c = &m->config;
    if (c->slices > 0 && (c->quantised || c->n_experts > 0 || c->features->fused))
        NMLP_TRY(nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: factors of slices together with %s are not known", dir,
                           c->quantised ? "quantised weights" : "experts or fused projections"));
    NMLP_TRY(bind(m, &m->embedding, "model.embed_tokens.weight", c->vocab, c->hidden, err));
    NMLP_TRY(bind(m, &m->final_norm, "model.norm.weight", c->hidden, 0, err));
    NMLP_TRY(bind_head(m, err));
    NMLP_TRY(bind_layers(m, err));
    NMLP_TRY(refuse_unknown_tensors(m, err));
out:
    if (st != NMLP_OK) nmlp_model_close(m);
    return st;
}

void nmlp_model_close(nmlp_model *m) {
    nmlp_mem_free(m->layers);
    nmlp_arena_fini(&m->widened);
    nmlp_checkpoint_close(&m->checkpoint);
    *m = (nmlp_model){0};
}

/* An MLP whose matrices have `elems` elements when dense. */
static void count_mlp(nmlp_model_size *size, const nmlp_factors mlp[NMLP_MLP_MATRICES], bool shared_basis,
                      int64_t elems) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        const nmlp_factors *f = &mlp[i];
        bool basis_counted = shared_basis && i == NMLP_MLP_UP;
        size->mlp_params_dense += elems;
        if (nmlp_factors_is_dense(f)) {
            size->n_dense++;
            size->mlp_params += elems;
        } else {
            size->n_lowrank++;
            size->mlp_params += nmlp_view_elems(&f->u) + (basis_counted ? 0 : nmlp_view_elems(&f->v));
        }
    }
}

static void count_attention(nmlp_model_size *size, const nmlp_layer *layer) {
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        const nmlp_factors *f = &layer->attention[i];
        bool basis_counted = layer->attention_shares_basis && i > 0 && i < NMLP_ATTENTION_O;
        size->attention_params_dense += nmlp_factors_rows(f) * nmlp_factors_cols(f);
        size->n_attention_lowrank += !nmlp_factors_is_dense(f);
        size->attention_params += nmlp_factors_is_dense(f)
                                      ? nmlp_view_elems(&f->w)
                                      : nmlp_view_elems(&f->u) + (basis_counted ? 0 : nmlp_view_elems(&f->v));
    }
}

int64_t nmlp_model_view_bytes(const nmlp_view *view) { return (int64_t)nmlp_quant_stored_bytes(view); }

nmlp_model_size nmlp_model_measure(const nmlp_model *m) {
    nmlp_model_size size = {0};
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        size.params += nmlp_view_elems(&m->checkpoint.tensors[i].view);
        const nmlp_view *view = &m->checkpoint.tensors[i].view;
        size.bytes += nmlp_model_view_bytes(view);
    }
    for (int64_t l = 0; l < m->config.n_layers; l++) count_attention(&size, &m->layers[l]);
    for (int64_t l = 0; l < m->config.n_layers; l++)
        for (int64_t e = 0; e < nmlp_config_mlp_count(&m->config, l); e++)
            count_mlp(&size, nmlp_layer_mlp_at(&m->layers[l], e), nmlp_layer_shares_basis(&m->layers[l], e),
                      m->config.hidden * nmlp_config_mlp_inner(&m->config, l));
    return size;
}
