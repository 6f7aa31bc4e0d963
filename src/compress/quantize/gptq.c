#include "compress/quantize/gptq_internal.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "linalg/linalg.h"
#include "tensor/quant.h"

enum { ROWS_PER_TASK = NMLP_GPTQ_ROWS, BLOCK = 64, SWEEPS = 3 };

static const double damping = 0.01; /* of the mean of the diagonal */

/* ---- what matrices share ---- */

static void sort_columns(int32_t *order, const double *moments, int64_t n) {
    /* Shell sort: stable results are not needed, equal entries are broken by the column. */
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t gap = n / 2; gap > 0; gap /= 2) {
        for (int64_t i = gap; i < n; i++) {
            int32_t column = order[i];
            double value = moments[column * n + column];
            int64_t j = i;
            for (; j >= gap; j -= gap) {
                double other = moments[order[j - gap] * n + order[j - gap]];
                if (other > value || (other == value && order[j - gap] < column)) break;
                order[j] = order[j - gap];
            }
            order[j] = column;
        }
    }
}

struct filling {
    nmlp_gptq *gptq;
    const double *moments;
    double *root; /* of the moments in reverse order, both ways */
};

static void fill_reversed(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct filling *f = ctx;
    int64_t n = f->gptq->n;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = f->gptq->order[n - 1 - i];
        for (int64_t j = 0; j < n; j++) f->root[i * n + j] = f->moments[row * n + f->gptq->order[n - 1 - j]];
        for (int64_t j = 0; j < n; j++) f->gptq->moments[i * n + j] = (float)f->moments[i * n + j];
    }
}

static void fill_feedback(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct filling *f = ctx;
    int64_t n = f->gptq->n;
    (void)thread;
    for (int64_t j = begin; j < end; j++)
        for (int64_t k = j + 1; k < n; k++) {
            const double *row = f->root + (n - 1 - j) * n;
            int64_t column = n - 1 - k;
            f->gptq->feedback[j * n + k] = (float)(row[column] / f->root[column * n + column]);
        }
}

nmlp_status nmlp_gptq_init(nmlp_gptq *g, nmlp_pool *pool, double *moments, int64_t n, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    double mean = 0;
    *g = (nmlp_gptq){.n = n, .sweeps = SWEEPS, .pool = pool};
    g->order = nmlp_mem_new((size_t)n, sizeof *g->order, err);
    g->feedback = nmlp_mem_new_raw((size_t)(n * n), sizeof *g->feedback, err);
    g->moments = nmlp_mem_new_raw((size_t)(n * n), sizeof *g->moments, err);
    struct filling f = {.gptq = g, .moments = moments, .root = nmlp_mem_new_raw((size_t)(n * n), sizeof *f.root, err)};
    if (!g->order || !g->feedback || !g->moments || !f.root) NMLP_TRY(NMLP_E_NOMEM);
    for (int64_t i = 0; i < n; i++) mean += moments[i * n + i] / (double)n;
    if (!(mean > 0)) mean = 1; /* inputs that are always zero */
    for (int64_t i = 0; i < n; i++) moments[i * n + i] += damping * mean;
    sort_columns(g->order, moments, n);
    nmlp_pool_for(pool, n, ROWS_PER_TASK, fill_reversed, &f);
    if (!nmlp_linalg_cholesky(pool, f.root, n))
        NMLP_TRY(nmlp_fail(err, NMLP_E_NUMERIC, "second moments of %lld inputs are not positive", (long long)n));
    nmlp_pool_for(pool, n, ROWS_PER_TASK, fill_feedback, &f);
out:
    nmlp_mem_free(f.root);
    if (st != NMLP_OK) nmlp_gptq_fini(g);
    return st;
}

void nmlp_gptq_fini(nmlp_gptq *g) {
    nmlp_mem_free(g->order);
    nmlp_mem_free(g->feedback);
    nmlp_mem_free(g->moments);
    *g = (nmlp_gptq){0};
}

/* ---- rows ---- */

static int64_t floats_of_rows(const nmlp_gptq_rounding *r) {
    int64_t k = r->gptq->n;
    return ROWS_PER_TASK * (6 * k + BLOCK + 2 * r->n_groups + 1) + k;
}

