/* A package for Trainium, from its manifest: its kernels and what the simulator says about them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/report_sections.h"

enum { BUCKETS_MAX = 8, LAYERS_MAX = 1024, CELL = 64, FORMS_MAX = 1024 };

typedef struct package {
    nmlp_json_doc doc;
    const char *model, *target, *dialect;
    int64_t tp, lnc, n_forms, n_layers, n_buckets;
    int64_t buckets[BUCKETS_MAX];
    double us[FORMS_MAX][BUCKETS_MAX]; /* simulated, of a form */
    char ranks[FORMS_MAX][CELL];
    int64_t of_layer[LAYERS_MAX];
    double bytes; /* of all weight files */
} package;

static nmlp_status wrong(const package *p, const char *what, nmlp_err *err) {
    return nmlp_fail(err, NMLP_E_FORMAT, "%s: \"%s\" is not what a package has", p->doc.origin, what);
}

static nmlp_status read_forms(package *p, nmlp_err *err) {
    for (const nmlp_json *f = nmlp_json_first(nmlp_json_get(p->doc.root, "forms")); f; f = nmlp_json_next(f)) {
        static const char *const matrices[] = {"gate", "up", "down"};
        int64_t rank[3];
        if (p->n_forms == FORMS_MAX) return wrong(p, "forms", err);
        for (int i = 0; i < 3; i++)
            NMLP_RETURN_IF_FAILED(nmlp_json_need_int(&p->doc, f, matrices[i], 0, 1 << 24, &rank[i], err));
        snprintf(p->ranks[p->n_forms], CELL, "%lld, %lld, %lld%s", (long long)rank[0], (long long)rank[1],
                 (long long)rank[2], nmlp_json_bool(nmlp_json_get(f, "shared")) ? ", shared" : "");
        if (rank[0] + rank[1] + rank[2] == 0) snprintf(p->ranks[p->n_forms], CELL, "dense");
        p->n_forms++;
    }
    return p->n_forms ? NMLP_OK : wrong(p, "forms", err);
}

static nmlp_status read_kernels(package *p, nmlp_err *err) {
    for (const nmlp_json *k = nmlp_json_first(nmlp_json_get(p->doc.root, "kernels")); k; k = nmlp_json_next(k)) {
        int64_t form, rows, b = 0;
        double us;
        NMLP_RETURN_IF_FAILED(nmlp_json_need_int(&p->doc, k, "form", 0, p->n_forms - 1, &form, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_need_int(&p->doc, k, "rows", 1, 1 << 24, &rows, err));
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(&p->doc, k, "simulated_us", &us, err));
        while (b < p->n_buckets && p->buckets[b] != rows) b++;
        if (b == p->n_buckets) return wrong(p, "rows", err);
        p->us[form][b] = us;
    }
    return NMLP_OK;
}

static nmlp_status read_lists(package *p, nmlp_err *err) {
    for (const nmlp_json *b = nmlp_json_first(nmlp_json_get(p->doc.root, "buckets")); b; b = nmlp_json_next(b)) {
        if (p->n_buckets == BUCKETS_MAX || !nmlp_json_int_in(b, 1, 1 << 24, &p->buckets[p->n_buckets]))
            return wrong(p, "buckets", err);
        p->n_buckets++;
    }
    for (const nmlp_json *l = nmlp_json_first(nmlp_json_get(p->doc.root, "layers")); l; l = nmlp_json_next(l)) {
        if (p->n_layers == LAYERS_MAX || !nmlp_json_int_in(l, 0, p->n_forms - 1, &p->of_layer[p->n_layers]))
            return wrong(p, "layers", err);
        p->n_layers++;
    }
    for (const nmlp_json *w = nmlp_json_first(nmlp_json_get(p->doc.root, "weights")); w; w = nmlp_json_next(w)) {
        double bytes;
        NMLP_RETURN_IF_FAILED(nmlp_json_need_number(&p->doc, w, "bytes", &bytes, err));
        p->bytes += bytes;
    }
    return p->n_buckets && p->n_layers ? NMLP_OK : wrong(p, "layers", err);
}

