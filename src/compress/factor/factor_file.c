#include "compress/factor/factor_file.h"

#include <string.h>

#include "base/mem.h"
#include "compress/factor/factor_slices.h"

static const char magic[] = "NMLPNST5";

/* At the front of the payload; row weights and the parts of every entry follow, each at a multiple of 64 bytes. */
struct header {
    struct {
        int64_t rows, cols, slices, rank, full, dtype;
    } entry[NMLP_NESTED_COUNT];
    int64_t n_weights;
};

static size_t part_bytes(const nmlp_nested *n, int part) {
    size_t elem = nmlp_dtype_bytes(n->dtype);
    switch (part) {
    case 0: return (size_t)(n->full + 1) * sizeof(double);
    case 1: return (size_t)(n->rank * n->slices * n->rows) * elem;
    default: return (size_t)(n->rank * n->slices * n->cols) * elem;
    }
}

nmlp_status nmlp_factor_file_write(const char *path, uint64_t fingerprint, const nmlp_nested *nested,
                                   const double *row_weights, int64_t n_weights, nmlp_err *err) {
    nmlp_work_writer writer;
    struct header header = {.n_weights = n_weights};
    nmlp_status st = NMLP_OK;
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        const nmlp_nested *n = &nested[i];
        header.entry[i].rows = n->rows;
        header.entry[i].cols = n->cols;
        header.entry[i].slices = n->slices;
        header.entry[i].rank = n->rank;
        header.entry[i].full = n->full;
        header.entry[i].dtype = (int64_t)n->dtype;
    }
    NMLP_RETURN_IF_FAILED(nmlp_work_writer_open(&writer, path, magic, fingerprint, err));
    NMLP_TRY(nmlp_work_writer_put_padded(&writer, &header, sizeof header, err));
    NMLP_TRY(nmlp_work_writer_put_padded(&writer, row_weights, (size_t)n_weights * sizeof *row_weights, err));
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        const void *parts[3] = {nested[i].loss, nested[i].ut, nested[i].v};
        for (int part = 0; part < 3 && nested[i].rank > 0; part++)
            NMLP_TRY(nmlp_work_writer_put_padded(&writer, parts[part], part_bytes(&nested[i], part), err));
    }
    return nmlp_work_writer_commit(&writer, err);
out:
    nmlp_work_writer_abort(&writer);
    return st;
}

/* Whether an entry has the shape that the model's matrix asks for. */
static bool fits_block(const struct header *h, int i, const nmlp_block *b, int64_t slices) {
    int64_t rows = b->rows[i], cols = b->cols[i], hidden = b->cols[0];
    int64_t dtype = h->entry[i].dtype, rank = h->entry[i].rank;
    if (rank == 0) return true; /* not made */
    if (i > b->n_first + 1) return false;
    return h->entry[i].rows == rows && h->entry[i].cols == cols && h->entry[i].slices == slices &&
           h->entry[i].full == hidden && rank > 0 && rank <= nmlp_rank_break_even(rows, cols) && rank <= hidden &&
           dtype >= NMLP_DTYPE_F32 && dtype <= NMLP_DTYPE_F16;
}

static bool read_payload(nmlp_factor_file *file, size_t payload_bytes, const nmlp_block *block, int64_t slices) {
    struct header header;
    nmlp_work_cursor cursor = {.at = file->map.data, .left_bytes = payload_bytes};
    const void *front = nmlp_work_take(&cursor, sizeof header, true);
    if (!front) return false;
    memcpy(&header, front, sizeof header);
    if (header.n_weights != 0 && header.n_weights != slices * block->rows[block->n_first + 1]) return false;
    const double *row_weights = nmlp_work_take(&cursor, (size_t)header.n_weights * sizeof(double), true);
    file->row_weights = header.n_weights ? row_weights : NULL;
    for (int i = 0; i < NMLP_NESTED_COUNT; i++) {
        nmlp_nested *n = &file->nested[i];
        if (!fits_block(&header, i, block, slices)) return false;
        if (header.entry[i].rank == 0) continue;
        *n = (nmlp_nested){.rows = header.entry[i].rows,
                           .cols = header.entry[i].cols,
                           .slices = slices,
                           .rank = header.entry[i].rank,
                           .full = header.entry[i].full,
                           .dtype = (nmlp_dtype)header.entry[i].dtype};
        n->loss = nmlp_work_take(&cursor, part_bytes(n, 0), true);
        n->ut = nmlp_work_take(&cursor, part_bytes(n, 1), true);
        n->v = nmlp_work_take(&cursor, part_bytes(n, 2), true);
    }
    return !cursor.failed && cursor.left_bytes == 0;
}

