#include "compress/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_write.h"

enum { FORMAT_VERSION = 1, PATH_MAX_BYTES = 4096, MATRIX_NAME_MAX = 96, POINTS_MAX = 4096 };

static void matrix_name(char name[MATRIX_NAME_MAX], int64_t layer, int matrix) {
    snprintf(name, MATRIX_NAME_MAX, "model.layers.%lld.mlp.%s", (long long)layer,
             nmlp_mlp_matrix_name((nmlp_mlp_matrix)matrix));
}

/* ---- writing ---- */

static void put_ranks(nmlp_json_writer *j, const nmlp_compress_report *r, const nmlp_config *c,
                      const nmlp_layer_file *finished) {
    int64_t stride = c->n_experts > 0 ? c->n_experts : 1;
    nmlp_json_begin_object(j, "ranks");
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int64_t e = 0; e < nmlp_config_mlp_count(c, l); e++) {
            const int64_t *rank = finished[l * stride + e].ranks.rank;
            for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
                char path[NMLP_MATRIX_PATH_MAX];
                if (rank[i] == 0) continue;
                nmlp_mlp_matrix_path(path, c, l, e, i);
                nmlp_json_put_int(j, path, rank[i]);
            }
        }
    }
    for (int64_t b = r->n_layers; b < r->n_blocks; b++) {
        for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
            char path[NMLP_MATRIX_PATH_MAX];
            if (r->ranks[b].rank[i] == 0) continue;
            nmlp_module_matrix_path(path, c, NMLP_MODULE_ATTENTION, b - r->n_layers, 0, i);
            nmlp_json_put_int(j, path, r->ranks[b].rank[i]);
        }
    }
    nmlp_json_end_object(j);
    nmlp_json_begin_array(j, "shared_basis");
    for (int64_t l = 0; l < r->n_layers; l++)
        if (r->ranks[l].joint) nmlp_json_put_int(j, NULL, l);
    nmlp_json_end_array(j);
    if (r->n_blocks == r->n_layers) return;
    nmlp_json_begin_array(j, "attention_shared_basis");
    for (int64_t b = r->n_layers; b < r->n_blocks; b++)
        if (r->ranks[b].joint) nmlp_json_put_int(j, NULL, b - r->n_layers);
    nmlp_json_end_array(j);
}

/* Enough digits for a chart. */
static double rounded(double value) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    return strtod(text, NULL);
}

static void put_errors(nmlp_json_writer *j, const nmlp_compress_report *r) {
    nmlp_json_begin_object(j, "error");
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            char name[MATRIX_NAME_MAX];
            matrix_name(name, l, i);
            nmlp_json_put_number(j, name, rounded(r->nmse[l * NMLP_MLP_MATRICES + i]));
        }
    }
    nmlp_json_end_object(j);
    nmlp_json_put_int(j, "error_curve_step", r->curve_step);
    nmlp_json_begin_object(j, "error_curve");
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            char name[MATRIX_NAME_MAX];
            matrix_name(name, l, i);
            nmlp_json_begin_array(j, name);
            for (int64_t k = 0; k < r->curve_points; k++)
                nmlp_json_put_number(j, NULL, rounded(r->curve[(l * NMLP_MLP_MATRICES + i) * r->curve_points + k]));
            nmlp_json_end_array(j);
        }
    }
    nmlp_json_end_object(j);
}

static void put_heldout(nmlp_json_writer *j, const nmlp_compress_report *r) {
    if (!r->heldout_measured) return;
    nmlp_json_begin_object(j, "heldout");
    nmlp_json_put_int(j, "tokens", r->final.n_tokens);
    nmlp_json_put_number(j, "ppl_dense", exp(r->dense.nll));
    nmlp_json_put_number(j, "ppl_factored", exp(r->factored.nll));
    nmlp_json_put_number(j, "ppl", exp(r->final.nll));
    nmlp_json_put_number(j, "kl", r->final.kl);
    nmlp_json_end_object(j);
}

