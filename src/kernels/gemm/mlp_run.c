/* The fused gated MLP. For a block of rows, a team of threads together:
 *
 *   X tiles -> T = X V^T (gate, up) -> per chunk of I: silu(T Ug^T) * (T Uu^T) -> added to  act Vd^T  -> Y = (..) Ud^T
 *
 * Every intermediate is written by the epilogue of one stage in the tile order the next one reads, and stays in cache:
 * the chunk of activations is used up before the next one is made. The threads of a team split columns, so each weight
 * is read once per block of rows. A barrier stands wherever a stage reads what others wrote; two buffers for the chunk
 * save the second one. */
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/mlp_internal.h"
#include "kernels/gemm/row_driver.h"

struct fused_mlp {
    const nmlp_mlp *mlp;
    float *y;
};

/* What a team shares beyond its rows. */
struct team {
    nmlp_gemm_tiles gate; /* T of each projection */
    nmlp_gemm_tiles up;
    nmlp_gemm_tiles down;
    nmlp_gemm_tiles act[2]; /* chunk of I */
    float *acc;             /* sums of the first matmul of down, over chunks */
};

/* One thread's way through one block of rows. */
struct pass {
    const nmlp_gemm_pass *rows;
    const nmlp_mlp *mlp;
    struct team team;
    float *y; /* of the first row */
};

/* The first weight of a projection that reads its input. */
static const nmlp_gemm_weight *first_of(const nmlp_projection *p) { return p->v ? p->v : &p->u; }

static nmlp_gemm_tiles carve_rank(nmlp_carver *carver, const nmlp_gemm_blocking *blocking, const nmlp_projection *p) {
    if (!p->v) return (nmlp_gemm_tiles){0};
    return nmlp_gemm_tiles_carve(carver, blocking->gemm, blocking->rows_cap, p->v->n);
}

/* Laid out for chunk_cap elements, which no smaller s exceeds. */
static nmlp_gemm_tiles carve_chunk(nmlp_carver *carver, const nmlp_gemm_blocking *blocking) {
    nmlp_carver counter = {0};
    nmlp_gemm_tiles tiles = nmlp_gemm_tiles_carve(&counter, blocking->gemm, blocking->rows, blocking->chunk);
    size_t cap_bytes = (size_t)blocking->chunk_cap * (size_t)blocking->gemm->elem_bytes;
    tiles.data = nmlp_carve(carver, nmlp_max_size(counter.used_bytes, cap_bytes));
    return tiles;
}

static struct team carve_team(nmlp_carver *carver, const nmlp_gemm_blocking *blocking, const nmlp_mlp *mlp) {
    struct team team = {.gate = carve_rank(carver, blocking, &mlp->gate)};
    team.up = nmlp_mlp_shares_basis(mlp) ? team.gate : carve_rank(carver, blocking, &mlp->up);
    team.down = carve_rank(carver, blocking, &mlp->down);
    for (int i = 0; i < 2; i++) team.act[i] = carve_chunk(carver, blocking);
    int64_t acc_floats = nmlp_gemm_stage_acc_floats(blocking->gemm, blocking->rows_cap, first_of(&mlp->down)->n);
    team.acc = nmlp_carve(carver, (size_t)acc_floats * sizeof(float));
    return team;
}

static void carve(nmlp_carver *carver, const nmlp_gemm_rows_run *run, const void *op) {
    carve_team(carver, &run->blocking, ((const struct fused_mlp *)op)->mlp);
}

static int64_t quant_k_of(const nmlp_mlp *mlp) {
    const nmlp_projection *projections[] = {&mlp->gate, &mlp->up, &mlp->down};
    int64_t k = 0;
    for (int i = 0; i < 3; i++) {
        k = nmlp_max(k, nmlp_gemm_weight_quant_k(&projections[i]->u));
        if (projections[i]->v) k = nmlp_max(k, nmlp_gemm_weight_quant_k(projections[i]->v));
    }
    return k;
}

