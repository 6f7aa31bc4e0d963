/* neuronmlp paper: the paper's tables with ours beside them. */
#define _DEFAULT_SOURCE /* mkstemp */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/commands.h"
#include "cli/paper_table.h"
#include "neuronmlp/version.h"

static nmlp_paper_make *const makers[] = {
    nmlp_paper_latency,        nmlp_paper_speedup,  nmlp_paper_traffic, nmlp_paper_rate,
    nmlp_paper_blocks_sweep,   nmlp_paper_ablation, nmlp_paper_mlp,     nmlp_paper_end_to_end,
    nmlp_paper_published_runs, nmlp_paper_quality,  nmlp_paper_choices, nmlp_paper_adapters,
};

enum { N_TABLES = sizeof makers / sizeof makers[0] };

typedef struct paper_run {
    const nmlp_cli *cli;
    const char *target, *html, *models;
    int64_t rows_max;
    nmlp_machine machine;
    nmlp_paper_table *tables; /* [N_TABLES] */
    double seconds;
} paper_run;

static nmlp_status write_page(const paper_run *p, nmlp_err *err) {
    nmlp_page page;
    nmlp_str html;
    char made[96];
    snprintf(made, sizeof made, "neuronmlp %s, simulated on %s", NMLP_VERSION_STRING, p->machine.name);
    const char *const footer[] = {made, "neuronmlp paper --html FILE makes this page again."};
    nmlp_page_head head = {.title = "The paper's tables, ours beside them",
                           .subtitle = "Every cell says whether it was measured, simulated or published, or is not "
                                       "possible here (no device, no weights).",
                           .footer = footer,
                           .n_footer = 2};
    nmlp_page_init(&page);
    nmlp_str_init(&html);
    for (int i = 0; i < N_TABLES; i++) nmlp_paper_put_section(&p->tables[i], &page);
    nmlp_page_write(&page, &head, &html);
    nmlp_status st = nmlp_str_status(&html, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(p->html, nmlp_str_text(&html), html.len, err);
    nmlp_str_fini(&html);
    nmlp_page_fini(&page);
    return st;
}

/* Plans that several tables need are found once, through a file that nobody else sees. */
static nmlp_status make_tables(paper_run *p, nmlp_err *err) {
    char cache[] = "/tmp/neuronmlp-paper-XXXXXX";
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    int file = mkstemp(cache);
    nmlp_paper_scope scope = {.machine = &p->machine,
                              .rows_max = p->rows_max,
                              .models = p->models,
                              .cache = file >= 0 ? cache : NULL,
                              .progress = &progress};
    nmlp_status st = NMLP_OK;
    for (int i = 0; i < N_TABLES && st == NMLP_OK; i++) {
        st = makers[i](&p->tables[i], &scope, err);
        if (st == NMLP_OK && !nmlp_progress_update(&progress, "tables", i + 1, N_TABLES, "tables"))
            st = nmlp_fail(err, NMLP_E_INTERRUPTED, "the tables were stopped");
    }
    nmlp_cli_progress_end(&bar);
    if (file >= 0) {
        close(file);
        unlink(cache);
    }
    return st;
}

static nmlp_status make(paper_run *p, nmlp_err *err) {
    double start = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&p->machine, p->target, err));
    p->tables = nmlp_mem_new(N_TABLES, sizeof *p->tables, err);
    if (!p->tables) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(make_tables(p, err));
    if (p->html) NMLP_RETURN_IF_FAILED(write_page(p, err));
    p->seconds = nmlp_clock_seconds() - start;
    return NMLP_OK;
}

static int print_json(const paper_run *p) {
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "target", p->machine.name);
    nmlp_json_begin_array(w, "tables");
    for (int i = 0; i < N_TABLES; i++) nmlp_paper_put_json(&p->tables[i], w);
    nmlp_json_end_array(w);
    nmlp_json_put_number(w, "seconds", p->seconds);
    return nmlp_json_out_end(&out, p->cli);
}

static void print_human(const paper_run *p) {
    printf("m measured, s simulated on %s, p published, - not possible here\n", p->machine.name);
    for (int i = 0; i < N_TABLES; i++) nmlp_paper_print(&p->tables[i]);
    printf("\n%d tables, %.0f s%s%s\n", N_TABLES, p->seconds, p->html ? "; with pictures: " : "",
           p->html ? p->html : "");
}

static int run(int argc, char **argv) {
    paper_run p = {.target = "trn1",
                   .models = "llama-3.2-1b,llama-3.2-3b,llama-3.1-8b,qwen3-1.7b,qwen3-4b,qwen3-8b",
                   .rows_max = 32768};
    const nmlp_opt opts[] = {
        {"html", 0, NMLP_OPT_STRING, &p.html, "FILE", "also a page with a picture for each table"},
        {"target", 0, NMLP_OPT_STRING, &p.target, "TARGET", "trn1 (default, the paper's), trn2, trn3, a machine file"},
        {"models", 0, NMLP_OPT_STRING, &p.models, "NAME,...", "of the MLP and end-to-end tables (default: the six)"},
        {"rows-max", 0, NMLP_OPT_INT, &p.rows_max, "N", "longest sequence (default 32768)"},
    };
    nmlp_cli cli;
    nmlp_err err = {0};
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_paper, opts, sizeof opts / sizeof opts[0], 0, 0, argc, argv);
    if (code >= 0) return code;
    if (p.rows_max < 1024) return nmlp_cli_usage(&cli, "--rows-max must be at least 1024");
    p.cli = &cli;
    if (make(&p, &err) != NMLP_OK)
        code = nmlp_cli_fail(&cli, &err);
    else if (cli.json)
        code = print_json(&p);
    else
        print_human(&p), code = NMLP_EXIT_OK;
    nmlp_mem_free(p.tables);
    return code;
}

const nmlp_command nmlp_cmd_paper = {
    .name = "paper",
    .summary = "the paper's tables, ours beside them",
    .usage = "[--html FILE] [options]",
    .about = "Every number of the paper's tables that can be computed here, beside the published one.",
    .examples = "neuronmlp paper --rows-max 1024 --models llama-3.2-1b --html /tmp/paper.html\n",
    .run = run,
};
