#include "bench/probe.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/pages.h"
#include "bench/probe_internal.h"
#include "bench/samples.h"

enum { FMA_LOOPS = 200000, AMX_LOOPS = 16000, A_STEPS = 8, B_STEPS = 512, FED_LOOPS = 24, SLICE_BYTES = 8 << 20 };
enum { L1_BYTES = A_STEPS * 2048, L2_BYTES = B_STEPS * 2048 };

struct nmlp_probe {
    nmlp_pool *pool;
    nmlp_cpu cpu;
    int n_threads;
    char *near; /* per thread: A tiles, B tiles */
    size_t near_bytes;
    char *far;
    size_t far_bytes; /* of one thread */
    size_t *far_at;   /* per thread, a cache line apart: what is read next */
    /* The job of the moment. */
    double (*work)(nmlp_probe *probe, int thread);
    size_t read_bytes;
    double *done; /* per thread, a cache line apart */
    double *seconds;
    double at_least_seconds;
};

enum { SPREAD = 8 };

nmlp_status nmlp_probe_create(nmlp_probe **out, nmlp_pool *pool, const nmlp_cpu *cpu, size_t dram_bytes,
                              nmlp_err *err) {
    *out = NULL;
    nmlp_probe *probe = nmlp_mem_new(1, sizeof *probe, err);
    if (!probe) return NMLP_E_NOMEM;
    probe->pool = pool;
    probe->cpu = *cpu;
    probe->n_threads = nmlp_pool_threads(pool);
    probe->near_bytes = (size_t)(L1_BYTES + L2_BYTES);
    probe->far_bytes = dram_bytes / (size_t)probe->n_threads / SLICE_BYTES * SLICE_BYTES;
    probe->near = nmlp_pages_new(probe->near_bytes * (size_t)probe->n_threads, err);
    probe->far = nmlp_pages_new(probe->far_bytes * (size_t)probe->n_threads, err);
    probe->far_at = nmlp_mem_new((size_t)probe->n_threads * SPREAD, sizeof(size_t), err);
    probe->done = nmlp_mem_new((size_t)probe->n_threads * SPREAD, sizeof(double), err);
    probe->seconds = nmlp_mem_new((size_t)probe->n_threads * SPREAD, sizeof(double), err);
    if (!probe->near || !probe->far || !probe->far_at || !probe->done || !probe->seconds) {
        nmlp_probe_destroy(probe);
        return NMLP_E_NOMEM;
    }
    memset(probe->near, 0, probe->near_bytes * (size_t)probe->n_threads);
    memset(probe->far, 1, probe->far_bytes * (size_t)probe->n_threads);
    *out = probe;
    return NMLP_OK;
}

void nmlp_probe_destroy(nmlp_probe *probe) {
    if (!probe) return;
    nmlp_pages_free(probe->near, probe->near_bytes * (size_t)probe->n_threads);
    nmlp_pages_free(probe->far, probe->far_bytes * (size_t)probe->n_threads);
    nmlp_mem_free(probe->far_at);
    nmlp_mem_free(probe->done);
    nmlp_mem_free(probe->seconds);
    nmlp_mem_free(probe);
}

static void job(void *arg, int thread, int n_threads) {
    nmlp_probe *probe = arg;
    nmlp_pool_barrier(probe->pool, thread, n_threads);
    double begin = nmlp_bench_seconds(n_threads);
    double done = 0.0;
    double seconds;
    do {
        done += probe->work(probe, thread);
        seconds = nmlp_bench_seconds(n_threads) - begin;
    } while (seconds < probe->at_least_seconds);
    probe->done[thread * SPREAD] = done;
    probe->seconds[thread * SPREAD] = seconds;
}

void nmlp_probe_set_seconds(nmlp_probe *probe, double seconds) { probe->at_least_seconds = seconds; }

/* Sum of the threads' own rates, in units of 1e9 per second. */
static double measure(nmlp_probe *probe, double (*work)(nmlp_probe *probe, int thread)) {
    double rate = 0.0;
    probe->work = work;
    nmlp_pool_run(probe->pool, job, probe);
    for (int t = 0; t < probe->n_threads; t++) rate += probe->done[t * SPREAD] / probe->seconds[t * SPREAD] / 1e9;
    return rate;
}

