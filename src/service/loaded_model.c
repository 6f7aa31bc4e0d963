#include "service/loaded_model.h"

#include <string.h>

#include "base/memory_limit.h"
#include "engine/backend.h"
#include "engine/backend_shared.h"
#include "model/adapter.h"

static nmlp_status check_precision(const char *precision, nmlp_err *err) {
    static const char *const words[] = {"f32", "bf16", "auto"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!precision || strcmp(precision, words[i]) == 0) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "precision", "is \"%s\"; it must be f32, bf16 or auto", precision);
}

/* Whether activations may be rounded to bf16. Weights stored as bf16 were meant to be multiplied by such. */
static bool may_round(const char *precision, const nmlp_model *model) {
    if (!precision || strcmp(precision, "f32") == 0) return false;
    return strcmp(precision, "bf16") == 0 ||
           nmlp_factors_dtype(&model->layers[0].attention[NMLP_ATTENTION_Q]) == NMLP_DTYPE_BF16;
}

static nmlp_status take_part(nmlp_loaded *loaded, nmlp_engine_options *engine, const nmlp_load_options *options,
                             nmlp_err *err) {
    const nmlp_process_group *group = options->tensor_group;
    if (engine->backend != nmlp_backend_cpu())
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "device", "must be cpu where %d processes share a model",
                               group->size);
    engine->tensor_group = group;
    if (options->leads) engine->backend = nmlp_backend_shared();
    NMLP_RETURN_IF_FAILED(nmlp_split_choose(&loaded->split, &loaded->model, options->split, group, loaded->pool, err));
    return nmlp_model_shard_create(&loaded->shard, &loaded->model, group->rank, group->size, loaded->split.splits,
                                   loaded->pool, err);
}

/* On the CPU weights are packed into memory of our own, of which there must be enough for those that stay. */
static nmlp_status check_memory(const nmlp_model *model, const nmlp_load_options *options, nmlp_err *err) {
    double weights = nmlp_memory_weights_bytes(model, options->resident_bytes, options->dequantise);
    int n_parts = options->tensor_group ? options->tensor_group->size : 1;
    return nmlp_memory_need(weights / n_parts + nmlp_memory_work_bytes(&model->config, &options->work), err);
}

/* Device "auto" is the CPU for models that the GPU has no kernels for. */
static nmlp_status create_engine(nmlp_loaded *loaded, nmlp_engine_options *engine, const nmlp_load_options *options,
                                 nmlp_err *err) {
    const nmlp_model *model = loaded->shard ? &loaded->shard->model : &loaded->model;
    nmlp_status st = nmlp_engine_create(&loaded->engine, model, engine, err);
    bool may_fall_back =
        options->device && strcmp(options->device, "auto") == 0 && engine->backend != nmlp_backend_cpu();
    if (st != NMLP_E_UNSUPPORTED || !may_fall_back) return st;
    engine->backend = nmlp_backend_cpu();
    NMLP_RETURN_IF_FAILED(check_memory(&loaded->model, options, err));
    return nmlp_engine_create(&loaded->engine, model, engine, err);
}

nmlp_status nmlp_load(nmlp_loaded *loaded, const char *dir, const nmlp_load_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_progress *progress = options->progress;
    *loaded = (nmlp_loaded){0};
    nmlp_engine_options engine_options = {
        .isa = options->isa, .group = options->group, .resident_bytes = options->resident_bytes, .progress = progress};
    NMLP_TRY(nmlp_backend_choose(&engine_options.backend, options->device, options->isa, err));
    NMLP_TRY(check_precision(options->precision, err));
    if (options->split && !options->tensor_group)
        NMLP_TRY(nmlp_fail_field(err, NMLP_E_ARG, "split", "needs several processes: start them with mpirun -n N"));
    NMLP_TRY(nmlp_model_open(&loaded->model, dir, err));
    if (engine_options.backend == nmlp_backend_cpu()) NMLP_TRY(check_memory(&loaded->model, options, err));
    NMLP_TRY(nmlp_pool_create(&loaded->pool, options->n_threads, err));
    if (options->adapter) NMLP_TRY(nmlp_model_merge_adapter(&loaded->model, options->adapter, loaded->pool, err));
    if (options->dequantise) NMLP_TRY(nmlp_model_widen(&loaded->model, loaded->pool, err));
    engine_options.bf16 = may_round(options->precision, &loaded->model);
    engine_options.pool = loaded->pool;
    if (options->tensor_group) NMLP_TRY(take_part(loaded, &engine_options, options, err));
    NMLP_TRY(create_engine(loaded, &engine_options, options, err));
out:
    if (st != NMLP_OK) nmlp_unload(loaded);
    return st;
}

const char *nmlp_loaded_name(const nmlp_loaded *loaded) { return nmlp_engine_isa(loaded->engine); }

nmlp_status nmlp_loaded_follow(const nmlp_loaded *loaded, const nmlp_process_group *group, nmlp_err *err) {
    return nmlp_engine_follow(loaded->engine, group, err);
}

void nmlp_unload(nmlp_loaded *loaded) {
    nmlp_engine_destroy(loaded->engine);
    nmlp_model_shard_destroy(loaded->shard);
    nmlp_split_choice_fini(&loaded->split);
    nmlp_pool_destroy(loaded->pool);
    nmlp_model_close(&loaded->model);
    *loaded = (nmlp_loaded){0};
}
