/* The compression of one checkpoint: its table, ranks and error curves. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/command_text.h"
#include "cli/report_sections.h"
#include "compress/record.h"

enum { CELL = 64, N_COLUMNS = 5 };
static const char *const matrices[NMLP_MLP_MATRICES] = {"gate", "up", "down"};
static const nmlp_colour colours[NMLP_MLP_MATRICES] = {NMLP_COLOUR_OURS, NMLP_COLOUR_OTHER, NMLP_COLOUR_PAPER};

typedef struct subject {
    nmlp_page *page;
    const char *dir;
    const nmlp_model *model;
    nmlp_compress_record record;
    nmlp_arena arena; /* of names and values in charts */
    nmlp_str command;
} subject;

static int64_t full_rank(const nmlp_config *c) { return c->hidden < c->intermediate ? c->hidden : c->intermediate; }

static void put_method(const subject *s) {
    static const char *const heads[] = {"", ""};
    const nmlp_compress_record *r = &s->record;
    char asked[CELL], tile[CELL], calibration[2 * CELL], heldout[CELL], recover[CELL];
    snprintf(asked, CELL, isfinite(r->ratio_asked) ? "%.4g of the MLP parameters" : "time of the MLPs", r->ratio_asked);
    snprintf(tile, CELL, "multiples of %lld, %.20s", (long long)r->tile, r->alloc);
    snprintf(calibration, sizeof calibration, "%lld tokens of %.60s", (long long)r->calib_tokens, r->calib_text);
    snprintf(heldout, CELL, "%lld tokens", (long long)r->heldout_tokens);
    snprintf(recover, CELL, "%.20s%s", r->recover, r->trained ? ", then training" : "");
    const char *const rows[][2] = {{"asked to remove", asked},     {"ranks", tile},
                                   {"calibrated on", calibration}, {"judged on", heldout},
                                   {"whitened by", r->whiten},     {"rows weighted by", r->weights},
                                   {"recovery", recover}};
    nmlp_page_table_begin(s->page, "How", heads, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) nmlp_page_table_row(s->page, rows[i], 2, 1);
    nmlp_page_table_end(s->page);
}

static void put_sizes(subject *s) {
    static const char *const heads[] = {"", "dense", "compressed", "removed"};
    static const char *const names[] = {"MLP parameters", "model parameters", "model bytes"};
    nmlp_model_size size = nmlp_model_measure(s->model);
    double saved = (double)(size.mlp_params_dense - size.mlp_params);
    double after[] = {(double)size.mlp_params, (double)size.params, (double)size.bytes};
    double before[] = {(double)size.mlp_params_dense, (double)size.params + saved,
                       (double)size.bytes * (1 + saved / (double)size.params)};
    nmlp_page_panel_begin(s->page);
    nmlp_page_table_begin(s->page, "What was removed", heads, 4);
    for (int i = 0; i < 3; i++) {
        char text[3][32];
        void (*text_of)(char[32], double) = i == 2 ? nmlp_cli_bytes_text : nmlp_cli_count_text;
        text_of(text[0], before[i]);
        text_of(text[1], after[i]);
        snprintf(text[2], sizeof text[2], "%.2f %%", 100 * (1 - after[i] / before[i]));
        nmlp_page_table_row(s->page, (const char *const[]){names[i], text[0], text[1], text[2]}, 4, 1);
    }
    nmlp_page_table_end(s->page);
    put_method(s);
    nmlp_page_panel_end(s->page);
    char value[32], label[256];
    snprintf(value, sizeof value, "%.1f %%", 100 * saved / before[0]);
    snprintf(label, sizeof label, "of the MLP parameters removed, %.1f %% of the model", 100 * saved / before[1]);
    nmlp_page_card(s->page, value, label, "compression");
}

static void rank_text(char text[CELL / 2], const nmlp_layer *layer, int i) {
    int64_t rank = nmlp_factors_rank(&layer->mlp[i]);
    if (rank == 0)
        snprintf(text, CELL / 2, "dense");
    else
        snprintf(text, CELL / 2, "%lld%s", (long long)rank, layer->shared_basis && i != NMLP_MLP_DOWN ? "*" : "");
}

