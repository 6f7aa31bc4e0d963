/* Norm, rotation and sum: memory-bound, portable. */
#include <math.h>

#include "kernels/kernels_int.h"

enum { LANES = 16, ELEMS_PER_TASK = 16384 };

static int64_t rows_per_task(int64_t row_elems) {
    return row_elems >= ELEMS_PER_TASK ? 1 : ELEMS_PER_TASK / (row_elems > 0 ? row_elems : 1);
}

struct norm {
    float *y;
    const float *x;
    const float *weight;
    float eps;
    int64_t h;
};

static float sum_of_squares(const float *x, int64_t n) {
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) lanes[j] += x[i + j] * x[i + j];
    float sum = 0.0f;
    for (; i < n; i++) sum += x[i] * x[i];
    for (int j = 0; j < LANES; j++) sum += lanes[j];
    return sum;
}

static void norm_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct norm *norm = arg;
    (void)thread;
    for (int64_t s = begin; s < end; s++) {
        const float *x = norm->x + s * norm->h;
        float *y = norm->y + s * norm->h;
        float inverse = 1.0f / sqrtf(sum_of_squares(x, norm->h) / (float)norm->h + norm->eps);
        for (int64_t i = 0; i < norm->h; i++) y[i] = x[i] * inverse * norm->weight[i];
    }
}

void nmlp_rmsnorm(float *y, const float *x, const float *weight, float eps, int64_t s, int64_t h, nmlp_pool *pool) {
    struct norm norm = {.y = y, .x = x, .weight = weight, .eps = eps, .h = h};
    nmlp_pool_for(pool, s, rows_per_task(h), norm_rows, &norm);
}

struct rotation {
    float *x;
    const float *table;
    int64_t first_pos;
    int64_t n_heads;
    int64_t head_dim;
};

static void rotate_head(float *restrict low, float *restrict high, const float *restrict cosine,
                        const float *restrict sine, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float a = low[i];
        float b = high[i];
        low[i] = a * cosine[i] - b * sine[i];
        high[i] = b * cosine[i] + a * sine[i];
    }
}

static void rotate_rows(void *arg, int64_t begin, int64_t end, int thread) {
    const struct rotation *r = arg;
    int64_t half = r->head_dim / 2;
    (void)thread;
    for (int64_t s = begin; s < end; s++) {
        const float *row = r->table + (r->first_pos + s) * r->head_dim;
        for (int64_t h = 0; h < r->n_heads; h++) {
            float *head = r->x + (s * r->n_heads + h) * r->head_dim;
            rotate_head(head, head + half, row, row + half, half);
        }
    }
}

void nmlp_rope(float *x, const float *table, int64_t s, int64_t first_pos, int64_t n_heads, int64_t head_dim,
               nmlp_pool *pool) {
    struct rotation rotation = {
        .x = x, .table = table, .first_pos = first_pos, .n_heads = n_heads, .head_dim = head_dim};
    nmlp_pool_for(pool, s, rows_per_task(n_heads * head_dim), rotate_rows, &rotation);
}

struct sum {
    float *x;
    const float *y;
};

static void add_range(void *arg, int64_t begin, int64_t end, int thread) {
    const struct sum *sum = arg;
    (void)thread;
    for (int64_t i = begin; i < end; i++) sum->x[i] += sum->y[i];
}

void nmlp_add(float *x, const float *y, int64_t n, nmlp_pool *pool) {
    struct sum sum = {.x = x, .y = y};
    nmlp_pool_for(pool, n, ELEMS_PER_TASK, add_range, &sum);
}
