/* The MLP benchmark of a CPU, from its CSV: bars with their spread, a chart for each number of rows. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/report_sections.h"

enum { ROWS_MAX = 512, PEERS_MAX = 12, RANKS_MAX = 8, TEXT = 96 };

typedef struct sample {
    char peer[TEXT];
    long long hidden, inner, rank, rows;
    double ms, low, high;
} sample;

typedef struct results {
    sample samples[ROWS_MAX];
    size_t n;
} results;

/* Of `neuronmlp bench mlp --csv`. */
enum { C_PEER, C_HIDDEN, C_INNER, C_RANK, C_ROWS, C_MS, C_LOW, C_HIGH, N_COLUMNS };
static const char *const columns[N_COLUMNS] = {"by", "hidden", "inner", "rank", "rows", "ms", "ms_p10", "ms_p90"};

static nmlp_status read_row(results *r, const nmlp_csv *csv, size_t row, const int *column, nmlp_err *err) {
    double number[N_COLUMNS] = {0};
    if (nmlp_csv_text(csv, row, column[C_MS])[0] == '\0') return NMLP_OK; /* was not timed: its result was wrong */
    bool dense = strcmp(nmlp_csv_text(csv, row, column[C_RANK]), "dense") == 0;
    for (int c = C_HIDDEN; c < N_COLUMNS; c++)
        if (c != C_RANK || !dense) NMLP_RETURN_IF_FAILED(nmlp_csv_number(csv, row, column[c], &number[c], err));
    if (r->n == ROWS_MAX) return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d results", csv->path, ROWS_MAX);
    sample *s = &r->samples[r->n++];
    snprintf(s->peer, sizeof s->peer, "%s", nmlp_csv_text(csv, row, column[C_PEER]));
    s->hidden = (long long)number[C_HIDDEN];
    s->inner = (long long)number[C_INNER];
    s->rank = (long long)number[C_RANK];
    s->rows = (long long)number[C_ROWS];
    s->ms = number[C_MS];
    s->low = number[C_LOW];
    s->high = number[C_HIGH];
    return NMLP_OK;
}

static nmlp_status read_results(results *r, const nmlp_csv *csv, nmlp_err *err) {
    int column[N_COLUMNS];
    nmlp_status st = nmlp_csv_need(csv, columns, N_COLUMNS, column, err);
    if (st != NMLP_OK) {
        nmlp_fail_hint(err, "expected what neuronmlp bench mlp --csv or bench model --csv writes");
        return st;
    }
    for (size_t row = 0; row < csv->n_rows; row++) NMLP_RETURN_IF_FAILED(read_row(r, csv, row, column, err));
    return r->n ? NMLP_OK : nmlp_fail(err, NMLP_E_FORMAT, "%s: holds no results", csv->path);
}

static bool same_case(const sample *a, const sample *b) {
    return a->hidden == b->hidden && a->inner == b->inner && a->rows == b->rows;
}

/* Our kernel sets go by their own names. */
static bool is_ours(const char *peer) {
    static const char *const names[] = {"amx", "avx512", "avx2", "ref"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strncmp(peer, names[i], strlen(names[i])) == 0) return true;
    return false;
}

/* One chart: groups for dense and each rank, a bar for each peer. */
typedef struct figure {
    char peers[PEERS_MAX][TEXT];
    long long ranks[RANKS_MAX];
    char rank_names[RANKS_MAX][TEXT];
    double ms[PEERS_MAX][RANKS_MAX], low[PEERS_MAX][RANKS_MAX], high[PEERS_MAX][RANKS_MAX];
    size_t n_peers, n_ranks;
} figure;

static size_t peer_index(figure *f, const char *peer) {
    size_t i = 0;
    while (i < f->n_peers && strcmp(f->peers[i], peer) != 0) i++;
    if (i == f->n_peers && i < PEERS_MAX) snprintf(f->peers[f->n_peers++], TEXT, "%s", peer);
    return i;
}

static size_t rank_index(figure *f, long long rank) {
    size_t i = 0;
    while (i < f->n_ranks && f->ranks[i] != rank) i++;
    if (i == f->n_ranks && i < RANKS_MAX) {
        f->ranks[i] = rank;
        snprintf(f->rank_names[i], TEXT, rank ? "rank %lld" : "dense", rank);
        f->n_ranks++;
    }
    return i;
}

