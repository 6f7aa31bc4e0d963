#include "train/optimiser.h"

#include <math.h>

#include "base/mem.h"

enum { GRAIN = 16384 };

nmlp_train_adamw nmlp_train_adamw_defaults(void) {
    return (nmlp_train_adamw){.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
}

struct squares {
    const float *grad;
    double *partial; /* one for each GRAIN elements */
    int64_t n;
};

static void sum_squares(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct squares *s = ctx;
    (void)thread;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t last = (piece + 1) * GRAIN < s->n ? (piece + 1) * GRAIN : s->n;
        double sum = 0;
        for (int64_t i = piece * GRAIN; i < last; i++) sum += (double)s->grad[i] * (double)s->grad[i];
        s->partial[piece] = sum;
    }
}

nmlp_status nmlp_train_grad_norm(nmlp_pool *pool, const nmlp_train_trainable *arrays, size_t n, double *norm,
                                 nmlp_err *err) {
    int64_t most = 1;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t pieces = (arrays[i].n + GRAIN - 1) / GRAIN;
        most = pieces > most ? pieces : most;
    }
    double *partial = nmlp_mem_new((size_t)most, sizeof *partial, err);
    if (!partial) return NMLP_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        struct squares s = {.grad = arrays[i].grad, .partial = partial, .n = arrays[i].n};
        int64_t pieces = (arrays[i].n + GRAIN - 1) / GRAIN;
        nmlp_pool_for(pool, pieces, 1, sum_squares, &s);
        for (int64_t p = 0; p < pieces; p++) sum += partial[p];
    }
    nmlp_mem_free(partial);
    *norm = sqrt(sum);
    return NMLP_OK;
}

struct update {
    const nmlp_train_trainable *w;
    float beta1, beta2, epsilon;
    float step_size;    /* rate / (1 - beta1^step) */
    float square_scale; /* 1 / (1 - beta2^step) */
    float keep;         /* 1 - rate * weight_decay */
    float grad_scale;
};

static void update_some(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct update *u = ctx;
    float *data = u->w->data;
    float *mean = u->w->mean;
    float *square = u->w->square;
    const float *grad = u->w->grad;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float g = grad[i] * u->grad_scale;
        mean[i] = u->beta1 * mean[i] + (1 - u->beta1) * g;
        square[i] = u->beta2 * square[i] + (1 - u->beta2) * g * g;
        data[i] = u->keep * data[i] - u->step_size * mean[i] / (sqrtf(square[i] * u->square_scale) + u->epsilon);
    }
}

void nmlp_train_adamw_update(const nmlp_train_adamw *adam, nmlp_pool *pool, nmlp_train_trainable *arrays, size_t n,
                             double rate, int64_t step, double grad_scale) {
    struct update u = {.beta1 = (float)adam->beta1,
                       .beta2 = (float)adam->beta2,
                       .epsilon = (float)adam->epsilon,
                       .step_size = (float)(rate / (1 - pow(adam->beta1, (double)step))),
                       .square_scale = (float)(1 / (1 - pow(adam->beta2, (double)step))),
                       .keep = (float)(1 - rate * adam->weight_decay),
                       .grad_scale = (float)grad_scale};
    for (size_t i = 0; i < n; i++) {
        u.w = &arrays[i];
        nmlp_pool_for(pool, arrays[i].n, GRAIN, update_some, &u);
    }
}

double nmlp_train_schedule_rate(const nmlp_train_schedule *s, int64_t step) {
    const double pi = 3.14159265358979323846;
    if (step < s->warmup) return s->peak * (double)(step + 1) / (double)(s->warmup + 1);
    int64_t falling = s->steps - 1 - s->warmup;
    if (falling <= 0) return s->peak;
    double way = (double)(step - s->warmup) / (double)falling;
    return s->peak * (s->floor + (1 - s->floor) * 0.5 * (1 + cos(pi * way)));
}
