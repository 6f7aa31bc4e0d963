/* The sections of a report: each gathers its numbers, computes what is simulated, and writes its part of the page. */
#ifndef NMLP_CLI_REPORT_SECTIONS_H
#define NMLP_CLI_REPORT_SECTIONS_H

#include "base/progress.h"
#include "model/model.h"
#include "report/csv.h"
#include "report/page.h"
#include "service/optimization.h"
#include "trainium/neuron/machine.h"
#include "trainium/plan/kernel_table.h"

/* Sizes, ranks and error curves of a compressed checkpoint. */
nmlp_status nmlp_report_compression(nmlp_page *page, const nmlp_model *model, nmlp_err *err);

/* Perplexity over the share of parameters removed: what the checkpoints recorded, and results of `neuronmlp eval
 * --json` (a list of files separated by commas, or NULL). */
nmlp_status nmlp_report_quality(nmlp_page *page, const char *const *dirs, int n_dirs, const char *evals, nmlp_err *err);

/* A machine and the words after --target that mean it. */
typedef struct nmlp_report_target {
    const char *name;
    nmlp_machine machine;
} nmlp_report_target;

/* Time, traffic and roofline of five kernels up to `rows_max` rows. */
nmlp_status nmlp_report_kernels(nmlp_page *page, const nmlp_report_target *target, int64_t rows_max,
                                const nmlp_progress *progress, nmlp_err *err);

/* One kernel at one shape: beside its competitors where it is an MLP, and its engines over time. */
nmlp_status nmlp_report_kernel(nmlp_page *page, const nmlp_report_target *target, const nmlp_kernel *kernel,
                               const nmlp_kernel_shape *shape, nmlp_err *err);

/* The CSV that the MLP benchmark prints; a line "# command" in it says how it was made. */
nmlp_status nmlp_report_cpu(nmlp_page *page, const nmlp_csv *csv, nmlp_err *err);

/* The CSV that the benchmark of whole models prints, told by its columns. */
bool nmlp_report_is_throughput(const nmlp_csv *csv);
nmlp_status nmlp_report_throughput(nmlp_page *page, const nmlp_csv *csv, nmlp_err *err);

/* Format and bits of every matrix of a checkpoint. */
nmlp_status nmlp_report_bits(nmlp_page *page, const nmlp_model *model, nmlp_err *err);

/* Loss over time and bytes of every form of a model; `command` found it. */
void nmlp_report_frontier(nmlp_page *page, const nmlp_optimization *result, const char *command);
/* The same from the record in a directory that `optimize` wrote. */
nmlp_status nmlp_report_optimized(nmlp_page *page, const char *dir, nmlp_err *err);

/* The log of a server: what requests waited for. */
nmlp_status nmlp_report_serving(nmlp_page *page, const char *path, nmlp_err *err);

/* A package for Trainium: the directory that `emit --model` wrote. */
nmlp_status nmlp_report_package(nmlp_page *page, const char *dir, nmlp_err *err);

/* The tables in a file of `paper --json`. */
nmlp_status nmlp_report_paper(nmlp_page *page, const char *path, nmlp_err *err);

/* "CPU name, 2 cores, AVX-512, 8.2 GB memory, Linux 6.1" */
void nmlp_report_machine(nmlp_str *out);

#endif
