#include "kernels/gemm/row_driver.h"

enum { PACK_ROWS = 4 };

/* ---- which rows a team takes ---- */

/* A block; n is 0 when none is left. */
struct row_block {
    int64_t first;
    int64_t n;
};

static void init_teams(nmlp_gemm_teams *teams, const nmlp_gemm_blocking *blocking, int64_t s, int n_threads) {
    teams->n = nmlp_gemm_blocking_teams(blocking, s, n_threads);
    teams->n_max = nmlp_gemm_blocking_teams_max(blocking, s, n_threads);
    teams->threads = n_threads / teams->n;
    teams->s = s;
    teams->rows = nmlp_gemm_blocking_team_rows(blocking, s, teams->n);
    teams->rows_at_end = nmlp_round_up(teams->rows / 2, blocking->gemm->mr);
    atomic_init(&teams->next_row, 0);
}

static struct row_block block_at(const nmlp_gemm_teams *teams, int64_t first, int64_t rows) {
    return (struct row_block){.first = first, .n = nmlp_max(0, nmlp_min(rows, teams->s - first))};
}

/* A team's block number `at`. Single threads take what is next, so that a slow one delays nobody. */
static struct row_block take_block(nmlp_gemm_teams *teams, int team, int64_t at) {
    if (teams->threads > 1) return block_at(teams, (team + at * teams->n) * teams->rows, teams->rows);
    int64_t first = atomic_load_explicit(&teams->next_row, memory_order_relaxed);
    int64_t rows;
    do {
        bool at_end = teams->n > 1 && 4 * (teams->s - first) <= teams->s;
        rows = at_end ? teams->rows_at_end : teams->rows;
    } while (!atomic_compare_exchange_weak_explicit(&teams->next_row, &first, first + rows, memory_order_relaxed,
                                                    memory_order_relaxed));
    return block_at(teams, first, rows);
}

/* ---- memory ---- */

/* What the threads of a team share. */
struct team {
    nmlp_gemm_share share;
    nmlp_barrier *barrier;
    nmlp_gemm_tiles x[2]; /* of this block of rows and the next */
};

static struct team carve_team(nmlp_carver *carver, const nmlp_gemm_rows_run *run, int n_threads) {
    struct team team = {.share = nmlp_gemm_share_carve(carver, n_threads)};
    team.barrier = nmlp_carve(carver, sizeof *team.barrier);
    for (int i = 0; i < 2; i++)
        team.x[i] = (run->int8 ? nmlp_gemm_tiles_carve_int8 : nmlp_gemm_tiles_carve)(carver, run->blocking.gemm,
                                                                                     run->blocking.rows_cap, run->k);
    return team;
}

/* A thread's own packed row. Room for it is there for any number of rows, since a workspace does for fewer too. */
static nmlp_gemm_tiles carve_own_row(nmlp_carver *carver, const nmlp_gemm_rows_run *run) {
    nmlp_gemm_tiles row = {
        .k_padded = nmlp_pad(run->k), .n_tiles = 1, .rows = 1, .elem_bytes = run->blocking.gemm->elem_bytes};
    row.data = nmlp_carve(carver, (size_t)row.k_padded * sizeof(float));
    return row;
}

size_t nmlp_gemm_rows_init(nmlp_gemm_rows_run *run, int64_t s, int64_t inner, int n_threads, void *workspace) {
    nmlp_carver carver = nmlp_carver_of(workspace);
    nmlp_carver team = {0};
    nmlp_carver scratch = {0};
    run->blocking = nmlp_gemm_blocking_make(run->kernels, nmlp_caches_get(), s, run->k, inner, run->quant_k > 0);
    run->int8 = run->q8_first && run->blocking.gemm->int8_panels;
    init_teams(&run->teams, &run->blocking, s, n_threads);
    carve_team(&team, run, n_threads); /* at most: room for the counters of all */
    if (run->carve) run->carve(&team, run, run->op);
    run->team_memory = nmlp_pieces_carve(&carver, team.used_bytes, run->teams.n_max);
    run->packed_by_each = s == 1 && run->teams.threads > 1 && !run->blocking.gemm->full_tiles;
    carve_own_row(&scratch, run);
    nmlp_gemm_scratch_carve(&scratch, &run->blocking, run->k, run->quant_k);
    run->scratch = nmlp_pieces_carve(&carver, scratch.used_bytes, n_threads);
    return carver.used_bytes;
}

size_t nmlp_gemm_rows_workspace_bytes(nmlp_gemm_rows_run *run, int64_t s, int64_t inner, int n_threads) {
    int64_t worst[NMLP_GEMM_BLOCKING_KINDS];
    size_t bytes = 0;
    nmlp_gemm_blocking_worst_rows(run->kernels, s, worst);
    for (int i = 0; i < NMLP_GEMM_BLOCKING_KINDS; i++)
        bytes = nmlp_max_size(bytes, nmlp_gemm_rows_init(run, worst[i], inner, n_threads, NULL));
    return bytes;
}

/* ---- how many threads ---- */

/* One thread reads about so much from L3 and computes about so much in f32: enough to tell microseconds from more. */
static const double READ_BYTES_PER_NS = 20;
static const double FLOP_PER_NS = 100;

int nmlp_gemm_rows_width(const nmlp_pool *pool, int64_t s, double weight_bytes, double weight_elems) {
    double read_ns = weight_bytes / READ_BYTES_PER_NS;
    double compute_ns = 2 * (double)s * weight_elems / FLOP_PER_NS;
    return nmlp_pool_width(pool, read_ns > compute_ns ? read_ns : compute_ns);
}

/* ---- packing rows into tiles ---- */

