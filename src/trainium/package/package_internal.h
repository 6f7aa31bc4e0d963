/* Shared by the files that write a package. */
#ifndef NMLP_TRAINIUM_PACKAGE_PACKAGE_INTERNAL_H
#define NMLP_TRAINIUM_PACKAGE_PACKAGE_INTERNAL_H

#include "base/json_write.h"
#include "trainium/emit/weights.h"
#include "trainium/package/forms.h"
#include "trainium/package/package.h"

enum { NMLP_PACKAGE_ID_MAX = 48 };

/* One form's kernels, planned together. */
typedef struct nmlp_package_form {
    nmlp_program *program[NMLP_PACKAGE_BUCKETS_MAX];
    nmlp_kernel_cost cost[NMLP_PACKAGE_BUCKETS_MAX];
    double free_us[NMLP_PACKAGE_BUCKETS_MAX]; /* of the best kernel with a packing of its own */
    int64_t instructions[NMLP_PACKAGE_BUCKETS_MAX];
    nmlp_tiling tiling[NMLP_PACKAGE_BUCKETS_MAX];
} nmlp_package_form;

typedef struct nmlp_package {
    const nmlp_model *model;
    const nmlp_package_options *options;
    nmlp_mlp_forms forms;
    nmlp_mlp_fusion fuse;     /* of all kernels */
    bool fp8;                 /* their weights are the checkpoint's codes, with scales */
    nmlp_package_form *plans; /* [forms.n] */
    nmlp_package_report *report;
    double rank_bytes[NMLP_PACKAGE_TP_MAX];
} nmlp_package;

/* A file of the host's side; the table is generated from host/ and ends with a path of NULL. */
typedef struct nmlp_package_host_file {
    const char *path, *text;
} nmlp_package_host_file;

extern const nmlp_package_host_file nmlp_package_host_files[];

/* "mlp_f0_s128" */
void nmlp_package_kernel_id(char id[NMLP_PACKAGE_ID_MAX], size_t form, int64_t rows);

/* Has each core columns of its own of a packed tensor? Factors of slices are one core's. */
bool nmlp_package_is_split(const nmlp_package *package, const nmlp_emit_weight *weight);

/* package_plan.c: fills plans[form]. */
nmlp_status nmlp_package_plan_form(nmlp_package *package, size_t form, nmlp_err *err);
/* All forms, with what is fused chosen where the options leave it open; fills the report's times. */
nmlp_status nmlp_package_plan(nmlp_package *package, nmlp_err *err);
/* Do both programs read the same packed weights? */
bool nmlp_package_same_packing(const nmlp_program *a, const nmlp_program *b);

/* package_host.c: scripts, remaining weights and expected logits into the package's folder. */
nmlp_status nmlp_package_write_host(const nmlp_package *package, const char *dir, nmlp_err *err);
/* Joins the path and creates the folder where it is not there. */
nmlp_status nmlp_package_make_folder(char *path, size_t path_bytes, const char *dir, const char *name, nmlp_err *err);

/* package_weights.c: all packed tensors into the folder `dir`, a file for each rank. */
nmlp_status nmlp_package_write_weights(nmlp_package *package, const char *dir, nmlp_err *err);

/* package_manifest.c */
void nmlp_package_put_manifest(const nmlp_package *package, nmlp_str *out);

#endif
