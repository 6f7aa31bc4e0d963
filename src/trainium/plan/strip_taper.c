#include "trainium/plan/strip_taper.h"

#include <math.h>

#include "trainium/plan/strip.h"
#include "trainium/plan/strip_cost.h"

/* Read out of PSUM by VectorE, from the last column in to the next matmul. */
static double turn_ns(const nmlp_machine *m, double columns) {
    double copy = fmax(m->vector_min_cycles, columns) / m->vector_clock_ghz + m->vector_overhead_ns;
    return m->tensor_latency_ns + copy + m->vector_latency_ns + 2 * m->semaphore_ns;
}

/* The power limiter starts over whenever a window is less than half used, so the rate of a tensor engine that waits for
 * DMA more than half of the time swings between the cold one and the full one. */
static double limited_ns(const nmlp_machine *m, double tensor_ns, double dma_ns) {
    bool swings = m->tensor_warmup_us > 0 && tensor_ns < dma_ns / 2;
    return swings ? tensor_ns / ((1 + m->tensor_cold_rate) / 2) : tensor_ns;
}

nmlp_taper_weights nmlp_taper_weights_of(const nmlp_machine *m, const nmlp_pack *pack, int64_t rows, bool moving,
                                         size_t elem_bytes) {
    double wide = (double)(moving ? pack->columns : rows), times = moving ? ceil((double)rows / m->stationary_max) : 1,
           passes = elem_bytes == nmlp_nc_dtype_bytes(NMLP_NC_FP32) ? m->tensor_fp32_passes : 1;
    double row_bytes = (double)pack->columns * (double)elem_bytes,
           tensor_ns = times * passes * fmax(wide, m->tensor_min_cycles) / m->tensor_clock_ghz / m->tensor_sustained;
    return (nmlp_taper_weights){
        .tile_rows = nmlp_pack_k_tiles(pack) * nmlp_pack_n_tiles(pack),
        .most = (int64_t)m->sbuf_free_max / pack->columns,
        .row_bytes = row_bytes,
        .tensor_ns = limited_ns(m, tensor_ns, m->partitions * row_bytes / nmlp_dma_peak_bytes_per_ns(m)),
        .turn_ns = turn_ns(m, (double)rows),
    };
}

/* Turns lengths from the end into ends from the start. */
static void turn_round(nmlp_taper *t) {
    int64_t length[NMLP_TAPER_BLOCKS_MAX], at = 0;
    for (int i = 0; i < t->n; i++) length[i] = t->end[t->n - 1 - i];
    for (int i = 0; i < t->n; i++) t->end[i] = at += length[i];
}

bool nmlp_taper_blocks(nmlp_taper *tapers, const nmlp_taper_weights *segments, int n, int64_t least,
                       const nmlp_machine *m) {
    double lag = (double)least * segments[n - 1].tensor_ns, ahead = 0; /* DMA after a block, less the work after it */
    for (int i = n - 1; i >= 0; i--) {
        const nmlp_taper_weights *s = &segments[i];
        nmlp_taper *t = &tapers[i];
        t->n = 0;
        if (i < n - 1) ahead -= s->turn_ns;
        for (int64_t rest = s->tile_rows; rest > 0;) {
            int64_t block = (int64_t)fmax((lag + ahead) / s->tensor_ns, (double)least);
            if (block > s->most) block = s->most;
            if (block > rest) block = rest;
            if (t->n == NMLP_TAPER_BLOCKS_MAX) return false;
            ahead += nmlp_dma_rows_ns(m, m->partitions, (double)block * s->row_bytes) - (double)block * s->tensor_ns;
            t->end[t->n++] = block;
            rest -= block;
        }
        turn_round(t);
    }
    return true;
}

int64_t nmlp_taper_cut(nmlp_taper *t, int64_t k_tiles, int64_t cap) {
    int64_t from = 0;
    for (int i = 0; i < t->n; i++)
        if (t->end[i] - (i ? t->end[i - 1] : 0) >= cap) from = (t->end[i] + k_tiles - 1) / k_tiles;
    int dropped = 0;
    while (dropped < t->n && t->end[dropped] <= from * k_tiles) dropped++;
    t->n -= dropped;
    for (int i = 0; i < t->n; i++) t->end[i] = t->end[i + dropped];
    return from;
}

double nmlp_turn_cycles(const nmlp_kernel_request *rq, int64_t columns) {
    const nmlp_machine *m = rq->machine;
    double passes = m->tensor_fp32_passes / (m->generation >= 3 ? 2 : 1);
    return fmax((double)columns, m->tensor_min_cycles) * (rq->fuse.residual || rq->dtype == NMLP_NC_FP32 ? passes : 1);
}

nmlp_taper_plan nmlp_taper_plan_of(const nmlp_kernel_request *rq, const nmlp_strip_plan *plan, const nmlp_pack *before,
                                   const nmlp_pack *last) {
    const nmlp_machine *m = rq->machine;
    size_t elem = nmlp_nc_dtype_bytes(nmlp_kernel_weight_dtype(rq));
    nmlp_taper_weights segments[2];
    nmlp_taper tapers[2];
    nmlp_taper_plan late = {0};
    int n = 0;
    if (before) segments[n++] = nmlp_taper_weights_of(m, before, rq->shape.s, false, elem);
    segments[n++] = nmlp_taper_weights_of(m, last, rq->shape.s, plan->turn != NMLP_TURN_ALL, elem);
    if (plan->turn == NMLP_TURN_ALL)
        segments[n - 1].tensor_ns += nmlp_turn_cycles(rq, last->columns) / m->tensor_clock_ghz / m->tensor_sustained /
                                     (double)nmlp_pack_k_tiles(last);
    late.few = nmlp_taper_blocks(tapers, segments, n, plan->taper, m);
    late.last = tapers[n - 1];
    if (!before || !late.few) return late;
    int64_t row_bytes = before->columns * (int64_t)elem, k_tiles = nmlp_pack_k_tiles(before),
            aim = plan->out_bytes > 0 ? plan->out_bytes : plan->ring_bytes, tiles = aim / (k_tiles * row_bytes);
    late.rows = tiles > 0 ? tiles * k_tiles : plan->out_ring > 1 ? aim / row_bytes : k_tiles;
    if (late.rows < 1) late.rows = 1;
    late.held_from = nmlp_taper_cut(&tapers[0], k_tiles, late.rows);
    late.before = tapers[0];
    return late;
}
