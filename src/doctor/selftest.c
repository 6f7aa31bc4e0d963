#include "doctor/selftest.h"

#include "base/mem.h"

/* Rows, outputs and inputs that no tile divides. */
enum { S = 67, N = 37, K = 101 };

typedef struct product {
    float x[S][K];
    float w[N][K];
    float y[S][N];
} product;

static void fill(product *p) {
    for (int i = 0; i < S; i++)
        for (int k = 0; k < K; k++) p->x[i][k] = (float)((i * 31 + k * 17) % 64 - 32) / 32;
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++) p->w[n][k] = (float)((n * 29 + k * 13) % 64 - 31) / 32;
}

/* Operands are multiples of 1/32 up to 1, so every sum is a multiple of 1/1024 below K: exact in f32 in any order. */
static bool is_product(const product *p) {
    for (int i = 0; i < S; i++) {
        for (int n = 0; n < N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += (double)p->x[i][k] * (double)p->w[n][k];
            if ((double)p->y[i][n] != sum) return false;
        }
    }
    return true;
}

nmlp_status nmlp_selftest(bool *sound, const nmlp_kernels *set, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_linear *linear = NULL;
    void *workspace = NULL;
    product *p = nmlp_mem_new(1, sizeof *p, err);
    if (!p) return NMLP_E_NOMEM;
    *sound = false;
    fill(p);
    nmlp_view weight = nmlp_view_2d(p->w, NMLP_DTYPE_F32, N, K);
    nmlp_view no_bias = {0};
    NMLP_TRY(nmlp_linear_create(&linear, set, &weight, &no_bias, NULL, err));
    workspace = nmlp_mem_new(1, nmlp_linear_workspace_bytes(linear, S, 1) + 1, err);
    if (!workspace) NMLP_TRY(NMLP_E_NOMEM);
    nmlp_linear_run(linear, &p->y[0][0], &p->x[0][0], S, workspace, NULL);
    *sound = is_product(p);
out:
    nmlp_mem_free(workspace);
    nmlp_linear_destroy(linear);
    nmlp_mem_free(p);
    return st;
}
