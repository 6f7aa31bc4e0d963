#include "trainium/plan/planner.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "trainium/plan/plan_cache.h"

/* Simulated at first, and in all with the neighbours of the best; a few of each kind, so that the first ones differ. */
enum {
    FIRST_SHORT = 72,
    FIRST_LONG = 16,
    MEASURED_SHORT = 800,
    MEASURED_LONG = 40,
    PER_KIND = 2,
    STARTS_MAX = 6,
    FINALISTS = 2,
    SAMPLE_STRIPS = 2
};

static const double NEAR_LIMIT = 1.025; /* of the limit */
static const double TOO_SLOW = 1.015;   /* of what another family has reached */

/* A plan and its simulated cost, extrapolated to the whole length. */
typedef struct measured {
    nmlp_strip_plan plan;
    double latency_us;
    double hbm_bytes;
} measured;

typedef struct search {
    const nmlp_planner *planner;
    nmlp_plan_op op;
    const nmlp_kernel_request *rq;
    nmlp_kernel_plan *plan;
    measured list[MEASURED_SHORT + FINALISTS]; /* best first */
    int n;
    double to_beat_us; /* what another family has reached; 0: nothing */
} search;

nmlp_status nmlp_plan_candidate_build(nmlp_program **out, const nmlp_plan_candidate *candidate,
                                      const nmlp_kernel_request *rq, nmlp_err *err) {
    nmlp_kernel_request at = *rq;
    at.tiling = &candidate->tiling;
    const nmlp_kernel *kernel = nmlp_kernel_find(candidate->kernel, err);
    if (!kernel) return NMLP_E_MISSING;
    nmlp_plan_op op;
    if (candidate->has_strip && nmlp_plan_op_parse(candidate->kernel, &op))
        return nmlp_strip_plan_build(out, op, rq, &candidate->strip, err);
    return nmlp_kernel_build(out, kernel, &at, err);
}

static nmlp_status cost_of(search *c, nmlp_program *program, nmlp_kernel_cost *cost, nmlp_err *err) {
    nmlp_status st = c->planner->cost(c->planner->cost_ctx, program, c->planner->machine, cost, err);
    nmlp_program_destroy(program);
    c->plan->n_simulated++;
    return st;
}

static nmlp_status simulate_candidate(search *c, nmlp_plan_candidate *candidate, nmlp_kernel_shape shape,
                                      nmlp_err *err) {
    nmlp_program *program = NULL;
    nmlp_kernel_request rq = *c->rq;
    rq.shape = shape;
    if (!candidate->has_strip && strcmp(candidate->kernel, nmlp_plan_op_name(c->op)) != 0)
        rq.ranks = (nmlp_mlp_ranks){0}; /* one of the paper's, which have one rank */
    NMLP_RETURN_IF_FAILED(nmlp_plan_candidate_build(&program, candidate, &rq, err));
    return cost_of(c, program, &candidate->cost, err);
}

static nmlp_status simulate_strips(search *c, const nmlp_strip_plan *plan, int64_t s, nmlp_kernel_cost *cost,
                                   nmlp_err *err) {
    nmlp_program *program = NULL;
    nmlp_kernel_request rq = *c->rq;
    rq.shape.s = s;
    NMLP_RETURN_IF_FAILED(nmlp_strip_plan_build(&program, c->op, &rq, plan, err));
    return cost_of(c, program, cost, err);
}

static nmlp_status candidate_of(nmlp_plan_candidate *candidate, nmlp_plan_op op, const nmlp_strip_plan *plan,
                                nmlp_err *err) {
    *candidate = (nmlp_plan_candidate){.kernel = nmlp_plan_op_name(op), .has_strip = true, .strip = *plan};
    return nmlp_strip_plan_tiling(&candidate->tiling, plan, err);
}

