/* Benchmarks by name: each is one file bench_<name>.c with one nmlp_bench; cmd_bench.c lists them. */
#ifndef NMLP_CLI_BENCH_H
#define NMLP_CLI_BENCH_H

#include "base/process_group.h"
#include "bench/peer_results.h"
#include "cli/cli.h"
#include "report/chart.h"
#include "report/table.h"

typedef struct nmlp_bench_args {
    const char *target;    /* machine of a simulated benchmark */
    const char *out;       /* folder for files of a simulated benchmark */
    const char *model;     /* preset to restrict a simulated benchmark of models to; NULL: all */
    const char *shape;     /* H,I,r,... */
    const char *rows;      /* S,... */
    const char *isa;       /* kernel set */
    const char *dtypes;    /* of weights: bf16,q8,... */
    const char *peers;     /* names, or "all" */
    const char *peer;      /* file of another program's results, or NULL */
    const char *precision; /* f32 or bf16 */
    const char *device;    /* cpu, cuda or auto */
    const char *batch;     /* sequences that decode together: 1,8,... */
    const char *csv;       /* files to write, or NULL */
    const char *svg;
    int64_t prompt; /* tokens of whole requests: 0, 0: bench model times prompts and steps apart */
    int64_t generate;
    double seconds; /* per subject and case */
    int64_t rounds;
    int64_t n_threads;
    const char *const *models;
    int n_models;
    const char *split;               /* bench model: how processes share factorised MLPs */
    double network_us, network_gbit; /* bench model: of a network that is emulated between processes */
    struct nmlp_cluster *cluster;    /* of the processes that were started together; NULL: one was */
    const nmlp_process_group
        *tensor_group; /* bench model: processes that share the model, of which the first one reports */
} nmlp_bench_args;

typedef struct nmlp_bench {
    const char *name;
    const char *summary;
    const char *options; /* those it takes, beside the ones all commands have */
    /* Prints a table, or puts its results into `json` (an open object) where the user asked for JSON (else NULL). */
    nmlp_status (*run)(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err);
    bool takes_models;
    bool simulated; /* writes its files into `out`, takes no file names */
} nmlp_bench;

/* NULL past the end. */
const nmlp_bench *nmlp_bench_at(size_t index);

extern const nmlp_bench nmlp_bench_peak;
extern const nmlp_bench nmlp_bench_mlp;
extern const nmlp_bench nmlp_bench_model;
extern const nmlp_bench nmlp_bench_cluster;
extern const nmlp_bench nmlp_bench_neuron;
extern const nmlp_bench nmlp_bench_neuron_ablation;
extern const nmlp_bench nmlp_bench_neuron_mlp;

/* bench model of whole requests, where their lengths are given. */
nmlp_status nmlp_bench_requests(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err);

/* Another program's rate and how much faster ours is, and what it measured: NMLP_BENCH_PEER_CELLS cells of a row, for
 * columns that stand last. */
void nmlp_bench_peer_cells(nmlp_table *table, const nmlp_peer_result *peer, double ours);
enum { NMLP_BENCH_PEER_CELLS = 3 };

/* The table to the screen or into `json` as "results", and to the CSV file asked for. */
nmlp_status nmlp_bench_deliver(const nmlp_table *table, const nmlp_bench_args *args, nmlp_json_writer *json,
                               nmlp_err *err);
/* The charts to the SVG file asked for. */
nmlp_status nmlp_bench_draw(const nmlp_chart *charts, size_t n_charts, const nmlp_bench_args *args, nmlp_err *err);

#endif
