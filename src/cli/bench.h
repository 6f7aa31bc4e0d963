/* Benchmarks by name: each is one file bench_<name>.c with one nmlp_bench; cmd_bench.c lists them. */
#ifndef NMLP_CLI_BENCH_H
#define NMLP_CLI_BENCH_H

#include "cli/cli.h"

typedef struct nmlp_bench_args {
    const char *target; /* machine of a simulated benchmark */
    const char *out;    /* folder for files */
    const char *model;  /* preset to restrict a benchmark of models to; NULL: all */
} nmlp_bench_args;

typedef struct nmlp_bench {
    const char *name;
    const char *summary;
    /* Prints a table, or puts its results into `json` (an open object) where the user asked for JSON (else NULL). */
    nmlp_status (*run)(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err);
} nmlp_bench;

/* NULL past the end. */
const nmlp_bench *nmlp_bench_at(size_t index);

extern const nmlp_bench nmlp_bench_neuron;
extern const nmlp_bench nmlp_bench_neuron_ablation;
extern const nmlp_bench nmlp_bench_neuron_mlp;

#endif
