#include "compress/factor/expert_ranks.h"

#include "base/mem.h"

/* What expert e gains by the next tile; below 0: it cannot have one. */
static double gain_of(const nmlp_factor_file *layer, int which, int64_t e, int64_t rank) {
    const nmlp_nested *n = &layer->experts[e].nested[which];
    return rank + layer->tile <= n->rank ? n->loss[rank] - n->loss[rank + layer->tile] : -1;
}

/* ranks [E] of mean `mean`, a multiple of the tile. Losses are convex in the rank, so tile after tile to whom it helps
 * most is best. */
static void deal(const nmlp_factor_file *layer, int which, int64_t mean, int64_t *ranks) {
    int64_t n = layer->n_experts, tile = layer->tile;
    int64_t low = mean / 2 / tile * tile;
    if (low < tile) low = mean < tile ? mean : tile;
    int64_t left = n * (mean - low) / tile;
    for (int64_t e = 0; e < n; e++) ranks[e] = low;
    for (; left > 0; left--) {
        int64_t best = 0;
        double best_gain = -1;
        for (int64_t e = 0; e < n; e++) {
            double gain = gain_of(layer, which, e, ranks[e]);
            if (gain > best_gain) {
                best = e;
                best_gain = gain;
            }
        }
        if (best_gain < 0) return;
        ranks[best] += tile;
    }
}

static nmlp_status fill_curve(nmlp_factor_file *layer, int which, int64_t *ranks, nmlp_err *err) {
    const nmlp_nested *first = &layer->experts[0].nested[which];
    nmlp_nested *n = &layer->nested[which];
    if (first->rank == 0) return NMLP_OK;
    double *loss = nmlp_mem_new((size_t)first->full + 1, sizeof *loss, err);
    if (!loss) return NMLP_E_NOMEM;
    *n = (nmlp_nested){.rows = first->rows,
                       .cols = first->cols,
                       .slices = 1,
                       .rank = first->rank,
                       .full = first->full,
                       .dtype = first->dtype,
                       .loss = loss,
                       .owned = loss};
    for (int64_t k = 0; k <= n->full; k++) {
        bool dealt = k > 0 && k % layer->tile == 0 && k <= n->rank;
        if (dealt) deal(layer, which, k, ranks);
        for (int64_t e = 0; e < layer->n_experts; e++)
            loss[k] += layer->experts[e].nested[which].loss[dealt ? ranks[e] : k];
    }
    return NMLP_OK;
}

nmlp_status nmlp_expert_ranks_curves(nmlp_factor_file *layer, nmlp_err *err) {
    int64_t *ranks = nmlp_mem_new((size_t)layer->n_experts, sizeof *ranks, err);
    nmlp_status st = ranks ? NMLP_OK : NMLP_E_NOMEM;
    for (int i = 0; i < NMLP_NESTED_COUNT && st == NMLP_OK; i++) st = fill_curve(layer, i, ranks, err);
    nmlp_mem_free(ranks);
    return st;
}

nmlp_status nmlp_expert_ranks_of(const nmlp_factor_file *layer, const nmlp_layer_ranks *ranks, int64_t index,
                                 nmlp_layer_ranks *out, nmlp_err *err) {
    *out = *ranks;
    if (!layer->experts) return NMLP_OK;
    int64_t *dealt = nmlp_mem_new((size_t)layer->n_experts, sizeof *dealt, err);
    if (!dealt) return NMLP_E_NOMEM;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        if (ranks->rank[i] == 0) continue;
        deal(layer, ranks->joint && i != NMLP_MLP_DOWN ? NMLP_NESTED_JOINT : i, ranks->rank[i], dealt);
        out->rank[i] = dealt[index];
    }
    nmlp_mem_free(dealt);
    return NMLP_OK;
}

nmlp_status nmlp_layer_mlps_build(nmlp_layer_mlps *out, const nmlp_factor_file *file, const nmlp_layer *dense,
                                  const nmlp_layer_ranks *ranks, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int64_t n = nmlp_factor_file_mlps(file);
    *out = (nmlp_layer_mlps){.mlps = nmlp_mem_new((size_t)n, sizeof *out->mlps, err),
                             .descs = nmlp_mem_new((size_t)n, sizeof *out->descs, err)};
    if (!out->mlps || !out->descs) NMLP_TRY(NMLP_E_NOMEM);
    for (; out->n < n; out->n++) {
        nmlp_layer_ranks own;
        NMLP_TRY(nmlp_expert_ranks_of(file, ranks, out->n, &own, err));
        NMLP_TRY(nmlp_layer_mlp_build(&out->mlps[out->n], file->experts ? &file->experts[out->n] : file,
                                      nmlp_layer_mlp_at(dense, out->n), &own, pool, err));
        out->descs[out->n] = out->mlps[out->n].desc;
    }
out:
    if (st != NMLP_OK) nmlp_layer_mlps_fini(out);
    return st;
}

void nmlp_layer_mlps_fini(nmlp_layer_mlps *mlps) {
    for (int64_t i = 0; i < mlps->n; i++) nmlp_layer_mlp_fini(&mlps->mlps[i]);
    nmlp_mem_free(mlps->mlps);
    nmlp_mem_free(mlps->descs);
    *mlps = (nmlp_layer_mlps){0};
}

void nmlp_layer_release(const nmlp_layer *dense, const nmlp_factor_file *file) {
    for (int64_t i = 0; i < nmlp_factor_file_mlps(file); i++) nmlp_mlp_release(nmlp_layer_mlp_at(dense, i));
}
