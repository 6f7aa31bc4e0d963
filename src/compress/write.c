#include "compress/write.h"

#include <stdio.h>
#include <string.h>

#include "base/dir_stage.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "compress/factor/factor_slices.h"
#include "model/expand.h"

enum { NAME_MAX_BYTES = 160 };
static const size_t shard_bytes = 1000000000u;

/* Tensors to write, with where their bytes are. */
struct outputs {
    nmlp_arena arena;
    nmlp_tensor_spec *specs;
    const nmlp_view **data;
    struct stacking *stacking; /* what a tensor is made of; f NULL: it is `data` */
    size_t n;
    int64_t slices;
};

/* A factor of all slices, made when it is written: files of layers hold them block diagonal. */
struct stacking {
    const nmlp_factors *f;
    nmlp_view view; /* its shape */
    bool down, is_u;
};

static nmlp_status add(struct outputs *o, const char *name, const nmlp_view *view, nmlp_err *err) {
    nmlp_tensor_spec *spec = &o->specs[o->n];
    *spec = nmlp_tensor_spec_of(nmlp_arena_strdup(&o->arena, name, err), view);
    o->data[o->n++] = view;
    return spec->name ? NMLP_OK : NMLP_E_NOMEM;
}

/* One matrix of one MLP or attention. */
struct place {
    nmlp_module_kind kind;
    int64_t layer, index;
    int matrix;
};

/* Which matrix a tensor is, if any. */
static bool find_matrix(const nmlp_model *m, const char *name, struct place *place) {
    const nmlp_config *c = &m->config;
    long long layer, index = 0;
    char path[NMLP_MATRIX_PATH_MAX];
    if (sscanf(name, "model.layers.%lld.", &layer) != 1 || layer < 0 || layer >= c->n_layers) return false;
    const char *experts = strstr(name, ".experts.");
    if (experts && (sscanf(experts, ".experts.%lld.", &index) != 1 || index < 0 || index >= c->n_experts)) return false;
    for (int kind = 0; kind < NMLP_MODULES; kind++) {
        for (int i = 0; i <= nmlp_module_of((nmlp_module_kind)kind)->n_first; i++) {
            nmlp_module_matrix_path(path, c, (nmlp_module_kind)kind, layer, index, i);
            size_t n = strlen(path);
            if (strncmp(name, path, n) != 0 || strcmp(name + n, ".weight") != 0) continue;
            *place = (struct place){.kind = (nmlp_module_kind)kind, .layer = layer, .index = index, .matrix = i};
            return true;
        }
    }
    return false;
}

static nmlp_status add_factor(struct outputs *o, const char *name, const nmlp_factors *f, bool is_u, bool down,
                              nmlp_err *err) {
    const nmlp_view *view = is_u ? &f->u : &f->v;
    if (o->slices == 1) return add(o, name, view, err);
    struct stacking *s = &o->stacking[o->n];
    int64_t n = o->slices, rank = f->u.shape[1] / n;
    *s = (struct stacking){.f = f, .view = *view, .down = down, .is_u = is_u};
    s->view.shape[0] = is_u ? (down ? n : 1) * view->shape[0] : n * rank;
    s->view.shape[1] = is_u ? rank : view->shape[1] / (down ? n : 1);
    return add(o, name, &s->view, err);
}

static nmlp_status add_matrix(struct outputs *o, const nmlp_config *c, const nmlp_named_tensor *source,
                              const nmlp_layer_file *file, const struct place *place, nmlp_err *err) {
    const nmlp_factors *f = &file->factors[place->matrix];
    int last = nmlp_module_of(place->kind)->n_first;
    char path[NMLP_MATRIX_PATH_MAX], name[NAME_MAX_BYTES];
    if (f->w.data) return add(o, source->name, &f->w, err);
    if (!f->u.data) return add(o, source->name, &source->view, err);
    nmlp_module_matrix_path(path, c, place->kind, place->layer, place->index, place->matrix);
    snprintf(name, sizeof name, "%s.u", path);
    bool down = place->matrix == last;
    NMLP_RETURN_IF_FAILED(add_factor(o, name, f, true, down, err));
    bool shared = file->ranks.joint && !down;
    if (shared && place->matrix > 0) return NMLP_OK;
    if (shared) nmlp_module_matrix_path(path, c, place->kind, place->layer, place->index, last + 1);
    snprintf(name, sizeof name, "%s.v", path);
    return add_factor(o, name, f, false, down, err);
}

/* Gate and up in one tensor come apart, unless both stay as they are. */
static nmlp_status add_fused(struct outputs *o, const nmlp_model *m, const nmlp_named_tensor *source,
                             const nmlp_layer_file *file, int64_t layer, nmlp_err *err) {
    bool changed = false;
    for (int i = NMLP_MLP_GATE; i <= NMLP_MLP_UP; i++)
        changed = changed || file->factors[i].w.data || file->factors[i].u.data;
    if (!changed) return add(o, source->name, &source->view, err);
    for (int i = NMLP_MLP_GATE; i <= NMLP_MLP_UP; i++) {
        char name[NAME_MAX_BYTES];
        snprintf(name, sizeof name, "model.layers.%lld.mlp.%s.weight", (long long)layer,
                 nmlp_mlp_matrix_name((nmlp_mlp_matrix)i));
        nmlp_named_tensor part = {.name = name, .view = m->layers[layer].mlp[i].w};
        const nmlp_view *kept = &m->layers[layer].mlp[i].w;
        struct place place = {.layer = layer, .matrix = i};
        NMLP_RETURN_IF_FAILED(add_matrix(o, &m->config, &part, file, &place, err));
        if (o->data[o->n - 1] == &part.view) o->data[o->n - 1] = kept;
    }
    return NMLP_OK;
}

