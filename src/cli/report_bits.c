/* How many bits every matrix of a checkpoint has. */
#include <ctype.h>
#include <stdio.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/report_sections.h"
#include "compress/quantize/quant_layer.h"

enum { CELL = 96, NAME = 24, N_COLUMNS = NMLP_QUANT_MATRICES + 2 };

typedef struct weights {
    double elems, bytes;
} weights;

static double bits_of(const weights *w) { return w->elems > 0 ? 8 * w->bytes / w->elems : 0; }

static void add_view(weights *sum, const nmlp_view *view) {
    if (!view->data) return;
    sum->elems += (double)nmlp_view_elems(view);
    sum->bytes += (double)nmlp_model_view_bytes(view);
}

/* Of matrices one of which may share its v with those before it. */
static void add_factors(weights *sum, const nmlp_factors *f, bool shared) {
    add_view(sum, &f->w);
    add_view(sum, &f->u);
    if (!shared) add_view(sum, &f->v);
}

static void add_attention(weights *sum, const nmlp_layer *layer) {
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++)
        add_factors(sum, &layer->attention[i], layer->attention_shares_basis && i > 0 && i < NMLP_ATTENTION_O);
}

static void add_mlps(weights *sum, const nmlp_model *m, int64_t l) {
    for (int64_t e = 0; e < nmlp_config_mlp_count(&m->config, l); e++)
        for (int i = 0; i < NMLP_MLP_MATRICES; i++)
            add_factors(sum, &nmlp_layer_mlp_at(&m->layers[l], e)[i],
                        i == NMLP_MLP_UP && nmlp_layer_shares_basis(&m->layers[l], e));
}

/* "q8", "q4 g32", "rank 192 q8", "bf16" */
static void format_text(char text[CELL], const nmlp_view *view, int64_t rank) {
    char group[24] = "", cut[32] = "";
    if (view->data && view->group > 0) snprintf(group, sizeof group, " g%d", view->group);
    if (rank > 0) snprintf(cut, sizeof cut, "rank %lld ", (long long)rank);
    snprintf(text, CELL, "%s%.20s%s", cut, view->data ? nmlp_dtype_name(view->dtype) : "-", group);
    for (char *c = text; *c; c++) *c = (char)tolower((unsigned char)*c); /* as options spell it */
}

/* Of experts the first stands for all. */
static void matrix_text(char text[CELL], const nmlp_layer *layer, int matrix) {
    const nmlp_factors *f =
        matrix < NMLP_QUANT_GATE ? &layer->attention[matrix] : &nmlp_layer_mlp_at(layer, 0)[matrix - NMLP_QUANT_GATE];
    format_text(text, f->w.data ? &f->w : &f->u, nmlp_factors_rank(f));
}

static void put_table(nmlp_page *page, const nmlp_model *m) {
    const char *heads[N_COLUMNS] = {"layer"};
    for (int i = 0; i < NMLP_QUANT_MATRICES; i++) heads[i + 1] = nmlp_quant_matrix_name(i);
    heads[N_COLUMNS - 1] = "bits";
    nmlp_page_table_begin(page, "Format of every matrix, and bits per weight of a layer with its scales", heads,
                          N_COLUMNS);
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        char cell[N_COLUMNS][CELL];
        const char *cells[N_COLUMNS];
        weights sum = {0};
        for (int i = 0; i < N_COLUMNS; i++) cells[i] = cell[i];
        snprintf(cell[0], CELL, "%lld", (long long)l);
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) matrix_text(cell[i + 1], &m->layers[l], i);
        add_attention(&sum, &m->layers[l]);
        add_mlps(&sum, m, l);
        snprintf(cell[N_COLUMNS - 1], CELL, "%.2f", bits_of(&sum));
        nmlp_page_table_row(page, cells, N_COLUMNS, N_COLUMNS - 1);
    }
    nmlp_page_table_end(page);
}

static nmlp_status put_chart(nmlp_page *page, const nmlp_model *m, nmlp_err *err) {
    size_t n = (size_t)m->config.n_layers;
    char(*names)[NAME] = nmlp_mem_new(n, sizeof *names, err);
    const char **labels = nmlp_mem_new(n, sizeof *labels, err);
    double *bits = nmlp_mem_new(2 * n, sizeof *bits, err);
    nmlp_status st = names && labels && bits ? NMLP_OK : NMLP_E_NOMEM;
    for (size_t l = 0; l < n && st == NMLP_OK; l++) {
        weights attention = {0}, mlp = {0};
        snprintf(names[l], NAME, "%zu", l);
        labels[l] = names[l];
        add_attention(&attention, &m->layers[l]);
        add_mlps(&mlp, m, (int64_t)l);
        bits[l] = bits_of(&attention);
        bits[n + l] = bits_of(&mlp);
    }
    nmlp_plot_series series[2];
    for (int i = 0; i < 2; i++)
        series[i] = (nmlp_plot_series){.name = i ? "MLP" : "attention",
                                       .mark = NMLP_MARK_BARS,
                                       .colour = i ? NMLP_COLOUR_OURS : NMLP_COLOUR_OTHER,
                                       .y = bits ? bits + (size_t)i * n : NULL,
                                       .n = n,
                                       .in_legend = true};
    nmlp_plot plot = {.title = "Bits per weight of each layer",
                      .about = "Bars for attention and MLP of every layer, scales counted; lower is smaller.",
                      .x = {.label = "layer", .categories = labels, .n = n},
                      .y = {.label = "bits per weight", .from_zero = true},
                      .series = series,
                      .n_series = 2};
    if (st == NMLP_OK) nmlp_page_chart(page, &plot, NULL);
    nmlp_mem_free(names);
    nmlp_mem_free(labels);
    nmlp_mem_free(bits);
    return st;
}

nmlp_status nmlp_report_bits(nmlp_page *page, const nmlp_model *m, nmlp_err *err) {
    nmlp_model_size size = nmlp_model_measure(m);
    weights all = {.elems = (double)size.params, .bytes = (double)size.bytes};
    char lead[640], head[CELL], value[32], bytes[32];
    format_text(head, &m->lm_head, 0);
    nmlp_cli_bytes_text(bytes, (double)size.bytes);
    snprintf(lead, sizeof lead, "%.300s: %.2f bits per weight, %s in all; the output matrix is %s%s.",
             m->checkpoint.dir, bits_of(&all), bytes, head,
             m->config.tied ? ", and the embedding is the same matrix" : "");
    nmlp_page_section_begin(page, "bits", "Bits of every matrix", lead);
    nmlp_page_grid_begin(page);
    NMLP_RETURN_IF_FAILED(put_chart(page, m, err));
    nmlp_page_grid_end(page);
    put_table(page, m);
    nmlp_page_section_end(page);
    snprintf(value, sizeof value, "%.2f bits", bits_of(&all));
    nmlp_page_card(page, value, "per weight, scales, norms and vocabulary counted", "bits");
    return NMLP_OK;
}
