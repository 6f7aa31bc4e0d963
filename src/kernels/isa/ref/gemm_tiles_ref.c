/* What AMX computes, in C: blocks of 32 x 32 and 16 x 64, bf16 activations and weights, f32 sums. Lets every machine
 * test the layouts and drivers of the amx set. */
#include "kernels/gemm/panel.h"
#include "kernels/gemm/quant_unpack.h"

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

/* `width` strips is what C is laid out for. */
static void multiply(const nmlp_gemm_microtile *p, int width, int strips) {
    for (int i = 0; i < p->rows; i++) {
        for (int strip = 0; strip < strips; strip++) {
            float *c = p->c + (i * width + strip) * NMLP_STRIP;
            const char *a = (const char *)p->a + (size_t)i * NMLP_LINE_BYTES;
            const uint16_t *b = (const uint16_t *)((const char *)p->b + p->b_step * (size_t)strip);
            if (!p->accumulate)
                for (int j = 0; j < NMLP_STRIP; j++) c[j] = 0.0f;
            for (int64_t k = 0; k < p->k; k += TILE_K, a += p->a_step, b += TILE_K * NMLP_STRIP)
                row_strip(c, (const uint16_t *)a, b);
        }
    }
}

static void block_bf16(const nmlp_gemm_microtile *p) {
    multiply(p, STRIPS, STRIPS);
    for (int64_t k = 0; k < p->k; k += TILE_K) nmlp_gemm_overlap_step(p->overlap);
}

static void few_bf16(const nmlp_gemm_microtile *p) { multiply(p, FEW_STRIPS, p->strips); }

const nmlp_gemm nmlp_gemm_emu = {
    .mr = MR,
    .strips = STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .int8_panels = true,
    .microkernel = {[NMLP_DTYPE_BF16] = block_bf16},
    .unpack = nmlp_gemm_quant_unpack_bf16,
    .panel = nmlp_gemm_panel_emu,
};

const nmlp_gemm nmlp_gemm_few_emu = {
    .mr = FEW_MR,
    .strips = FEW_STRIPS,
    .elem_bytes = sizeof(uint16_t),
    .narrow_rows = INT32_MAX,
    .full_tiles = true,
    .microkernel = {[NMLP_DTYPE_BF16] = few_bf16},
    .unpack = nmlp_gemm_quant_unpack_bf16,
};