nmlp_status nmlp_factor_file_open(nmlp_factor_file *file, const char *path, uint64_t fingerprint,
                                  const nmlp_block *block, int64_t slices, nmlp_work_state *state, nmlp_err *err) {
    size_t payload_bytes = 0;
    *file = (nmlp_factor_file){0};
    NMLP_RETURN_IF_FAILED(nmlp_work_file_open(&file->map, path, magic, fingerprint, &payload_bytes, state, err));
    if (*state != NMLP_WORK_VALID || read_payload(file, payload_bytes, block, slices)) return NMLP_OK;
    *state = NMLP_WORK_DAMAGED;
    nmlp_factor_file_close(file);
    return NMLP_OK;
}

void nmlp_factor_file_close(nmlp_factor_file *factor_file) {
    for (int64_t e = 0; factor_file->experts && e < factor_file->n_experts; e++)
        nmlp_factor_file_close(&factor_file->experts[e]);
    for (int i = 0; factor_file->experts && i < NMLP_NESTED_COUNT; i++) nmlp_nested_fini(&factor_file->nested[i]);
    nmlp_mem_free(factor_file->experts);
    nmlp_file_map_close(&factor_file->map);
    *factor_file = (nmlp_factor_file){0};
}

void nmlp_factor_file_release(const nmlp_factor_file *factor_file) {
    for (int64_t e = 0; factor_file->experts && e < factor_file->n_experts; e++)
        nmlp_factor_file_release(&factor_file->experts[e]);
    if (factor_file->map.data) nmlp_file_map_release(factor_file->map.data, factor_file->map.bytes);
}

void nmlp_mlp_release(const nmlp_factors dense[NMLP_MLP_MATRICES]) {
    for (int i = 0; i < NMLP_MLP_MATRICES; i++)
        if (dense[i].w.data) nmlp_file_map_release(dense[i].w.data, nmlp_view_bytes(&dense[i].w));
}

static nmlp_factors *factors_of(nmlp_layer_mlp *mlp, int matrix) {
    return matrix == NMLP_MLP_GATE ? &mlp->desc.gate : matrix == NMLP_MLP_UP ? &mlp->desc.up : &mlp->desc.down;
}

/* The first `rank` vectors as factors of the whole matrix, from `rows` rows of u, from the first-th on (of a slice). */
static nmlp_status take_vectors(nmlp_layer_mlp *mlp, int matrix, const nmlp_nested *n, int64_t rank, int64_t first,
                                int64_t rows, nmlp_pool *pool, nmlp_err *err) {
    nmlp_factors *f = factors_of(mlp, matrix);
    int64_t slices = n->slices, total = rank * slices;
    bool down = matrix == NMLP_MLP_DOWN;
    nmlp_nested whole = *n;
    void *blocks = NULL;
    if (slices > 1) {
        NMLP_RETURN_IF_FAILED(
            down ? nmlp_slice_blocks(&blocks, n->v, n->dtype, slices, rank, n->cols, 0, n->cols, err)
                 : nmlp_slice_blocks(&blocks, n->ut, n->dtype, slices, rank, n->rows, first, rows, err));
        mlp->owned[NMLP_MLP_MATRICES + matrix] = blocks;
        if (down)
            whole = (nmlp_nested){.rows = rows, .cols = slices * n->cols, .ut = n->ut, .v = blocks};
        else
            whole = (nmlp_nested){.rows = slices * rows, .cols = n->cols, .ut = blocks, .v = n->v};
        whole.dtype = n->dtype;
        rows = whole.rows;
        first = 0;
    }
    void *u = nmlp_mem_new((size_t)(rows * total), nmlp_dtype_bytes(n->dtype), err);
    if (!u) return NMLP_E_NOMEM;
    nmlp_nested_u(&whole, total, first, rows, u, pool);
    mlp->owned[matrix] = u;
    f->u = nmlp_view_2d(u, n->dtype, rows, total);
    f->v = nmlp_view_2d(whole.v, n->dtype, total, whole.cols);
    return NMLP_OK;
}

