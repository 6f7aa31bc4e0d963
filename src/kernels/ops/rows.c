/* Norm, rotation, sums. They belong to no kernel set, so they take the widest vectors the CPU has. */
#include <math.h>

#include "kernels/kernels_internal.h"

enum { ELEMS_PER_TASK = 16384, ELEMS_PER_GATING_TASK = 4096 };

static const nmlp_vec *widest(void) {
#if defined(__x86_64__)
    const nmlp_cpu *cpu = nmlp_cpu_get();
    if (cpu->avx512) return &nmlp_vec_avx512;
    if (cpu->avx2_fma) return &nmlp_vec_avx2;
#endif
    return &nmlp_vec_ref;
}

static int64_t rows_per_task(int64_t row_elems) {
    return row_elems >= ELEMS_PER_TASK ? 1 : ELEMS_PER_TASK / (row_elems > 0 ? row_elems : 1);
}

void nmlp_norm_row(float *y, const float *x, const float *weight, float eps, int64_t h) {
    const nmlp_vec *vec = widest();
    float inverse = 1.0f / sqrtf(vec->dot(x, x, h) / (float)h + eps);
    vec->mul_scaled(y, x, weight, inverse, h);
}

struct norm {
    float *y;
    const float *x;
    const float *weight;
    float eps;
    int64_t h;
};

static void norm_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct norm *norm = arg;
    (void)thread;
    for (int64_t s = begin; s < end; s++)
        nmlp_norm_row(norm->y + s * norm->h, norm->x + s * norm->h, norm->weight, norm->eps, norm->h);
}

void nmlp_rmsnorm(float *y, const float *x, const float *weight, float eps, int64_t s, int64_t h, nmlp_pool *pool) {
    struct norm norm = {.y = y, .x = x, .weight = weight, .eps = eps, .h = h};
    nmlp_pool_for(pool, s, rows_per_task(h), norm_rows, &norm);
}

struct rotating {
    const nmlp_vec *vec;
    float *x;
    const nmlp_rotation *rope;
    int64_t first_pos;
    int64_t n_heads;
    int64_t head_dim;
};

static void rotate_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct rotating *r = arg;
    (void)thread;
    for (int64_t s = begin; s < end; s++) {
        const float *row = r->rope->angles + (r->first_pos + s) * r->rope->dim;
        for (int64_t h = 0; h < r->n_heads; h++) {
            float *head = r->x + (s * r->n_heads + h) * r->head_dim;
            r->vec->rotate(head, head, row, r->rope->dim / 2);
        }
    }
}

void nmlp_rope(float *x, const nmlp_rotation *rope, int64_t s, int64_t first_pos, int64_t n_heads, int64_t head_dim,
               nmlp_pool *pool) {
    struct rotating rotating = {
        .vec = widest(), .x = x, .rope = rope, .first_pos = first_pos, .n_heads = n_heads, .head_dim = head_dim};
    if (rope->angles) nmlp_pool_for(pool, s, rows_per_task(n_heads * head_dim), rotate_rows, &rotating);
}

struct sum {
    const nmlp_vec *vec;
    float *x;
    const float *y;
};

static void add_range(void *arg, int64_t begin, int64_t end, int thread) {
    const struct sum *sum = arg;
    (void)thread;
    sum->vec->add(sum->x + begin, sum->y + begin, end - begin);
}

void nmlp_add(float *x, const float *y, int64_t n, nmlp_pool *pool) {
    struct sum sum = {.vec = widest(), .x = x, .y = y};
    nmlp_pool_for(pool, n, ELEMS_PER_TASK, add_range, &sum);
}

struct scaling {
    const nmlp_vec *vec;
    float *y;
    const float *x;
    float factor, cap;
};

static void scale_range(void *arg, int64_t begin, int64_t end, int thread) {
    const struct scaling *s = arg;
    (void)thread;
    s->vec->scale(s->y + begin, s->x + begin, s->factor, end - begin);
}

