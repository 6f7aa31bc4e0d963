#include "trainium/plan/planner.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "trainium/plan/plan_cache.h"

/* Judged at first, and in all with the neighbours of the best; a few of each kind, so that the first ones differ. */
enum {
    FIRST_BRIEF = 72,
    FIRST_LONG = 16,
    JUDGED_BRIEF = 800,
    JUDGED_LONG = 40,
    PER_KIND = 2,
    STARTS_MAX = 6,
    FINALISTS = 2,
    SAMPLE_STRIPS = 2
};

static const double NEAR = 1.025;   /* of the limit */
static const double BEHIND = 1.015; /* of what another family has reached: hopeless */

typedef struct finalist {
    nmlp_strip_plan plan;
    double latency_us; /* extrapolated */
    double hbm_bytes;
} finalist;

typedef struct contest {
    const nmlp_planner *planner;
    nmlp_plan_op op;
    const nmlp_kernel_request *rq;
    nmlp_plan *plan;
    finalist list[JUDGED_BRIEF + FINALISTS]; /* best first */
    int n;
    double to_beat_us; /* what another family has reached; 0: nothing */
} contest;

void nmlp_tiling_print(const nmlp_tiling *tiling, nmlp_str *out) {
    for (int i = 0; i < tiling->n; i++)
        nmlp_str_printf(out, "%s%s=%lld", i ? "," : "", tiling->entries[i].key, (long long)tiling->entries[i].value);
}

nmlp_status nmlp_choice_build(nmlp_program **out, const nmlp_choice *choice, const nmlp_kernel_request *rq,
                              nmlp_err *err) {
    nmlp_kernel_request at = *rq;
    at.tiling = &choice->tiling;
    const nmlp_kernel *kernel = nmlp_kernel_find(choice->kernel, err);
    return kernel ? nmlp_kernel_build(out, kernel, &at, err) : NMLP_E_MISSING;
}

static nmlp_status judge_choice(contest *c, nmlp_choice *choice, int64_t s, nmlp_err *err) {
    nmlp_program *program = NULL;
    nmlp_kernel_request rq = *c->rq;
    rq.shape.s = s;
    NMLP_RETURN_IF_FAILED(nmlp_choice_build(&program, choice, &rq, err));
    nmlp_status st = c->planner->judge(c->planner->judge_ctx, program, c->planner->machine, &choice->cost, err);
    nmlp_program_destroy(program);
    c->plan->n_judged++;
    return st;
}

static nmlp_status choice_of(nmlp_choice *choice, nmlp_plan_op op, const nmlp_strip_plan *plan, nmlp_err *err) {
    *choice = (nmlp_choice){.kernel = nmlp_plan_op_name(op)};
    return nmlp_strip_plan_tiling(&choice->tiling, plan, err);
}