/* Simulates a plan at full length, or its first strips where there are many. */
static nmlp_status measure(search *c, const nmlp_strip_plan *plan, measured *f, nmlp_err *err) {
    int64_t s = c->rq->shape.s, rest = s % plan->rows, strips = s / plan->rows;
    nmlp_kernel_cost fewer, cost;
    f->plan = *plan;
    if (strips <= SAMPLE_STRIPS) {
        NMLP_RETURN_IF_FAILED(simulate_strips(c, plan, s, &cost, err));
        f->latency_us = cost.latency_us;
        f->hbm_bytes = cost.hbm_bytes;
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(simulate_strips(c, plan, (SAMPLE_STRIPS - 1) * plan->rows + rest, &fewer, err));
    NMLP_RETURN_IF_FAILED(simulate_strips(c, plan, SAMPLE_STRIPS * plan->rows + rest, &cost, err));
    double more = (double)(strips - SAMPLE_STRIPS);
    f->latency_us = cost.latency_us + more * (cost.latency_us - fewer.latency_us);
    f->hbm_bytes = cost.hbm_bytes + more * (cost.hbm_bytes - fewer.hbm_bytes);
    return NMLP_OK;
}

/* Plans of the same kind differ only in detail: runs of weights, of stored rows. */
static bool same_kind(const nmlp_strip_plan *a, const nmlp_strip_plan *b) {
    return a->rows == b->rows && a->x == b->x && a->x_copies == b->x_copies && (a->x_chunk == b->x_chunk) &&
           a->act_chunk == b->act_chunk && a->columns == b->columns && a->turn == b->turn;
}

/* Equal times within half a per mille: less traffic wins. */
static bool better(double latency, double bytes, double than_latency, double than_bytes) {
    if (fabs(latency - than_latency) > 5e-4 * than_latency) return latency < than_latency;
    return bytes < than_bytes || (bytes == than_bytes && latency < than_latency);
}

static void insert(search *c, const measured *f) {
    int at = c->n;
    while (at > 0 && better(f->latency_us, f->hbm_bytes, c->list[at - 1].latency_us, c->list[at - 1].hbm_bytes)) at--;
    for (int i = c->n; i > at; i--) c->list[i] = c->list[i - 1];
    c->list[at] = *f;
    c->n++;
}

/* Choices in which two plans differ, apart from how many copies there was room for. */
static int distance(const nmlp_strip_plan *a, const nmlp_strip_plan *b) {
    return (a->rows != b->rows) + (a->x != b->x) + (a->x_chunk != b->x_chunk) +
           (a->x_load != b->x_load && a->x == b->x) + (a->act_chunk != b->act_chunk) + (a->columns != b->columns) +
           (a->turn != b->turn) + (a->ring_bytes != b->ring_bytes) +
           (a->out_tiles * a->columns != b->out_tiles * b->columns) + (a->out_ring != b->out_ring) +
           (a->tail != b->tail) + (a->taper != b->taper) +
           (a->out_bytes != b->out_bytes && (a->out_ring == b->out_ring || a->taper > 0));
}

/* Plans with a taper and plans without one are so different that no single change leads from one to the other. */
typedef enum family { ALL_PLANS, TAPERED, RINGED } family;

typedef struct pool {
    nmlp_strip_plan *plans; /* all that fit, best estimate first */
    size_t n;
    double traffic_limit;
    family only;
} pool;

static bool measured_before(const search *c, const nmlp_strip_plan *plan) {
    for (int i = 0; i < c->n; i++)
        if (memcmp(&c->list[i].plan, plan, sizeof *plan) == 0) return true;
    return false;
}

static bool in_family(const pool *f, const nmlp_strip_plan *plan) {
    return f->only == ALL_PLANS || (f->only == TAPERED) == (plan->taper > 0);
}

static bool allowed(const search *c, const pool *f, const nmlp_strip_plan *plan) {
    return f->traffic_limit == INFINITY || nmlp_strip_estimate_of(c->op, c->rq, plan).hbm_bytes <= f->traffic_limit;
}

static nmlp_status measure_first(search *c, const pool *f, int most, nmlp_err *err) {
    for (size_t i = 0; i < f->n && c->n < most; i++) {
        if (!in_family(f, &f->plans[i])) continue;
        int same = 0, same_x = 0; /* some of each kind, and of each way to bring x in */
        for (int j = 0; j < c->n; j++) same += same_kind(&f->plans[i], &c->list[j].plan);
        for (int j = 0; j < c->n; j++) same_x += f->plans[i].x == c->list[j].plan.x;
        if (same >= PER_KIND || same_x > most * 2 / 3 || !allowed(c, f, &f->plans[i])) continue;
        measured one;
        NMLP_RETURN_IF_FAILED(measure(c, &f->plans[i], &one, err));
        insert(c, &one);
    }
    return NMLP_OK;
}

/* Changes up to `reach` choices at a time, from `at` on, until that does not help any more. */
static nmlp_status climb(search *c, const pool *f, measured at, int reach, int most, nmlp_err *err) {
    for (bool moved = true; moved && c->n < most;) {
        measured next = at;
        for (size_t i = 0; i < f->n && c->n < most; i++) {
            const nmlp_strip_plan *plan = &f->plans[i];
            if (!in_family(f, plan) || distance(plan, &at.plan) > reach || measured_before(c, plan) ||
                !allowed(c, f, plan))
                continue;
            measured one;
            NMLP_RETURN_IF_FAILED(measure(c, plan, &one, err));
            insert(c, &one);
            if (better(one.latency_us, one.hbm_bytes, next.latency_us, next.hbm_bytes)) next = one;
        }
        moved = memcmp(&next.plan, &at.plan, sizeof at.plan) != 0;
        at = next;
    }
    return NMLP_OK;
}

/* Hardly anything is left to gain. */
static bool near_limit(const search *c) { return c->list[0].latency_us <= NEAR_LIMIT * c->plan->limit_us; }

/* Near the limit, or too far behind another family to catch up. */
static bool settled(const search *c) {
    return near_limit(c) || (c->to_beat_us > 0 && c->list[0].latency_us > TOO_SLOW * c->to_beat_us);
}

/* From the best; where simulating is quick from the best of every way to bring x in and of every width of the last
 * product, and with pairs of changes. */
static nmlp_status measure_neighbours(search *c, const pool *f, bool short_input, int in_all, nmlp_err *err) {
    measured starts[STARTS_MAX];
    int n = 0;
    for (int i = 0; i < c->n && n < (short_input ? STARTS_MAX : 1); i++) {
        const nmlp_strip_plan *plan = &c->list[i].plan;
        bool known = false;
        for (int j = 0; j < n; j++)
            known = known || (starts[j].plan.x == plan->x && starts[j].plan.columns == plan->columns &&
                              starts[j].plan.turn == plan->turn);
        if (!known) starts[n++] = c->list[i];
    }
    int most = short_input ? in_all / 4 * 3 : in_all, before = c->n;
    for (int i = 0; i < n && (i == 0 || !settled(c)); i++)
        NMLP_RETURN_IF_FAILED(climb(c, f, starts[i], 1, before + (most - before) * (i + 1) / n, err));
    return short_input && !settled(c) ? climb(c, f, c->list[0], 2, in_all, err) : NMLP_OK;
}

/* One strip: quick to simulate. */
static bool is_short(const search *c) { return c->rq->shape.s <= (int64_t)c->planner->machine->psum_bank_bytes / 4; }

/* `share` of the effort, in eighths. */
static nmlp_status search_family(search *c, pool f, family only, int share, nmlp_err *err) {
    bool short_input = is_short(c);
    int first = (short_input ? FIRST_SHORT : FIRST_LONG) * share / 8,
        most = (short_input ? MEASURED_SHORT : MEASURED_LONG) * share / 8;
    f.only = only;
    NMLP_RETURN_IF_FAILED(measure_first(c, &f, first, err));
    return c->n > 0 ? measure_neighbours(c, &f, short_input, most, err) : NMLP_OK;
}

/* Plans with a taper first; the others unless those are near the limit already. */
static nmlp_status search_families(search *c, const pool *f, nmlp_err *err) {
    measured best[FINALISTS];
    NMLP_RETURN_IF_FAILED(search_family(c, *f, TAPERED, 3, err));
    if (c->n > 0 && near_limit(c)) return NMLP_OK;
    int n = c->n < FINALISTS ? c->n : FINALISTS;
    for (int i = 0; i < n; i++) best[i] = c->list[i];
    c->to_beat_us = n > 0 ? best[0].latency_us : 0;
    c->n = 0;
    NMLP_RETURN_IF_FAILED(search_family(c, *f, RINGED, 7, err));
    for (int i = 0; i < n; i++) insert(c, &best[i]);
    return NMLP_OK;
}

static bool has_tapers(const pool *f) {
    for (size_t i = 0; i < f->n; i++)
        if (f->plans[i].taper > 0) return true;
    return false;
}

static nmlp_status search_plans(search *c, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    pool f = {.traffic_limit = INFINITY};
    if (c->op == NMLP_PLAN_XUV && c->plan->paper.cost.latency_us > 0)
        f.traffic_limit = c->plan->paper.cost.hbm_bytes * (1 + 1e-9);
    NMLP_TRY(nmlp_strip_candidates(&f.plans, &c->plan->n_fitting, &c->plan->n_candidates, c->op, c->rq, err));
    f.n = c->plan->n_fitting;
    if (has_tapers(&f)) NMLP_TRY(search_families(c, &f, err));
    if (c->n == 0) NMLP_TRY(search_family(c, f, ALL_PLANS, 8, err));
    if (c->n == 0) { /* nothing moves as little as the paper's kernel */
        f.traffic_limit = INFINITY;
        NMLP_TRY(search_family(c, f, ALL_PLANS, 8, err));
    }
out:
    nmlp_mem_free(f.plans);
    return st;
}

static void keep_better(nmlp_kernel_plan *plan, const nmlp_plan_candidate *candidate) {
    if (plan->winner.cost.latency_us <= 0 || better(candidate->cost.latency_us, candidate->cost.hbm_bytes,
                                                    plan->winner.cost.latency_us, plan->winner.cost.hbm_bytes)) {
        plan->runner_up = plan->winner;
        plan->winner = *candidate;
    } else if (plan->runner_up.cost.latency_us <= 0 || candidate->cost.latency_us < plan->runner_up.cost.latency_us) {
        plan->runner_up = *candidate;
    }
}

static void add_cost(nmlp_kernel_cost *sum, const nmlp_kernel_cost *more, double launch_us) {
    double flops = sum->tensor_utilisation * sum->latency_us + more->tensor_utilisation * more->latency_us;
    double sustained = more->tensor_utilisation > 0 ? more->tensor_utilisation_sustained / more->tensor_utilisation : 0;
    sum->latency_us += more->latency_us - launch_us;
    sum->hbm_bytes += more->hbm_bytes;
    sum->tensor_utilisation = flops / sum->latency_us;
    sum->tensor_utilisation_sustained = sum->tensor_utilisation * sustained;
    for (int e = 0; e < NMLP_N_ENGINES; e++) sum->busy_us[e] += more->busy_us[e];
    if (more->sbuf_bytes > sum->sbuf_bytes) sum->sbuf_bytes = more->sbuf_bytes;
}

/* Adds one more kernel to the paper's time; only the first launch counts. */
static nmlp_status add_paper_kernel(search *c, nmlp_kernel_cost *sum, const char *kernel, int table,
                                    nmlp_kernel_shape shape, nmlp_err *err) {
    nmlp_plan_candidate one = {.kernel = kernel};
    if (table > 0) NMLP_RETURN_IF_FAILED(nmlp_tiling_set(&one.tiling, "table", table, err));
    NMLP_RETURN_IF_FAILED(simulate_candidate(c, &one, shape, err));
    if (sum->latency_us > 0)
        add_cost(sum, &one.cost, c->planner->machine->launch_us);
    else
        *sum = one.cost;
    return NMLP_OK;
}

/* The paper's MLP is two kernels, each with all of SBUF: kinder than one program that holds the buffers of both. It has
 * one rank for gate and up, so that a smaller one is padded, and no dense projections: those are AWS's kernel, with
 * nothing counted for the activation. */
static nmlp_status simulate_paper_mlp(search *c, nmlp_err *err) {
    nmlp_mlp_ranks r = nmlp_kernel_mlp_ranks(c->rq);
    int64_t s = c->rq->shape.s, h = c->rq->shape.h, i = c->rq->shape.o, widest = nmlp_max(r.gate, r.up);
    nmlp_kernel_cost sum = {0};
    if (r.gate > 0 && r.up > 0) {
        NMLP_RETURN_IF_FAILED(add_paper_kernel(c, &sum, "mlp-up-paper", 0, (nmlp_kernel_shape){s, h, widest, i}, err));
    } else {
        const int64_t ranks[] = {r.gate, r.up};
        for (int k = 0; k < 2; k++)
            NMLP_RETURN_IF_FAILED(add_paper_kernel(c, &sum, ranks[k] > 0 ? "xuv-fused" : "xw-opt", ranks[k] > 0 ? 2 : 0,
                                                   (nmlp_kernel_shape){s, h, ranks[k], i}, err));
    }
    NMLP_RETURN_IF_FAILED(add_paper_kernel(c, &sum, r.down > 0 ? "xtuv-fused" : "xw-opt", r.down > 0 ? 2 : 0,
                                           (nmlp_kernel_shape){s, i, r.down, h}, err));
    c->plan->paper = (nmlp_plan_candidate){.kernel = "mlp-paper", .cost = sum};
    return NMLP_OK;
}

/* The paper's kernels with each of its tables. */
static nmlp_status simulate_paper(search *c, nmlp_err *err) {
    bool given = nmlp_tiling_get(c->rq->tiling, "x", 0) == NMLP_X_GIVEN;
    nmlp_mlp_ranks ranks = nmlp_kernel_mlp_ranks(c->rq);
    if (c->rq->fuse.norm_e12 > 0 || c->rq->fuse.residual || c->rq->fp8)
        return NMLP_OK; /* nothing of that kind is published */
    if (c->op == NMLP_PLAN_XW || (ranks.gate == 0 && ranks.up == 0 && ranks.down == 0)) return NMLP_OK; /* no factors */
    if (c->op == NMLP_PLAN_MLP) return simulate_paper_mlp(c, err);
    for (int table = 1; table <= 2; table++) {
        nmlp_plan_candidate candidate = {.kernel = given ? "xtuv-fused" : "xuv-fused"}, *paper = &c->plan->paper;
        NMLP_RETURN_IF_FAILED(nmlp_tiling_set(&candidate.tiling, "table", table, err));
        NMLP_RETURN_IF_FAILED(simulate_candidate(c, &candidate, c->rq->shape, err));
        if (paper->cost.latency_us <= 0 || candidate.cost.latency_us < paper->cost.latency_us) *paper = candidate;
    }
    return NMLP_OK;
}

static const char *busiest(const nmlp_kernel_cost *cost) {
    int best = 0;
    for (int e = 1; e < NMLP_N_ENGINES; e++)
        if (cost->busy_us[e] > cost->busy_us[best]) best = e;
    return nmlp_nc_engine_name((nmlp_nc_engine)best);
}

/* One rank for all and nothing shared: what the paper's kernel can compute. */
static bool paper_can(const nmlp_kernel_request *rq) { return rq->shape.r > 0 && !nmlp_kernel_mlp_ranks(rq).shared; }

static nmlp_status find_best(search *c, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(simulate_paper(c, err));
    NMLP_RETURN_IF_FAILED(search_plans(c, err));
    for (int i = 0; i < c->n && i < FINALISTS; i++) {
        nmlp_plan_candidate candidate;
        NMLP_RETURN_IF_FAILED(candidate_of(&candidate, c->op, &c->list[i].plan, err));
        NMLP_RETURN_IF_FAILED(simulate_candidate(c, &candidate, c->rq->shape, err));
        keep_better(c->plan, &candidate);
    }
    if (c->plan->paper.cost.latency_us > 0 && paper_can(c->rq)) keep_better(c->plan, &c->plan->paper);
    return NMLP_OK;
}

/* The choice is remembered, its cost is simulated again. One that cannot be built is searched again. */
static void use_cached(search *c) {
    nmlp_kernel_plan *plan = c->plan;
    nmlp_err ignored = {0};
    if (simulate_candidate(c, &plan->winner, c->rq->shape, &ignored) == NMLP_OK &&
        (!plan->runner_up.kernel || simulate_candidate(c, &plan->runner_up, c->rq->shape, &ignored) == NMLP_OK))
        return;
    plan->winner = plan->runner_up = (nmlp_plan_candidate){0};
    plan->cached = false;
}

nmlp_status nmlp_kernel_plan_find(nmlp_kernel_plan *plan, const nmlp_planner *planner, nmlp_plan_op op,
                                  const nmlp_kernel_request *rq, nmlp_err *err) {
    search c = {.planner = planner, .op = op, .rq = rq, .plan = plan};
    *plan = (nmlp_kernel_plan){0};
    const nmlp_kernel *kernel = nmlp_kernel_find(nmlp_plan_op_name(op), err);
    if (!kernel) return NMLP_E_MISSING;
    NMLP_RETURN_IF_FAILED(nmlp_kernel_check_request(kernel, rq, err));
    plan->bounds = nmlp_bounds_of(op, rq);
    plan->limit_us = plan->bounds.largest_ns * 1e-3 + planner->machine->launch_us;
    plan->floor_us = plan->bounds.floor_ns * 1e-3 + planner->machine->launch_us;
    if (planner->cache_path)
        NMLP_RETURN_IF_FAILED(nmlp_plan_cache_find(planner->cache_path, plan, planner->machine, op, rq, err));
    if (plan->cached) use_cached(&c);
    if (!plan->cached) {
        NMLP_RETURN_IF_FAILED(find_best(&c, err));
        if (planner->cache_path)
            NMLP_RETURN_IF_FAILED(nmlp_plan_cache_add(planner->cache_path, plan, planner->machine, op, rq, err));
    }
    plan->engine = busiest(&plan->winner.cost);
    return NMLP_OK;
}
