/* A suite's results for people and for programs. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "eval/suite.h"

enum { CELL_BYTES = 64 };

enum metric { PPL, ACC, ACC_NORM, ACC_STDERR, ACC_NORM_STDERR, N_METRICS };
static const char *const metric_names[] = {"ppl", "acc", "acc_norm", "acc_stderr", "acc_norm_stderr"};

static double value_of(const nmlp_eval_cell *c, enum metric m) {
    const double values[] = {c->ppl, c->acc, c->acc_norm, c->acc_stderr, c->acc_norm_stderr};
    return c->present ? values[m] : NAN;
}

enum number { PLAIN, THREE_DIGITS, TWO_DIGITS };

static void number(char out[CELL_BYTES], double value, enum number kind) {
    if (isnan(value)) {
        snprintf(out, CELL_BYTES, "%s", kind == PLAIN ? "" : "-");
    } else if (kind == PLAIN) {
        snprintf(out, CELL_BYTES, "%.9g", value);
    } else {
        snprintf(out, CELL_BYTES, "%.*f", kind == THREE_DIGITS ? 3 : 2, value);
    }
}

static void cell_text(char out[CELL_BYTES], const nmlp_eval_cell *c, enum metric m, nmlp_table_format format) {
    double value = value_of(c, m);
    double spread = m == ACC ? c->acc_stderr : c->acc_norm_stderr;
    if (format == NMLP_TABLE_CSV) {
        number(out, value, PLAIN);
    } else if (m == PPL) {
        number(out, value, THREE_DIGITS);
    } else if (isnan(value) || isnan(spread)) {
        number(out, 100 * value, TWO_DIGITS);
    } else {
        snprintf(out, CELL_BYTES, "%.2f ± %.2f", 100 * value, 100 * spread);
    }
}

/* Characters, not bytes: "±" is one. */
static int width_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void put_padded(nmlp_str *out, const char *text, int width) {
    nmlp_str_puts(out, text);
    for (int i = width_of(text); i < width; i++) nmlp_str_putc(out, ' ');
}

/* RFC 4180: a field with a separator or quote in it is quoted. */
static void put_csv(nmlp_str *out, const char *text) {
    if (!strpbrk(text, ",\"\r\n")) {
        nmlp_str_puts(out, text);
        return;
    }
    nmlp_str_putc(out, '"');
    for (; *text; text++) {
        if (*text == '"') nmlp_str_putc(out, '"');
        nmlp_str_putc(out, *text);
    }
    nmlp_str_putc(out, '"');
}

struct table {
    nmlp_str *out;
    nmlp_table_format format;
    const nmlp_suite_row *rows;
    size_t n_rows;
    int width;
};

static void put_line(const struct table *t, const char *name, const char *metric, char (*cells)[CELL_BYTES]) {
    static const int widths[] = {15, 9};
    const char *const heads[] = {name, metric};
    if (t->format == NMLP_TABLE_MARKDOWN) nmlp_str_puts(t->out, "| ");
    for (size_t i = 0; i < 2 + t->n_rows; i++) {
        const char *text = i < 2 ? heads[i] : cells ? cells[i - 2] : t->rows[i - 2].model;
        bool last = i + 1 == 2 + t->n_rows;
        if (t->format == NMLP_TABLE_CSV) {
            put_csv(t->out, text);
            if (!last) nmlp_str_putc(t->out, ',');
        } else if (t->format == NMLP_TABLE_MARKDOWN) {
            nmlp_str_puts(t->out, text);
            nmlp_str_puts(t->out, last ? " |" : " | ");
        } else {
            put_padded(t->out, text, last ? 0 : i < 2 ? widths[i] : t->width);
        }
    }
    nmlp_str_putc(t->out, '\n');
}

static void put_item(const struct table *t, const nmlp_suite *suite, size_t item) {
    char cells[NMLP_SUITE_MODELS_MAX][CELL_BYTES];
    const nmlp_suite_item *it = &suite->items[item];
    int last = t->format == NMLP_TABLE_CSV ? N_METRICS - 1 : ACC_NORM;
    for (int m = it->is_ppl ? PPL : ACC; m <= (it->is_ppl ? PPL : last); m++) {
        for (size_t r = 0; r < t->n_rows; r++) cell_text(cells[r], &t->rows[r].cells[item], (enum metric)m, t->format);
        put_line(t, it->name, metric_names[m], cells);
    }
}

static void put_means(const struct table *t, const nmlp_suite *suite) {
    char cells[NMLP_SUITE_MODELS_MAX][CELL_BYTES];
    for (int norm = 0; norm < 2; norm++) {
        for (size_t r = 0; r < t->n_rows; r++) {
            double mean = nmlp_suite_mean_acc(&t->rows[r], suite, norm);
            bool csv = t->format == NMLP_TABLE_CSV;
            number(cells[r], csv ? mean : 100 * mean, csv ? PLAIN : TWO_DIGITS);
        }
        put_line(t, "mean", metric_names[ACC + norm], cells);
    }
}

static void put_notes(const struct table *t, const nmlp_suite *suite) {
    for (size_t i = 0; i < suite->n_items; i++) {
        if (t->n_rows && t->rows[0].cells[i].note[0])
            nmlp_str_printf(t->out, "%s%s: %s\n", t->format == NMLP_TABLE_MARKDOWN ? "\n" : "", suite->items[i].name,
                            t->rows[0].cells[i].note);
    }
}

void nmlp_suite_table(nmlp_str *out, const nmlp_suite *suite, const nmlp_suite_row *rows, size_t n_rows,
                      nmlp_table_format format) {
    struct table t = {.out = out, .format = format, .rows = rows, .n_rows = n_rows, .width = 16};
    for (size_t r = 0; r < n_rows; r++) {
        if (width_of(rows[r].model) + 2 > t.width) t.width = width_of(rows[r].model) + 2;
    }
    put_line(&t, "data set", "metric", NULL);
    if (format == NMLP_TABLE_MARKDOWN) {
        nmlp_str_puts(out, "|---|---|");
        for (size_t r = 0; r < n_rows; r++) nmlp_str_puts(out, "---|");
        nmlp_str_putc(out, '\n');
    }
    for (size_t i = 0; i < suite->n_items; i++) put_item(&t, suite, i);
    put_means(&t, suite);
    if (format != NMLP_TABLE_CSV) put_notes(&t, suite);
}

void nmlp_suite_put(nmlp_json_writer *w, const nmlp_suite *suite, const nmlp_suite_row *rows, size_t n_rows) {
    nmlp_json_put_string(w, "suite", suite->name);
    nmlp_json_begin_array(w, "models");
    for (size_t r = 0; r < n_rows; r++) {
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "model", rows[r].model);
        nmlp_provenance_put(w, &rows[r].provenance);
        nmlp_json_begin_array(w, "results");
        for (size_t i = 0; i < suite->n_items; i++) {
            const nmlp_eval_cell *c = &rows[r].cells[i];
            nmlp_json_begin_object(w, NULL);
            nmlp_json_put_string(w, "task", suite->items[i].name);
            if (c->present) {
                nmlp_eval_cell_put(w, c);
                nmlp_json_put_bool(w, "resumed", c->resumed);
            } else {
                nmlp_json_put_string(w, "note", c->note);
            }
            nmlp_json_end_object(w);
        }
        nmlp_json_end_array(w);
        nmlp_json_put_number(w, "mean_acc", nmlp_suite_mean_acc(&rows[r], suite, false));
        nmlp_json_put_number(w, "mean_acc_norm", nmlp_suite_mean_acc(&rows[r], suite, true));
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}
