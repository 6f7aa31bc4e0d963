/* neuronmlp quantize: the weights of a checkpoint in fewer bits. */
#define _DEFAULT_SOURCE /* getrusage */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/better_blas.h"
#include "cli/commands.h"
#include "cli/stop.h"
#include "cluster/cluster.h"
#include "service/quantization.h"

struct args {
    const char *output, *format, *head;
    int64_t group;
    double peer_timeout_s;
    nmlp_quantization_request request;
};

/* -1 to go on. */
static int check_args(const nmlp_cli *cli, struct args *a) {
    nmlp_quantize_options *m = &a->request.method;
    if (!a->output) return nmlp_cli_usage(cli, "-o DIR is needed");
    if (m->budget_bytes > 0) {
        return nmlp_cli_refuse(cli, "format head group", "and --budget-bytes exclude each other: it chooses formats");
    }
    if (!a->format) return nmlp_cli_usage(cli, "--format q8|q6|q6m|q5m|q4|q4z|q4m|fp8 or --budget-bytes B is needed");
    if (a->group != 32 && a->group != 64)
        return nmlp_cli_usage(cli, "--group %lld: must be 32 or 64", (long long)a->group);
    if (strcmp(a->format, "bf16") == 0 || !nmlp_quant_format_parse(&m->body, a->format, (int)a->group))
        return nmlp_cli_usage(cli, "--format %s: must be q8, q6, q6m, q5m, q4, q4z, q4m or fp8", a->format);
    if (!nmlp_quant_format_parse(&m->head, a->head, (int)a->group))
        return nmlp_cli_usage(cli, "--head %s: must be q8, q6, q6m, q5m, q4, q4z, q4m, fp8 or bf16", a->head);
    if (m->body.dtype != NMLP_DTYPE_Q4 && m->head.dtype != NMLP_DTYPE_Q4)
        return nmlp_cli_refuse(cli, "group", "goes with q4 and q4z");
    return -1;
}

static double bits_of(const nmlp_quantize_report *r) { return 8 * (double)r->bytes_after / (double)r->params; }

static void put_formats(nmlp_json_writer *w, const nmlp_quantize_report *r) {
    nmlp_json_begin_array(w, "layers");
    for (int64_t l = 0; l < r->n_layers; l++) {
        nmlp_json_begin_object(w, NULL);
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++)
            nmlp_json_put_string(w, nmlp_quant_matrix_name(i),
                                 nmlp_quant_format_text(&r->formats[l * NMLP_QUANT_MATRICES + i]));
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

static void print_formats(const nmlp_quantize_report *r) {
    printf("%-6s", "layer");
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++) printf(" %-9s", nmlp_quant_matrix_name(i));
    printf("\n");
    for (int64_t l = 0; l < r->n_layers; l++) {
        printf("%-6lld", (long long)l);
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++)
            printf(" %-9s", nmlp_quant_format_text(&r->formats[l * NMLP_QUANT_MATRICES + i]));
        printf("\n");
    }
    printf("head   %s\n", nmlp_quant_format_text(&r->head));
}

static int64_t peak_rss_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

static int print_json(const nmlp_cli *cli, const struct args *a, const nmlp_quantization_outcome *outcome) {
    const nmlp_quantize_report *r = &outcome->report;
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "output", a->output);
    nmlp_json_put_string(w, "format", a->format ? a->format : "mixed");
    nmlp_json_put_string(w, "head", nmlp_quant_format_text(&r->head));
    if (a->request.method.body.group) nmlp_json_put_int(w, "group", a->request.method.body.group);
    if (!a->format) put_formats(w, r);
    nmlp_json_put_int(w, "params", r->params);
    nmlp_json_put_int(w, "bytes_before", r->bytes_before);
    nmlp_json_put_int(w, "bytes_after", r->bytes_after);
    nmlp_json_put_number(w, "bits_per_weight", bits_of(r));
    nmlp_json_put_int(w, "calibration_tokens", r->calib_tokens);
    nmlp_json_put_int(w, "heldout_tokens", r->heldout_tokens);
    if (r->measured) {
        nmlp_json_put_number(w, "kl", r->after.kl);
        nmlp_json_put_number(w, "ppl_before", exp(r->before.nll));
        nmlp_json_put_number(w, "ppl_after", exp(r->after.nll));
    }
    nmlp_json_put_number(w, "seconds", outcome->seconds);
    nmlp_json_put_int(w, "peak_rss_bytes", peak_rss_bytes());
    return nmlp_json_out_end(&out, cli);
}

static int print_text(const struct args *a, const nmlp_quantization_outcome *outcome) {
    const nmlp_quantize_report *r = &outcome->report;
    char before[32], after[32];
    if (!a->format) print_formats(r);
    nmlp_cli_bytes_text(before, (double)r->bytes_before);
    nmlp_cli_bytes_text(after, (double)r->bytes_after);
    printf("%s: %s -> %s, %.2f bits per weight\n", a->output, before, after, bits_of(r));
    if (r->measured)
        printf("held-out text  kl %.6f, perplexity %.4f -> %.4f (%lld tokens)\n", r->after.kl, exp(r->before.nll),
               exp(r->after.nll), (long long)r->heldout_tokens);
    fprintf(stderr, "[%.1f s, %.0f MB]\n", outcome->seconds, 1e-6 * (double)peak_rss_bytes());
    return NMLP_EXIT_OK;
}

