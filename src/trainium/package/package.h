/* A checkpoint as a Trainium host needs it: one folder with
 *
 *   manifest.json              machine, dialect, forms, packings, kernels and layers
 *   kernels/<id>.py            one NKI kernel for each form of MLP and number of rows
 *   weights/rank_k.safetensors the MLP weights of rank k, packed once for all kernels of their form
 *   checkpoint/                configuration, tokenizer, all other weights
 *   expected.json              logits to compare the host's with
 *   run.sh, *.py, README.md    what the host runs (host/)
 *
 * With tensor parallelism each rank, and with two physical cores per logical one each core, has a slice of the
 * intermediate width: of the outputs of gate and up and the inputs of down. Factors that do not touch that width are on
 * every rank, unless they belong to slices (model/slices.h), and the results of the ranks add up.
 *
 * Where all MLP matrices of the checkpoint are FP8, so are the kernels' weights, with the scales of their outputs
 * beside them; other quantised matrices are widened.
 *
 * Kernels may normalise x themselves; the norm's weights are then part of the matrices that read x.
 *
 * Kernels of one form are planned together, so that they read the same packed weights: device memory holds each weight
 * once. The folder appears as a whole or not at all. docs/trainium.md describes the manifest. */
#ifndef NMLP_TRAINIUM_PACKAGE_PACKAGE_H
#define NMLP_TRAINIUM_PACKAGE_PACKAGE_H

#include "base/progress.h"
#include "model/model.h"
#include "trainium/emit/emit.h"
#include "trainium/plan/planner.h"

enum { NMLP_PACKAGE_BUCKETS_MAX = 8, NMLP_PACKAGE_TP_MAX = 64 };

/* What the kernels do besides the MLP. A kernel that adds the residual cannot stand in stacks that add it themselves,
 * so that AUTO never takes it: it chooses between NONE and NORM by simulated time. */
typedef enum nmlp_package_fuse {
    NMLP_PACKAGE_FUSE_AUTO,
    NMLP_PACKAGE_FUSE_NONE,
    NMLP_PACKAGE_FUSE_NORM,
    NMLP_PACKAGE_FUSE_ALL, /* norm and residual: one rank, one core */
    NMLP_N_PACKAGE_FUSES
} nmlp_package_fuse;

const char *nmlp_package_fuse_name(nmlp_package_fuse fuse); /* auto, none, norm, all */
bool nmlp_package_fuse_parse(const char *name, nmlp_package_fuse *fuse);

typedef struct nmlp_package_expected {
    const int32_t *ids; /* [n] */
    int64_t n, vocab;
    const float *logits; /* [n, vocab] */
} nmlp_package_expected;

typedef struct nmlp_package_options {
    const nmlp_planner *planner;
    nmlp_nc_dtype dtype;
    nmlp_dialect dialect;
    int64_t buckets[NMLP_PACKAGE_BUCKETS_MAX]; /* rows of the kernels, ascending */
    int n_buckets;
    int64_t tp;  /* ranks of tensor parallelism */
    int64_t lnc; /* physical cores per rank, 1 or 2 */
    nmlp_package_fuse fuse;
    const char *model_name;                /* for the manifest */
    const nmlp_package_expected *expected; /* NULL: no logits are written */
    const nmlp_progress *progress;         /* may be NULL */
} nmlp_package_options;

typedef struct nmlp_package_report {
    int64_t n_layers, n_forms, n_kernels, instructions;
    nmlp_package_fuse fused;                         /* as chosen: never AUTO */
    bool fp8;                                        /* weights are */
    double weight_bytes;                             /* packed, all ranks */
    double checkpoint_bytes;                         /* of the same weights in the checkpoint, at the kernels' width */
    double bucket_us[NMLP_PACKAGE_BUCKETS_MAX];      /* simulated, all MLPs of the model */
    double free_bucket_us[NMLP_PACKAGE_BUCKETS_MAX]; /* if each kernel had a packing of its own */
    double norm_us[NMLP_PACKAGE_BUCKETS_MAX];        /* that norms of their own take at least, all layers */
} nmlp_package_report;

/* `dir` may be absent, empty or an older package. */
nmlp_status nmlp_package_write(nmlp_package_report *report, const char *dir, const nmlp_model *model,
                               const nmlp_package_options *options, nmlp_err *err);

#endif