/* The layer whose gate and up a tensor is; -1: it is something else. */
static int64_t fused_layer(const nmlp_model *m, const char *name) {
    long long number;
    int end = 0;
    if (!m->config.features->fused) return -1;
    if (sscanf(name, "model.layers.%lld.mlp.gate_up_proj.weight%n", &number, &end) != 1) return -1;
    return end > 0 && name[end] == 0 && number >= 0 && number < m->config.n_layers ? number : -1;
}

static nmlp_status list_outputs(struct outputs *o, const nmlp_model *m, const nmlp_layer_file *finished,
                                const nmlp_layer_file *attention, nmlp_compressed_size *size, nmlp_err *err) {
    int64_t n_mlps = m->config.n_experts > 0 ? m->config.n_experts : 1;
    size_t most =
        m->checkpoint.n_tensors + (size_t)(m->config.n_layers * (n_mlps * NMLP_MLP_MATRICES + NMLP_ATTENTION_MATRICES));
    o->specs = nmlp_arena_new(&o->arena, most, sizeof *o->specs, err);
    o->data = nmlp_arena_new(&o->arena, most, sizeof *o->data, err);
    o->stacking = nmlp_arena_new(&o->arena, most, sizeof *o->stacking, err);
    if (!o->specs || !o->data || !o->stacking) return NMLP_E_NOMEM;
    *size = (nmlp_compressed_size){0};
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        struct place place = {0};
        size_t first = o->n;
        bool found = find_matrix(m, t->name, &place), mlp = found && place.kind == NMLP_MODULE_MLP;
        const nmlp_layer_file *file =
            found && !mlp ? &attention[place.layer] : &finished[place.layer * n_mlps + place.index];
        int64_t fused = fused_layer(m, t->name);
        NMLP_RETURN_IF_FAILED(found        ? add_matrix(o, &m->config, t, file, &place, err)
                              : fused >= 0 ? add_fused(o, m, t, &finished[fused], fused, err)
                                           : add(o, t->name, &t->view, err));
        for (size_t k = first; k < o->n; k++) {
            size->params += nmlp_view_elems(o->data[k]);
            size->bytes += (int64_t)nmlp_tensor_spec_bytes(&o->specs[k]);
            if (mlp || fused >= 0) size->mlp_params += nmlp_view_elems(o->data[k]);
        }
    }
    return NMLP_OK;
}

static nmlp_status put_stacked(const struct stacking *s, int64_t slices, nmlp_checkpoint_writer *writer,
                               nmlp_err *err) {
    nmlp_factors stacked;
    void *u = NULL, *v = NULL;
    nmlp_status st = nmlp_slice_stack(&stacked, &u, &v, s->f, s->down, slices, err);
    if (st == NMLP_OK) st = nmlp_checkpoint_put_view(writer, s->is_u ? &stacked.u : &stacked.v, err);
    nmlp_mem_free(u);
    nmlp_mem_free(v);
    return st;
}

static nmlp_status put(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    const nmlp_view *view = ((const struct outputs *)ctx)->data[i];
    const struct stacking *stacking = &((const struct outputs *)ctx)->stacking[i];
    if (stacking->f) return put_stacked(stacking, ((const struct outputs *)ctx)->slices, writer, err);
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put_view(writer, view, err));
    nmlp_file_map_release(view->data, nmlp_view_bytes(view)); /* else all of both checkpoints would stay in memory */
    return NMLP_OK;
}

nmlp_status nmlp_compressed_write(const nmlp_model *m, const nmlp_layer_file *finished,
                                  const nmlp_layer_file *attention, int64_t slices, nmlp_dir_stage *stage,
                                  const char *neuronmlp, const char *card, const nmlp_progress *progress,
                                  nmlp_compressed_size *size, nmlp_err *err) {
    struct outputs o = {.slices = slices};
    char path[4096];
    nmlp_status st = NMLP_OK;
    nmlp_arena_init(&o.arena);
    NMLP_TRY(list_outputs(&o, m, finished, attention, size, err));
    nmlp_checkpoint_source source = {.specs = o.specs,
                                     .n_specs = o.n,
                                     .put = put,
                                     .ctx = &o,
                                     .max_shard_bytes = shard_bytes,
                                     .progress = progress,
                                     .stage = "writing"};
    NMLP_TRY(nmlp_checkpoint_write(stage->temp_path, &source, err));
    NMLP_TRY(nmlp_config_save(&m->config, neuronmlp, o.specs, o.n, stage->temp_path, err));
    NMLP_TRY(nmlp_model_copy_side_files(m->checkpoint.dir, stage->temp_path, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, stage->temp_path, "README.md", err));
    NMLP_TRY(nmlp_file_write_text(path, card, strlen(card), err));
    NMLP_TRY(nmlp_dir_stage_commit(stage, err));
out:
    nmlp_arena_fini(&o.arena);
    return st;
}