static nmlp_gemm_rows_run run_of(const struct fused_mlp *op) {
    return (nmlp_gemm_rows_run){.kernels = op->mlp->kernels,
                                .k = op->mlp->hidden,
                                .quant_k = quant_k_of(op->mlp),
                                .q8_first = nmlp_gemm_weight_takes_int8(first_of(&op->mlp->gate)) &&
                                            nmlp_gemm_weight_takes_int8(first_of(&op->mlp->up)),
                                .carve = carve,
                                .first_weight = first_of(&op->mlp->gate),
                                .op = op};
}

size_t nmlp_mlp_workspace_bytes(const nmlp_mlp *mlp, int64_t s, int n_threads) {
    struct fused_mlp op = {.mlp = mlp};
    nmlp_gemm_rows_run run = run_of(&op);
    return nmlp_gemm_rows_workspace_bytes(&run, s, mlp->inner, n_threads);
}

void nmlp_mlp_describe_blocking(const nmlp_mlp *mlp, int64_t s, int n_threads, nmlp_str *out) {
    struct fused_mlp op = {.mlp = mlp};
    nmlp_gemm_rows_run run = run_of(&op);
    nmlp_gemm_rows_init(&run, s, mlp->inner, n_threads, NULL);
    const nmlp_gemm_blocking *b = &run.blocking;
    int64_t kc = nmlp_min(b->kc, nmlp_max(nmlp_pad(mlp->hidden), nmlp_pad(mlp->inner)));
    nmlp_str_printf(out, "set=%s tile=%dx%d activations=%s teams=%dx%d rows=%lld kc=%lld chunk=%lld weights=%s",
                    mlp->kernels->name, b->gemm->mr, b->gemm->strips * NMLP_STRIP,
                    run.int8                   ? "int8"
                    : b->gemm->elem_bytes == 2 ? "bf16"
                                               : "f32",
                    run.teams.n, run.teams.threads, (long long)run.teams.rows, (long long)kc, (long long)b->chunk,
                    b->widen ? "widened" : "streamed");
}

static void basis_stage(const struct pass *pass, const nmlp_gemm_weight *v, const nmlp_gemm_tiles *to) {
    nmlp_gemm_to_tiles epilogue = {.vec = pass->mlp->kernels->vec, .to = {*to}, .n_products = 1, .n = v->n};
    nmlp_gemm_stage stage = nmlp_gemm_pass_stage(pass->rows);
    stage.product[0] = (nmlp_gemm_product){.w = v, .a = *pass->rows->x, .k = v->k_padded};
    stage.epilogue = nmlp_gemm_to_tiles_run;
    stage.describe = nmlp_gemm_to_tiles_describe;
    stage.epilogue_ctx = &epilogue;
    nmlp_gemm_stage_work(&stage, pass->rows->worker, pass->rows->scratch);
}

/* gate.v and up.v of equal rank: one stage, in which they share the loads of X. */
static void two_bases_stage(const struct pass *pass) {
    const nmlp_mlp *mlp = pass->mlp;
    nmlp_gemm_to_tiles epilogue = {
        .vec = mlp->kernels->vec, .to = {pass->team.gate, pass->team.up}, .n_products = 2, .n = mlp->gate.v->n};
    nmlp_gemm_stage stage = nmlp_gemm_pass_stage(pass->rows);
    stage.n_products = 2;
    stage.product[0] = (nmlp_gemm_product){.w = mlp->gate.v, .a = *pass->rows->x, .k = mlp->gate.v->k_padded};
    stage.product[1] = (nmlp_gemm_product){.w = mlp->up.v, .a = *pass->rows->x, .k = mlp->up.v->k_padded};
    stage.epilogue = nmlp_gemm_to_tiles_run;
    stage.describe = nmlp_gemm_to_tiles_describe;
    stage.epilogue_ctx = &epilogue;
    nmlp_gemm_stage_work(&stage, pass->rows->worker, pass->rows->scratch);
}

