#include "engine/engine.h"

#include <string.h>

#include "base/mem.h"
#include "engine/backend.h"
#include "engine/engine_internal.h"
#include "engine/session.h"

struct nmlp_engine {
    const nmlp_backend *backend;
    const nmlp_model *model;
    nmlp_pool *pool;
    const nmlp_process_group *group;
    void *weights; /* the backend's */
};

nmlp_status nmlp_backend_choose(const nmlp_backend **backend, const char *device, const char *isa, nmlp_err *err) {
    const nmlp_backend *cuda = nmlp_backend_cuda();
    *backend = nmlp_backend_cpu();
    if (!device || strcmp(device, "cpu") == 0) return NMLP_OK;
    if (strcmp(device, "auto") == 0) {
        if (!isa && cuda->probe(NULL) == NMLP_OK) *backend = cuda;
        return NMLP_OK;
    }
    if (strcmp(device, "cuda") != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "device", "is \"%s\"; it must be cpu, cuda or auto", device);
    nmlp_status st = cuda->probe(err);
    if (st != NMLP_OK) nmlp_fail_context(err, "`device` cuda");
    if (st == NMLP_OK) *backend = cuda;
    return st;
}

nmlp_status nmlp_engine_create(nmlp_engine **out, const nmlp_model *model, const nmlp_engine_options *options,
                               nmlp_err *err) {
    *out = NULL;
    nmlp_engine *e = nmlp_mem_new(1, sizeof *e, err);
    if (!e) return NMLP_E_NOMEM;
    e->backend = options->backend ? options->backend : nmlp_backend_cpu();
    e->model = model;
    e->pool = options->pool;
    e->group = options->group;
    nmlp_status st = e->backend->weights_create(&e->weights, model, options, err);
    if (st != NMLP_OK) {
        nmlp_mem_free(e);
        return st;
    }
    *out = e;
    return NMLP_OK;
}

void nmlp_engine_destroy(nmlp_engine *e) {
    if (!e) return;
    e->backend->weights_destroy(e->weights);
    nmlp_mem_free(e);
}

const nmlp_model *nmlp_engine_model(const nmlp_engine *e) { return e->model; }
const char *nmlp_engine_isa(const nmlp_engine *e) { return e->backend->weights_name(e->weights); }
nmlp_pool *nmlp_engine_pool(const nmlp_engine *e) { return e->pool; }
const nmlp_process_group *nmlp_engine_group(const nmlp_engine *e) { return e->group; }
const nmlp_backend *nmlp_engine_backend(const nmlp_engine *e) { return e->backend; }
const void *nmlp_engine_weights(const nmlp_engine *e) { return e->weights; }

size_t nmlp_engine_cache_bytes(const nmlp_engine *e, int64_t positions) {
    return e->backend->cache_bytes(e->weights, positions);
}

nmlp_status nmlp_engine_hold_layer(const nmlp_engine *e, int64_t layer, nmlp_err *err) {
    return e->backend->hold_layer ? e->backend->hold_layer(e->weights, layer, err) : NMLP_OK;
}

nmlp_status nmlp_engine_set_mlp(nmlp_engine *e, int64_t layer, const nmlp_mlp_desc *mlp, nmlp_err *err) {
    if (!e->backend->set_mlp)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "device %s cannot replace the MLP of a layer", e->backend->name);
    return e->backend->set_mlp(e->weights, layer, mlp, err);
}

nmlp_status nmlp_engine_set_attention(nmlp_engine *e, int64_t layer, const nmlp_layer *attention, nmlp_err *err) {
    if (!e->backend->set_attention)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "device %s cannot replace the attention of a layer",
                         e->backend->name);
    return e->backend->set_attention(e->weights, layer, attention, err);
}

nmlp_status nmlp_session_create(nmlp_session **out, const nmlp_engine *e, int64_t context, int64_t chunk, bool observed,
                                nmlp_err *err) {
    *out = NULL;
    if (!e->backend->session_create)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "device %s does not run layers one at a time; the CPU does",
                         e->backend->name);
    return e->backend->session_create(out, e->weights, context, chunk, observed, err);
}
