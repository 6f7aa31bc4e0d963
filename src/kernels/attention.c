/* Causal attention with an online softmax: one pass over keys and values, memory of one accumulator per thread. */
#include <math.h>

#include "kernels/kernels_int.h"

size_t nmlp_attention_workspace_bytes(const nmlp_kernels *kernels, const nmlp_attention *shape, int n_threads) {
    (void)kernels;
    return nmlp_round_up((size_t)shape->head_dim * sizeof(float), NMLP_CARVE_ALIGN) * (size_t)n_threads;
}

struct run {
    const nmlp_attention *args;
    char *workspace;
};

static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void attend(const nmlp_attention *a, int64_t query, int64_t head, float *acc) {
    int64_t dim = a->head_dim;
    int64_t kv_head = head / (a->n_heads / a->n_kv_heads);
    const float *q = a->q + (query * a->n_heads + head) * dim;
    const float *k = a->k + kv_head * a->cache_len * dim;
    const float *v = a->v + kv_head * a->cache_len * dim;
    float *out = a->out + (query * a->n_heads + head) * dim;
    float max = -INFINITY;
    float sum = 0.0f;
    for (int64_t d = 0; d < dim; d++) acc[d] = 0.0f;
    for (int64_t t = 0; t <= a->first_pos + query; t++) {
        float score = dot(q, k + t * dim, dim) * a->scale;
        if (score > max) {
            float shrink = expf(max - score);
            for (int64_t d = 0; d < dim; d++) acc[d] *= shrink;
            sum *= shrink;
            max = score;
        }
        float p = expf(score - max);
        for (int64_t d = 0; d < dim; d++) acc[d] += p * v[t * dim + d];
        sum += p;
    }
    for (int64_t d = 0; d < dim; d++) out[d] = acc[d] / sum;
}

static void run_range(void *arg, int64_t begin, int64_t end, int thread) {
    const struct run *run = arg;
    size_t stride = nmlp_attention_workspace_bytes(NULL, run->args, 1);
    float *acc = (float *)(run->workspace + stride * (size_t)thread);
    for (int64_t i = begin; i < end; i++) attend(run->args, i / run->args->n_heads, i % run->args->n_heads, acc);
}

void nmlp_attention_run(const nmlp_kernels *kernels, const nmlp_attention *args, void *workspace, nmlp_pool *pool) {
    (void)kernels;
    struct run run = {.args = args, .workspace = workspace};
    nmlp_pool_for(pool, args->s * args->n_heads, 1, run_range, &run);
}
