/* The kernel sets there are, fastest first, and the choice between them. */
#include <stdio.h>
#include <string.h>

#include "kernels/kernels_internal.h"

static bool any_cpu(const nmlp_cpu *cpu) {
    (void)cpu;
    return true;
}

static const nmlp_kernels set_ref = {
    .name = "ref",
    .supported = any_cpu,
    .wide = &nmlp_gemm_ref,
    .narrow = &nmlp_gemm_ref,
    .exact = &nmlp_gemm_ref,
    .vec = &nmlp_vec_ref,
};

/* What the amx set does, in plain C: for tests on machines without tiles. */
static const nmlp_kernels set_amx_emu = {
    .name = "amx-emu",
    .supported = any_cpu,
    .bf16_activations = true,
    .only_by_name = true,
    .wide = &nmlp_gemm_emu,
    .narrow = &nmlp_gemm_few_emu,
    .narrow_rows = 16,
    .few = &nmlp_gemm_ref,
    .few_rows = 4,
    .quant = &nmlp_gemm_ref,
    .quant_rows = 8,
    .exact = &nmlp_gemm_ref,
    .vec = &nmlp_vec_ref,
};

#if defined(__x86_64__)

static bool has_avx2(const nmlp_cpu *cpu) { return cpu->avx2_fma; }
static bool has_avx512(const nmlp_cpu *cpu) { return cpu->avx512; }
static bool has_amx(const nmlp_cpu *cpu) { return cpu->amx_bf16 && cpu->avx512; }

static bool has_avx512_bf16(const nmlp_cpu *cpu) { return cpu->avx512_bf16 && cpu->avx512_vnni && cpu->avx512_vbmi; }
static bool has_fast_bf16(const nmlp_cpu *cpu) { return cpu->bf16_dot_is_fast; }

static const nmlp_kernels set_avx2 = {
    .name = "avx2",
    .supported = has_avx2,
    .wide = &nmlp_gemm_avx2,
    .narrow = &nmlp_gemm_avx2,
    .exact = &nmlp_gemm_avx2,
    .vec = &nmlp_vec_avx2,
};

static const nmlp_kernels set_avx512 = {
    .name = "avx512",
    .supported = has_avx512,
    .wide = &nmlp_gemm_avx512,
    .narrow = &nmlp_gemm_narrow_avx512,
    .narrow_rows = 60,
    .few = &nmlp_gemm_few_avx512,
    .few_rows = 6,
    .exact = &nmlp_gemm_avx512,
    .vec = &nmlp_vec_avx512,
};

/* What AMX tiles multiply, in vector registers: more rows at a time than arithmetic in f32 can keep up with memory. */
static const nmlp_kernels set_avx512bf16 = {
    .name = "avx512bf16",
    .supported = has_avx512_bf16,
    .pays = has_fast_bf16,
    .bf16_activations = true,
    .wide = &nmlp_gemm_avx512bf16,
    .narrow = &nmlp_gemm_narrow_avx512,
    .narrow_rows = 12,
    .few = &nmlp_gemm_few_avx512,
    .few_rows = 6,
    .quant = &nmlp_gemm_narrow_avx512,
    .quant_rows = 12,
    .exact = &nmlp_gemm_few_avx512,
    .vec = &nmlp_vec_avx512bf16,
};

/* A few rows are bound by memory, and plain vector loads keep their speed when a neighbour slows tile loads down. Up to
 * 8 of them integer products take less time than to unpack quantised weights for tiles. */
static const nmlp_kernels set_amx = {
    .name = "amx",
    .supported = has_amx,
    .bf16_activations = true,
    .wide = &nmlp_gemm_amx,
    .narrow = &nmlp_gemm_few_amx,
    .narrow_rows = 16,
    .few = &nmlp_gemm_few_avx512,
    .few_rows = 6,
    .quant = &nmlp_gemm_narrow_avx512,
    .quant_rows = 8,
    .exact = &nmlp_gemm_few_avx512,
    .scores_64 = nmlp_scores_64_amx,
    .vec = &nmlp_vec_avx512bf16,
};

static const nmlp_kernels *const sets[] = {&set_amx, &set_avx512bf16, &set_avx512, &set_avx2, &set_ref, &set_amx_emu};

#else

static const nmlp_kernels *const sets[] = {&set_ref, &set_amx_emu};

#endif

enum { N_SETS = sizeof sets / sizeof sets[0], NAMES_MAX = 64 };

static void list_names(char names[NAMES_MAX]) {
    size_t at = 0;
    names[0] = '\0';
    for (int i = 0; i < N_SETS && at < NAMES_MAX; i++) {
        if (!sets[i]->only_by_name) at += (size_t)snprintf(names + at, NAMES_MAX - at, ", %s", sets[i]->name);
    }
}

static nmlp_status select_by_name(const nmlp_kernels **out, const nmlp_cpu *cpu, const char *isa, nmlp_err *err) {
    char names[NAMES_MAX];
    for (int i = 0; i < N_SETS; i++) {
        if (strcmp(isa, sets[i]->name) != 0) continue;
        if (!sets[i]->supported(cpu))
            return nmlp_fail(err, NMLP_E_UNSUPPORTED, "kernel set \"%s\" needs instructions this CPU lacks", isa);
        *out = sets[i];
        return NMLP_OK;
    }
    list_names(names);
    return nmlp_fail(err, NMLP_E_ARG, "kernel set \"%s\" is unknown, expected auto%s", isa, names);
}

static bool is_auto(const char *isa) { return !isa || strcmp(isa, "auto") == 0; }

/* The first that runs here; the portable sets always do. */
static const nmlp_kernels *fastest(const nmlp_cpu *cpu, bool allow_bf16) {
    for (int i = 0; i < N_SETS; i++) {
        if (sets[i]->only_by_name || (sets[i]->bf16_activations && !allow_bf16)) continue;
        if (sets[i]->pays && !sets[i]->pays(cpu)) continue;
        if (sets[i]->supported(cpu)) return sets[i];
    }
    return &set_ref;
}

nmlp_status nmlp_kernels_select(const nmlp_kernels **out, const nmlp_cpu *cpu, const char *isa, nmlp_err *err) {
    *out = NULL;
    if (!is_auto(isa)) return select_by_name(out, cpu, isa, err);
    *out = fastest(cpu, false);
    return NMLP_OK;
}

nmlp_status nmlp_kernels_select_bf16(const nmlp_kernels **out, const nmlp_cpu *cpu, const char *isa, nmlp_err *err) {
    *out = NULL;
    if (!is_auto(isa)) return select_by_name(out, cpu, isa, err);
    *out = fastest(cpu, true);
    return NMLP_OK;
}

const char *nmlp_kernels_name(const nmlp_kernels *kernels) { return kernels->name; }

bool nmlp_kernels_rounds_to_bf16(const nmlp_kernels *kernels) { return kernels->bf16_activations; }

const char *nmlp_kernels_name_at(size_t index) {
    for (size_t i = 0; i < N_SETS; i++) {
        if (sets[i]->only_by_name) continue;
        if (index-- == 0) return sets[i]->name;
    }
    return NULL;
}
