#include "train/adapters.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

nmlp_status nmlp_train_adapter_init(nmlp_train_adapter *t, nmlp_train_param *target, int64_t rank, uint64_t seed,
                                    nmlp_arena *arena, nmlp_err *err) {
    int64_t n = target->rows;
    int64_t k = target->cols;
    nmlp_rng rng;
    if (rank > n) rank = n;
    if (rank > k) rank = k;
    *t = (nmlp_train_adapter){.target = target, .rank = rank};
    t->base = nmlp_arena_new(arena, (size_t)(n * k), sizeof(float), err);
    t->a = nmlp_arena_new(arena, (size_t)(n * rank), sizeof(float), err);
    t->da = nmlp_arena_new(arena, (size_t)(n * rank), sizeof(float), err);
    t->b = nmlp_arena_new(arena, (size_t)(rank * k), sizeof(float), err);
    t->db = nmlp_arena_new(arena, (size_t)(rank * k), sizeof(float), err);
    if (!t->base || !t->a || !t->da || !t->b || !t->db) return NMLP_E_NOMEM;
    memcpy(t->base, target->data, (size_t)(n * k) * sizeof(float));
    nmlp_rng_seed(&rng, seed);
    /* Rows of A have length 1: a step of size e in B moves an entry of the sum by about e, as training the sum itself
     * would. */
    double deviation = 1 / sqrt((double)rank);
    for (int64_t i = 0; i < n * rank; i++) t->a[i] = (float)(deviation * nmlp_rng_normal(&rng));
    return NMLP_OK;
}

void nmlp_train_adapter_apply(const nmlp_train_adapter *t, nmlp_train_exec *exec) {
    int64_t n = t->target->rows;
    int64_t k = t->target->cols;
    memcpy(t->target->data, t->base, (size_t)(n * k) * sizeof(float));
    nmlp_train_exec_matmul(
        exec, &(nmlp_train_matmul){
                  .c = t->target->data, .a = t->a, .b = t->b, .accumulate = true, .m = n, .n = k, .k = t->rank});
}

void nmlp_train_adapter_backward(const nmlp_train_adapter *t, nmlp_train_exec *exec) {
    int64_t n = t->target->rows;
    int64_t k = t->target->cols;
    const float *grad = t->target->grad;
    nmlp_train_exec_matmul(
        exec,
        &(nmlp_train_matmul){.c = t->da, .a = grad, .b = t->b, .b_transposed = true, .m = n, .n = t->rank, .k = k});
    nmlp_train_exec_matmul(
        exec,
        &(nmlp_train_matmul){.c = t->db, .a = t->a, .b = grad, .a_transposed = true, .m = t->rank, .n = k, .k = n});
}
