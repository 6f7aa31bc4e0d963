/* Enumerates strip plans: every combination of the choices below that fits SBUF, best estimate first. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainium/plan/strip_plan.h"

enum { KEEP_MAX = 4096, CHOICES_MAX = 12, ROW_BYTES = 4096, LOAD_TILES = 8, TAIL_MAX = 2 };

typedef struct choices {
    int64_t v[CHOICES_MAX];
    int n;
} choices;

typedef struct scored {
    nmlp_strip_plan plan;
    double total_ns;
    double hbm_bytes;
} scored;

typedef struct search {
    nmlp_plan_op op;
    const nmlp_kernel_request *rq;
    scored *list;
    size_t n, capacity, n_tried;
    nmlp_err *err;
    nmlp_status st;
} search;

static void add_choice(choices *c, int64_t v) {
    for (int i = 0; i < c->n; i++)
        if (c->v[i] == v) return;
    if (v >= 1 && c->n < CHOICES_MAX) c->v[c->n++] = v;
}

/* What the request's tiling fixes is the only choice. */
static bool fixed(const nmlp_kernel_request *rq, const char *key, choices *c) {
    int64_t v = nmlp_tiling_get(rq->tiling, key, -1);
    if (v < 0) return false;
    *c = (choices){{v}, 1};
    return true;
}

/* A strip is up to one moving operand, or a whole number of them. */
static choices row_choices(const nmlp_kernel_request *rq) {
    const nmlp_machine *m = rq->machine;
    int64_t tile = nmlp_min((int64_t)m->moving_max, (int64_t)m->psum_bank_bytes / 4), s = rq->shape.s,
            piece = (int64_t)m->stationary_max;
    choices c = {0};
    if (fixed(rq, "rows", &c)) {
        if (c.v[0] < s) c.v[0] = nmlp_ceil_div(c.v[0], c.v[0] > tile ? tile : piece) * (c.v[0] > tile ? tile : piece);
        return c;
    }
    if (s <= tile) add_choice(&c, s);
    if (s > piece && s <= tile) add_choice(&c, nmlp_ceil_div(nmlp_ceil_div(s, 2), piece) * piece);
    if (s <= tile) return c;
    int64_t even = nmlp_ceil_div(s, nmlp_ceil_div(s, tile));
    add_choice(&c, nmlp_ceil_div(even, piece) * piece);
    for (int64_t k = 1; k <= 2; k *= 2) add_choice(&c, k * tile);
    add_choice(&c, tile / 4 * 3);
    add_choice(&c, tile / 2);
    return c;
}

/* All tiles at once, or cut in 2, 4, 8, … */
static choices chunk_choices(const nmlp_kernel_request *rq, const char *key, int64_t n, bool may_cut) {
    int64_t tiles = nmlp_ceil_div(n, (int64_t)rq->machine->partitions);
    choices c = {0};
    if (may_cut && fixed(rq, key, &c)) {
        c.v[0] = nmlp_min(c.v[0], tiles);
        return c;
    }
    add_choice(&c, tiles);
    for (int64_t cut = 2; may_cut && cut <= 16 && tiles / cut >= 2; cut *= 2) add_choice(&c, nmlp_ceil_div(tiles, cut));
    return c;
}

/* A single strip: the weights are read once and start and end weigh, so the details of DMA are worth trying out, and
 * the last store should not wait for the one before. */
static bool brief(const nmlp_kernel_request *rq) { return rq->shape.s <= (int64_t)rq->machine->psum_bank_bytes / 4; }

/* One stationary operand takes all rows: DMA is the limit, and its details matter most. */
static bool few_rows(const nmlp_kernel_request *rq) { return rq->shape.s <= (int64_t)rq->machine->stationary_max; }

static choices column_choices(const nmlp_kernel_request *rq, int64_t n) {
    int64_t tile = nmlp_min((int64_t)rq->machine->moving_max, (int64_t)rq->machine->psum_bank_bytes / 4);
    choices c = {0};
    if (fixed(rq, "cols", &c)) {
        c.v[0] = nmlp_min(c.v[0], tile);
        return c;
    }
    add_choice(&c, nmlp_min(nmlp_ceil_div(n, nmlp_ceil_div(n, tile)), tile));
    if (n > tile) add_choice(&c, tile);
    if (n > tile / 2) add_choice(&c, tile / 2);
    if (n > tile / 4 && few_rows(rq)) add_choice(&c, tile / 4);
    return c;
}

