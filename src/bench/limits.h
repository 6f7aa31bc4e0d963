/* What the device that runs a model can do at best: asked beside the samples on this CPU, whose rates change, and once
 * on another device. */
#ifndef NMLP_BENCH_LIMITS_H
#define NMLP_BENCH_LIMITS_H

#include <stdbool.h>

#include "base/pool.h"
#include "bench/probe.h"
#include "engine/engine.h"

typedef struct nmlp_limits {
    nmlp_probe *probe; /* of this CPU; NULL: another device */
    bool bf16;         /* activations may be rounded */
    double device_gbs; /* of that; 0: not known */
    double device_gflops;
} nmlp_limits;

/* Memory that the probe of this CPU reads through. */
size_t nmlp_limits_probe_bytes(void);
/* Where it fails the limits are closed and not known. */
nmlp_status nmlp_limits_open(nmlp_limits *limits, const nmlp_engine *engine, nmlp_pool *pool, bool bf16, nmlp_err *err);
void nmlp_limits_close(nmlp_limits *limits);
/* Bytes read, on another device read and written; and operations of matmuls, in f32 where activations may not be
 * rounded. 0: not known. */
double nmlp_limits_gbs(const nmlp_limits *limits);
double nmlp_limits_gflops(const nmlp_limits *limits);

#endif
