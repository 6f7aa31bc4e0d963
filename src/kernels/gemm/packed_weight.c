#include "kernels/gemm/packed_weight.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/pages.h"

enum { TASK_BYTES = 8 << 20, TASKS_PER_THREAD = 2, CHUNK = 64, STRIDE_TO_AVOID = 16384, STAGGER = 5120 };

struct packing {
    nmlp_gemm_weight *matrix;
    const nmlp_view *source;
    const nmlp_vec *vec;
    _Atomic bool finite;
};

/* Element `at` of a row, brought to the packed type. */
static uint32_t element(const void *row, nmlp_dtype from, nmlp_dtype to, int64_t at) {
    if (from == to && from != NMLP_DTYPE_F32) return ((const uint16_t *)row)[at];
    uint32_t bits;
    float value;
    nmlp_to_f32(&value, (const char *)row + (size_t)at * nmlp_dtype_bytes(from), from, 1);
    if (to == NMLP_DTYPE_BF16) return nmlp_f32_to_bf16(value);
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 16 rows in parts of CHUNK inputs, so that source and destination both stay in L1. */
struct part {
    const void *rows[NMLP_STRIP];
    int n_rows;
    int64_t k_begin;
    int64_t k_end;
};

static void pack_f16(uint16_t *dst, const struct part *part) {
    for (int j = 0; j < part->n_rows; j++) {
        const uint16_t *row = part->rows[j];
        for (int64_t k = part->k_begin; k < part->k_end; k++) dst[k * NMLP_STRIP + j] = row[k];
    }
}

/* Pairs (k, k+1) of one output stand together. */
static void pack_bf16(uint16_t *dst, const struct part *part, nmlp_dtype from) {
    for (int j = 0; j < part->n_rows; j++) {
        int64_t k = part->k_begin;
        if (from == NMLP_DTYPE_BF16) {
            const uint16_t *row = part->rows[j];
            for (; k + 1 < part->k_end; k += 2) memcpy(dst + k * NMLP_STRIP + 2 * j, row + k, 4);
        }
        for (; k < part->k_end; k++)
            dst[(k & ~(int64_t)1) * NMLP_STRIP + 2 * j + (k & 1)] =
                (uint16_t)element(part->rows[j], from, NMLP_DTYPE_BF16, k);
    }
}

/* f32, and bf16 in pairs that do not cross rows, are 4-byte elements to transpose. */
static bool is_transposition(const struct packing *packing) {
    const nmlp_gemm_weight *m = packing->matrix;
    return m->dtype == packing->source->dtype &&
           (m->dtype == NMLP_DTYPE_F32 || (m->dtype == NMLP_DTYPE_BF16 && m->k % 2 == 0));
}

static bool transpose_strip(const struct packing *packing, int64_t strip) {
    const nmlp_gemm_weight *m = packing->matrix;
    int64_t row = strip * NMLP_STRIP;
    int64_t n_rows = m->n - row < NMLP_STRIP ? m->n - row : NMLP_STRIP;
    int64_t n = m->dtype == NMLP_DTYPE_F32 ? m->k : m->k / 2;
    if (n_rows <= 0) return true; /* padding */
    return packing->vec->transpose_checked(m->strips + m->strip_bytes * (size_t)strip,
                                           nmlp_view_row(packing->source, row), n, n_rows, n, m->dtype);
}

/* Of the source; read from memory only once, because it is packed next. */
static bool strip_is_finite(const struct packing *packing, int64_t strip) {
    nmlp_view rows = *packing->source;
    int64_t first = strip * NMLP_STRIP;
    if (first >= rows.shape[0]) return true;
    rows.data = nmlp_view_row(packing->source, first);
    rows.shape[0] = rows.shape[0] - first < NMLP_STRIP ? rows.shape[0] - first : NMLP_STRIP;
    return nmlp_view_first_nonfinite(&rows) < 0;
}

/* False when something in it is not finite. */
static bool pack_strip(const struct packing *packing, int64_t strip) {
    nmlp_gemm_weight *m = packing->matrix;
    const nmlp_view *source = packing->source;
    char *dst = m->strips + m->strip_bytes * (size_t)strip;
    struct part part = {0};
    if (is_transposition(packing)) return transpose_strip(packing, strip);
    bool finite = strip_is_finite(packing, strip);
    for (int64_t n = strip * NMLP_STRIP; n < m->n && part.n_rows < NMLP_STRIP; n++)
        part.rows[part.n_rows++] = nmlp_view_row(source, n);
    for (int64_t k = 0; k < m->k; k += CHUNK) {
        part.k_begin = k;
        part.k_end = k + CHUNK < m->k ? k + CHUNK : m->k;
        switch (m->dtype) {
        case NMLP_DTYPE_F32: break; /* transposed as a whole */
        case NMLP_DTYPE_F16: pack_f16((uint16_t *)dst, &part); break;
        case NMLP_DTYPE_BF16: pack_bf16((uint16_t *)dst, &part, source->dtype); break;
        }
    }
    return finite;
}

static void pack_strips(void *arg, int64_t begin, int64_t end, int thread) {
    struct packing *packing = arg;
    (void)thread;
    for (int64_t strip = begin; strip < end; strip++)
        if (!pack_strip(packing, strip)) atomic_store_explicit(&packing->finite, false, memory_order_relaxed);
}

/* Threads stay away from each other: two that touch the same fresh huge page at once would both have one cleared. */
static int64_t strips_per_task(const nmlp_gemm_weight *m, int n_threads) {
    int64_t n_strips = m->n_padded / NMLP_STRIP;
    int64_t most = nmlp_ceil_div(TASK_BYTES, (int64_t)m->strip_bytes);
    return nmlp_max(1, nmlp_min(most, n_strips / (n_threads * TASKS_PER_THREAD)));
}

static nmlp_status check_weight(const nmlp_view *weight, nmlp_err *err) {
    char shape[NMLP_SHAPE_TEXT_MAX];
    if (weight->data && weight->n_dims == 2 && weight->shape[0] > 0 && weight->shape[1] > 0) return NMLP_OK;
    nmlp_shape_text(shape, weight->shape, weight->n_dims);
    return nmlp_fail(err, NMLP_E_SHAPE, "a weight of shape %s, expected two dimensions of 1 or more", shape);
}

/* Strips read side by side, a multiple of 16 KiB apart, would meet in the same sets of caches and banks of memory. */
static size_t stagger_bytes(size_t strip_bytes) { return strip_bytes % STRIDE_TO_AVOID ? 0 : STAGGER; }

nmlp_status nmlp_gemm_weight_init(nmlp_gemm_weight *matrix, const nmlp_kernels *kernels, const nmlp_view *weight,
                                  nmlp_pool *pool, nmlp_err *err) {
    *matrix = (nmlp_gemm_weight){0};
    NMLP_RETURN_IF_FAILED(check_weight(weight, err));
    matrix->n = weight->shape[0];
    matrix->k = weight->shape[1];
    matrix->n_padded = nmlp_pad(matrix->n);
    matrix->k_padded = nmlp_pad(matrix->k);
    matrix->dtype = kernels->bf16_activations ? NMLP_DTYPE_BF16 : weight->dtype;
    if (nmlp_mul_overflows((size_t)matrix->k_padded, NMLP_STRIP * nmlp_dtype_bytes(matrix->dtype),
                           &matrix->strip_bytes) ||
        nmlp_add_overflows(matrix->strip_bytes, stagger_bytes(matrix->strip_bytes), &matrix->strip_bytes) ||
        nmlp_mul_overflows((size_t)matrix->n_padded / NMLP_STRIP, matrix->strip_bytes, &matrix->bytes))
        return nmlp_fail(err, NMLP_E_NOMEM, "a weight [%lld,%lld] does not fit in memory", (long long)matrix->n,
                         (long long)matrix->k);
    matrix->strips = nmlp_pages_new(matrix->bytes, err);
    if (!matrix->strips) return NMLP_E_NOMEM;
    struct packing packing = {.matrix = matrix, .source = weight, .vec = kernels->vec, .finite = true};
    nmlp_pool_for(pool, matrix->n_padded / NMLP_STRIP, strips_per_task(matrix, nmlp_pool_threads(pool)), pack_strips,
                  &packing);
    matrix->finite = packing.finite;
    return NMLP_OK;
}

void nmlp_gemm_weight_fini(nmlp_gemm_weight *matrix) {
    nmlp_pages_free(matrix->strips, matrix->bytes);
    *matrix = (nmlp_gemm_weight){0};
}
