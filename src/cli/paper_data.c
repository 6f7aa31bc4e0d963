/* Looks figures up in the two tables. */
#include "cli/paper_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/paper_table.h"

enum { FIELDS_MAX = 16, LINE_MAX_BYTES = 512 };

/* Cuts the line at *at into fields and moves on; their number, 0 past the end. Comments are skipped. */
static int next_line(const char **at, char line[LINE_MAX_BYTES], char *fields[FIELDS_MAX]) {
    while (**at) {
        size_t len = strcspn(*at, "\n");
        const char *from = *at;
        *at += len + ((*at)[len] == '\n');
        if (len == 0 || len >= LINE_MAX_BYTES || from[0] == '#') continue;
        memcpy(line, from, len);
        line[len] = '\0';
        int n = 0;
        for (char *field = line; field && n < FIELDS_MAX;) {
            fields[n++] = field;
            field = strchr(field, ',');
            if (field) *field++ = '\0';
        }
        return n;
    }
    return 0;
}

double nmlp_paper_published(const char *kernel, int64_t rows, const char *unit, const char *tiling) {
    enum { KERNEL = 2, TILING = 4, ROWS = 5, UNIT = 9, VALUE = 10 };
    char line[LINE_MAX_BYTES], *f[FIELDS_MAX];
    const char *at = nmlp_paper_published_csv;
    for (int n; (n = next_line(&at, line, f)) > 0;)
        if (n > VALUE && strcmp(f[KERNEL], kernel) == 0 && strcmp(f[UNIT], unit) == 0 && atoll(f[ROWS]) == rows &&
            strcmp(f[TILING], tiling) == 0)
            return atof(f[VALUE]);
    return NAN;
}

/* In a table of model, method, ratio, name, value. */
static double measured(const char *at, const char *model, const char *method, double ratio, const char *text) {
    enum { MODEL, METHOD, RATIO, TEXT, VALUE };
    char line[LINE_MAX_BYTES], *f[FIELDS_MAX];
    for (int n; (n = next_line(&at, line, f)) > 0;)
        if (n > VALUE && strcmp(f[MODEL], model) == 0 && strcmp(f[METHOD], method) == 0 &&
            fabs(atof(f[RATIO]) - ratio) < 1e-9 && strcmp(f[TEXT], text) == 0)
            return atof(f[VALUE]);
    return NAN;
}

double nmlp_paper_perplexity(const char *model, const char *method, double ratio, const char *text) {
    return measured(nmlp_paper_perplexity_csv, model, method, ratio, text);
}

double nmlp_paper_accuracy(const char *model, const char *method, double ratio, const char *task) {
    return measured(nmlp_paper_accuracy_csv, model, method, ratio, task);
}
