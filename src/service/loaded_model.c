#include "service/loaded_model.h"

#include <string.h>

#include "engine/gpu.h"

/* Which side runs the model. Only commands that can use a GPU say "auto". */
static nmlp_status choose_device(bool *gpu, const nmlp_load_options *options, nmlp_err *err) {
    nmlp_cuda_info info;
    const char *device = options->device ? options->device : "cpu";
    *gpu = false;
    if (strcmp(device, "cpu") == 0) return NMLP_OK;
    if (strcmp(device, "auto") == 0) {
        *gpu = !options->isa && nmlp_cuda_probe(&info, err) == NMLP_OK;
        return NMLP_OK;
    }
    if (strcmp(device, "cuda") != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "device", "is \"%s\"; it must be cpu, cuda or auto", device);
    nmlp_status st = nmlp_cuda_probe(&info, err);
    if (st != NMLP_OK) nmlp_fail_context(err, "`device` cuda");
    *gpu = st == NMLP_OK;
    return st;
}

static nmlp_status check_precision(const char *precision, bool *bf16, nmlp_err *err) {
    *bf16 = precision && strcmp(precision, "bf16") == 0;
    if (*bf16 || !precision || strcmp(precision, "f32") == 0) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "precision", "is \"%s\"; it must be f32 or bf16", precision);
}

nmlp_status nmlp_load(nmlp_loaded *loaded, const char *dir, const nmlp_load_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_progress *progress = options->progress;
    bool gpu;
    *loaded = (nmlp_loaded){0};
    nmlp_engine_options engine_options = {.isa = options->isa, .progress = progress};
    NMLP_TRY(choose_device(&gpu, options, err));
    NMLP_TRY(check_precision(options->precision, &engine_options.bf16, err));
    NMLP_TRY(nmlp_model_open(&loaded->model, dir, err));
    NMLP_TRY(nmlp_pool_create(&loaded->pool, options->n_threads, err));
    if (gpu) {
        NMLP_TRY(nmlp_model_check_finite(&loaded->model, loaded->pool, progress, err));
        NMLP_TRY(nmlp_cuda_engine_create(&loaded->gpu, &loaded->model, progress, err));
        NMLP_TRY(nmlp_engine_create_on_gpu(&loaded->engine, &loaded->model, loaded->gpu, loaded->pool, err));
        goto out;
    }
    engine_options.pool = loaded->pool;
    NMLP_TRY(nmlp_engine_create(&loaded->engine, &loaded->model, &engine_options, err));
out:
    if (st != NMLP_OK) nmlp_unload(loaded);
    return st;
}

const char *nmlp_loaded_name(const nmlp_loaded *loaded) { return nmlp_engine_isa(loaded->engine); }

void nmlp_unload(nmlp_loaded *loaded) {
    nmlp_engine_destroy(loaded->engine);
    nmlp_cuda_engine_destroy(loaded->gpu);
    nmlp_pool_destroy(loaded->pool);
    nmlp_model_close(&loaded->model);
    *loaded = (nmlp_loaded){0};
}
