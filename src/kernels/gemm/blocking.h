/* Block sizes from cache sizes and shapes. The choice depends on the shape and the machine, never on the number of
 * threads. */
#ifndef NMLP_KERNELS_GEMM_BLOCKING_H
#define NMLP_KERNELS_GEMM_BLOCKING_H

#include "kernels/caches.h"
#include "kernels/kernels_internal.h"

typedef struct nmlp_gemm_blocking {
    const nmlp_gemm *gemm;
    int64_t rows;      /* of S done together, multiple of the tile's rows */
    int64_t rows_most; /* what of them caches allow */
    int64_t kc;        /* inputs done at a time */
    int64_t chunk;     /* of I: outputs of gate and up that `down` takes before the next ones are made */
    bool widen;        /* weights to f32 in L1 before use */
    bool stream;       /* few rows: weights pass through once */
    int64_t rows_cap;  /* what memory is laid out for: bounds of rows and rows*chunk that grow with s */
    int64_t chunk_cap;
} nmlp_gemm_blocking;

/* Teams of threads, all of one size, that each take a block of rows at a time: where every team has enough of them,
 * weights are as well used by few threads as by many, and those of a team of one never wait. Within a team columns are
 * shared in small pieces, so that a slow thread delays the others little. */
int nmlp_gemm_blocking_teams(const nmlp_gemm_blocking *blocking, int64_t s, int n_threads);
/* The most teams there are for s rows or fewer and n_threads or fewer. */
int nmlp_gemm_blocking_teams_max(const nmlp_gemm_blocking *blocking, int64_t s, int n_threads);

/* Rows of a block, such that all teams have equally many blocks. */
int64_t nmlp_gemm_blocking_team_rows(const nmlp_gemm_blocking *blocking, int64_t s, int n_teams);

/* s rows of k inputs; `inner` is I for an MLP, 0 for a single matmul; `quantised`: some weight is. */
nmlp_gemm_blocking nmlp_gemm_blocking_make(const nmlp_kernels *kernels, const nmlp_caches *caches, int64_t s, int64_t k,
                                           int64_t inner, bool quantised);

/* A workspace sized for s rows must do for fewer, and those may be blocked differently: the largest numbers of rows <=
 * s of each kind of blocking. */
enum { NMLP_GEMM_BLOCKING_KINDS = 6 };
void nmlp_gemm_blocking_worst_rows(const nmlp_kernels *kernels, int64_t s, int64_t worst[NMLP_GEMM_BLOCKING_KINDS]);

#endif
