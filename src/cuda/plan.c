#include "cuda/plan.h"

#include <string.h>

enum {
    INPUT_BYTES_MAX = 84 << 10, /* shared memory for a phase's input rows; the rest is ring */
    INPUT_SHARE = 3,            /* never more than this part of the block's shared memory */
    PARTS_READ_MAX = 16,        /* rows times pieces a reader sums itself; more get a reduce phase */
    PIECES_MAX = 4,             /* tried for balance */
    PIECE_COLS_MIN = 512,
    SLOTS_MIN = NMLP_CUDA_CONSUMER_WARPS, /* every multiplying warp has a tile */
    TILES_UNDER_WAY = 12                  /* of each copying warp */
};

void nmlp_cuda_plan_init(nmlp_cuda_plan *plan, const nmlp_cuda_device *device, nmlp_cuda_block *block, int32_t s) {
    *plan = (nmlp_cuda_plan){.device = device, .block = block, .s = s};
}

void nmlp_cuda_plan_fini(nmlp_cuda_plan *plan) {
    nmlp_mem_free(plan->phases);
    plan->phases = NULL;
}

nmlp_status nmlp_cuda_plan_push(nmlp_cuda_plan *plan, const nmlp_cuda_phase *phase, nmlp_err *err) {
    void *array = plan->phases;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&array, &plan->capacity, plan->n_phases + 1, sizeof *plan->phases, err));
    plan->phases = array;
    plan->phases[plan->n_phases++] = *phase;
    return NMLP_OK;
}

static int32_t divide_up(int64_t a, int64_t b) { return (int32_t)((a + b - 1) / b); }
static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

/* Rows of shared memory the input takes: two halves of each token where tokens are few. */
static int32_t input_rows(int32_t s) { return s <= NMLP_CUDA_S_SPLIT ? 2 * s : s; }

/* As many pieces as the input's room asks for; more where that fills the last round of blocks better. */
static int32_t choose_pieces(const nmlp_cuda_plan *plan, int32_t n, int32_t k, int32_t n_segments, bool for_balance) {
    size_t room = plan->device->shared_bytes / INPUT_SHARE;
    if (room > INPUT_BYTES_MAX) room = INPUT_BYTES_MAX;
    int32_t cols = (int32_t)(room / 2) / input_rows(plan->s) - NMLP_CUDA_ROW_SKEW;
    cols = cols / n_segments / NMLP_CUDA_TILE_COLS * NMLP_CUDA_TILE_COLS;
    int32_t least = divide_up(k, cols);
    int32_t best = least;
    double best_filled = 0;
    for (int32_t p = least; p <= max32(least, for_balance ? PIECES_MAX : 1); p++) {
        int64_t units = (int64_t)divide_up(n, NMLP_CUDA_UNIT_ROWS) * p;
        double filled = (double)units / ((double)divide_up(units, plan->device->n_blocks) * plan->device->n_blocks);
        if (p > least && k / p < PIECE_COLS_MIN) break;
        if (filled > best_filled + 0.03) {
            best = p;
            best_filled = filled;
        }
    }
    return best;
}

static nmlp_cuda_operand make_operand(const nmlp_cuda_matrix *w, const nmlp_cuda_rows *x) {
    return (nmlp_cuda_operand){.weight = w->data,
                               .map = w->map,
                               .x = x->x,
                               .x_part_stride = x->part_stride,
                               .x_pitch = x->pitch,
                               .x_parts = x->parts,
                               .k = w->k,
                               .input = x->input};
}

