/* Candidates and their estimates. */
#include "trainium/plan/strip_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainium/plan/strip_cost.h"

static const double DISTURBANCE = 0.02;

typedef struct counts {
    double tile_rows; /* rows, counted as the tensor engine is paid: never below its minimum per row tile */
    double row_tiles;
    double pieces; /* stationary operands the rows fill */
    double strips;
} counts;

static counts count_rows(const nmlp_kernel_request *rq, const nmlp_strip_plan *plan) {
    const nmlp_machine *m = rq->machine;
    int64_t bank = (int64_t)m->psum_bank_bytes / 4,
            tile = nmlp_min(nmlp_min(bank, (int64_t)m->moving_max), nmlp_min(plan->rows, rq->shape.s));
    int64_t full = rq->shape.s / tile, rest = rq->shape.s % tile, piece = (int64_t)m->stationary_max;
    counts c = {.row_tiles = (double)nmlp_ceil_div(rq->shape.s, tile),
                .strips = (double)nmlp_ceil_div(rq->shape.s, plan->rows)};
    c.tile_rows =
        (double)full * fmax((double)tile, m->tensor_min_cycles) + (rest ? fmax((double)rest, m->tensor_min_cycles) : 0);
    c.pieces = (double)(full * nmlp_ceil_div(tile, piece) + nmlp_ceil_div(rest, piece));
    return c;
}

static double evict_ns(double overhead, double clock, double columns) { return overhead + columns / clock; }

static int64_t columns_of(const nmlp_strip_product *p, const nmlp_strip_plan *plan, int64_t parts) {
    if (p->kind == NMLP_PRODUCT_ROWS) return plan->columns;
    return p->kind == NMLP_PRODUCT_GATED ? parts : nmlp_strip_even_tile(p->n, parts);
}

/* Strip by strip the larger of the two: a short last strip still needs all weights. */
static double staged(int64_t s, int64_t rows, double tensor, double strip_dma) {
    double full = (double)(s / rows), rest = (double)(s % rows), per_row = tensor / (double)s;
    return full * fmax(per_row * (double)rows, strip_dma) + (rest > 0 ? fmax(per_row * rest, strip_dma) : 0);
}

/* Has the ring of the last products (kernel_strip.c). */
static bool is_late(const nmlp_strip_product *p, const nmlp_strip_plan *plan) {
    return plan->out_ring > 1 && (p->from_act || p->kind == NMLP_PRODUCT_ROWS);
}

/* Has runs of its own length. */
static bool aims_late(const nmlp_strip_product *p, const nmlp_strip_plan *plan) {
    return plan->out_bytes > 0 && (p->from_act || p->kind == NMLP_PRODUCT_ROWS);
}

static nmlp_pack pack_of(const nmlp_strip_product *p, const nmlp_strip_plan *plan, const nmlp_machine *m) {
    int64_t parts = (int64_t)m->partitions, k_tiles = nmlp_ceil_div(p->k, parts);
    int64_t chunk = p->from_x ? plan->x_chunk : p->from_act ? plan->act_chunk : k_tiles;
    return (nmlp_pack){.k = p->k,
                       .n = p->n,
                       .partitions = p->k_is_rank ? nmlp_strip_even_tile(p->k, parts) : parts,
                       .chunk_tiles = nmlp_min(chunk, k_tiles),
                       .columns = columns_of(p, plan, parts),
                       .planes = p->planes,
                       .k_second = p->k_second,
                       .partitions_second = p->k_second_is_rank ? nmlp_strip_even_tile(p->k_second, parts) : parts};
}

enum { NEVER_FITS = 1 << 20 };

/* Column tiles of a product that have room of their own, and the DMAs in which they come. */
typedef struct held_tiles {
    int64_t tiles;
    double loads;
} held_tiles;

