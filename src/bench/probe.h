/* What this machine can do at best: limits for the benchmarks. Every probe runs on all threads of a pool and
 * returns the sum over threads, per second. It takes about a millisecond, or as long as nmlp_probe_set_seconds asks
 * for: the rates of a shared machine change, so a probe beside a long sample should be long too. */
#ifndef NMLP_BENCH_PROBE_H
#define NMLP_BENCH_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/pool.h"
#include "base/cpu.h"

typedef struct nmlp_probe nmlp_probe;

/* Allocates buffers: per thread tiles in L1 and L2, and `dram_bytes` in all to read. */
nmlp_status nmlp_probe_create(nmlp_probe **out, nmlp_pool *pool, const nmlp_cpu *cpu, size_t dram_bytes, nmlp_err *err);
void nmlp_probe_destroy(nmlp_probe *probe);
/* At least this long; 0: one short run. */
void nmlp_probe_set_seconds(nmlp_probe *probe, double seconds);

double nmlp_probe_fma_gflops(nmlp_probe *probe);     /* f32, registers only, widest vectors */
double nmlp_probe_amx_gflops(nmlp_probe *probe);     /* bf16, registers only; 0 without AMX */
double nmlp_probe_amx_fed_gflops(nmlp_probe *probe); /* bf16, 2x2 tiles, A from L1, B streamed from L2; 0 without AMX */
double nmlp_probe_amx_int8_fed_gops(nmlp_probe *probe);                 /* the same with int8 */
double nmlp_probe_read_gbs(nmlp_probe *probe, size_t bytes_per_thread); /* the same bytes again and again */
double nmlp_probe_dram_gbs(nmlp_probe *probe);                          /* through the big buffer, a part per call */

#endif