static nmlp_cuda_phase make_phase(nmlp_cuda_plan *plan, const nmlp_cuda_matmul *m) {
    nmlp_cuda_phase ph = {.kind = NMLP_CUDA_MATMUL, .output = m->output, .n = m->w[0]->n, .n_matrices = m->n_matrices};
    int32_t k = 0;
    for (int i = 0; i < m->n_matrices; i++) {
        ph.op[i] = make_operand(m->w[i], &m->x[i]);
        k = max32(k, m->w[i]->k);
        if (m->x[i].input == NMLP_CUDA_NORM) {
            ph.norm_weight = m->x[i].norm_weight;
            ph.norm_dim = m->x[i].norm_dim;
            ph.eps = m->x[i].eps;
        }
    }
    ph.same_x = m->n_matrices == 2 && m->x[0].x == m->x[1].x;
    int32_t n_segments = m->n_matrices == 2 && !ph.same_x ? 2 : 1;
    bool for_balance = m->n_matrices == 1 && m->output == NMLP_CUDA_STORE && !(m->whole && plan->s <= NMLP_CUDA_S_SPLIT);
    int32_t pieces = choose_pieces(plan, ph.n, k, n_segments, for_balance);
    ph.k_chunk = pieces == 1 ? k : divide_up(divide_up(k, pieces), NMLP_CUDA_TILE_COLS) * NMLP_CUDA_TILE_COLS;
    ph.n_chunks = divide_up(k, ph.k_chunk);
    plan->input_elems = max32(plan->input_elems, nmlp_cuda_pad(input_rows(plan->s) * (n_segments * ph.k_chunk + NMLP_CUDA_ROW_SKEW)));
    return ph;
}

/* The matmul's pieces meet in memory; the block that comes last sums them. */
static nmlp_status push_joined(nmlp_cuda_plan *plan, nmlp_cuda_phase *ph, nmlp_err *err) {
    size_t groups = (size_t)divide_up(ph->n, NMLP_CUDA_UNIT_ROWS);
    size_t unit_bytes = (size_t)plan->s * NMLP_CUDA_UNIT_ROWS * sizeof(float);
    ph->parts = nmlp_cuda_block_take(plan->block, groups * (size_t)ph->n_chunks * unit_bytes);
    ph->counts = nmlp_cuda_block_take(plan->block, groups * sizeof *ph->counts);
    return nmlp_cuda_plan_push(plan, ph, err);
}

/* The matmul's pieces go to memory of their own, and a second phase sums them into what was asked for. */
static nmlp_status push_reduced(nmlp_cuda_plan *plan, nmlp_cuda_phase *ph, const nmlp_cuda_matmul *m, nmlp_err *err) {
    size_t part_bytes = (size_t)plan->s * (size_t)ph->out_pitch * sizeof(float);
    nmlp_cuda_phase sum = {.kind = NMLP_CUDA_REDUCE,
                           .output = m->output,
                           .n = ph->n,
                           .out = ph->out,
                           .out_pitch = ph->out_pitch,
                           .narrow_out = ph->narrow_out};
    ph->narrow_out = 0;
    ph->output = m->n_matrices == 2 ? NMLP_CUDA_PAIR : NMLP_CUDA_STORE;
    ph->out_part_stride = (int64_t)plan->s * ph->out_pitch;
    float **outs[2] = {&ph->out, &ph->out2};
    for (int i = 0; i < m->n_matrices; i++) {
        *outs[i] = nmlp_cuda_block_take(plan->block, (size_t)ph->n_chunks * part_bytes);
        sum.op[i] = (nmlp_cuda_operand){
            .x = *outs[i], .x_part_stride = ph->out_part_stride, .x_pitch = ph->out_pitch, .x_parts = ph->n_chunks};
    }
    NMLP_RETURN_IF_FAILED(nmlp_cuda_plan_push(plan, ph, err));
    return nmlp_cuda_plan_push(plan, &sum, err);
}

nmlp_status nmlp_cuda_plan_matmul(nmlp_cuda_plan *plan, const nmlp_cuda_matmul *m, nmlp_cuda_rows *rows, nmlp_err *err) {
    nmlp_cuda_phase ph = make_phase(plan, m);
    ph.out_pitch = nmlp_cuda_pad(ph.n);
    ph.bias = m->bias;
    bool summed_by_reader = ph.n_chunks > 1 && m->output == NMLP_CUDA_STORE && !m->whole && !m->bias &&
                            plan->s <= NMLP_CUDA_S_SPLIT && ph.n_chunks <= PIECES_MAX && plan->s * ph.n_chunks <= PARTS_READ_MAX;
    ph.narrow_out = plan->s > NMLP_CUDA_S_SPLIT && !m->out; /* many rows: what another phase reads is bf16 */
    int32_t parts = summed_by_reader ? ph.n_chunks : 1;
    size_t part_bytes = (size_t)plan->s * (size_t)ph.out_pitch * sizeof(float);
    ph.out = m->out ? m->out : nmlp_cuda_block_take(plan->block, (size_t)parts * part_bytes);
    if (summed_by_reader) ph.out_part_stride = (int64_t)plan->s * ph.out_pitch;
    if (rows)
        *rows = (nmlp_cuda_rows){.x = ph.out, .part_stride = ph.out_part_stride, .pitch = ph.out_pitch, .parts = parts,
                                        .input = ph.narrow_out ? NMLP_CUDA_NARROW : NMLP_CUDA_PLAIN};
    if (ph.n_chunks == 1 || summed_by_reader) return nmlp_cuda_plan_push(plan, &ph, err);
    return m->n_matrices == 1 ? push_joined(plan, &ph, err) : push_reduced(plan, &ph, m, err);
}

