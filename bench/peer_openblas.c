/* The chain as sgemm calls on f32 weights. */
#include <cblas.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/pages.h"
#include "peers.h"

enum { COPIES_MAX = NMLP_PEER_COPIES_MAX };

struct blas {
    nmlp_bench_case c;
    nmlp_chain chain;
    float *w[COPIES_MAX][6];
    float *gate; /* [S,I] */
    float *up;
    float *inner; /* [S,r] */
};

static size_t bytes_of(const nmlp_view *w) { return (size_t)nmlp_view_elems(w) * sizeof(float); }

static void gemm(const struct blas *b, int copy, int at, float *y, const float *x, int64_t s) {
    const nmlp_view *w = &b->chain.w[at];
    int n = (int)w->shape[0];
    int k = (int)w->shape[1];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)s, n, k, 1.0f, x, k, b->w[copy][at], k, 0.0f, y, n);
}

static void project(const struct blas *b, int copy, int which, float *y, const float *x, int64_t s) {
    if (b->chain.n == 3) {
        gemm(b, copy, which, y, x, s);
        return;
    }
    gemm(b, copy, 2 * which, b->inner, x, s);
    gemm(b, copy, 2 * which + 1, y, b->inner, s);
}

static void run(void *ctx, int copy, float *y, const float *x, int64_t s) {
    const struct blas *b = ctx;
    copy %= b->c.n_copies;
    project(b, copy, 0, b->gate, x, s);
    project(b, copy, 1, b->up, x, s);
    nmlp_chain_activate(b->c.pool, b->gate, b->gate, b->up, NMLP_DTYPE_F32, s * b->c.inner);
    project(b, copy, 2, y, b->gate, s);
}

static void destroy(void *ctx) {
    struct blas *b = ctx;
    for (int i = 0; i < b->c.n_copies; i++)
        for (int j = 0; j < b->chain.n; j++) nmlp_pages_free(b->w[i][j], bytes_of(&b->chain.w[j]));
    nmlp_mem_free(b->gate);
    nmlp_mem_free(b->up);
    nmlp_mem_free(b->inner);
    nmlp_mem_free(b);
}

static nmlp_status widen_weights(struct blas *b, nmlp_err *err) {
    for (int i = 0; i < b->c.n_copies; i++)
        for (int j = 0; j < b->chain.n; j++) {
            const nmlp_view *w = &b->chain.w[j];
            b->w[i][j] = nmlp_pages_new(bytes_of(w), err);
            if (!b->w[i][j]) return NMLP_E_NOMEM;
            nmlp_to_f32(b->w[i][j], w->data, w->dtype, (size_t)nmlp_view_elems(w));
        }
    return NMLP_OK;
}

nmlp_status nmlp_peer_openblas(nmlp_peer *peer, const nmlp_bench_case *c, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct blas *b = nmlp_mem_new(1, sizeof *b, err);
    if (!b) return NMLP_E_NOMEM;
    b->c = *c;
    if (b->c.n_copies > COPIES_MAX) b->c.n_copies = COPIES_MAX;
    b->chain = nmlp_chain_of(&c->desc);
    NMLP_TRY(widen_weights(b, err));
    b->gate = nmlp_mem_new((size_t)(c->s_max * c->inner), sizeof(float), err);
    b->up = nmlp_mem_new((size_t)(c->s_max * c->inner), sizeof(float), err);
    b->inner = nmlp_mem_new((size_t)(c->s_max * (c->rank + 1)), sizeof(float), err);
    if (!b->gate || !b->up || !b->inner) NMLP_TRY(NMLP_E_NOMEM);
    openblas_set_num_threads(nmlp_pool_threads(c->pool));
    *peer = (nmlp_peer){.ctx = b, .run = run, .destroy = destroy, .bytes_per_weight = 4.0};
    snprintf(peer->name, sizeof peer->name, "openblas-%s", openblas_get_corename());
    b = NULL;
out:
    if (b) destroy(b);
    return st;
}
