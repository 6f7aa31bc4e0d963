/* The frontier of an optimization: what every form that was built loses, over time and bytes. */
#include <math.h>
#include <stdio.h>

#include "cli/optimize_record.h"
#include "cli/report_sections.h"

enum { TIP_BYTES = 96, KINDS = 4, HIGHEST = 6 };

/* Points by kind: each kind is a series of the charts. */
struct group {
    const char *name;
    nmlp_colour colour;
    double x[NMLP_OPTIMIZED_POINTS_MAX], y[NMLP_OPTIMIZED_POINTS_MAX];
    char text[NMLP_OPTIMIZED_POINTS_MAX][TIP_BYTES];
    const char *tips[NMLP_OPTIMIZED_POINTS_MAX];
    size_t n;
};

static int kind_of(const nmlp_optimization *r, int i) {
    if (i == r->chosen) return 0;
    const nmlp_optimized_point *p = &r->points[i];
    return p->ranks ? 3 : p->bits ? 2 : 1;
}

static double loss_percent(double nats) { return 100 * expm1(nats); }

static void put_frontier(nmlp_page *page, const nmlp_optimization *r, bool bytes) {
    struct group groups[KINDS] = {{.name = "chosen", .colour = NMLP_COLOUR_OURS},
                                  {.name = "dense", .colour = NMLP_COLOUR_DENSE},
                                  {.name = "bits", .colour = NMLP_COLOUR_OTHER},
                                  {.name = "with ranks", .colour = NMLP_COLOUR_PAPER}};
    double line_x[NMLP_FRONTIER_MAX], line_y[NMLP_FRONTIER_MAX], bound_x[2] = {INFINITY, 0}, bound_y[2];
    nmlp_plot_series series[KINDS + 2];
    double most = HIGHEST * loss_percent(r->bound); /* one far point would flatten all others */
    size_t n = 0;
    for (int i = 0; i < r->n_points; i++) {
        const nmlp_optimized_point *p = &r->points[i];
        struct group *g = &groups[kind_of(r, i)];
        g->x[g->n] = bytes ? (double)p->bytes / 1e6 : p->ms;
        g->y[g->n] = fmin(loss_percent(p->loss), most);
        snprintf(g->text[g->n], TIP_BYTES, "%s: %.3f ms, %.2f MB, %+.2f %%", p->name, p->ms, (double)p->bytes / 1e6,
                 loss_percent(p->loss));
        g->tips[g->n] = g->text[g->n];
        bound_x[0] = fmin(bound_x[0], g->x[g->n]);
        bound_x[1] = fmax(bound_x[1], g->x[g->n]);
        g->n++;
    }
    size_t n_line = 0;
    for (int i = 0; i < r->n_frontier; i++) {
        if (loss_percent(r->frontier[i].loss) > most) continue;
        line_x[n_line] = bytes ? r->frontier[i].bytes / 1e6 : r->frontier[i].ms;
        line_y[n_line++] = loss_percent(r->frontier[i].loss);
    }
    if (n_line > 1)
        series[n++] = (nmlp_plot_series){.name = "frontier, as modelled",
                                         .mark = NMLP_MARK_CURVE,
                                         .colour = NMLP_COLOUR_ANOTHER,
                                         .x = line_x,
                                         .y = line_y,
                                         .n = n_line,
                                         .in_legend = true};
    bound_y[0] = bound_y[1] = loss_percent(r->bound);
    series[n++] = (nmlp_plot_series){.name = "the loss allowed",
                                     .mark = NMLP_MARK_LIMIT,
                                     .colour = NMLP_COLOUR_DENSE,
                                     .x = bound_x,
                                     .y = bound_y,
                                     .n = 2,
                                     .in_legend = true};
    for (int k = 0; k < KINDS; k++)
        if (groups[k].n)
            series[n++] = (nmlp_plot_series){.name = groups[k].name,
                                             .mark = NMLP_MARK_POINTS,
                                             .colour = groups[k].colour,
                                             .x = groups[k].x,
                                             .y = groups[k].y,
                                             .tips = groups[k].tips,
                                             .n = groups[k].n,
                                             .in_legend = true};
    nmlp_plot plot = {.title = bytes ? "Loss over bytes" : "Loss over time",
                      .about =
                          "Rise of the perplexity on held-out text of every form that was built; lower and further "
                          "left is better, below the dashed line is allowed. Forms that lose more than six times as "
                          "much stand at the upper edge; the table has their figures.",
                      .x = {.label = bytes          ? "weights, MB"
                                     : r->simulated ? "ms, simulated"
                                                    : "ms, measured"},
                      .y = {.label = "perplexity, rise in %", .from_zero = true},
                      .series = series,
                      .n_series = n};
    nmlp_page_chart(page, &plot, NULL);
}