static void find_held(held_tiles held[NMLP_STRIP_PRODUCTS_MAX], const nmlp_strip_product *products, int n,
                      const nmlp_kernel_request *rq, const nmlp_strip_plan *plan) {
    for (int i = 0; i < n; i++) held[i] = (held_tiles){0};
    if (plan->taper == 0) return;
    bool factor = n > 1 && products[n - 2].kind == NMLP_PRODUCT_TRANSPOSED && products[n - 2].from_act;
    nmlp_pack last = pack_of(&products[n - 1], plan, rq->machine), before = {0};
    if (factor) before = pack_of(&products[n - 2], plan, rq->machine);
    nmlp_taper_plan late = nmlp_taper_plan_of(rq, plan, factor ? &before : NULL, &last);
    held[n - 1] = (held_tiles){late.few ? nmlp_pack_n_tiles(&last) : NEVER_FITS, late.last.n};
    if (factor) held[n - 2] = (held_tiles){nmlp_pack_n_tiles(&before) - late.held_from, late.before.n};
}

/* Rows of the tiles of two planes in tensors of their own, weighted by their lengths. */
static double mean_rows(const nmlp_pack *pack) {
    double sum = 0;
    for (int plane = 0; plane < 2; plane++)
        sum += (double)nmlp_pack_plane_run(pack, plane) *
               (double)nmlp_min(nmlp_pack_plane_k(pack, plane), nmlp_pack_plane_rows(pack, plane));
    return sum / (double)nmlp_pack_tile_run(pack);
}

/* Adds one product; returns the run of its weight DMAs in elements, 0 where all its weights are held. */
static int64_t add_product(nmlp_strip_estimate *e, const nmlp_kernel_request *rq, const nmlp_strip_plan *plan,
                           const nmlp_strip_product *p, const nmlp_strip_product *first, held_tiles held,
                           const counts *c) {
    const nmlp_machine *m = rq->machine;
    int64_t parts = (int64_t)m->partitions, k_tiles = nmlp_ceil_div(p->k, parts), columns = columns_of(p, plan, parts),
            second_tiles = p->k_second > 0 ? nmlp_ceil_div(p->k_second, parts) : k_tiles,
            all_k_tiles = k_tiles + (p->planes - 1) * second_tiles;
    nmlp_pack pack = pack_of(p, plan, m);
    double elem = (double)nmlp_nc_dtype_bytes(nmlp_kernel_weight_dtype(rq)), n_tiles = (double)nmlp_pack_n_tiles(&pack),
           chunks = (double)nmlp_pack_chunks(&pack);
    int64_t run = nmlp_pack_tile_run(&pack), aim = aims_late(p, plan) ? plan->out_bytes : plan->ring_bytes,
            block = nmlp_strip_block(rq, run, aim, nmlp_pack_n_tiles(&pack));
    bool rows = p->kind == NMLP_PRODUCT_ROWS;
    if (rows && !(p->from_act && chunks > 1)) block = nmlp_min(block, plan->out_tiles);
    double cycles, evicts, width;
    if (rows) {
        cycles = (double)k_tiles * n_tiles * fmax((double)columns, m->tensor_min_cycles) * c->pieces;
        if (plan->turn != NMLP_TURN_NONE) {
            double alone = plan->turn == NMLP_TURN_ALL ? 0 : (double)(plan->taper > 0 ? 1 : plan->tail);
            double turned = fmax(0, n_tiles - alone);
            cycles += turned * (double)k_tiles * (c->tile_rows - fmax((double)columns, m->tensor_min_cycles)) +
                      turned * nmlp_turn_cycles(rq, columns);
            e->vector_ns += turned * evict_ns(m->vector_overhead_ns, m->vector_clock_ghz,
                                              fmax((double)rq->shape.s, m->vector_min_cycles));
        }
        evicts = chunks * n_tiles * c->pieces, width = (double)columns;
        if (rq->fuse.residual || rq->fp8)
            e->vector_ns += evicts * evict_ns(m->vector_overhead_ns, m->vector_clock_ghz, width);
        else
            e->scalar_ns += evicts * evict_ns(m->scalar_overhead_ns, m->scalar_clock_ghz, width);
    } else {
        cycles = (double)all_k_tiles * n_tiles * c->tile_rows;
        evicts = chunks * n_tiles * c->row_tiles, width = (double)rq->shape.s / c->row_tiles;
        bool gated = p->kind == NMLP_PRODUCT_GATED;
        e->vector_ns += evicts * (gated ? (rq->fp8 ? 2.0 : 1.0) : (double)p->planes) *
                        evict_ns(m->vector_overhead_ns, m->vector_clock_ghz, width);
        if (gated) e->scalar_ns += evicts * evict_ns(m->scalar_overhead_ns, m->scalar_clock_ghz, width);
    }
    if (rq->dtype == NMLP_NC_FP32) cycles *= m->tensor_fp32_passes;
    double tensor = cycles / m->tensor_clock_ghz / m->tensor_sustained;
    bool split = p->planes > 1 && (run * (int64_t)elem > aim || (p->from_x && plan->x == NMLP_X_AHEAD));
    double alone = rows && chunks == 1 ? (double)nmlp_min(plan->tail, nmlp_pack_n_tiles(&pack) - 1) : 0, pieces = 1;
    if (plan->taper > 0 && is_late(p, plan)) pieces = fmax(1, ceil((double)(run * (int64_t)elem) / (double)aim));
    bool apart = pack.k_second > 0 && pack.partitions != pack.partitions_second; /* a tensor for each plane */
    double ringed = n_tiles - alone - (double)held.tiles,
           loads = chunks * (ceil(ringed / (double)block) * pieces + alone) * c->strips * (split || apart ? 2 : 1) +
                   held.loads,
           rows_each = apart ? mean_rows(&pack) : (double)nmlp_pack_rows(&pack),
           bytes = (double)nmlp_pack_cols(&pack) * elem * rows_each;
    double dma = nmlp_dma_rows_ns(m, loads * rows_each, bytes / rows_each * c->strips / loads);
    e->tensor_ns += tensor;
    e->dma_ns += dma;
    if (p->from_x || p == first)
        e->first_tensor_ns += tensor, e->first_dma_ns += dma;
    else
        e->staged_ns += staged(rq->shape.s, plan->rows, tensor, dma / c->strips);
    e->hbm_bytes += bytes * c->strips;
    e->held_bytes += held.tiles * run * (int64_t)elem;
    e->held_bytes += nmlp_strip_scale_bytes(rq, p->n, columns, p->planes, rows);
    int64_t plane_run = nmlp_max(nmlp_pack_plane_run(&pack, 0), nmlp_pack_plane_run(&pack, 1));
    return ringed <= 0 ? 0 : split ? plane_run : block * run;
}

