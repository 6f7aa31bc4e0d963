/* From a model directory on the command line to an engine ready to run, with progress. */
#ifndef NMLP_CLI_LOAD_H
#define NMLP_CLI_LOAD_H

#include "base/pool.h"
#include "base/status.h"
#include "cli/cli.h"
#include "engine/engine.h"
#include "model/model.h"

typedef struct nmlp_loaded {
    nmlp_pool *pool;
    nmlp_model model;
    nmlp_engine *engine;
} nmlp_loaded;

typedef struct nmlp_load_options {
    const char *isa;       /* --isa */
    const char *precision; /* --precision: "f32" (default) or "bf16" */
    const char *device;    /* --device; NULL or "auto": the CPU unless a GPU backend is built in */
} nmlp_load_options;

nmlp_status nmlp_load(nmlp_loaded *loaded, const nmlp_cli *cli, const char *dir, const nmlp_load_options *options,
                      nmlp_err *err);
void nmlp_unload(nmlp_loaded *loaded);

#endif
