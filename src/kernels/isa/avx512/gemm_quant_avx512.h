/* Micro-kernels for quantised weights by width of the micro-tile, with and without VNNI. */
#ifndef NMLP_KERNELS_ISA_AVX512_GEMM_QUANT_AVX512_H
#define NMLP_KERNELS_ISA_AVX512_GEMM_QUANT_AVX512_H

#include "base/cpu.h"
#include "kernels/gemm/gemm.h"

nmlp_gemm_microkernel nmlp_gemm_q8_64_avx512;
nmlp_gemm_microkernel nmlp_gemm_q4_64_avx512;
nmlp_gemm_microkernel nmlp_gemm_q8_32_avx512;
nmlp_gemm_microkernel nmlp_gemm_q4_32_avx512;
nmlp_gemm_microkernel nmlp_gemm_q4m_64_avx512;
nmlp_gemm_microkernel nmlp_gemm_q4m_32_avx512;
nmlp_gemm_microkernel nmlp_gemm_q8_64_avx512vnni;
nmlp_gemm_microkernel nmlp_gemm_q4_64_avx512vnni;
nmlp_gemm_microkernel nmlp_gemm_q8_32_avx512vnni;
nmlp_gemm_microkernel nmlp_gemm_q4_32_avx512vnni;
nmlp_gemm_microkernel nmlp_gemm_q4m_64_avx512vnni;
nmlp_gemm_microkernel nmlp_gemm_q4m_32_avx512vnni;

/* Same bits either way, so the choice need not be the table's. */
static inline void nmlp_gemm_q8_64(const nmlp_gemm_microtile *p) {
    (nmlp_cpu_get()->avx512_vnni ? nmlp_gemm_q8_64_avx512vnni : nmlp_gemm_q8_64_avx512)(p);
}
static inline void nmlp_gemm_q4_64(const nmlp_gemm_microtile *p) {
    (nmlp_cpu_get()->avx512_vnni ? nmlp_gemm_q4_64_avx512vnni : nmlp_gemm_q4_64_avx512)(p);
}
static inline void nmlp_gemm_q8_32(const nmlp_gemm_microtile *p) {
    (nmlp_cpu_get()->avx512_vnni ? nmlp_gemm_q8_32_avx512vnni : nmlp_gemm_q8_32_avx512)(p);
}
static inline void nmlp_gemm_q4_32(const nmlp_gemm_microtile *p) {
    (nmlp_cpu_get()->avx512_vnni ? nmlp_gemm_q4_32_avx512vnni : nmlp_gemm_q4_32_avx512)(p);
}
static inline void nmlp_gemm_q4m_64(const nmlp_gemm_microtile *p) {
    (nmlp_cpu_get()->avx512_vnni ? nmlp_gemm_q4m_64_avx512vnni : nmlp_gemm_q4m_64_avx512)(p);
}
static inline void nmlp_gemm_q4m_32(const nmlp_gemm_microtile *p) {
    (nmlp_cpu_get()->avx512_vnni ? nmlp_gemm_q4m_32_avx512vnni : nmlp_gemm_q4m_32_avx512)(p);
}

#endif