static void put_layers(subject *s) {
    static const char *const heads[N_COLUMNS] = {"layer", "gate", "up", "down", "kept"};
    const nmlp_config *c = &s->model->config;
    nmlp_page_panel_begin(s->page);
    nmlp_page_table_begin(
        s->page,
        "Rank and relative squared error of each matrix's output on calibration text; * gate and up share a factor",
        heads, N_COLUMNS);
    for (int64_t l = 0; l < c->n_layers; l++) {
        char cell[N_COLUMNS][CELL];
        const char *cells[N_COLUMNS];
        double kept = 0;
        for (int i = 0; i < N_COLUMNS; i++) cells[i] = cell[i];
        snprintf(cell[0], CELL, "%lld", (long long)l);
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            const nmlp_factors *f = &s->model->layers[l].mlp[i];
            double error = s->record.error[l * NMLP_MLP_MATRICES + i];
            bool twice = s->model->layers[l].shared_basis && i == NMLP_MLP_UP;
            char rank[CELL / 2];
            rank_text(rank, &s->model->layers[l], i);
            snprintf(cell[1 + i], CELL, f->w.data || !isfinite(error) ? "%s" : "%s, %.3f", rank, error);
            kept += f->w.data ? (double)nmlp_view_elems(&f->w)
                              : (double)nmlp_view_elems(&f->u) + (twice ? 0 : (double)nmlp_view_elems(&f->v));
        }
        snprintf(cell[4], CELL, "%.1f %%", 100 * kept / (3.0 * (double)c->hidden * (double)c->intermediate));
        nmlp_page_table_row(s->page, cells, N_COLUMNS, 1);
    }
    nmlp_page_table_end(s->page);
    nmlp_page_panel_end(s->page);
}

static nmlp_status put_ranks(subject *s, nmlp_err *err) {
    size_t n = (size_t)s->model->config.n_layers;
    const char **names = nmlp_arena_new(&s->arena, n, sizeof *names, err);
    double *values = nmlp_arena_new(&s->arena, n * NMLP_MLP_MATRICES, sizeof *values, err);
    bool *hollow = nmlp_arena_new(&s->arena, n * NMLP_MLP_MATRICES, sizeof *hollow, err);
    const char **tips = nmlp_arena_new(&s->arena, n * NMLP_MLP_MATRICES, sizeof *tips, err);
    nmlp_plot_series series[NMLP_MLP_MATRICES];
    if (!names || !values || !hollow || !tips) return NMLP_E_NOMEM;
    for (size_t l = 0; l < n; l++) {
        char text[CELL];
        snprintf(text, sizeof text, "%zu", l);
        if (!(names[l] = nmlp_arena_strdup(&s->arena, text, err))) return NMLP_E_NOMEM;
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            size_t at = (size_t)i * n + l;
            char rank[CELL / 2], tip[3 * CELL];
            int64_t kept = nmlp_factors_rank(&s->model->layers[l].mlp[i]);
            hollow[at] = kept == 0;
            values[at] = (double)(kept ? kept : full_rank(&s->model->config));
            rank_text(rank, &s->model->layers[l], i);
            snprintf(tip, sizeof tip, "layer %zu, %s\n%s%s of %lld", l, matrices[i], kept ? "rank " : "", rank,
                     (long long)full_rank(&s->model->config));
            if (!(tips[at] = nmlp_arena_strdup(&s->arena, tip, err))) return NMLP_E_NOMEM;
        }
    }
    for (size_t i = 0; i < NMLP_MLP_MATRICES; i++)
        series[i] = (nmlp_plot_series){.name = matrices[i],
                                       .mark = NMLP_MARK_BARS,
                                       .colour = colours[i],
                                       .y = values + i * n,
                                       .hollow = hollow + i * n,
                                       .tips = tips + i * n,
                                       .n = n,
                                       .in_legend = true};
    nmlp_plot plot = {
        .title = "Rank of each MLP matrix",
        .about =
            "Bars for gate, up and down of every layer; a pale bar with a dashed outline is a matrix that stays dense.",
        .x = {.label = "layer", .categories = names, .n = n},
        .y = {.label = "rank (pale: dense)", .from_zero = true},
        .series = series,
        .n_series = NMLP_MLP_MATRICES};
    nmlp_page_chart(s->page, &plot, NULL);
    return NMLP_OK;
}

static nmlp_plot_series layer_series(subject *s, size_t layer, nmlp_err *err) {
    char name[48];
    snprintf(name, sizeof name, "layer %zu", layer);
    double last = (double)s->record.n_layers - 1;
    return (nmlp_plot_series){.name = nmlp_arena_strdup(&s->arena, name, err),
                              .by_depth = true,
                              .depth = last > 0 ? (double)layer / last : 0};
}

