/* neuronmlp synth: random weights in a real model's shape. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/stop.h"
#include "model/preset.h"

static int print_result(const nmlp_cli *cli, const char *dir, int64_t params, int64_t bytes) {
    if (!cli->json) {
        char params_text[32];
        char bytes_text[32];
        nmlp_cli_count_text(params_text, (double)params);
        nmlp_cli_bytes_text(bytes_text, (double)bytes);
        printf("%s: %s parameters, %s\n", dir, params_text, bytes_text);
        return NMLP_EXIT_OK;
    }
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "output", dir);
    nmlp_json_put_int(w, "params", params);
    nmlp_json_put_int(w, "bytes", bytes);
    return nmlp_json_out_end(&out, cli);
}

static bool parse_dtype(const char *name, nmlp_synth_options *options) {
    static const struct {
        const char *name;
        nmlp_dtype dtype;
        int group;
    } types[] = {{"bf16", NMLP_DTYPE_BF16, 0},
                 {"q8", NMLP_DTYPE_Q8, 0},
                 {"q4", NMLP_DTYPE_Q4, 32},
                 {"q4-64", NMLP_DTYPE_Q4, 64},
                 {"q4m", NMLP_DTYPE_Q4M, 16}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(name, types[i].name) != 0) continue;
        options->dtype = types[i].dtype;
        options->group = types[i].group;
        return true;
    }
    return false;
}

static int run(int argc, char **argv) {
    const char *output = NULL;
    const char *dtype = "bf16";
    int64_t seed = 0;
    int64_t n_layers = -1; /* not given: the preset's */
    nmlp_synth_options options = {.tile = 128, .dtype = NMLP_DTYPE_BF16};
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &output, "DIR", "where to write the checkpoint"},
        {"ratio", 0, NMLP_OPT_NUMBER, &options.ratio, "R", "fraction of MLP parameters removed (default 0: dense)"},
        {"tile", 0, NMLP_OPT_INT, &options.tile, "T", "ranks are multiples of this (default 128)"},
        {"layers", 0, NMLP_OPT_INT, &n_layers, "N", "fewer layers than the preset"},
        {"dtype", 0, NMLP_OPT_STRING, &dtype, "TYPE",
         "of the matrices: bf16 (default), q8, q4 (groups of 32), q4-64, q4m"},
        {"seed", 0, NMLP_OPT_SEED, &seed, "N", "seed of the weights (default 0)"},
    };
    nmlp_cli cli;
    nmlp_cli_bar bar;
    nmlp_err err;
    nmlp_config config;
    nmlp_pool *pool = NULL;
    int64_t params = 0;
    int64_t bytes = 0;
    nmlp_status st = NMLP_OK;
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_synth, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!output) return nmlp_cli_usage(&cli, "-o DIR is needed");
    if (n_layers == 0 || n_layers > 4096) return nmlp_cli_usage(&cli, "--layers must be from 1 to 4096");
    if (n_layers > 0) options.n_layers = n_layers;
    if (options.ratio == 0 && (code = nmlp_cli_refuse(&cli, "tile", "goes with --ratio")) >= 0) return code;
    if (!parse_dtype(dtype, &options))
        return nmlp_cli_usage(&cli, "--dtype is \"%s\"; it must be bf16, q8, q4, q4-64 or q4m", dtype);
    nmlp_progress progress = nmlp_cli_progress(&bar);
    NMLP_TRY(nmlp_preset_find(&config, cli.positionals[0], &err));
    NMLP_TRY(nmlp_pool_create(&pool, (int)cli.n_threads, &err));
    options.seed = (uint64_t)seed;
    options.pool = pool;
    options.progress = &progress;
    NMLP_TRY(nmlp_synth_write(output, &config, &options, &params, &bytes, &err));
out:
    nmlp_cli_progress_end(&bar);
    nmlp_pool_destroy(pool);
    return st == NMLP_OK ? print_result(&cli, output, params, bytes) : nmlp_cli_fail(&cli, &err);
}

const nmlp_command nmlp_cmd_synth = {
    .name = "synth",
    .summary = "write a checkpoint with random weights in a real model's shape, for benchmarks",
    .usage = "PRESET -o DIR [--ratio R] [--layers N] [--dtype TYPE]",
    .about = "The weights are random: such a model is as large and as fast as the real one and says nothing.",
    .examples = "neuronmlp synth llama-3.2-1b -o /tmp/llama-1b-1layer --layers 1\n"
                "neuronmlp synth qwen3-1.7b -o /tmp/qwen-lowrank --ratio 0.2 --layers 1\n"
                "neuronmlp synth llama-3.2-1b -o /tmp/llama-1b-q4 --dtype q4 --layers 1\n",
    .run = run,
};
