#include "lib/reference_forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/quant.h"

static double *new_doubles(int64_t n) { return calloc((size_t)n, sizeof(double)); }

static double *widen(const nmlp_view *view) {
    int64_t n = nmlp_view_elems(view);
    int64_t rows = view->n_dims == 2 ? view->shape[0] : 1;
    nmlp_view matrix = *view;
    double *out = new_doubles(n);
    float *row = calloc((size_t)(n / rows), sizeof *row);
    matrix.n_dims = 2;
    matrix.shape[0] = rows;
    matrix.shape[1] = n / rows;
    for (int64_t i = 0; i < rows; i++) {
        nmlp_quant_row_to_f32(row, &matrix, i);
        for (int64_t j = 0; j < n / rows; j++) out[i * (n / rows) + j] = (double)row[j];
    }
    free(row);
    return out;
}

/* y [n, rows] = x [n, cols] W^T + b */
static double *project(const double *x, const nmlp_view *weight, const nmlp_view *bias, int64_t n) {
    int64_t rows = weight->shape[0];
    int64_t cols = weight->shape[1];
    double *w = widen(weight);
    double *b = bias && bias->data ? widen(bias) : NULL;
    double *y = new_doubles(n * rows);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t i = 0; i < rows; i++) {
            double sum = b ? b[i] : 0;
            for (int64_t j = 0; j < cols; j++) sum += w[i * cols + j] * x[t * cols + j];
            y[t * rows + i] = sum;
        }
    }
    free(w);
    free(b);
    return y;
}

static double *project_factors(const double *x, const nmlp_factors *f, const nmlp_view *bias, int64_t n) {
    if (f->w.data) return project(x, &f->w, bias, n);
    double *inner = project(x, &f->v, NULL, n);
    double *y = project(inner, &f->u, bias, n);
    free(inner);
    return y;
}

static void normalise(double *y, const double *x, const nmlp_view *weight, double eps, int64_t rows, int64_t cols) {
    double *w = widen(weight);
    for (int64_t t = 0; t < rows; t++) {
        double sum = 0;
        for (int64_t i = 0; i < cols; i++) sum += x[t * cols + i] * x[t * cols + i];
        double scale = 1 / sqrt(sum / (double)cols + eps);
        for (int64_t i = 0; i < cols; i++) y[t * cols + i] = x[t * cols + i] * scale * w[i];
    }
    free(w);
}

/* Plain rotary embedding: the tests that use this have no scaling. */
static void rotate(double *x, const nmlp_config *c, int64_t n, int64_t heads) {
    int64_t d = c->head_dim;
    for (int64_t t = 0; t < n; t++) {
        for (int64_t h = 0; h < heads; h++) {
            double *v = x + (t * heads + h) * d;
            for (int64_t i = 0; i < d / 2; i++) {
                double angle = (double)t * pow(c->rope.theta, -2.0 * (double)i / (double)d);
                double a = v[i];
                double b = v[i + d / 2];
                v[i] = a * cos(angle) - b * sin(angle);
                v[i + d / 2] = b * cos(angle) + a * sin(angle);
            }
        }
    }
}

static double *attend(const double *q, const double *k, const double *v, const nmlp_config *c, int64_t n) {
    int64_t d = c->head_dim;
    double *out = new_doubles(n * c->n_heads * d);
    double *p = new_doubles(n);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t h = 0; h < c->n_heads; h++) {
            int64_t kv = h / (c->n_heads / c->n_kv_heads);
            double sum = 0;
            for (int64_t s = 0; s <= t; s++) {
                double dot = 0;
                for (int64_t i = 0; i < d; i++)
                    dot += q[(t * c->n_heads + h) * d + i] * k[(s * c->n_kv_heads + kv) * d + i];
                p[s] = exp(dot / sqrt((double)d));
                sum += p[s];
            }
            for (int64_t s = 0; s <= t; s++)
                for (int64_t i = 0; i < d; i++)
                    out[(t * c->n_heads + h) * d + i] += p[s] / sum * v[(s * c->n_kv_heads + kv) * d + i];
        }
    }
    free(p);
    return out;
}

