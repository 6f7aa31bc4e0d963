/* A table read from a CSV file: a header line with the names of columns, then rows. Cells may be quoted, as table.h
 * writes them; empty lines are skipped; a line "# words" says how the table was made. */
#ifndef NMLP_REPORT_CSV_H
#define NMLP_REPORT_CSV_H

#include <stddef.h>

#include "base/str.h"

typedef struct nmlp_csv {
    const char *path; /* borrowed */
    nmlp_str text;    /* what cells point into */
    const char *note; /* words of the last "#" line; "" where there is none */
    char **cells;     /* [n_rows + 1, n_columns], the header first */
    int *lines;       /* [n_rows + 1] numbers of lines in the file */
    size_t n_columns, n_rows;
} nmlp_csv;

/* A file without a header is refused, and rows of another length than the header. Release with nmlp_csv_fini whatever
 * the result. */
nmlp_status nmlp_csv_read(nmlp_csv *csv, const char *path, nmlp_err *err);
void nmlp_csv_fini(nmlp_csv *csv);

/* Where a column is; -1: absent. */
int nmlp_csv_find(const nmlp_csv *csv, const char *name);
/* Where columns are; fails naming the first that is absent. */
nmlp_status nmlp_csv_need(const nmlp_csv *csv, const char *const *names, int n, int *columns, nmlp_err *err);
const char *nmlp_csv_text(const nmlp_csv *csv, size_t row, int column);
/* A finite number; the error names line and column. */
nmlp_status nmlp_csv_number(const nmlp_csv *csv, size_t row, int column, double *value, nmlp_err *err);

#endif
