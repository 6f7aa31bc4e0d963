/* bench_peak: arithmetic and memory rates of this machine, as CSV. Usage: bench_peak [threads] */
#include <stdio.h>

#include "probe.h"
#include "stats.h"

enum { REPEATS = 21 };
static const size_t DRAM_BYTES = (size_t)1 << 30;

struct reading {
    const char *name;
    const char *unit;
    double (*run)(nmlp_probe *probe);
    size_t bytes; /* per thread, for reads */
};

static const struct reading readings[] = {
    {"fma_f32", "GFLOP/s", nmlp_probe_fma_gflops, 0},
    {"amx_bf16_registers", "GFLOP/s", nmlp_probe_amx_gflops, 0},
    {"amx_bf16_fed", "GFLOP/s", nmlp_probe_amx_fed_gflops, 0},
    {"read_l1_24KiB", "GB/s", NULL, 24 << 10},
    {"read_l2_768KiB", "GB/s", NULL, 768 << 10},
    {"read_l3_8MiB", "GB/s", NULL, 8 << 20},
    {"read_dram", "GB/s", nmlp_probe_dram_gbs, 0},
};

static void take(nmlp_probe *probe, const struct reading *reading, int n_threads) {
    nmlp_samples samples = {.n = 0};
    for (int i = 0; i < REPEATS; i++)
        nmlp_samples_add(&samples, reading->run ? reading->run(probe) : nmlp_probe_read_gbs(probe, reading->bytes));
    if (nmlp_samples_quantile(&samples, 1.0) == 0.0) {
        fprintf(stderr, "SKIPPED: %s, this CPU lacks it\n", reading->name);
        return;
    }
    printf("%s,%d,%s,%.1f,%.1f,%.1f\n", reading->name, n_threads, reading->unit, nmlp_samples_quantile(&samples, 0.5),
           nmlp_samples_quantile(&samples, 0.1), nmlp_samples_quantile(&samples, 0.9));
}

int main(int argc, char **argv) {
    nmlp_err err;
    nmlp_pool *pool = NULL;
    nmlp_probe *probe = NULL;
    nmlp_cpu cpu = nmlp_cpu_detect();
    if (nmlp_pool_create(&pool, argc > 1 ? atoi(argv[1]) : 0, &err) != NMLP_OK ||
        nmlp_probe_create(&probe, pool, &cpu, DRAM_BYTES, &err) != NMLP_OK) {
        fprintf(stderr, "bench_peak: %s\n", err.message);
        nmlp_pool_destroy(pool);
        return 1;
    }
    printf("probe,threads,unit,median,p10,p90\n");
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++)
        take(probe, &readings[i], nmlp_pool_threads(pool));
    nmlp_probe_destroy(probe);
    nmlp_pool_destroy(pool);
    return 0;
}
