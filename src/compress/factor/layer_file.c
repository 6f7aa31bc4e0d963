#include "compress/factor/layer_file.h"

#include <string.h>

enum { N_VIEWS = 3 * NMLP_MODULE_MATRICES_MAX };
static const char magic[] = "NMLPLAY3";

struct header {
    int64_t rank[NMLP_MODULE_MATRICES_MAX];
    int64_t joint;
    int64_t dense_refitted;
    double error;
    double error_before;
    struct {
        int64_t dtype, rows, cols; /* rows 0: not stored */
    } view[N_VIEWS];
};

static nmlp_view *view_of(nmlp_layer_file *layer, int i) {
    nmlp_factors *f = &layer->factors[i / 3];
    return i % 3 == 0 ? &f->w : i % 3 == 1 ? &f->u : &f->v;
}

/* Whether view i is the v of a matrix that may have that of the first one. */
static bool may_share(nmlp_module_kind kind, int i) {
    return i % 3 == 2 && i / 3 > 0 && i / 3 < nmlp_module_of(kind)->n_first;
}

/* A dense matrix of the model's own and further copies of a shared v stay out. */
static bool is_stored(const nmlp_layer_file *layer, nmlp_module_kind kind, const nmlp_factors *dense,
                      const nmlp_view *view, int i) {
    if (!view->data) return false;
    if (i % 3 == 0) return view->data != dense[i / 3].w.data;
    return !(may_share(kind, i) && view->data == layer->factors[0].v.data);
}

nmlp_status nmlp_layer_file_write(const char *path, uint64_t fingerprint, const nmlp_layer_file *layer,
                                  nmlp_module_kind kind, const nmlp_factors *dense, nmlp_err *err) {
    nmlp_layer_file own = *layer;
    nmlp_work_writer writer;
    nmlp_status st = NMLP_OK;
    struct header header = {.joint = layer->ranks.joint,
                            .dense_refitted = layer->dense_refitted,
                            .error = layer->error,
                            .error_before = layer->error_before};
    memcpy(header.rank, layer->ranks.rank, sizeof header.rank);
    for (int i = 0; i < N_VIEWS; i++) {
        const nmlp_view *view = view_of(&own, i);
        if (!is_stored(&own, kind, dense, view, i)) continue;
        header.view[i].dtype = (int64_t)view->dtype;
        header.view[i].rows = view->shape[0];
        header.view[i].cols = view->shape[1];
    }
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, magic, fingerprint, err));
    NMLP_TRY(nmlp_work_writer_put_padded(&writer, &header, sizeof header, err));
    for (int i = 0; i < N_VIEWS; i++) {
        const nmlp_view *view = view_of(&own, i);
        if (header.view[i].rows) NMLP_TRY(nmlp_work_writer_put_padded(&writer, view->data, nmlp_view_bytes(view), err));
    }
    return nmlp_work_writer_commit(&writer, err);
out:
    nmlp_work_writer_abort(&writer);
    return st;
}

/* Whether view i has the shape that the ranks ask for: a factor of its matrix, or a dense last one that was refitted.
 */
static bool fits_ranks(const struct header *h, int i, const nmlp_layer_ranks *ranks, int64_t slices,
                       nmlp_module_kind kind, const nmlp_factors *dense) {
    int matrix = i / 3, last = nmlp_module_of(kind)->n_first;
    if (matrix > last) return h->view[i].rows == 0;
    int64_t rank = ranks->rank[matrix] * slices, rows = nmlp_factors_rows(&dense[matrix]),
            cols = nmlp_factors_cols(&dense[matrix]);
    bool want =
        rank > 0 ? i % 3 != 0 && !(ranks->joint && may_share(kind, i)) : i == 3 * last && h->dense_refitted != 0;
    if (!want) return h->view[i].rows == 0;
    if (i % 3 == 1) cols = rank;
    if (i % 3 == 2) rows = rank;
    return h->view[i].rows == rows && h->view[i].cols == cols && h->view[i].dtype >= NMLP_DTYPE_F32 &&
           h->view[i].dtype <= NMLP_DTYPE_F16;
}

static bool read_payload(nmlp_layer_file *layer, size_t payload_bytes, const nmlp_layer_ranks *ranks, int64_t slices,
                         nmlp_module_kind kind, const nmlp_factors *dense) {
    struct header header;
    nmlp_work_cursor cursor = {.at = layer->map.data, .left_bytes = payload_bytes};
    const void *front = nmlp_work_take(&cursor, sizeof header, true);
    if (!front) return false;
    memcpy(&header, front, sizeof header);
    if (memcmp(header.rank, ranks->rank, sizeof header.rank) != 0 || (header.joint != 0) != ranks->joint) return false;
    layer->ranks = *ranks;
    layer->dense_refitted = header.dense_refitted != 0;
    layer->error = header.error;
    layer->error_before = header.error_before;
    for (int i = 0; i < N_VIEWS; i++) {
        if (!fits_ranks(&header, i, ranks, slices, kind, dense)) return false;
        if (header.view[i].rows == 0) continue;
        nmlp_view *view = view_of(layer, i);
        *view = nmlp_view_2d(NULL, (nmlp_dtype)header.view[i].dtype, header.view[i].rows, header.view[i].cols);
        view->data = nmlp_work_take(&cursor, nmlp_view_bytes(view), true);
    }
    for (int i = 1; ranks->joint && i < nmlp_module_of(kind)->n_first; i++) layer->factors[i].v = layer->factors[0].v;
    return !cursor.failed && cursor.left_bytes == 0;
}

nmlp_status nmlp_layer_file_open(nmlp_layer_file *layer, const char *path, uint64_t fingerprint,
                                 const nmlp_layer_ranks *ranks, int64_t slices, nmlp_module_kind kind,
                                 const nmlp_factors *dense, nmlp_work_state *state, nmlp_err *err) {
    size_t payload_bytes = 0;
    *layer = (nmlp_layer_file){0};
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&layer->map, path, magic, fingerprint, &payload_bytes, state, err));
    if (*state != NMLP_WORK_VALID || read_payload(layer, payload_bytes, ranks, slices, kind, dense)) return NMLP_OK;
    *state = NMLP_WORK_DAMAGED;
    nmlp_layer_file_close(layer);
    return NMLP_OK;
}

void nmlp_layer_file_close(nmlp_layer_file *layer) {
    nmlp_file_map_close(&layer->map);
    *layer = (nmlp_layer_file){0};
}

void nmlp_layer_file_factors(const nmlp_layer_file *layer, nmlp_module_kind kind, const nmlp_factors *dense,
                             nmlp_factors out[NMLP_MODULE_MATRICES_MAX]) {
    for (int i = 0; i <= nmlp_module_of(kind)->n_first; i++) {
        out[i] = layer->factors[i];
        if (!out[i].w.data && !out[i].u.data) out[i] = dense[i];
    }
}

nmlp_mlp_desc nmlp_layer_file_mlp(const nmlp_layer_file *layer, const nmlp_factors dense[NMLP_MLP_MATRICES]) {
    nmlp_factors f[NMLP_MODULE_MATRICES_MAX];
    nmlp_layer_file_factors(layer, NMLP_MODULE_MLP, dense, f);
    return (nmlp_mlp_desc){.gate = f[NMLP_MLP_GATE], .up = f[NMLP_MLP_UP], .down = f[NMLP_MLP_DOWN]};
}
