/* Quality over the share of parameters removed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/command_text.h"
#include "cli/report_sections.h"
#include "compress/record.h"

enum { POINTS_MAX = 64, SERIES_MAX = NMLP_N_COLOURS, NAME_MAX_BYTES = 96 };

/* Perplexities on one text, by share removed. */
typedef struct line {
    char name[NAME_MAX_BYTES];
    double removed[POINTS_MAX], ppl[POINTS_MAX]; /* removed in percent */
    size_t n;
} line;

/* What one checkpoint recorded. */
typedef struct recorded {
    const char *dir;
    double removed, ppl_dense, ppl_factored, ppl, kl;
} recorded;

typedef struct quality {
    recorded models[NMLP_POSITIONALS_MAX];
    size_t n_models;
    line lines[SERIES_MAX];
    size_t n_lines;
    nmlp_str commands; /* that made all this, one a line */
} quality;

static line *line_named(quality *q, const char *name) {
    for (size_t i = 0; i < q->n_lines; i++)
        if (strcmp(q->lines[i].name, name) == 0) return &q->lines[i];
    if (q->n_lines == SERIES_MAX) return NULL;
    line *l = &q->lines[q->n_lines++];
    snprintf(l->name, sizeof l->name, "%s", name);
    return l;
}

/* Sorted by share; a share that is there already keeps its first value. */
static nmlp_status add_point(quality *q, const char *name, double removed, double ppl, nmlp_err *err) {
    line *l = line_named(q, name);
    if (!isfinite(ppl)) return NMLP_OK;
    if (!l || l->n == POINTS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "a report shows at most %d texts with %d models each", SERIES_MAX,
                         POINTS_MAX);
    size_t at = l->n;
    for (size_t i = 0; i < l->n; i++)
        if (l->removed[i] == removed) return NMLP_OK;
    for (; at > 0 && l->removed[at - 1] > removed; at--) {
        l->removed[at] = l->removed[at - 1];
        l->ppl[at] = l->ppl[at - 1];
    }
    l->removed[at] = removed;
    l->ppl[at] = ppl;
    l->n++;
    return NMLP_OK;
}

static nmlp_status add_checkpoint(quality *q, const char *dir, nmlp_err *err) {
    nmlp_model opened;
    nmlp_compress_record r = {0};
    nmlp_status st = NMLP_OK;
    char name[NAME_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&opened, dir, err));
    if (!opened.config.compressed) goto out; /* it recorded none */
    NMLP_TRY(nmlp_compress_record_load(&r, &opened, err));
    recorded *m = &q->models[q->n_models++];
    *m = (recorded){.dir = dir,
                    .removed = 100 * r.ratio,
                    .ppl_dense = r.ppl_dense,
                    .ppl_factored = r.ppl_factored,
                    .ppl = r.ppl,
                    .kl = r.kl};
    if (r.made_by[0]) {
        nmlp_str_printf(&q->commands, "%s -o", r.made_by);
        nmlp_command_word(&q->commands, dir);
        nmlp_str_putc(&q->commands, '\n');
    }
    /* Another held-out text gives another dense perplexity: its numbers belong on a line of their own. */
    snprintf(name, sizeof name, "held-out text, %lld tokens", (long long)r.heldout_tokens);
    if (fabs(r.ppl_dense / q->models[0].ppl_dense - 1) > 1e-6)
        snprintf(name, sizeof name, "held-out text, %lld tokens, dense %.4g", (long long)r.heldout_tokens, r.ppl_dense);
    NMLP_TRY(add_point(q, name, 0, r.ppl_dense, err));
    NMLP_TRY(add_point(q, name, m->removed, r.ppl, err));
out:
    nmlp_compress_record_fini(&r);
    nmlp_model_close(&opened);
    return st;
}

static void add_command(quality *q, const nmlp_json *root) {
    static const char *const options[][2] = {{"--ctx", "ctx"}, {"--stride", "stride"}, {"--max-tokens", "tokens"}};
    nmlp_str command;
    nmlp_str_init(&command);
    nmlp_str_puts(&command, "neuronmlp eval");
    nmlp_command_word(&command, nmlp_json_string(nmlp_json_get(root, "model")));
    nmlp_command_word(&command, "--text");
    nmlp_command_word(&command, nmlp_json_string(nmlp_json_get(root, "text")));
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        nmlp_str_printf(&command, " %s %.0f", options[i][0], nmlp_json_number(nmlp_json_get(root, options[i][1])));
    nmlp_str_printf(&q->commands, "%s\n", nmlp_str_text(&command));
    q->commands.failed |= command.failed;
    nmlp_str_fini(&command);
}

