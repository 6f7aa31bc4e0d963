#include "bench/limits.h"

#include "base/memory_limit.h"
#include "engine/backend.h"
#include "kernels/caches.h"

static const size_t PROBE_BYTES_MIN = (size_t)256 << 20, PROBE_BYTES_MAX = (size_t)2 << 30;
static const double PROBE_SECONDS = 0.05; /* samples take some tenths of a second */

/* What the memory probe reads again and again must not stay in L3, which on servers holds hundreds of megabytes: with
 * many threads it would be read so often that much of it did. */
size_t nmlp_limits_probe_bytes(void) {
    size_t bytes = 4 * nmlp_caches_get()->l3_bytes;
    if (bytes < PROBE_BYTES_MIN) return PROBE_BYTES_MIN;
    return bytes < PROBE_BYTES_MAX ? bytes : PROBE_BYTES_MAX;
}

nmlp_status nmlp_limits_open(nmlp_limits *l, const nmlp_engine *engine, nmlp_pool *pool, bool bf16, nmlp_err *err) {
    const nmlp_backend *backend = nmlp_engine_backend(engine);
    *l = (nmlp_limits){.bf16 = bf16};
    if (backend->peak) {
        double bytes_s, flop_s;
        NMLP_RETURN_IF_FAILED(backend->peak(&bytes_s, &flop_s, err));
        l->device_gbs = 1e-9 * bytes_s;
        l->device_gflops = 1e-9 * flop_s;
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(nmlp_memory_need((double)nmlp_limits_probe_bytes(), err));
    NMLP_RETURN_IF_FAILED(nmlp_probe_create(&l->probe, pool, nmlp_cpu_get(), nmlp_limits_probe_bytes(), err));
    nmlp_probe_set_seconds(l->probe, PROBE_SECONDS);
    return NMLP_OK;
}

void nmlp_limits_close(nmlp_limits *l) {
    nmlp_probe_destroy(l->probe);
    l->probe = NULL;
}

double nmlp_limits_gbs(const nmlp_limits *l) { return l->probe ? nmlp_probe_dram_gbs(l->probe) : l->device_gbs; }

double nmlp_limits_gflops(const nmlp_limits *l) {
    if (!l->probe) return l->device_gflops;
    double amx = l->bf16 ? nmlp_probe_amx_fed_gflops(l->probe) : 0;
    return amx > 0 ? amx : nmlp_probe_fma_gflops(l->probe);
}
