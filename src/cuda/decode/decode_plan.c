#include "cuda/decode/decode_plan.h"

#include "cuda/decode/decode_quant.h"

#include <stdio.h>

enum {
    INPUT_BYTES_MAX = 84 << 10, /* shared memory for a phase's input rows; the rest is ring */
    INPUT_SHARE = 3,            /* never more than this part of the block's shared memory */
    PIECES_MAX = 4,             /* tried for balance; also what a reader sums */
    PIECE_COLS_MIN = 512,
    TILES_IN_FLIGHT = 6
};

/* A byte of input, which comes from L2, against a byte of weights. */
static const double input_cost = 0.75;

void nmlp_cuda_decode_plan_init(nmlp_cuda_decode_plan *plan, const nmlp_cuda_device *device, nmlp_cuda_arena *arena,
                                int32_t s) {
    *plan = (nmlp_cuda_decode_plan){.device = device, .arena = arena, .s = s};
}

void nmlp_cuda_decode_plan_fini(nmlp_cuda_decode_plan *plan) {
    nmlp_mem_free(plan->phases);
    plan->phases = NULL;
}

nmlp_status nmlp_cuda_decode_plan_push(nmlp_cuda_decode_plan *plan, const nmlp_cuda_decode_phase *phase,
                                       nmlp_err *err) {
    void *array = plan->phases;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&array, &plan->capacity, plan->n_phases + 1, sizeof *plan->phases, err));
    plan->phases = array;
    plan->phases[plan->n_phases++] = *phase;
    return NMLP_OK;
}

/* Rows of shared memory the input takes: two halves of each token. */
static int32_t input_rows(int32_t s) { return 2 * s; }

/* How K is cut: at least what the room for the input requires; more where that balances the blocks better than it makes
 * inputs larger. */
static int32_t choose_pieces(const nmlp_cuda_decode_plan *plan, int32_t n, int32_t k, int32_t n_segments,
                             bool for_balance) {
    size_t room = plan->device->shared_bytes / INPUT_SHARE;
    if (room > INPUT_BYTES_MAX) room = INPUT_BYTES_MAX;
    int32_t cols = (int32_t)(room / 2) / input_rows(plan->s) - NMLP_CUDA_DECODE_ROW_SKEW;
    cols = cols / n_segments / NMLP_CUDA_DECODE_TILE_COLS * NMLP_CUDA_DECODE_TILE_COLS;
    int32_t least = nmlp_cuda_divide_up(k, cols);
    int32_t best = least;
    double best_cost = 0;
    for (int32_t p = least; p <= nmlp_cuda_larger(least, for_balance ? PIECES_MAX : 1); p++) {
        if (p > least && k / p < PIECE_COLS_MIN) break;
        int64_t units = (int64_t)nmlp_cuda_divide_up(n, NMLP_CUDA_DECODE_TILE_ROWS) * p;
        int64_t chunk = p == 1 ? k
                               : (int64_t)nmlp_cuda_divide_up(nmlp_cuda_divide_up(k, p), NMLP_CUDA_DECODE_TILE_COLS) *
                                     NMLP_CUDA_DECODE_TILE_COLS;
        double weights =
            (double)nmlp_cuda_divide_up(units, plan->device->n_blocks) * NMLP_CUDA_DECODE_TILE_ROWS * 2 * (double)chunk;
        double inputs = (double)NMLP_CUDA_DECODE_WORD_BYTES * plan->s * ((double)chunk + (double)n * p);
        double cost = weights + input_cost * inputs;
        if (p == least || cost < best_cost) {
            best = p;
            best_cost = cost;
        }
    }
    return best;
}

/* Quantised tiles serve one token, and both matrices of a pair, where the device can multiply them; there is a copy of
 * all weights in bf16. */
static bool reads_tiles(const nmlp_cuda_decode_plan *plan, const nmlp_cuda_decode_matmul *m) {
    return plan->device->multiplies_subnormals && plan->s == 1 && m->w[0]->tiles &&
           (m->n_matrices == 1 || m->w[1]->tiles);
}

static nmlp_cuda_decode_operand make_operand(const nmlp_cuda_matrix *w, const nmlp_cuda_decode_rows *x, bool tiles) {
    return (nmlp_cuda_decode_operand){.weight = w->data,
                                      .map = w->map,
                                      .tiles = tiles ? w->tiles : NULL,
                                      .format = tiles ? w->format : NMLP_CUDA_DECODE_BF16,
                                      .x = x->x,
                                      .x_part_stride = x->part_stride,
                                      .x_pitch = x->pitch,
                                      .x_parts = x->parts,
                                      .x_cols = x->cols,
                                      .x_written_by = x->written_by,
                                      .k = w->k,
                                      .input = x->input};
}

