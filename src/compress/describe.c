#include "compress/describe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_write.h"

enum { FORMAT_VERSION = 1, SAMPLE_BYTES = 64, MATRIX_NAME_MAX = 96 };

/* FNV-1a */
static uint64_t mix(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

/* Names, shapes and a sample of every tensor's bytes from its middle. */
static uint64_t mix_model(uint64_t hash, const nmlp_model *m) {
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        size_t bytes = nmlp_view_bytes(&t->view);
        const char *data = t->view.data;
        hash = mix(hash, t->name, strlen(t->name));
        hash = mix(hash, t->view.shape, sizeof t->view.shape);
        if (bytes > 2 * SAMPLE_BYTES) {
            data += bytes / 2;
            bytes = SAMPLE_BYTES;
        }
        hash = mix(hash, data, bytes);
    }
    return hash;
}

nmlp_fingerprint nmlp_job_fingerprint(const nmlp_engine *engine, const nmlp_calib_windows *w,
                                      const nmlp_compress_options *o) {
    nmlp_fingerprint out;
    char text[512];
    int n = snprintf(text, sizeof text, "%d%d%d%d %.17g %d%d %lld %lld %lld %s", o->whiten, o->row_weights,
                     o->token_weights, o->shrink, o->cap, o->joint != NMLP_JOINT_NEVER, o->joint != NMLP_JOINT_ALWAYS,
                     (long long)w->context, (long long)w->n_calib, (long long)w->n_heldout, nmlp_engine_isa(engine));
    uint64_t hash = mix(0xcbf29ce484222325u, text, (size_t)n);
    hash = mix(hash, w->ids, (size_t)nmlp_calib_windows_tokens(w) * sizeof *w->ids);
    out.statistics = mix_model(hash, nmlp_engine_model(engine));
    bool timed = o->budget_ms > 0;
    n = snprintf(text, sizeof text, "%.17g %.17g %.17g %.17g %.17g %lld %d %d %d", o->ratio, o->budget_ms,
                 timed ? o->time.start_dense_us : 0, timed ? o->time.start_lowrank_us : 0,
                 timed ? o->time.us_per_param : 0, (long long)o->tile, o->adaptive, (int)o->joint, o->rounds);
    out.search = mix(out.statistics, text, (size_t)n);
    out.job = mix(out.search, o->refit ? "refit" : "plain", 5);
    return out;
}

static void matrix_name(char name[MATRIX_NAME_MAX], int64_t layer, int matrix) {
    snprintf(name, MATRIX_NAME_MAX, "model.layers.%lld.mlp.%s", (long long)layer,
             nmlp_mlp_matrix_name((nmlp_mlp_matrix)matrix));
}

static void put_ranks(nmlp_json_writer *j, const nmlp_compress_report *r) {
    nmlp_json_begin_object(j, "ranks");
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
            char name[MATRIX_NAME_MAX];
            if (r->ranks[l].rank[i] == 0) continue;
            matrix_name(name, l, i);
            nmlp_json_put_int(j, name, r->ranks[l].rank[i]);
        }
    }
    nmlp_json_end_object(j);
    nmlp_json_begin_array(j, "shared_basis");
    for (int64_t l = 0; l < r->n_layers; l++)
        if (r->ranks[l].joint) nmlp_json_put_int(j, NULL, l);
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

void nmlp_job_describe(const nmlp_compress_options *o, const nmlp_compress_report *r, nmlp_str *out) {
    nmlp_json_writer j;
    nmlp_json_writer_init(&j, out);
    nmlp_json_begin_object(&j, NULL);
    nmlp_json_put_int(&j, "version", FORMAT_VERSION);
    nmlp_json_put_number(&j, "ratio", 1 - (double)r->mlp_params_after / (double)r->mlp_params_before);
    if (o->budget_ms > 0) {
        nmlp_json_put_number(&j, "budget_ms", o->budget_ms);
    } else {
        nmlp_json_put_number(&j, "ratio_asked", o->ratio);
    }
    nmlp_json_put_int(&j, "tile", o->tile);
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
    put_ranks(&j, r);
    put_errors(&j, r);
    put_heldout(&j, r);
    if (o->made_by) nmlp_json_put_string(&j, "made_by", o->made_by);
    nmlp_json_end_object(&j);
}
