/* neuronmlp report: one HTML file with tables, charts and a timeline. */
#define _DEFAULT_SOURCE /* gmtime_r */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/command_text.h"
#include "cli/commands.h"
#include "cli/optimize_record.h"
#include "cli/report_sections.h"
#include "model/preset.h"
#include "neuronmlp/version.h"

enum { PRESET_ROWS = 2048, PRESET_TILE = 128, FOOTER_LINES = 4 };

typedef struct report_args {
    const char *output, *target, *kernel, *shape, *preset, *bench, *evals, *serve_log, *package, *paper;
    int64_t rows_max;
    double ratio;
} report_args;

typedef struct report {
    const nmlp_cli *cli;
    report_args args;
    nmlp_report_target target;
    const nmlp_kernel *kernel;
    nmlp_kernel_shape shape;
    nmlp_page page;
    nmlp_str command, html;
} report;

static nmlp_status parse_shape(report *r, nmlp_err *err) {
    int64_t *d = NULL;
    size_t n = 0, want = r->kernel->has_rank ? 4 : 3;
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(&d, &n, r->args.shape, "--shape", err));
    if (n == want) r->shape = (nmlp_kernel_shape){d[0], d[1], want == 4 ? d[2] : 0, d[want - 1]};
    nmlp_mem_free(d);
    if (n == want) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_ARG, "--shape has %zu numbers; kernel %s takes %s", n, r->kernel->name,
                     want == 4 ? "S,H,R,O" : "S,H,O");
}

static nmlp_status choose_kernel(report *r, nmlp_err *err) {
    nmlp_config c;
    r->kernel = nmlp_kernel_find(r->args.kernel, err);
    if (!r->kernel) return NMLP_E_MISSING;
    if (r->args.shape) return parse_shape(r, err);
    NMLP_RETURN_IF_FAILED(nmlp_preset_find(&c, r->args.preset, err));
    int64_t rank = nmlp_rank_for_ratio(c.intermediate, c.hidden, r->args.ratio, PRESET_TILE);
    r->shape = (nmlp_kernel_shape){PRESET_ROWS, c.hidden, r->kernel->has_rank ? rank : 0, c.intermediate};
    return NMLP_OK;
}

/* A file is told by its columns; one of each kind makes a section. */
static nmlp_status put_benchmark(report *r, const char *path, bool seen[2], nmlp_err *err) {
    nmlp_csv csv;
    nmlp_status st = nmlp_csv_read(&csv, path, err);
    if (st == NMLP_OK) {
        bool models = nmlp_report_is_throughput(&csv);
        if (seen[models])
            st = nmlp_fail(err, NMLP_E_ARG, "--bench: %s is the second file of `bench %s`", path,
                           models ? "model" : "mlp");
        else
            st = models ? nmlp_report_throughput(&r->page, &csv, err) : nmlp_report_cpu(&r->page, &csv, err);
        seen[models] = true;
    }
    nmlp_csv_fini(&csv);
    return st;
}

static nmlp_status put_benchmarks(report *r, nmlp_err *err) {
    bool seen[2] = {false};
    for (const char *list = r->args.bench; list && *list;) {
        char path[4096];
        size_t len = strcspn(list, ",");
        if (len >= sizeof path) return nmlp_fail(err, NMLP_E_ARG, "--bench: a file name is too long");
        memcpy(path, list, len);
        path[len] = '\0';
        NMLP_RETURN_IF_FAILED(put_benchmark(r, path, seen, err));
        list += len + (list[len] == ',');
    }
    return NMLP_OK;
}

/* The first checkpoint: its frontier, ranks and bits, whatever of these it has. */
static nmlp_status put_checkpoint(report *r, const char *dir, nmlp_err *err) {
    nmlp_model model;
    nmlp_status st = NMLP_OK;
    bool optimized = nmlp_optimize_record_is_there(dir);
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&model, dir, err));
    const nmlp_config *c = &model.config;
    if (!c->compressed && !c->quantised && !optimized) {
        nmlp_fail(err, NMLP_E_ARG, "%s: is a dense checkpoint; a report is about compressed or quantised ones", dir);
        nmlp_fail_hint(err, "neuronmlp optimize %s -o DIR, then neuronmlp report DIR", dir);
        NMLP_TRY(NMLP_E_ARG);
    }
    if (optimized) NMLP_TRY(nmlp_report_optimized(&r->page, dir, err));
    if (c->compressed) NMLP_TRY(nmlp_report_compression(&r->page, &model, err));
    if (c->quantised) NMLP_TRY(nmlp_report_bits(&r->page, &model, err));
out:
    nmlp_model_close(&model);
    return st;
}