static void pack_normed(const nmlp_gemm_pass *pass, const float *x, int64_t row) {
    const nmlp_gemm_rows_run *run = pass->run;
    float *normed = pass->scratch->row;
    nmlp_norm_row(normed, x + row * run->k, run->fused->norm, run->fused->norm_eps, run->k);
    if (run->int8) {
        nmlp_gemm_tiles_put_int8(pass->x, run->kernels->vec, row, normed, run->k);
        return;
    }
    nmlp_vec_put put = {.src = normed, .n_rows = 1, .n = run->k, .n_padded = pass->x->k_padded};
    nmlp_gemm_tiles_put(pass->x, run->kernels->vec, row, 0, put);
}

static void pack_plain(const nmlp_gemm_pass *pass, const float *x, int64_t row, int64_t n) {
    int64_t k = pass->run->k;
    if (pass->run->int8) {
        for (int64_t i = 0; i < n; i++)
            nmlp_gemm_tiles_put_int8(pass->x, pass->run->kernels->vec, row + i, x + (row + i) * k, k);
        return;
    }
    nmlp_vec_put put = {.src = x + row * k, .src_stride = k, .n_rows = n, .n = k, .n_padded = pass->x->k_padded};
    nmlp_gemm_tiles_put(pass->x, pass->run->kernels->vec, row, 0, put);
}

static void pack_rows(const nmlp_gemm_pass *pass) {
    const float *x = pass->run->x + pass->row * pass->run->k;
    bool norm = pass->run->fused->norm != NULL;
    nmlp_gemm_worker_begin_step(pass->worker, nmlp_ceil_div(pass->rows, PACK_ROWS));
    for (int64_t at = nmlp_gemm_worker_take(pass->worker); at >= 0; at = nmlp_gemm_worker_take(pass->worker)) {
        int64_t end = nmlp_min(pass->rows, (at + 1) * PACK_ROWS);
        if (!norm) pack_plain(pass, x, at * PACK_ROWS, end - at * PACK_ROWS);
        for (int64_t row = at * PACK_ROWS; norm && row < end; row++) pack_normed(pass, x, row);
    }
}

static void pack_own_row(const nmlp_gemm_pass *pass) {
    if (pass->run->fused->norm)
        pack_normed(pass, pass->run->x, 0);
    else
        pack_plain(pass, pass->run->x, 0, 1);
}

/* ---- the loop ---- */

void nmlp_gemm_pass_wait(const nmlp_gemm_pass *pass, const nmlp_gemm_weight *next, int64_t k) {
    int n_threads = pass->run->teams.threads;
    if (n_threads == 1) return;
    nmlp_gemm_prefetch prefetch = nmlp_gemm_prefetch_of(pass->run->blocking.gemm, next, k, pass->worker);
    unsigned arrival = nmlp_barrier_arrive(pass->barrier, pass->worker->thread, n_threads);
    while (!nmlp_barrier_passed(pass->barrier, arrival) && nmlp_gemm_prefetch_next(&prefetch)) {
    }
    nmlp_barrier_await(pass->barrier, arrival);
}

nmlp_gemm_stage nmlp_gemm_pass_stage(const nmlp_gemm_pass *pass) {
    const nmlp_gemm_blocking *blocking = &pass->run->blocking;
    return (nmlp_gemm_stage){.gemm = blocking->gemm,
                             .vec = pass->run->kernels->vec,
                             .n_products = 1,
                             .rows = pass->rows,
                             .row = pass->row,
                             .kc = blocking->kc,
                             .widen = blocking->widen,
                             .stream = blocking->stream};
}

static void run_thread(void *arg, int thread, int n_threads) {
    nmlp_gemm_rows_run *run = arg;
    const nmlp_gemm *gemm = run->blocking.gemm;
    (void)n_threads;
    int index = thread / run->teams.threads;
    nmlp_carver memory = nmlp_piece(run->team_memory, index);
    struct team team = carve_team(&memory, run, run->teams.threads);
    nmlp_gemm_worker worker = {.share = &team.share, .thread = thread % run->teams.threads};
    nmlp_carver carver = nmlp_piece(run->scratch, thread);
    nmlp_gemm_tiles own_row = carve_own_row(&carver, run);
    nmlp_gemm_scratch scratch = nmlp_gemm_scratch_carve(&carver, &run->blocking, run->k, run->quant_k);
    if (gemm->begin) gemm->begin();
    struct row_block block;
    for (int64_t at = 0; (block = take_block(&run->teams, index, at)).n > 0; at++) {
        nmlp_gemm_pass pass = {.run = run,
                               .barrier = team.barrier,
                               .worker = &worker,
                               .scratch = &scratch,
                               .x = &team.x[nmlp_gemm_teams_buffer(&run->teams, at)],
                               .memory = memory,
                               .rows = block.n,
                               .row = block.first};
        if (run->packed_by_each) {
            pass.x = &own_row;
            pack_own_row(&pass);
        } else {
            pack_rows(&pass);
            nmlp_gemm_pass_wait(&pass, run->first_weight, 0);
        }
        run->block(&pass);
    }
    if (gemm->end) gemm->end();
}

void nmlp_gemm_rows_run_all(nmlp_gemm_rows_run *run, nmlp_pool *pool) {
    for (int i = 0; i < run->teams.n; i++) {
        nmlp_carver memory = nmlp_piece(run->team_memory, i);
        struct team team = carve_team(&memory, run, run->teams.threads);
        *team.barrier = (nmlp_barrier){.spin_ns = pool ? nmlp_pool_spin_ns(pool) : NULL};
        nmlp_gemm_share_begin(&team.share);
    }
    nmlp_pool_run_on(pool, run->teams.n * run->teams.threads, run_thread, run);
}
