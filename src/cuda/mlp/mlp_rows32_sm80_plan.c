#include "cuda/mlp/mlp_plan.h"

#include "cuda/decode/decode_program.h"
#include "cuda/tensor_map.h"

enum {
    STAGE_BYTES_WANTED = 8 << 10,
    IN_FLIGHT_BYTES = 64 << 10,
    KEPT_BYTES = 128 << 10,
    STAGES_MIN = 12,
    STAGES_BEHIND = 8,
    HEAD_BYTES = 2 << 10
};

/* Bytes per cycle of one block: its share of the memory's rate, the most it takes alone, and rows of X from L2; cycles
 * of another exchange of partial sums and of another tile. Measured on an H200, rounded. */
static const double share_rate = 17;
static const double alone_rate = 22;
static const double x_rate = 64;
static const double reduce_cycles = 1500;
static const double pass_cycles = 1500;

static int32_t n_groups(const nmlp_cuda_mlp_rows32_phase *ph) {
    return nmlp_cuda_divide_up(ph->last ? ph->n : ph->out_pitch, NMLP_CUDA_MLP_ROWS32_M16);
}

static int32_t blocks_k_for(int32_t s, int32_t groups) {
    return nmlp_cuda_larger(1, nmlp_cuda_smaller(nmlp_cuda_mlp_rows32_blocks_k_max(s),
                                                 STAGE_BYTES_WANTED / (groups * NMLP_CUDA_MLP_ROWS32_PIECE_BYTES)));
}

static void cut(nmlp_cuda_mlp_rows32_phase *ph, int32_t s, int32_t groups, int32_t splits) {
    ph->groups = groups;
    ph->blocks_k = blocks_k_for(s, groups);
    ph->n_row_tiles = nmlp_cuda_divide_up(n_groups(ph), groups);
    ph->n_splits = splits;
}

static int32_t n_tiles(const nmlp_cuda_mlp_rows32_phase *ph) { return ph->n_row_tiles * ph->n_splits; }

/* Blocks of 64 columns in the longest split, over both factors. */
static int64_t k64_of_tile(const nmlp_cuda_mlp_rows32_phase *ph) {
    int64_t blocks = 0;
    for (int i = 0; i < ph->n_factors; i++)
        blocks += (int64_t)nmlp_cuda_divide_up(nmlp_cuda_divide_up(ph->f[i].k, NMLP_CUDA_MLP_ROWS32_K64 * ph->blocks_k),
                                               ph->n_splits) *
                  ph->blocks_k;
    return blocks;
}

static double tile_weight_bytes(const nmlp_cuda_mlp_rows32_phase *ph) {
    return (double)k64_of_tile(ph) * ph->groups * NMLP_CUDA_MLP_ROWS32_PIECE_BYTES;
}

static double cycles(const nmlp_cuda_mlp_rows32_phase *ph, int32_t s, int32_t grid) {
    int32_t passes = nmlp_cuda_divide_up(n_tiles(ph), grid);
    double all = tile_weight_bytes(ph) * n_tiles(ph) / grid / share_rate;
    double one = tile_weight_bytes(ph) * passes / alone_rate;
    double x = (double)k64_of_tile(ph) * NMLP_CUDA_MLP_ROWS32_K64 * 2 * s * passes / x_rate;
    return (all > one ? all : one) + x + (ph->n_splits > 1 ? reduce_cycles : 0) + (passes - 1) * pass_cycles;
}

/* Into the blocks that the phase before leaves idle, where its tiles fit in their rings and so are there before
 * they are needed. */
static bool cut_for_idle(nmlp_cuda_mlp_rows32_phase *ph, int32_t s, int32_t idle) {
    int32_t groups = idle > 0 ? nmlp_cuda_divide_up(n_groups(ph), idle) : 0;
    if (groups < 1 || groups > nmlp_cuda_mlp_rows32_groups_max(s)) return false;
    cut(ph, s, groups, 1);
    return tile_weight_bytes(ph) <= KEPT_BYTES;
}