/* Column tiles per stored row: at least ROW_BYTES, with little left over at the end. */
static int64_t out_tiles(const nmlp_kernel_request *rq, int64_t n, int64_t columns) {
    int64_t tiles = nmlp_ceil_div(n, columns),
            want = nmlp_ceil_div(ROW_BYTES, columns * (int64_t)nmlp_nc_dtype_bytes(rq->dtype)), best = 1;
    for (int64_t t = 1; t <= tiles && t <= 2 * want; t++)
        if (tiles % t == 0 && (best < want || t == want)) best = t;
    return best * 2 < want ? nmlp_min(want, tiles) : best;
}

static void keep(search *s, const nmlp_strip_plan *plan, const nmlp_strip_estimate *e) {
    if (s->st != NMLP_OK) return;
    void *list = s->list;
    s->st = nmlp_mem_grow(&list, &s->capacity, s->n + 1, sizeof *s->list, s->err);
    s->list = list;
    if (s->st == NMLP_OK) s->list[s->n++] = (scored){*plan, e->total_ns, e->hbm_bytes};
}

/* Deepest ring that fits; the shallowest first, since most plans do not even fit with that one. */
static void try_depths(search *s, nmlp_strip_plan plan) {
    choices ring = {.v = {2, 6, 4, 3, 2}, .n = 5};
    bool given = fixed(s->rq, "ring", &ring);
    for (int i = 0; i < ring.n; i++) {
        plan.ring = ring.v[i];
        s->n_tried++;
        nmlp_strip_estimate e = nmlp_strip_estimate_of(s->op, s->rq, &plan);
        bool fits = e.sbuf_bytes <= (int64_t)s->rq->machine->sbuf_usable_bytes;
        if (i == 0 && !given && fits) continue;
        if (fits) keep(s, &plan, &e);
        if (fits || i == 0) return;
    }
}

/* With a taper: the factor before the last product in the common ring, in runs as long as the others (1 KiB stands for
 * that) or shorter, or with a ring of its own. */
static void try_held(search *s, nmlp_strip_plan plan) {
    choices depth = {.v = {1, 2}, .n = 2}, bytes = {.v = {1024, 8192, 12288, 24576, 36864}, .n = 5};
    fixed(s->rq, "oring", &depth);
    if (fixed(s->rq, "okb", &bytes)) bytes.v[0] *= 1024;
    for (int i = 0; i < bytes.n; i++) {
        bool common = bytes.v[i] == 1024;
        for (int j = 0; j < depth.n; j++) {
            if (common && bytes.n > 1 && depth.v[j] > 1) continue;
            plan.out_ring = depth.v[j];
            plan.out_bytes = common && plan.out_ring == 1 ? 0 : bytes.v[i];
            try_depths(s, plan);
        }
    }
}

/* The last products in the common ring, or with a ring and runs of their own: the deepest that fits. */
static void try_late(search *s, nmlp_strip_plan plan) {
    choices depth = {.v = {4, 2}, .n = 2}, bytes = {.v = {4096, 8192, 12288, 24576}, .n = few_rows(s->rq) ? 4 : 0};
    if (plan.taper > 0) {
        try_held(s, plan);
        return;
    }
    bool given = fixed(s->rq, "oring", &depth);
    if (fixed(s->rq, "okb", &bytes)) bytes.v[0] *= 1024;
    if (given && depth.v[0] > 1 && bytes.n == 0) bytes = (choices){.v = {8192}, .n = 1};
    if (!given || depth.v[0] == 1) try_depths(s, plan);
    for (int i = 0; i < bytes.n && depth.v[0] > 1; i++) {
        size_t before = s->n;
        plan.out_bytes = bytes.v[i];
        for (int j = 0; j < depth.n && s->n == before; j++) {
            plan.out_ring = depth.v[j];
            try_depths(s, plan);
        }
    }
}

/* A second copy of x where it comes more than once. */
static void try_rings(search *s, nmlp_strip_plan plan) {
    int64_t tiles = nmlp_ceil_div(s->rq->shape.h, (int64_t)s->rq->machine->partitions);
    bool once = plan.rows >= s->rq->shape.s && (plan.x_chunk >= tiles || plan.x == NMLP_X_AHEAD);
    choices copies = {.v = {1, 2}, .n = once ? 1 : 2};
    fixed(s->rq, "xcopies", &copies);
    for (int i = 0; i < copies.n; i++) {
        plan.x_copies = copies.v[i];
        try_late(s, plan);
    }
}