static nmlp_status read_manifest(package *p, const char *dir, nmlp_err *err) {
    char path[4096];
    const char *format;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "manifest.json", err));
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&p->doc, path, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(&p->doc, p->doc.root, "format", &format, err));
    if (strcmp(format, "neuronmlp-trainium-package") != 0) return wrong(p, "format", err);
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(&p->doc, p->doc.root, "model", &p->model, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(&p->doc, p->doc.root, "target", &p->target, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_string(&p->doc, p->doc.root, "dialect", &p->dialect, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(&p->doc, p->doc.root, "tp", 1, 4096, &p->tp, err));
    NMLP_RETURN_IF_FAILED(nmlp_json_need_int(&p->doc, p->doc.root, "lnc", 1, 16, &p->lnc, err));
    NMLP_RETURN_IF_FAILED(read_forms(p, err));
    NMLP_RETURN_IF_FAILED(read_lists(p, err));
    return read_kernels(p, err);
}

static nmlp_status put_chart(nmlp_page *page, const package *p, nmlp_err *err) {
    size_t n = (size_t)p->n_layers, n_buckets = (size_t)p->n_buckets;
    double *us = nmlp_mem_new(n * n_buckets, sizeof *us, err);
    char(*labels)[CELL] = nmlp_mem_new(n, sizeof *labels, err);
    const char **layers = nmlp_mem_new(n, sizeof *layers, err);
    nmlp_plot_series series[BUCKETS_MAX];
    char names[BUCKETS_MAX][CELL];
    nmlp_status st = us && labels && layers ? NMLP_OK : NMLP_E_NOMEM;
    NMLP_TRY(st);
    for (size_t l = 0; l < n; l++) {
        snprintf(labels[l], CELL, "%zu", l);
        layers[l] = labels[l];
    }
    for (size_t b = 0; b < n_buckets; b++) {
        for (size_t l = 0; l < n; l++) us[b * n + l] = p->us[p->of_layer[l]][b];
        snprintf(names[b], CELL, "%lld row%s", (long long)p->buckets[b], p->buckets[b] == 1 ? "" : "s");
        series[b] = (nmlp_plot_series){.name = names[b],
                                       .mark = NMLP_MARK_LINE,
                                       .colour = (nmlp_colour)(b % NMLP_N_COLOURS),
                                       .y = us + b * n,
                                       .n = n,
                                       .in_legend = true};
    }
    nmlp_plot plot = {.title = "MLP of each layer (simulated)",
                      .about = "Time of the kernel of each layer, one line for each number of rows; lower is better.",
                      .x = {.label = "layer", .categories = layers, .n = n},
                      .y = {.label = "microseconds", .kind = NMLP_SCALE_LOG},
                      .series = series,
                      .n_series = n_buckets};
    nmlp_page_chart(page, &plot, NULL);
out:
    nmlp_mem_free(us);
    nmlp_mem_free(labels);
    nmlp_mem_free(layers);
    return st;
}

static void put_table(nmlp_page *page, const package *p) {
    const char *heads[BUCKETS_MAX + 2] = {"ranks (gate, up, down)", "layers"};
    char names[BUCKETS_MAX][CELL], cell[BUCKETS_MAX + 1][CELL];
    const char *cells[BUCKETS_MAX + 2];
    size_t n = (size_t)p->n_buckets + 2;
    for (int64_t b = 0; b < p->n_buckets; b++) {
        snprintf(names[b], CELL, "µs, %lld row%s", (long long)p->buckets[b], p->buckets[b] == 1 ? "" : "s");
        heads[b + 2] = names[b];
    }
    nmlp_page_panel_begin(page);
    nmlp_page_table_begin(page, "Every form of an MLP and its kernels, simulated; the last row: all layers", heads, n);
    for (int64_t f = 0; f <= p->n_forms; f++) {
        bool all = f == p->n_forms;
        double us[BUCKETS_MAX] = {0};
        int64_t layers = 0;
        for (int64_t l = 0; l < p->n_layers; l++) {
            if (!all && p->of_layer[l] != f) continue;
            layers++;
            for (int64_t b = 0; b < p->n_buckets; b++) us[b] += p->us[p->of_layer[l]][b];
        }
        cells[0] = all ? "all layers" : p->ranks[f];
        snprintf(cell[0], CELL, "%lld", (long long)layers);
        cells[1] = cell[0];
        for (int64_t b = 0; b < p->n_buckets; b++) {
            snprintf(cell[b + 1], CELL, "%.2f", all ? us[b] : p->us[f][b]);
            cells[b + 2] = cell[b + 1];
        }
        nmlp_page_table_row(page, cells, n, 1);
    }
    nmlp_page_table_end(page);
    nmlp_page_panel_end(page);
}

static nmlp_status write_section(nmlp_page *page, const package *p, const char *dir, nmlp_err *err) {
    char lead[700], bytes[32], value[CELL], label[128];
    nmlp_cli_bytes_text(bytes, p->bytes);
    snprintf(
        lead, sizeof lead,
        "%.200s: %.100s for %.40s, tensor parallel %lld, %lld core%s a rank, %lld kernels in the dialect %.20s, %s "
        "of weights. Times are simulated, not measured; check_device.py and bench_device.py in it run on a real one.",
        dir, p->model, p->target, (long long)p->tp, (long long)p->lnc, p->lnc == 1 ? "" : "s",
        (long long)(p->n_forms * p->n_buckets), p->dialect, bytes);
    nmlp_page_section_begin(page, "package", "Package for Trainium", lead);
    nmlp_page_grid_begin(page);
    NMLP_RETURN_IF_FAILED(put_chart(page, p, err));
    put_table(page, p);
    nmlp_page_grid_end(page);
    nmlp_page_section_end(page);
    double us = 0;
    for (int64_t l = 0; l < p->n_layers; l++) us += p->us[p->of_layer[l]][0];
    snprintf(value, sizeof value, "%.4g µs", us);
    snprintf(label, sizeof label, "all MLPs of the package on %.40s, %lld row%s (simulated)", p->target,
             (long long)p->buckets[0], p->buckets[0] == 1 ? "" : "s");
    nmlp_page_card(page, value, label, "package");
    return NMLP_OK;
}

nmlp_status nmlp_report_package(nmlp_page *page, const char *dir, nmlp_err *err) {
    package *p = nmlp_mem_new(1, sizeof *p, err);
    if (!p) return NMLP_E_NOMEM;
    for (int f = 0; f < FORMS_MAX; f++)
        for (int b = 0; b < BUCKETS_MAX; b++) p->us[f][b] = NAN;
    nmlp_status st = read_manifest(p, dir, err);
    if (st == NMLP_OK) st = write_section(page, p, dir, err);
    nmlp_json_free(&p->doc);
    nmlp_mem_free(p);
    return st;
}
