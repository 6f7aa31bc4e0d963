#include "kernels/gemm/packed_weight.h"

#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"
#include "base/pages.h"
#include "kernels/caches.h"
#include "tensor/quant.h"

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
    const nmlp_view *source;
    int64_t first_row;
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

/* Four bytes of Q8 as they are stored, to the order of gemm.h. */
static uint32_t q8_word(uint32_t w) { return (w & 0xff0000ffu) | (w & 0x0000ff00u) << 8 | (w & 0x00ff0000u) >> 8; }

/* Eight codes of Q4, q + 8 in their order, to even and odd ones with a sign: `w` has the codes that exist. */
static uint32_t q4_word(uint32_t w) {
    uint32_t word = 0;
    for (int i = 0; i < 8; i++) word |= (w >> (4 * i) & 15u) << (i % 2 * 16 + i / 2 * 4);
    return word;
}

/* n codes of row j from input k on, at most a word of them; of types that widen to Q8 the codes of Q8 that they are. */
static uint32_t codes_at(const struct part *part, int j, int64_t k, int64_t n) {
    nmlp_dtype from = part->source->dtype;
    int bits = nmlp_dtype_bits(from);
    int8_t wide[4] = {0};
    uint32_t word = 0;
    if (nmlp_quant_widens_to_q8(from) && from != NMLP_DTYPE_Q4M) {
        nmlp_quant_q8_codes(wide, part->source, part->first_row + j, k, n);
        memcpy(&word, wide, sizeof word);
    } else {
        memcpy(&word, (const char *)part->rows[j] + k * bits / 8, (size_t)(n * bits + 7) / 8);
    }
    return word;
}

/* Words of `per_word` inputs of one output; CHUNK is a multiple of both, and a part of a span. */
static void pack_codes(char *strip, const struct part *part, const nmlp_gemm_weight *m) {
    nmlp_dtype dtype = m->dtype;
    char *dst = strip + nmlp_gemm_weight_bytes(m, part->k_begin);
    int64_t per_word = dtype == NMLP_DTYPE_Q8 ? 4 : 8;
    int bits = nmlp_dtype_bits(dtype);
    for (int j = 0; j < part->n_rows; j++) {
        for (int64_t k = part->k_begin; k < part->k_end; k += per_word) {
            int64_t n = part->k_end - k < per_word ? part->k_end - k : per_word;
            uint32_t word = codes_at(part, j, k, n);
            if (dtype != NMLP_DTYPE_Q8) word ^= 0x88888888u; /* q + 8 becomes a number with a sign */
            if (n < per_word) word &= (1u << (n * bits)) - 1u;
            word = dtype == NMLP_DTYPE_Q8 ? q8_word(word) : q4_word(word);
            memcpy(dst + ((k - part->k_begin) / per_word * NMLP_STRIP + j) * 4, &word, sizeof word);
        }
    }
}

/* Q4: scales [N, groups] to the spans; outputs that are padding have scales of 0. */
static void pack_scales(const struct packing *packing, int64_t strip) {
    const nmlp_gemm_weight *m = packing->matrix;
    const uint16_t *scales = packing->source->scales;
    int64_t group = packing->source->group, n_groups = nmlp_ceil_div(m->k, group);
    for (int64_t g = 0; g < n_groups; g++) {
        const char *span = nmlp_gemm_weight_at(m, strip, g * group / NMLP_SPAN * NMLP_SPAN);
        uint16_t *dst = (uint16_t *)(uintptr_t)nmlp_gemm_span_scales(&m->span, span, g * group);
        for (int64_t j = 0; j < NMLP_STRIP && strip * NMLP_STRIP + j < m->n; j++)
            dst[j] = scales[(strip * NMLP_STRIP + j) * n_groups + g];
    }
}