void nmlp_multiply(float *y, const float *x, float factor, int64_t n, nmlp_pool *pool) {
    struct scaling scaling = {.vec = widest(), .y = y, .x = x, .factor = factor};
    nmlp_pool_for(pool, n, ELEMS_PER_TASK, scale_range, &scaling);
}

static void cap_range(void *arg, int64_t begin, int64_t end, int thread) {
    const struct scaling *s = arg;
    (void)thread;
    s->vec->softcap(s->y + begin, s->factor, s->cap, end - begin);
}

void nmlp_softcap(float *x, float factor, float cap, int64_t n, nmlp_pool *pool) {
    struct scaling scaling = {.vec = widest(), .y = x, .factor = factor, .cap = cap};
    nmlp_pool_for(pool, n, ELEMS_PER_TASK, cap_range, &scaling);
}

nmlp_softmax_view nmlp_softmax_compare(const float *x, const float *y, int64_t n) {
    const nmlp_vec *vec = widest();
    float top = vec->largest(x, n);
    double sums[2];
    vec->exp_sums(sums, x, y, top, n);
    return (nmlp_softmax_view){.log_sum = (double)top + log(sums[0]), .mean_difference = sums[1] / sums[0]};
}

enum { NEURONS_PER_TASK = 64, TOKENS_PER_RUN = 32 };

struct squares {
    const nmlp_vec *vec;
    const nmlp_glu_squares *sums;
    const float *gate, *up;
    int64_t s, n;
};

/* Some neurons over all tokens. */
static void square_block(const struct squares *q, int64_t first, int64_t n) {
    float gate2[NEURONS_PER_TASK], slope2[NEURONS_PER_TASK], act2[NEURONS_PER_TASK];
    for (int64_t t = 0; t < q->s; t += TOKENS_PER_RUN) {
        nmlp_vec_glu block = {.gate = q->gate + t * q->n + first,
                              .up = q->up + t * q->n + first,
                              .stride = q->n,
                              .n_tokens = nmlp_min(TOKENS_PER_RUN, q->s - t),
                              .n = n,
                              .activation = q->sums->activation,
                              .gate2 = gate2,
                              .slope2 = slope2,
                              .act2 = act2};
        q->vec->glu_squares(&block);
        for (int64_t j = 0; j < n; j++) {
            q->sums->gate2[first + j] += (double)gate2[j];
            q->sums->slope2[first + j] += (double)slope2[j];
            q->sums->act2[first + j] += (double)act2[j];
        }
    }
}

/* Neurons are split over threads; each sums its tokens in order. */
static void square_neurons(void *arg, int64_t begin, int64_t end, int thread) {
    (void)thread;
    for (int64_t j = begin; j < end; j += NEURONS_PER_TASK) square_block(arg, j, nmlp_min(NEURONS_PER_TASK, end - j));
}

void nmlp_glu_squares_add(const nmlp_glu_squares *squares, const float *gate, const float *up, int64_t s, int64_t n,
                          nmlp_pool *pool) {
    struct squares q = {.vec = widest(), .sums = squares, .gate = gate, .up = up, .s = s, .n = n};
    nmlp_pool_for(pool, n, NEURONS_PER_TASK, square_neurons, &q);
}

struct gating {
    void (*run)(float *act, const float *gate, const float *up, int64_t n);
    float *act;
    const float *gate;
    const float *up;
};

static void gate_range(void *arg, int64_t begin, int64_t end, int thread) {
    const struct gating *g = arg;
    (void)thread;
    g->run(g->act + begin, g->gate + begin, g->up + begin, end - begin);
}

/* Of the set whose matmuls come before it: "ref" has no instruction that others have. */
void nmlp_glu(const nmlp_kernels *kernels, nmlp_activation activation, float *act, const float *gate, const float *up,
              int64_t n, nmlp_pool *pool) {
    bool gelu = activation == NMLP_ACTIVATION_GELU_TANH;
    struct gating gating = {
        .run = gelu ? kernels->vec->gelu_mul : kernels->vec->silu_mul, .act = act, .gate = gate, .up = up};
    nmlp_pool_for(pool, n, ELEMS_PER_GATING_TASK, gate_range, &gating);
}
