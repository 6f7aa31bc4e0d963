#include "cuda/weights.h"

#include "base/mem.h"
#include "cuda/decode/decode_program.h"
#include "cuda/decode/decode_quant.h"
#include "cuda/tensor_map.h"
#include "tensor/quant.h"

enum { ROWS_AT_ONCE_BYTES = 16 << 20, PARTS_MAX = 3 };

size_t nmlp_cuda_matrix_bytes(const nmlp_cuda_matrix *m) { return (size_t)m->n * (size_t)m->k * sizeof(uint16_t); }

static size_t tile_count(const nmlp_cuda_matrix *m) {
    return (size_t)nmlp_cuda_divide_up(m->n, NMLP_CUDA_DECODE_TILE_ROWS) *
           (size_t)nmlp_cuda_divide_up(m->k, NMLP_CUDA_DECODE_TILE_COLS);
}

size_t nmlp_cuda_matrix_step_bytes(const nmlp_cuda_matrix *m) {
    return m->tiles ? tile_count(m) * (size_t)nmlp_cuda_decode_tile_bytes(m->format) : nmlp_cuda_matrix_bytes(m);
}

size_t nmlp_cuda_mlp_weights_bytes(const nmlp_cuda_mlp_weights *w) {
    return nmlp_cuda_matrix_bytes(&w->basis) + nmlp_cuda_matrix_bytes(&w->gate) + nmlp_cuda_matrix_bytes(&w->up) +
           nmlp_cuda_matrix_bytes(&w->down_basis) + nmlp_cuda_matrix_bytes(&w->down);
}

size_t nmlp_cuda_mlp_weights_step_bytes(const nmlp_cuda_mlp_weights *w) {
    return nmlp_cuda_matrix_step_bytes(&w->basis) + nmlp_cuda_matrix_step_bytes(&w->gate) +
           nmlp_cuda_matrix_step_bytes(&w->up) + nmlp_cuda_matrix_step_bytes(&w->down_basis) +
           nmlp_cuda_matrix_step_bytes(&w->down);
}

/* Other types, quantised ones too, become bf16 on the host, some rows at a time. */
static nmlp_status upload_converted(uint16_t *to, int32_t pitch, const nmlp_view *view, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    int64_t rows = view->shape[0];
    int64_t cols = view->shape[1];
    int64_t at_once = ROWS_AT_ONCE_BYTES / (cols * (int64_t)sizeof(float)) + 1;
    if (at_once > rows) at_once = rows;
    size_t n = (size_t)(at_once * cols);
    float *wide = nmlp_mem_new(n, sizeof *wide, err);
    uint16_t *narrow = nmlp_mem_new(n, sizeof *narrow, err);
    if (!wide || !narrow) st = NMLP_E_NOMEM;
    for (int64_t r = 0; st == NMLP_OK && r < rows; r += at_once) {
        int64_t here = rows - r < at_once ? rows - r : at_once;
        for (int64_t i = 0; i < here; i++) nmlp_quant_row_to_f32(wide + i * cols, view, r + i);
        nmlp_from_f32(narrow, NMLP_DTYPE_BF16, wide, (size_t)(here * cols));
        st = NMLP_CUDA_CHECK(cudaMemcpy2D(to + r * pitch, (size_t)pitch * 2, narrow, (size_t)cols * 2, (size_t)cols * 2,
                                          (size_t)here, cudaMemcpyHostToDevice),
                             "uploading weights", err);
    }
    nmlp_mem_free(narrow);
    nmlp_mem_free(wide);
    return st;
}

static nmlp_status upload_rows(uint16_t *to, int32_t pitch, const nmlp_view *view, nmlp_err *err) {
    if (view->dtype != NMLP_DTYPE_BF16) return upload_converted(to, pitch, view, err);
    size_t row_bytes = (size_t)view->shape[1] * sizeof *to;
    return NMLP_CUDA_CHECK(cudaMemcpy2D(to, (size_t)pitch * sizeof *to, view->data, row_bytes, row_bytes,
                                        (size_t)view->shape[0], cudaMemcpyHostToDevice),
                           "uploading weights", err);
}