static nmlp_cuda_decode_phase make_phase(nmlp_cuda_decode_plan *plan, const nmlp_cuda_decode_matmul *m) {
    nmlp_cuda_decode_phase ph = {
        .kind = NMLP_CUDA_DECODE_MATMUL, .output = m->output, .n = m->w[0]->n, .n_matrices = m->n_matrices};
    bool tiles = reads_tiles(plan, m);
    int32_t k = 0;
    plan->quantised = plan->quantised || tiles;
    for (int i = 0; i < m->n_matrices; i++) {
        ph.op[i] = make_operand(m->w[i], &m->x[i], tiles);
        plan->stage_elems =
            nmlp_cuda_larger(plan->stage_elems, nmlp_cuda_pad(nmlp_cuda_decode_tile_bytes(ph.op[i].format) / 2));
        k = nmlp_cuda_larger(k, m->w[i]->k);
        if (m->x[i].input == NMLP_CUDA_DECODE_NORM) {
            ph.norm_weight = m->x[i].norm_weight;
            ph.norm_dim = m->x[i].norm_dim;
            ph.eps = m->x[i].eps;
            ph.embedding = m->x[i].embedding;
        }
    }
    ph.same_x = m->n_matrices == 2 && m->x[0].x == m->x[1].x;
    int32_t n_segments = m->n_matrices == 2 && !ph.same_x ? 2 : 1;
    bool for_balance = m->n_matrices == 1 && m->output == NMLP_CUDA_DECODE_STORE && !m->whole;
    int32_t pieces = choose_pieces(plan, ph.n, k, n_segments, for_balance);
    ph.k_chunk = pieces == 1 ? k
                             : nmlp_cuda_divide_up(nmlp_cuda_divide_up(k, pieces), NMLP_CUDA_DECODE_TILE_COLS) *
                                   NMLP_CUDA_DECODE_TILE_COLS;
    ph.n_chunks = nmlp_cuda_divide_up(k, ph.k_chunk);
    plan->input_elems = nmlp_cuda_larger(
        plan->input_elems, nmlp_cuda_pad(input_rows(plan->s) * (n_segments * ph.k_chunk + NMLP_CUDA_DECODE_ROW_SKEW)));
    return ph;
}

nmlp_status nmlp_cuda_decode_plan_matmul(nmlp_cuda_decode_plan *plan, const nmlp_cuda_decode_matmul *m,
                                         nmlp_cuda_decode_rows *rows, nmlp_err *err) {
    nmlp_cuda_decode_phase ph = make_phase(plan, m);
    ph.out_pitch = nmlp_cuda_pad(ph.n);
    ph.bias = m->bias;
    ph.tagged_out = !m->out || m->output == NMLP_CUDA_DECODE_ADD;
    ph.out_before = m->out_before;
    bool summed_by_reader = ph.n_chunks > 1 && m->output == NMLP_CUDA_DECODE_STORE && !m->out && !m->whole &&
                            !m->bias && ph.n_chunks <= PIECES_MAX;
    int32_t parts = summed_by_reader ? ph.n_chunks : 1;
    size_t values = (size_t)plan->s * (size_t)ph.out_pitch;
    ph.out = m->out ? m->out : nmlp_cuda_arena_take(plan->arena, (size_t)parts * values * NMLP_CUDA_DECODE_WORD_BYTES);
    if (summed_by_reader) ph.out_part_stride = (int64_t)values;
    if (ph.n_chunks > 1 && !summed_by_reader)
        ph.parts = nmlp_cuda_arena_take(plan->arena, (size_t)nmlp_cuda_divide_up(ph.n, NMLP_CUDA_DECODE_TILE_ROWS) *
                                                         (size_t)ph.n_chunks * (size_t)m->n_matrices * (size_t)plan->s *
                                                         NMLP_CUDA_DECODE_TILE_ROWS * NMLP_CUDA_DECODE_WORD_BYTES);
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_push(plan, &ph, err));
    if (rows)
        *rows = (nmlp_cuda_decode_rows){.x = ph.out,
                                        .part_stride = ph.out_part_stride,
                                        .pitch = ph.out_pitch,
                                        .parts = parts,
                                        .cols = ph.n,
                                        .written_by = (int32_t)plan->n_phases,
                                        .input = NMLP_CUDA_DECODE_PLAIN};
    return NMLP_OK;
}

/* Tagged rows from a column on. */
static nmlp_cuda_decode_rows columns_from(const nmlp_cuda_decode_rows *rows, int32_t start) {
    nmlp_cuda_decode_rows from = *rows;
    from.x = (const char *)rows->x + (size_t)start * NMLP_CUDA_DECODE_WORD_BYTES;
    from.cols -= start;
    return from;
}

