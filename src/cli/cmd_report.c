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
#include "cli/report_sections.h"
#include "model/preset.h"
#include "neuronmlp/version.h"

enum { PRESET_ROWS = 2048, PRESET_TILE = 128, FOOTER_LINES = 4 };

typedef struct report_args {
    const char *output, *target, *kernel, *shape, *preset, *bench, *evals;
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

static nmlp_status write_sections(report *r, nmlp_err *err) {
    const nmlp_cli *cli = r->cli;
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    if (cli->n_positionals) NMLP_RETURN_IF_FAILED(nmlp_report_compression(&r->page, cli->positionals[0], err));
    if (cli->n_positionals || r->args.evals)
        NMLP_RETURN_IF_FAILED(nmlp_report_quality(&r->page, cli->positionals, cli->n_positionals, r->args.evals, err));
    if (r->args.bench) NMLP_RETURN_IF_FAILED(nmlp_report_cpu(&r->page, r->args.bench, err));
    NMLP_RETURN_IF_FAILED(nmlp_report_kernel(&r->page, &r->target, r->kernel, &r->shape, err));
    nmlp_status st = nmlp_report_kernels(&r->page, &r->target, r->args.rows_max, &progress, err);
    nmlp_cli_progress_end(&bar);
    return st;
}

static void put_missing(report *r) {
    if (r->cli->n_positionals && r->args.bench) return;
    nmlp_page_section_begin(&r->page, "more", "Not in this report", "Give it more and it shows more:");
    if (!r->cli->n_positionals) {
        nmlp_page_paragraph(&r->page, "Ranks, error curves and quality of compressed models:");
        nmlp_page_command(&r->page, "neuronmlp compress models/tiny -o /tmp/tiny-20 --ratio 0.2 && neuronmlp report "
                                    "/tmp/tiny-20 -o report.html");
    }
    if (!r->args.bench) {
        nmlp_page_paragraph(&r->page, "The MLP on this CPU beside its peers (the CSV of the MLP benchmark):");
        nmlp_page_command(&r->page,
                          "neuronmlp bench mlp --rows 1,128 --shape 2048,8192,1280 --csv mlp.csv && neuronmlp report "
                          "--bench mlp.csv -o report.html");
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
             r->cli->n_positionals ? "Compressed model " : "", r->cli->n_positionals ? r->cli->positionals[0] : "",
             r->cli->n_positionals ? ". " : "", r->target.machine.name);
    const char *const footer[FOOTER_LINES] = {version, nmlp_str_text(&machine), command,
                                              "Self-contained: this file fetches nothing and runs from disk."};
    nmlp_page_head head = {
        .title = "neuronmlp report", .subtitle = subtitle, .footer = footer, .n_footer = FOOTER_LINES};
    nmlp_page_write(&r->page, &head, &r->html);
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
        {"bench", 0, NMLP_OPT_STRING, &a->bench, "FILE", "CSV of the MLP benchmark: bars of this CPU"},
        {"eval", 0, NMLP_OPT_STRING, &a->evals, "FILE,...",
         "results of neuronmlp eval --text --json: more perplexities"},
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
    .summary = "one HTML page: compression, quality, benchmarks, simulated kernels",
    .usage = "[COMPRESSED...] [-o FILE.html] [options]",
    .about = "The page needs no network: ranks, error curves and quality of compressed models; time, traffic, "
             "roofline and a timeline of simulated kernels; --bench adds the MLP benchmark of a CPU, --eval "
             "more perplexities.",
    .examples = "neuronmlp report -o /tmp/report.html --rows-max 4096\n"
                "neuronmlp report -o /tmp/report.html --target trn2 --preset qwen3-1.7b --rows-max 2048 --json\n",
    .run = run,
};