static void cut_rows(nmlp_gptq_rows *s, const nmlp_gptq_rounding *r, float *at) {
    int64_t wide = ROWS_PER_TASK * r->gptq->n;
    *s = (nmlp_gptq_rows){.w = at,
                          .errors = at + wide,
                          .codes = at + 2 * wide,
                          .residual = at + 3 * wide,
                          .gradient = at + 4 * wide,
                          .seen = at + 5 * wide,
                          .target = at + 6 * wide,
                          .scales = at + 6 * wide + ROWS_PER_TASK * BLOCK};
    s->zeros = s->scales + ROWS_PER_TASK * r->n_groups;
    s->ones = s->zeros + ROWS_PER_TASK * r->n_groups;
    s->steps = s->ones + r->gptq->n;
}

/* Of n weights with importances h. */
static float search_scale(const nmlp_gptq_rounding *r, const float *w, const float *h, int64_t n, float *zero) {
    int found = 0;
    *zero = 0;
    if (r->out->dtype == NMLP_DTYPE_Q8) return nmlp_quant_search_q8(w, h, n);
    if (r->out->dtype == NMLP_DTYPE_Q6) return nmlp_quant_search_q6(w, h, n);
    if (r->out->dtype == NMLP_DTYPE_FP8) return nmlp_quant_search_fp8(w, h, n);
    if (!r->has_zeros) return nmlp_quant_search_q4(w, h, n);
    float scale = nmlp_quant_search_q4_zero(w, h, n, &found);
    *zero = (float)found;
    return scale;
}

/* Of a type with multipliers. */
static void search_row(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, const float *w, int64_t i) {
    nmlp_dtype dtype = r->out->dtype;
    nmlp_quant_multiplied format = {.lowest = r->lowest,
                                    .highest = r->highest,
                                    .lowest_multiplier = nmlp_quant_multiplier_lowest(dtype),
                                    .highest_multiplier = nmlp_quant_multiplier_highest(dtype),
                                    .group = r->group};
    float *scales = s->scales + i * r->n_groups;
    s->steps[i] = nmlp_quant_search_multiplied(&format, w, r->importance, r->gptq->n, scales);
    for (int64_t g = 0; g < r->n_groups; g++) {
        scales[g] *= s->steps[i];
        s->zeros[i * r->n_groups + g] = 0;
    }
}

static void search_scales(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, const float *w, int64_t n_rows) {
    int64_t k = r->gptq->n;
    for (int64_t i = 0; i < n_rows; i++) {
        if (nmlp_quant_has_multipliers(r->out->dtype)) {
            search_row(r, s, w + i * k, i);
            continue;
        }
        for (int64_t g = 0; g < r->n_groups; g++) {
            int64_t first = g * r->group, n = nmlp_min(r->group, k - first), at = i * r->n_groups + g;
            s->scales[at] = search_scale(r, w + i * k + first, r->importance + first, n, &s->zeros[at]);
        }
    }
}

/* One column of one row; what its error adds to the columns of the block behind it goes to `target`. */
static void round_column(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t i, int64_t at, int64_t first,
                         int64_t end) {
    const nmlp_gptq *g = r->gptq;
    int64_t k = g->n, column = g->order[at];
    float *target = s->target + i * BLOCK;
    int64_t in = i * r->n_groups + column / r->group;
    float scale = s->scales[in], zero = s->zeros[in], w = s->w[i * k + at];
    float code = scale != 0 ? nmlp_gptq_code(r, w + target[at - first], 1.0f / scale, zero) : 0;
    float error = w - code * scale;
    const float *feedback = g->feedback + at * k;
    s->codes[i * k + column] = code;
    s->errors[i * k + at] = error;
    for (int64_t j = at + 1; j < end; j++) target[j - first] += error * feedback[j];
}

