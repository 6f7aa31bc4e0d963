#include "compress/factor/block.h"

nmlp_block nmlp_block_of(const nmlp_config *c, nmlp_module_kind kind, int64_t layer, int64_t slices) {
    nmlp_block b = {.kind = kind,
                    .layer = layer,
                    .n_first = nmlp_module_of(kind)->n_first,
                    .count = kind == NMLP_MODULE_MLP ? nmlp_config_mlp_count(c, layer) : 1};
    int joint = b.n_first + 1;
    for (int i = 0; i <= b.n_first; i++) {
        nmlp_module_shape(c, kind, layer, i, &b.rows[i], &b.cols[i]);
        if (i < b.n_first) b.rows[i] /= slices;
        if (i == b.n_first) b.cols[i] /= slices;
    }
    b.cols[joint] = b.cols[0];
    for (int i = 0; i < b.n_first; i++) b.rows[joint] += b.rows[i];
    return b;
}

bool nmlp_layer_ranks_are_dense(const nmlp_layer_ranks *r) {
    for (int i = 0; i < NMLP_MODULE_MATRICES_MAX; i++)
        if (r->rank[i] > 0) return false;
    return true;
}

int64_t nmlp_block_params(const nmlp_block *b, const nmlp_layer_ranks *r) {
    int64_t params = 0;
    int joint = b->n_first + 1;
    for (int i = 0; i <= b->n_first; i++) {
        int64_t rank = r ? r->rank[i] : 0;
        if (r && r->joint && i < b->n_first) continue;
        params += rank > 0 ? rank * (b->rows[i] + b->cols[i]) : b->rows[i] * b->cols[i];
    }
    return r && r->joint ? params + r->rank[0] * (b->rows[joint] + b->cols[joint]) : params;
}
