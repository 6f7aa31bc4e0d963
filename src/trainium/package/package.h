/* A checkpoint as a Trainium host needs it: one folder with
 *
 *   manifest.json              machine, dialect, forms, packings, kernels and layers
 *   kernels/<id>.py            one NKI kernel for each form of MLP and number of rows
 *   weights/rank_0.safetensors the MLP weights, packed once for all kernels of their form
 *
 * Kernels of one form are planned together, so that they read the same packed weights: device memory holds each weight
 * once. The folder appears as a whole or not at all. docs/trainium.md describes the manifest. */
#ifndef NMLP_TRAINIUM_PACKAGE_PACKAGE_H
#define NMLP_TRAINIUM_PACKAGE_PACKAGE_H

#include "base/progress.h"
#include "model/model.h"
#include "trainium/emit/emit.h"
#include "trainium/plan/planner.h"

enum { NMLP_PACKAGE_BUCKETS_MAX = 8 };

typedef struct nmlp_package_options {
    const nmlp_planner *planner;
    nmlp_nc_dtype dtype;
    nmlp_dialect dialect;
    int64_t buckets[NMLP_PACKAGE_BUCKETS_MAX]; /* rows of the kernels, ascending */
    int n_buckets;
    const char *model_name;        /* for the manifest */
    const nmlp_progress *progress; /* may be NULL */
} nmlp_package_options;

typedef struct nmlp_package_report {
    int64_t n_layers, n_forms, n_kernels, instructions;
    double weight_bytes;                             /* packed */
    double checkpoint_bytes;                         /* of the same weights in the checkpoint, at the kernels' width */
    double bucket_us[NMLP_PACKAGE_BUCKETS_MAX];      /* simulated, all MLPs of the model */
    double free_bucket_us[NMLP_PACKAGE_BUCKETS_MAX]; /* if each kernel had a packing of its own */
} nmlp_package_report;

/* `dir` may be absent, empty or an older package. */
nmlp_status nmlp_package_write(nmlp_package_report *report, const char *dir, const nmlp_model *model,
                               const nmlp_package_options *options, nmlp_err *err);

#endif
