/* Whole models, from the CSV of their benchmark: tokens per second over sequences that decode together, and of prompts.
 * Both forms of it are read: a row for each phase, or a row for each number of requests. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/report_sections.h"

enum { MODELS_MAX = 8, SIZES_MAX = 12, TEXT = 64 };

/* Rates of all models by number of sequences, or by tokens of the prompt. */
typedef struct rates {
    long long sizes[SIZES_MAX];
    size_t n_sizes;
    double median[MODELS_MAX][SIZES_MAX], low[MODELS_MAX][SIZES_MAX], high[MODELS_MAX][SIZES_MAX];
} rates;

typedef struct results {
    char models[MODELS_MAX][TEXT];
    size_t n_models;
    rates decode, prefill;
} results;

bool nmlp_report_is_throughput(const nmlp_csv *csv) {
    return nmlp_csv_find(csv, "model") >= 0 &&
           (nmlp_csv_find(csv, "phase") >= 0 || nmlp_csv_find(csv, "decode_tok_s") >= 0);
}

static nmlp_status model_index(results *r, const nmlp_csv *csv, const char *dir, size_t *index, nmlp_err *err) {
    const char *slash = strrchr(dir, '/'), *name = slash && slash[1] ? slash + 1 : dir;
    char text[TEXT];
    snprintf(text, sizeof text, "%s", name);
    for (*index = 0; *index < r->n_models; ++*index)
        if (strcmp(r->models[*index], text) == 0) return NMLP_OK;
    if (r->n_models == MODELS_MAX)
        return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d models", csv->path, MODELS_MAX);
    snprintf(r->models[r->n_models++], TEXT, "%s", text);
    return NMLP_OK;
}

static nmlp_status size_index(rates *r, const nmlp_csv *csv, long long size, size_t *index, nmlp_err *err) {
    for (*index = 0; *index < r->n_sizes; ++*index)
        if (r->sizes[*index] == size) return NMLP_OK;
    if (r->n_sizes == SIZES_MAX) return nmlp_fail(err, NMLP_E_LIMIT, "%s: more than %d sizes", csv->path, SIZES_MAX);
    r->sizes[r->n_sizes++] = size;
    return NMLP_OK;
}

/* Columns of a rate: its median and both ends. */
static nmlp_status add_rate(results *r, rates *to, const nmlp_csv *csv, size_t row, long long size,
                            const int columns[3], nmlp_err *err) {
    double value[3];
    size_t m, s;
    NMLP_RETURN_IF_FAILED(model_index(r, csv, nmlp_csv_text(csv, row, nmlp_csv_find(csv, "model")), &m, err));
    NMLP_RETURN_IF_FAILED(size_index(to, csv, size, &s, err));
    for (int i = 0; i < 3; i++) NMLP_RETURN_IF_FAILED(nmlp_csv_number(csv, row, columns[i], &value[i], err));
    to->median[m][s] = value[0];
    to->low[m][s] = value[1];
    to->high[m][s] = value[2];
    return NMLP_OK;
}

/* "prefill 512", "decode", "decode x8" */
static nmlp_status read_phases(results *r, const nmlp_csv *csv, nmlp_err *err) {
    static const char *const names[] = {"tok_s", "tok_s_p10", "tok_s_p90"};
    int columns[3], phase = nmlp_csv_find(csv, "phase");
    NMLP_RETURN_IF_FAILED(nmlp_csv_need(csv, names, 3, columns, err));
    for (size_t row = 0; row < csv->n_rows; row++) {
        const char *text = nmlp_csv_text(csv, row, phase);
        bool prompt = strncmp(text, "prefill ", 8) == 0, batch = strncmp(text, "decode x", 8) == 0;
        long long size = prompt || batch ? strtoll(text + 8, NULL, 10) : 1;
        if ((!prompt && !batch && strcmp(text, "decode") != 0) || size < 1)
            return nmlp_fail(err, NMLP_E_FORMAT, "%s:%d: phase is \"%.40s\", neither prefill nor decode", csv->path,
                             csv->lines[row + 1], text);
        NMLP_RETURN_IF_FAILED(add_rate(r, prompt ? &r->prefill : &r->decode, csv, row, size, columns, err));
    }
    return NMLP_OK;
}

