/* A finished MLP or attention in a file: the bytes that go into the checkpoint, found again by an interrupted run. */
#ifndef NMLP_COMPRESS_FACTOR_LAYER_FILE_H
#define NMLP_COMPRESS_FACTOR_LAYER_FILE_H

#include "base/status.h"
#include "compress/factor/factor_file.h"

typedef struct nmlp_layer_file {
    nmlp_file_map map;
    nmlp_layer_ranks ranks;
    nmlp_factors factors[NMLP_MODULE_MATRICES_MAX]; /* matrices stored as the model has them have no data here */
    bool dense_refitted;                            /* the last is dense with values of its own */
    double error;        /* relative held-out error of the residual stream, NaN when not measured */
    double error_before; /* the same without the refit */
} nmlp_layer_file;

/* Dense matrices that are the model's own are not stored. */
nmlp_status nmlp_layer_file_write(const char *path, uint64_t fingerprint, const nmlp_layer_file *layer,
                                  nmlp_module_kind kind, const nmlp_factors *dense, nmlp_err *err);
/* Where *state is not NMLP_WORK_VALID nothing is open. The file must hold these ranks, of so many slices (1: whole). */
nmlp_status nmlp_layer_file_open(nmlp_layer_file *layer, const char *path, uint64_t fingerprint,
                                 const nmlp_layer_ranks *ranks, int64_t slices, nmlp_module_kind kind,
                                 const nmlp_factors *dense, nmlp_work_state *state, nmlp_err *err);
void nmlp_layer_file_close(nmlp_layer_file *layer);

/* All matrices, with the model's own filled in. */
void nmlp_layer_file_factors(const nmlp_layer_file *layer, nmlp_module_kind kind, const nmlp_factors *dense,
                             nmlp_factors out[NMLP_MODULE_MATRICES_MAX]);
nmlp_mlp_desc nmlp_layer_file_mlp(const nmlp_layer_file *layer, const nmlp_factors dense[NMLP_MLP_MATRICES]);

#endif
