/* What the files of src/kernels share and nobody else sees. */
#ifndef NMLP_KERNELS_KERNELS_INT_H
#define NMLP_KERNELS_KERNELS_INT_H

#include "kernels/kernels.h"

struct nmlp_kernels {
    const char *name;
    bool (*supported)(const nmlp_cpu *cpu);
    bool bf16_activations;
};

extern const nmlp_kernels nmlp_kernels_ref;

static inline size_t nmlp_round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* Hands out pieces of the caller's workspace, each aligned to a cache line. With base NULL it only counts. */
typedef struct nmlp_carver {
    char *base;
    size_t used_bytes;
} nmlp_carver;

enum { NMLP_CARVE_ALIGN = 64 };

static inline void *nmlp_carve(nmlp_carver *carver, size_t bytes) {
    void *piece = carver->base ? carver->base + carver->used_bytes : NULL;
    carver->used_bytes += nmlp_round_up(bytes, NMLP_CARVE_ALIGN);
    return piece;
}

#endif