/* Sums of tiles this large leave room for enough stages of them. */
static bool leaves_a_ring(const nmlp_cuda_mlp_rows32_phase *ph, int32_t s, size_t shared_bytes) {
    size_t stage = (size_t)(ph->groups * ph->blocks_k * NMLP_CUDA_MLP_ROWS32_PIECE_BYTES);
    return HEAD_BYTES + nmlp_cuda_mlp_rows32_sums_bytes(s, ph->groups) + STAGES_MIN * stage <= shared_bytes;
}

static void choose_cut(nmlp_cuda_mlp_rows32_phase *ph, int32_t s, const nmlp_cuda_device *device, int32_t idle) {
    int32_t best_groups = 1;
    int32_t best_splits = 1;
    double best = 0;
    if (cut_for_idle(ph, s, idle)) return;
    for (int32_t groups = 1; groups <= nmlp_cuda_mlp_rows32_groups_max(s); groups++) {
        for (int32_t splits = 1; splits <= NMLP_CUDA_MLP_ROWS32_SPLITS_MAX; splits++) {
            cut(ph, s, groups, splits);
            double cost = cycles(ph, s, device->n_blocks);
            if ((best > 0 && cost >= best) || !leaves_a_ring(ph, s, device->shared_bytes)) continue;
            best = cost;
            best_groups = groups;
            best_splits = splits;
        }
    }
    cut(ph, s, best_groups, best_splits);
}

/* A matrix and rows in a set, or with `from_before` the MLP's own. */
static nmlp_cuda_mlp_rows32_factor factor(const nmlp_cuda_matrix *w, const void *x, int32_t x_pitch, bool from_before) {
    return (nmlp_cuda_mlp_rows32_factor){
        .weight = w->data, .x = x, .x_pitch = x_pitch, .k = w->k, .from_before = from_before};
}

/* The phases with their results' places in a set. */
static void add_phases(nmlp_cuda_mlp_rows32_program *p, const nmlp_cuda_mlp_call *m) {
    const nmlp_cuda_mlp_weights *w = m->weights;
    nmlp_cuda_mlp_rows32_phase *ph = p->phase;
    const void *basis = NULL;
    int32_t basis_pitch = nmlp_cuda_pad(w->basis.n);
    if (w->basis.n) {
        basis = nmlp_cuda_exchange_take(&p->set_bytes, (int64_t)m->s * basis_pitch * 2);
        *ph++ = (nmlp_cuda_mlp_rows32_phase){.f = {factor(&w->basis, m->x, m->x_pitch, true)},
                                             .n_factors = 1,
                                             .n = w->basis.n,
                                             .out = (void *)(uintptr_t)basis,
                                             .out_pitch = basis_pitch};
    }
    int32_t wide = nmlp_cuda_pad(w->gate.n);
    void *act = nmlp_cuda_exchange_take(&p->set_bytes, (int64_t)m->s * wide * 2);
    *ph++ = (nmlp_cuda_mlp_rows32_phase){
        .f = {w->gate_rank ? factor(&w->gate, basis, basis_pitch, false) : factor(&w->gate, m->x, m->x_pitch, true),
              w->up_rank ? factor(&w->up, (const char *)basis + 2 * (size_t)w->up_start, basis_pitch, false)
                         : factor(&w->up, m->x, m->x_pitch, true)},
        .n_factors = 2,
        .n = w->gate.n,
        .out = act,
        .out_pitch = wide};
    const void *inner = act;
    int32_t inner_pitch = wide;
    if (w->down_basis.n) {
        inner_pitch = nmlp_cuda_pad(w->down_basis.n);
        inner = nmlp_cuda_exchange_take(&p->set_bytes, (int64_t)m->s * inner_pitch * 2);
        *ph++ = (nmlp_cuda_mlp_rows32_phase){.f = {factor(&w->down_basis, act, wide, false)},
                                             .n_factors = 1,
                                             .n = w->down_basis.n,
                                             .out = (void *)(uintptr_t)inner,
                                             .out_pitch = inner_pitch};
    }
    *ph++ = (nmlp_cuda_mlp_rows32_phase){.f = {factor(&w->down, inner, inner_pitch, false)},
                                         .n_factors = 1,
                                         .n = w->down.n,
                                         .out = m->y,
                                         .out_pitch = m->y_pitch,
                                         .last = 1};
    p->n_phases = (int32_t)(ph - p->phase);
}