static void fill_figure(figure *f, const results *r, const sample *of) {
    *f = (figure){.n_peers = 0};
    for (int i = 0; i < PEERS_MAX; i++)
        for (int k = 0; k < RANKS_MAX; k++) f->ms[i][k] = f->low[i][k] = f->high[i][k] = NAN;
    for (size_t i = 0; i < r->n; i++) {
        const sample *s = &r->samples[i];
        if (!same_case(s, of)) continue;
        size_t p = peer_index(f, s->peer), k = rank_index(f, s->rank);
        if (p >= PEERS_MAX || k >= RANKS_MAX) continue;
        f->ms[p][k] = s->ms;
        f->low[p][k] = s->low;
        f->high[p][k] = s->high;
    }
}

static void put_figure(nmlp_page *page, const figure *f, const sample *of) {
    static const nmlp_colour others[] = {NMLP_COLOUR_PAPER, NMLP_COLOUR_OTHER, NMLP_COLOUR_SEQUENTIAL,
                                         NMLP_COLOUR_ANOTHER, NMLP_COLOUR_NAIVE};
    nmlp_plot_series series[PEERS_MAX];
    const char *categories[RANKS_MAX];
    char title[160];
    size_t n_other = 0;
    for (size_t k = 0; k < f->n_ranks; k++) categories[k] = f->rank_names[k];
    for (size_t i = 0; i < f->n_peers; i++) {
        bool first_ours = i == 0 && is_ours(f->peers[i]);
        series[i] = (nmlp_plot_series){.name = f->peers[i],
                                       .mark = NMLP_MARK_BARS,
                                       .colour = first_ours ? NMLP_COLOUR_OURS : others[n_other++ % 5],
                                       .y = f->ms[i],
                                       .low = f->low[i],
                                       .high = f->high[i],
                                       .n = f->n_ranks,
                                       .in_legend = true};
    }
    snprintf(title, sizeof title, "Gated MLP, hidden %lld, intermediate %lld: %lld row%s", of->hidden, of->inner,
             of->rows, of->rows == 1 ? "" : "s");
    nmlp_plot plot = {.title = title,
                      .about = "Bars of median time for each implementation, in groups for each rank and the dense "
                               "MLP; whiskers from the 10th "
                               "to the 90th percentile. Lower is better.",
                      .x = {.label = "MLP matrices", .categories = categories, .n = f->n_ranks},
                      .y = {.label = "milliseconds, lower is better", .from_zero = true},
                      .series = series,
                      .n_series = f->n_peers};
    nmlp_page_chart(page, &plot, NULL);
}

/* Our fastest at a case, dense or with factors. */
static const sample *fastest_ours(const results *r, const sample *of, bool dense) {
    const sample *best = NULL;
    for (size_t i = 0; i < r->n; i++) {
        const sample *s = &r->samples[i];
        if (same_case(s, of) && is_ours(s->peer) && (s->rank == 0) == dense && (!best || s->ms < best->ms)) best = s;
    }
    return best;
}

static void put_card(nmlp_page *page, const results *r) {
    const sample *low_rank = fastest_ours(r, &r->samples[0], false), *dense = fastest_ours(r, &r->samples[0], true);
    char value[32], label[192];
    if (!low_rank || !dense) return;
    snprintf(value, sizeof value, "%.2f×", dense->ms / low_rank->ms);
    snprintf(label, sizeof label,
             "fused low-rank MLP (rank %lld) against our dense one on a CPU, %lld row%s, %.2f against %.2f ms",
             low_rank->rank, low_rank->rows, low_rank->rows == 1 ? "" : "s", low_rank->ms, dense->ms);
    nmlp_page_card(page, value, label, "cpu");
}

nmlp_status nmlp_report_cpu(nmlp_page *page, const nmlp_csv *csv, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    figure *f = nmlp_mem_new(1, sizeof *f, err);
    results *r = nmlp_mem_new(1, sizeof *r, err);
    if (!f || !r) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(read_results(r, csv, err));
    nmlp_page_section_begin(
        page, "cpu", "CPU",
        "Measured: our fused MLP beside its peers on the same shapes, one after the other in one process. Medians; "
        "whiskers span the 10th to the 90th percentile. Up to 16 rows the weights come from memory.");
    nmlp_page_grid_begin(page);
    for (size_t i = 0; i < r->n; i++) {
        bool seen = false;
        for (size_t k = 0; k < i; k++) seen |= same_case(&r->samples[k], &r->samples[i]);
        if (seen) continue;
        fill_figure(f, r, &r->samples[i]);
        put_figure(page, f, &r->samples[i]);
    }
    nmlp_page_grid_end(page);
    if (csv->note[0]) nmlp_page_command(page, csv->note);
    nmlp_page_section_end(page);
    put_card(page, r);
out:
    nmlp_mem_free(f);
    nmlp_mem_free(r);
    return st;
}
