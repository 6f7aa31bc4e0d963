/* neuronmlp bench: finds the benchmark and hands over. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "cluster/cluster.h"

static const nmlp_bench *const benches[] = {&nmlp_bench_peak,      &nmlp_bench_mlp,    &nmlp_bench_model,
                                            &nmlp_bench_cluster,   &nmlp_bench_neuron, &nmlp_bench_neuron_ablation,
                                            &nmlp_bench_neuron_mlp};
enum { N_BENCHES = sizeof benches / sizeof benches[0] };

const nmlp_bench *nmlp_bench_at(size_t index) { return index < N_BENCHES ? benches[index] : NULL; }

static int list(const nmlp_cli *cli, const char *name) {
    char names[256] = "";
    for (size_t i = 0; i < N_BENCHES; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", benches[i]->name);
    }
    return nmlp_cli_usage(cli, "there is no benchmark \"%s\"; there are %s", name, names);
}

static int run_bench(const nmlp_cli *cli, const nmlp_bench *bench, const nmlp_bench_args *args) {
    nmlp_err err = {0};
    nmlp_str text;
    nmlp_json_writer w;
    bool leads = nmlp_group_leads(args->tensor_group);
    if (!cli->json || !leads) {
        if (leads) fprintf(stderr, "%s: %s\n", bench->name, bench->summary);
        if (bench->run(args, NULL, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
        return NMLP_EXIT_OK;
    }
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "benchmark", bench->name);
    int code;
    if (bench->run(args, &w, &err) != NMLP_OK) {
        code = nmlp_cli_fail(cli, &err);
    } else {
        nmlp_json_end_object(&w);
        code = nmlp_cli_print_json(cli, &text);
    }
    nmlp_str_fini(&text);
    return code;
}

/* What would be found wrong, or ignored, only after minutes of work. */
static int check_files(const nmlp_cli *cli, const nmlp_bench *bench, nmlp_bench_args *args) {
    const char *file = args->csv ? "--csv" : "--svg";
    if (bench->simulated && (args->csv || args->svg))
        return nmlp_cli_usage(cli, "bench %s takes no %s: it writes both files into the folder of --out", bench->name,
                              file);
    if (!bench->simulated && args->out)
        return nmlp_cli_usage(cli, "bench %s takes no --out: name files with --csv and --svg", bench->name);
    if (!args->out) args->out = "docs";
    if (bench->simulated && !nmlp_file_is_dir(args->out)) {
        nmlp_err err = {0};
        nmlp_fail(&err, NMLP_E_MISSING, "%s: no such folder for the results", args->out);
        nmlp_fail_hint(&err, "create it, or name another with --out DIR");
        return nmlp_cli_fail(cli, &err);
    }
    return NMLP_EXIT_OK;
}

