/* Which set of training arithmetic to use. */
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "train/ops_internal.h"

static bool is_auto(const char *isa) { return !isa || strcmp(isa, "auto") == 0; }

const nmlp_train_ops *nmlp_train_ops_select(const char *isa) {
#if defined(__x86_64__)
    const nmlp_cpu *cpu = nmlp_cpu_get();
    bool any = is_auto(isa) || strcmp(isa, "amx") == 0 || strcmp(isa, "avx512bf16") == 0;
    if (cpu->avx512 && (any || strcmp(isa, "avx512") == 0)) return &nmlp_train_ops_f32_avx512;
    if (cpu->avx2_fma && (any || strcmp(isa, "avx2") == 0)) return &nmlp_train_ops_f32_avx2;
#else
    (void)isa;
#endif
    return &nmlp_train_ops_f32_ref;
}

#if defined(__x86_64__)

enum { M = 33, N = 35, K = 70, ROWS = 96, STRIPS = 2, SCRATCH_MAX = 32768 };

static void small_product(const nmlp_train_products *products, float *c, const float *a, const float *b) {
    _Alignas(64) float packed[STRIPS * 32 * ROWS];
    _Alignas(64) float scratch[SCRATCH_MAX];
    products->pack_b(&(nmlp_train_b_packing){
        .packed = packed, .b = b, .ldb = N, .k = K, .n = N, .b_rows = ROWS, .strip_end = STRIPS});
    products->multiply(&(nmlp_train_product){
        .c = c, .ldc = N, .a = a, .lda = K, .b = packed, .b_rows = ROWS, .m = M, .n = N, .k = K, .scratch = scratch});
}

/* Tiles are trusted after they agreed with their description in C. Both sum bf16 products in f32: only the order may
 * differ. */
static bool tiles_agree(void) {
    float a[M * K], b[K * N], got[M * N], want[M * N];
    for (int i = 0; i < M * K; i++) a[i] = (float)(i % 17) - 8.0f + 0.125f * (float)(i % 5);
    for (int i = 0; i < K * N; i++) b[i] = (float)(i % 13) - 6.0f + 0.125f * (float)(i % 7);
    small_product(&nmlp_train_products_amx, got, a, b);
    small_product(&nmlp_train_products_emu, want, a, b);
    for (int i = 0; i < M * N; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-3f * (1.0f + fabsf(want[i])))) return false;
    return true;
}

static bool tiles_usable(void) {
    const nmlp_cpu *cpu = nmlp_cpu_get();
    return cpu->amx_bf16 && cpu->avx512 && tiles_agree();
}

#endif

const nmlp_train_products *nmlp_train_products_select(const char *isa) {
    if (isa && strcmp(isa, "amx-emu") == 0) return &nmlp_train_products_emu;
#if defined(__x86_64__)
    if (isa && strcmp(isa, "amx-emu-avx512") == 0 && nmlp_cpu_get()->avx512) return &nmlp_train_products_emu_avx512;
    if ((is_auto(isa) || strcmp(isa, "amx") == 0) && tiles_usable()) return &nmlp_train_products_amx;
#endif
    return &nmlp_train_ops_select(isa)->products;
}