/* What the kernel would have to divide for. */
static void put_divisions(nmlp_cuda_mlp_rows32_phase *ph, int32_t s) {
    int32_t pairs = ph->groups * NMLP_CUDA_MLP_ROWS32_M16 / 2;
    ph->pairs_inverse = nmlp_cuda_divide_up(
        1 << 16, pairs); /* right for up to 2^16 / pairs numbers, more than 32 tokens of a tile have */
    ph->split_pairs = nmlp_cuda_divide_up((int64_t)s * pairs, ph->n_splits);
    for (int32_t m = 0; m < ph->n_factors; m++) {
        int32_t stages = nmlp_cuda_divide_up(ph->f[m].k, NMLP_CUDA_MLP_ROWS32_K64 * ph->blocks_k);
        for (int32_t i = 0; i <= ph->n_splits; i++) ph->split_first[m][i] = (int16_t)(stages * i / ph->n_splits);
    }
}

/* Cuts every phase and takes room where splits of K meet. */
static void cut_phases(nmlp_cuda_mlp_rows32_program *p, const nmlp_cuda_device *device) {
    int32_t grid = device->n_blocks;
    int32_t used = grid;
    int32_t next_block = 0;
    for (int32_t i = 0; i < p->n_phases; i++) {
        nmlp_cuda_mlp_rows32_phase *ph = &p->phase[i];
        choose_cut(ph, p->s, device, grid - used);
        put_divisions(ph, p->s);
        ph->first_block = next_block;
        used = nmlp_cuda_smaller(n_tiles(ph), grid);
        next_block = (next_block + used) % grid;
        p->stage_bytes = nmlp_cuda_larger(p->stage_bytes, ph->groups * ph->blocks_k * NMLP_CUDA_MLP_ROWS32_PIECE_BYTES);
        p->sums_bytes = nmlp_cuda_larger(p->sums_bytes, (int32_t)nmlp_cuda_mlp_rows32_sums_bytes(p->s, ph->groups));
        if (ph->n_splits > 1)
            ph->parts = nmlp_cuda_exchange_take(&p->set_bytes, (int64_t)n_tiles(ph) * ph->n_factors * p->s *
                                                                   NMLP_CUDA_MLP_ROWS32_M16 * ph->groups *
                                                                   (int64_t)sizeof(float));
    }
}

static nmlp_status put_maps(nmlp_cuda_mlp_rows32_program *p, nmlp_cuda_arena *arena, nmlp_err *err) {
    for (int32_t i = 0; i < p->n_phases; i++) {
        nmlp_cuda_mlp_rows32_phase *ph = &p->phase[i];
        for (int32_t j = 0; j < ph->n_factors; j++) {
            void *map = nmlp_cuda_arena_take(arena, NMLP_CUDA_TENSOR_MAP_BYTES);
            ph->f[j].map = map;
            if (!arena->committed) continue;
            NMLP_RETURN_IF_FAILED(nmlp_cuda_tensor_map_upload(
                map, ph->f[j].weight, ph->n, ph->f[j].k, ph->groups * NMLP_CUDA_MLP_ROWS32_M16, ph->blocks_k, err));
        }
    }
    return NMLP_OK;
}