/* Loads of x: DMA time, and what the tensor engine and the evictions spend on turning it. Returns the time before the
 * first product can start. */
static double add_input(nmlp_strip_estimate *e, const nmlp_kernel_request *rq, const nmlp_strip_plan *plan,
                        const counts *c) {
    const nmlp_machine *m = rq->machine;
    double elem = (double)nmlp_nc_dtype_bytes(rq->dtype),
           h_tiles = (double)nmlp_ceil_div(rq->shape.h, (int64_t)m->partitions);
    double rows = (double)rq->shape.s, strip_rows = fmin((double)plan->rows, rows), dma, first;
    e->hbm_bytes += rows * (double)rq->shape.h * elem;
    if (nmlp_x_is_flipped(plan->x)) {
        double parts = ceil(h_tiles / (double)plan->x_load), run = (double)plan->x_load * m->partitions * elem;
        dma = nmlp_dma_rows_ns(m, rows * parts, run);
        e->tensor_ns += h_tiles * rows / m->tensor_clock_ghz / m->tensor_sustained;
        double groups = h_tiles / 4 * c->pieces / 2, width = 4 * m->stationary_max;
        e->vector_ns += groups * evict_ns(m->vector_overhead_ns, m->vector_clock_ghz, width);
        e->scalar_ns += groups * evict_ns(m->scalar_overhead_ns, m->scalar_clock_ghz, width);
        first = dma * strip_rows / rows / parts;
    } else {
        double slow = plan->x == NMLP_X_DMA ? m->dma_transpose_slowdown : 1.0, width = rows / c->row_tiles;
        dma = slow * nmlp_dma_rows_ns(m, h_tiles * c->row_tiles * m->partitions, width * elem);
        first = dma * strip_rows / rows / h_tiles * 2;
    }
    e->dma_ns += dma;
    /* Chunks of x come while the first products run; a whole strip comes during the rest of the strip before it. */
    double chunks = ceil(h_tiles / (double)plan->x_chunk);
    e->first_dma_ns += chunks > 1 ? dma : dma / c->strips;
    if (chunks > 1 && plan->x_copies < 2 && plan->x != NMLP_X_AHEAD)
        first += dma + c->strips * chunks * (m->dma_start_ns + m->dma_done_ns);
    return first;
}

