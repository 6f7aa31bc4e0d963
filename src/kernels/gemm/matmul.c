/* Matmuls of one input over blocks of rows: a block is laid out in tiles once, then all weights pass. Teams of threads
 * as in the MLP: where rows are enough for all, every thread has blocks of its own and never waits. */
#include "kernels/gemm/linear.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/teams.h"

/* Threads that work on the same block of rows, and what they share. */
struct team {
    nmlp_share share;
    nmlp_barrier *barrier;
    nmlp_tiles x[2]; /* of this block of rows and the next */
};

struct run {
    const nmlp_matmul *matmuls;
    float *const *ys;
    int n_matmuls;
    nmlp_plan plan;
    nmlp_teams teams;
    nmlp_pieces team_memory;
    nmlp_pieces scratch; /* of threads */
    const float *x;
    const nmlp_fused *fused;
    int64_t k;
};

static struct team carve_team(nmlp_carver *carver, const struct run *run, int n_threads) {
    struct team team = {.share = nmlp_share_carve(carver, n_threads)};
    team.barrier = nmlp_carve(carver, sizeof *team.barrier);
    for (int i = 0; i < 2; i++) team.x[i] = nmlp_tiles_carve(carver, run->plan.gemm, run->plan.rows_cap, run->k);
    return team;
}

static struct team team_at(const struct run *run, int team) {
    nmlp_carver carver = nmlp_piece(run->team_memory, team);
    return carve_team(&carver, run, run->teams.threads);
}

static size_t carve_run(struct run *run, const nmlp_matmul *matmul, int64_t s, int n_threads, void *workspace) {
    nmlp_carver carver = nmlp_carver_of(workspace);
    nmlp_carver team = {0};
    nmlp_carver scratch = {0};
    run->k = matmul->w->k;
    run->plan = nmlp_plan_make(matmul->kernels, nmlp_caches_get(), s, run->k, 0);
    nmlp_teams_init(&run->teams, &run->plan, s, n_threads);
    carve_team(&team, run, n_threads); /* at most: room for the counters of all */
    run->team_memory = nmlp_pieces_carve(&carver, team.used_bytes, run->teams.n_max);
    nmlp_scratch_carve(&scratch, &run->plan, run->k);
    run->scratch = nmlp_pieces_carve(&carver, scratch.used_bytes, n_threads);
    return carver.used_bytes;
}

size_t nmlp_matmul_workspace_bytes(const nmlp_matmul *matmul, int64_t s, int n_threads) {
    int64_t worst[NMLP_PLAN_WAYS];
    struct run run;
    size_t bytes = 0;
    nmlp_plan_worst(matmul->kernels, s, worst);
    for (int i = 0; i < NMLP_PLAN_WAYS; i++) {
        size_t need = carve_run(&run, matmul, worst[i], n_threads, NULL);
        if (need > bytes) bytes = need;
    }
    return bytes;
}

static void multiply(const struct run *run, int at, const nmlp_tiles *x, nmlp_row_block block, nmlp_worker *worker,
                     const nmlp_scratch *scratch) {
    const nmlp_matmul *m = &run->matmuls[at];
    nmlp_rows_sink sink = {.vec = m->kernels->vec,
                           .y = run->ys[at] + block.first * m->w->n,
                           .bias = m->bias,
                           .n = m->w->n,
                           .add = run->fused->add};
    nmlp_stage stage = {
        .gemm = run->plan.gemm,
        .product = {{.w = m->w, .a = *x, .k = m->w->k_padded}},
        .n_products = 1,
        .rows = block.n,
        .row = block.first,
        .kc = run->plan.kc,
        .widen = run->plan.widen,
        .stream = run->plan.stream,
        .sink = nmlp_sink_rows,
        .describe = nmlp_describe_rows,
        .sink_ctx = &sink,
    };
    nmlp_stage_work(&stage, worker, scratch);
}

static void run_block(const struct run *run, const struct team *team, const nmlp_tiles *x, nmlp_row_block block,
                      nmlp_worker *worker, const nmlp_scratch *scratch) {
    nmlp_packing packing = {.vec = run->matmuls[0].kernels->vec,
                            .x = run->x + block.first * run->k,
                            .k = run->k,
                            .fused = run->fused,
                            .row = scratch->row};
    nmlp_pack_work(x, &packing, block.n, worker);
    nmlp_barrier_wait(team->barrier, run->teams.threads);
    for (int i = 0; i < run->n_matmuls; i++) multiply(run, i, x, block, worker, scratch);
}

static void run_job(void *arg, int thread, int n_threads) {
    struct run *run = arg;
    const nmlp_gemm *gemm = run->plan.gemm;
    (void)n_threads;
    int index = thread / run->teams.threads;
    struct team team = team_at(run, index);
    nmlp_worker worker = {.share = &team.share, .thread = thread % run->teams.threads};
    nmlp_carver carver = nmlp_piece(run->scratch, thread);
    nmlp_scratch scratch = nmlp_scratch_carve(&carver, &run->plan, run->k);
    if (gemm->begin) gemm->begin();
    nmlp_row_block block;
    for (int64_t at = 0; (block = nmlp_teams_take(&run->teams, index, at)).n > 0; at++)
        run_block(run, &team, &team.x[nmlp_teams_buffer(&run->teams, at)], block, &worker, &scratch);
    if (gemm->end) gemm->end();
}

void nmlp_matmul_run(const nmlp_matmul matmuls[], float *const ys[], int n, const float *x, int64_t s,
                     const nmlp_fused *fused, void *workspace, nmlp_pool *pool) {
    static const nmlp_fused nothing = {0};
    struct run run = {.matmuls = matmuls, .ys = ys, .n_matmuls = n, .x = x, .fused = fused ? fused : &nothing};
    carve_run(&run, &matmuls[0], s, nmlp_pool_threads(pool), workspace);
    for (int i = 0; i < run.teams.n; i++) {
        struct team team = team_at(&run, i);
        *team.barrier = (nmlp_barrier){0};
        nmlp_share_begin(&team.share);
    }
    nmlp_pool_run(pool, run_job, &run);
}