static nmlp_status write_sections(report *r, nmlp_err *err) {
    const nmlp_cli *cli = r->cli;
    const report_args *a = &r->args;
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    if (cli->n_positionals) NMLP_RETURN_IF_FAILED(put_checkpoint(r, cli->positionals[0], err));
    if (cli->n_positionals || a->evals)
        NMLP_RETURN_IF_FAILED(nmlp_report_quality(&r->page, cli->positionals, cli->n_positionals, a->evals, err));
    NMLP_RETURN_IF_FAILED(put_benchmarks(r, err));
    if (a->serve_log) NMLP_RETURN_IF_FAILED(nmlp_report_serving(&r->page, a->serve_log, err));
    if (a->package) NMLP_RETURN_IF_FAILED(nmlp_report_package(&r->page, a->package, err));
    NMLP_RETURN_IF_FAILED(nmlp_report_kernel(&r->page, &r->target, r->kernel, &r->shape, err));
    nmlp_status st = nmlp_report_kernels(&r->page, &r->target, a->rows_max, &progress, err);
    nmlp_cli_progress_end(&bar);
    if (st == NMLP_OK && a->paper) st = nmlp_report_paper(&r->page, a->paper, err);
    return st;
}

/* What a report can show, and what makes it. */
static void put_missing(report *r) {
    const report_args *a = &r->args;
    const struct {
        bool there;
        const char *what, *command;
    } parts[] = {
        {r->cli->n_positionals > 0, "Ranks, bits, error curves and quality of a compressed model, and its frontier:",
         "neuronmlp optimize models/tiny -o /tmp/tiny-fast && neuronmlp report /tmp/tiny-fast -o report.html"},
        {a->bench, "The MLP on this CPU beside its peers, and whole models by batch:",
         "neuronmlp bench mlp --rows 1,128 --csv mlp.csv && neuronmlp bench model models/tiny --batch 1,8,32 --csv "
         "model.csv && neuronmlp report --bench mlp.csv,model.csv -o report.html"},
        {a->serve_log, "What clients of a server waited for:",
         "neuronmlp serve models/tiny 2> serve.log\nneuronmlp report --serve-log serve.log -o report.html"},
        {a->package, "A package for Trainium:",
         "neuronmlp emit --model models/tiny --target trn2 -o /tmp/pkg && neuronmlp report --package /tmp/pkg -o "
         "report.html"},
        {a->paper, "The paper's tables, ours beside them:",
         "neuronmlp paper --json > paper.json && neuronmlp report --paper paper.json -o report.html"},
    };
    enum { N_PARTS = sizeof parts / sizeof parts[0] };
    int n_there = 0;
    for (int i = 0; i < N_PARTS; i++) n_there += parts[i].there;
    if (n_there == N_PARTS) return;
    nmlp_page_section_begin(&r->page, "more", "Not in this report", "Give it more and it shows more:");
    for (int i = 0; i < N_PARTS; i++) {
        if (parts[i].there) continue;
        nmlp_page_paragraph(&r->page, parts[i].what);
        nmlp_page_command(&r->page, parts[i].command);
    }
    nmlp_page_section_end(&r->page);
}

/* SOURCE_DATE_EPOCH, where it is set, as builds that repeat take it. */
static time_t page_time(void) {
    const char *text = getenv("SOURCE_DATE_EPOCH");
    char *end = NULL;
    long long seconds = text ? strtoll(text, &end, 10) : 0;
    return text && end != text && !*end && seconds >= 0 ? (time_t)seconds : time(NULL);
}

static void write_page(report *r) {
    nmlp_str machine;
    char version[96], date[64], subtitle[512], command[1024];
    time_t now = page_time();
    struct tm utc;
    nmlp_str_init(&machine);
    nmlp_report_machine(&machine);
    if (!gmtime_r(&now, &utc)) utc = (struct tm){.tm_mday = 1}; /* a year beyond int */
    strftime(date, sizeof date, "made %Y-%m-%d %H:%M UTC", &utc);
    snprintf(version, sizeof version, "neuronmlp %s, %s on:", NMLP_VERSION_STRING, date);
    snprintf(command, sizeof command, "%s", nmlp_str_text(&r->command));
    snprintf(subtitle, sizeof subtitle, "%s%.200s%sTrainium figures are simulated (%s), not measured.",
             r->cli->n_positionals ? "Model " : "", r->cli->n_positionals ? r->cli->positionals[0] : "",
             r->cli->n_positionals ? ". " : "", r->target.machine.name);
    const char *const footer[FOOTER_LINES] = {version, nmlp_str_text(&machine), command,
                                              "Self-contained: this file fetches nothing and runs from disk."};
    nmlp_page_head head = {
        .title = "neuronmlp report", .subtitle = subtitle, .footer = footer, .n_footer = FOOTER_LINES};
    nmlp_page_write(&r->page, &head, &r->html);
    r->html.failed |= machine.failed || r->command.failed;
    nmlp_str_fini(&machine);
}

static nmlp_status make(report *r, nmlp_err *err) {
    r->target.name = r->args.target;
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&r->target.machine, r->args.target, err));
    NMLP_RETURN_IF_FAILED(choose_kernel(r, err));
    NMLP_RETURN_IF_FAILED(write_sections(r, err));
    put_missing(r);
    write_page(r);
    NMLP_RETURN_IF_FAILED(nmlp_str_status(&r->html, err));
    return nmlp_file_write_text(r->args.output, nmlp_str_text(&r->html), r->html.len, err);
}

