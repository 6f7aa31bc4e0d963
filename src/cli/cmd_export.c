/* neuronmlp export: a dense model as a GGUF file. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/stop.h"
#include "gguf/gguf_export.h"

static int print_result(const nmlp_cli *cli, const char *output, const nmlp_gguf_result *result) {
    if (!cli->json) {
        char bytes[32];
        nmlp_cli_bytes_text(bytes, (double)result->bytes);
        printf("%s: %.2f bits per weight, %s\n", output, 8.0 * (double)result->bytes / (double)result->params, bytes);
        return NMLP_EXIT_OK;
    }
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "output", output);
    nmlp_json_put_int(w, "params", result->params);
    nmlp_json_put_int(w, "bytes", result->bytes);
    return nmlp_json_out_end(&out, cli);
}

static int run(int argc, char **argv) {
    const char *output = NULL;
    const char *type = "bf16";
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &output, "FILE", "the GGUF file to write"},
        {"type", 0, NMLP_OPT_STRING, &type, "bf16|q8_0|q4_0", "type of the matrices (default bf16)"},
    };
    nmlp_cli cli;
    nmlp_cli_bar bar;
    nmlp_err err;
    nmlp_model model = {0};
    nmlp_gguf_result result;
    nmlp_status st = NMLP_OK;
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_export, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!output) return nmlp_cli_usage(&cli, "-o FILE is needed");
    nmlp_progress progress = nmlp_cli_progress(&bar);
    NMLP_TRY(nmlp_model_open(&model, cli.positionals[0], &err));
    NMLP_TRY(nmlp_gguf_export(&model, output, type, &progress, &result, &err));
out:
    nmlp_cli_progress_end(&bar);
    nmlp_model_close(&model);
    return st == NMLP_OK ? print_result(&cli, output, &result) : nmlp_cli_fail(&cli, &err);
}

const nmlp_command nmlp_cmd_export = {
    .name = "export",
    .summary = "write a dense model as a GGUF file, for llama.cpp",
    .usage = "MODEL -o FILE.gguf [--type bf16|q8_0|q4_0]",
    .about = "Weights, tokenizer and chat template. A compressed model is expanded first, by expand.",
    .examples = "neuronmlp export models/tiny -o /tmp/tiny.gguf --type q8_0\n",
    .run = run,
};
