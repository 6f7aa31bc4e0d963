/* What clients of a server waited for, from its log: one JSON object a line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/report_sections.h"

enum { LOG_MAX_BYTES = 256 << 20, KINDS = 3, CURVE = 101, CELL = 32 };

/* Keys of a line, and what they are. */
static const char *const keys[KINDS] = {"ms", "ttft_ms", "tpot_ms"};
static const char *const names[KINDS] = {"whole answer", "first token", "each further token"};
static const nmlp_colour colours[KINDS] = {NMLP_COLOUR_DENSE, NMLP_COLOUR_OURS, NMLP_COLOUR_OTHER};

typedef struct traffic {
    double *waits[KINDS]; /* milliseconds, ascending at the end */
    size_t n[KINDS];
    long long n_failed;
    double prompt_tokens, cached_tokens, generated_tokens;
} traffic;

static void add_request(traffic *t, const nmlp_json *line) {
    const nmlp_json *generated = nmlp_json_get(line, "generated_tokens");
    if (!nmlp_json_is_number(generated)) return; /* asked for something else than tokens */
    const nmlp_json *status = nmlp_json_get(line, "status");
    if (!nmlp_json_is_number(status) || nmlp_json_number(status) != 200) {
        t->n_failed++;
        return;
    }
    t->generated_tokens += nmlp_json_number(generated);
    const nmlp_json *prompt = nmlp_json_get(line, "prompt_tokens"), *cached = nmlp_json_get(line, "cached_tokens");
    if (nmlp_json_is_number(prompt)) t->prompt_tokens += nmlp_json_number(prompt);
    if (nmlp_json_is_number(cached)) t->cached_tokens += nmlp_json_number(cached);
    for (int k = 0; k < KINDS; k++) {
        const nmlp_json *wait = nmlp_json_get(line, keys[k]);
        if (nmlp_json_is_number(wait) && nmlp_json_number(wait) > 0) t->waits[k][t->n[k]++] = nmlp_json_number(wait);
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Lines that are no JSON object are somebody else's. */
static nmlp_status read_log(traffic *t, const char *path, nmlp_err *err) {
    nmlp_str text;
    size_t n_lines = 1;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_file_read(&text, path, LOG_MAX_BYTES, err));
    for (size_t i = 0; i < text.len; i++) n_lines += text.data[i] == '\n';
    for (int k = 0; k < KINDS; k++)
        if (!(t->waits[k] = nmlp_mem_new(n_lines, sizeof *t->waits[k], err))) NMLP_TRY(NMLP_E_NOMEM);
    for (size_t at = 0; at < text.len;) {
        const char *line = text.data + at, *end = memchr(line, '\n', text.len - at);
        size_t len = end ? (size_t)(end - line) : text.len - at;
        nmlp_json_doc doc;
        if (len && line[0] == '{' && nmlp_json_parse(&doc, line, len, path, NULL) == NMLP_OK) {
            add_request(t, doc.root);
            nmlp_json_free(&doc);
        }
        at += len + 1;
    }
    for (int k = 0; k < KINDS; k++) qsort(t->waits[k], t->n[k], sizeof *t->waits[k], ascending);
    if (t->n[0] == 0) {
        nmlp_fail(err, NMLP_E_FORMAT, "%s: has no line of an answered request for tokens", path);
        nmlp_fail_hint(err, "it is what neuronmlp serve MODEL prints: 2> serve.log");
        st = NMLP_E_FORMAT;
    }
out:
    nmlp_str_fini(&text);
    return st;
}

static double quantile(const traffic *t, int k, double share) {
    double at = share * (double)(t->n[k] - 1);
    size_t low = (size_t)at, high = low + 1 < t->n[k] ? low + 1 : low;
    return t->waits[k][low] + (at - (double)low) * (t->waits[k][high] - t->waits[k][low]);
}

static void put_chart(nmlp_page *page, const traffic *t) {
    double x[KINDS][CURVE], y[CURVE];
    nmlp_plot_series series[KINDS];
    size_t n = 0;
    for (int i = 0; i < CURVE; i++) y[i] = 100.0 * i / (CURVE - 1);
    for (int k = 0; k < KINDS; k++) {
        if (t->n[k] == 0) continue;
        for (int i = 0; i < CURVE; i++) x[k][i] = quantile(t, k, (double)i / (CURVE - 1));
        series[n++] = (nmlp_plot_series){.name = names[k],
                                         .mark = NMLP_MARK_CURVE,
                                         .colour = colours[k],
                                         .x = x[k],
                                         .y = y,
                                         .n = CURVE,
                                         .in_legend = true};
    }
    nmlp_plot plot = {.title = "Share of requests that waited no longer",
                      .about = "A rising curve for whole answers, first tokens and further tokens: how many percent of "
                               "the requests waited at most so long; further left is better.",
                      .x = {.label = "milliseconds", .kind = NMLP_SCALE_LOG},
                      .y = {.label = "% of requests", .from_zero = true},
                      .series = series,
                      .n_series = n};
    nmlp_page_chart(page, &plot, NULL);
}

static void put_table(nmlp_page *page, const traffic *t) {
    static const char *const heads[] = {"ms", "requests", "median", "90 %", "99 %", "largest"};
    static const double shares[] = {0.5, 0.9, 0.99, 1};
    nmlp_page_panel_begin(page);
    nmlp_page_table_begin(page, "What clients waited for; a first token counts from the start of its work", heads, 6);
    for (int k = 0; k < KINDS; k++) {
        char cell[5][CELL];
        if (t->n[k] == 0) continue;
        snprintf(cell[0], CELL, "%zu", t->n[k]);
        for (int i = 0; i < 4; i++) snprintf(cell[i + 1], CELL, "%.4g", quantile(t, k, shares[i]));
        nmlp_page_table_row(page, (const char *const[]){names[k], cell[0], cell[1], cell[2], cell[3], cell[4]}, 6, 1);
    }
    nmlp_page_table_end(page);
    nmlp_page_panel_end(page);
}

static void write_section(nmlp_page *page, const traffic *t, const char *path) {
    char lead[600], value[CELL], label[96];
    snprintf(lead, sizeof lead,
             "Measured by the server itself (%.200s): %zu answers, %lld requests failed; %.0f tokens read, of which "
             "%.0f were known from earlier requests, and %.0f written.",
             path, t->n[0], t->n_failed, t->prompt_tokens, t->cached_tokens, t->generated_tokens);
    nmlp_page_section_begin(page, "serving", "Serving latency", lead);
    nmlp_page_grid_begin(page);
    put_chart(page, t);
    put_table(page, t);
    nmlp_page_grid_end(page);
    nmlp_page_section_end(page);
    int k = t->n[1] ? 1 : 0;
    snprintf(value, sizeof value, "%.3g ms", quantile(t, k, 0.5));
    snprintf(label, sizeof label, "to the %s of a request served, median of %zu", names[k], t->n[k]);
    nmlp_page_card(page, value, label, "serving");
}

nmlp_status nmlp_report_serving(nmlp_page *page, const char *path, nmlp_err *err) {
    traffic t = {.n_failed = 0};
    nmlp_status st = read_log(&t, path, err);
    if (st == NMLP_OK) write_section(page, &t, path);
    for (int k = 0; k < KINDS; k++) nmlp_mem_free(t.waits[k]);
    return st;
}