/* Judges a strip plan at full length, or on its first strips where there are many. */
static nmlp_status judge_strips(contest *c, const nmlp_strip_plan *plan, finalist *f, nmlp_err *err) {
    nmlp_choice choice;
    int64_t s = c->rq->shape.s, rest = s % plan->rows, strips = s / plan->rows;
    NMLP_RETURN_IF_FAILED(choice_of(&choice, c->op, plan, err));
    f->plan = *plan;
    if (strips <= SAMPLE_STRIPS) {
        NMLP_RETURN_IF_FAILED(judge_choice(c, &choice, s, err));
        f->latency_us = choice.cost.latency_us;
        f->hbm_bytes = choice.cost.hbm_bytes;
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(judge_choice(c, &choice, (SAMPLE_STRIPS - 1) * plan->rows + rest, err));
    nmlp_kernel_cost two = choice.cost;
    NMLP_RETURN_IF_FAILED(judge_choice(c, &choice, SAMPLE_STRIPS * plan->rows + rest, err));
    double more = (double)(strips - SAMPLE_STRIPS);
    f->latency_us = choice.cost.latency_us + more * (choice.cost.latency_us - two.latency_us);
    f->hbm_bytes = choice.cost.hbm_bytes + more * (choice.cost.hbm_bytes - two.hbm_bytes);
    return NMLP_OK;
}

/* Plans of the same kind differ only in detail: runs of weights, of stored rows. */
static bool same_kind(const nmlp_strip_plan *a, const nmlp_strip_plan *b) {
    return a->rows == b->rows && a->x == b->x && a->x_copies == b->x_copies && (a->x_chunk == b->x_chunk) &&
           a->act_chunk == b->act_chunk && a->columns == b->columns;
}

/* Equal times within half a per mille: less traffic wins. */
static bool better(double latency, double bytes, double than_latency, double than_bytes) {
    if (fabs(latency - than_latency) > 5e-4 * than_latency) return latency < than_latency;
    return bytes < than_bytes || (bytes == than_bytes && latency < than_latency);
}

static void insert(contest *c, const finalist *f) {
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
           (a->ring_bytes != b->ring_bytes) + (a->out_tiles * a->columns != b->out_tiles * b->columns) +
           (a->out_ring != b->out_ring) + (a->tail != b->tail) + (a->taper != b->taper) +
           (a->out_bytes != b->out_bytes && (a->out_ring == b->out_ring || a->taper > 0));
}

/* Plans with a taper and plans without one are so different that no single change leads from one to the other. */
typedef enum family { ALL_PLANS, TAPERED, RINGED } family;

typedef struct field {
    nmlp_strip_plan *plans; /* all that fit, best estimate first */
    size_t n;
    double traffic_limit;
    family only;
} field;

static bool judged_before(const contest *c, const nmlp_strip_plan *plan) {
    for (int i = 0; i < c->n; i++)
        if (memcmp(&c->list[i].plan, plan, sizeof *plan) == 0) return true;
    return false;
}

static bool in_family(const field *f, const nmlp_strip_plan *plan) {
    return f->only == ALL_PLANS || (f->only == TAPERED) == (plan->taper > 0);
}

static bool allowed(const contest *c, const field *f, const nmlp_strip_plan *plan) {
    return f->traffic_limit == INFINITY || nmlp_strip_estimate_of(c->op, c->rq, plan).hbm_bytes <= f->traffic_limit;
}

static nmlp_status judge_first(contest *c, const field *f, int most, nmlp_err *err) {
    for (size_t i = 0; i < f->n && c->n < most; i++) {
        if (!in_family(f, &f->plans[i])) continue;
        int kin = 0, same_x = 0; /* some of each kind, and of each way to bring x in */
        for (int j = 0; j < c->n; j++) kin += same_kind(&f->plans[i], &c->list[j].plan);
        for (int j = 0; j < c->n; j++) same_x += f->plans[i].x == c->list[j].plan.x;
        if (kin >= PER_KIND || same_x > most * 2 / 3 || !allowed(c, f, &f->plans[i])) continue;
        finalist one;
        NMLP_RETURN_IF_FAILED(judge_strips(c, &f->plans[i], &one, err));
        insert(c, &one);
    }
    return NMLP_OK;
}

/* Changes up to `reach` choices at a time, from `at` on, until that does not help any more. */
static nmlp_status climb(contest *c, const field *f, finalist at, int reach, int most, nmlp_err *err) {
    for (bool moved = true; moved && c->n < most;) {
        finalist next = at;
        for (size_t i = 0; i < f->n && c->n < most; i++) {
            const nmlp_strip_plan *plan = &f->plans[i];
            if (!in_family(f, plan) || distance(plan, &at.plan) > reach || judged_before(c, plan) ||
                !allowed(c, f, plan))
                continue;
            finalist one;
            NMLP_RETURN_IF_FAILED(judge_strips(c, plan, &one, err));
            insert(c, &one);
            if (better(one.latency_us, one.hbm_bytes, next.latency_us, next.hbm_bytes)) next = one;
        }
        moved = memcmp(&next.plan, &at.plan, sizeof at.plan) != 0;
        at = next;
    }
    return NMLP_OK;
}

/* Hardly anything is left to gain. */
static bool near_limit(const contest *c) { return c->list[0].latency_us <= NEAR * c->plan->limit_us; }

/* Near the limit, or too far behind another family to catch up. */
static bool settled(const contest *c) {
    return near_limit(c) || (c->to_beat_us > 0 && c->list[0].latency_us > BEHIND * c->to_beat_us);
}

/* From the best; where judging is quick from the best of every way to bring x in and of every width of the last
 * product, and with pairs of changes. */
static nmlp_status judge_neighbours(contest *c, const field *f, bool brief, int judged, nmlp_err *err) {
    finalist starts[STARTS_MAX];
    int n = 0;
    for (int i = 0; i < c->n && n < (brief ? STARTS_MAX : 1); i++) {
        const nmlp_strip_plan *plan = &c->list[i].plan;
        bool known = false;
        for (int j = 0; j < n; j++)
            known = known || (starts[j].plan.x == plan->x && starts[j].plan.columns == plan->columns);
        if (!known) starts[n++] = c->list[i];
    }
    int most = brief ? judged / 4 * 3 : judged, before = c->n;
    for (int i = 0; i < n && (i == 0 || !settled(c)); i++)
        NMLP_RETURN_IF_FAILED(climb(c, f, starts[i], 1, before + (most - before) * (i + 1) / n, err));
    return brief && !settled(c) ? climb(c, f, c->list[0], 2, judged, err) : NMLP_OK;
}

/* One strip: quick to judge. */
static bool is_brief(const contest *c) { return c->rq->shape.s <= (int64_t)c->planner->machine->psum_bank_bytes / 4; }

/* `share` of the effort, in eighths. */
static nmlp_status judge_family(contest *c, field f, family only, int share, nmlp_err *err) {
    bool brief = is_brief(c);
    int first = (brief ? FIRST_BRIEF : FIRST_LONG) * share / 8,
        judged = (brief ? JUDGED_BRIEF : JUDGED_LONG) * share / 8;
    f.only = only;
    NMLP_RETURN_IF_FAILED(judge_first(c, &f, first, err));
    return c->n > 0 ? judge_neighbours(c, &f, brief, judged, err) : NMLP_OK;
}

/* Plans with a taper first; the others unless those are near the limit already. */
static nmlp_status judge_families(contest *c, const field *f, nmlp_err *err) {
    finalist best[FINALISTS];
    NMLP_RETURN_IF_FAILED(judge_family(c, *f, TAPERED, 3, err));
    if (c->n > 0 && near_limit(c)) return NMLP_OK;
    int n = c->n < FINALISTS ? c->n : FINALISTS;
    for (int i = 0; i < n; i++) best[i] = c->list[i];
    c->to_beat_us = n > 0 ? best[0].latency_us : 0;
    c->n = 0;
    NMLP_RETURN_IF_FAILED(judge_family(c, *f, RINGED, 7, err));
    for (int i = 0; i < n; i++) insert(c, &best[i]);
    return NMLP_OK;
}

static bool has_tapers(const field *f) {
    for (size_t i = 0; i < f->n; i++)
        if (f->plans[i].taper > 0) return true;
    return false;
}

static nmlp_status judge_candidates(contest *c, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    field f = {.traffic_limit = INFINITY};
    if (c->op == NMLP_PLAN_XUV && c->plan->paper.cost.latency_us > 0)
        f.traffic_limit = c->plan->paper.cost.hbm_bytes * (1 + 1e-9);
    NMLP_TRY(nmlp_strip_candidates(&f.plans, &c->plan->n_fitting, &c->plan->n_candidates, c->op, c->rq, err));
    f.n = c->plan->n_fitting;
    if (has_tapers(&f)) NMLP_TRY(judge_families(c, &f, err));
    if (c->n == 0) NMLP_TRY(judge_family(c, f, ALL_PLANS, 8, err));
    if (c->n == 0) { /* nothing moves as little as the paper's kernel */
        f.traffic_limit = INFINITY;
        NMLP_TRY(judge_family(c, f, ALL_PLANS, 8, err));
    }
out:
    nmlp_mem_free(f.plans);
    return st;
}

static void consider(nmlp_plan *plan, const nmlp_choice *choice) {
    if (plan->winner.cost.latency_us <= 0 || better(choice->cost.latency_us, choice->cost.hbm_bytes,
                                                    plan->winner.cost.latency_us, plan->winner.cost.hbm_bytes)) {
        plan->runner_up = plan->winner;
        plan->winner = *choice;
    } else if (plan->runner_up.cost.latency_us <= 0 || choice->cost.latency_us < plan->runner_up.cost.latency_us) {
        plan->runner_up = *choice;
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

/* The paper's MLP is two kernels, each with all of SBUF: kinder than one program that holds the buffers of both. */
static nmlp_status judge_paper_mlp(contest *c, nmlp_err *err) {
    const nmlp_kernel_shape *s = &c->rq->shape;
    nmlp_kernel_request rq = *c->rq, *full = &rq;
    nmlp_choice up = {.kernel = "mlp-up-paper"}, down = {.kernel = "xtuv-fused"};
    const nmlp_kernel_request *before = c->rq;
    NMLP_RETURN_IF_FAILED(nmlp_tiling_set(&down.tiling, "table", 2, err));
    NMLP_RETURN_IF_FAILED(judge_choice(c, &up, s->s, err));
    full->shape = (nmlp_kernel_shape){s->s, s->o, s->r, s->h};
    c->rq = full;
    nmlp_status st = judge_choice(c, &down, s->s, err);
    c->rq = before;
    NMLP_RETURN_IF_FAILED(st);
    add_cost(&up.cost, &down.cost, c->planner->machine->launch_us);
    c->plan->paper = (nmlp_choice){.kernel = "mlp-paper", .cost = up.cost};
    return NMLP_OK;
}

/* The paper's kernels with each of its tables. */
static nmlp_status judge_paper(contest *c, nmlp_err *err) {
    bool given = nmlp_tiling_get(c->rq->tiling, "x", 0) == NMLP_X_GIVEN;
    if (c->rq->shape.r == 0 || c->op == NMLP_PLAN_XW) return NMLP_OK; /* factors only */
    if (c->op == NMLP_PLAN_MLP) return judge_paper_mlp(c, err);
    for (int table = 1; table <= 2; table++) {
        nmlp_choice choice = {.kernel = given ? "xtuv-fused" : "xuv-fused"}, *paper = &c->plan->paper;
        NMLP_RETURN_IF_FAILED(nmlp_tiling_set(&choice.tiling, "table", table, err));
        NMLP_RETURN_IF_FAILED(judge_choice(c, &choice, c->rq->shape.s, err));
        if (paper->cost.latency_us <= 0 || choice.cost.latency_us < paper->cost.latency_us) *paper = choice;
    }
    return NMLP_OK;
}

static const char *busiest(const nmlp_kernel_cost *cost) {
    int best = 0;
    for (int e = 1; e < NMLP_N_ENGINES; e++)
        if (cost->busy_us[e] > cost->busy_us[best]) best = e;
    return nmlp_nc_engine_name((nmlp_nc_engine)best);
}

static nmlp_status hold_contest(contest *c, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(judge_paper(c, err));
    NMLP_RETURN_IF_FAILED(judge_candidates(c, err));
    for (int i = 0; i < c->n && i < FINALISTS; i++) {
        nmlp_choice choice;
        NMLP_RETURN_IF_FAILED(choice_of(&choice, c->op, &c->list[i].plan, err));
        NMLP_RETURN_IF_FAILED(judge_choice(c, &choice, c->rq->shape.s, err));
        consider(c->plan, &choice);
    }
    if (c->plan->paper.cost.latency_us > 0 && !nmlp_tiling_get(c->rq->tiling, "shared", 0))
        consider(c->plan, &c->plan->paper);
    return NMLP_OK;
}

nmlp_status nmlp_plan_find(nmlp_plan *plan, const nmlp_planner *planner, nmlp_plan_op op, const nmlp_kernel_request *rq,
                           nmlp_err *err) {
    contest c = {.planner = planner, .op = op, .rq = rq, .plan = plan};
    *plan = (nmlp_plan){0};
    const nmlp_kernel *kernel = nmlp_kernel_find(nmlp_plan_op_name(op), err);
    if (!kernel) return NMLP_E_MISSING;
    NMLP_RETURN_IF_FAILED(nmlp_kernel_check_request(kernel, rq, err));
    plan->bounds = nmlp_bounds_of(op, rq, nmlp_tiling_get(rq->tiling, "shared", 0) == 1);
    plan->limit_us = plan->bounds.largest_ns * 1e-3 + planner->machine->launch_us;
    plan->floor_us = plan->bounds.floor_ns * 1e-3 + planner->machine->launch_us;
    if (planner->cache_path)
        NMLP_RETURN_IF_FAILED(nmlp_plan_cache_find(planner->cache_path, plan, planner->machine, op, rq, err));
    if (plan->cached) { /* the choice is remembered, the judge's verdict is asked for again */
        NMLP_RETURN_IF_FAILED(judge_choice(&c, &plan->winner, rq->shape.s, err));
        if (plan->runner_up.kernel) NMLP_RETURN_IF_FAILED(judge_choice(&c, &plan->runner_up, rq->shape.s, err));
    } else {
        NMLP_RETURN_IF_FAILED(hold_contest(&c, err));
        if (planner->cache_path)
            NMLP_RETURN_IF_FAILED(nmlp_plan_cache_add(planner->cache_path, plan, planner->machine, op, rq, err));
    }
    plan->engine = busiest(&plan->winner.cost);
    return NMLP_OK;
}
