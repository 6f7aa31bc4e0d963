/* Dense linear algebra in double precision, and f32 products summed in double: the only user of OpenBLAS.
 *
 * Matrices are row-major and contiguous. BLAS itself runs on one thread; work is cut into blocks of a fixed size that
 * are handed to the pool, so results do not depend on the number of threads. */
#ifndef NMLP_LINALG_LINALG_H
#define NMLP_LINALG_LINALG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/status.h"

/* Loads OpenBLAS, in front of everything else here; says why it cannot. Also refused where buffers for that many
 * threads do not fit: OpenBLAS itself would try again for ever. */
nmlp_status nmlp_linalg_load(int n_threads, nmlp_err *err);

/* Around everything else here: keeps BLAS on the caller's thread, then gives OpenBLAS back the number of threads it
 * had, which belongs to the whole process. Two threads of a program that do this at the same time get right results, at
 * a speed that depends on who ends first. */
int nmlp_linalg_begin(void);
void nmlp_linalg_end(int n_threads);

/* Name of the CPU OpenBLAS chose its kernels for, e.g. "SkylakeX"; "none" where it cannot be loaded. */
const char *nmlp_linalg_core(void);
/* On some virtual machines OpenBLAS does not know the CPU and takes kernels of 2004, four times slower. Returns the
 * name OPENBLAS_CORETYPE should have in the environment of this program, or NULL when the choice is right. */
const char *nmlp_linalg_better_core(void);
/* The rule behind it. */
const char *nmlp_linalg_better_core_than(const char *core, bool has_avx2, bool has_avx512);

typedef enum nmlp_trans { NMLP_PLAIN, NMLP_TRANSPOSED } nmlp_trans;

/* C [m,n] = op(A) [m,k] op(B) [k,n]. */
void nmlp_linalg_gemm(nmlp_pool *pool, nmlp_trans ta, nmlp_trans tb, int64_t m, int64_t n, int64_t k, const double *a,
                      const double *b, double *c);

/* The same with rows of C c_stride apart. */
void nmlp_linalg_gemm_into(nmlp_pool *pool, nmlp_trans ta, nmlp_trans tb, int64_t m, int64_t n, int64_t k,
                           const double *a, const double *b, double *c, int64_t c_stride);
/* The same with operands and sums in f32, twice as fast: for results that will be rounded to 16 bits. */
nmlp_status nmlp_linalg_gemm_f32(nmlp_pool *pool, nmlp_trans ta, nmlp_trans tb, int64_t m, int64_t n, int64_t k,
                                 const double *a, const double *b, double *c, int64_t c_stride, nmlp_err *err);

/* C [m,n] = A [m,k] B [k,n] in f32 on the caller's thread alone, for tasks of the pool; rows lie *_stride apart. */
void nmlp_linalg_gemm_f32_strided(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_stride, const float *b,
                                  int64_t b_stride, float *c, int64_t c_stride);

/* C [n,n] = A^T D^2 A for A [k,n], D the diagonal d [k] (NULL: ones). `narrow`: in f32 as nmlp_linalg_gram_add. */
nmlp_status nmlp_linalg_weighted_squares(nmlp_pool *pool, int64_t n, int64_t k, const double *a, const double *d,
                                         bool narrow, double *c, nmlp_err *err);
/* C [m,m] = A D^2 A^T for A [m,k], D the diagonal d [k]; in f64, or in f32 as nmlp_linalg_gram_add. */
nmlp_status nmlp_linalg_weighted_rows(nmlp_pool *pool, int64_t m, int64_t k, const double *a, const double *d,
                                      bool narrow, double *c, nmlp_err *err);

/* Blocks of a product C [m,n] that several processes share: counted row by row, in a symmetric C only those on and
 * below the diagonal, block b belongs to part b % count. Zeroed: all of it. */
typedef struct nmlp_block_part {
    int index, count;
} nmlp_block_part;

static inline bool nmlp_block_is_mine(nmlp_block_part part, int64_t row, int64_t column, int64_t columns,
                                      bool symmetric) {
    if (symmetric && column > row) return false;
    return part.count < 2 ||
           (symmetric ? row * (row + 1) / 2 + column : row * columns + column) % part.count == part.index;
}

enum { NMLP_LINALG_BLOCK = 256 }; /* side of a block in the next three */

/* The blocks of C [m,n] += Y^T X for Y [s,m], X [s,n] f32 that belong to `part`; `symmetric`: Y is X, and what lies
 * above the diagonal stays. Products of at most 256 rows are summed in f32, those sums in f64: calls with a multiple of
 * 256 rows each have the result of one call. */
nmlp_status nmlp_linalg_blocks_add(nmlp_pool *pool, double *c, const float *y, const float *x, int64_t s, int64_t m,
                                   int64_t n, bool symmetric, nmlp_block_part part, nmlp_err *err);
/* C [n,n] += X^T X for X [s,n] f32, whole matrix; products of at most 256 rows are summed in f32, those sums in f64. */
nmlp_status nmlp_linalg_gram_add(nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n, nmlp_err *err);
/* What C [n,n] has below the diagonal, above it too. */
void nmlp_linalg_mirror(nmlp_pool *pool, double *c, int64_t n);
/* C [m,n] += Y^T X for Y [s,m], X [s,n] f32, in the same way. */
nmlp_status nmlp_linalg_cross_add(nmlp_pool *pool, double *c, const float *y, const float *x, int64_t s, int64_t m,
                                  int64_t n, nmlp_err *err);

/* Eigenvalues of a symmetric A [n,n], largest first, into values [n]; the matching unit eigenvectors replace A, one in
 * each row. */
nmlp_status nmlp_linalg_eigen(double *a, int64_t n, double *values, nmlp_err *err);

/* The same for several matrices at once, spread over the pool. */
typedef struct nmlp_eigen_task {
    double *a;
    double *values;
    int64_t n;
} nmlp_eigen_task;
nmlp_status nmlp_linalg_eigen_all(nmlp_pool *pool, nmlp_eigen_task *tasks, int64_t n_tasks, nmlp_err *err);

/* A [n,n] symmetric = L L^T; L replaces the lower triangle, the upper becomes zero. False, A destroyed, when A is not
 * positive definite. */
bool nmlp_linalg_cholesky(nmlp_pool *pool, double *a, int64_t n);
/* S [n,n] with S S^T = A, lower triangular where A allows it: tries Cholesky with a jitter relative to each diagonal
 * entry (1e-6 growing to 1e-3), then falls back to the eigenvectors with negative values clamped, which cannot fail. S
 * replaces A. */
nmlp_status nmlp_linalg_root(nmlp_pool *pool, double *a, int64_t n, bool *triangular, nmlp_err *err);
/* B [m,n] <- B L^-T and B <- B L^-1, L [n,n] lower triangular. */
void nmlp_linalg_solve_right_transposed(nmlp_pool *pool, const double *l, double *b, int64_t m, int64_t n);
void nmlp_linalg_solve_right(nmlp_pool *pool, const double *l, double *b, int64_t m, int64_t n);

#endif
