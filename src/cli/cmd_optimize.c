/* neuronmlp optimize: the fastest form of a model on a target, within a loss. */
#define _DEFAULT_SOURCE /* getrusage */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "cli/better_blas.h"
#include "cli/budget_table.h"
#include "cli/command_text.h"
#include "cli/commands.h"
#include "cli/optimize_page.h"
#include "cli/optimize_record.h"
#include "cli/stop.h"

struct args {
    const char *output, *max_loss, *workload, *model;
    nmlp_str command;
    nmlp_optimization_request request;
};

/* "1%", "1 %" or "0.01". */
static bool read_share(const char *text, double *share) {
    char *end;
    double value = strtod(text, &end);
    if (end == text) return false;
    while (*end == ' ') end++;
    if (*end == '%') {
        value /= 100;
        end++;
    }
    *share = value;
    return *end == '\0' && value > 0 && value < 1;
}

static int check_args(const nmlp_cli *cli, struct args *a, nmlp_err *err) {
    if (!a->output) return nmlp_cli_usage(cli, "-o DIR is needed");
    if (!read_share(a->max_loss, &a->request.max_loss))
        return nmlp_cli_usage(cli, "--max-loss %s: must be a share above 0 and below 100%%, e.g. 1%%", a->max_loss);
    if (nmlp_workload_parse(&a->request.workload, a->workload, err) != NMLP_OK) return nmlp_cli_fail(cli, err);
    return -1;
}

static nmlp_status write_page(void *ctx, const nmlp_optimization *r, const char *dir, nmlp_err *err) {
    const struct args *a = ctx;
    char path[4096];
    nmlp_str html;
    nmlp_str_init(&html);
    nmlp_optimize_page_write(r, a->model, nmlp_str_text(&a->command), &html);
    nmlp_status st = nmlp_str_status(&html, err);
    if (st == NMLP_OK) st = nmlp_path_join(path, sizeof path, dir, "optimize.html", err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&html), html.len, err);
    if (st == NMLP_OK) st = nmlp_optimize_record_write(dir, r, nmlp_str_text(&a->command), err);
    nmlp_str_fini(&html);
    return st;
}

static double percent(double nats) { return 100 * expm1(nats); }

static int64_t peak_rss_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

static int print_json(const nmlp_cli *cli, const struct args *a, const nmlp_optimization *r) {
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "output", a->output);
    nmlp_optimize_record_put(w, r);
    nmlp_mix_put(w, &r->mix);
    nmlp_json_put_int(w, "calib_tokens", r->calib_tokens);
    nmlp_json_put_int(w, "heldout_tokens", r->heldout_tokens);
    nmlp_json_put_number(w, "expected_seconds", r->expected_seconds);
    nmlp_json_put_number(w, "expected_bytes", r->expected_bytes);
    nmlp_json_put_number(w, "seconds", r->seconds);
    nmlp_json_put_int(w, "peak_rss_bytes", peak_rss_bytes());
    return nmlp_json_out_end(&out, cli);
}

/* Why what has the least time by the median was not taken. */
static void print_doubt(const nmlp_optimization *r) {
    const nmlp_optimized_point *p = &r->points[r->fastest];
    if (r->fastest == r->chosen) return;
    printf("%s was %.2fx as fast in the median of %d repeats (%.2f to %.2f), too little to be sure of; %s\n", p->name,
           r->points[0].ms / p->ms, r->n_repeats, p->speedup_low, p->speedup_high,
           r->chosen ? "what was written loses less" : "the dense model loses nothing");
}

static void print_answer(const nmlp_optimization *r) {
    const nmlp_optimized_point *p = &r->points[r->chosen];
    printf("\nanswer: %s (%s)", nmlp_verdict_text(r->verdict), p->name);
    if (r->chosen == 0)
        printf("; nothing within the loss is surely faster here, and what was written is the model as it was\n");
    else if (r->n_repeats)
        printf(", %.2fx as fast (measured, %.2f to %.2f in %d repeats), %.0f %% of the bytes\n",
               r->points[0].ms / p->ms, p->speedup_low, p->speedup_high, r->n_repeats,
               100 * (double)p->bytes / (double)r->points[0].bytes);
    else
        printf(", %.3fx as fast (simulated), %.0f %% of the bytes\n", r->points[0].ms / p->ms,
               100 * (double)p->bytes / (double)r->points[0].bytes);
    if (r->n_repeats) print_doubt(r);
    if (r->verified.n_scored > 0)
        printf("verified on %lld tokens that no choice has seen: perplexity %+.2f %% (± %.2f), %+.5f nats\n",
               (long long)r->verified.n_scored, percent(r->verified.nll - r->verified.nll_before),
               100 * r->verified.rise_error, r->verified.nll - r->verified.nll_before);
    else if (r->chosen > 0)
        printf("not verified: the text was too short to keep some of it apart\n");
    if (r->n_stepped_back)
        printf("%d form%s lost more than allowed on that text, and %s not taken\n", r->n_stepped_back,
               r->n_stepped_back == 1 ? "" : "s", r->n_stepped_back == 1 ? "was" : "were");
}

static void print_point(const nmlp_optimization *r, int i) {
    const nmlp_optimized_point *p = &r->points[i];
    char range[24] = "";
    if (p->speedup_high > 0 && i > 0) snprintf(range, sizeof range, "%.2f-%.2f", p->speedup_low, p->speedup_high);
    printf("%-28s %+10.3f %% %8.3f %% %10.3f %8.3fx %11s %9.2f%s\n", p->name, percent(p->loss), 100 * p->loss_error,
           p->ms, r->points[0].ms / p->ms, range, (double)p->bytes / 1e6,
           i == r->chosen ? "  <- written"
           : p->refused   ? "  loses too much in the last check"
           : p->within    ? ""
                          : "  loses too much");
}

