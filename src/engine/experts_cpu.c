#include "engine/experts_cpu.h"

#include <math.h>
#include <string.h>

/* The k largest of a row's scores, of equal ones the first; their weights are softmax over all. */
static void choose(nmlp_expert_choice *chosen, const float *scores, const nmlp_config *c) {
    float top = scores[0], sum = 0, kept = 0;
    for (int64_t e = 0; e < c->n_experts; e++) top = fmaxf(top, scores[e]);
    for (int64_t e = 0; e < c->n_experts; e++) sum += expf(scores[e] - top);
    for (int64_t i = 0; i < c->experts_per_token; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < c->n_experts; e++) {
            bool taken = false;
            for (int64_t j = 0; j < i; j++) taken = taken || chosen[j].expert == e;
            if (!taken && (best < 0 || scores[e] > scores[best])) best = e;
        }
        chosen[i] = (nmlp_expert_choice){.expert = (int32_t)best, .weight = expf(scores[best] - top) / sum};
        kept += chosen[i].weight;
    }
    for (int64_t i = 0; c->normalise_experts && i < c->experts_per_token; i++) chosen[i].weight /= kept;
}

struct choosing {
    const float *scores;
    nmlp_expert_choice *choices;
    const nmlp_config *config;
};

static void choose_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct choosing *c = arg;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        choose(c->choices + t * c->config->experts_per_token, c->scores + t * c->config->n_experts, c->config);
}

/* The tokens of an expert, in order; returns how many. */
static int64_t gather(const nmlp_cpu_experts *room, const nmlp_config *c, int64_t expert, const float *x, int64_t s) {
    int64_t n = 0, k = c->experts_per_token;
    for (int64_t i = 0; i < s * k; i++) {
        if (room->choices[i].expert != expert) continue;
        memcpy(room->in + n * c->hidden, x + i / k * c->hidden, (size_t)c->hidden * sizeof *x);
        room->tokens[n++] = (int32_t)i;
    }
    return n;
}

void nmlp_cpu_experts_route(const nmlp_cpu_experts *room, const nmlp_cpu_weights *w, int64_t l, const float *x,
                            int64_t s, nmlp_expert_choice *choices) {
    enum { ROWS_PER_TASK = 16 };
    struct choosing choosing = {.scores = room->scores, .choices = choices, .config = &w->model->config};
    nmlp_linear_run(w->layers[l].router, room->scores, x, s, room->workspace, w->pool);
    nmlp_pool_for(w->pool, s, ROWS_PER_TASK, choose_rows, &choosing);
}

void nmlp_cpu_experts_run(const nmlp_cpu_experts *room, const nmlp_cpu_weights *w, int64_t l, float *y, const float *x,
                          int64_t s) {
    const nmlp_config *c = &w->model->config;
    const nmlp_cpu_layer *layer = &w->layers[l];
    nmlp_cpu_experts_route(room, w, l, x, s, room->choices);
    memset(y, 0, (size_t)(s * c->hidden) * sizeof *y);
    for (int64_t e = 0; e < c->n_experts; e++) {
        int64_t n = gather(room, c, e, x, s);
        if (n == 0) continue;
        nmlp_mlp_run(layer->experts[e], room->out, room->in, n, room->workspace, w->pool);
        for (int64_t i = 0; i < n; i++) {
            const float *from = room->out + i * c->hidden;
            float *to = y + room->tokens[i] / c->experts_per_token * c->hidden;
            float weight = room->choices[room->tokens[i]].weight;
            for (int64_t j = 0; j < c->hidden; j++) to[j] += weight * from[j];
        }
    }
}
