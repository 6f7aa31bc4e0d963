#include "report/table.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { NUMBER_MAX = 32, WIDTH_MAX = 64, COLUMNS_MAX = 32 };

struct nmlp_table_cell {
    char *text; /* NULL: a number */
    double value;
    int decimals;
    bool none;
};

void nmlp_table_init(nmlp_table *table, const nmlp_column *columns, size_t n_columns) {
    *table = (nmlp_table){.columns = columns, .n_columns = n_columns < COLUMNS_MAX ? n_columns : COLUMNS_MAX};
}

void nmlp_table_fini(nmlp_table *table) {
    for (size_t i = 0; i < table->n_cells; i++) nmlp_mem_free(table->cells[i].text);
    nmlp_mem_free(table->cells);
    *table = (nmlp_table){0};
}

static void add(nmlp_table *table, nmlp_table_cell cell) {
    if (nmlp_mem_grow((void **)&table->cells, &table->capacity, table->n_cells + 1, sizeof cell, NULL) != NMLP_OK) {
        nmlp_mem_free(cell.text);
        table->failed = true;
        return;
    }
    table->cells[table->n_cells++] = cell;
}

void nmlp_table_text(nmlp_table *table, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = nmlp_mem_new(bytes, 1, NULL);
    if (!copy) {
        table->failed = true;
        return;
    }
    memcpy(copy, text, bytes);
    add(table, (nmlp_table_cell){.text = copy});
}

void nmlp_table_number(nmlp_table *table, double value, int decimals) {
    add(table, (nmlp_table_cell){.value = value, .decimals = decimals});
}

void nmlp_table_none(nmlp_table *table) { add(table, (nmlp_table_cell){.none = true}); }

nmlp_status nmlp_table_status(const nmlp_table *table, nmlp_err *err) {
    return table->failed ? nmlp_fail(err, NMLP_E_NOMEM, "out of memory for a table of results") : NMLP_OK;
}

static size_t rows_of(const nmlp_table *table) { return table->n_columns ? table->n_cells / table->n_columns : 0; }

/* The cell as text; numbers go through `number`. */
static const char *shown(const nmlp_table_cell *cell, char number[NUMBER_MAX], const char *none) {
    if (cell->none) return none;
    if (cell->text) return cell->text;
    snprintf(number, NUMBER_MAX, "%.*f", cell->decimals, cell->value);
    return number;
}

static int width_of(const nmlp_table *table, size_t column) {
    char number[NUMBER_MAX];
    size_t width = strlen(table->columns[column].name);
    for (size_t row = 0; row < rows_of(table); row++) {
        size_t n = strlen(shown(&table->cells[row * table->n_columns + column], number, "-"));
        if (n > width) width = n;
    }
    return width < WIDTH_MAX ? (int)width : WIDTH_MAX;
}

void nmlp_table_print(const nmlp_table *table, nmlp_str *out) {
    char number[NUMBER_MAX];
    int width[COLUMNS_MAX];
    for (size_t c = 0; c < table->n_columns; c++) width[c] = width_of(table, c);
    for (size_t row = 0; row <= rows_of(table); row++) {
        for (size_t c = 0; c < table->n_columns; c++) {
            if (table->columns[c].csv_only) continue;
            const nmlp_table_cell *cell = row ? &table->cells[(row - 1) * table->n_columns + c] : NULL;
            const char *text = cell ? shown(cell, number, "-") : table->columns[c].name;
            bool left = cell ? cell->text != NULL : rows_of(table) && table->cells[c].text;
            nmlp_str_printf(out, left ? "%-*s  " : "%*s  ", width[c], text);
        }
        nmlp_str_puts(out, "\n");
    }
}

/* Quoted where a comma would break the line. */
static void put_csv(nmlp_str *out, const char *text) {
    bool quote = strpbrk(text, ",\"\n") != NULL;
    if (quote) nmlp_str_putc(out, '"');
    for (; *text; text++) {
        if (*text == '"') nmlp_str_putc(out, '"');
        nmlp_str_putc(out, *text);
    }
    if (quote) nmlp_str_putc(out, '"');
}

void nmlp_table_csv(const nmlp_table *table, nmlp_str *out) {
    char number[NUMBER_MAX];
    for (size_t row = 0; row <= rows_of(table); row++)
        for (size_t c = 0; c < table->n_columns; c++) {
            const nmlp_table_cell *cell = row ? &table->cells[(row - 1) * table->n_columns + c] : NULL;
            put_csv(out, cell ? shown(cell, number, "") : table->columns[c].name);
            nmlp_str_putc(out, c + 1 < table->n_columns ? ',' : '\n');
        }
}

void nmlp_table_json(const nmlp_table *table, const char *key, nmlp_json_writer *json) {
    nmlp_json_begin_array(json, key);
    for (size_t row = 0; row < rows_of(table); row++) {
        nmlp_json_begin_object(json, NULL);
        for (size_t c = 0; c < table->n_columns; c++) {
            const nmlp_table_cell *cell = &table->cells[row * table->n_columns + c];
            const char *name = table->columns[c].name;
            if (cell->none)
                nmlp_json_put_null(json, name);
            else if (cell->text)
                nmlp_json_put_string(json, name, cell->text);
            else
                nmlp_json_put_number(json, name, cell->value);
        }
        nmlp_json_end_object(json);
    }
    nmlp_json_end_array(json);
}
