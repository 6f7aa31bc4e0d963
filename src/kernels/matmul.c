/* Matmuls of one input over blocks of rows: a block is laid out in tiles once, then all weights pass. Teams of threads as in
 * the MLP: where rows are enough for all, every thread has blocks of its own and never waits. */
#include "kernels/linear.h"
#include "kernels/plan.h"
#include "kernels/sinks.h"

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
    int n_teams;
    int team_threads;
    char *teams; /* memory of one after the other */
    size_t team_bytes;
    char *scratch; /* per thread */
    size_t scratch_bytes;
    int64_t rows; /* of a block */
    _Atomic int64_t next_row;
    const float *x;
    const nmlp_fused *fused;
    int64_t k;
    int64_t s;
};

/* A thread's own memory. */
struct own {
    nmlp_scratch scratch;
    float *row;
};

static struct own carve_thread(nmlp_carver *carver, const struct run *run) {
    return (struct own){.scratch = nmlp_scratch_carve(carver, &run->plan),
                        .row = nmlp_carve(carver, (size_t)run->k * sizeof(float))};
}

static struct team carve_team(nmlp_carver *carver, const struct run *run) {
    struct team team = {.share = nmlp_share_carve(carver, run->team_threads)};
    team.barrier = nmlp_carve(carver, sizeof *team.barrier);
    for (int i = 0; i < 2; i++) team.x[i] = nmlp_tiles_carve(carver, run->plan.gemm, run->plan.rows_cap, run->k);
    return team;
}

static struct team team_at(const struct run *run, int team) {
    nmlp_carver carver = {.base = run->teams + run->team_bytes * (size_t)team};
    return carve_team(&carver, run);
}

static size_t carve_run(struct run *run, const nmlp_matmul *matmul, int64_t s, int n_threads, void *workspace) {
    nmlp_carver carver = nmlp_carver_of(workspace);
    nmlp_carver team = {0};
    nmlp_carver scratch = {0};
    run->s = s;
    run->k = matmul->w->k;
    run->plan = nmlp_plan_make(matmul->kernels, nmlp_caches_get(), s, run->k, 0);
    run->n_teams = nmlp_plan_teams(&run->plan, s, n_threads);
    run->rows = nmlp_plan_team_rows(&run->plan, s, run->n_teams);
    run->team_threads = n_threads; /* at most: room for the counters of all */
    carve_team(&team, run);
    run->team_threads = n_threads / run->n_teams;
    run->team_bytes = team.used_bytes;
    run->teams = nmlp_carve(&carver, run->team_bytes * (size_t)nmlp_plan_teams_cap(&run->plan, s, n_threads));
    carve_thread(&scratch, run);
    run->scratch_bytes = scratch.used_bytes;
    run->scratch = nmlp_carve(&carver, run->scratch_bytes * (size_t)n_threads);
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

static void multiply(const struct run *run, int at, const nmlp_tiles *x, int64_t first, int64_t rows,
                     nmlp_worker *worker, const nmlp_scratch *scratch) {
    const nmlp_matmul *m = &run->matmuls[at];
    nmlp_rows_sink sink = {.vec = m->kernels->vec,
                           .y = run->ys[at] + first * m->w->n,
                           .bias = m->bias,
                           .n = m->w->n,
                           .add = run->fused->add};
    nmlp_stage stage = {
        .gemm = run->plan.gemm,
        .product = {{.w = m->w, .a = *x, .k = m->w->k_padded}},
        .n_products = 1,
        .rows = rows,
        .kc = run->plan.kc,
        .widen = run->plan.widen,
        .stream = run->plan.stream,
        .sink = nmlp_sink_rows,
        .sink_ctx = &sink,
    };
    nmlp_stage_work(&stage, worker, scratch);
}

static void run_block(const struct run *run, const struct team *team, const nmlp_tiles *x, int64_t first,
                      nmlp_worker *worker, const struct own *own) {
    int64_t rows = nmlp_min(run->rows, run->s - first);
    nmlp_packing packing = {.vec = run->matmuls[0].kernels->vec,
                            .x = run->x + first * run->k,
                            .k = run->k,
                            .fused = run->fused,
                            .row = own->row};
    nmlp_pack_work(x, &packing, rows, worker);
    nmlp_barrier_wait(team->barrier, run->team_threads);
    for (int i = 0; i < run->n_matmuls; i++) multiply(run, i, x, first, rows, worker, &own->scratch);
}

/* The next block of rows of a team, or the end. Single threads take what is next, so that a slow one delays nobody. */
static int64_t next_rows(struct run *run, int team, int64_t at) {
    if (run->team_threads == 1) return atomic_fetch_add_explicit(&run->next_row, run->rows, memory_order_relaxed);
    return (team + at * run->n_teams) * run->rows;
}

static void run_job(void *arg, int thread, int n_threads) {
    struct run *run = arg;
    const nmlp_gemm *gemm = run->plan.gemm;
    (void)n_threads;
    int team_index = thread / run->team_threads;
    struct team team = team_at(run, team_index);
    nmlp_worker worker = {.share = &team.share, .thread = thread % run->team_threads};
    nmlp_carver carver = {.base = run->scratch + run->scratch_bytes * (size_t)thread};
    struct own own = carve_thread(&carver, run);
    if (gemm->begin) gemm->begin();
    int64_t at = 0;
    for (int64_t first = next_rows(run, team_index, at); first < run->s; first = next_rows(run, team_index, ++at)) {
        const nmlp_tiles *x = &team.x[run->team_threads > 1 ? at & 1 : 0]; /* one alone keeps its cache for one */
        run_block(run, &team, x, first, &worker, &own);
    }
    if (gemm->end) gemm->end();
}

void nmlp_matmul_run(const nmlp_matmul matmuls[], float *const ys[], int n, const float *x, int64_t s,
                     const nmlp_fused *fused, void *workspace, nmlp_pool *pool) {
    static const nmlp_fused nothing = {0};
    struct run run = {.matmuls = matmuls, .ys = ys, .n_matmuls = n, .x = x, .fused = fused ? fused : &nothing};
    carve_run(&run, &matmuls[0], s, nmlp_pool_threads(pool), workspace);
    for (int i = 0; i < run.n_teams; i++) {
        struct team team = team_at(&run, i);
        *team.barrier = (nmlp_barrier){0};
        nmlp_share_begin(&team.share);
    }
    nmlp_pool_run(pool, run_job, &run);
}