static void inputs_to_ranks(const struct pass *pass) {
    const nmlp_projection *gate = &pass->mlp->gate;
    const nmlp_projection *up = &pass->mlp->up;
    if (!gate->v && !up->v) return;
    bool together = !pass->rows->run->blocking.gemm->panel && gate->v && up->v && gate->v != up->v;
    if (together && gate->v->n == up->v->n) {
        two_bases_stage(pass);
    } else {
        if (gate->v) basis_stage(pass, gate->v, &pass->team.gate);
        if (up->v && up->v != gate->v) basis_stage(pass, up->v, &pass->team.up);
    }
    nmlp_gemm_pass_wait(pass->rows, &gate->u, 0);
}

/* Columns first..first+n of I; the strips of u there form a matrix of their own. */
static nmlp_gemm_weight columns_of(const nmlp_gemm_weight *u, int64_t first, int64_t n_padded) {
    nmlp_gemm_weight part = *u;
    part.strips = u->strips + u->strip_bytes * (size_t)(first / NMLP_STRIP);
    if (u->scales) part.scales = u->scales + first;
    part.n_padded = n_padded;
    part.n = nmlp_min(u->n - first, n_padded);
    return part;
}

static void activation_stage(const struct pass *pass, int64_t first, int64_t n_padded, const nmlp_gemm_tiles *act) {
    const nmlp_mlp *mlp = pass->mlp;
    nmlp_gemm_weight gate = columns_of(&mlp->gate.u, first, n_padded);
    nmlp_gemm_weight up = columns_of(&mlp->up.u, first, n_padded);
    nmlp_gemm_to_tiles epilogue = {
        .vec = mlp->kernels->vec, .to = {*act}, .n = gate.n, .gated = true, .activation = mlp->activation};
    nmlp_gemm_stage stage = nmlp_gemm_pass_stage(pass->rows);
    stage.n_products = 2;
    stage.product[0] =
        (nmlp_gemm_product){.w = &gate, .a = mlp->gate.v ? pass->team.gate : *pass->rows->x, .k = gate.k_padded};
    stage.product[1] = (nmlp_gemm_product){.w = &up, .a = mlp->up.v ? pass->team.up : *pass->rows->x, .k = up.k_padded};
    stage.epilogue = nmlp_gemm_to_tiles_run;
    stage.describe = nmlp_gemm_to_tiles_describe;
    stage.epilogue_ctx = &epilogue;
    nmlp_gemm_stage_work(&stage, pass->rows->worker, pass->rows->scratch);
}

/* Adds one chunk; the last one goes to Y, or for low rank to the tiles of down.u. */
static void down_stage(const struct pass *pass, int64_t first, int64_t n_padded, const nmlp_gemm_tiles *act) {
    const nmlp_gemm_weight *w = first_of(&pass->mlp->down);
    bool only = n_padded == w->k_padded;
    nmlp_gemm_to_rows rows = {
        .vec = pass->mlp->kernels->vec, .y = pass->y, .n = w->n, .add = pass->rows->run->fused->add};
    nmlp_gemm_to_tiles tiles = {.vec = pass->mlp->kernels->vec, .to = {pass->team.down}, .n_products = 1, .n = w->n};
    nmlp_gemm_stage stage = nmlp_gemm_pass_stage(pass->rows);
    stage.product[0] = (nmlp_gemm_product){.w = w, .a = *act, .w_k = first, .k = n_padded};
    stage.acc = only ? NULL : pass->team.acc;
    stage.accumulate = first > 0;
    if (first + n_padded >= w->k_padded) {
        stage.epilogue = pass->mlp->down.v ? nmlp_gemm_to_tiles_run : nmlp_gemm_to_rows_run;
        stage.describe = pass->mlp->down.v ? nmlp_gemm_to_tiles_describe : nmlp_gemm_to_rows_describe;
        stage.epilogue_ctx = pass->mlp->down.v ? (void *)&tiles : (void *)&rows;
    }
    nmlp_gemm_stage_work(&stage, pass->rows->worker, pass->rows->scratch);
}