/* A curve for each layer, and on top of them a point at the rank each was given. */
static nmlp_status put_curves(subject *s, int matrix, nmlp_err *err) {
    const nmlp_compress_record *r = &s->record;
    size_t n_layers = (size_t)r->n_layers, n_points = (size_t)r->curve_points, n_series = 2 * n_layers;
    double *x = nmlp_arena_new(&s->arena, n_points, sizeof *x, err);
    double *rank = nmlp_arena_new(&s->arena, n_layers, sizeof *rank, err);
    double *error = nmlp_arena_new(&s->arena, n_layers, sizeof *error, err);
    nmlp_plot_series *series = nmlp_arena_new(&s->arena, n_series, sizeof *series, err);
    char title[96];
    if (!x || !rank || !error || !series) return NMLP_E_NOMEM;
    for (size_t k = 0; k < n_points; k++)
        x[k] = fmin((double)k * (double)r->curve_step, (double)full_rank(&s->model->config));
    for (size_t l = 0; l < n_layers; l++) {
        size_t at = l * NMLP_MLP_MATRICES + (size_t)matrix;
        nmlp_plot_series *curve = &series[l], *point = &series[n_layers + l];
        *curve = *point = layer_series(s, l, err);
        if (!curve->name) return NMLP_E_NOMEM;
        curve->mark = NMLP_MARK_CURVE;
        curve->x = x;
        curve->y = r->curve + at * n_points;
        curve->n = n_points;
        curve->in_legend = n_layers <= 8 || l == 0 || l == n_layers - 1;
        rank[l] = (double)nmlp_factors_rank(&s->model->layers[l].mlp[matrix]);
        error[l] = r->error[at];
        point->mark = NMLP_MARK_POINTS;
        point->x = &rank[l];
        point->y = &error[l];
        point->n = rank[l] > 0 ? 1 : 0;
    }
    snprintf(title, sizeof title, "Error over rank: %s", matrices[matrix]);
    nmlp_plot plot = {.title = title,
                      .about = "One falling curve for each layer, from error 1 at rank 0 to 0 at full rank; a dot "
                               "marks the rank the layer "
                               "was given. Layers without a dot stay dense.",
                      .x = {.label = "rank", .from_zero = true},
                      .y = {.label = "relative squared error", .from_zero = true},
                      .series = series,
                      .n_series = n_series};
    nmlp_page_chart(s->page, &plot, NULL);
    return NMLP_OK;
}

static void set_command(subject *s) {
    if (s->record.made_by[0]) {
        nmlp_str_puts(&s->command, s->record.made_by);
        nmlp_command_word(&s->command, "-o");
    } else {
        nmlp_str_puts(&s->command, "neuronmlp info");
    }
    nmlp_command_word(&s->command, s->dir);
}

static nmlp_status write_section(subject *s, nmlp_err *err) {
    const nmlp_compress_record *r = &s->record;
    char lead[512];
    snprintf(lead, sizeof lead, "%.300s: thin factors in place of MLP matrices%s.", s->dir,
             strcmp(r->alloc, "adaptive") == 0 ? ", with more rank where held-out text says it matters" : "");
    nmlp_page_section_begin(s->page, "compression", "Compression", lead);
    set_command(s);
    nmlp_page_command(s->page, nmlp_str_text(&s->command));
    nmlp_page_grid_begin(s->page);
    NMLP_RETURN_IF_FAILED(put_ranks(s, err));
    put_sizes(s);
    for (int i = 0; i < NMLP_MLP_MATRICES && r->curve_step; i++) NMLP_RETURN_IF_FAILED(put_curves(s, i, err));
    put_layers(s);
    nmlp_page_grid_end(s->page);
    nmlp_page_section_end(s->page);
    return nmlp_str_status(&s->command, err);
}

nmlp_status nmlp_report_compression(nmlp_page *page, const nmlp_model *model, nmlp_err *err) {
    subject s = {.page = page, .dir = model->checkpoint.dir, .model = model};
    nmlp_status st = NMLP_OK;
    nmlp_arena_init(&s.arena);
    nmlp_str_init(&s.command);
    NMLP_TRY(nmlp_compress_record_load(&s.record, model, err));
    NMLP_TRY(write_section(&s, err));
out:
    nmlp_compress_record_fini(&s.record);
    nmlp_str_fini(&s.command);
    nmlp_arena_fini(&s.arena);
    return st;
}