static nmlp_status add_evaluation(quality *q, const char *path, nmlp_err *err) {
    nmlp_json_doc doc;
    nmlp_config config;
    const char *model = NULL, *text = NULL;
    double ppl = 0;
    nmlp_status st = NMLP_OK;
    char name[NAME_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    NMLP_TRY(nmlp_json_need_string(&doc, doc.root, "model", &model, err));
    NMLP_TRY(nmlp_json_need_string(&doc, doc.root, "text", &text, err));
    NMLP_TRY(nmlp_json_need_number(&doc, doc.root, "ppl", &ppl, err));
    st = nmlp_config_load(&config, model, err);
    if (st != NMLP_OK) {
        nmlp_fail_context(err, "%s: its model tells how much was removed", path);
        goto out;
    }
    const char *slash = strrchr(text, '/');
    snprintf(name, sizeof name, "%.80s", slash ? slash + 1 : text);
    NMLP_TRY(add_point(q, name, 100 * (config.compressed ? config.ratio : 0), ppl, err));
    add_command(q, doc.root);
out:
    nmlp_json_free(&doc);
    if (st == NMLP_E_MISSING)
        nmlp_fail_hint(err, "make it with neuronmlp eval MODEL --text FILE --json > %.120s", path);
    return st;
}

static nmlp_status add_evaluations(quality *q, const char *list, nmlp_err *err) {
    while (list && *list) {
        char path[4096];
        size_t len = strcspn(list, ",");
        if (len >= sizeof path) return nmlp_fail(err, NMLP_E_ARG, "--eval: a file name is too long");
        memcpy(path, list, len);
        path[len] = '\0';
        NMLP_RETURN_IF_FAILED(add_evaluation(q, path, err));
        list += len + (list[len] == ',');
    }
    return NMLP_OK;
}

static void put_chart(nmlp_page *page, const quality *q) {
    nmlp_plot_series series[SERIES_MAX];
    for (size_t i = 0; i < q->n_lines; i++)
        series[i] = (nmlp_plot_series){.name = q->lines[i].name,
                                       .mark = NMLP_MARK_LINE,
                                       .colour = (nmlp_colour)i,
                                       .x = q->lines[i].removed,
                                       .y = q->lines[i].ppl,
                                       .n = q->lines[i].n,
                                       .in_legend = true};
    nmlp_plot plot = {
        .title = "Perplexity over parameters removed",
        .about =
            "Perplexity rises from the dense model at 0 % with the share of MLP parameters removed; lower is better.",
        .x = {.label = "MLP parameters removed, %", .from_zero = true},
        .y = {.label = "perplexity"},
        .series = series,
        .n_series = q->n_lines};
    nmlp_page_chart(page, &plot, NULL);
}

static void put_models(nmlp_page *page, const quality *q) {
    static const char *const heads[] = {"model", "removed", "dense", "factorised", "written", "KL"};
    nmlp_page_panel_begin(page);
    nmlp_page_table_begin(page,
                          "Perplexity on held-out text: dense, with factors, and as written after the refit; KL "
                          "divergence from the dense model",
                          heads, 6);
    for (size_t i = 0; i < q->n_models; i++) {
        const recorded *m = &q->models[i];
        const double values[] = {m->ppl_dense, m->ppl_factored, m->ppl, m->kl};
        char cell[5][32];
        snprintf(cell[0], sizeof cell[0], "%.1f %%", m->removed);
        for (int k = 0; k < 4; k++)
            snprintf(cell[1 + k], sizeof cell[0], isfinite(values[k]) ? "%.4g" : "not recorded", values[k]);
        nmlp_page_table_row(page, (const char *const[]){m->dir, cell[0], cell[1], cell[2], cell[3], cell[4]}, 6, 1);
    }
    nmlp_page_table_end(page);
    nmlp_page_panel_end(page);
}

static void write_section(nmlp_page *page, const quality *q) {
    char value[64], label[128];
    nmlp_page_section_begin(page, "quality", "Quality",
                            "What the model loses as parameters go, without any training. Held-out text: tokens "
                            "the factors never saw; the ranks were judged on them.");
    nmlp_page_grid_begin(page);
    put_chart(page, q);
    if (q->n_models) put_models(page, q);
    nmlp_page_grid_end(page);
    if (q->commands.len) nmlp_page_command(page, nmlp_str_text(&q->commands));
    nmlp_page_section_end(page);
    if (q->n_models == 0 || !isfinite(q->models[0].ppl)) return;
    snprintf(value, sizeof value, "%.1f → %.1f", q->models[0].ppl_dense, q->models[0].ppl);
    snprintf(label, sizeof label, "perplexity on held-out text with %.0f %% of the MLP parameters removed, no training",
             q->models[0].removed);
    nmlp_page_card(page, value, label, "quality");
}

nmlp_status nmlp_report_quality(nmlp_page *page, const char *const *dirs, int n_dirs, const char *evals,
                                nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    quality *q = nmlp_mem_new(1, sizeof *q, err);
    if (!q) return NMLP_E_NOMEM;
    nmlp_str_init(&q->commands);
    for (int i = 0; i < n_dirs; i++) NMLP_TRY(add_checkpoint(q, dirs[i], err));
    NMLP_TRY(add_evaluations(q, evals, err));
    size_t n_points = 0;
    for (size_t i = 0; i < q->n_lines; i++) n_points += q->lines[i].n;
    if (n_points) write_section(page, q);
    NMLP_TRY(nmlp_str_status(&q->commands, err));
out:
    nmlp_str_fini(&q->commands);
    nmlp_mem_free(q);
    return st;
}
