/* From a model directory to an engine ready to run on a device, with progress. */
#ifndef NMLP_SERVICE_LOADED_MODEL_H
#define NMLP_SERVICE_LOADED_MODEL_H

#include "base/pool.h"
#include "base/status.h"
#include "base/progress.h"
#include "engine/engine.h"
#include "engine/split_choice.h"
#include "model/model.h"
#include "model/model_shard.h"
#include "service/memory_need.h"

typedef struct nmlp_loaded {
    nmlp_pool *pool;
    nmlp_model model;
    nmlp_model_shard *shard; /* what of the model this process runs; NULL: all of it */
    nmlp_split_choice split; /* how the processes share its MLPs; without splits: there is one */
    nmlp_engine *engine;
} nmlp_loaded;

enum { NMLP_LOAD_THREADS_MAX = 1024 };

typedef struct nmlp_load_options {
    const char *isa;       /* kernel set; NULL: chosen */
    const char *precision; /* of activations: "f32" (or NULL) is exact, "bf16" may round them where that is faster,
                              "auto" does so for weights stored as bf16 */
    const char *device;    /* "cpu" (or NULL), "cuda", or "auto": a GPU where one is usable and no isa is given */
    bool dequantise;       /* quantised weights are widened to f32, so that activations need no rounding: exact, slow */
    const char *adapter;   /* directory of a LoRA adapter to merge; NULL: none */
    int n_threads;         /* 0: one per CPU */
    const nmlp_process_group *group; /* borrowed; texts are scored together with its other members; may be NULL */
    const nmlp_process_group *tensor_group; /* borrowed; its members share the model, each step is run by all of them.
                                               On the CPU only; may be NULL */
    const char *split;                      /* of a tensor_group: how factorised MLPs are shared, a name of
                                               model/cluster_cost.h; NULL or "auto": each layer by what is measured */
    bool leads;                             /* of a tensor_group: the others follow this one's steps
                                               (engine/backend_shared.h) instead of making the same themselves */
    int64_t resident_bytes;                 /* of nmlp_engine_options */
    nmlp_memory_work work;                  /* what the caller will do, for a refusal before it begins */
    const nmlp_progress *progress;          /* may be NULL */
} nmlp_load_options;

nmlp_status nmlp_load(nmlp_loaded *loaded, const char *dir, const nmlp_load_options *options, nmlp_err *err);
/* "avx512", "cuda (NVIDIA H200)" */
const char *nmlp_loaded_name(const nmlp_loaded *loaded);
/* The other members of a tensor_group whose first one `leads`: runs this one's part in its steps until it unloads its
 * model. */
nmlp_status nmlp_loaded_follow(const nmlp_loaded *loaded, const nmlp_process_group *group, nmlp_err *err);
void nmlp_unload(nmlp_loaded *loaded);

#endif
