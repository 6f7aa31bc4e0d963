#include "compress/factor/layer_file.h"

#include <string.h>

enum { ALIGN = 64, N_VIEWS = 3 * NMLP_MLP_MATRICES };
static const char magic[8] = {'N', 'M', 'L', 'P', 'L', 'A', 'Y', '1'};

struct header {
    char magic[8];
    uint64_t fingerprint;
    int64_t rank[NMLP_MLP_MATRICES];
    int64_t joint;
    int64_t dense_refitted;
    double error;
    double error_before;
    struct {
        int64_t dtype, rows, cols; /* rows 0: not stored */
    } view[N_VIEWS];
};

static size_t padded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static nmlp_factors *factors_of(nmlp_mlp_desc *desc, int i) {
    return i == 0 ? &desc->gate : i == 1 ? &desc->up : &desc->down;
}

static nmlp_view *view_of(nmlp_mlp_desc *desc, int i) {
    nmlp_factors *f = factors_of(desc, i / 3);
    return i % 3 == 0 ? &f->w : i % 3 == 1 ? &f->u : &f->v;
}

/* A dense matrix of the model's own and the second copy of a shared v stay out. */
static bool is_stored(const nmlp_mlp_desc *desc, const nmlp_layer *dense, const nmlp_view *view, int i) {
    if (!view->data) return false;
    if (i % 3 == 0) return view->data != dense->mlp[i / 3].w.data;
    return !(i == 5 && view->data == desc->gate.v.data);
}

static nmlp_status put_view(nmlp_file_writer *w, const nmlp_view *view, nmlp_err *err) {
    static const char zeros[ALIGN];
    size_t bytes = nmlp_view_bytes(view);
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_write(w, view->data, bytes, err));
    return nmlp_file_writer_write(w, zeros, padded(bytes) - bytes, err);
}

nmlp_status nmlp_layer_file_write(const char *path, uint64_t fingerprint, const nmlp_layer_file *layer,
                                  const nmlp_layer *dense, nmlp_err *err) {
    nmlp_mlp_desc desc = layer->desc;
    nmlp_file_writer writer;
    nmlp_status st = NMLP_OK;
    static const char zeros[ALIGN];
    struct header header = {.fingerprint = fingerprint,
                            .joint = layer->ranks.joint,
                            .dense_refitted = layer->dense_refitted,
                            .error = layer->error,
                            .error_before = layer->error_before};
    memcpy(header.magic, magic, sizeof magic);
    memcpy(header.rank, layer->ranks.rank, sizeof header.rank);
    for (int i = 0; i < N_VIEWS; i++) {
        const nmlp_view *view = view_of(&desc, i);
        if (!is_stored(&desc, dense, view, i)) continue;
        header.view[i].dtype = (int64_t)view->dtype;
        header.view[i].rows = view->shape[0];
        header.view[i].cols = view->shape[1];
    }
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_open(&writer, path, err));
    NMLP_TRY(nmlp_file_writer_write(&writer, &header, sizeof header, err));
    NMLP_TRY(nmlp_file_writer_write(&writer, zeros, padded(sizeof header) - sizeof header, err));
    for (int i = 0; i < N_VIEWS; i++)
        if (header.view[i].rows) NMLP_TRY(put_view(&writer, view_of(&desc, i), err));
    return nmlp_file_writer_commit(&writer, err);
out:
    nmlp_file_writer_abort(&writer);
    return st;
}

/* A damaged file must not send a reader beyond its end. */
static bool is_plausible(const struct header *header, int i, size_t file_bytes) {
    int64_t dtype = header->view[i].dtype, rows = header->view[i].rows, cols = header->view[i].cols;
    int64_t most = (int64_t)file_bytes;
    return dtype >= NMLP_DTYPE_F32 && dtype <= NMLP_DTYPE_F16 && rows > 0 && cols > 0 && rows <= most / cols;
}

nmlp_status nmlp_layer_file_open(nmlp_layer_file *layer, const char *path, uint64_t fingerprint, bool *found,
                                 nmlp_err *err) {
    struct header header;
    *layer = (nmlp_layer_file){0};
    *found = false;
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&layer->map, path, err));
    size_t at = padded(sizeof header);
    if (layer->map.bytes < at) goto other;
    memcpy(&header, layer->map.data, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.fingerprint != fingerprint) goto other;
    memcpy(layer->ranks.rank, header.rank, sizeof header.rank);
    layer->ranks.joint = header.joint != 0;
    layer->dense_refitted = header.dense_refitted != 0;
    layer->error = header.error;
    layer->error_before = header.error_before;
    for (int i = 0; i < N_VIEWS; i++) {
        if (header.view[i].rows == 0) continue;
        nmlp_view *view = view_of(&layer->desc, i);
        if (!is_plausible(&header, i, layer->map.bytes)) goto other;
        *view = nmlp_view_2d(layer->map.data + at, (nmlp_dtype)header.view[i].dtype, header.view[i].rows,
                             header.view[i].cols);
        at += padded(nmlp_view_bytes(view));
    }
    if (at != layer->map.bytes) goto other;
    if (layer->ranks.joint) layer->desc.up.v = layer->desc.gate.v;
    *found = true;
    return NMLP_OK;
other:
    nmlp_layer_file_close(layer);
    return NMLP_OK;
}

void nmlp_layer_file_close(nmlp_layer_file *layer) {
    nmlp_file_map_close(&layer->map);
    *layer = (nmlp_layer_file){0};
}

nmlp_mlp_desc nmlp_layer_file_mlp(const nmlp_layer_file *layer, const nmlp_layer *dense) {
    nmlp_mlp_desc desc = layer->desc;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        nmlp_factors *f = factors_of(&desc, i);
        if (!f->w.data && !f->u.data) *f = dense->mlp[i];
    }
    return desc;
}
