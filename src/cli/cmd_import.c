/* neuronmlp import: a GGUF file to a model directory. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/stop.h"
#include "gguf/gguf_import.h"

static int print_result(const nmlp_cli *cli, const char *output, const nmlp_gguf_result *result) {
    if (!cli->json) {
        char params[32], bytes[32];
        nmlp_cli_count_text(params, (double)result->params);
        nmlp_cli_bytes_text(bytes, (double)result->bytes);
        printf("%s: %s parameters, %s\n", output, params, bytes);
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
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &output, "DIR", "where to write the model"},
    };
    nmlp_cli cli;
    nmlp_cli_bar bar;
    nmlp_err err;
    nmlp_gguf_result result;
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_import, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!output) return nmlp_cli_usage(&cli, "-o DIR is needed");
    nmlp_progress progress = nmlp_cli_progress(&bar);
    nmlp_status st = nmlp_gguf_import(cli.positionals[0], output, &progress, &result, &err);
    nmlp_cli_progress_end(&bar);
    return st == NMLP_OK ? print_result(&cli, output, &result) : nmlp_cli_fail(&cli, &err);
}

const nmlp_command nmlp_cmd_import = {
    .name = "import",
    .summary = "write a GGUF file as a model directory",
    .usage = "FILE.gguf -o DIR",
    .about = "Weights, tokenizer and chat template of the file become a Hugging Face checkpoint.",
    .examples = "neuronmlp export models/tiny -o /tmp/tiny.gguf\n"
                "neuronmlp import /tmp/tiny.gguf -o /tmp/tiny-imported\n",
    .run = run,
};
