/* neuronmlp compress: factorise the MLPs of a checkpoint. */
#define _DEFAULT_SOURCE /* getrusage */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/better_blas.h"
#include "cli/command_text.h"
#include "cli/commands.h"
#include "cli/stop.h"
#include "cluster/cluster.h"
#include "cli/budget_table.h"
#include "cli/compress_table.h"
#include "linalg/linalg.h"
#include "service/compression.h"

struct args {
    const char *output, *alloc, *recover, *whiten, *weights, *tokens, *joint, *shrink, *modules;
    int64_t rounds;
    double peer_timeout_s;
    nmlp_compression_request request;
};

/* Index of `text` in a NULL-ended list of words, or -1. */
static int word_of(const char *text, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (strcmp(text, words[i]) == 0) return i;
    return -1;
}

static int read_word(const nmlp_cli *cli, const char *option, const char *text, const char *const *words, int *out) {
    *out = word_of(text, words);
    if (*out >= 0) return -1;
    char list[128] = "";
    for (int i = 0; words[i]; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    return nmlp_cli_usage(cli, "--%s %s: must be one of %s", option, text, list);
}

/* Words to options; -1 to go on. */
static int read_words(const nmlp_cli *cli, struct args *a) {
    static const char *const off_on[] = {"off", "on", NULL};
    static const char *const allocs[] = {"uniform", "adaptive", NULL};
    static const char *const recovers[] = {"none", "refit", "train", NULL};
    static const char *const whitens[] = {"none", "input", NULL};
    static const char *const weights[] = {"none", "swiglu", NULL};
    static const char *const tokens[] = {"equal", "residual", NULL};
    static const char *const joints[] = {"never", "auto", "always", NULL};
    static const char *const modules[] = {"mlp", "mlp,attn", NULL};
    int recover = 0, joint = 0, module = 0;
    int alloc = 0, whiten = 0, weight = 0, token = 0, shrink = 0;
    int code = -1;
    if (code < 0) code = read_word(cli, "alloc", a->alloc, allocs, &alloc);
    if (code < 0) code = read_word(cli, "recover", a->recover, recovers, &recover);
    if (code < 0) code = read_word(cli, "whiten", a->whiten, whitens, &whiten);
    if (code < 0) code = read_word(cli, "weights", a->weights, weights, &weight);
    if (code < 0) code = read_word(cli, "tokens", a->tokens, tokens, &token);
    if (code < 0) code = read_word(cli, "joint", a->joint, joints, &joint);
    if (code < 0) code = read_word(cli, "shrink", a->shrink, off_on, &shrink);
    if (code < 0) code = read_word(cli, "modules", a->modules, modules, &module);
    if (code >= 0) return code;
    if (a->request.train_steps < 1) return nmlp_cli_usage(cli, "--train-steps must be 1 or more");
    if (recover != 2) {
        code = nmlp_cli_refuse(cli, "train-text train-steps", "goes with --recover train");
        if (code >= 0) return code;
        a->request.train_steps = 0;
    }
    if (alloc == 0 && a->rounds > 0 && (code = nmlp_cli_refuse(cli, "rounds", "is for adaptive ranks (--alloc)")) >= 0)
        return code;
    a->request.method.keep_work = a->request.method.work_dir != NULL;
    a->request.method.attention = module == 1;
    a->request.method.adaptive = alloc == 1;
    a->request.method.refit = recover >= 1;
    a->request.method.whiten = whiten == 1;
    a->request.method.row_weights = weight == 1;
    a->request.method.token_weights = token == 1;
    a->request.method.joint = (nmlp_joint_mode)joint;
    a->request.method.shrink = shrink == 1;
    a->request.method.rounds = (int)a->rounds;
    return -1;
}

static int check_args(const nmlp_cli *cli, struct args *a) {
    if (!a->output) return nmlp_cli_usage(cli, "-o DIR is needed");
    if (a->request.method.ratio == 0 && a->request.method.budget_ms == 0 && a->request.budget_bytes == 0)
        return nmlp_cli_usage(cli, "--ratio R or --budget-ms X or --budget-bytes B is needed");
    if (a->rounds < -1 || a->rounds > INT_MAX) return nmlp_cli_usage(cli, "--rounds must be from 0 to 8");
    return read_words(cli, a);
}

static void print_training(const nmlp_recover_report *r) {
    fprintf(stderr, "training: held-out perplexity %.3f -> %.3f, %lld steps, %lld tokens, %.0f s\n",
            r->heldout_ppl_before, r->heldout_ppl_after, (long long)r->steps, (long long)r->tokens, r->seconds);
}

static void warn_few_tokens(const nmlp_compress_report *r, const nmlp_config *c) {
    if (r->calib_tokens < 4 * c->hidden)
        fprintf(stderr,
                "note: %lld calibration tokens for %lld channels; below 4 per channel the factors fit the text, not "
                "the language\n",
                (long long)r->calib_tokens, (long long)c->hidden);
}

static int report(const nmlp_cli *cli, const struct args *a, const nmlp_compression_outcome *outcome) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (outcome->mixed) {
        nmlp_budget_summary budget = {.budget = &outcome->budget,
                                      .limit = {.bytes = a->request.budget_bytes, .ms = a->request.method.budget_ms},
                                      .output = a->output,
                                      .seconds = outcome->seconds,
                                      .peak_rss_bytes = (int64_t)usage.ru_maxrss * 1024};
        if (cli->json) return nmlp_budget_print_json(cli, &budget);
        nmlp_budget_print_table(&budget);
        return NMLP_EXIT_OK;
    }
    nmlp_compress_summary summary = {.report = &outcome->report,
                                     .config = &outcome->config,
                                     .output = a->output,
                                     .seconds = outcome->seconds,
                                     .peak_rss_bytes = (int64_t)usage.ru_maxrss * 1024,
                                     .blas_core = nmlp_linalg_core()};
    warn_few_tokens(&outcome->report, &outcome->config);
    if (cli->json) return nmlp_compress_print_json(cli, &summary);
    nmlp_compress_print_table(&summary);
    return NMLP_EXIT_OK;
}