nmlp_status nmlp_layer_mlp_build(nmlp_layer_mlp *mlp, const nmlp_factor_file *factor_file,
                                 const nmlp_factors dense[NMLP_MLP_MATRICES], const nmlp_layer_ranks *ranks,
                                 nmlp_pool *pool, nmlp_err *err) {
    *mlp = (nmlp_layer_mlp){0};
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
        nmlp_factors *f = factors_of(mlp, i);
        int64_t rank = ranks->rank[i];
        if (rank == 0) {
            *f = dense[i];
            continue;
        }
        bool joint = ranks->joint && i != NMLP_MLP_DOWN;
        const nmlp_nested *n = &factor_file->nested[joint ? NMLP_NESTED_JOINT : i];
        int64_t rows = joint ? n->rows / 2 : n->rows;
        nmlp_status st = take_vectors(mlp, i, n, rank, joint && i == NMLP_MLP_UP ? rows : 0, rows, pool, err);
        if (st != NMLP_OK) {
            nmlp_layer_mlp_fini(mlp);
            return st;
        }
    }
    return NMLP_OK;
}

void nmlp_layer_mlp_fini(nmlp_layer_mlp *mlp) {
    for (int i = 0; i < 2 * NMLP_MLP_MATRICES; i++) nmlp_mem_free(mlp->owned[i]);
    *mlp = (nmlp_layer_mlp){0};
}

nmlp_status nmlp_layer_attention_build(nmlp_layer_attention *a, const nmlp_factor_file *file, const nmlp_layer *dense,
                                       const nmlp_layer_ranks *ranks, nmlp_pool *pool, nmlp_err *err) {
    int64_t first = 0;
    *a = (nmlp_layer_attention){.layer = *dense};
    a->layer.attention_shares_basis = ranks->joint;
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) {
        nmlp_factors *f = &a->layer.attention[i];
        int64_t rank = ranks->rank[i], rows = nmlp_factors_rows(&dense->attention[i]);
        bool joint = ranks->joint && i < NMLP_ATTENTION_O;
        const nmlp_nested *n = &file->nested[joint ? NMLP_ATTENTION_MATRICES : i];
        if (rank == 0) continue;
        void *u = nmlp_mem_new((size_t)(rows * rank), nmlp_dtype_bytes(n->dtype), err);
        if (!u) {
            nmlp_layer_attention_fini(a);
            return NMLP_E_NOMEM;
        }
        nmlp_nested_u(n, rank, joint ? first : 0, rows, u, pool);
        a->owned[i] = u;
        *f = (nmlp_factors){.u = nmlp_view_2d(u, n->dtype, rows, rank),
                            .v = nmlp_view_2d(n->v, n->dtype, rank, n->cols)};
        first += rows;
    }
    return NMLP_OK;
}

void nmlp_layer_attention_fini(nmlp_layer_attention *a) {
    for (int i = 0; i < NMLP_ATTENTION_MATRICES; i++) nmlp_mem_free(a->owned[i]);
    *a = (nmlp_layer_attention){0};
}