static double work_fma(nmlp_probe *probe, int thread) {
    (void)thread;
#if defined(__x86_64__)
    if (probe->cpu.avx512) return nmlp_probe_loop_fma_avx512(FMA_LOOPS);
    if (probe->cpu.avx2_fma) return nmlp_probe_loop_fma_avx2(FMA_LOOPS);
#endif
    (void)probe;
    return 0.0;
}

double nmlp_probe_fma_gflops(nmlp_probe *probe) { return measure(probe, work_fma); }

#if defined(__x86_64__)
static double work_amx(nmlp_probe *probe, int thread) {
    (void)probe;
    (void)thread;
    return nmlp_probe_loop_amx_registers(AMX_LOOPS);
}

static double work_amx_fed(nmlp_probe *probe, int thread) {
    const char *a = probe->near + probe->near_bytes * (size_t)thread;
    return nmlp_probe_loop_amx_fed(FED_LOOPS, a, A_STEPS, a + L1_BYTES, B_STEPS);
}

static double work_amx_int8_fed(nmlp_probe *probe, int thread) {
    const char *a = probe->near + probe->near_bytes * (size_t)thread;
    return nmlp_probe_loop_amx_int8_fed(FED_LOOPS, a, A_STEPS, a + L1_BYTES, B_STEPS);
}

double nmlp_probe_amx_int8_fed_gops(nmlp_probe *probe) {
    return probe->cpu.amx_bf16 ? measure(probe, work_amx_int8_fed) : 0.0;
}
double nmlp_probe_amx_gflops(nmlp_probe *probe) { return probe->cpu.amx_bf16 ? measure(probe, work_amx) : 0.0; }
double nmlp_probe_amx_fed_gflops(nmlp_probe *probe) { return probe->cpu.amx_bf16 ? measure(probe, work_amx_fed) : 0.0; }
#else
double nmlp_probe_amx_gflops(nmlp_probe *probe) {
    (void)probe;
    return 0.0;
}

double nmlp_probe_amx_fed_gflops(nmlp_probe *probe) { return nmlp_probe_amx_gflops(probe); }
double nmlp_probe_amx_int8_fed_gops(nmlp_probe *probe) { return nmlp_probe_amx_gflops(probe); }
#endif

uint64_t nmlp_probe_loop_read(const void *data, size_t bytes) {
    uint64_t lanes[8] = {0};
    for (size_t i = 0; i < bytes; i += sizeof lanes) {
        uint64_t line[8];
        memcpy(line, (const char *)data + i, sizeof line);
        for (int j = 0; j < 8; j++) lanes[j] ^= line[j];
    }
    for (int j = 1; j < 8; j++) lanes[0] |= lanes[j];
    return lanes[0];
}

static double read_all(const nmlp_probe *probe, const void *data, size_t bytes) {
    volatile uint64_t sink;
#if defined(__x86_64__)
    if (probe->cpu.avx512) {
        sink = nmlp_probe_loop_read_avx512(data, bytes);
        (void)sink;
        return (double)bytes;
    }
#endif
    (void)probe;
    sink = nmlp_probe_loop_read(data, bytes);
    (void)sink;
    return (double)bytes;
}

static double work_read(nmlp_probe *probe, int thread) {
    const char *data = probe->far + probe->far_bytes * (size_t)thread;
    size_t bytes = probe->read_bytes < probe->far_bytes ? probe->read_bytes : probe->far_bytes;
    double done = 0.0;
    for (size_t rounds = 2 * (size_t)SLICE_BYTES / bytes + 2; rounds > 0; rounds--)
        done += read_all(probe, data, bytes);
    return done;
}

double nmlp_probe_read_gbs(nmlp_probe *probe, size_t bytes_per_thread) {
    probe->read_bytes = bytes_per_thread / 512 * 512;
    return measure(probe, work_read);
}

static double work_dram(nmlp_probe *probe, int thread) {
    size_t *at = &probe->far_at[thread * SPREAD];
    *at = (*at + SLICE_BYTES) % probe->far_bytes;
    return read_all(probe, probe->far + probe->far_bytes * (size_t)thread + *at, SLICE_BYTES);
}

double nmlp_probe_dram_gbs(nmlp_probe *probe) { return measure(probe, work_dram); }