static int print_result(const report *r) {
    nmlp_str text;
    nmlp_json_writer w;
    char bytes[32];
    if (!r->cli->json) {
        nmlp_cli_bytes_text(bytes, (double)r->html.len);
        printf("%s: %d sections, %d charts, %s; open it in a browser\n", r->args.output, r->page.n_sections,
               r->page.n_charts, bytes);
        return NMLP_EXIT_OK;
    }
    nmlp_str_init(&text);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "file", r->args.output);
    nmlp_json_put_int(&w, "bytes", (int64_t)r->html.len);
    nmlp_json_put_int(&w, "sections", r->page.n_sections);
    nmlp_json_put_int(&w, "charts", r->page.n_charts);
    nmlp_json_end_object(&w);
    int code = nmlp_cli_print_json(r->cli, &text);
    nmlp_str_fini(&text);
    return code;
}

static int run(int argc, char **argv) {
    report r = {.args = {.output = "report.html",
                         .target = "trn1",
                         .kernel = "mlp",
                         .preset = "llama-3.2-1b",
                         .rows_max = 32768,
                         .ratio = 0.2}};
    report_args *a = &r.args;
    const nmlp_opt opts[] = {
        {"output", 'o', NMLP_OPT_STRING, &a->output, "FILE", "where to write (default report.html)"},
        {"bench", 0, NMLP_OPT_STRING, &a->bench, "FILE,...",
         "CSV of `bench mlp` or `bench model`, or both: the MLP on a CPU, models by batch"},
        {"eval", 0, NMLP_OPT_STRING, &a->evals, "FILE,...",
         "results of neuronmlp eval --text --json: more perplexities"},
        {"serve-log", 0, NMLP_OPT_STRING, &a->serve_log, "FILE",
         "what neuronmlp serve printed: latencies of its requests"},
        {"package", 0, NMLP_OPT_STRING, &a->package, "DIR", "of neuronmlp emit --model: its kernels"},
        {"paper", 0, NMLP_OPT_STRING, &a->paper, "FILE", "of neuronmlp paper --json: the paper's tables"},
        {"target", 0, NMLP_OPT_STRING, &a->target, "T", "trn1 (default), trn2, trn3 or a machine file"},
        {"preset", 0, NMLP_OPT_STRING, &a->preset, "NAME",
         "model whose MLP is simulated (default llama-3.2-1b, 2048 rows)"},
        {"ratio", 0, NMLP_OPT_NUMBER, &a->ratio, "R", "what is removed from it (default 0.2)"},
        {"shape", 0, NMLP_OPT_STRING, &a->shape, "S,H,R,O",
         "instead: rows, inputs, rank, outputs (mlp: intermediate width)"},
        {"kernel", 0, NMLP_OPT_STRING, &a->kernel, "NAME", "of the timeline (default mlp); a wrong name lists all"},
        {"rows-max", 0, NMLP_OPT_INT, &a->rows_max, "N", "longest sequence in the kernel charts (default 32768)"},
    };
    nmlp_cli cli;
    nmlp_err err = {0};
    nmlp_str_init(&r.command);
    nmlp_str_init(&r.html);
    nmlp_command_word(&r.command, "neuronmlp");
    for (int i = 0; i < argc; i++) nmlp_command_word(&r.command, argv[i]);
    int code =
        nmlp_cli_parse(&cli, &nmlp_cmd_report, opts, sizeof opts / sizeof opts[0], 0, NMLP_POSITIONALS_MAX, argc, argv);
    if (code < 0 && !(a->ratio > 0 && a->ratio < 1))
        code = nmlp_cli_usage(&cli, "--ratio %g: must be above 0 and below 1", a->ratio);
    if (code < 0 && a->shape) code = nmlp_cli_refuse(&cli, "preset ratio", "does not go with --shape");
    if (code < 0 && nmlp_str_status(&r.command, &err) != NMLP_OK) code = nmlp_cli_fail(&cli, &err);
    if (code < 0) {
        r.cli = &cli;
        nmlp_page_init(&r.page);
        code = make(&r, &err) == NMLP_OK ? print_result(&r) : nmlp_cli_fail(&cli, &err);
        nmlp_page_fini(&r.page);
    }
    nmlp_str_fini(&r.html);
    nmlp_str_fini(&r.command);
    return code;
}

const nmlp_command nmlp_cmd_report = {
    .name = "report",
    .summary = "one HTML page: frontier, quality, benchmarks, latency, simulated kernels",
    .usage = "[COMPRESSED...] [-o FILE.html] [options]",
    .about = "The page needs no network: the frontier, ranks, bits, error curves and quality of compressed models; "
             "time, traffic, roofline and a timeline of simulated kernels. Options add what was measured: benchmarks, "
             "perplexities, a server's latencies; a package for Trainium; the paper's tables.",
    .examples = "neuronmlp report -o /tmp/report.html --rows-max 4096\n"
                "neuronmlp report -o /tmp/report.html --target trn2 --preset qwen3-1.7b --rows-max 2048 --json\n",
    .run = run,
};
