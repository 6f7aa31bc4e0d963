/* Parts that the published kernels have in common. */
#ifndef NMLP_TRAINIUM_PLAN_KERNEL_PARTS_H
#define NMLP_TRAINIUM_PLAN_KERNEL_PARTS_H

#include "trainium/plan/kernel_table.h"
#include "trainium/plan/tiles.h"

/* Columns of a moving tile: the reference's 512, or what the machine can. */
int64_t nmlp_part_moving_columns(const nmlp_kernel_request *rq);

/* A managed SBUF buffer over all partitions, [d0,d1] or, with d2 > 0, [d0,d1,d2]. */
int nmlp_part_sbuf(nmlp_program *p, const nmlp_kernel_request *rq, const char *name, int copies, int64_t d0, int64_t d1,
                   int64_t d2);
/* fp32 accumulators. */
int nmlp_part_psum(nmlp_program *p, const nmlp_kernel_request *rq, const char *name, int copies, int64_t columns);

/* Rows [tiles of `rows` in block rb] x columns of block cb, one DMA per tile. `flip`: the tensor has them the other
 * way. */
void nmlp_part_load_block(nmlp_program *p, const char *name, int buffer, int tensor, nmlp_axis rows, int rb,
                          nmlp_axis cols, int cb, bool flip);

#endif