/* Squares, their sums, the division. */
static void add_norm(nmlp_strip_estimate *e, const nmlp_kernel_request *rq, const counts *c) {
    const nmlp_machine *m = rq->machine;
    if (rq->fuse.norm_e12 == 0) return;
    double h_tiles = (double)nmlp_ceil_div(rq->shape.h, (int64_t)m->partitions),
           width = (double)rq->shape.s / c->row_tiles;
    e->tensor_ns += (h_tiles + 1) * c->tile_rows / m->tensor_clock_ghz / m->tensor_sustained;
    e->vector_ns +=
        (rq->fp8 ? 3 : 2) * h_tiles * c->row_tiles * evict_ns(m->vector_overhead_ns, m->vector_clock_ghz, width);
    e->scalar_ns += c->row_tiles * evict_ns(m->scalar_overhead_ns, m->scalar_clock_ghz, width);
}

/* Per partition, as the kernels declare their buffers (kernel_strip.c). */
static int64_t sbuf_bytes(nmlp_plan_op op, const nmlp_kernel_request *rq, const nmlp_strip_plan *plan,
                          int64_t ring_elems, int64_t late_elems) {
    const nmlp_kernel_shape *s = &rq->shape;
    const nmlp_machine *m = rq->machine;
    int64_t parts = (int64_t)m->partitions, elem = (int64_t)nmlp_nc_dtype_bytes(rq->dtype),
            weight = (int64_t)nmlp_nc_dtype_bytes(nmlp_kernel_weight_dtype(rq)), bank = (int64_t)m->psum_bank_bytes / 4;
    int64_t tile = nmlp_min(nmlp_min(bank, (int64_t)m->moving_max), nmlp_min(plan->rows, s->s));
    int64_t row_tiles = nmlp_min(nmlp_ceil_div(plan->rows, tile), nmlp_ceil_div(s->s, tile)), width = row_tiles * tile;
    nmlp_mlp_ranks ranks = nmlp_kernel_mlp_ranks(rq);
    int64_t i_tiles = nmlp_ceil_div(s->o, parts),
            x_tiles = (plan->x == NMLP_X_AHEAD ? nmlp_ceil_div(s->h, parts) : plan->x_chunk) * plan->x_copies,
            tiles = 0;
    int64_t n = op == NMLP_PLAN_MLP ? s->h : s->o, out_columns = plan->out_tiles * plan->columns;
    bool dense = op == NMLP_PLAN_MLP && ranks.down == 0;
    out_columns *= plan->out_copies;
    if (dense && plan->act_chunk < i_tiles) out_columns = nmlp_ceil_div(n, plan->columns) * plan->columns;
    if (op == NMLP_PLAN_XUV)
        tiles += nmlp_ceil_div(s->r, parts);
    else if (op == NMLP_PLAN_MLP)
        tiles += nmlp_ceil_div(ranks.gate, parts) + (ranks.shared ? 0 : nmlp_ceil_div(ranks.up, parts)) +
                 nmlp_ceil_div(ranks.down, parts);
    if (op == NMLP_PLAN_MLP) tiles += plan->act_chunk < i_tiles ? 2 * plan->act_chunk : i_tiles;
    int64_t bytes = (tiles * width + x_tiles * row_tiles * nmlp_strip_x_row(rq, plan, tile)) * elem +
                    (ring_elems * plan->ring + (plan->out_ring > 1 ? late_elems * plan->out_ring : 0)) * weight;
    bytes += row_tiles * nmlp_ceil_div(tile, (int64_t)m->stationary_max) * out_columns * elem;
    int64_t tail = plan->taper > 0 ? 1 : plan->tail;
    if (tail > 0 && !(dense && plan->act_chunk < i_tiles)) { /* weights of the tail, and its rows */
        int64_t k = op == NMLP_PLAN_XW ? s->h : op == NMLP_PLAN_XUV ? s->r : dense ? s->o : ranks.down;
        bytes += plan->tail * nmlp_ceil_div(k, parts) * plan->columns * weight;
        bytes += row_tiles * nmlp_ceil_div(tile, (int64_t)m->stationary_max) * plan->columns * nmlp_min(tail, 2) * elem;
    }
    if (nmlp_x_is_flipped(plan->x))
        bytes += nmlp_x_row_copies(plan, s->s, (int64_t)m->stationary_max) * plan->x_load * parts * elem;
    if (op == NMLP_PLAN_MLP) bytes += 2 * width * 4;
    if (rq->fp8 && rq->fuse.residual) bytes += NMLP_SCALED_COPIES * plan->columns * 4;
    if (rq->fuse.residual && plan->turn != NMLP_TURN_NONE) {
        bytes += nmlp_ceil_div(n, plan->columns) * plan->columns * elem;
    } else if (rq->fuse.residual && !(dense && plan->act_chunk < i_tiles)) {
        int64_t tiles_held = NMLP_RESIDUAL_COPIES * plan->out_tiles + nmlp_min(tail, 2);
        bytes += row_tiles * nmlp_ceil_div(tile, (int64_t)m->stationary_max) * tiles_held * plan->columns * elem;
    }
    if (plan->turn != NMLP_TURN_NONE) bytes += nmlp_ceil_div(n, plan->columns) * tile * 4;
    bytes += nmlp_strip_norm_bytes(rq, tile, row_tiles);
    return bytes;
}

