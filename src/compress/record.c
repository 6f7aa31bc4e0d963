#include "compress/record.h"

#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"

enum { PATH_MAX_BYTES = 4096, NAME_MAX_BYTES = 96, POINTS_MAX = 4096 };

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

static const nmlp_json *of_matrix(const nmlp_json *object, int64_t layer, int matrix) {
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, "model.layers.%lld.mlp.%s", (long long)layer,
             nmlp_mlp_matrix_name((nmlp_mlp_matrix)matrix));
    return nmlp_json_get(object, name);
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
