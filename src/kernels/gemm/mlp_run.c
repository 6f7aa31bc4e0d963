/* The fused gated MLP. For a block of rows, a team of threads together:
 *
 *   X tiles -> T = X V^T (gate, up) -> per chunk of I: silu(T Ug^T) * (T Uu^T) -> added to  act Vd^T  -> Y = (..) Ud^T
 *
 * Every intermediate is written by the sink of one stage in the tile order the next one reads, and stays in cache: the
 * chunk of activations is used up before the next one is made. The threads of a team split columns, so each weight is
 * read once per block of rows. A barrier stands wherever a stage reads what others wrote; two buffers each for X and
 * the chunk save the second one. */
#include "kernels/gemm/mlp_internal.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/teams.h"

/* Threads that work on the same block of rows, and what they share. */
struct team {
    nmlp_share share;
    nmlp_barrier *barrier;
    nmlp_tiles x[2]; /* of this block and the next */
    nmlp_tiles gate; /* T of each projection */
    nmlp_tiles up;
    nmlp_tiles down;
    nmlp_tiles act[2]; /* chunk of I */
    float *acc;        /* sums of the first matmul of down, over chunks */
};

struct run {
    const nmlp_mlp *mlp;
    nmlp_plan plan;
    nmlp_teams teams;
    nmlp_pieces team_memory;
    nmlp_pieces scratch; /* of threads */
    float *y;
    const float *x_rows;
    const nmlp_fused *fused;
};

/* The first matrix of a projection that reads its input. */
static const nmlp_matrix *first_of(const nmlp_projection *p) { return p->v ? p->v : &p->u; }

static nmlp_tiles carve_rank(nmlp_carver *carver, const nmlp_plan *plan, const nmlp_projection *p) {
    if (!p->v) return (nmlp_tiles){0};
    return nmlp_tiles_carve(carver, plan->gemm, plan->rows_cap, p->v->n);
}

/* Laid out for chunk_cap elements, which no smaller s exceeds. */
static nmlp_tiles carve_chunk(nmlp_carver *carver, const nmlp_plan *plan) {
    nmlp_carver counter = {0};
    nmlp_tiles tiles = nmlp_tiles_carve(&counter, plan->gemm, plan->rows, plan->chunk);
    size_t cap_bytes = (size_t)plan->chunk_cap * (size_t)plan->gemm->elem_bytes;
    tiles.data = nmlp_carve(carver, counter.used_bytes > cap_bytes ? counter.used_bytes : cap_bytes);
    return tiles;
}

static struct team carve_team(nmlp_carver *carver, const struct run *run, int n_threads) {
    const nmlp_mlp *mlp = run->mlp;
    const nmlp_plan *plan = &run->plan;
    struct team team = {.share = nmlp_share_carve(carver, n_threads)};
    team.barrier = nmlp_carve(carver, sizeof *team.barrier);
    for (int i = 0; i < 2; i++) team.x[i] = nmlp_tiles_carve(carver, plan->gemm, plan->rows_cap, mlp->hidden);
    team.gate = carve_rank(carver, plan, &mlp->gate);
    team.up = nmlp_mlp_shares_basis(mlp) ? team.gate : carve_rank(carver, plan, &mlp->up);
    team.down = carve_rank(carver, plan, &mlp->down);
    for (int i = 0; i < 2; i++) team.act[i] = carve_chunk(carver, plan);
    int64_t acc_floats = nmlp_stage_acc_floats(plan->gemm, plan->rows_cap, first_of(&mlp->down)->n);
    team.acc = nmlp_carve(carver, (size_t)acc_floats * sizeof(float));
    return team;
}

static struct team team_at(const struct run *run, int team) {
    nmlp_carver carver = nmlp_piece(run->team_memory, team);
    return carve_team(&carver, run, run->teams.threads);
}

