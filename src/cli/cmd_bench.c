/* neuronmlp bench: finds the benchmark and hands over. */
#include <stdio.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/commands.h"

static const nmlp_bench *const benches[] = {&nmlp_bench_neuron, &nmlp_bench_neuron_ablation, &nmlp_bench_neuron_mlp};
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
    if (!cli->json) {
        fprintf(stderr, "%s: %s\n", bench->name, bench->summary);
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

static int run(int argc, char **argv) {
    nmlp_bench_args args = {.target = "trn1", .out = "docs"};
    const nmlp_opt opts[] = {
        {"target", 0, NMLP_OPT_STRING, &args.target, "T", "machine of a simulated benchmark (default trn1)"},
        {"model", 0, NMLP_OPT_STRING, &args.model, "NAME", "neuron-mlp: only this model"},
        {"out", 'o', NMLP_OPT_STRING, &args.out, "DIR", "folder for CSV and SVG files (default docs)"},
    };
    nmlp_cli cli;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_bench, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    for (size_t i = 0; i < N_BENCHES; i++)
        if (strcmp(benches[i]->name, cli.positionals[0]) == 0) return run_bench(&cli, benches[i], &args);
    return list(&cli, cli.positionals[0]);
}

const nmlp_command nmlp_cmd_bench = {
    .name = "bench",
    .summary = "benchmarks: neuron, neuron-ablation, neuron-mlp",
    .usage = "NAME [options]",
    .examples = "neuronmlp bench neuron-ablation --target trn2 -o /tmp\n",
    .run = run,
};
