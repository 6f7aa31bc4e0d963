#include "model/slices.h"

#include <string.h>

/* Part `slice` of the rows of a view that holds those of all slices. */
static nmlp_view part_of(const nmlp_view *all, int64_t slice, int64_t n_slices) {
    int64_t rows = all->data ? all->shape[0] / n_slices : 0;
    return all->data ? nmlp_view_rows(all, slice * rows, rows) : *all;
}

size_t nmlp_layer_slice_copy_bytes(const nmlp_layer *layer) {
    const nmlp_factors *down = &layer->mlp[NMLP_MLP_DOWN];
    return nmlp_factors_is_dense(down) ? nmlp_view_bytes(&down->w) / (size_t)layer->slices : 0;
}

static nmlp_view copy_columns(const nmlp_view *w, int64_t slice, int64_t n_slices, char *to) {
    size_t bytes = nmlp_view_bytes(w) / (size_t)(w->shape[0] * n_slices); /* of a row of the slice */
    for (int64_t i = 0; i < w->shape[0]; i++)
        memcpy(to + (size_t)i * bytes, (const char *)nmlp_view_row(w, i) + (size_t)slice * bytes, bytes);
    return nmlp_view_2d(to, w->dtype, w->shape[0], w->shape[1] / n_slices);
}

void nmlp_layer_slice(nmlp_factors mlp[NMLP_MLP_MATRICES], const nmlp_layer *layer, int64_t slice, void *down) {
    int64_t n = layer->slices;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        const nmlp_factors *f = &layer->mlp[i];
        mlp[i] = (nmlp_factors){.w = f->w, .u = part_of(&f->u, slice, n), .v = part_of(&f->v, slice, n)};
        if (!nmlp_factors_is_dense(f)) continue;
        mlp[i].w = i == NMLP_MLP_DOWN ? copy_columns(&f->w, slice, n, down) : part_of(&f->w, slice, n);
    }
}