static nmlp_status read_requests(results *r, const nmlp_csv *csv, nmlp_err *err) {
    static const char *const names[] = {"decode_tok_s",
                                        "decode_tok_s_p10",
                                        "decode_tok_s_p90",
                                        "prefill_tok_s",
                                        "prefill_tok_s_p10",
                                        "prefill_tok_s_p90",
                                        "batch",
                                        "prompt"};
    int columns[8];
    NMLP_RETURN_IF_FAILED(nmlp_csv_need(csv, names, 8, columns, err));
    for (size_t row = 0; row < csv->n_rows; row++) {
        double batch, prompt;
        NMLP_RETURN_IF_FAILED(nmlp_csv_number(csv, row, columns[6], &batch, err));
        NMLP_RETURN_IF_FAILED(nmlp_csv_number(csv, row, columns[7], &prompt, err));
        NMLP_RETURN_IF_FAILED(add_rate(r, &r->decode, csv, row, llround(fmin(batch, 1e9)), columns, err));
        if (batch == 1) /* prompts one by one */
            NMLP_RETURN_IF_FAILED(add_rate(r, &r->prefill, csv, row, llround(fmin(prompt, 1e9)), columns + 3, err));
    }
    return NMLP_OK;
}

static void put_chart(nmlp_page *page, const results *r, const rates *from, bool decode) {
    nmlp_plot_series series[MODELS_MAX];
    char names[SIZES_MAX][TEXT];
    const char *labels[SIZES_MAX];
    if (from->n_sizes == 0) return;
    for (size_t s = 0; s < from->n_sizes; s++) {
        snprintf(names[s], TEXT, "%lld", from->sizes[s]);
        labels[s] = names[s];
    }
    for (size_t m = 0; m < r->n_models; m++)
        series[m] = (nmlp_plot_series){.name = r->models[m],
                                       .mark = NMLP_MARK_BARS,
                                       .colour = (nmlp_colour)(m % NMLP_N_COLOURS),
                                       .y = from->median[m],
                                       .low = from->low[m],
                                       .high = from->high[m],
                                       .n = from->n_sizes,
                                       .in_legend = true};
    nmlp_plot plot = {.title = decode ? "Generated tokens per second of all sequences together"
                                      : "Tokens of a prompt read per second",
                      .about = "Bars of the median rate of each model, whiskers from the 10th to the 90th percentile; "
                               "higher is better.",
                      .x = {.label = decode ? "sequences that decode together" : "tokens of the prompt",
                            .categories = labels,
                            .n = from->n_sizes},
                      .y = {.label = "tokens/s, higher is better", .from_zero = true},
                      .series = series,
                      .n_series = r->n_models};
    nmlp_page_chart(page, &plot, NULL);
}

static void put_card(nmlp_page *page, const results *r) {
    const rates *d = &r->decode;
    size_t model = 0, size = 0;
    double most = 0;
    char value[48], label[200];
    for (size_t m = 0; m < r->n_models; m++)
        for (size_t s = 0; s < d->n_sizes; s++) {
            if (!(d->median[m][s] > most)) continue;
            most = d->median[m][s];
            model = m;
            size = s;
        }
    if (!(most > 0)) return;
    snprintf(value, sizeof value, "%.4g tok/s", most);
    snprintf(label, sizeof label, "generated by %s with %lld sequence%s together", r->models[model], d->sizes[size],
             d->sizes[size] == 1 ? "" : "s");
    nmlp_page_card(page, value, label, "throughput");
}

nmlp_status nmlp_report_throughput(nmlp_page *page, const nmlp_csv *csv, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    results *r = nmlp_mem_new(1, sizeof *r, err);
    if (!r) return NMLP_E_NOMEM;
    for (int m = 0; m < MODELS_MAX; m++)
        for (int s = 0; s < SIZES_MAX; s++)
            r->decode.median[m][s] = r->decode.low[m][s] = r->decode.high[m][s] = r->prefill.median[m][s] =
                r->prefill.low[m][s] = r->prefill.high[m][s] = NAN;
    NMLP_TRY(nmlp_csv_find(csv, "phase") >= 0 ? read_phases(r, csv, err) : read_requests(r, csv, err));
    if (r->n_models == 0) NMLP_TRY(nmlp_fail(err, NMLP_E_FORMAT, "%s: holds no results", csv->path));
    nmlp_page_section_begin(page, "throughput", "Batch throughput",
                            "Measured: whole models, medians; whiskers span the 10th to the 90th percentile.");
    nmlp_page_grid_begin(page);
    put_chart(page, r, &r->decode, true);
    put_chart(page, r, &r->prefill, false);
    nmlp_page_grid_end(page);
    if (csv->note[0]) nmlp_page_command(page, csv->note);
    nmlp_page_section_end(page);
    put_card(page, r);
out:
    nmlp_mem_free(r);
    return st;
}