nmlp_status nmlp_cuda_decode_plan_mlp(nmlp_cuda_decode_plan *plan, const nmlp_cuda_mlp_weights *w,
                                      nmlp_cuda_decode_rows *x, nmlp_cuda_decode_output output, void *out,
                                      nmlp_err *err) {
    nmlp_cuda_decode_rows basis = {0};
    nmlp_cuda_decode_rows act = {0};
    nmlp_cuda_decode_rows inner = {0};
    if (w->basis.n) {
        nmlp_cuda_decode_matmul m = {.w = {&w->basis}, .x = {*x}, .n_matrices = 1, .output = NMLP_CUDA_DECODE_STORE};
        NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_matmul(plan, &m, &basis, err));
    }
    nmlp_cuda_decode_matmul pair = {
        .w = {&w->gate, &w->up},
        .x = {w->gate_rank ? basis : *x, w->up_rank ? columns_from(&basis, w->up_start) : *x},
        .n_matrices = 2,
        .output = NMLP_CUDA_DECODE_SILU_MUL};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_matmul(plan, &pair, &act, err));
    if (w->down_basis.n) {
        nmlp_cuda_decode_matmul m = {
            .w = {&w->down_basis}, .x = {act}, .n_matrices = 1, .output = NMLP_CUDA_DECODE_STORE};
        NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_matmul(plan, &m, &inner, err));
    }
    nmlp_cuda_decode_matmul last = {.w = {&w->down},
                                    .x = {w->down_basis.n ? inner : act},
                                    .n_matrices = 1,
                                    .output = output,
                                    .out = out,
                                    .out_before = x->written_by,
                                    .whole = true};
    NMLP_RETURN_IF_FAILED(nmlp_cuda_decode_plan_matmul(plan, &last, NULL, err));
    if (output == NMLP_CUDA_DECODE_ADD) x->written_by = (int32_t)plan->n_phases;
    return NMLP_OK;
}

nmlp_status nmlp_cuda_decode_plan_finish(nmlp_cuda_decode_plan *plan, nmlp_cuda_decode_program *program,
                                         nmlp_err *err) {
    size_t bytes = plan->n_phases * sizeof *plan->phases;
    void *phases = nmlp_cuda_arena_take(plan->arena, bytes);
    unsigned *tickets = nmlp_cuda_arena_take(plan->arena, sizeof *tickets);
    int32_t n_stages = /* a multiple of the consumer warps: a stage belongs to one of them */
        plan->quantised ? NMLP_CUDA_DECODE_SMALL_STAGES_MAX : NMLP_CUDA_DECODE_STAGES_MAX;
    while (n_stages > 0 &&
           nmlp_cuda_decode_shared_bytes(plan->input_elems, n_stages, plan->stage_elems) > plan->device->shared_bytes)
        n_stages -= NMLP_CUDA_DECODE_CONSUMER_WARPS;
    if (n_stages < NMLP_CUDA_DECODE_CONSUMER_WARPS)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s has too little shared memory per block: %zu bytes",
                         plan->device->info.name, plan->device->shared_bytes);
    *program = (nmlp_cuda_decode_program){.phases = phases,
                                          .n_phases = (int32_t)plan->n_phases,
                                          .n_steps = 1,
                                          .s = plan->s,
                                          .n_stages = n_stages,
                                          .n_in_flight = TILES_IN_FLIGHT, /* at most the fewest stages there can be */
                                          .quantised = plan->quantised,
                                          .stage_elems = plan->stage_elems,
                                          .input_elems = plan->input_elems,
                                          .tickets = tickets};
#ifdef NMLP_CUDA_CLOCKS
    program->clocks = nmlp_cuda_arena_take(plan->arena, sizeof *program->clocks * (size_t)plan->device->n_blocks *
                                                            plan->n_phases * NMLP_CUDA_DECODE_CLOCK_EVENTS);
#endif
    for (size_t i = 0; i < plan->n_phases && i < NMLP_CUDA_DECODE_FIRST_PHASES; i++)
        program->first[i] = plan->phases[i];
    if (!plan->arena->committed) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemcpy(phases, plan->phases, bytes, cudaMemcpyHostToDevice), "uploading a program", err);
}

#ifdef NMLP_CUDA_CLOCKS
nmlp_status nmlp_cuda_decode_print_clocks(const nmlp_cuda_decode_program *program, int grid, nmlp_err *err) {
    static const char *const names[] = {"begin", "staged", "first tile", "multiplied", "finished", "next", "copied"};
    size_t n = (size_t)grid * (size_t)program->n_phases * NMLP_CUDA_DECODE_CLOCK_EVENTS;
    long long *clocks = nmlp_mem_new(n, sizeof *clocks, err);
    if (!clocks) return NMLP_E_NOMEM;
    nmlp_status st = NMLP_CUDA_CHECK(cudaMemcpy(clocks, program->clocks, n * sizeof *clocks, cudaMemcpyDeviceToHost),
                                     "fetching clocks", err);
    for (int p = 0; p < program->n_phases && st == NMLP_OK; p++) {
        for (int e = 0; e < NMLP_CUDA_DECODE_CLOCK_EVENTS; e++) {
            long long least = INT64_MAX;
            long long most = 0;
            double sum = 0;
            int n_there = 0;
            for (int b = 0; b < grid; b++) {
                long long c = clocks[(b * program->n_phases + p) * NMLP_CUDA_DECODE_CLOCK_EVENTS + e];
                if (c == 0) continue;
                n_there++;
                least = c < least ? c : least;
                most = c > most ? c : most;
                sum += (double)c;
            }
            if (n_there)
                fprintf(stderr, "phase %d %-12s %4d %7lld %9.0f %7lld\n", p, names[e], n_there, least, sum / n_there,
                        most);
        }
    }
    nmlp_mem_free(clocks);
    return st;
}
#endif