static int print_text(const struct args *a, const nmlp_optimization *r) {
    char unit[80], memory[32];
    nmlp_workload_text(unit, &r->workload);
    nmlp_mix_print(&r->mix);
    printf("\n%-28s %12s %10s %10s %9s %11s %9s\n", "form", "perplexity", "+-", "ms", "speed-up", "repeats", "MB");
    for (int i = 0; i < r->n_points; i++) print_point(r, i);
    printf("perplexity: rise on %lld held-out tokens, %.3g %% is allowed; ms: %s%s\n", (long long)r->heldout_tokens,
           percent(r->bound), unit, r->simulated ? ", simulated" : "");
    print_answer(r);
    nmlp_cli_bytes_text(memory, (double)peak_rss_bytes());
    printf("%s: checkpoint, README.md, optimize.html, optimize.json; %.0f s, %s at most\n", a->output, r->seconds,
           memory);
    return NMLP_EXIT_OK;
}

static int optimize(const nmlp_cli *cli, struct args *a) {
    nmlp_optimization result;
    nmlp_cli_bar bar;
    nmlp_err err;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    a->model = cli->positionals[0];
    a->request.load.n_threads = (int)cli->n_threads;
    a->request.load.progress = &progress;
    a->request.made_by = nmlp_str_text(&a->command);
    a->request.on_write = write_page;
    a->request.ctx = a;
    nmlp_status st = nmlp_optimization_run(&result, a->model, a->output, &a->request, &err);
    nmlp_cli_progress_end(&bar);
    int code = st != NMLP_OK ? nmlp_cli_fail(cli, &err)
               : cli->json   ? print_json(cli, a, &result)
                             : print_text(a, &result);
    nmlp_optimization_fini(&result);
    return code;
}

static int run(int argc, char **argv) {
    struct args a = {.max_loss = "1%", .workload = "chat", .request = nmlp_optimization_defaults()};
    nmlp_optimization_request *r = &a.request;
    r->target = "cpu";
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &a.output, "DIR", "where to write checkpoint, page and model card"},
        {"for", 0, NMLP_OPT_STRING, &r->target, "cpu|cuda|trn1|trn2|trn3",
         "what it will run on (default cpu: this machine); also a machine file"},
        {"max-loss", 0, NMLP_OPT_STRING, &a.max_loss, "SHARE", "how much the perplexity may rise (default 1%)"},
        {"workload", 0, NMLP_OPT_STRING, &a.workload, "chat|prompt|batch=N",
         "what is to be fast: reading and writing, reading, or N sequences writing (default chat)"},
        {"calib", 0, NMLP_OPT_STRING, &r->calibration, "FILE", "mixed text of your kind (default MODEL/calib.txt)"},
        {"minutes", 0, NMLP_OPT_NUMBER, &r->minutes, "N", "also train a faster model for so long (default 0: none)"},
        {"calib-tokens", 0, NMLP_OPT_INT, &r->calib_tokens, "N", "tokens to calibrate on (default 32768)"},
        {"heldout", 0, NMLP_OPT_INT, &r->heldout_tokens, "N",
         "further tokens that choices are made on (default 8192, large models 2048)"},
        {"verify", 0, NMLP_OPT_INT, &r->verify_tokens, "N", "further tokens for the last check (default 8192)"},
        {"ctx", 0, NMLP_OPT_INT, &r->context, "N", "tokens in a window (default 512)"},
        {"tile", 0, NMLP_OPT_INT, &r->tile, "T",
         "ranks are multiples of it (default 128 trn, 32 cpu, 16 small models)"},
        {"resume", 0, NMLP_OPT_FLAG, &r->resume, NULL, "go on where an interrupted run stopped"},
        {"work", 0, NMLP_OPT_STRING, &r->work_dir, "DIR",
         "keep the work in DIR.partial; --resume uses it for other bounds and targets"},
        {"isa", 0, NMLP_OPT_STRING, &r->load.isa, "NAME", "kernel set (default: the fastest)"},
    };
    nmlp_cli cli;
    nmlp_err err = {0};
    nmlp_better_blas_restart(argc, argv);
    nmlp_str_init(&a.command);
    nmlp_command_made_by(&a.command, argc, argv);
    nmlp_cli_stop_install();
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_optimize, opts, sizeof opts / sizeof opts[0], 1, 1, argc, argv);
    if (code < 0) code = check_args(&cli, &a, &err);
    if (code < 0 && nmlp_str_status(&a.command, &err) != NMLP_OK) code = nmlp_cli_fail(&cli, &err);
    if (code < 0) code = optimize(&cli, &a);
    nmlp_str_fini(&a.command);
    return code;
}

const nmlp_command nmlp_cmd_optimize = {
    .name = "optimize",
    .summary = "the fastest form of a model on a machine, within a loss",
    .usage = "MODEL -o DIR [--for TARGET] [--max-loss 1%] [options]",
    .about = "Measures what every matrix loses at lower ranks and in fewer bits and how long each form takes, builds "
             "the fastest mixes within the loss, compares them with the dense model, single formats and uniform "
             "ranks, and writes the fastest that keeps the bound: the answer may be to leave the model as it is. The "
             "last check is on text that no choice has seen. An interrupted run goes on with --resume.",
    .examples =
        "neuronmlp optimize models/tiny -o /tmp/tiny-fast --max-loss 2% --workload prompt --calib-tokens 512 "
        "--heldout 512 --verify 512\n"
        "neuronmlp optimize models/tiny -o /tmp/tiny-trn1 --for trn1 --tile 32 --max-loss 5% --calib-tokens 512 "
        "--heldout 512 --verify 512 --json\n",
    .run = run,
};