static nmlp_status fit_ring(nmlp_cuda_mlp_rows32_program *p, const nmlp_cuda_device *device, nmlp_err *err) {
    p->n_stages = NMLP_CUDA_MLP_ROWS32_STAGES_MAX;
    while (p->n_stages > STAGES_MIN && nmlp_cuda_mlp_rows32_shared_bytes(p) > device->shared_bytes) p->n_stages--;
    p->n_in_flight =
        nmlp_cuda_larger(1, nmlp_cuda_smaller(p->n_stages - STAGES_BEHIND,
                                              IN_FLIGHT_BYTES / p->stage_bytes)); /* see mlp_rows32_sm80.cu on turns */
    if (nmlp_cuda_mlp_rows32_shared_bytes(p) <= device->shared_bytes) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s has too little shared memory per block: %zu bytes", device->info.name,
                     device->shared_bytes);
}

/* A program whose phases are known, and what each reads and writes: tiles, ring buffer, exchange buffer. */
static nmlp_status lay_out(nmlp_cuda_mlp_rows32_program *p, const nmlp_cuda_device *device, nmlp_cuda_arena *arena,
                           nmlp_err *err) {
    cut_phases(p, device);
    NMLP_RETURN_IF_FAILED(fit_ring(p, device, err));
    p->tickets = nmlp_cuda_arena_take(arena, sizeof *p->tickets);
    p->exchange = nmlp_cuda_arena_take(arena, 2 * (size_t)p->set_bytes);
    for (int32_t i = 0; i < p->n_phases; i++) {
        nmlp_cuda_mlp_rows32_phase *ph = &p->phase[i];
        for (int32_t j = 0; j < ph->n_factors; j++)
            if (!ph->f[j].from_before) ph->f[j].x = nmlp_cuda_exchange_pointer(ph->f[j].x, p->exchange);
        if (!ph->last) ph->out = nmlp_cuda_exchange_pointer(ph->out, p->exchange);
        if (ph->n_splits > 1) ph->parts = nmlp_cuda_exchange_pointer(ph->parts, p->exchange);
    }
    NMLP_RETURN_IF_FAILED(put_maps(p, arena, err));
    if (!arena->committed) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemset(p->exchange, NMLP_CUDA_UNWRITTEN, 2 * (size_t)p->set_bytes),
                           "clearing the exchange", err);
}

/* The program of `like` with the weights of `p`. */
static nmlp_status copy_layout(nmlp_cuda_mlp_rows32_program *p, const nmlp_cuda_mlp_rows32_program *like,
                               nmlp_cuda_arena *arena, nmlp_err *err) {
    nmlp_cuda_mlp_rows32_program copy = *like;
    for (int32_t i = 0; i < copy.n_phases; i++)
        for (int32_t j = 0; j < copy.phase[i].n_factors; j++) copy.phase[i].f[j].weight = p->phase[i].f[j].weight;
    *p = copy;
    return put_maps(p, arena, err);
}

nmlp_status nmlp_cuda_mlp_rows32_plan(nmlp_cuda_mlp_rows32_program *program, const nmlp_cuda_mlp_call *mlp,
                                      const nmlp_cuda_mlp_rows32_program *like, const nmlp_cuda_device *device,
                                      nmlp_cuda_arena *arena, nmlp_err *err) {
    *program = (nmlp_cuda_mlp_rows32_program){.s = mlp->s};
    add_phases(program, mlp);
    return like ? copy_layout(program, like, arena, err) : lay_out(program, device, arena, err);
}

nmlp_status nmlp_cuda_mlp_rows32_plan_gemm(nmlp_cuda_mlp_rows32_program *program, const nmlp_cuda_gemm_call *gemm,
                                           const nmlp_cuda_mlp_rows32_program *like, const nmlp_cuda_device *device,
                                           nmlp_cuda_arena *arena, nmlp_err *err) {
    *program = (nmlp_cuda_mlp_rows32_program){.s = gemm->s, .n_phases = 1};
    program->phase[0] = (nmlp_cuda_mlp_rows32_phase){.f = {factor(gemm->w, gemm->x, gemm->x_pitch, true)},
                                                     .n_factors = 1,
                                                     .n = gemm->w->n,
                                                     .out = gemm->y,
                                                     .out_pitch = gemm->y_pitch,
                                                     .last = 1};
    return like ? copy_layout(program, like, arena, err) : lay_out(program, device, arena, err);
}
