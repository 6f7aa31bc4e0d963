/* A table of results that is printed for people, written as CSV, or put into JSON. */
#ifndef NMLP_REPORT_TABLE_H
#define NMLP_REPORT_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json_write.h"
#include "base/str.h"

typedef struct nmlp_column {
    const char *name; /* in CSV and JSON */
    bool csv_only;    /* too much for a line on a screen */
} nmlp_column;

typedef struct nmlp_table_cell nmlp_table_cell;

typedef struct nmlp_table {
    const nmlp_column *columns;
    size_t n_columns;
    nmlp_table_cell *cells; /* row by row */
    size_t n_cells;
    size_t capacity;
    bool failed; /* out of memory: nmlp_table_status */
} nmlp_table;

void nmlp_table_init(nmlp_table *table, const nmlp_column *columns, size_t n_columns);
void nmlp_table_fini(nmlp_table *table);
/* The next cell; a row is full after n_columns of them. Text is copied. */
void nmlp_table_text(nmlp_table *table, const char *text);
/* Shown with `decimals` digits behind the point; in JSON in full. */
void nmlp_table_number(nmlp_table *table, double value, int decimals);
void nmlp_table_none(nmlp_table *table); /* "-", nothing in CSV, null */
nmlp_status nmlp_table_status(const nmlp_table *table, nmlp_err *err);

void nmlp_table_print(const nmlp_table *table, nmlp_str *out);
void nmlp_table_csv(const nmlp_table *table, nmlp_str *out);
/* An array of objects, one per row. */
void nmlp_table_json(const nmlp_table *table, const char *key, nmlp_json_writer *json);

#endif
