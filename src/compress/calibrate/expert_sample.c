#include "compress/calibrate/expert_sample.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "compress/calibrate/gram.h"

enum { STEP = 512, SQUARES = 3 };

/* An expert that saw so many tokens for each channel needs no others. */
static const int64_t enough_per_channel = 16;

nmlp_status nmlp_expert_sampler_init(nmlp_expert_sampler *s, const nmlp_engine *engine, const nmlp_kernels *kernels,
                                     int64_t n_tokens, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(engine)->config;
    size_t inner = (size_t)c->expert_intermediate, rows = (size_t)((n_tokens + c->hidden) * c->hidden);
    nmlp_mlp_sample *sample = &s->sample;
    *s = (nmlp_expert_sampler){.engine = engine, .kernels = kernels, .n_tokens = n_tokens};
    nmlp_arena_init(&s->arena);
    s->choices = nmlp_arena_new(&s->arena, (size_t)(n_tokens * c->experts_per_token), sizeof *s->choices, err);
    float **const steps[] = {&s->gate, &s->up, &s->act};
    double **const means[SQUARES] = {&sample->gate2, &sample->slope2, &sample->act2};
    for (int i = 0; i < SQUARES; i++) {
        *steps[i] = nmlp_arena_new(&s->arena, STEP * inner, sizeof(float), err);
        *means[i] = nmlp_arena_new(&s->arena, inner, sizeof(double), err);
        if (!*steps[i] || !*means[i]) return NMLP_E_NOMEM;
    }
    s->sums = nmlp_arena_new(&s->arena, 2 * SQUARES * inner, sizeof *s->sums, err);
    s->factors = nmlp_arena_new(&s->arena, (size_t)(n_tokens + c->hidden), sizeof *s->factors, err);
    sample->x = nmlp_arena_new(&s->arena, rows, sizeof(float), err);
    sample->y = nmlp_arena_new(&s->arena, rows, sizeof(float), err);
    return s->choices && s->sums && s->factors && sample->x && sample->y ? NMLP_OK : NMLP_E_NOMEM;
}

void nmlp_expert_sampler_fini(nmlp_expert_sampler *s) {
    if (s->engine) nmlp_arena_fini(&s->arena);
    *s = (nmlp_expert_sampler){0};
}

nmlp_status nmlp_expert_route_rows(const nmlp_engine *engine, int64_t layer, const float *x, int64_t n,
                                   nmlp_expert_choice *choices, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(engine)->config;
    nmlp_session *session;
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&session, engine, nmlp_min(STEP, c->max_positions), 0, false, err));
    int64_t step = nmlp_session_chunk(session);
    for (int64_t t = 0; t < n; t += step)
        nmlp_session_route(session, layer, x + t * c->hidden, nmlp_min(step, n - t),
                           choices + t * c->experts_per_token);
    nmlp_session_destroy(session);
    return NMLP_OK;
}

nmlp_status nmlp_expert_sampler_route(nmlp_expert_sampler *s, int64_t layer, const float *x, nmlp_err *err) {
    int64_t n = s->n_tokens * nmlp_engine_model(s->engine)->config.experts_per_token;
    double sum = 0;
    s->layer = layer;
    s->x = x;
    NMLP_RETURN_IF_FAILED(nmlp_expert_route_rows(s->engine, layer, x, s->n_tokens, s->choices, err));
    for (int64_t i = 0; i < n; i++) sum += (double)s->choices[i].weight * (double)s->choices[i].weight;
    s->mean_weight2 = sum / (double)n;
    return NMLP_OK;
}

static void scale_row(float *row, double factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) row[i] = (float)(factor * (double)row[i]);
}

/* Rows of activations, the first of which is row `first` of the sample; they are spent. */
static nmlp_status add_act_gram(nmlp_expert_sampler *s, int64_t first, int64_t n, nmlp_err *err) {
    int64_t inner = nmlp_engine_model(s->engine)->config.expert_intermediate;
    if (!s->act_gram) return NMLP_OK;
    for (int64_t i = 0; i < n; i++) scale_row(s->act + i * inner, s->factors[first + i], inner);
    return nmlp_gram_add(s->kernels, nmlp_engine_pool(s->engine), s->act_gram, s->act, n, inner, err);
}

/* Rows first..first+n of the sample through the expert; squares are added to sums [3,I]. */
static nmlp_status run_rows(nmlp_expert_sampler *s, const nmlp_mlp *mlp, int64_t first, int64_t n, double *sums,
                            nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    int64_t inner = c->expert_intermediate;
    void *workspace = nmlp_mem_new(nmlp_mlp_observed_workspace_bytes(mlp, STEP, nmlp_pool_threads(pool)), 1, err);
    if (!workspace) return NMLP_E_NOMEM;
    nmlp_glu_squares squares = {
        .activation = c->activation, .gate2 = sums, .slope2 = sums + inner, .act2 = sums + 2 * inner};
    nmlp_status st = NMLP_OK;
    for (int64_t t = first; t < first + n && st == NMLP_OK; t += STEP) {
        int64_t rows = nmlp_min(STEP, first + n - t);
        nmlp_mlp_run_observed(mlp, s->sample.y + t * c->hidden, s->sample.x + t * c->hidden, rows, s->gate, s->up,
                              s->act, workspace, pool);
        nmlp_glu_squares_add(&squares, s->gate, s->up, rows, inner, pool);
        st = add_act_gram(s, t, rows, err);
    }
    nmlp_mem_free(workspace);
    return st;
}