/* Column tiles that come alone: never all of them. */
static choices tail_choices(const nmlp_kernel_request *rq, int64_t tiles) {
    choices c = {.n = brief(rq) ? (int)nmlp_min(TAIL_MAX + 1, tiles) : 1};
    for (int i = 0; i < c.n; i++) c.v[i] = i;
    if (fixed(rq, "tail", &c)) c.v[0] = nmlp_min(c.v[0], tiles - 1);
    return c;
}

/* Column tiles per stored row: whole rows for the DMA engines, or shorter ones that are out sooner. */
static choices store_choices(const nmlp_kernel_request *rq, int64_t n, int64_t columns, int64_t tail) {
    int64_t tiles = nmlp_ceil_div(n, columns) - tail;
    choices c = {0};
    if (fixed(rq, "on", &c)) {
        c.v[0] = nmlp_min(c.v[0], tiles);
        return c;
    }
    add_choice(&c, out_tiles(rq, n - tail * columns, columns));
    for (int64_t t = 1; t <= (brief(rq) ? 4 : 2); t++)
        if (t != 3 || tiles % 3 == 0) add_choice(&c, nmlp_min(t, tiles));
    return c;
}

/* Stores wait until all weights have come: each has a copy of its own. */
static int64_t taper_out_copies(const search *s, const nmlp_strip_plan *plan) {
    int64_t n = s->op == NMLP_PLAN_MLP ? s->rq->shape.h : s->rq->shape.o, tiles = nmlp_ceil_div(n, plan->columns);
    return nmlp_tiling_get(s->rq->tiling, "ocopies", tiles > 1 ? nmlp_ceil_div(tiles - 1, plan->out_tiles) : 1);
}

static void try_runs(search *s, nmlp_strip_plan plan, const choices *stores) {
    choices bytes = {.v = {16384, 8192, 32768, 4096, 49152, 24576, 65536, 73728}, .n = brief(s->rq) ? 8 : 4};
    if (plan.taper > 0) bytes = (choices){.v = {16384, 24576, 32768, 49152, 65536, 73728}, .n = 6};
    if (fixed(s->rq, "wkb", &bytes)) bytes.v[0] *= 1024;
    size_t before = s->n;
    for (int i = 0; i < stores->n; i++) {
        if (!brief(s->rq) && s->n > before) return; /* shorter rows only where longer ones do not fit */
        plan.out_tiles = stores->v[i];
        if (plan.taper > 0) plan.out_copies = taper_out_copies(s, &plan);
        for (int j = 0; j < bytes.n; j++) {
            plan.ring_bytes = bytes.v[j];
            try_rings(s, plan);
        }
    }
}

/* Tile rows of the last block, where the last weights come in shrinking ones: all of them must be there at once. */
static choices taper_choices(const search *s, const nmlp_strip_plan *plan) {
    const nmlp_tiling *given = s->rq->tiling;
    bool ringed = nmlp_tiling_get(given, "tail", 0) > 0 || nmlp_tiling_get(given, "oring", 0) > 0 ||
                  nmlp_tiling_get(given, "okb", 0) > 0;
    int64_t held = plan->act_chunk * (int64_t)s->rq->machine->partitions;
    bool whole = plan->rows >= s->rq->shape.s && (s->op != NMLP_PLAN_MLP || held >= s->rq->shape.o);
    choices c = {.v = {1, 4, 8, 16}, .n = few_rows(s->rq) && !ringed ? (s->rq->fp8 ? 4 : 3) : 0};
    if (fixed(s->rq, "taper", &c)) c.n = c.v[0] > 0;
    if (!whole) c.n = 0;
    return c;
}

static void try_taper(search *s, nmlp_strip_plan plan, int64_t n) {
    int64_t tiles = nmlp_ceil_div(n, plan.columns) - (n > plan.columns);
    choices taper = taper_choices(s, &plan), stores = {0};
    if (fixed(s->rq, "on", &stores))
        stores.v[0] = nmlp_min(stores.v[0], tiles);
    else
        for (int64_t t = 2; t <= (plan.turn ? 8 : 4); t *= 2) add_choice(&stores, nmlp_min(t, tiles));
    for (int i = 0; i < taper.n; i++) {
        plan.tail = 0;
        plan.taper = taper.v[i];
        try_runs(s, plan, &stores);
    }
}

static void try_ends(search *s, nmlp_strip_plan plan, int64_t n) {
    try_taper(s, plan, n);
    if (nmlp_tiling_get(s->rq->tiling, "taper", 0) > 0) return;
    choices tail = tail_choices(s->rq, nmlp_ceil_div(n, plan.columns));
    for (int j = 0; j < tail.n; j++) {
        if (plan.turn == NMLP_TURN_BUT_TAIL && tail.v[j] == 0) continue;
        plan.tail = tail.v[j];
        choices stores = store_choices(s->rq, n, plan.columns, plan.tail);
        try_runs(s, plan, &stores);
    }
}