/* Alone, or bench model of a model that the processes of a launcher share. */
static int run_joined(const nmlp_cli *cli, const nmlp_bench *bench, nmlp_bench_args *args) {
    nmlp_err err;
    nmlp_cluster *cluster;
    if (nmlp_cluster_launched().size > 1 && bench != &nmlp_bench_model && bench != &nmlp_bench_cluster)
        return nmlp_cli_usage(cli, "bench %s works in one process, %d were started", bench->name,
                              nmlp_cluster_launched().size);
    if (!(args->network_us >= 0) || !(args->network_gbit >= 0))
        return nmlp_cli_usage(cli, "--network-us and --network-gbit must be 0 or more");
    if (nmlp_cluster_launched().size < 2 && (args->network_us > 0 || args->network_gbit > 0))
        return nmlp_cli_usage(cli,
                              "--network-us and --network-gbit need several processes: start them with mpirun -n N");
    if (nmlp_cluster_launched().size < 2 && args->split)
        return nmlp_cli_usage(cli, "--split needs several processes: start them with mpirun -n N");
    if (nmlp_cluster_join(&cluster, NMLP_CLUSTER_TIMEOUT_S, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    args->cluster = cluster;
    args->tensor_group = nmlp_cluster_group(cluster);
    nmlp_cluster_emulate(cluster, args->network_us, args->network_gbit);
    int code = run_bench(cli, bench, args);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

static int run_named(const nmlp_cli *cli, nmlp_bench_args *args) {
    const char *name = cli->positionals[0];
    for (size_t i = 0; i < N_BENCHES; i++) {
        if (strcmp(benches[i]->name, name) != 0) continue;
        if (args->n_models > 0 && !benches[i]->takes_models)
            return nmlp_cli_usage(cli, "bench %s takes no \"%s\"", name, args->models[0]);
        if (args->n_models > 0 && args->model) return nmlp_cli_usage(cli, "--model and checkpoints exclude each other");
        char why[64];
        snprintf(why, sizeof why, "is no option of bench %s", name);
        int code = check_files(cli, benches[i], args);
        if (code == NMLP_EXIT_OK && nmlp_cli_refuse_others(cli, benches[i]->options, why) >= 0) code = NMLP_EXIT_USAGE;
        return code == NMLP_EXIT_OK ? run_joined(cli, benches[i], args) : code;
    }
    return list(cli, name);
}

static int run(int argc, char **argv) {
    nmlp_bench_args args = {.target = "trn1",
                            .shape = "2048,8192,1280",
                            .rows = "1,8,128,512",
                            .dtypes = "bf16",
                            .precision = "f32",
                            .device = "cpu",
                            .batch = "1",
                            .seconds = 1.0,
                            .rounds = 5};
    const nmlp_opt opts[] = {
        {"shape", 0, NMLP_OPT_STRING, &args.shape, "H,I,R,..",
         "mlp: hidden, intermediate, ranks beside dense (2048,8192,1280)"},
        {"rows", 0, NMLP_OPT_STRING, &args.rows, "S,..", "mlp: numbers of rows (default 1,8,128,512)"},
        {"dtype", 0, NMLP_OPT_STRING, &args.dtypes, "T,..",
         "mlp: types of our weights: f32, bf16 (default), q8, q4, q4-64, q4z, q4z-64, q4m"},
        {"isa", 0, NMLP_OPT_STRING, &args.isa, "SET", "mlp, model: kernel set (default the fastest)"},
        {"peers", 0, NMLP_OPT_STRING, &args.peers, "NAME,..", "mlp: other libraries beside ours, or all"},
        {"seconds", 0, NMLP_OPT_NUMBER, &args.seconds, "T",
         "mlp: time for every subject and number of rows (default 1)"},
        {"precision", 0, NMLP_OPT_STRING, &args.precision, "P", "model: activations f32 (default) or bf16"},
        {"device", 0, NMLP_OPT_STRING, &args.device, "cpu|cuda|auto", "model: where to run (default cpu)"},
        {"batch", 0, NMLP_OPT_STRING, &args.batch, "N,..", "model: sequences that decode together (default 1)"},
        {"rounds", 0, NMLP_OPT_INT, &args.rounds, "N", "model: samples of every case (default 5)"},
        {"prompt", 0, NMLP_OPT_INT, &args.prompt, "N", "model: whole requests, prompts of N tokens (default 128)"},
        {"generate", 0, NMLP_OPT_INT, &args.generate, "N", "model: whole requests, N tokens each (default 64)"},
        {"peer", 0, NMLP_OPT_STRING, &args.peer, "FILE",
         "model: results of llama-bench or llama-batched-bench beside ours"},
        {"split", 0, NMLP_OPT_STRING, &args.split, "auto|dense|replicated|all",
         "model, under mpirun: how factorised MLPs are shared (default auto: each layer by what is measured)"},
        {"network-us", 0, NMLP_OPT_NUMBER, &args.network_us, "X",
         "model, under mpirun: every message takes so much longer, as on a network (default 0)"},
        {"network-gbit", 0, NMLP_OPT_NUMBER, &args.network_gbit, "X",
         "model, under mpirun: and no more than so many Gbit/s pass (default 0: no limit)"},
        {"csv", 0, NMLP_OPT_STRING, &args.csv, "FILE", "peak, mlp, model, cluster: write all columns"},
        {"svg", 0, NMLP_OPT_STRING, &args.svg, "FILE", "peak, mlp, model: draw a chart"},
        {"target", 0, NMLP_OPT_STRING, &args.target, "T", "neuron*: simulated machine (default trn1)"},
        {"model", 0, NMLP_OPT_STRING, &args.model, "NAME", "neuron-mlp: only this model"},
        {"out", 'o', NMLP_OPT_STRING, &args.out, "DIR", "neuron*: folder for CSV and SVG files (default docs)"},
    };
    nmlp_cli cli;
    int code =
        nmlp_cli_parse(&cli, &nmlp_cmd_bench, opts, sizeof opts / sizeof opts[0], 1, NMLP_POSITIONALS_MAX, argc, argv);
    if (code >= 0) return code;
    args.n_threads = cli.n_threads;
    args.models = cli.positionals + 1;
    args.n_models = cli.n_positionals - 1;
    return run_named(&cli, &args);
}

const nmlp_command nmlp_cmd_bench = {
    .name = "bench",
    .summary = "benchmarks: peak, mlp, model, cluster, neuron, neuron-ablation, neuron-mlp",
    .usage = "NAME [MODEL...] [options]",
    .about = "peak is what this machine can do; mlp the gated MLP, low rank beside dense and beside other "
             "libraries (--peers); model prefill and decode of whole models, beside results of llama-bench "
             "(--peer); cluster messages between processes under mpirun; neuron, neuron-ablation and neuron-mlp are "
             "simulated.",
    .examples = "neuronmlp bench mlp --shape 256,1024,160 --rows 1,64 --seconds 0.1 --svg /tmp/mlp.svg\n"
                "neuronmlp bench model models/tiny --rounds 1 --csv /tmp/model.csv\n"
                "neuronmlp bench model models/tiny --batch 1,4 --prompt 16 --generate 8 --rounds 1\n"
                "neuronmlp bench neuron-ablation --target trn2 -o /tmp\n",
    .run = run,
    .clustered = true,
};