static nmlp_cuda_rows columns_from(const nmlp_cuda_rows *rows, int32_t start) {
    nmlp_cuda_rows from = *rows;
    size_t elem_bytes = rows->input == NMLP_CUDA_NARROW ? sizeof(uint16_t) : sizeof(float);
    from.x = (const float *)(const void *)((const char *)rows->x + (size_t)start * elem_bytes);
    return from;
}

nmlp_status nmlp_cuda_plan_mlp(nmlp_cuda_plan *plan, const nmlp_cuda_mlp_weights *w, const nmlp_cuda_rows *x,
                               nmlp_cuda_output output, float *out, nmlp_err *err) {
    nmlp_cuda_rows basis = {0};
    nmlp_cuda_rows act = {0};
    nmlp_cuda_rows inner = {0};
    if (w->basis.n) {
        nmlp_cuda_matmul m = {.w = {&w->basis}, .x = {*x}, .n_matrices = 1, .output = NMLP_CUDA_STORE};
        NMLP_RETURN_IF_FAILED(nmlp_cuda_plan_matmul(plan, &m, &basis, err));
    }
    nmlp_cuda_matmul pair = {.w = {&w->gate, &w->up},
                             .x = {w->gate_rank ? basis : *x, w->up_rank ? columns_from(&basis, w->up_start) : *x},
                             .n_matrices = 2,
                             .output = NMLP_CUDA_SILU_MUL};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_plan_matmul(plan, &pair, &act, err));
    if (w->down_basis.n) {
        nmlp_cuda_matmul m = {.w = {&w->down_basis}, .x = {act}, .n_matrices = 1, .output = NMLP_CUDA_STORE};
        NMLP_RETURN_IF_FAILED(nmlp_cuda_plan_matmul(plan, &m, &inner, err));
    }
    nmlp_cuda_matmul last = {
        .w = {&w->down}, .x = {w->down_basis.n ? inner : act}, .n_matrices = 1, .output = output, .out = out, .whole = true};
    return nmlp_cuda_plan_matmul(plan, &last, NULL, err);
}

nmlp_status nmlp_cuda_plan_finish(nmlp_cuda_plan *plan, nmlp_cuda_program *program, nmlp_err *err) {
    size_t bytes = plan->n_phases * sizeof *plan->phases;
    void *phases = nmlp_cuda_block_take(plan->block, bytes);
    unsigned long long *barrier = nmlp_cuda_block_take(plan->block, NMLP_CUDA_BARRIER_WORDS * sizeof *barrier);
    int32_t n_slots = NMLP_CUDA_SLOTS_MAX; /* a multiple of the copying warps: a slot belongs to one of them */
    while (n_slots > 0 && nmlp_cuda_stream_shared_bytes(plan->s, plan->input_elems, n_slots) > plan->device->shared_bytes) n_slots -= NMLP_CUDA_COPIER_WARPS;
    if (n_slots < SLOTS_MIN)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s has too little shared memory per block: %zu bytes",
                         plan->device->info.name, plan->device->shared_bytes);
    *program = (nmlp_cuda_program){.phases = phases,
                                   .n_phases = (int32_t)plan->n_phases,
                                   .s = plan->s,
                                   .n_slots = n_slots,
                                   .n_under_way = TILES_UNDER_WAY,
                                   .input_elems = plan->input_elems,
                                   .barrier = barrier};
    for (size_t i = 0; i < plan->n_phases && i < NMLP_CUDA_FIRST_PHASES; i++) program->first[i] = plan->phases[i];
    if (!plan->block->committed) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemcpy(phases, plan->phases, bytes, cudaMemcpyHostToDevice), "uploading a program", err);
}