static size_t carve_run(struct run *run, const nmlp_mlp *mlp, int64_t s, int n_threads, void *workspace) {
    nmlp_carver carver = nmlp_carver_of(workspace);
    nmlp_carver team = {0};
    nmlp_carver scratch = {0};
    run->mlp = mlp;
    run->plan = nmlp_plan_make(mlp->kernels, nmlp_caches_get(), s, mlp->hidden, mlp->inner);
    nmlp_teams_init(&run->teams, &run->plan, s, n_threads);
    carve_team(&team, run, n_threads); /* at most: room for the counters of all */
    run->team_memory = nmlp_pieces_carve(&carver, team.used_bytes, run->teams.n_max);
    nmlp_scratch_carve(&scratch, &run->plan, mlp->hidden);
    run->scratch = nmlp_pieces_carve(&carver, scratch.used_bytes, n_threads);
    return carver.used_bytes;
}

size_t nmlp_mlp_workspace_bytes(const nmlp_mlp *mlp, int64_t s, int n_threads) {
    int64_t worst[NMLP_PLAN_WAYS];
    struct run run;
    size_t bytes = 0;
    nmlp_plan_worst(mlp->kernels, s, worst);
    for (int i = 0; i < NMLP_PLAN_WAYS; i++) {
        size_t need = carve_run(&run, mlp, worst[i], n_threads, NULL);
        if (need > bytes) bytes = need;
    }
    return bytes;
}

void nmlp_mlp_describe_plan(const nmlp_mlp *mlp, int64_t s, int n_threads, nmlp_str *out) {
    struct run run;
    carve_run(&run, mlp, s, n_threads, NULL);
    const nmlp_plan *p = &run.plan;
    int64_t kc = nmlp_min(p->kc, nmlp_max(nmlp_pad(mlp->hidden), nmlp_pad(mlp->inner)));
    nmlp_str_printf(out, "set=%s tile=%dx%d activations=%s teams=%dx%d rows=%lld kc=%lld chunk=%lld weights=%s",
                    mlp->kernels->name, p->gemm->mr, p->gemm->strips * NMLP_STRIP,
                    p->gemm->elem_bytes == 2 ? "bf16" : "f32", run.teams.n, run.teams.threads,
                    (long long)run.teams.rows, (long long)kc, (long long)p->chunk, p->widen ? "widened" : "streamed");
}

/* One thread's way through one block of rows. */
struct pass {
    const struct run *run;
    const struct team *team;
    nmlp_worker *worker;
    const nmlp_scratch *scratch;
    const nmlp_tiles *x;
    int64_t rows;
    int64_t row; /* the first, of all */
    float *y;    /* of the first row */
};

/* Memory need not wait meanwhile: `next`, from input k on, is the first weight of the stage after the barrier. */
static void wait_for_team(const struct pass *pass, const nmlp_matrix *next, int64_t k) {
    int n_threads = pass->run->teams.threads;
    if (n_threads == 1) return;
    nmlp_fetch fetch = nmlp_fetch_of(pass->run->plan.gemm, next, k, pass->worker);
    unsigned arrival = nmlp_barrier_arrive(pass->team->barrier, n_threads);
    while (!nmlp_barrier_passed(pass->team->barrier, arrival) && nmlp_fetch_piece(&fetch)) {
    }
    nmlp_barrier_await(pass->team->barrier, arrival);
}

static nmlp_stage stage_of(const struct pass *pass) {
    const nmlp_plan *plan = &pass->run->plan;
    return (nmlp_stage){.gemm = plan->gemm,
                        .n_products = 1,
                        .rows = pass->rows,
                        .row = pass->row,
                        .kc = plan->kc,
                        .widen = plan->widen,
                        .stream = plan->stream};
}

static void basis_stage(const struct pass *pass, const nmlp_matrix *v, const nmlp_tiles *to) {
    nmlp_tiles_sink sink = {.vec = pass->run->mlp->kernels->vec, .to = {*to}, .n_products = 1, .n = v->n};
    nmlp_stage stage = stage_of(pass);
    stage.product[0] = (nmlp_product){.w = v, .a = *pass->x, .k = v->k_padded};
    stage.sink = nmlp_sink_tiles;
    stage.describe = nmlp_describe_tiles;
    stage.sink_ctx = &sink;
    nmlp_stage_work(&stage, pass->worker, pass->scratch);
}

