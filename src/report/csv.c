#include "report/csv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { CSV_MAX_BYTES = 4 << 20, COLUMNS_MAX = 64 };

/* The next cell of a line, unquoted in place; *at becomes what follows its comma, NULL at the end of the line. */
static char *next_cell(char **at) {
    char *cell = *at, *from = cell, *to = cell;
    bool quoted = *from == '"';
    if (quoted) from++;
    for (; *from && (quoted || *from != ','); from++) {
        if (quoted && *from == '"') {
            if (from[1] != '"') { /* what follows the closing quote up to the comma is taken as it is */
                quoted = false;
                continue;
            }
            from++;
        }
        *to++ = *from;
    }
    *at = *from ? from + 1 : NULL;
    *to = '\0';
    return cell;
}

static size_t split(char *line, char *cells[COLUMNS_MAX]) {
    size_t n = 0;
    for (char *at = line; at && n < COLUMNS_MAX;) cells[n++] = next_cell(&at);
    return n;
}

static nmlp_status keep_row(nmlp_csv *csv, char *line, int number, size_t n_lines, nmlp_err *err) {
    char *cells[COLUMNS_MAX];
    size_t n = split(line, cells);
    if (!csv->cells) { /* the header */
        csv->n_columns = n;
        csv->cells = nmlp_mem_new(n_lines * n, sizeof *csv->cells, err);
        csv->lines = nmlp_mem_new(n_lines, sizeof *csv->lines, err);
        if (!csv->cells || !csv->lines) return NMLP_E_NOMEM;
    } else {
        csv->n_rows++;
    }
    if (n != csv->n_columns)
        return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: %zu fields; the first line has %zu", csv->path, number, n,
                         csv->n_columns);
    memcpy(csv->cells + csv->n_rows * n, cells, n * sizeof *cells);
    csv->lines[csv->n_rows] = number;
    return NMLP_OK;
}

nmlp_status nmlp_csv_read(nmlp_csv *csv, const char *path, nmlp_err *err) {
    size_t n_lines = 1;
    int number = 0;
    *csv = (nmlp_csv){.path = path, .note = ""};
    nmlp_str_init(&csv->text);
    NMLP_RETURN_IF_FAILED(nmlp_file_read(&csv->text, path, CSV_MAX_BYTES, err));
    if (memchr(nmlp_str_text(&csv->text), '\0', csv->text.len))
        return nmlp_fail(err, NMLP_E_FORMAT, "%s: is no text", path);
    for (size_t i = 0; i < csv->text.len; i++) n_lines += csv->text.data[i] == '\n';
    for (char *line = csv->text.data; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) *end = '\0';
        line[strcspn(line, "\r")] = '\0';
        number++;
        if (line[0] == '#')
            csv->note = line + 1 + strspn(line + 1, " ");
        else if (line[0])
            NMLP_RETURN_IF_FAILED(keep_row(csv, line, number, n_lines, err));
        line = end ? end + 1 : NULL;
    }
    return csv->cells ? NMLP_OK : nmlp_fail(err, NMLP_E_FORMAT, "%s: holds no results", path);
}

void nmlp_csv_fini(nmlp_csv *csv) {
    nmlp_str_fini(&csv->text);
    nmlp_mem_free(csv->cells);
    nmlp_mem_free(csv->lines);
    *csv = (nmlp_csv){0};
}

int nmlp_csv_find(const nmlp_csv *csv, const char *name) {
    for (size_t i = 0; i < csv->n_columns; i++)
        if (strcmp(csv->cells[i], name) == 0) return (int)i;
    return -1;
}

nmlp_status nmlp_csv_need(const nmlp_csv *csv, const char *const *names, int n, int *columns, nmlp_err *err) {
    for (int i = 0; i < n; i++) {
        columns[i] = nmlp_csv_find(csv, names[i]);
        if (columns[i] < 0) return nmlp_fail(err, NMLP_E_FORMAT, "%s: no column \"%s\"", csv->path, names[i]);
    }
    return NMLP_OK;
}

const char *nmlp_csv_text(const nmlp_csv *csv, size_t row, int column) {
    return csv->cells[(row + 1) * csv->n_columns + (size_t)column];
}

nmlp_status nmlp_csv_number(const nmlp_csv *csv, size_t row, int column, double *value, nmlp_err *err) {
    const char *text = nmlp_csv_text(csv, row, column);
    char *end;
    *value = strtod(text, &end);
    if (end != text && *end == '\0' && isfinite(*value)) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: %s is \"%.40s\", not a number", csv->path, csv->lines[row + 1],
                     csv->cells[column], text);
}
