#include "trainium/plan/kernel_parts.h"

int64_t nmlp_part_moving_columns(const nmlp_kernel_request *rq) {
    enum { REFERENCE_COLUMNS = 512 };
    return rq->machine->moving_max < REFERENCE_COLUMNS ? (int64_t)rq->machine->moving_max : REFERENCE_COLUMNS;
}

int nmlp_part_sbuf(nmlp_program *p, const nmlp_kernel_request *rq, const char *name, int copies, int64_t d0, int64_t d1,
                   int64_t d2) {
    int64_t unit = NMLP_DMA_TRANSPOSE_ALIGN / (int64_t)nmlp_nc_dtype_bytes(rq->dtype), last = d2 ? d2 : d1;
    if (rq->machine->generation >= 3) last = nmlp_round_up(last, unit); /* DMA transposes write aligned rows */
    nmlp_buffer b = {.name = name,
                     .space = NMLP_SPACE_SBUF,
                     .dtype = rq->dtype,
                     .partitions = (int)rq->machine->partitions,
                     .n_dims = d2 ? 3 : 2,
                     .dims = {d0, d2 ? d1 : last, d2 ? last : 0},
                     .copies = copies,
                     .managed = true};
    return nmlp_program_add_buffer(p, &b);
}

int nmlp_part_psum(nmlp_program *p, const nmlp_kernel_request *rq, const char *name, int copies, int64_t columns) {
    nmlp_buffer b = {.name = name,
                     .space = NMLP_SPACE_PSUM,
                     .dtype = NMLP_NC_FP32,
                     .partitions = (int)rq->machine->stationary_max,
                     .n_dims = 1,
                     .dims = {columns},
                     .copies = copies};
    return nmlp_program_add_buffer(p, &b);
}

void nmlp_part_load_block(nmlp_program *p, const char *name, int buffer, int tensor, nmlp_axis rows, int rb,
                          nmlp_axis cols, int cb, bool flip) {
    int t = nmlp_program_begin_loop(p, name, nmlp_axis_trips(rows, rb), false);
    nmlp_affine r0 = nmlp_axis_start(rows, rb, t), c0 = nmlp_axis_start(cols, cb, -1);
    nmlp_size rn = nmlp_axis_tile_size(rows, rb, t), cn = nmlp_axis_block_size(cols, cb);
    nmlp_buf_ref dst = nmlp_buf_at(nmlp_buf_parts(nmlp_buf_all(p, buffer), 0, rn), 0, nmlp_at(t));
    dst = nmlp_buf_range(dst, 1, nmlp_affine_const(0), cn);
    if (flip)
        nmlp_program_append_dma_transpose(p, dst, nmlp_hbm_rect(tensor, c0, cn, r0, rn), 0);
    else
        nmlp_program_append_load(p, dst, nmlp_hbm_rect(tensor, r0, rn, c0, cn), 0);
    nmlp_program_end(p);
}
