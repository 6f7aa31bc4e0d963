/* What the files of src/kernels share and nobody else sees. */
#ifndef NMLP_KERNELS_KERNELS_INTERNAL_H
#define NMLP_KERNELS_KERNELS_INTERNAL_H

#include "base/ints.h"
#include "kernels/gemm/gemm.h"
#include "kernels/kernels.h"
#include "kernels/ops/vec.h"

/* Scores c [n/32][32 rows][32 keys] of a tile of queries of 64 dimensions and n keys in strips, n a multiple of 32. */
typedef void nmlp_scores_fn(float *c, const void *queries, const void *strips, int64_t n, nmlp_gemm_overlap *overlap);

struct nmlp_kernels {
    const char *name;
    bool (*supported)(const nmlp_cpu *cpu);
    bool bf16_activations;             /* activations, and weights of other types, are rounded to bf16 */
    bool only_by_name;                 /* never chosen by itself */
    bool (*pays)(const nmlp_cpu *cpu); /* on a CPU that supports it; NULL: always */
    const nmlp_gemm *wide;
    const nmlp_gemm *narrow; /* for up to narrow_rows rows */
    int64_t narrow_rows;
    const nmlp_gemm *few; /* for up to few_rows rows; NULL: narrow */
    int64_t few_rows;
    const nmlp_gemm *quant; /* for up to quant_rows rows where a weight is quantised, then wide; NULL: as ever */
    int64_t quant_rows;
    const nmlp_gemm
        *exact; /* f32 activations: attention of few rows (best if it takes bf16 strips), or where nothing is rounded */
    nmlp_scores_fn *scores_64; /* faster than the wide gemm's blocks; NULL: there is none */
    const nmlp_vec *vec;
};

#if defined(__x86_64__)
nmlp_scores_fn nmlp_scores_64_amx;
#endif

static inline const nmlp_gemm *nmlp_kernels_gemm(const nmlp_kernels *kernels, int64_t s, bool quantised) {
    if (kernels->few && s <= kernels->few_rows) return kernels->few;
    if (kernels->quant && quantised) return s <= kernels->quant_rows ? kernels->quant : kernels->wide;
    return s <= kernels->narrow_rows ? kernels->narrow : kernels->wide;
}

/* One row of nmlp_rmsnorm. */
void nmlp_norm_row(float *y, const float *x, const float *weight, float eps, int64_t h);

/* Hands out pieces of the caller's workspace, each aligned to a cache line. With base NULL it only counts. */
typedef struct nmlp_carver {
    char *base;
    size_t used_bytes;
} nmlp_carver;

/* The workspace may start anywhere; a line is spent on its alignment. */
static inline nmlp_carver nmlp_carver_of(void *workspace) {
    nmlp_carver carver = {.base = workspace, .used_bytes = NMLP_LINE_BYTES};
    if (workspace) carver.used_bytes -= (uintptr_t)workspace % NMLP_LINE_BYTES;
    return carver;
}

static inline void *nmlp_carve(nmlp_carver *carver, size_t bytes) {
    void *piece = carver->base ? carver->base + carver->used_bytes : NULL;
    carver->used_bytes += nmlp_round_up_size(bytes, NMLP_LINE_BYTES);
    return piece;
}

/* Memory of the same layout for each of n, one after the other. */
typedef struct nmlp_pieces {
    char *base;
    size_t bytes; /* of one */
} nmlp_pieces;

static inline nmlp_pieces nmlp_pieces_carve(nmlp_carver *carver, size_t bytes, int n) {
    return (nmlp_pieces){.base = nmlp_carve(carver, bytes * (size_t)n), .bytes = bytes};
}

static inline nmlp_carver nmlp_piece(nmlp_pieces pieces, int at) {
    return (nmlp_carver){.base = pieces.base + pieces.bytes * (size_t)at};
}

#endif