nmlp_strip_estimate nmlp_strip_estimate_of(nmlp_plan_op op, const nmlp_kernel_request *rq,
                                           const nmlp_strip_plan *plan) {
    const nmlp_machine *m = rq->machine;
    nmlp_strip_estimate e = {0};
    nmlp_strip_product products[NMLP_STRIP_PRODUCTS_MAX];
    int n = nmlp_strip_products_of(products, op, rq);
    counts c = count_rows(rq, plan);
    held_tiles held[NMLP_STRIP_PRODUCTS_MAX];
    find_held(held, products, n, rq, plan);
    int64_t ring = 0, late = 0, last = 0;
    double first = add_input(&e, rq, plan, &c), elem = (double)nmlp_nc_dtype_bytes(rq->dtype);
    add_norm(&e, rq, &c);
    for (int i = 0; i < n; i++) {
        last = add_product(&e, rq, plan, &products[i], products, held[i], &c);
        int64_t *longest = is_late(&products[i], plan) ? &late : &ring;
        *longest = nmlp_max(*longest, last);
    }
    double out = (double)(op == NMLP_PLAN_MLP ? rq->shape.h : rq->shape.o),
           run = (double)(plan->out_tiles * plan->columns);
    double store = nmlp_dma_rows_ns(m, (double)rq->shape.s * ceil(out / run), fmin(run, out) * elem);
    e.dma_ns += rq->fuse.residual ? 2 * store : store;
    if (rq->fuse.residual) e.hbm_bytes += (double)rq->shape.s * out * elem;
    e.hbm_bytes += (double)rq->shape.s * out * elem;
    e.sbuf_bytes = sbuf_bytes(op, rq, plan, ring, late) + e.held_bytes;
    double busiest = fmax(fmax(e.tensor_ns, e.dma_ns), fmax(e.vector_ns, e.scalar_ns));
    busiest =
        fmax(busiest, e.staged_ns + staged(rq->shape.s, plan->rows, e.first_tensor_ns, e.first_dma_ns / c.strips));
    if (m->psum_port_shared > 0) busiest = fmax(busiest, e.vector_ns + e.scalar_ns);
    double round_trip = m->dma_start_ns + m->dma_done_ns;
    /* Bound by DMA, the products of the last weights are still to be done when these have come. Otherwise the other
     * engines disturb a little, the more the busier they are. */
    bool dma_bound = e.dma_ns > e.tensor_ns;
    if (plan->tail > 0) last = nmlp_ceil_div(products[n - 1].k, (int64_t)m->partitions) * plan->columns;
    if (plan->taper > 0) last = plan->taper * plan->columns;
    double tail = dma_bound ? (double)last / m->tensor_clock_ghz / m->tensor_sustained * c.pieces / c.strips
                            : DISTURBANCE * (e.dma_ns + e.vector_ns);
    e.total_ns = busiest + 2 * round_trip + first + tail + store / fmax(1.0, c.pieces * ceil(out / run));
    return e;
}