/* Memory for a matrix of the size written in it. */
static nmlp_status take_matrix(nmlp_cuda_matrix *m, nmlp_cuda_arena *arena, nmlp_err *err) {
    m->map = nmlp_cuda_arena_take(arena, NMLP_CUDA_TENSOR_MAP_BYTES);
    m->data = nmlp_cuda_arena_take(arena, nmlp_cuda_matrix_bytes(m));
    return arena->committed ? nmlp_cuda_tensor_map_upload(m->map, m->data, m->n, m->k, NMLP_CUDA_DECODE_TILE_ROWS,
                                                          NMLP_CUDA_DECODE_TILE_COLS / 64, err)
                            : NMLP_OK;
}

static nmlp_cuda_decode_format format_of(const nmlp_cuda_decode_part *parts, int n) {
    nmlp_dtype dtype = parts[0].view->dtype;
    for (int i = 0; i < n; i++) {
        const nmlp_view *view = parts[i].view;
        bool has_zeros = view->dtype == NMLP_DTYPE_Q4 && view->per_group; /* tiles have no place for them */
        if (view->dtype != dtype || has_zeros) return NMLP_CUDA_DECODE_BF16;
    }
    return dtype == NMLP_DTYPE_Q8 || nmlp_quant_widens_to_q8(dtype) ? NMLP_CUDA_DECODE_Q8
           : dtype == NMLP_DTYPE_Q4                                 ? NMLP_CUDA_DECODE_Q4
                                                                    : NMLP_CUDA_DECODE_BF16;
}

/* The quantised copy, where all parts are of one such type. */
static nmlp_status upload_tiles(nmlp_cuda_matrix *m, nmlp_cuda_arena *arena, const nmlp_cuda_decode_part *parts,
                                int n_parts, nmlp_err *err) {
    m->format = (int32_t)format_of(parts, n_parts);
    if (m->format == NMLP_CUDA_DECODE_BF16) return NMLP_OK;
    size_t tile_bytes = (size_t)nmlp_cuda_decode_tile_bytes(m->format);
    int64_t per_group = nmlp_cuda_divide_up(m->k, NMLP_CUDA_DECODE_TILE_COLS);
    size_t group_bytes = (size_t)per_group * tile_bytes;
    m->tiles = nmlp_cuda_arena_take(arena, tile_count(m) * tile_bytes);
    if (!arena->committed) return NMLP_OK;
    unsigned char *packed = nmlp_mem_new(group_bytes, 1, err);
    nmlp_status st = packed ? NMLP_OK : NMLP_E_NOMEM;
    for (int64_t g = 0; st == NMLP_OK && g < nmlp_cuda_divide_up(m->n, NMLP_CUDA_DECODE_TILE_ROWS); g++) {
        for (int64_t t = 0; t < per_group; t++)
            nmlp_cuda_decode_quant_pack(packed + (size_t)t * tile_bytes, parts, n_parts, g, t);
        st = NMLP_CUDA_CHECK(
            cudaMemcpy((char *)m->tiles + (size_t)g * group_bytes, packed, group_bytes, cudaMemcpyHostToDevice),
            "uploading quantised weights", err);
    }
    nmlp_mem_free(packed);
    return st;
}

nmlp_status nmlp_cuda_upload_matrix(nmlp_cuda_matrix *out, nmlp_cuda_arena *arena, const nmlp_view *const *parts,
                                    int n_parts, nmlp_err *err) {
    *out = (nmlp_cuda_matrix){.k = nmlp_cuda_pad(parts[0]->shape[1])};
    for (int i = 0; i < n_parts; i++) out->n += (int32_t)parts[i]->shape[0];
    NMLP_RETURN_IF_FAILED(take_matrix(out, arena, err));
    uint16_t *to = out->data;
    nmlp_cuda_decode_part rows[PARTS_MAX];
    int64_t row = 0;
    for (int i = 0; i < n_parts; i++) {
        if (arena->committed) NMLP_RETURN_IF_FAILED(upload_rows(to + row * out->k, out->k, parts[i], err));
        rows[i] = (nmlp_cuda_decode_part){.view = parts[i], .row = row};
        row += parts[i]->shape[0];
    }
    return upload_tiles(out, arena, rows, n_parts, err);
}