static int compress(const nmlp_cli *cli, struct args *a) {
    nmlp_compression_outcome outcome;
    nmlp_cli_bar bar;
    nmlp_err err;
    nmlp_cluster *cluster;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    if (nmlp_cluster_join(&cluster, a->peer_timeout_s, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    const nmlp_process_group *group = nmlp_cluster_group(cluster);
    a->request.method.group = group;
    a->request.load.n_threads = (int)cli->n_threads;
    a->request.load.progress = &progress;
    nmlp_status st = nmlp_compression_run(&outcome, cli->positionals[0], a->output, &a->request, &err);
    nmlp_cli_progress_end(&bar);
    if (outcome.trained.steps > 0) print_training(&outcome.trained);
    int code = NMLP_EXIT_OK;
    if (st != NMLP_OK)
        code = nmlp_cli_fail(cli, &err);
    else if (nmlp_group_leads(group))
        code = report(cli, a, &outcome);
    nmlp_compression_outcome_fini(&outcome);
    nmlp_cluster_leave(cluster, code != NMLP_EXIT_OK);
    return code;
}

static int run(int argc, char **argv) {
    struct args a = {.alloc = "adaptive",
                     .recover = "refit",
                     .whiten = "input",
                     .weights = "swiglu",
                     .tokens = "equal",
                     .joint = "auto",
                     .shrink = "on",
                     .peer_timeout_s = NMLP_CLUSTER_TIMEOUT_S,
                     .modules = "mlp",
                     .request = {.method = nmlp_compress_defaults(), .target = "cpu", .train_steps = 200}};
    a.request.method.tile = 0;
    a.rounds = a.request.method.rounds;
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &a.output, "DIR", "where to write the compressed checkpoint"},
        {"ratio", 'r', NMLP_OPT_NUMBER, &a.request.method.ratio, "R",
         "fraction of the parameters of these modules to remove, e.g. 0.2"},
        {"modules", 0, NMLP_OPT_STRING, &a.modules, "mlp|mlp,attn",
         "what is factorised: MLPs, or q, k, v and o of attention too (default mlp)"},
        {"budget-ms", 0, NMLP_OPT_NUMBER, &a.request.method.budget_ms, "X",
         "instead: milliseconds all MLPs may take for one token; on a CPU by ranks and bits"},
        {"budget-bytes", 0, NMLP_OPT_INT, &a.request.budget_bytes, "B",
         "instead: bytes of the whole checkpoint, by ranks and bits"},
        {"target", 0, NMLP_OPT_STRING, &a.request.target, "NAME",
         "cpu (default), trn1, trn2, trn3 or a machine file: sets the tile and the cost of a rank"},
        {"tile", 0, NMLP_OPT_INT, &a.request.method.tile, "T",
         "ranks are multiples of it (default 128 trn, 32 cpu, 16 small models)"},
        {"shards", 0, NMLP_OPT_INT, &a.request.method.slices, "N",
         "factorise each of N slices of the intermediate width by itself, for N tensor-parallel ranks (default 1)"},
        {"alloc", 0, NMLP_OPT_STRING, &a.alloc, "HOW", "uniform or adaptive ranks (default adaptive)"},
        {"calib", 0, NMLP_OPT_STRING, &a.request.calibration, "FILE", "calibration text (default MODEL/calib.txt)"},
        {"calib-tokens", 0, NMLP_OPT_INT, &a.request.method.calib_tokens, "N",
         "tokens to calibrate on (default 65536)"},
        {"heldout", 0, NMLP_OPT_INT, &a.request.method.heldout_tokens, "N",
         "further tokens to compare candidates on (default 8192, large models 2048)"},
        {"ctx", 0, NMLP_OPT_INT, &a.request.method.context, "N", "tokens in a window (default 512)"},
        {"recover", 0, NMLP_OPT_STRING, &a.recover, "none|refit|train",
         "refit: second pass (default); train: refit and training"},
        {"train-text", 0, NMLP_OPT_STRING, &a.request.train_text, "FILE",
         "text for --recover train (default: the calibration text)"},
        {"train-steps", 0, NMLP_OPT_INT, &a.request.train_steps, "N", "updates of --recover train (default 200)"},
        {"resume", 0, NMLP_OPT_FLAG, &a.request.method.resume, NULL, "go on where an interrupted run stopped"},
        {"work", 0, NMLP_OPT_STRING, &a.request.method.work_dir, "DIR",
         "keep statistics in DIR.partial; --resume uses them for other ratios"},
        {"isa", 0, NMLP_OPT_STRING, &a.request.load.isa, "NAME", "kernel set (default: the fastest)"},
        {"precision", 0, NMLP_OPT_STRING, &a.request.load.precision, "P",
         "of activations: f32, or bf16 where that is faster (AMX, AMD) (default f32, large models bf16)"},
        {"peer-timeout", 0, NMLP_OPT_NUMBER, &a.peer_timeout_s, "S",
         "seconds to wait for other processes under mpirun (default 600)"},
        {"whiten", 0, NMLP_OPT_STRING, &a.whiten, "HOW", "research: input, or none for plain SVD"},
        {"weights", 0, NMLP_OPT_STRING, &a.weights, "swiglu|none",
         "research: weights on the rows of gate and up (default swiglu)"},
        {"tokens", 0, NMLP_OPT_STRING, &a.tokens, "equal|residual",
         "research: residual: by size of the residual stream (default equal)"},
        {"joint", 0, NMLP_OPT_STRING, &a.joint, "never|auto|always",
         "research: one basis for gate and up (default auto, large models always)"},
        {"shrink", 0, NMLP_OPT_STRING, &a.shrink, "on|off", "research: shrink Grams to their diagonals (default on)"},
        {"cap", 0, NMLP_OPT_NUMBER, &a.request.method.cap, "SHARE",
         "research: most a token may weigh (default 0.01, 0: off)"},
        {"rounds", 0, NMLP_OPT_INT, &a.rounds, "N",
         "research: probe again around the best ranks (default 2, large models 0)"},
    };
    nmlp_cli cli;
    nmlp_str made_by;
    nmlp_err err;
    nmlp_better_blas_restart(argc, argv);
    nmlp_str_init(&made_by);
    nmlp_command_made_by(&made_by, argc, argv);
    a.request.method.made_by = nmlp_str_text(&made_by);
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_compress, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code < 0) code = check_args(&cli, &a);
    if (code < 0 && nmlp_str_status(&made_by, &err) != NMLP_OK) code = nmlp_cli_fail(&cli, &err);
    if (code < 0) code = compress(&cli, &a);
    nmlp_str_fini(&made_by);
    return code;
}

