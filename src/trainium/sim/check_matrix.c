#include "trainium/sim/check_matrix.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "trainium/neuron/pack.h"

/* Codes [K,N] of FP8 with the scales of their columns, as f32: what the products are of. `scales` is [1,N], or
 * [columns, tiles * planes] with a tile of columns in each column. */
static bool dequantise(nmlp_check_matrix *m, nmlp_values *v, const nmlp_program *p, const char *name,
                       const nmlp_pack *pack, int64_t plane, nmlp_err *err) {
    char scale_name[2 * NMLP_NAME_MAX];
    float *wide = nmlp_mem_new((size_t)(m->rows * m->cols), sizeof *wide, err);
    const float *scales = NULL;
    int64_t width = 0;
    bool rows = false;
    snprintf(scale_name, sizeof scale_name, "%s_scale", name);
    for (size_t i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, scale_name) == 0) {
            scales = nmlp_values_tensor(v, (int)i);
            width = p->tensors[i].cols;
            rows = p->tensors[i].rows == 1 && width == m->cols;
        }
    if (!wide || !scales) {
        nmlp_mem_free(wide);
        return false;
    }
    const uint8_t *codes = (const void *)m->data;
    for (int64_t k = 0; k < m->rows; k++)
        for (int64_t n = 0; n < m->cols; n++) {
            int64_t tile = n / pack->columns;
            float scale = rows ? scales[n] : scales[n % pack->columns * width + tile * pack->planes + plane];
            wide[k * m->cols + n] = nmlp_fp8_to_f32(codes[k * m->cols + n]) * scale;
        }
    nmlp_mem_free(m->owned);
    m->owned = wide;
    m->data = m->owned;
    m->dtype = NMLP_DTYPE_F32;
    return true;
}

static void turn(char *out, const char *in, int64_t rows, int64_t cols, size_t elem) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            memcpy(out + (size_t)(j * rows + i) * elem, in + (size_t)(i * cols + j) * elem, elem);
}

bool nmlp_check_matrix_find(nmlp_check_matrix *m, nmlp_values *v, const nmlp_program *p, const char *name,
                            int64_t plane, bool turned, nmlp_err *err) {
    nmlp_pack pack;
    *m = (nmlp_check_matrix){0};
    for (size_t i = 0; i < p->n_tensors; i++) {
        const nmlp_tensor *t = &p->tensors[i];
        if (strcmp(t->name, name) != 0) continue;
        size_t elem = nmlp_nc_dtype_bytes(t->dtype);
        *m = (nmlp_check_matrix){nmlp_values_tensor(v, (int)i), nmlp_nc_dtype_to_tensor(t->dtype), t->rows, t->cols,
                                 NULL};
        bool packed = nmlp_pack_find(p, name, &pack);
        if (!packed && !turned) return true;
        if (packed) m->rows = nmlp_pack_plane_k(&pack, plane), m->cols = pack.n;
        m->owned = nmlp_mem_new((size_t)(m->rows * m->cols), elem, err);
        if (!m->owned) return false;
        if (packed)
            nmlp_pack_read(&pack, plane, m->owned, m->data, elem);
        else
            turn(m->owned, m->data, t->rows, t->cols, elem), m->rows = t->cols, m->cols = t->rows;
        m->data = m->owned;
        return m->dtype != NMLP_DTYPE_FP8 || !packed || dequantise(m, v, p, name, &pack, plane, err);
    }
    return false;
}

void nmlp_check_matrix_fini(nmlp_check_matrix *m) {
    nmlp_mem_free(m->owned);
    *m = (nmlp_check_matrix){0};
}

double nmlp_check_matrix_at(const nmlp_check_matrix *m, int64_t row, int64_t col) {
    size_t i = (size_t)(row * m->cols + col);
    if (m->dtype == NMLP_DTYPE_F32) return (double)((const float *)(const void *)m->data)[i];
    uint16_t bits = ((const uint16_t *)(const void *)m->data)[i];
    return (double)(m->dtype == NMLP_DTYPE_BF16 ? nmlp_bf16_to_f32(bits) : nmlp_f16_to_f32(bits));
}

void nmlp_check_matrix_row(const nmlp_check_matrix *m, int64_t row, float *out) {
    nmlp_to_f32(out, m->data + (size_t)(row * m->cols) * nmlp_dtype_bytes(m->dtype), m->dtype, (size_t)m->cols);
}

void nmlp_check_left_product(const nmlp_check_matrix *m, const double *in, double *out, float *row) {
    memset(out, 0, (size_t)m->cols * sizeof *out);
    for (int64_t i = 0; i < m->rows; i++) {
        nmlp_check_matrix_row(m, i, row);
        double a = in[i];
        for (int64_t j = 0; j < m->cols; j++) out[j] += a * (double)row[j];
    }
}

void nmlp_check_right_product(const nmlp_check_matrix *m, const double *in, double *out, float *row) {
    for (int64_t i = 0; i < m->rows; i++) {
        double sum = 0;
        nmlp_check_matrix_row(m, i, row);
        for (int64_t j = 0; j < m->cols; j++) sum += (double)row[j] * in[j];
        out[i] = sum;
    }
}
