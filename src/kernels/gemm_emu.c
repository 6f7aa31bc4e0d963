/* What AMX computes, in C: blocks of 32 x 32 and 16 x 64, bf16 activations and weights, f32 sums. Lets every machine
 * test the layouts and drivers of the amx set. */
#include <math.h>

#include "kernels/gemm.h"

enum { MR = 32, STRIPS = 2, FEW_MR = 16, FEW_STRIPS = 4, TILE_K = 32 };

/* One row of C and one strip: TDPBF16PS sums the two products of a pair, then adds to C. */
static void row_strip(float *c, const uint16_t *a, const uint16_t *b) {
    for (int k = 0; k < TILE_K; k += 2) {
        float even = nmlp_bf16_to_f32(a[k]);
        float odd = nmlp_bf16_to_f32(a[k + 1]);
        const uint16_t *pairs = b + k * NMLP_STRIP;
        for (int j = 0; j < NMLP_STRIP; j++)
            c[j] += even * nmlp_bf16_to_f32(pairs[2 * j]) + odd * nmlp_bf16_to_f32(pairs[2 * j + 1]);
    }
}

static void begin_sums(float *c, const nmlp_block *p, int64_t offset) {
    const float *earlier = p->earlier ? p->earlier + offset : c;
    for (int j = 0; j < NMLP_STRIP; j++) c[j] = p->accumulate ? earlier[j] : 0.0f;
}

/* `width` strips is what C is laid out for. */
static void multiply(const nmlp_block *p, int width, int strips) {
    int64_t n_steps = p->k / TILE_K;
    for (int i = 0; i < p->rows; i++) {
        for (int strip = 0; strip < strips; strip++) {
            float *c = p->c + (i * width + strip) * NMLP_STRIP;
            const char *a = (const char *)p->a + (size_t)i * NMLP_LINE_BYTES;
            const uint16_t *b = (const uint16_t *)((const char *)p->b + p->b_step * (size_t)strip);
            begin_sums(c, p, c - p->c);
            for (int64_t at = 0; at < n_steps; at++) {
                int64_t step = p->backwards ? n_steps - 1 - at : at;
                row_strip(c, (const uint16_t *)(a + p->a_step * (size_t)step), b + step * TILE_K * NMLP_STRIP);
            }
        }
    }
}

static void put_line(char *to, const float *sums, const float *up) {
    for (int j = 0; j < NMLP_PAD; j++) {
        float x = up ? sums[j] / (1.0f + expf(-sums[j])) * up[j] : sums[j];
        ((uint16_t *)to)[j] = nmlp_f32_to_bf16(x);
    }
}

static void put_row(float *y, const float *sums, bool add) {
    for (int j = 0; j < NMLP_PAD; j++) y[j] = add ? y[j] + sums[j] : sums[j];
}

static void deliver(const nmlp_delivery *d, int64_t row) {
    int64_t offset = row / NMLP_PAD * d->tile_bytes + row % NMLP_PAD * d->row_bytes;
    for (int i = 0; i < 2 && d->to[i]; i++) {
        char *to = d->to[i] + offset;
        const float *sums = d->sums[i] + row * NMLP_PAD;
        if (d->outcome == NMLP_TO_LINES) put_line(to, sums, NULL);
        if (d->outcome == NMLP_GATED_LINES) put_line(to, sums, d->sums[1] + row * NMLP_PAD);
        if (d->outcome == NMLP_TO_ROWS || d->outcome == NMLP_ADDED_ROWS)
            put_row((float *)to, sums, d->outcome == NMLP_ADDED_ROWS);
    }
}

static void block_bf16(const nmlp_block *p) {
    nmlp_beside *beside = p->beside;
    multiply(p, STRIPS, STRIPS);
    for (int64_t k = 0; k < p->k; k += TILE_K) {
        if (beside->described.outcome == NMLP_BY_CALL)
            nmlp_beside_step(beside);
        else if (beside->row < beside->end)
            deliver(&beside->described, beside->row++);
    }
}

static void few_bf16(const nmlp_block *p) { multiply(p, FEW_STRIPS, p->strips); }

const nmlp_gemm nmlp_gemm_emu = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .works_beside = true,
    .block = {[NMLP_DTYPE_BF16] = block_bf16},
};

const nmlp_gemm nmlp_gemm_few_emu = {
    .mr = FEW_MR,
    .strips = FEW_STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .block = {[NMLP_DTYPE_BF16] = few_bf16},
};