/* Zero points, or multipliers with their step: [N, groups] to the spans. */
static void pack_per_group(const struct packing *packing, int64_t strip) {
    const nmlp_gemm_weight *m = packing->matrix;
    int64_t group = packing->source->group, n_groups = nmlp_ceil_div(m->k, group);
    int step = m->dtype == NMLP_DTYPE_Q4M ? nmlp_quant_multiplier_step(m->dtype) : 1;
    for (int64_t g = 0; g < n_groups; g++) {
        const char *span = nmlp_gemm_weight_at(m, strip, g * group / NMLP_SPAN * NMLP_SPAN);
        int8_t *dst = (int8_t *)(uintptr_t)nmlp_gemm_span_per_group(&m->span, span, g * group);
        for (int64_t j = 0; j < NMLP_STRIP && strip * NMLP_STRIP + j < m->n; j++)
            dst[j] = (int8_t)(step * packing->source->per_group[(strip * NMLP_STRIP + j) * n_groups + g]);
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
    const nmlp_view *source = packing->source;
    int64_t first = strip * NMLP_STRIP;
    if (first >= source->shape[0]) return true;
    nmlp_view rows = nmlp_view_rows(source, first, nmlp_min(source->shape[0] - first, NMLP_STRIP));
    return nmlp_view_first_nonfinite(&rows) < 0;
}

/* False when something in it is not finite. */
static bool pack_strip(const struct packing *packing, int64_t strip) {
    nmlp_gemm_weight *m = packing->matrix;
    const nmlp_view *source = packing->source;
    char *dst = m->strips + m->strip_bytes * (size_t)strip;
    struct part part = {.source = source, .first_row = strip * NMLP_STRIP};
    if (is_transposition(packing)) return transpose_strip(packing, strip);
    bool finite = strip_is_finite(packing, strip);
    if (m->dtype == NMLP_DTYPE_Q4) pack_scales(packing, strip);
    if (m->span.per_group_at) pack_per_group(packing, strip);
    for (int64_t n = part.first_row; n < m->n && part.n_rows < NMLP_STRIP; n++)
        part.rows[part.n_rows++] = nmlp_view_row(source, n);
    for (int64_t k = 0; k < m->k; k += CHUNK) {
        part.k_begin = k;
        part.k_end = k + CHUNK < m->k ? k + CHUNK : m->k;
        switch (m->dtype) {
        case NMLP_DTYPE_F32: break; /* transposed as a whole */
        case NMLP_DTYPE_F16: pack_f16((uint16_t *)dst, &part); break;
        case NMLP_DTYPE_BF16: pack_bf16((uint16_t *)dst, &part, source->dtype); break;
        case NMLP_DTYPE_Q8:
        case NMLP_DTYPE_Q4:
        case NMLP_DTYPE_Q4M: pack_codes(dst, &part, m); break;
        case NMLP_DTYPE_FP8: /* packed as bf16 */
        case NMLP_DTYPE_Q6:  /* and these as Q8 */
        case NMLP_DTYPE_Q6M:
        case NMLP_DTYPE_Q5M: break;
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

/* The part of the strips that the thread will read when all take part (work_sharing.h): what it writes first lies in
 * memory near it. */
static void pack_own_strips(void *arg, int thread, int n_threads) {
    struct packing *packing = arg;
    int64_t n = packing->matrix->n_padded / NMLP_STRIP;
    pack_strips(packing, n * thread / n_threads, n * (thread + 1) / n_threads, thread);
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

static nmlp_status check_scales(const nmlp_view *weight, nmlp_err *err) {
    if (!nmlp_dtype_is_quantised(weight->dtype)) return NMLP_OK;
    if (nmlp_quant_has_multipliers(weight->dtype) && !(weight->per_group && weight->group > 0))
        return nmlp_fail(err, NMLP_E_ARG, "a %s weight without multipliers", nmlp_dtype_name(weight->dtype));
    if (!weight->scales)
        return nmlp_fail(err, NMLP_E_ARG, "a %s weight without scales", nmlp_dtype_name(weight->dtype));
    if (weight->dtype == NMLP_DTYPE_Q4 && weight->group != 32 && weight->group != 64)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "a Q4 weight in groups of %d, expected 32 or 64", weight->group);
    return NMLP_OK;
}

/* Strips read side by side, a multiple of 16 KiB apart, would meet in the same sets of caches and banks of memory. */
static size_t stagger_bytes(size_t strip_bytes) { return strip_bytes % STRIDE_TO_AVOID ? 0 : STAGGER; }

static nmlp_dtype packed_dtype(const nmlp_kernels *kernels, nmlp_dtype source) {
    if (source == NMLP_DTYPE_FP8) return NMLP_DTYPE_BF16;
    if (nmlp_quant_widens_to_q8(source)) return source == NMLP_DTYPE_Q4M ? source : NMLP_DTYPE_Q8;
    return kernels->bf16_activations && !nmlp_dtype_is_quantised(source) ? NMLP_DTYPE_BF16 : source;
}

static nmlp_gemm_span span_of(const nmlp_gemm_weight *m, const nmlp_view *source) {
    if (!nmlp_dtype_is_quantised(m->dtype)) return (nmlp_gemm_span){0};
    bool has_per_group = m->dtype == NMLP_DTYPE_Q4M || (m->dtype == NMLP_DTYPE_Q4 && source->per_group);
    int bytes = NMLP_SPAN * NMLP_STRIP * nmlp_dtype_bits(m->dtype) / 8;
    nmlp_gemm_span span = {0};
    if (nmlp_dtype_bits(m->dtype) == 4) {
        while (1 << span.group_shift < source->group) span.group_shift++;
        int numbers = (NMLP_SPAN >> span.group_shift) * NMLP_STRIP;
        span.scales_at = bytes;
        if (m->dtype == NMLP_DTYPE_Q4) bytes += numbers * (int)sizeof(uint16_t);
        span.per_group_at = has_per_group ? bytes : 0;
        if (has_per_group) bytes += numbers;
    }
    span.bytes = nmlp_round_up_size((size_t)bytes, NMLP_LINE_BYTES);
    return span;
}

/* Sizes of a strip and of all; the scales of rows stand behind the last. */
static bool lay_out(nmlp_gemm_weight *m, const nmlp_view *source, size_t *scales_at) {
    size_t row_scales_bytes = nmlp_quant_scales_rows(source->dtype) ? (size_t)m->n_padded * sizeof(float) : 0;
    if (m->k_padded > INT64_MAX / 64) return false;
    m->span = span_of(m, source);
    m->strip_bytes = nmlp_gemm_weight_bytes(m, m->span.scales_at ? nmlp_round_up(m->k_padded, NMLP_SPAN) : m->k_padded);
    return !nmlp_add_overflows(m->strip_bytes, stagger_bytes(m->strip_bytes), &m->strip_bytes) &&
           !nmlp_mul_overflows((size_t)m->n_padded / NMLP_STRIP, m->strip_bytes, scales_at) &&
           !nmlp_add_overflows(*scales_at, row_scales_bytes, &m->bytes);
}

nmlp_status nmlp_gemm_weight_init(nmlp_gemm_weight *matrix, const nmlp_kernels *kernels, const nmlp_view *weight,
                                  nmlp_pool *pool, nmlp_err *err) {
    size_t scales_at;
    *matrix = (nmlp_gemm_weight){0};
    NMLP_RETURN_IF_FAILED(check_weight(weight, err));
    NMLP_RETURN_IF_FAILED(check_scales(weight, err));
    matrix->n = weight->shape[0];
    matrix->k = weight->shape[1];
    matrix->n_padded = nmlp_pad(matrix->n);
    matrix->k_padded = nmlp_pad(matrix->k);
    matrix->dtype = packed_dtype(kernels, weight->dtype);
    if (!lay_out(matrix, weight, &scales_at))
        return nmlp_fail(err, NMLP_E_NOMEM, "a weight [%lld,%lld] does not fit in memory", (long long)matrix->n,
                         (long long)matrix->k);
    matrix->strips = nmlp_pages_new(matrix->bytes, err);
    if (!matrix->strips) return NMLP_E_NOMEM;
    if (nmlp_quant_scales_rows(weight->dtype)) {
        memcpy(matrix->strips + scales_at, weight->scales, (size_t)matrix->n * sizeof(float));
        matrix->scales = (const float *)(const void *)(matrix->strips + scales_at);
    }
    struct packing packing = {.matrix = matrix, .source = weight, .vec = kernels->vec, .finite = true};
    int n_threads = nmlp_pool_threads(pool);
    if (nmlp_pool_node(pool, n_threads - 1) > 0)
        nmlp_pool_run(pool, pack_own_strips, &packing);
    else
        nmlp_pool_for(pool, matrix->n_padded / NMLP_STRIP, strips_per_task(matrix, n_threads), pack_strips, &packing);
    matrix->finite = packing.finite;
    return NMLP_OK;
}

void nmlp_gemm_weight_fini(nmlp_gemm_weight *matrix) {
    nmlp_pages_free(matrix->strips, matrix->bytes);
    *matrix = (nmlp_gemm_weight){0};
}

nmlp_pool_ahead nmlp_gemm_weights_ahead(const nmlp_gemm_weight *const weights[], int n) {
    enum { L2_PARTS = 4 }; /* of which this may take one */
    nmlp_pool_ahead ahead = {.n_parts = n, .thread_bytes = nmlp_caches_get()->l2_bytes / L2_PARTS};
    for (int i = 0; i < n; i++)
        ahead.parts[i] = (nmlp_pool_ahead_part){.memory = weights[i]->strips,
                                                .unit_bytes = weights[i]->strip_bytes,
                                                .n_units = weights[i]->n_padded / NMLP_STRIP};
    return ahead;
}