static nmlp_status run_expert(nmlp_expert_sampler *s, int64_t expert, int64_t n_came, int64_t n_others, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(s->engine);
    const nmlp_factors *own = m->layers[s->layer].experts[expert].mlp;
    nmlp_mlp_desc desc = {.gate = own[NMLP_MLP_GATE],
                          .up = own[NMLP_MLP_UP],
                          .down = own[NMLP_MLP_DOWN],
                          .activation = m->config.activation};
    nmlp_mlp *mlp;
    size_t half = (size_t)(SQUARES * m->config.expert_intermediate);
    NMLP_RETURN_IF_FAILED(nmlp_mlp_create(&mlp, s->kernels, &desc, nmlp_engine_pool(s->engine), err));
    memset(s->sums, 0, 2 * half * sizeof *s->sums);
    nmlp_status st = run_rows(s, mlp, 0, n_came, s->sums, err);
    if (st == NMLP_OK) st = run_rows(s, mlp, n_came, n_others, s->sums + half, err);
    nmlp_mlp_destroy(mlp);
    return st;
}

/* Rows of tokens that came, in order; their weights squared are summed. */
static int64_t gather_came(nmlp_expert_sampler *s, int64_t expert, double *sum_weight2) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    int64_t n = 0, k = c->experts_per_token;
    *sum_weight2 = 0;
    for (int64_t i = 0; i < s->n_tokens * k; i++) {
        if (s->choices[i].expert != expert) continue;
        memcpy(s->sample.x + n++ * c->hidden, s->x + i / k * c->hidden, (size_t)c->hidden * sizeof(float));
        *sum_weight2 += (double)s->choices[i].weight * (double)s->choices[i].weight;
    }
    return n;
}

nmlp_status nmlp_expert_sampler_take(nmlp_expert_sampler *s, int64_t expert, nmlp_err *err) {
    const nmlp_config *c = &nmlp_engine_model(s->engine)->config;
    nmlp_mlp_sample *sample = &s->sample;
    int64_t h = c->hidden, inner = c->expert_intermediate, k = c->experts_per_token;
    double sum_weight2;
    int64_t n_came = gather_came(s, expert, &sum_weight2);
    int64_t n_others = n_came < enough_per_channel * h ? nmlp_min(s->n_tokens, h) : 0;
    for (int64_t i = 0; i < n_others; i++)
        memcpy(sample->x + (n_came + i) * h, s->x + i * s->n_tokens / n_others * h, (size_t)h * sizeof(float));
    sample->n = n_came + n_others;
    /* `trust` of all weight goes to what came; one token of the mean weight is taken as seen by everyone. */
    double trust = n_others ? (double)n_came / (double)(n_came + h) : 1;
    double mass = sum_weight2 + s->mean_weight2, per_row = (double)sample->n / (double)s->n_tokens;
    double came = sum_weight2 > 0 ? per_row * mass * trust / sum_weight2 : 0;
    double others = n_others ? per_row * mass * (1 - trust) / (double)n_others : 0;
    for (int64_t i = 0, row = 0; i < s->n_tokens * k; i++)
        if (s->choices[i].expert == expert) s->factors[row++] = sqrt(came) * (double)s->choices[i].weight;
    for (int64_t i = 0; i < n_others; i++) s->factors[n_came + i] = sqrt(others);
    if (s->act_gram) memset(s->act_gram, 0, (size_t)(inner * inner) * sizeof *s->act_gram);
    NMLP_RETURN_IF_FAILED(run_expert(s, expert, n_came, n_others, err));
    for (int64_t row = 0; row < sample->n; row++) {
        scale_row(sample->x + row * h, s->factors[row], h);
        scale_row(sample->y + row * h, s->factors[row], h);
    }
    for (int64_t i = 0; s->act_gram && i < inner * inner; i++) s->act_gram[i] /= (double)sample->n;
    for (int64_t j = 0; j < inner; j++) {
        double mean[SQUARES];
        for (int i = 0; i < SQUARES; i++)
            mean[i] = (n_came ? trust * s->sums[i * inner + j] / (double)n_came : 0) +
                      (n_others ? (1 - trust) * s->sums[(SQUARES + i) * inner + j] / (double)n_others : 0);
        sample->gate2[j] = mean[0];
        sample->slope2[j] = mean[1];
        sample->act2[j] = mean[2] * mass / (double)s->n_tokens;
    }
    return NMLP_OK;
}
