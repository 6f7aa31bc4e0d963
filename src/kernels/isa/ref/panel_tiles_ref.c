/* What panel_amx.c computes, in C. */
#include "kernels/gemm/panel.h"
#include "kernels/ops/vec.h"

enum { TILE = NMLP_GEMM_PANEL_TILE, TILE_FLOATS = NMLP_GEMM_PANEL_TILE_FLOATS };

/* TDPBF16PS sums the two products of a pair, then adds to C. */
static void row_step(float *c, const uint16_t *a, const uint16_t *b) {
    for (int k = 0; k < TILE; k += 2)
        for (int j = 0; j < NMLP_STRIP; j++) {
            const uint16_t *pair = b + k * NMLP_STRIP + 2 * j;
            c[j] += nmlp_bf16_to_f32(a[k]) * nmlp_bf16_to_f32(pair[0]) +
                    nmlp_bf16_to_f32(a[k + 1]) * nmlp_bf16_to_f32(pair[1]);
        }
}

static void sum_row(float *c, const nmlp_gemm_panel *p, const char *a, bool backwards) {
    int64_t n_steps = p->k / TILE;
    for (int64_t at = 0; at < n_steps; at++) {
        int64_t step = backwards ? n_steps - 1 - at : at;
        const uint16_t *inputs = (const uint16_t *)(a + p->a_step * (size_t)step);
        for (int strip = 0; strip < 2; strip++) {
            const char *b = p->b + p->b_step * (size_t)strip;
            row_step(c + strip * NMLP_STRIP, inputs, (const uint16_t *)b + step * TILE * NMLP_STRIP);
        }
    }
}

/* TDPBSSD: four products at a time, exact. */
static void sum_row_int8(float *c, const nmlp_gemm_panel *p, const int8_t *a, float row_scale) {
    for (int j = 0; j < TILE; j++) {
        const int8_t *b = (const int8_t *)p->b + p->b_step * (size_t)(j / NMLP_STRIP) + 4 * (j % NMLP_STRIP);
        int32_t sum = 0;
        for (int64_t k = 0; k < p->k; k++) {
            const int8_t *line = a + p->a_step * (size_t)(k / 64);
            sum += line[k % 64] * b[k / 4 * NMLP_LINE_BYTES + k % 4];
        }
        c[j] = (float)sum * (row_scale * p->scales[j]);
    }
}

static void sum_tile(const nmlp_gemm_panel *p, int64_t i) {
    float *c = nmlp_gemm_panel_sums(p, i);
    for (int64_t row = 0; row < TILE && i * TILE + row < p->rows; row++) {
        const char *a = p->a + p->a_tile_bytes * (size_t)i + (size_t)row * NMLP_LINE_BYTES;
        float *sums = c + row * TILE;
        if (p->row_scales) {
            sum_row_int8(sums, p, (const int8_t *)a, p->row_scales[i * TILE + row]);
            continue;
        }
        for (int j = 0; j < TILE; j++) sums[j] = p->earlier ? p->earlier[i * TILE_FLOATS + row * TILE + j] : 0.0f;
        sum_row(sums, p, a, p->backwards ^ (i & 1));
        for (int j = 0; p->scales && j < TILE; j++) sums[j] *= p->scales[j];
    }
}

/* With the epilogues' own silu: the last tile of a thread is stored by them, and which one that is depends on threads.
 */
static void put_line(char *to, const float *sums, const float *up) {
    float gated[TILE];
    if (up) nmlp_vec_ref.silu_mul(gated, sums, up, TILE);
    for (int j = 0; j < TILE; j++) ((uint16_t *)to)[j] = nmlp_f32_to_bf16(up ? gated[j] : sums[j]);
}

static void put_row(float *y, const float *sums, bool add) {
    for (int j = 0; j < TILE; j++) y[j] = add ? y[j] + sums[j] : sums[j];
}

static void store_finished(const nmlp_gemm_panel *p, const nmlp_gemm_finished_tile *f) {
    if (f->outcome == NMLP_STORE_BY_CALLBACK) {
        if (f->rows > 0) p->store_rows(p->ctx, f, f->rows);
        return;
    }
    for (int64_t row = 0; row < f->rows; row++) {
        char *to = f->to + row * f->row_bytes;
        const float *sums = f->sums[0] + row * TILE;
        if (f->outcome == NMLP_STORE_LINES) put_line(to, sums, NULL);
        if (f->outcome == NMLP_STORE_GATED_LINES) put_line(to, sums, f->sums[1] + row * TILE);
        if (f->outcome == NMLP_STORE_ROWS || f->outcome == NMLP_STORE_ADDED_ROWS)
            put_row((float *)to, sums, f->outcome == NMLP_STORE_ADDED_ROWS);
    }
}

void nmlp_gemm_panel_emu(const nmlp_gemm_panel *p) {
    for (int64_t i = 0; i * TILE < p->rows; i++) {
        store_finished(p, p->finished);
        sum_tile(p, i);
        *p->finished = nmlp_gemm_panel_finished(p, i);
    }
}
