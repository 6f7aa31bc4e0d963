/* Large matmuls: through cuBLASLt where it can be loaded at run time, through our own kernel where it cannot. */
#ifndef NMLP_CUDA_BLAS_H
#define NMLP_CUDA_BLAS_H

#include <stdbool.h>

#include "base/status.h"
#include "cuda/device.h"
#include "cuda/prefill/prefill.h"

enum { NMLP_CUDA_BLAS_WORKSPACE_BYTES = 32 << 20 };

typedef struct nmlp_cuda_blas nmlp_cuda_blas;

/* `workspace`: device memory of NMLP_CUDA_BLAS_WORKSPACE_BYTES, borrowed. Without the library, or where it is not
 * wanted, the object is made all the same. */
nmlp_status nmlp_cuda_blas_create(nmlp_cuda_blas **out, void *workspace, bool use_library, nmlp_err *err);
void nmlp_cuda_blas_destroy(nmlp_cuda_blas *blas);
/* Whether the library can be loaded at all. */
bool nmlp_cuda_blas_available(void);
bool nmlp_cuda_blas_has_library(const nmlp_cuda_blas *blas);
/* While it is on, the first call of a shape measures what the library offers for it and keeps the fastest, where the
 * matmul is large and no part of a graph; a matmul that accumulates then leaves no result. Other shapes take the
 * library's first offer. The choice changes no bit of later results. */
void nmlp_cuda_blas_measure(nmlp_cuda_blas *blas, bool on);
/* Remembers the choice per shape, so that a second call of a shape allocates nothing. */
nmlp_status nmlp_cuda_blas_run(nmlp_cuda_blas *blas, const nmlp_cuda_gemm *gemm, cudaStream_t stream, nmlp_err *err);

#endif
