#include "service/loaded_model.h"

#include <string.h>

#include "engine/backend.h"

static nmlp_status check_precision(const char *precision, bool *bf16, nmlp_err *err) {
    *bf16 = precision && strcmp(precision, "bf16") == 0;
    if (*bf16 || !precision || strcmp(precision, "f32") == 0) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "precision", "is \"%s\"; it must be f32 or bf16", precision);
}

nmlp_status nmlp_load(nmlp_loaded *loaded, const char *dir, const nmlp_load_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const nmlp_progress *progress = options->progress;
    *loaded = (nmlp_loaded){0};
    nmlp_engine_options engine_options = {.isa = options->isa, .progress = progress};
    NMLP_TRY(nmlp_backend_choose(&engine_options.backend, options->device, options->isa, err));
    NMLP_TRY(check_precision(options->precision, &engine_options.bf16, err));
    NMLP_TRY(nmlp_model_open(&loaded->model, dir, err));
    NMLP_TRY(nmlp_pool_create(&loaded->pool, options->n_threads, err));
    engine_options.pool = loaded->pool;
    NMLP_TRY(nmlp_engine_create(&loaded->engine, &loaded->model, &engine_options, err));
out:
    if (st != NMLP_OK) nmlp_unload(loaded);
    return st;
}

const char *nmlp_loaded_name(const nmlp_loaded *loaded) { return nmlp_engine_isa(loaded->engine); }

void nmlp_unload(nmlp_loaded *loaded) {
    nmlp_engine_destroy(loaded->engine);
    nmlp_pool_destroy(loaded->pool);
    nmlp_model_close(&loaded->model);
    *loaded = (nmlp_loaded){0};
}