static void add(double *x, const double *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static void attention_block(const nmlp_model *m, const nmlp_layer *layer, double *x, int64_t n) {
    const nmlp_config *c = &m->config;
    double *y = new_doubles(n * c->hidden);
    normalise(y, x, &layer->attention_norm, c->rms_eps, n, c->hidden);
    double *q = project_factors(y, &layer->attention[NMLP_ATTENTION_Q], &layer->q_bias, n);
    double *k = project_factors(y, &layer->attention[NMLP_ATTENTION_K], &layer->k_bias, n);
    double *v = project_factors(y, &layer->attention[NMLP_ATTENTION_V], &layer->v_bias, n);
    if (layer->q_norm.data) normalise(q, q, &layer->q_norm, c->rms_eps, n * c->n_heads, c->head_dim);
    if (layer->k_norm.data) normalise(k, k, &layer->k_norm, c->rms_eps, n * c->n_kv_heads, c->head_dim);
    rotate(q, c, n, c->n_heads);
    rotate(k, c, n, c->n_kv_heads);
    double *mixed = attend(q, k, v, c, n);
    double *o = project_factors(mixed, &layer->attention[NMLP_ATTENTION_O], &layer->o_bias, n);
    add(x, o, n * c->hidden);
    free(y);
    free(q);
    free(k);
    free(v);
    free(mixed);
    free(o);
}

/* out [n,H] of one MLP. */
static double *run_mlp(const nmlp_factors mlp[NMLP_MLP_MATRICES], const double *y, int64_t n) {
    double *gate = project_factors(y, &mlp[NMLP_MLP_GATE], NULL, n);
    double *up = project_factors(y, &mlp[NMLP_MLP_UP], NULL, n);
    int64_t inner = nmlp_factors_rows(&mlp[NMLP_MLP_GATE]);
    for (int64_t i = 0; i < n * inner; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    double *down = project_factors(gate, &mlp[NMLP_MLP_DOWN], NULL, n);
    free(gate);
    free(up);
    return down;
}

/* Weights of all experts for one token: softmax of its scores, 0 but for the k largest. */
static void route(double *scores, const nmlp_config *c) {
    double sum = 0, kept = 0;
    char chosen[256] = {0};
    for (int64_t e = 0; e < c->n_experts; e++) sum += scores[e] = exp(scores[e]);
    for (int64_t i = 0; i < c->experts_per_token; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < c->n_experts; e++)
            if (!chosen[e] && (best < 0 || scores[e] > scores[best])) best = e;
        chosen[best] = 1;
        kept += scores[best];
    }
    for (int64_t e = 0; e < c->n_experts; e++)
        scores[e] = chosen[e] ? scores[e] / (c->normalise_experts ? kept : sum) : 0;
}

/* Every expert computes every token; the weights leave out what does not count. */
static double *run_experts(const nmlp_model *m, const nmlp_layer *layer, const double *y, int64_t n) {
    const nmlp_config *c = &m->config;
    double *scores = project(y, &layer->router, NULL, n), *out = new_doubles(n * c->hidden);
    for (int64_t t = 0; t < n; t++) route(scores + t * c->n_experts, c);
    for (int64_t e = 0; e < c->n_experts; e++) {
        double *one = run_mlp(layer->experts[e].mlp, y, n);
        for (int64_t i = 0; i < n * c->hidden; i++) out[i] += scores[i / c->hidden * c->n_experts + e] * one[i];
        free(one);
    }
    free(scores);
    return out;
}

static void mlp_block(const nmlp_model *m, const nmlp_layer *layer, double *x, int64_t n) {
    const nmlp_config *c = &m->config;
    double *y = new_doubles(n * c->hidden);
    normalise(y, x, &layer->mlp_norm, c->rms_eps, n, c->hidden);
    double *out = layer->experts ? run_experts(m, layer, y, n) : run_mlp(layer->mlp, y, n);
    add(x, out, n * c->hidden);
    free(y);
    free(out);
}

void reference_forward(const nmlp_model *m, const int32_t *ids, int64_t n, double *logits) {
    const nmlp_config *c = &m->config;
    double *table = widen(&m->embedding);
    double *x = new_doubles(n * c->hidden);
    for (int64_t t = 0; t < n; t++)
        memcpy(x + t * c->hidden, table + ids[t] * c->hidden, (size_t)c->hidden * sizeof *x);
    for (int64_t l = 0; l < c->n_layers; l++) {
        attention_block(m, &m->layers[l], x, n);
        mlp_block(m, &m->layers[l], x, n);
    }
    normalise(x, x, &m->final_norm, c->rms_eps, n, c->hidden);
    double *out = project(x, &m->lm_head, NULL, n);
    memcpy(logits, out, (size_t)(n * c->vocab) * sizeof *logits);
    free(table);
    free(x);
    free(out);
}