/* gate.v and up.v of equal rank: one stage, in which they share the loads of X. */
static void two_bases_stage(const struct pass *pass) {
    const struct run *run = pass->run;
    const nmlp_mlp *mlp = run->mlp;
    nmlp_tiles_sink sink = {
        .vec = mlp->kernels->vec, .to = {pass->team->gate, pass->team->up}, .n_products = 2, .n = mlp->gate.v->n};
    nmlp_stage stage = stage_of(pass);
    stage.n_products = 2;
    stage.product[0] = (nmlp_product){.w = mlp->gate.v, .a = *pass->x, .k = mlp->gate.v->k_padded};
    stage.product[1] = (nmlp_product){.w = mlp->up.v, .a = *pass->x, .k = mlp->up.v->k_padded};
    stage.sink = nmlp_sink_tiles;
    stage.describe = nmlp_describe_tiles;
    stage.sink_ctx = &sink;
    nmlp_stage_work(&stage, pass->worker, pass->scratch);
}

static void inputs_to_ranks(const struct pass *pass) {
    const struct run *run = pass->run;
    const nmlp_projection *gate = &run->mlp->gate;
    const nmlp_projection *up = &run->mlp->up;
    if (!gate->v && !up->v) return;
    bool together = !run->plan.gemm->panel && gate->v && up->v && gate->v != up->v;
    if (together && gate->v->n == up->v->n) {
        two_bases_stage(pass);
    } else {
        if (gate->v) basis_stage(pass, gate->v, &pass->team->gate);
        if (up->v && up->v != gate->v) basis_stage(pass, up->v, &pass->team->up);
    }
    wait_for_team(pass, &gate->u, 0);
}

/* Columns first..first+n of I; the strips of u there form a matrix of their own. */
static nmlp_matrix columns_of(const nmlp_matrix *u, int64_t first, int64_t n_padded) {
    nmlp_matrix part = *u;
    part.strips = u->strips + u->strip_bytes * (size_t)(first / NMLP_STRIP);
    part.n_padded = n_padded;
    part.n = nmlp_min(u->n - first, n_padded);
    return part;
}

static void activation_stage(const struct pass *pass, int64_t first, int64_t n_padded, const nmlp_tiles *act) {
    const struct run *run = pass->run;
    const nmlp_mlp *mlp = run->mlp;
    nmlp_matrix gate = columns_of(&mlp->gate.u, first, n_padded);
    nmlp_matrix up = columns_of(&mlp->up.u, first, n_padded);
    nmlp_tiles_sink sink = {.vec = mlp->kernels->vec, .to = {*act}, .n = gate.n, .gated = true};
    nmlp_stage stage = stage_of(pass);
    stage.n_products = 2;
    stage.product[0] = (nmlp_product){.w = &gate, .a = mlp->gate.v ? pass->team->gate : *pass->x, .k = gate.k_padded};
    stage.product[1] = (nmlp_product){.w = &up, .a = mlp->up.v ? pass->team->up : *pass->x, .k = up.k_padded};
    stage.sink = nmlp_sink_tiles;
    stage.describe = nmlp_describe_tiles;
    stage.sink_ctx = &sink;
    nmlp_stage_work(&stage, pass->worker, pass->scratch);
}

/* Adds one chunk; the last one goes to Y, or for low rank to the tiles of down.u. */
static void down_stage(const struct pass *pass, int64_t first, int64_t n_padded, const nmlp_tiles *act) {
    const struct run *run = pass->run;
    const nmlp_matrix *w = first_of(&run->mlp->down);
    bool only = n_padded == w->k_padded;
    nmlp_rows_sink rows = {.vec = run->mlp->kernels->vec, .y = pass->y, .n = w->n, .add = run->fused->add};
    nmlp_tiles_sink tiles = {.vec = run->mlp->kernels->vec, .to = {pass->team->down}, .n_products = 1, .n = w->n};
    nmlp_stage stage = stage_of(pass);
    stage.product[0] = (nmlp_product){.w = w, .a = *act, .w_k = first, .k = n_padded};
    stage.acc = only ? NULL : pass->team->acc;
    stage.accumulate = first > 0;
    if (first + n_padded >= w->k_padded) {
        stage.sink = run->mlp->down.v ? nmlp_sink_tiles : nmlp_sink_rows;
        stage.describe = run->mlp->down.v ? nmlp_describe_tiles : nmlp_describe_rows;
        stage.sink_ctx = run->mlp->down.v ? (void *)&tiles : (void *)&rows;
    }
    nmlp_stage_work(&stage, pass->worker, pass->scratch);
}