static void round_rows(const nmlp_gptq_rounding *r, nmlp_gptq_rows *s, int64_t n_rows) {
    const nmlp_gptq *g = r->gptq;
    for (int64_t first = 0; first < g->n; first += BLOCK) {
        int64_t end = nmlp_min(first + BLOCK, g->n);
        if (first > 0)
            nmlp_linalg_gemm_f32_strided(n_rows, end - first, first, s->errors, g->n, g->feedback + first, g->n,
                                         s->target, BLOCK);
        else
            memset(s->target, 0, (size_t)(n_rows * BLOCK) * sizeof *s->target);
        for (int64_t i = 0; i < n_rows; i++)
            for (int64_t at = first; at < end; at++) round_column(r, s, i, at, first, end);
    }
}

static void store_groups(const nmlp_gptq_rounding *r, const nmlp_gptq_rows *s, int64_t i, int64_t row) {
    uint16_t *scales = (uint16_t *)(uintptr_t)r->out->scales + row * r->n_groups;
    int8_t *zeros = (int8_t *)(uintptr_t)r->out->per_group;
    for (int64_t g = 0; g < r->n_groups; g++) {
        scales[g] = nmlp_f32_to_f16(s->scales[i * r->n_groups + g]);
        if (zeros) zeros[row * r->n_groups + g] = (int8_t)s->zeros[i * r->n_groups + g];
    }
}

static void store_multipliers(const nmlp_gptq_rounding *r, const nmlp_gptq_rows *s, int64_t i, int64_t row) {
    int8_t *multipliers = (int8_t *)(uintptr_t)r->out->per_group + row * r->n_groups;
    float step = s->steps[i];
    for (int64_t g = 0; g < r->n_groups; g++)
        multipliers[g] = step != 0 ? (int8_t)nearbyintf(s->scales[i * r->n_groups + g] / step) : 1;
    ((float *)(uintptr_t)r->out->scales)[row] = step / (float)nmlp_quant_multiplier_step(r->out->dtype);
}

static void store_code(nmlp_dtype dtype, void *row, int64_t j, float code) {
    if (nmlp_quant_widens_to_q8(dtype))
        nmlp_quant_put_code(row, dtype, j, (int)code);
    else
        ((uint8_t *)row)[j] = dtype == NMLP_DTYPE_FP8 ? nmlp_fp8_from_rounded(code) : (uint8_t)(int8_t)code;
}

static void store_rows(const nmlp_gptq_rounding *r, const nmlp_gptq_rows *s, int64_t first, int64_t n_rows) {
    int64_t k = r->gptq->n;
    for (int64_t i = 0; i < n_rows; i++) {
        const float *codes = s->codes + i * k;
        void *row = (void *)(uintptr_t)nmlp_view_row(r->out, first + i);
        memset(row, 0, nmlp_view_bytes(r->out) / (size_t)r->out->shape[0]);
        if (r->out->dtype != NMLP_DTYPE_Q4) {
            for (int64_t j = 0; j < k; j++) store_code(r->out->dtype, row, j, codes[j]);
            if (nmlp_quant_has_multipliers(r->out->dtype))
                store_multipliers(r, s, i, first + i);
            else
                ((float *)(uintptr_t)r->out->scales)[first + i] = s->scales[i];
            continue;
        }
        const float *zeros = s->zeros + i * r->n_groups;
        for (int64_t j = 0; j < k; j++)
            ((uint8_t *)row)[j / 2] |= (uint8_t)((int)(codes[j] + zeros[j / r->group] + 8) << (j & 1 ? 4 : 0));
        store_groups(r, s, i, first + i);
    }
}

static double loss_of_rows(const nmlp_gptq_rounding *r, const nmlp_gptq_rows *s, int64_t n_rows) {
    double sum = 0;
    for (int64_t i = 0; i < n_rows * r->gptq->n; i++) sum += (double)s->residual[i] * (double)s->gradient[i];
    return sum;
}

static void round_tasks(void *ctx, int64_t begin, int64_t end, int thread) {
    const nmlp_gptq_rounding *r = ctx;
    nmlp_gptq_rows *s = &r->rows[thread];
    int64_t k = r->gptq->n;
    for (int64_t task = begin; task < end; task++) {
        int64_t first = task * ROWS_PER_TASK, n_rows = nmlp_min(ROWS_PER_TASK, r->out->shape[0] - first);
        const float *w = r->w + first * k;
        for (int64_t i = 0; i < n_rows; i++)
            for (int64_t at = 0; at < k; at++) s->w[i * k + at] = w[i * k + r->gptq->order[at]];
        search_scales(r, s, w, n_rows);
        round_rows(r, s, n_rows);
        if (r->gptq->sweeps > 0) nmlp_gptq_measure_rows(r, s, w, n_rows);
        for (int sweep = 0; sweep < r->gptq->sweeps; sweep++) nmlp_gptq_sweep(r, s, n_rows);
        if (r->wants_loss) {
            nmlp_gptq_measure_rows(r, s, w, n_rows);
            r->loss[task] = loss_of_rows(r, s, n_rows);
        }
        store_rows(r, s, first, n_rows);
    }
}