static void rank_to_outputs(const struct pass *pass) {
    const nmlp_gemm_weight *u = &pass->mlp->down.u;
    nmlp_gemm_to_rows epilogue = {
        .vec = pass->mlp->kernels->vec, .y = pass->y, .n = u->n, .add = pass->rows->run->fused->add};
    nmlp_gemm_stage stage = nmlp_gemm_pass_stage(pass->rows);
    if (!pass->mlp->down.v) return;
    nmlp_gemm_pass_wait(pass->rows, u, 0);
    stage.product[0] = (nmlp_gemm_product){.w = u, .a = pass->team.down, .k = u->k_padded};
    stage.epilogue = nmlp_gemm_to_rows_run;
    stage.describe = nmlp_gemm_to_rows_describe;
    stage.epilogue_ctx = &epilogue;
    nmlp_gemm_stage_work(&stage, pass->rows->worker, pass->rows->scratch);
}

static void run_block(const nmlp_gemm_pass *rows) {
    const nmlp_gemm_rows_run *run = rows->run;
    const struct fused_mlp *op = run->op;
    const nmlp_mlp *mlp = op->mlp;
    nmlp_carver memory = rows->memory;
    struct pass pass = {.rows = rows,
                        .mlp = mlp,
                        .team = carve_team(&memory, &run->blocking, mlp),
                        .y = op->y + rows->row * mlp->hidden};
    inputs_to_ranks(&pass);
    int64_t inner = nmlp_pad(mlp->inner);
    for (int64_t first = 0, at = 0; first < inner; first += run->blocking.chunk, at++) {
        int64_t n_padded = nmlp_min(run->blocking.chunk, inner - first);
        const nmlp_gemm_tiles *act = &pass.team.act[nmlp_gemm_teams_buffer(&run->teams, at)];
        activation_stage(&pass, first, n_padded, act);
        nmlp_gemm_pass_wait(rows, first_of(&mlp->down), first);
        down_stage(&pass, first, n_padded, act);
    }
    rank_to_outputs(&pass);
}

static int width_of(const nmlp_mlp *mlp, int64_t s, const nmlp_pool *pool) {
    const nmlp_projection *projections[] = {&mlp->gate, &mlp->up, &mlp->down};
    double bytes = 0, elems = 0;
    for (int i = 0; i < 3; i++) {
        const nmlp_gemm_weight *factors[] = {&projections[i]->u, projections[i]->v};
        for (int j = 0; j < 2; j++) {
            if (!factors[j]) continue;
            bytes += (double)factors[j]->bytes;
            elems += (double)factors[j]->n * (double)factors[j]->k;
        }
    }
    return nmlp_gemm_rows_width(pool, s, bytes, elems);
}

void nmlp_mlp_run_fused(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, const nmlp_fused *fused,
                        void *workspace, nmlp_pool *pool) {
    struct fused_mlp op = {.mlp = mlp, .y = y};
    nmlp_gemm_rows_run run = run_of(&op);
    run.x = x;
    run.fused = fused;
    run.block = run_block;
    nmlp_gemm_rows_init(&run, s, mlp->inner, width_of(mlp, s, pool), workspace);
    nmlp_gemm_rows_run_all(&run, pool);
}

void nmlp_mlp_run(const nmlp_mlp *mlp, float *y, const float *x, int64_t s, void *workspace, nmlp_pool *pool) {
    nmlp_mlp_run_fused(mlp, y, x, s, &(nmlp_fused){0}, workspace, pool);
}

nmlp_pool_ahead nmlp_mlp_ahead(const nmlp_mlp *mlp) {
    const nmlp_gemm_weight *weights[] = {first_of(&mlp->gate), first_of(&mlp->up)};
    return nmlp_gemm_weights_ahead(weights, nmlp_mlp_shares_basis(mlp) ? 1 : 2);
}