static int quantize(const nmlp_cli *cli, struct args *a) {
    nmlp_quantization_outcome outcome;
    nmlp_cli_bar bar;
    nmlp_err err;
    nmlp_cluster *cluster;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    if (nmlp_cluster_join(&cluster, a->peer_timeout_s, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    const nmlp_process_group *group = nmlp_cluster_group(cluster);
    a->request.method.group = group;
    a->request.load.n_threads = (int)cli->n_threads;
    a->request.load.progress = &progress;
    nmlp_status st = nmlp_quantization_run(&outcome, cli->positionals[0], a->output, &a->request, &err);
    nmlp_cli_progress_end(&bar);
    int code = NMLP_EXIT_OK;
    if (st != NMLP_OK)
        code = nmlp_cli_fail(cli, &err);
    else if (nmlp_group_leads(group))
        code = cli->json ? print_json(cli, a, &outcome) : print_text(a, &outcome);
    nmlp_quantization_outcome_fini(&outcome);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

static int run(int argc, char **argv) {
    struct args a = {.head = "q8",
                     .group = 32,
                     .peer_timeout_s = NMLP_CLUSTER_TIMEOUT_S,
                     .request = {.method = nmlp_quantize_defaults()}};
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &a.output, "DIR", "where to write the quantised checkpoint"},
        {"format", 0, NMLP_OPT_STRING, &a.format, "q8|q6|q6m|q5m|q4|q4z|q4m|fp8",
         "q8, q6: 8 and 6 bits, a scale per row; q6m, q5m, q4m: 6, 5 and 4 bits, and a small multiplier per 16 "
         "weights; "
         "q4: 4 bits, a scale per group; q4z: and a zero point per group; fp8: e4m3, a scale per row"},
        {"budget-bytes", 0, NMLP_OPT_INT, &a.request.method.budget_bytes, "B",
         "instead: a format for each matrix so that all tensors fit into B bytes"},
        {"group", 0, NMLP_OPT_INT, &a.group, "N", "of q4 and q4z: weights that share a scale, 32 (default) or 64"},
        {"head", 0, NMLP_OPT_STRING, &a.head, "q8|q6|q6m|q5m|q4|q4z|q4m|fp8|bf16",
         "format of embedding and output matrix; bf16: as they are (default q8)"},
        {"calib", 0, NMLP_OPT_STRING, &a.request.calibration, "FILE", "calibration text (default MODEL/calib.txt)"},
        {"calib-tokens", 0, NMLP_OPT_INT, &a.request.method.calib_tokens, "N",
         "tokens to calibrate on (default 32768)"},
        {"heldout", 0, NMLP_OPT_INT, &a.request.method.heldout_tokens, "N",
         "further tokens to measure on (default 8192, large models 2048; 0: none)"},
        {"ctx", 0, NMLP_OPT_INT, &a.request.method.context, "N", "tokens in a window (default 512)"},
        {"resume", 0, NMLP_OPT_FLAG, &a.request.method.resume, NULL, "go on where an interrupted run stopped"},
        {"work", 0, NMLP_OPT_STRING, &a.request.method.work_dir, "DIR",
         "keep finished layers in DIR.partial meanwhile (default OUT.work)"},
        {"isa", 0, NMLP_OPT_STRING, &a.request.load.isa, "NAME", "kernel set (default: the fastest)"},
        {"precision", 0, NMLP_OPT_STRING, &a.request.load.precision, "P",
         "of activations: f32, or bf16 where that is faster (AMX, AMD) (default f32, large models bf16)"},
        {"peer-timeout", 0, NMLP_OPT_NUMBER, &a.peer_timeout_s, "S",
         "seconds to wait for other processes under mpirun (default 600)"},
    };
    nmlp_cli cli;
    nmlp_better_blas_restart(argc, argv);
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_quantize, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code < 0) code = check_args(&cli, &a);
    return code < 0 ? quantize(&cli, &a) : code;
}

const nmlp_command nmlp_cmd_quantize = {
    .name = "quantize",
    .summary = "store the weights of a checkpoint in 8 to 4 bits",
    .usage = "MODEL -o DIR --format q8|q6|q6m|q5m|q4|q4z|q4m|fp8 | --budget-bytes B [options]",
    .about = "Dense or compressed weights, rounded so that the outputs on calibration text change least. "
             "--budget-bytes chooses a format for each matrix. An interrupted run goes on with --resume. Under mpirun "
             "several processes share the work.",
    .examples =
        "neuronmlp quantize models/tiny -o /tmp/tiny-q8 --format q8 --calib-tokens 2048 --heldout 512\n"
        "neuronmlp quantize models/tiny -o /tmp/tiny-q4 --format q4 --group 64 --calib-tokens 2048 --heldout 512 "
        "--json\n",
    .run = run,
    .clustered = true,
};
