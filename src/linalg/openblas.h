/* OpenBLAS, loaded when it is first used: what only reads, runs or plans models starts without its threads and
 * buffers, and does not end where it cannot have them. */
#ifndef NMLP_LINALG_OPENBLAS_H
#define NMLP_LINALG_OPENBLAS_H

#include <cblas.h>
#include <stddef.h>

/* LAPACK as Fortran has it: everything by address, lengths of strings behind the other arguments. */
typedef void nmlp_dsyevd_function(const char *jobz, const char *uplo, const blasint *n, double *a, const blasint *lda,
                                  double *w, double *work, const blasint *lwork, blasint *iwork, const blasint *liwork,
                                  blasint *info, size_t jobz_len, size_t uplo_len);
typedef void nmlp_dpotrf_function(const char *uplo, const blasint *n, double *a, const blasint *lda, blasint *info,
                                  size_t uplo_len);

typedef struct nmlp_openblas {
    __typeof__(cblas_dgemm) *dgemm;
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dtrsm) *dtrsm;
    __typeof__(openblas_get_num_threads) *get_num_threads;
    __typeof__(openblas_set_num_threads) *set_num_threads;
    __typeof__(openblas_get_corename) *get_corename;
    nmlp_dsyevd_function *dsyevd;
    nmlp_dpotrf_function *dpotrf;
} nmlp_openblas;

/* NULL where it could not be loaded; nmlp_linalg_load says why. */
const nmlp_openblas *nmlp_openblas_get(void);

#endif
