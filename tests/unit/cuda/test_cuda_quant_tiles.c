/* Tiles of quantised weights, read back as a lane of the decode kernel reads them. */
#include <stdlib.h>

#include "cuda/decode/decode_quant.h"
#include "base/mem.h"
#include "lib/testing.h"
#include "lib/truth.h"
#include "tensor/quant.h"

enum { K = 320, ROWS_A = 10, ROWS_B = 9, B_AT = 16 }; /* two parts with rows between them; the last tile is short */

/* Number and scale of an element as the kernel makes them out of its registers. */
static float decode(const unsigned char *tile, bool q8, int row, int col) {
    int step = col / 16, lane = row % 8 * 4 + col % 8 / 2, reg = row / 8 + col % 16 / 8 * 2, half = col % 2;
    uint32_t words[2] = {0, 0};
    for (int w = 0; w < (q8 ? 2 : 1); w++) {
        int number = q8 ? 2 * step + w : step;
        memcpy(&words[w], tile + ((number / 4 * 32 + lane) * 4 + number % 4) * 4, 4);
    }
    if (q8) {
        int code = (int)(words[reg / 2] >> (8 * (reg % 2) + 16 * half) & 255);
        float scale;
        memcpy(&scale, tile + NMLP_CUDA_DECODE_Q8_CODES + 4 * row, sizeof scale);
        return scale * (float)(code - 128);
    }
    uint16_t scale;
    int scale_at = (row % 8 * 4 + col / 32 % 4) * 4 + row / 8 * 2 + col / 128;
    memcpy(&scale, tile + NMLP_CUDA_DECODE_Q4_CODES + scale_at * 2, sizeof scale);
    return nmlp_f16_to_f32(scale) * (float)((int)(words[0] >> (4 * reg + 16 * half) & 15) - 8);
}

static nmlp_view make_view(nmlp_dtype dtype, int group, int64_t rows, uint64_t seed) {
    nmlp_view view = {.dtype = dtype, .group = group, .n_dims = 2, .shape = {rows, K}};
    float *w = nmlp_test_floats(K, seed);
    view.data = calloc(1, nmlp_view_bytes(&view));
    view.scales = calloc(1, nmlp_quant_scale_bytes(&view));
    if (nmlp_quant_has_multipliers(dtype)) view.per_group = calloc((size_t)rows, (size_t)nmlp_quant_groups(&view));
    for (int64_t i = 0; i < rows; i++) {
        w[i] += 1;
        nmlp_quant_row_from_f32(&view, i, w);
    }
    nmlp_mem_free(w);
    return view;
}

static void check(nmlp_dtype dtype, int group) {
    nmlp_view a = make_view(dtype, group, ROWS_A, 1), b = make_view(dtype, group, ROWS_B, 2);
    const nmlp_cuda_decode_part parts[] = {{&a, 0}, {&b, B_AT}};
    for (int64_t g = 0; g < 2; g++) {
        for (int64_t t = 0; t < 2; t++) {
            unsigned char tile[NMLP_CUDA_DECODE_Q8_BYTES];
            nmlp_cuda_decode_quant_pack(tile, parts, 2, g, t);
            for (int row = 0; row < 16; row++) {
                int64_t whole = g * 16 + row;
                const nmlp_view *view = whole < ROWS_A ? &a : whole >= B_AT && whole < B_AT + ROWS_B ? &b : NULL;
                float want[K] = {0};
                if (view) nmlp_quant_row_to_f32(want, view, whole < B_AT ? whole : whole - B_AT);
                for (int col = 0; col < 256; col++) {
                    float expected = t * 256 + col < K ? want[t * 256 + col] : 0;
                    float got = decode(tile, dtype != NMLP_DTYPE_Q4, row, col);
                    if (got != expected)
                        fail_msg("row %d column %d: %g, expected %g", (int)whole, (int)(t * 256 + col), (double)got,
                                 (double)expected);
                }
            }
        }
    }
    free((void *)(uintptr_t)a.data);
    free((void *)(uintptr_t)a.scales);
    free((void *)(uintptr_t)a.per_group);
    free((void *)(uintptr_t)b.data);
    free((void *)(uintptr_t)b.scales);
    free((void *)(uintptr_t)b.per_group);
}

static void lanes_find_the_weights(void **state) {
    (void)state;
    check(NMLP_DTYPE_Q8, 0);
    check(NMLP_DTYPE_Q6, 0);
    check(NMLP_DTYPE_Q6M, 16);
    check(NMLP_DTYPE_Q5M, 16);
    check(NMLP_DTYPE_Q4M, 16);
    check(NMLP_DTYPE_Q4, 32);
    check(NMLP_DTYPE_Q4, 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lanes_find_the_weights)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
