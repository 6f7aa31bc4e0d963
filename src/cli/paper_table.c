#include "cli/paper_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const origin_names[] = {"measured", "simulated", "published", "not possible here"};

int nmlp_paper_n_columns(const nmlp_paper_table *t) {
    int n = 0;
    while (n < NMLP_PAPER_COLUMNS_MAX && t->columns[n]) n++;
    return n;
}

nmlp_paper_row *nmlp_paper_add_row(nmlp_paper_table *t, const char *label) {
    nmlp_paper_row *row = &t->rows[t->n_rows < NMLP_PAPER_ROWS_MAX ? t->n_rows++ : NMLP_PAPER_ROWS_MAX - 1];
    snprintf(row->label, sizeof row->label, "%s", label);
    for (int c = 0; c < NMLP_PAPER_COLUMNS_MAX; c++) row->cells[c] = (nmlp_paper_cell){NMLP_CELL_IMPOSSIBLE, NAN};
    return row;
}

nmlp_paper_cell nmlp_paper_simulated(double value) { return (nmlp_paper_cell){NMLP_CELL_SIMULATED, value}; }

nmlp_paper_cell nmlp_paper_published_cell(double value) {
    return (nmlp_paper_cell){isnan(value) ? NMLP_CELL_IMPOSSIBLE : NMLP_CELL_PUBLISHED, value};
}

static int column_width(const nmlp_paper_table *t, int column) {
    int head = (int)strlen(t->columns[column]) + 2;
    return head < 11 ? 11 : head;
}

void nmlp_paper_print(const nmlp_paper_table *t) {
    static const char letters[] = "msp-";
    int n = nmlp_paper_n_columns(t), widest = (int)strlen(t->rows_are);
    for (int r = 0; r < t->n_rows; r++)
        if ((int)strlen(t->rows[r].label) > widest) widest = (int)strlen(t->rows[r].label);
    printf("\n%s\n  %s\n\n  %-*s", t->title, t->lead, widest, t->rows_are);
    for (int c = 0; c < n; c++) printf(" %*s", column_width(t, c), t->columns[c]);
    printf("\n");
    for (int r = 0; r < t->n_rows; r++) {
        printf("  %-*s", widest, t->rows[r].label);
        for (int c = 0; c < n; c++) {
            const nmlp_paper_cell *cell = &t->rows[r].cells[c];
            int width = column_width(t, c);
            if (cell->origin == NMLP_CELL_IMPOSSIBLE)
                printf(" %*s", width, "-");
            else
                printf(" %*.*f %c", width - 2, t->decimals, cell->value, letters[cell->origin]);
        }
        printf("\n");
    }
}

void nmlp_paper_put_json(const nmlp_paper_table *t, nmlp_json_writer *w) {
    int n = nmlp_paper_n_columns(t);
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "id", t->id);
    nmlp_json_put_string(w, "title", t->title);
    nmlp_json_put_string(w, "words", t->lead);
    nmlp_json_put_string(w, "rows_are", t->rows_are);
    nmlp_json_put_string(w, "unit", t->unit);
    nmlp_json_put_int(w, "decimals", t->decimals);
    nmlp_json_put_bool(w, "log", t->log);
    nmlp_json_begin_array(w, "rows");
    for (int r = 0; r < t->n_rows; r++) {
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "label", t->rows[r].label);
        nmlp_json_begin_array(w, "cells");
        for (int c = 0; c < n; c++) {
            const nmlp_paper_cell *cell = &t->rows[r].cells[c];
            nmlp_json_begin_object(w, NULL);
            nmlp_json_put_string(w, "column", t->columns[c]);
            nmlp_json_put_string(w, "origin", origin_names[cell->origin]);
            if (cell->origin != NMLP_CELL_IMPOSSIBLE) nmlp_json_put_number(w, "value", cell->value);
            nmlp_json_end_object(w);
        }
        nmlp_json_end_array(w);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
}

static nmlp_status read_cell(nmlp_paper_table *t, const nmlp_json_doc *doc, const nmlp_json *from, int column,
                             nmlp_paper_cell *cell, nmlp_err *err) {
    const char *name, *origin;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "column", &name, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "origin", &origin, err));
    if (!t->columns[column]) t->columns[column] = name; /* of the first row */
    for (int i = NMLP_CELL_MEASURED; i <= NMLP_CELL_IMPOSSIBLE; i++)
        if (strcmp(origin, origin_names[i]) == 0) cell->origin = (nmlp_cell_origin)i;
    if (cell->origin == NMLP_CELL_IMPOSSIBLE) return NMLP_OK;
    return nmlp_json_need_number(doc, from, "value", &cell->value, err);
}

