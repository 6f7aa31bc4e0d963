#include "compress/factor/factor_slices.h"

#include <string.h>

#include "base/ints.h"
#include "base/mem.h"

nmlp_status nmlp_nested_join(nmlp_nested *joined, const nmlp_nested *const *parts, int64_t n, nmlp_err *err) {
    *joined = *parts[0];
    joined->owned = NULL;
    joined->slices = n;
    if (joined->rank == 0) return NMLP_OK;
    size_t elem = nmlp_dtype_bytes(joined->dtype), n_losses = (size_t)joined->full + 1;
    size_t u_bytes = (size_t)joined->rows * elem, v_bytes = (size_t)joined->cols * elem;
    size_t n_vectors = (size_t)(joined->rank * n);
    char *block = nmlp_mem_new(n_losses * sizeof(double) + n_vectors * (u_bytes + v_bytes), 1, err);
    if (!block) return NMLP_E_NOMEM;
    double *loss = (double *)block;
    char *ut = block + n_losses * sizeof(double), *v = ut + n_vectors * u_bytes;
    for (int64_t s = 0; s < n; s++) {
        for (size_t k = 0; k < n_losses; k++) loss[k] += parts[s]->loss[k];
        for (int64_t i = 0; i < joined->rank; i++) {
            size_t to = (size_t)(i * n + s), from = (size_t)i;
            memcpy(ut + to * u_bytes, (const char *)parts[s]->ut + from * u_bytes, u_bytes);
            memcpy(v + to * v_bytes, (const char *)parts[s]->v + from * v_bytes, v_bytes);
        }
    }
    joined->owned = block;
    joined->loss = loss;
    joined->ut = ut;
    joined->v = v;
    return NMLP_OK;
}

nmlp_status nmlp_slice_blocks(void **blocks, const void *vectors, nmlp_dtype dtype, int64_t n, int64_t rank,
                              int64_t width, int64_t first, int64_t count, nmlp_err *err) {
    size_t elem = nmlp_dtype_bytes(dtype), part = (size_t)count * elem;
    char *to = nmlp_mem_new((size_t)(n * rank * n) * part, 1, err);
    if (!to) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < n * rank; i++)
        memcpy(to + (size_t)(i * n + i % n) * part, (const char *)vectors + (size_t)(i * width + first) * elem, part);
    *blocks = to;
    return NMLP_OK;
}

/* Element (row, col) of a matrix of any plain type. */
static void copy_elem(char *to, const nmlp_view *from, int64_t row, int64_t col) {
    size_t elem = nmlp_dtype_bytes(from->dtype);
    memcpy(to, (const char *)nmlp_view_row(from, row) + (size_t)col * elem, elem);
}

nmlp_status nmlp_slice_stack(nmlp_factors *stacked, void **u, void **v, const nmlp_factors *f, bool down, int64_t n,
                             nmlp_err *err) {
    int64_t rank = f->u.shape[1] / n, rows = down ? f->u.shape[0] : f->u.shape[0] / n;
    int64_t cols = down ? f->v.shape[1] / n : f->v.shape[1];
    size_t elem = nmlp_dtype_bytes(f->u.dtype);
    char *new_u = nmlp_mem_new((size_t)(n * rows * rank), elem, err);
    char *new_v = nmlp_mem_new((size_t)(n * rank * cols), elem, err);
    *u = new_u;
    *v = new_v;
    if (!new_u || !new_v) return NMLP_E_NOMEM;
    for (int64_t s = 0; s < n; s++) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t k = 0; k < rank; k++)
                copy_elem(new_u + (size_t)((s * rows + i) * rank + k) * elem, &f->u, down ? i : s * rows + i,
                          k * n + s);
        for (int64_t k = 0; k < rank; k++)
            memcpy(new_v + (size_t)((s * rank + k) * cols) * elem,
                   (const char *)nmlp_view_row(&f->v, k * n + s) + (down ? (size_t)(s * cols) * elem : 0),
                   (size_t)cols * elem);
    }
    *stacked = (nmlp_factors){.u = nmlp_view_2d(new_u, f->u.dtype, n * rows, rank),
                              .v = nmlp_view_2d(new_v, f->v.dtype, n * rank, cols)};
    return NMLP_OK;
}

nmlp_status nmlp_slice_run(const nmlp_factors mlp[NMLP_MLP_MATRICES], nmlp_activation activation,
                           const nmlp_kernels *kernels, float *y, const float *x, int64_t s, int64_t hidden,
                           nmlp_pool *pool, nmlp_err *err) {
    enum { STEP = 512 };
    nmlp_mlp_desc desc = {
        .gate = mlp[NMLP_MLP_GATE], .up = mlp[NMLP_MLP_UP], .down = mlp[NMLP_MLP_DOWN], .activation = activation};
    nmlp_mlp *made = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_mlp_create(&made, kernels, &desc, pool, err));
    void *workspace = nmlp_mem_new(nmlp_mlp_workspace_bytes(made, STEP, nmlp_pool_threads(pool)), 1, err);
    for (int64_t t = 0; workspace && t < s; t += STEP)
        nmlp_mlp_run(made, y + t * hidden, x + t * hidden, nmlp_min(STEP, s - t), workspace, pool);
    nmlp_mlp_destroy(made);
    nmlp_mem_free(workspace);
    return workspace ? NMLP_OK : NMLP_E_NOMEM;
}
