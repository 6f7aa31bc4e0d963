/* Norm, rotation, sums. They belong to no kernel set, so they take the widest vectors the CPU has. */
#include <math.h>

#include "kernels/kernels_internal.h"

enum { ELEMS_PER_TASK = 16384 };

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

struct rotation {
    const nmlp_vec *vec;
    float *x;
    const float *table;
    int64_t first_pos;
    int64_t n_heads;
    int64_t head_dim;
};

static void rotate_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct rotation *r = arg;
    int64_t half = r->head_dim / 2;
    (void)thread;
    for (int64_t s = begin; s < end; s++) {
        const float *row = r->table + (r->first_pos + s) * r->head_dim;
        for (int64_t h = 0; h < r->n_heads; h++) {
            float *head = r->x + (s * r->n_heads + h) * r->head_dim;
            r->vec->rotate(head, head, row, half);
        }
    }
}

void nmlp_rope(float *x, const float *table, int64_t s, int64_t first_pos, int64_t n_heads, int64_t head_dim,
               nmlp_pool *pool) {
    struct rotation rotation = {
        .vec = widest(), .x = x, .table = table, .first_pos = first_pos, .n_heads = n_heads, .head_dim = head_dim};
    nmlp_pool_for(pool, s, rows_per_task(n_heads * head_dim), rotate_rows, &rotation);
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
    double *silu2, *slope2, *act2;
    const float *gate, *up;
    int64_t s, n;
};

/* Some neurons over all tokens. */
static void square_block(const struct squares *q, int64_t first, int64_t n) {
    float silu2[NEURONS_PER_TASK], slope2[NEURONS_PER_TASK], act2[NEURONS_PER_TASK];
    for (int64_t t = 0; t < q->s; t += TOKENS_PER_RUN) {
        nmlp_vec_swiglu block = {.gate = q->gate + t * q->n + first,
                                 .up = q->up + t * q->n + first,
                                 .stride = q->n,
                                 .n_tokens = nmlp_min(TOKENS_PER_RUN, q->s - t),
                                 .n = n,
                                 .silu2 = silu2,
                                 .slope2 = slope2,
                                 .act2 = act2};
        q->vec->swiglu_squares(&block);
        for (int64_t j = 0; j < n; j++) {
            q->silu2[first + j] += (double)silu2[j];
            q->slope2[first + j] += (double)slope2[j];
            q->act2[first + j] += (double)act2[j];
        }
    }
}

/* Neurons are split over threads; each sums its tokens in order. */
static void square_neurons(void *arg, int64_t begin, int64_t end, int thread) {
    (void)thread;
    for (int64_t j = begin; j < end; j += NEURONS_PER_TASK) square_block(arg, j, nmlp_min(NEURONS_PER_TASK, end - j));
}

void nmlp_swiglu_squares(double *silu2, double *slope2, double *act2, const float *gate, const float *up, int64_t s,
                         int64_t n, nmlp_pool *pool) {
    struct squares q = {
        .vec = widest(), .silu2 = silu2, .slope2 = slope2, .act2 = act2, .gate = gate, .up = up, .s = s, .n = n};
    nmlp_pool_for(pool, n, NEURONS_PER_TASK, square_neurons, &q);
}