nmlp_status nmlp_cuda_upload_vector(float **out, nmlp_cuda_arena *arena, const nmlp_view *const *parts, int n_parts,
                                    nmlp_err *err) {
    int64_t n = 0;
    *out = NULL;
    for (int i = 0; i < n_parts && parts[i]->data; i++) n += nmlp_view_elems(parts[i]);
    if (n == 0) return NMLP_OK;
    *out = nmlp_cuda_arena_take(arena, (size_t)nmlp_cuda_pad(n) * sizeof **out);
    if (!arena->committed) return NMLP_OK;
    float *wide = nmlp_mem_new((size_t)n, sizeof *wide, err);
    if (!wide) return NMLP_E_NOMEM;
    int64_t at = 0;
    for (int i = 0; i < n_parts; i++) {
        int64_t here = nmlp_view_elems(parts[i]);
        nmlp_to_f32(wide + at, parts[i]->data, parts[i]->dtype, (size_t)here);
        at += here;
    }
    nmlp_status st = NMLP_CUDA_CHECK(cudaMemcpy(*out, wide, (size_t)n * sizeof *wide, cudaMemcpyHostToDevice),
                                     "uploading a vector", err);
    nmlp_mem_free(wide);
    return st;
}

static nmlp_status upload_one(nmlp_cuda_matrix *out, nmlp_cuda_arena *arena, const nmlp_view *view, nmlp_err *err) {
    return nmlp_cuda_upload_matrix(out, arena, &view, 1, err);
}

/* Gate's basis above up's, up's on a padded row: its products then start on a padded column. */
static nmlp_status upload_two_bases(nmlp_cuda_mlp_weights *w, nmlp_cuda_arena *arena, const nmlp_view *gate,
                                    const nmlp_view *up, nmlp_err *err) {
    w->up_start = nmlp_cuda_pad(gate->shape[0]);
    w->basis = (nmlp_cuda_matrix){.n = w->up_start + (int32_t)up->shape[0], .k = nmlp_cuda_pad(gate->shape[1])};
    NMLP_RETURN_IF_FAILED(take_matrix(&w->basis, arena, err));
    uint16_t *to = w->basis.data;
    const nmlp_cuda_decode_part rows[] = {{.view = gate, .row = 0}, {.view = up, .row = w->up_start}};
    if (arena->committed) {
        NMLP_RETURN_IF_FAILED(upload_rows(to, w->basis.k, gate, err));
        NMLP_RETURN_IF_FAILED(upload_rows(to + (int64_t)w->up_start * w->basis.k, w->basis.k, up, err));
    }
    return upload_tiles(&w->basis, arena, rows, 2, err);
}

nmlp_status nmlp_cuda_upload_mlp(nmlp_cuda_mlp_weights *out, nmlp_cuda_arena *arena, const nmlp_factors *gate,
                                 const nmlp_factors *up, const nmlp_factors *down, nmlp_err *err) {
    *out = (nmlp_cuda_mlp_weights){.gate_rank = (int32_t)nmlp_factors_rank(gate),
                                   .up_rank = (int32_t)nmlp_factors_rank(up)};
    bool shared = gate->v.data && gate->v.data == up->v.data;
    if (gate->v.data && up->v.data && !shared) {
        NMLP_RETURN_IF_FAILED(upload_two_bases(out, arena, &gate->v, &up->v, err));
    } else if (gate->v.data || up->v.data) {
        NMLP_RETURN_IF_FAILED(upload_one(&out->basis, arena, gate->v.data ? &gate->v : &up->v, err));
    }
    NMLP_RETURN_IF_FAILED(upload_one(&out->gate, arena, gate->w.data ? &gate->w : &gate->u, err));
    NMLP_RETURN_IF_FAILED(upload_one(&out->up, arena, up->w.data ? &up->w : &up->u, err));
    if (down->v.data) NMLP_RETURN_IF_FAILED(upload_one(&out->down_basis, arena, &down->v, err));
    return upload_one(&out->down, arena, down->w.data ? &down->w : &down->u, err);
}
