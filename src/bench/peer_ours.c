#include <stdio.h>

#include "base/mem.h"
#include "base/pages.h"
#include "bench/peer.h"
#include "tensor/quant.h"

struct ours {
    nmlp_mlp *mlp[NMLP_PEER_COPIES_MAX];
    int n_copies;
    void *workspace;
    size_t workspace_bytes;
    nmlp_pool *pool;
};

static void run(void *ctx, int copy, float *y, const float *x, int64_t s) {
    struct ours *ours = ctx;
    nmlp_mlp_run(ours->mlp[copy % ours->n_copies], y, x, s, ours->workspace, ours->pool);
}

static void destroy(void *ctx) {
    struct ours *ours = ctx;
    if (!ours) return;
    for (int i = 0; i < ours->n_copies; i++) nmlp_mlp_destroy(ours->mlp[i]);
    nmlp_pages_free(ours->workspace, ours->workspace_bytes);
    nmlp_mem_free(ours);
}

/* Of weights and scales as they are stored. */
static double bytes_per_weight(const nmlp_mlp_desc *desc) {
    const nmlp_factors *factors[] = {&desc->gate, &desc->up, &desc->down};
    double bytes = 0, n = 0;
    for (int i = 0; i < 3; i++) {
        const nmlp_view *views[] = {&factors[i]->w, &factors[i]->u, &factors[i]->v};
        for (int j = 0; j < 3; j++) {
            if (!views[j]->data) continue;
            bytes += (double)nmlp_quant_stored_bytes(views[j]);
            n += (double)nmlp_view_elems(views[j]);
        }
    }
    return bytes / n;
}

nmlp_status nmlp_peer_ours(nmlp_peer *peer, const nmlp_bench_case *c, const nmlp_kernels *kernels, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct ours *ours = nmlp_mem_new(1, sizeof *ours, err);
    if (!ours) return NMLP_E_NOMEM;
    ours->pool = c->pool;
    while (ours->n_copies < c->n_copies && ours->n_copies < NMLP_PEER_COPIES_MAX) {
        NMLP_TRY(nmlp_mlp_create(&ours->mlp[ours->n_copies], kernels, &c->desc, c->pool, err));
        ours->n_copies++;
    }
    ours->workspace_bytes = nmlp_mlp_workspace_bytes(ours->mlp[0], c->s_max, nmlp_pool_threads(c->pool));
    ours->workspace = nmlp_pages_new(ours->workspace_bytes, err);
    if (!ours->workspace) NMLP_TRY(NMLP_E_NOMEM);
    *peer = (nmlp_peer){.ctx = ours,
                        .run = run,
                        .destroy = destroy,
                        .bytes_per_weight = bytes_per_weight(&c->desc),
                        .bf16 = nmlp_kernels_rounds_to_bf16(kernels)};
    snprintf(peer->name, sizeof peer->name, "%s", nmlp_kernels_name(kernels));
    ours = NULL;
out:
    destroy(ours);
    return st;
}
