#include "bench/peak.h"

#include "bench/probe.h"

enum { REPEATS = 21 };
static const size_t DRAM_BYTES = (size_t)1 << 30;

struct reading {
    const char *name;
    const char *unit;
    double (*run)(nmlp_probe *probe);
    size_t bytes; /* per thread, for reads */
};

static const struct reading readings[NMLP_BENCH_PEAKS] = {
    {"fma_f32", "GFLOP/s", nmlp_probe_fma_gflops, 0},
    {"amx_bf16_registers", "GFLOP/s", nmlp_probe_amx_gflops, 0},
    {"amx_bf16_fed", "GFLOP/s", nmlp_probe_amx_fed_gflops, 0},
    {"amx_int8_fed", "GOP/s", nmlp_probe_amx_int8_fed_gops, 0},
    {"read_l1_24KiB", "GB/s", NULL, 24 << 10},
    {"read_l2_768KiB", "GB/s", NULL, 768 << 10},
    {"read_l3_8MiB", "GB/s", NULL, 8 << 20},
    {"read_dram", "GB/s", nmlp_probe_dram_gbs, 0},
};

static nmlp_bench_peak_result take(nmlp_probe *probe, const struct reading *reading) {
    nmlp_samples samples = {.n = 0};
    for (int i = 0; i < REPEATS; i++)
        nmlp_samples_add(&samples, reading->run ? reading->run(probe) : nmlp_probe_read_gbs(probe, reading->bytes));
    return (nmlp_bench_peak_result){reading->name, reading->unit, nmlp_samples_spread(&samples)};
}

nmlp_status nmlp_bench_peak_run(nmlp_bench_peak_result results[NMLP_BENCH_PEAKS], nmlp_pool *pool, nmlp_err *err) {
    nmlp_probe *probe = NULL;
    const nmlp_cpu *cpu = nmlp_cpu_get();
    NMLP_RETURN_IF_FAILED(nmlp_probe_create(&probe, pool, cpu, DRAM_BYTES, err));
    for (int i = 0; i < NMLP_BENCH_PEAKS; i++) results[i] = take(probe, &readings[i]);
    nmlp_probe_destroy(probe);
    return NMLP_OK;
}
