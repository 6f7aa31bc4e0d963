#include "service/form_times.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "base/work_file.h"
#include "kernels/caches.h"
#include "service/mlp_cost.h"

enum { DECODE, PREFILL, COPIES_MAX = 48, ROUNDS = 4 };
static const double cold_bytes = 128e6; /* more than caches hold; no more than the model has */

/* ---- as a cost ---- */

/* A matrix whose groups do not fit is stored in 8 bits. */
static int timed_option(int64_t rows, int64_t cols, int option) {
    option = nmlp_quant_option_runs_as(option);
    nmlp_quant_format format = nmlp_quant_option(option);
    if (option == NMLP_QUANT_OPTION_PLAIN || nmlp_quant_format_fits(&format, rows, cols)) return option;
    return NMLP_QUANT_OPTION_Q8;
}

static double product_us(const nmlp_form_times *t, int pass, int64_t rows, int64_t cols, int option) {
    int stored = timed_option(rows, cols, option);
    for (int64_t i = 0; i < t->n_shapes; i++)
        if (t->shapes[i].rows == rows && t->shapes[i].cols == cols) return t->shapes[i].us[pass][stored];
    return t->line[pass][stored].start_us + t->line[pass][stored].us_per_weight * (double)(rows * cols);
}

static double matrix_us(const void *ctx, int64_t rows, int64_t cols, int64_t rank, int option) {
    const nmlp_form_times *t = ctx;
    double sum = 0;
    for (int pass = 0; pass < NMLP_FORM_PASSES; pass++) {
        if (t->counts[pass] == 0) continue;
        double us;
        if (t->simulated) {
            nmlp_cost mlp = nmlp_cost_time(&t->mlp[pass]);
            us = mlp.matrix(mlp.ctx, rows, cols, rank);
        } else if (rank == 0) {
            us = product_us(t, pass, rows, cols, option);
        } else {
            us = product_us(t, pass, rank, cols, option) + product_us(t, pass, rows, rank, option);
        }
        sum += t->counts[pass] * us;
    }
    return sum;
}

static double head_us(const void *ctx, int option) {
    return ((const nmlp_form_times *)ctx)->head_us[nmlp_quant_option_runs_as(option)];
}

nmlp_mix_cost nmlp_form_times_cost(const nmlp_form_times *times) {
    return (nmlp_mix_cost){.matrix = matrix_us, .head = head_us, .ctx = times};
}

/* ---- this CPU ---- */

static void add_shape(nmlp_form_times *t, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < t->n_shapes; i++)
        if (t->shapes[i].rows == rows && t->shapes[i].cols == cols) return;
    if (t->n_shapes == NMLP_FORM_SHAPES_MAX) return;
    t->shapes[t->n_shapes].rows = rows;
    t->shapes[t->n_shapes++].cols = cols;
}

static void list_shapes(nmlp_form_times *t, const nmlp_model *m) {
    for (int64_t i = 0; i < nmlp_quant_layer_views(&m->config, 0); i++) {
        const nmlp_view *view = nmlp_quant_layer_view(&m->layers[0], i);
        if (view->data) add_shape(t, view->shape[0], view->shape[1]);
    }
}

static nmlp_status time_form(double *us, const nmlp_form_timing *g, const nmlp_kernels *kernels, int64_t rows,
                             int64_t cols, int pass, int option, nmlp_err *err) {
    int stored = timed_option(rows, cols, option);
    nmlp_quant_format format = nmlp_quant_option(stored);
    nmlp_dtype plain = nmlp_factors_dtype(&g->model->layers[0].attention[NMLP_ATTENTION_Q]);
    double bytes = (double)nmlp_quant_option_bytes(plain, rows, cols, stored);
    double room = fmin(cold_bytes, (double)nmlp_model_measure(g->model).bytes);
    int copies = (int)fmin(fmax(1, room / bytes), COPIES_MAX);
    nmlp_cost_product p = {.kernels = kernels,
                           .dtype = stored == NMLP_QUANT_OPTION_PLAIN ? plain : format.dtype,
                           .group = format.group,
                           .zeros = format.zeros,
                           .rows = rows,
                           .cols = cols,
                           .tokens = pass == DECODE ? g->workload.batch : NMLP_WORKLOAD_PROMPT,
                           .copies = pass == DECODE ? copies : 1};
    return nmlp_cost_time_product(us, &p, g->pool, err);
}

/* A straight line through the shapes, least squares in relative errors: small factors matter as large ones do. */
static void fit_line(nmlp_form_times *t, int pass, int option) {
    double s = 0, sx = 0, sxx = 0, sy = 0, sxy = 0;
    for (int64_t i = 0; i < t->n_shapes; i++) {
        double x = (double)(t->shapes[i].rows * t->shapes[i].cols), y = t->shapes[i].us[pass][option];
        double w = y > 0 ? 1 / (y * y) : 0;
        s += w;
        sx += w * x;
        sxx += w * x * x;
        sy += w * y;
        sxy += w * x * y;
    }
    double det = s * sxx - sx * sx, slope = det > 0 ? (s * sxy - sx * sy) / det : 0;
    double start = s > 0 ? (sy - slope * sx) / s : 0;
    if (!(slope > 0) || start < 0) { /* too small to tell apart: all of it is per weight */
        start = 0;
        slope = sxx > 0 ? sxy / sxx : 0;
    }
    t->line[pass][option].start_us = start;
    t->line[pass][option].us_per_weight = slope;
}