void nmlp_compress_record_write(const nmlp_compress_options *o, const nmlp_compress_report *r, const nmlp_config *c,
                                const nmlp_layer_file *finished, nmlp_str *out) {
    nmlp_json_writer j;
    nmlp_json_writer_init(&j, out);
    nmlp_json_begin_object(&j, NULL);
    nmlp_json_put_int(&j, "version", FORMAT_VERSION);
    nmlp_json_put_number(&j, "ratio", nmlp_compress_removed(r));
    if (o->budget_ms > 0) {
        nmlp_json_put_number(&j, "budget_ms", o->budget_ms);
    } else if (!o->ranks) {
        nmlp_json_put_number(&j, "ratio_asked", o->ratio);
    }
    if (o->attention) {
        nmlp_json_begin_array(&j, "modules");
        for (int kind = 0; kind < NMLP_MODULES; kind++)
            nmlp_json_put_string(&j, NULL, nmlp_module_of((nmlp_module_kind)kind)->name);
        nmlp_json_end_array(&j);
    }
    nmlp_json_put_int(&j, "tile", o->tile);
    if (r->slices > 1) nmlp_json_put_int(&j, "slices", r->slices);
    nmlp_json_begin_object(&j, "method");
    nmlp_json_put_string(&j, "whiten", o->whiten ? "input" : "none");
    nmlp_json_put_string(&j, "weights", o->row_weights ? "swiglu" : "none");
    nmlp_json_put_string(&j, "alloc", o->adaptive ? "adaptive" : "uniform");
    nmlp_json_put_string(&j, "recover", r->refit_kept ? "refit" : "none");
    nmlp_json_end_object(&j);
    nmlp_json_begin_object(&j, "calibration");
    nmlp_json_put_string(&j, "text", o->calib_name);
    nmlp_json_put_int(&j, "tokens", r->calib_tokens);
    nmlp_json_put_int(&j, "heldout_tokens", r->heldout_tokens);
    nmlp_json_end_object(&j);
    put_ranks(&j, r, c, finished);
    put_errors(&j, r);
    put_heldout(&j, r);
    if (o->made_by) nmlp_json_put_string(&j, "made_by", o->made_by);
    nmlp_json_end_object(&j);
}

/* ---- reading ---- */

static const nmlp_json *of_matrix(const nmlp_json *object, int64_t layer, int matrix) {
    char name[MATRIX_NAME_MAX];
    matrix_name(name, layer, matrix);
    return nmlp_json_get(object, name);
}

static double number_of(const nmlp_json *object, const char *key) {
    const nmlp_json *value = nmlp_json_get(object, key);
    return nmlp_json_is_number(value) ? nmlp_json_number(value) : NAN;
}

static int64_t count_of(const nmlp_json *object, const char *key) {
    int64_t count = 0;
    return nmlp_json_int_in(nmlp_json_get(object, key), 0, INT64_C(1) << 50, &count) ? count : 0;
}

static nmlp_status text_of(nmlp_compress_record *r, const char **out, const nmlp_json *object, const char *key,
                           nmlp_err *err) {
    const nmlp_json *value = nmlp_json_get(object, key);
    *out = nmlp_arena_strdup(&r->arena, nmlp_json_is_string(value) ? nmlp_json_string(value) : "", err);
    return *out ? NMLP_OK : NMLP_E_NOMEM;
}

static nmlp_status read_words(nmlp_compress_record *r, const nmlp_json *object, nmlp_err *err) {
    const nmlp_json *method = nmlp_json_get(object, "method");
    NMLP_RETURN_IF_FAILED(text_of(r, &r->made_by, object, "made_by", err));
    NMLP_RETURN_IF_FAILED(text_of(r, &r->whiten, method, "whiten", err));
    NMLP_RETURN_IF_FAILED(text_of(r, &r->weights, method, "weights", err));
    NMLP_RETURN_IF_FAILED(text_of(r, &r->alloc, method, "alloc", err));
    NMLP_RETURN_IF_FAILED(text_of(r, &r->recover, method, "recover", err));
    return text_of(r, &r->calib_text, nmlp_json_get(object, "calibration"), "text", err);
}

