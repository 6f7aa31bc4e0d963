#include "compress/factor/factor_file.h"

#include <string.h>

#include "base/mem.h"

enum { ALIGN = 64 };
static const char magic[8] = {'N', 'M', 'L', 'P', 'N', 'S', 'T', '2'};

struct header {
    char magic[8];
    uint64_t fingerprint;
    struct {
        int64_t rows, cols, rank, full, dtype;
    } entry[NMLP_NESTED_COUNT];
    int64_t n_weights;
    char pad[ALIGN - (24 + 5 * 8 * NMLP_NESTED_COUNT) % ALIGN];
};

static size_t padded(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static size_t part_bytes(const nmlp_nested *n, int part) {
    size_t elem = nmlp_dtype_bytes(n->dtype);
    switch (part) {
    case 0: return (size_t)(n->full + 1) * sizeof(double);
    case 1: return (size_t)(n->rank * n->rows) * elem;
    default: return (size_t)(n->rank * n->cols) * elem;
    }
}

static nmlp_status put_padded(nmlp_file_writer *w, const void *bytes, size_t len, nmlp_err *err) {
    static const char zeros[ALIGN];
    if (len == 0) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_write(w, bytes, len, err));
    return nmlp_file_writer_write(w, zeros, padded(len) - len, err);
}

nmlp_status nmlp_factor_file_write(const char *path, uint64_t fingerprint, const nmlp_nested *nested,
                                   const double *row_weights, int64_t n_weights, nmlp_err *err) {
    nmlp_file_writer writer;
    struct header header = {.fingerprint = fingerprint, .n_weights = n_weights};
    nmlp_status st = NMLP_OK;
    memcpy(header.magic, magic, sizeof magic);
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        const nmlp_nested *n = &nested[i];
        header.entry[i].rows = n->rows;
        header.entry[i].cols = n->cols;
        header.entry[i].rank = n->rank;
        header.entry[i].full = n->full;
        header.entry[i].dtype = (int64_t)n->dtype;
    }
    NMLP_RETURN_IF_FAILED(nmlp_file_writer_open(&writer, path, err));
    NMLP_TRY(nmlp_file_writer_write(&writer, &header, sizeof header, err));
    NMLP_TRY(put_padded(&writer, row_weights, (size_t)n_weights * sizeof *row_weights, err));
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        const void *parts[3] = {nested[i].loss, nested[i].ut, nested[i].v};
        for (int part = 0; part < 3 && nested[i].rank > 0; part++)
            NMLP_TRY(put_padded(&writer, parts[part], part_bytes(&nested[i], part), err));
    }
    return nmlp_file_writer_commit(&writer, err);
out:
    nmlp_file_writer_abort(&writer);
    return st;
}

/* The files are this program's own, complete by construction and guarded by the job's fingerprint. */
nmlp_status nmlp_factor_file_open(nmlp_factor_file *factor_file, const char *path, uint64_t fingerprint, bool *found,
                                  nmlp_err *err) {
    struct header header;
    *factor_file = (nmlp_factor_file){0};
    *found = false;
    if (!nmlp_file_exists(path)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_file_map_open(&factor_file->map, path, err));
    size_t at = sizeof header;
    if (factor_file->map.bytes < at) goto other;
    memcpy(&header, factor_file->map.data, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.fingerprint != fingerprint) goto other;
    if (header.n_weights > 0) factor_file->row_weights = (const double *)(const void *)(factor_file->map.data + at);
    at += padded((size_t)header.n_weights * sizeof *factor_file->row_weights);
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        nmlp_nested *n = &factor_file->nested[i];
        n->rows = header.entry[i].rows;
        n->cols = header.entry[i].cols;
        n->rank = header.entry[i].rank;
        n->full = header.entry[i].full;
        n->dtype = (nmlp_dtype)header.entry[i].dtype;
        if (n->rank == 0) continue;
        n->loss = (const double *)(const void *)(factor_file->map.data + at);
        n->ut = factor_file->map.data + (at += padded(part_bytes(n, 0)));
        n->v = factor_file->map.data + (at += padded(part_bytes(n, 1)));
        at += padded(part_bytes(n, 2));
    }
    if (at != factor_file->map.bytes) goto other;
    *found = true;
    return NMLP_OK;
other:
    nmlp_factor_file_close(factor_file);
    return NMLP_OK;
}

void nmlp_factor_file_close(nmlp_factor_file *factor_file) {
    nmlp_file_map_close(&factor_file->map);
    *factor_file = (nmlp_factor_file){0};
}

void nmlp_factor_file_release(const nmlp_factor_file *factor_file) {
    if (factor_file->map.data) nmlp_file_map_release(factor_file->map.data, factor_file->map.bytes);
}

void nmlp_layer_release(const nmlp_layer *dense) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++)
        if (dense->mlp[i].w.data) nmlp_file_map_release(dense->mlp[i].w.data, nmlp_view_bytes(&dense->mlp[i].w));
}

static int64_t matrix_params(int64_t rows, int64_t cols, int64_t rank) {
    return rank > 0 ? rank * (rows + cols) : rows * cols;
}

int64_t nmlp_layer_ranks_params(const nmlp_layer_ranks *r, int64_t hidden, int64_t intermediate) {
    int64_t down = matrix_params(hidden, intermediate, r->rank[NMLP_MLP_DOWN]);
    if (r->joint) return down + r->rank[NMLP_MLP_GATE] * (hidden + 2 * intermediate);
    return down + matrix_params(intermediate, hidden, r->rank[NMLP_MLP_GATE]) +
           matrix_params(intermediate, hidden, r->rank[NMLP_MLP_UP]);
}

static nmlp_factors *factors_of(nmlp_layer_mlp *mlp, int matrix) {
    return matrix == NMLP_MLP_GATE ? &mlp->desc.gate : matrix == NMLP_MLP_UP ? &mlp->desc.up : &mlp->desc.down;
}

nmlp_status nmlp_layer_mlp_build(nmlp_layer_mlp *mlp, const nmlp_factor_file *factor_file, const nmlp_layer *dense,
                                 const nmlp_layer_ranks *ranks, nmlp_pool *pool, nmlp_err *err) {
    *mlp = (nmlp_layer_mlp){0};
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        nmlp_factors *f = factors_of(mlp, i);
        int64_t rank = ranks->rank[i];
        if (rank == 0) {
            *f = dense->mlp[i];
            continue;
        }
        bool joint = ranks->joint && i != NMLP_MLP_DOWN;
        const nmlp_nested *n = &factor_file->nested[joint ? NMLP_NESTED_JOINT : i];
        int64_t rows = joint ? n->rows / 2 : n->rows;
        void *u = nmlp_mem_new((size_t)(rows * rank), nmlp_dtype_bytes(n->dtype), err);
        if (!u) {
            nmlp_layer_mlp_fini(mlp);
            return NMLP_E_NOMEM;
        }
        nmlp_nested_u(n, rank, joint && i == NMLP_MLP_UP ? rows : 0, rows, u, pool);
        mlp->owned[i] = u;
        f->u = nmlp_view_2d(u, n->dtype, rows, rank);
        f->v = nmlp_view_2d(n->v, n->dtype, rank, n->cols);
    }
    return NMLP_OK;
}

void nmlp_layer_mlp_fini(nmlp_layer_mlp *mlp) {
    for (int i = 0; i < 2 * NMLP_MLP_MATRICES; i++) nmlp_mem_free(mlp->owned[i]);
    *mlp = (nmlp_layer_mlp){0};
}
