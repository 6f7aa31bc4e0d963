/* An engine is a model made ready to run on a device: immutable, shareable between batches. */
#ifndef NMLP_ENGINE_ENGINE_H
#define NMLP_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/process_group.h"
#include "base/progress.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "model/model.h"

typedef struct nmlp_engine nmlp_engine;
typedef struct nmlp_session nmlp_session;
struct nmlp_backend;

typedef struct nmlp_engine_options {
    const struct nmlp_backend *backend; /* from nmlp_backend_choose; NULL: the CPU's */
    const char *isa;                    /* kernel set of the CPU, NULL or "auto": the fastest exact one */
    bool bf16;                          /* "auto" may round activations to bf16 where that is faster */
    nmlp_pool *pool;                    /* borrowed; NULL: the caller's thread alone */
    bool skip_finite_check;             /* for weights known to be sound */
    const nmlp_process_group *group;    /* borrowed; texts are scored together with its other members; may be NULL */
    const nmlp_process_group *tensor_group; /* borrowed; `model` is this member's part of one (model/model_shard.h), and
                                               every step is run by all of them. The CPU's batches only; may be NULL */
    int64_t resident_bytes;                 /* of the layers' matrices that stay in memory; the others are made when
                                               nmlp_engine_hold_layer asks. 0: all stay. CPU and dense models only */
    const nmlp_progress *progress;          /* may be NULL */
} nmlp_engine_options;

/* The model must outlive the engine. */
nmlp_status nmlp_engine_create(nmlp_engine **out, const nmlp_model *model, const nmlp_engine_options *options,
                               nmlp_err *err);
void nmlp_engine_destroy(nmlp_engine *engine);
const nmlp_model *nmlp_engine_model(const nmlp_engine *engine);
/* The kernels that run: "avx512", "cuda (NVIDIA H200)". */
const char *nmlp_engine_isa(const nmlp_engine *engine);
nmlp_pool *nmlp_engine_pool(const nmlp_engine *engine);
const nmlp_process_group *nmlp_engine_group(const nmlp_engine *engine);
const struct nmlp_backend *nmlp_engine_backend(const nmlp_engine *engine);
/* Bytes of keys and values of that many positions. */
size_t nmlp_engine_cache_bytes(const nmlp_engine *engine, int64_t positions);

/* Layers that are run one at a time (session.h) by an engine with `resident_bytes` must be held: the matrices of this
 * one are made, where they do not stay, and those of the last one that was held go. Its stand-ins must have gone. */
nmlp_status nmlp_engine_hold_layer(const nmlp_engine *engine, int64_t layer, nmlp_err *err);

/* Replaces the MLP of one layer by other weights, which must outlive the engine: how compression tries candidates. Of a
 * layer with experts `mlp` are as many as it has. The layer's own weights come back with `mlp` NULL. Batches and
 * sessions created before the call must not be used after it. NMLP_E_UNSUPPORTED where the device cannot do that. */
nmlp_status nmlp_engine_set_mlp(nmlp_engine *engine, int64_t layer, const nmlp_mlp_desc *mlp, nmlp_err *err);
/* The same for q, k, v and o of `attention`; the layer's own come back with NULL. Biases and norms stay. */
nmlp_status nmlp_engine_set_attention(nmlp_engine *engine, int64_t layer, const nmlp_layer *attention, nmlp_err *err);

#endif