const nmlp_command nmlp_cmd_compress = {
    .name = "compress",
    .summary = "replace MLP matrices by thin factors",
    .usage = "MODEL -o DIR --ratio R | --budget-ms X | --budget-bytes B [options]",
    .about = "Calibration text shows which directions of the inputs matter; ranks go where held-out text says "
             "they are needed; a second pass refits each layer to what the layers below became. The ratio is "
             "the fraction of the MLPs' parameters that is removed, with --modules mlp,attn of MLPs and attentions "
             "together; --budget-ms asks for a time instead, on a CPU by ranks and bits together (without training or "
             "--recover none), --budget-bytes for the bytes of the checkpoint. An interrupted run goes on with "
             "--resume. Under mpirun several processes share the work.",
    .examples = "neuronmlp compress models/tiny -o /tmp/tiny-20 --ratio 0.2 --calib-tokens 4096 --heldout 1024\n"
                "neuronmlp compress models/tiny -o /tmp/tiny-svd --ratio 0.4 --alloc uniform --recover none --whiten "
                "none --calib-tokens 1024 --heldout 512\n"
                "neuronmlp compress models/tiny -o /tmp/tiny-4mb --budget-bytes 4200000 --calib-tokens 1024 --heldout "
                "512\n",
    .run = run,
    .clustered = true,
};
