/* A layer of an engine with some of its matrices replaced by f32 copies, and out again: what rounding of weights alone
 * does. */
#ifndef NMLP_COMPRESS_QUANTIZE_QUANT_STAND_IN_H
#define NMLP_COMPRESS_QUANTIZE_QUANT_STAND_IN_H

#include "compress/quantize/quant_layer.h"
#include "engine/engine.h"

typedef struct nmlp_quant_stand_in {
    nmlp_engine *engine;
    int64_t index;    /* of the layer */
    nmlp_layer layer; /* its views may be looked at and set */
    float **owned;    /* [n_views] */
    int64_t n_views;
    nmlp_arena arena;
} nmlp_quant_stand_in;

/* Begins as a copy of `source`. A zeroed one may be removed without having been begun. */
nmlp_status nmlp_quant_stand_in_init(nmlp_quant_stand_in *stand_in, nmlp_engine *engine, int64_t index,
                                     const nmlp_layer *source, nmlp_err *err);
/* View i becomes `values`, f32 of its shape, which belong to the stand-in from now on. */
void nmlp_quant_stand_in_set(nmlp_quant_stand_in *stand_in, int64_t i, float *values);
/* Into the engine; a shared v is the first one's. */
nmlp_status nmlp_quant_stand_in_install(nmlp_quant_stand_in *stand_in, nmlp_err *err);
/* The engine's own layer again; everything is freed. */
void nmlp_quant_stand_in_remove(nmlp_quant_stand_in *stand_in);

#endif
