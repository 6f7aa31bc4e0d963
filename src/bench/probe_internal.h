/* The inner loops of the probes, one file per instruction set. */
#ifndef NMLP_BENCH_PROBE_INTERNAL_H
#define NMLP_BENCH_PROBE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

/* Floating point operations done. */
double nmlp_probe_loop_fma_avx512(int64_t n);
double nmlp_probe_loop_fma_avx2(int64_t n);
double nmlp_probe_loop_amx_registers(int64_t n);
/* a: 2 x 1 KiB per step of `steps`, b likewise; one round over all steps per n. */
double nmlp_probe_loop_amx_fed(int64_t n, const void *a, int64_t a_steps, const void *b, int64_t b_steps);
double nmlp_probe_loop_amx_int8_fed(int64_t n, const void *a, int64_t a_steps, const void *b, int64_t b_steps);
/* Reads bytes (multiple of 512). The result keeps the loads alive. */
uint64_t nmlp_probe_loop_read_avx512(const void *data, size_t bytes);
uint64_t nmlp_probe_loop_read(const void *data, size_t bytes);

#endif