/* Weights of the last product stationary: where its rows are few and its sums complete, in tiles that fit. */
static choices turn_choices(const search *s, const nmlp_strip_plan *plan) {
    int64_t held = plan->act_chunk * (int64_t)s->rq->machine->partitions;
    bool may = s->op == NMLP_PLAN_MLP && few_rows(s->rq) && held >= s->rq->shape.o && plan->rows >= s->rq->shape.s &&
               plan->columns <= (int64_t)s->rq->machine->stationary_max;
    choices c = {.v = {NMLP_TURN_NONE, NMLP_TURN_ALL, NMLP_TURN_BUT_TAIL}, .n = may ? 3 : 1};
    if (fixed(s->rq, "turn", &c) && c.v[0] != NMLP_TURN_NONE && !may) c.n = 0;
    return c;
}

static void try_weights(search *s, nmlp_strip_plan plan, int64_t n) {
    choices columns = column_choices(s->rq, n);
    plan.out_copies = nmlp_tiling_get(s->rq->tiling, "ocopies", brief(s->rq) ? 2 : 1);
    for (int i = 0; i < columns.n; i++) {
        plan.columns = columns.v[i];
        choices turn = turn_choices(s, &plan);
        for (int j = 0; j < turn.n; j++) {
            plan.turn = turn.v[j];
            try_ends(s, plan, n);
        }
    }
}

/* Halves of x, one behind the other, where there is one strip. */
static bool may_come_ahead(const search *s, const nmlp_strip_plan *plan, int64_t tiles) {
    int64_t bank = (int64_t)s->rq->machine->psum_bank_bytes / 4;
    return plan->rows >= s->rq->shape.s && plan->rows <= bank && plan->x_chunk < tiles && 2 * plan->x_chunk >= tiles;
}

/* Only where every product that reads x is a first factor, whose sums can wait for the next chunk. */
static bool may_cut_x(const search *s) {
    nmlp_mlp_ranks ranks = nmlp_kernel_mlp_ranks(s->rq);
    if (s->rq->fuse.norm_e12 > 0) return false; /* the norm needs whole rows */
    if (s->rq->fp8) return false;               /* sums are complete when they leave PSUM, so that scales apply once */
    return s->op == NMLP_PLAN_XUV || (s->op == NMLP_PLAN_MLP && ranks.gate > 0 && ranks.up > 0);
}

/* Chunks of x are whole loads. */
static choices load_chunks(const search *s, int64_t load) {
    const nmlp_kernel_request *rq = s->rq;
    int64_t tiles = nmlp_ceil_div(rq->shape.h, (int64_t)rq->machine->partitions);
    choices all = chunk_choices(rq, "xc", rq->shape.h, may_cut_x(s)), whole = {0};
    for (int i = 0; i < all.n; i++)
        add_choice(&whole, all.v[i] < tiles ? nmlp_min(tiles, nmlp_ceil_div(all.v[i], load) * load) : all.v[i]);
    return whole;
}

static void try_input(search *s, nmlp_strip_plan plan, int64_t load, int64_t n) {
    int64_t tiles = nmlp_ceil_div(s->rq->shape.h, (int64_t)s->rq->machine->partitions);
    plan.x_load = nmlp_x_is_flipped(plan.x) ? nmlp_ceil_div(load, LOAD_TILES) * LOAD_TILES : 1;
    choices chunks = load_chunks(s, plan.x_load);
    for (int i = 0; i < chunks.n; i++) {
        plan.x_chunk = chunks.v[i];
        bool ahead = s->rq->fuse.norm_e12 == 0 && may_come_ahead(s, &plan, tiles);
        if (plan.x != NMLP_X_AHEAD || ahead) try_weights(s, plan, n);
    }
}

static void try_inputs(search *s, nmlp_strip_plan plan, int64_t n) {
    choices x = {.v = {NMLP_X_PE, NMLP_X_DMA, NMLP_X_AHEAD}, .n = brief(s->rq) ? 3 : 2};
    fixed(s->rq, "x", &x);
    for (int i = 0; i < x.n; i++) {
        choices load = {.v = {8, 16}, .n = 2};
        plan.x = x.v[i];
        fixed(s->rq, "xl", &load);
        for (int j = 0; j < (nmlp_x_is_flipped(plan.x) ? load.n : 1); j++) try_input(s, plan, load.v[j], n);
    }
}

