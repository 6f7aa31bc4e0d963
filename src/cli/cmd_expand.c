/* neuronmlp expand: a compressed checkpoint back to a dense one. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/stop.h"
#include "model/expand.h"

static int print_result(const nmlp_cli *cli, const char *dir, int64_t bytes) {
    if (!cli->json) {
        char text[32];
        nmlp_cli_bytes_text(text, (double)bytes);
        printf("%s: dense, %s\n", dir, text);
        return NMLP_EXIT_OK;
    }
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "output", dir);
    nmlp_json_put_int(w, "bytes", bytes);
    return nmlp_json_out_end(&out, cli);
}

static int run(int argc, char **argv) {
    const char *output = NULL;
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &output, "DIR", "where to write the dense checkpoint"},
    };
    nmlp_cli cli;
    nmlp_cli_bar bar;
    nmlp_err err;
    nmlp_model model = {0};
    nmlp_pool *pool = NULL;
    int64_t bytes = 0;
    nmlp_status st = NMLP_OK;
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_expand, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code >= 0) return code;
    if (!output) return nmlp_cli_usage(&cli, "-o DIR is needed");
    nmlp_progress progress = nmlp_cli_progress(&bar);
    NMLP_TRY(nmlp_model_open(&model, cli.positionals[0], &err));
    NMLP_TRY(nmlp_pool_create(&pool, (int)cli.n_threads, &err));
    NMLP_TRY(nmlp_model_expand(&model, output, pool, &progress, &bytes, &err));
out:
    nmlp_cli_progress_end(&bar);
    nmlp_pool_destroy(pool);
    nmlp_model_close(&model);
    return st == NMLP_OK ? print_result(&cli, output, bytes) : nmlp_cli_fail(&cli, &err);
}

const nmlp_command nmlp_cmd_expand = {
    .name = "expand",
    .summary = "write a compressed checkpoint as a plain dense one",
    .usage = "MODEL -o DIR",
    .about = "The result is an ordinary Hugging Face checkpoint that any other program reads. It computes the "
             "same and is as large as the original.",
    .examples = "neuronmlp expand models/tiny -o /tmp/tiny-dense\n",
    .run = run,
};