static void keep_least(double *least, double us, int round) { *least = round == 0 ? us : fmin(*least, us); }

/* Once through all forms. */
static nmlp_status measure_round(nmlp_form_times *t, const nmlp_form_timing *g, const nmlp_kernels *kernels, int round,
                                 nmlp_err *err) {
    const nmlp_config *c = &g->model->config;
    double us;
    for (int option = 0; option < NMLP_QUANT_OPTIONS; option++) {
        if (nmlp_quant_option_runs_as(option) != option) continue;
        for (int pass = 0; pass < NMLP_FORM_PASSES; pass++) {
            for (int64_t i = 0; i < t->n_shapes && t->counts[pass] > 0; i++) {
                NMLP_RETURN_IF_FAILED(
                    time_form(&us, g, kernels, t->shapes[i].rows, t->shapes[i].cols, pass, option, err));
                keep_least(&t->shapes[i].us[pass][option], us, round);
            }
        }
        NMLP_RETURN_IF_FAILED(time_form(&us, g, kernels, c->vocab, c->hidden, DECODE, option, err));
        /* a prompt needs one row of the head */
        keep_least(&t->head_us[option], us * (t->counts[DECODE] + (g->workload.prompt ? 1 : 0)), round);
    }
    return NMLP_OK;
}

/* Rounds, so that a busy moment of the machine hits all forms; the least counts. */
static nmlp_status measure_cpu(nmlp_form_times *t, const nmlp_form_timing *g, nmlp_err *err) {
    const nmlp_kernels *kernels;
    list_shapes(t, g->model);
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select_bf16(&kernels, nmlp_cpu_get(), g->isa, err));
    for (int round = 0; round < ROUNDS; round++) {
        NMLP_RETURN_IF_FAILED(measure_round(t, g, kernels, round, err));
        if (!nmlp_progress_update(g->progress, "timing", round + 1, ROUNDS, "rounds"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "timing was stopped");
    }
    for (int option = 0; option < NMLP_QUANT_OPTIONS; option++)
        for (int pass = 0; pass < NMLP_FORM_PASSES; pass++)
            if (t->counts[pass] > 0) fit_line(t, pass, option);
    return NMLP_OK;
}

/* ---- other targets ---- */

static nmlp_status plan_trainium(nmlp_form_times *t, const nmlp_form_timing *g, nmlp_err *err) {
    t->simulated = 1;
    for (int pass = 0; pass < NMLP_FORM_PASSES; pass++) {
        int64_t rows = pass == DECODE ? g->workload.batch : g->workload.prompt;
        if (t->counts[pass] == 0) continue;
        t->counts[pass] = pass == DECODE ? (double)g->workload.generate : 1;
        NMLP_RETURN_IF_FAILED(nmlp_service_mlp_cost(&t->mlp[pass], g->target, &g->model->config, rows, g->tile, err));
    }
    return NMLP_OK;
}

static void begin(nmlp_form_times *t, const nmlp_workload *w) {
    memset(t, 0, sizeof *t);
    t->counts[DECODE] = (double)w->generate;
    t->counts[PREFILL] = (double)w->prompt / NMLP_WORKLOAD_PROMPT;
}

nmlp_status nmlp_form_times_measure(nmlp_form_times *t, const nmlp_form_timing *g, nmlp_err *err) {
    begin(t, &g->workload);
    return nmlp_target_is_trainium(g->target) ? plan_trainium(t, g, err) : measure_cpu(t, g, err);
}

void nmlp_form_times_from_models(nmlp_form_times *t, const nmlp_model *model, const nmlp_workload *w,
                                 const double ms[NMLP_QUANT_OPTIONS]) {
    double weights = (double)nmlp_model_measure(model).params;
    double head = (double)(model->config.vocab * model->config.hidden);
    begin(t, w);
    t->counts[DECODE] = 1; /* a unit as a whole */
    t->counts[PREFILL] = 0;
    for (int option = 0; option < NMLP_QUANT_OPTIONS; option++) {
        t->line[DECODE][option].us_per_weight = 1e3 * ms[option] / weights;
        t->head_us[option] = t->line[DECODE][option].us_per_weight * head;
    }
}

/* ---- in a file ---- */

static const char times_magic[] = "NMLPFTM3";

nmlp_status nmlp_form_times_load(nmlp_form_times *t, const char *path, uint64_t hash, bool *known, nmlp_err *err) {
    nmlp_file_map map;
    nmlp_work_state state;
    size_t payload = 0;
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&map, path, times_magic, hash, &payload, &state, err));
    *known = state == NMLP_WORK_VALID && payload == sizeof *t;
    if (*known) memcpy(t, map.data, sizeof *t);
    nmlp_file_map_close(&map);
    return NMLP_OK;
}

nmlp_status nmlp_form_times_save(const nmlp_form_times *t, const char *path, uint64_t hash, nmlp_err *err) {
    nmlp_work_writer writer;
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, times_magic, hash, err));
    nmlp_status st = nmlp_work_writer_put(&writer, t, sizeof *t, err);
    if (st == NMLP_OK) return nmlp_work_writer_commit(&writer, err);
    nmlp_work_writer_abort(&writer);
    return st;
}