static void rank_to_outputs(const struct pass *pass) {
    const nmlp_matrix *u = &pass->run->mlp->down.u;
    nmlp_rows_sink sink = {.vec = pass->run->mlp->kernels->vec, .y = pass->y, .n = u->n, .add = pass->run->fused->add};
    nmlp_stage stage = stage_of(pass);
    if (!pass->run->mlp->down.v) return;
    wait_for_team(pass, u, 0);
    stage.product[0] = (nmlp_product){.w = u, .a = pass->team->down, .k = u->k_padded};
    stage.sink = nmlp_sink_rows;
    stage.describe = nmlp_describe_rows;
    stage.sink_ctx = &sink;
    nmlp_stage_work(&stage, pass->worker, pass->scratch);
}

static void run_block(const struct pass *pass, const float *x) {
    const struct run *run = pass->run;
    const nmlp_mlp *mlp = run->mlp;
    nmlp_packing packing = {
        .vec = mlp->kernels->vec, .x = x, .k = mlp->hidden, .fused = run->fused, .row = pass->scratch->row};
    nmlp_pack_work(pass->x, &packing, pass->rows, pass->worker);
    wait_for_team(pass, first_of(&mlp->gate), 0);
    inputs_to_ranks(pass);
    int64_t inner = nmlp_pad(mlp->inner);
    for (int64_t first = 0, at = 0; first < inner; first += run->plan.chunk, at++) {
        int64_t n_padded = nmlp_min(run->plan.chunk, inner - first);
        const nmlp_tiles *act = &pass->team->act[nmlp_teams_buffer(&run->teams, at)];
        activation_stage(pass, first, n_padded, act);
        wait_for_team(pass, first_of(&mlp->down), first);
        down_stage(pass, first, n_padded, act);
    }
    rank_to_outputs(pass);
}

static void run_job(void *arg, int thread, int n_threads) {
    struct run *run = arg;
    const nmlp_gemm *gemm = run->plan.gemm;
    int64_t hidden = run->mlp->hidden;
    (void)n_threads;
    int index = thread / run->teams.threads;
    struct team team = team_at(run, index);
    nmlp_worker worker = {.share = &team.share, .thread = thread % run->teams.threads};
    nmlp_carver carver = nmlp_piece(run->scratch, thread);
    nmlp_scratch scratch = nmlp_scratch_carve(&carver, &run->plan, hidden);
    if (gemm->begin) gemm->begin();
    nmlp_row_block block;
    for (int64_t at = 0; (block = nmlp_teams_take(&run->teams, index, at)).n > 0; at++) {
        struct pass pass = {.run = run,
                            .team = &team,
                            .worker = &worker,
                            .scratch = &scratch,
                            .x = &team.x[nmlp_teams_buffer(&run->teams, at)],
                            .rows = block.n,
                            .row = block.first,
                            .y = run->y + block.first * hidden};
        run_block(&pass, run->x_rows + block.first * hidden);
    }
    if (gemm->end) gemm->end();
}

void nmlp_mlp_run_fused(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, const nmlp_fused *fused,
                        void *workspace, nmlp_pool *pool) {
    struct run run = {0};
    carve_run(&run, mlp, s, nmlp_pool_threads(pool), workspace);
    run.y = y;
    run.x_rows = x;
    run.fused = fused;
    for (int i = 0; i < run.teams.n; i++) {
        struct team team = team_at(&run, i);
        *team.barrier = (nmlp_barrier){0};
        nmlp_share_begin(&team.share);
    }
    nmlp_pool_run(pool, run_job, &run);
}

void nmlp_mlp_run(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool) {
    nmlp_mlp_run_fused(mlp, y, x, s, &(nmlp_fused){0}, workspace, pool);
}