static nmlp_status read_row(nmlp_paper_table *t, const nmlp_json_doc *doc, const nmlp_json *from, nmlp_err *err) {
    const char *label;
    int column = 0;
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "label", &label, err));
    if (t->n_rows == NMLP_PAPER_ROWS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d rows in a table", doc->origin, NMLP_PAPER_ROWS_MAX);
    nmlp_paper_row *row = nmlp_paper_add_row(t, label);
    for (const nmlp_json *c = nmlp_json_first(nmlp_json_get(from, "cells")); c; c = nmlp_json_next(c), column++) {
        if (column == NMLP_PAPER_COLUMNS_MAX)
            return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d columns in a table", doc->origin,
                             NMLP_PAPER_COLUMNS_MAX);
        NMLP_RETURN_IF_FAILED(read_cell(t, doc, c, column, &row->cells[column], err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_paper_table_read(nmlp_paper_table *t, const nmlp_json_doc *doc, const nmlp_json *from, nmlp_err *err) {
    int64_t decimals = 0;
    *t = (nmlp_paper_table){0};
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "id", &t->id, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "title", &t->title, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "words", &t->lead, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "rows_are", &t->rows_are, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(doc, from, "unit", &t->unit, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(doc, from, "decimals", 0, 9, &decimals, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_optional_bool(doc, from, "log", &t->log, err));
    t->decimals = (int)decimals;
    for (const nmlp_json *r = nmlp_json_first(nmlp_json_get(from, "rows")); r; r = nmlp_json_next(r))
        NMLP_RETURN_IF_FAILED(read_row(t, doc, r, err));
    return NMLP_OK;
}

static void put_table(const nmlp_paper_table *t, nmlp_page *page) {
    int n = nmlp_paper_n_columns(t);
    const char *heads[NMLP_PAPER_COLUMNS_MAX + 1], *cells[NMLP_PAPER_COLUMNS_MAX + 1];
    char text[NMLP_PAPER_COLUMNS_MAX][64];
    heads[0] = t->rows_are;
    for (int c = 0; c < n; c++) heads[c + 1] = t->columns[c];
    nmlp_page_table_begin(page, t->title, heads, (size_t)n + 1);
    for (int r = 0; r < t->n_rows; r++) {
        cells[0] = t->rows[r].label;
        for (int c = 0; c < n; c++) {
            const nmlp_paper_cell *cell = &t->rows[r].cells[c];
            if (cell->origin == NMLP_CELL_IMPOSSIBLE)
                snprintf(text[c], sizeof text[c], "%s", origin_names[cell->origin]);
            else
                snprintf(text[c], sizeof text[c], "%.*f %s", t->decimals, cell->value, origin_names[cell->origin]);
            cells[c + 1] = text[c];
        }
        nmlp_page_table_row(page, cells, (size_t)n + 1, 1);
    }
    nmlp_page_table_end(page);
}

/* Every column over the rows; cells without a number are left out. */
static void put_chart(const nmlp_paper_table *t, nmlp_page *page) {
    nmlp_plot_series series[NMLP_PAPER_COLUMNS_MAX];
    double values[NMLP_PAPER_COLUMNS_MAX][NMLP_PAPER_ROWS_MAX];
    const char *labels[NMLP_PAPER_ROWS_MAX];
    size_t n = (size_t)t->n_rows;
    int n_columns = nmlp_paper_n_columns(t), n_shown = 0;
    for (int r = 0; r < t->n_rows; r++) labels[r] = t->rows[r].label;
    for (int c = 0; c < n_columns; c++) {
        bool some = false;
        for (int r = 0; r < t->n_rows; r++) {
            const nmlp_paper_cell *cell = &t->rows[r].cells[c];
            values[c][r] = cell->origin == NMLP_CELL_IMPOSSIBLE ? NAN : cell->value;
            some = some || isfinite(values[c][r]);
        }
        if (!some) continue;
        series[n_shown] = (nmlp_plot_series){.name = t->columns[c],
                                             .mark = t->log ? NMLP_MARK_LINE : NMLP_MARK_BARS,
                                             .colour = (nmlp_colour)(n_shown % NMLP_N_COLOURS),
                                             .y = values[c],
                                             .n = n,
                                             .in_legend = true};
        n_shown++;
    }
    nmlp_plot plot = {
        .title = t->title,
        .about = t->lead,
        .x = {.label = t->rows_are, .kind = NMLP_SCALE_LINEAR, .categories = labels, .n = n},
        .y = {.label = t->unit, .kind = t->log ? NMLP_SCALE_LOG : NMLP_SCALE_LINEAR, .from_zero = !t->log},
        .series = series,
        .n_series = (size_t)n_shown};
    nmlp_page_chart(page, &plot, NULL);
}

void nmlp_paper_put_section(const nmlp_paper_table *t, nmlp_page *page) {
    nmlp_page_section_begin(page, t->id, t->title, t->lead);
    put_chart(t, page);
    put_table(t, page);
    nmlp_page_section_end(page);
}