static void read_numbers(nmlp_compress_record *r, const nmlp_json *object) {
    const nmlp_json *calibration = nmlp_json_get(object, "calibration");
    const nmlp_json *heldout = nmlp_json_get(object, "heldout");
    r->ratio = number_of(object, "ratio");
    r->ratio_asked = number_of(object, "ratio_asked");
    r->tile = count_of(object, "tile");
    r->calib_tokens = count_of(calibration, "tokens");
    r->heldout_tokens = count_of(calibration, "heldout_tokens");
    r->ppl_dense = number_of(heldout, "ppl_dense");
    r->ppl_factored = number_of(heldout, "ppl_factored");
    r->ppl = number_of(heldout, "ppl");
    r->kl = number_of(heldout, "kl");
}

/* Every curve has as many points as the first. */
static nmlp_status read_curves(nmlp_compress_record *r, const nmlp_json *object, nmlp_err *err) {
    const nmlp_json *curves = nmlp_json_get(object, "error_curve");
    const nmlp_json *first = of_matrix(curves, 0, 0);
    int64_t step = count_of(object, "error_curve_step");
    size_t n_points = nmlp_json_is_array(first) ? nmlp_json_count(first) : 0;
    if (step == 0 || n_points == 0 || n_points > POINTS_MAX) return NMLP_OK;
    size_t n_matrices = (size_t)(r->n_layers * NMLP_MLP_MATRICES);
    r->curve = nmlp_arena_new(&r->arena, n_matrices * n_points, sizeof *r->curve, err);
    if (!r->curve) return NMLP_E_NOMEM;
    r->curve_step = step;
    r->curve_points = (int64_t)n_points;
    for (size_t i = 0; i < n_matrices; i++) {
        const nmlp_json *points = of_matrix(curves, (int64_t)i / NMLP_MLP_MATRICES, (int)(i % NMLP_MLP_MATRICES));
        const nmlp_json *point = nmlp_json_is_array(points) ? nmlp_json_first(points) : NULL;
        for (size_t k = 0; k < n_points; k++, point = point ? nmlp_json_next(point) : NULL)
            r->curve[i * n_points + k] = point && nmlp_json_is_number(point) ? nmlp_json_number(point) : NAN;
    }
    return NMLP_OK;
}

static nmlp_status read_errors(nmlp_compress_record *r, const nmlp_json *object, nmlp_err *err) {
    const nmlp_json *errors = nmlp_json_get(object, "error");
    size_t n = (size_t)(r->n_layers * NMLP_MLP_MATRICES);
    r->error = nmlp_arena_new(&r->arena, n, sizeof *r->error, err);
    if (!r->error) return NMLP_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const nmlp_json *value = of_matrix(errors, (int64_t)i / NMLP_MLP_MATRICES, (int)(i % NMLP_MLP_MATRICES));
        r->error[i] = value && nmlp_json_is_number(value) ? nmlp_json_number(value) : NAN;
    }
    return read_curves(r, object, err);
}

/* Training leaves its log in the checkpoint and the configuration as it was. */
static nmlp_status note_training(nmlp_compress_record *r, const char *dir, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "recovery.csv", err));
    r->trained = nmlp_file_exists(path);
    if (!r->trained) return NMLP_OK;
    r->made_by = "";
    r->ppl_factored = r->ppl = r->kl = NAN;
    return NMLP_OK;
}

nmlp_status nmlp_compress_record_load(nmlp_compress_record *r, const nmlp_model *model, nmlp_err *err) {
    char path[PATH_MAX_BYTES];
    nmlp_json_doc doc;
    *r = (nmlp_compress_record){.n_layers = model->config.n_layers};
    nmlp_arena_init(&r->arena);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, model->checkpoint.dir, "config.json", err));
    NMLP_RETURN_IF_FAILED(nmlp_json_load(&doc, path, err));
    const nmlp_json *object = nmlp_json_get(doc.root, "neuronmlp");
    read_numbers(r, object);
    nmlp_status st = read_words(r, object, err);
    if (st == NMLP_OK) st = read_errors(r, object, err);
    if (st == NMLP_OK) st = note_training(r, model->checkpoint.dir, err);
    nmlp_json_free(&doc);
    return st;
}

void nmlp_compress_record_fini(nmlp_compress_record *r) {
    nmlp_arena_fini(&r->arena);
    *r = (nmlp_compress_record){0};
}