static int by_estimate(const void *a, const void *b) {
    const scored *x = a, *y = b;
    if (x->total_ns != y->total_ns) return x->total_ns < y->total_ns ? -1 : 1;
    if (x->hbm_bytes != y->hbm_bytes) return x->hbm_bytes < y->hbm_bytes ? -1 : 1;
    return memcmp(&x->plan, &y->plan, sizeof x->plan); /* any order, but always the same */
}

static void enumerate(search *s) {
    const nmlp_kernel_shape *shape = &s->rq->shape;
    bool mlp = s->op == NMLP_PLAN_MLP;
    choices rows = row_choices(s->rq), act = {.v = {1}, .n = 1};
    if (mlp) act = chunk_choices(s->rq, "ac", shape->o, !s->rq->fp8);
    for (int i = 0; i < rows.n; i++) {
        for (int k = 0; k < act.n; k++) {
            nmlp_strip_plan plan = {.rows = nmlp_min(rows.v[i], shape->s), .act_chunk = act.v[k], .out_ring = 1};
            plan.shared = mlp && nmlp_kernel_mlp_ranks(s->rq).shared;
            try_inputs(s, plan, mlp ? shape->h : shape->o);
        }
    }
}

nmlp_status nmlp_strip_candidates(nmlp_strip_plan **out, size_t *n, size_t *n_tried, nmlp_plan_op op,
                                  const nmlp_kernel_request *rq, nmlp_err *err) {
    search s = {.op = op, .rq = rq, .err = err};
    *out = NULL;
    enumerate(&s);
    if (s.st == NMLP_OK && s.n == 0) {
        char shape[NMLP_KERNEL_SHAPE_TEXT_MAX];
        nmlp_kernel_shape_print(shape, rq);
        s.st = nmlp_fail(err, NMLP_E_LIMIT, "no tiling of %s %s fits the SBUF of %s (%lld bytes per partition)",
                         nmlp_plan_op_name(op), shape, rq->machine->name, (long long)rq->machine->sbuf_usable_bytes);
        if (rq->tiling && rq->tiling->n > 0)
            nmlp_fail_hint(err,
                           "the tiling leaves too little choice; x=4 needs one strip of rows and xc at least half "
                           "of H, turn an mlp of up to %d rows, cols up to that and all of I at once",
                           (int)rq->machine->stationary_max);
    }
    if (s.st == NMLP_OK) {
        qsort(s.list, s.n, sizeof *s.list, by_estimate);
        *out = nmlp_mem_new(s.n, sizeof **out, err);
        if (!*out) s.st = NMLP_E_NOMEM;
    }
    for (size_t i = 0; s.st == NMLP_OK && i < s.n; i++) (*out)[i] = s.list[i].plan;
    *n = s.n;
    if (n_tried) *n_tried = s.n_tried;
    nmlp_mem_free(s.list);
    return s.st;
}

nmlp_status nmlp_strip_plan_of(nmlp_strip_plan *plan, nmlp_plan_op op, const nmlp_kernel_request *rq, nmlp_err *err) {
    nmlp_strip_plan *list;
    size_t n;
    NMLP_RETURN_IF_FAILED(nmlp_strip_candidates(&list, &n, NULL, op, rq, err));
    *plan = list[0];
    nmlp_mem_free(list);
    return NMLP_OK;
}

nmlp_status nmlp_strip_plan_tiling(nmlp_tiling *tiling, const nmlp_strip_plan *p, nmlp_err *err) {
    const struct {
        const char *key;
        int64_t value;
    } entries[] = {
        {"rows", p->rows},
        {"x", p->x},
        {"xc", p->x_chunk},
        {"xl", p->x_load > 0 ? p->x_load : 1},
        {"ac", p->act_chunk},
        {"cols", p->columns},
        {"turn", p->turn},
        {"wkb", p->ring_bytes / 1024},
        {"ring", p->ring},
        {"on", p->out_tiles},
        {"tail", p->tail},
        {"taper", p->taper},
        {"xcopies", p->x_copies},
        {"oring", p->out_ring},
        {"okb", p->out_bytes > 0 ? p->out_bytes / 1024 : 1},
        {"ocopies", p->out_copies},
    };
    *tiling = (nmlp_tiling){0};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        NMLP_RETURN_IF_FAILED(nmlp_tiling_set(tiling, entries[i].key, entries[i].value, err));
    return p->shared ? nmlp_tiling_set(tiling, "shared", 1, err) : NMLP_OK;
}