static void put_points(nmlp_page *page, const nmlp_optimization *r) {
    static const char *const heads[] = {"form", "perplexity, rise", "± ", "KL", "ms", "speed-up", "MB", "within"};
    nmlp_page_table_begin(page, "Every form that was built, on held-out text", heads, 8);
    for (int i = 0; i < r->n_points; i++) {
        const nmlp_optimized_point *p = &r->points[i];
        char cell[7][32], name[64];
        snprintf(name, sizeof name, "%s%s", p->name, i == r->chosen ? " (written)" : "");
        snprintf(cell[0], 32, "%+.3f %%", loss_percent(p->loss));
        snprintf(cell[1], 32, "%.3f %%", 100 * p->loss_error);
        snprintf(cell[2], 32, "%.5f", p->kl);
        snprintf(cell[3], 32, "%.3f", p->ms);
        int used = snprintf(cell[4], 32, "%.2fx", r->points[0].ms / p->ms);
        if (i > 0 && p->speedup_high > 0)
            snprintf(cell[4] + used, 32 - (size_t)used, " (%.2f to %.2f)", p->speedup_low, p->speedup_high);
        snprintf(cell[5], 32, "%.2f", (double)p->bytes / 1e6);
        snprintf(cell[6], 32, "%s", p->refused ? "not in the last check" : p->within ? "yes" : "no");
        nmlp_page_table_row(
            page, (const char *const[]){name, cell[0], cell[1], cell[2], cell[3], cell[4], cell[5], cell[6]}, 8, 1);
    }
    nmlp_page_table_end(page);
}

static void put_cards(nmlp_page *page, const nmlp_optimization *r) {
    const nmlp_optimized_point *p = &r->points[r->chosen];
    char value[64], label[160];
    snprintf(value, sizeof value, "%.2fx", r->points[0].ms / p->ms);
    snprintf(label, sizeof label, "faster than the dense model on %s, %s", r->target,
             r->simulated ? "simulated" : "measured");
    nmlp_page_card(page, value, label, "frontier");
    if (r->verified.n_scored > 0) {
        snprintf(value, sizeof value, "%+.2f %%", loss_percent(r->verified.nll - r->verified.nll_before));
        snprintf(label, sizeof label, "perplexity on %lld tokens that no choice has seen",
                 (long long)r->verified.n_scored);
        nmlp_page_card(page, value, label, "frontier");
    }
    snprintf(value, sizeof value, "%.0f %%", 100 * (double)p->bytes / (double)r->points[0].bytes);
    nmlp_page_card(page, value, "of the bytes", "frontier");
    nmlp_page_card(page, nmlp_verdict_text(r->verdict), "the answer", "frontier");
}

void nmlp_report_frontier(nmlp_page *page, const nmlp_optimization *r, const char *command) {
    char unit[80], lead[600];
    nmlp_workload_text(unit, &r->workload);
    snprintf(lead, sizeof lead,
             "Time of %s against what the model loses on held-out text. Chosen is the fastest form whose loss, with "
             "its standard error, is within %.4g nats of log-perplexity (%.3g %% of perplexity). Behind a speed-up "
             "stand the least and the largest of several repeats; a lead that not all but one of them show is none.",
             unit, r->bound, loss_percent(r->bound));
    put_cards(page, r);
    nmlp_page_section_begin(page, "frontier", "The frontier", lead);
    nmlp_page_grid_begin(page);
    put_frontier(page, r, false);
    put_frontier(page, r, true);
    nmlp_page_grid_end(page);
    put_points(page, r);
    nmlp_page_command(page, command);
    nmlp_page_section_end(page);
}

nmlp_status nmlp_report_optimized(nmlp_page *page, const char *dir, nmlp_err *err) {
    nmlp_optimize_record record;
    nmlp_status st = nmlp_optimize_record_load(&record, dir, err);
    if (st == NMLP_OK) nmlp_report_frontier(page, &record.result, record.command);
    nmlp_optimize_record_fini(&record);
    return st;
}
