/* Tensors to double precision and back. */
#ifndef NMLP_COMPRESS_CALIBRATE_CONVERT_F64_H
#define NMLP_COMPRESS_CALIBRATE_CONVERT_F64_H

#include <stdint.h>

#include "base/pool.h"
#include "tensor/view.h"

/* dst: as many doubles as the view has elements. */
void nmlp_widen(nmlp_pool *pool, double *dst, const nmlp_view *view);
/* dst: n elements of `dtype`. */
void nmlp_narrow(void *dst, nmlp_dtype dtype, const double *src, int64_t n);

#endif