static void loss_tasks(void *ctx, int64_t begin, int64_t end, int thread) {
    const nmlp_gptq_rounding *r = ctx;
    nmlp_gptq_rows *s = &r->rows[thread];
    int64_t k = r->gptq->n;
    for (int64_t task = begin; task < end; task++) {
        int64_t first = task * ROWS_PER_TASK, n_rows = nmlp_min(ROWS_PER_TASK, r->out->shape[0] - first);
        for (int64_t i = 0; i < n_rows; i++) {
            nmlp_quant_row_to_f32(s->residual + i * k, r->out, first + i);
            for (int64_t j = 0; j < k; j++) s->residual[i * k + j] = r->w[(first + i) * k + j] - s->residual[i * k + j];
        }
        nmlp_linalg_gemm_f32_strided(n_rows, k, k, s->residual, k, r->gptq->moments, k, s->gradient, k);
        r->loss[task] = loss_of_rows(r, s, n_rows);
    }
}

static nmlp_status run_tasks(nmlp_gptq_rounding *r, nmlp_pool_range *run, double *loss, nmlp_err *err) {
    const nmlp_gptq *g = r->gptq;
    int n_threads = nmlp_pool_threads(g->pool);
    int64_t n_tasks = (r->out->shape[0] + ROWS_PER_TASK - 1) / ROWS_PER_TASK;
    nmlp_status st = NMLP_E_NOMEM;
    r->group = r->out->group > 0 ? r->out->group : g->n;
    r->has_zeros = r->out->dtype == NMLP_DTYPE_Q4 && r->out->per_group;
    r->n_groups = (g->n + r->group - 1) / r->group;
    r->lowest = (float)nmlp_quant_lowest(r->out->dtype);
    r->highest = (float)nmlp_quant_highest(r->out->dtype);
    r->importance = nmlp_mem_new((size_t)g->n, sizeof *r->importance, err);
    r->rows = nmlp_mem_new((size_t)n_threads, sizeof *r->rows, err);
    r->loss = nmlp_mem_new((size_t)n_tasks, sizeof *r->loss, err);
    float *floats = nmlp_mem_new((size_t)(n_threads * floats_of_rows(r)), sizeof *floats, err);
    if (r->importance && r->rows && r->loss && floats) {
        for (int64_t i = 0; i < g->n; i++) r->importance[i] = g->moments[i * g->n + i];
        for (int i = 0; i < n_threads; i++) cut_rows(&r->rows[i], r, floats + i * floats_of_rows(r));
        nmlp_pool_for(g->pool, n_tasks, 1, run, r);
        if (loss) *loss = 0;
        for (int64_t i = 0; loss && i < n_tasks; i++) *loss += r->loss[i];
        st = NMLP_OK;
    }
    nmlp_mem_free(r->importance);
    nmlp_mem_free(r->rows);
    nmlp_mem_free(r->loss);
    nmlp_mem_free(floats);
    return st;
}

nmlp_status nmlp_gptq_round(const nmlp_gptq *gptq, const float *w, const nmlp_view *out, double *loss, nmlp_err *err) {
    nmlp_gptq_rounding r = {.gptq = gptq, .w = w, .out = out, .wants_loss = loss != NULL};
    return run_tasks(&r, round_tasks, loss, err);
}

nmlp_status nmlp_gptq_loss(const nmlp_gptq *gptq, const float *w, const nmlp_view *q, double *loss, nmlp_err *err) {
    nmlp_gptq_rounding r = {.gptq = gptq, .w = w, .out = q};
    return run_tasks(&r, loss_tasks, loss, err);
}
