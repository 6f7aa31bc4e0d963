/* Included by exec_f32.c and exec_f64.c. */
#ifndef NMLP_TRAIN_EXEC_BODY_H
#define NMLP_TRAIN_EXEC_BODY_H

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "train/exec.h"

enum {
    PANEL_COLS = 4096, /* of the right-hand operand at a time */
    PANEL_ROWS = 2048,
    LEFT_ELEMS = 8 << 20, /* numbers of the left-hand operand packed at a time */
    TILE_ROWS = 96,       /* of an output block: the unit of work; multiple of every set's block of A */
    TILE_COLS_MIN = 256,
    TILE_COLS_MAX = 1024,
    TILE_ELEMS = 256 << 10, /* of the right-hand operand: they stay in a core's cache while rows go by */
    ROW_GRAIN = 16,
    ELEM_GRAIN = 16384
};

static nmlp_train_real *thread_scratch(const nmlp_train_exec *e, int thread) {
    return e->scratch + thread * e->scratch_elems;
}

nmlp_status nmlp_train_exec_init(nmlp_train_exec *e, const char *isa, nmlp_pool *pool, int64_t t, int64_t d,
                                 nmlp_err *err) {
    *e =
        (nmlp_train_exec){.ops = nmlp_train_ops_select(isa), .products = nmlp_train_products_select(isa), .pool = pool};
    nmlp_arena_init(&e->arena);
    e->scratch_elems = e->ops->attend_scratch(e->products, t, d);
    e->scratch_elems = nmlp_ceil_div(e->scratch_elems, 64) * 64;
    e->packed =
        nmlp_arena_new(&e->arena, (size_t)(PANEL_COLS * PANEL_ROWS / e->products->per_real), sizeof *e->packed, err);
    e->scratch =
        nmlp_arena_new(&e->arena, (size_t)nmlp_pool_threads(pool) * (size_t)e->scratch_elems, sizeof *e->scratch, err);
    if (!e->packed || !e->scratch) return NMLP_E_NOMEM;
    if (!e->products->pack_a) return NMLP_OK;
    e->packed_a = nmlp_arena_new(&e->arena, (size_t)(LEFT_ELEMS / e->products->per_real), sizeof *e->packed_a, err);
    return e->packed_a ? NMLP_OK : NMLP_E_NOMEM;
}

void nmlp_train_exec_fini(nmlp_train_exec *e) { nmlp_arena_fini(&e->arena); }

/* ---- matrix products ---- */

struct panel {
    const nmlp_train_exec *e;
    const nmlp_train_matmul *g;
    nmlp_train_real *packed;
    int64_t col, n;
    int64_t row, k; /* of B */
    int64_t b_rows;
    int64_t tile_cols;
    int64_t top, m; /* rows of A */
};

static int64_t packed_elems(const struct panel *p) {
    const nmlp_train_products *products = p->e->products;
    return nmlp_ceil_div(p->n, products->strip) * products->strip * p->b_rows / products->per_real;
}

static struct panel panel_at(const nmlp_train_exec *e, const nmlp_train_matmul *g, int64_t col, int64_t row) {
    struct panel p = {.e = e, .g = g, .packed = e->packed, .col = col, .row = row};
    p.n = nmlp_min(PANEL_COLS, g->n - col);
    p.k = nmlp_min(PANEL_ROWS, g->k - row);
    p.b_rows = nmlp_ceil_div(p.k, e->products->k_step) * e->products->k_step;
    p.tile_cols = nmlp_min(TILE_COLS_MAX, TILE_ELEMS / p.b_rows / TILE_COLS_MIN * TILE_COLS_MIN);
    if (p.tile_cols < TILE_COLS_MIN) p.tile_cols = TILE_COLS_MIN;
    return p;
}

nmlp_status nmlp_train_exec_fix(nmlp_train_exec *e, const nmlp_train_real *b, bool transposed, int64_t k, int64_t n,
                                nmlp_err *err) {
    nmlp_train_matmul g = {.b = b, .b_transposed = transposed, .n = n, .k = k};
    int64_t elems = 0;
    if (e->products->per_real == 1) return NMLP_OK;
    for (int64_t col = 0; col < n; col += PANEL_COLS) {
        for (int64_t row = 0; row < k; row += PANEL_ROWS) {
            struct panel p = panel_at(e, &g, col, row);
            elems += packed_elems(&p);
        }
    }
    nmlp_train_fixed_operand *fixed = nmlp_arena_new(&e->arena, 1, sizeof *fixed, err);
    if (!fixed) return NMLP_E_NOMEM;
    *fixed = (nmlp_train_fixed_operand){.b = b, .transposed = transposed, .next = e->fixed};
    fixed->packed = nmlp_arena_new(&e->arena, (size_t)elems, sizeof *fixed->packed, err);
    if (!fixed->packed) return NMLP_E_NOMEM;
    e->fixed = fixed;
    return NMLP_OK;
}

static nmlp_train_fixed_operand *find_fixed(const nmlp_train_exec *e, const nmlp_train_matmul *g) {
    nmlp_train_fixed_operand *at = e->fixed;
    while (at && (at->b != g->b || at->transposed != g->b_transposed)) at = at->next;
    return at;
}

static void pack_strips(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct panel *p = ctx;
    const nmlp_train_matmul *g = p->g;
    (void)thread;
    int64_t ldb = g->b_transposed ? g->k : g->n;
    const nmlp_train_real *b = g->b_transposed ? g->b + p->col * ldb + p->row : g->b + p->row * ldb + p->col;
    p->e->products->pack_b(&(nmlp_train_b_packing){.packed = p->packed,
                                                   .b = b,
                                                   .ldb = ldb,
                                                   .transposed = g->b_transposed,
                                                   .k = p->k,
                                                   .n = p->n,
                                                   .b_rows = p->b_rows,
                                                   .strip_begin = begin,
                                                   .strip_end = end});
}

/* Element (row, col) of op(A). */
static const nmlp_train_real *left_at(const nmlp_train_matmul *g, int64_t row, int64_t col) {
    return g->a_transposed ? g->a + col * g->m + row : g->a + row * g->k + col;
}

static void pack_groups(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct panel *p = ctx;
    const nmlp_train_matmul *g = p->g;
    (void)thread;
    p->e->products->pack_a(&(nmlp_train_a_packing){.packed = p->e->packed_a,
                                                   .a = left_at(g, p->top, p->row),
                                                   .lda = g->a_transposed ? g->m : g->k,
                                                   .transposed = g->a_transposed,
                                                   .m = p->m,
                                                   .k = p->k,
                                                   .a_cols = p->b_rows,
                                                   .group_begin = begin,
                                                   .group_end = end});
}

static void multiply_tiles(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct panel *p = ctx;
    const nmlp_train_matmul *g = p->g;
    const nmlp_train_products *products = p->e->products;
    int64_t row_blocks = nmlp_ceil_div(p->m, TILE_ROWS);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t row = tile % row_blocks * TILE_ROWS;
        int64_t col = tile / row_blocks * p->tile_cols;
        const nmlp_train_real *packed_a =
            products->pack_a ? p->e->packed_a + row * p->b_rows / products->per_real : NULL;
        products->multiply(&(nmlp_train_product){.c = g->c + (p->top + row) * g->n + p->col + col,
                                                 .ldc = g->n,
                                                 .a = left_at(g, p->top + row, p->row),
                                                 .lda = g->a_transposed ? g->m : g->k,
                                                 .a_transposed = g->a_transposed,
                                                 .b = p->packed + col * p->b_rows / products->per_real,
                                                 .b_rows = p->b_rows,
                                                 .m = nmlp_min(TILE_ROWS, p->m - row),
                                                 .n = nmlp_min(p->tile_cols, p->n - col),
                                                 .k = p->k,
                                                 .accumulate = g->accumulate || p->row > 0,
                                                 .packed_a = packed_a,
                                                 .scratch = thread_scratch(p->e, thread)});
    }
}

/* All rows of A against a packed panel of B. */
static void multiply_panel(struct panel *p) {
    const nmlp_train_exec *e = p->e;
    const nmlp_train_matmul *g = p->g;
    int64_t most = e->products->pack_a ? LEFT_ELEMS / p->b_rows / TILE_ROWS * TILE_ROWS : g->m;
    for (p->top = 0; p->top < g->m; p->top += most) {
        p->m = nmlp_min(most, g->m - p->top);
        if (e->products->pack_a) nmlp_pool_for(e->pool, nmlp_ceil_div(p->m, e->products->group), 1, pack_groups, p);
        nmlp_pool_for(e->pool, nmlp_ceil_div(p->m, TILE_ROWS) * nmlp_ceil_div(p->n, p->tile_cols), 1, multiply_tiles,
                      p);
    }
}

void nmlp_train_exec_matmul(nmlp_train_exec *e, const nmlp_train_matmul *g) {
    nmlp_train_fixed_operand *fixed = find_fixed(e, g);
    int64_t at = 0;
    for (int64_t col = 0; col < g->n; col += PANEL_COLS) {
        for (int64_t row = 0; row < g->k; row += PANEL_ROWS) {
            struct panel p = panel_at(e, g, col, row);
            if (fixed) p.packed = fixed->packed + at;
            at += packed_elems(&p);
            if (!fixed || !fixed->ready)
                nmlp_pool_for(e->pool, nmlp_ceil_div(p.n, e->products->strip), 4, pack_strips, &p);
            multiply_panel(&p);
        }
    }
    if (fixed) fixed->ready = true;
}

void nmlp_train_linear_forward(nmlp_train_exec *e, nmlp_train_real *y, const nmlp_train_real *x,
                               const nmlp_train_real *w, int64_t s, int64_t n, int64_t k) {
    nmlp_train_exec_matmul(e,
                           &(nmlp_train_matmul){.c = y, .a = x, .b = w, .b_transposed = true, .m = s, .n = n, .k = k});
}

void nmlp_train_linear_backward_input(nmlp_train_exec *e, nmlp_train_real *dx, const nmlp_train_real *dy,
                                      const nmlp_train_real *w, int64_t s, int64_t n, int64_t k, bool accumulate) {
    nmlp_train_exec_matmul(
        e, &(nmlp_train_matmul){.c = dx, .a = dy, .b = w, .accumulate = accumulate, .m = s, .n = k, .k = n});
}

void nmlp_train_linear_backward_weight(nmlp_train_exec *e, nmlp_train_real *dw, const nmlp_train_real *dy,
                                       const nmlp_train_real *x, int64_t s, int64_t n, int64_t k) {
    nmlp_train_exec_matmul(
        e, &(nmlp_train_matmul){
               .c = dw, .a = dy, .b = x, .a_transposed = true, .accumulate = true, .m = n, .n = k, .k = s});
}

/* ---- rows and elements ---- */

struct span {
    const nmlp_train_ops *ops;
    nmlp_train_real *out, *out2;
    const nmlp_train_real *x, *dy, *w;
    const int32_t *ids;
    double eps;
    int64_t t, heads, h;
    nmlp_train_real sign;
    bool accumulate;
};

static void bias_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct span *p = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) p->ops->add(p->out + i * p->h, p->w, p->h);
}

void nmlp_train_bias_forward(nmlp_train_exec *e, nmlp_train_real *y, const nmlp_train_real *bias, int64_t s,
                             int64_t n) {
    struct span p = {.ops = e->ops, .out = y, .w = bias, .h = n};
    nmlp_pool_for(e->pool, s, ROW_GRAIN, bias_rows, &p);
}

void nmlp_train_bias_backward(nmlp_train_exec *e, nmlp_train_real *db, const nmlp_train_real *dy, int64_t s,
                              int64_t n) {
    for (int64_t i = 0; i < s; i++) e->ops->add(db, dy + i * n, n);
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct span *p = ctx;
    (void)thread;
    p->ops->norm_forward(p->out + begin * p->h, p->x + begin * p->h, p->w, p->eps, end - begin, p->h);
}

void nmlp_train_norm_forward(nmlp_train_exec *e, nmlp_train_real *y, const nmlp_train_real *x, const nmlp_train_real *w,
                             double eps, int64_t s, int64_t h) {
    struct span p = {.ops = e->ops, .out = y, .x = x, .w = w, .eps = eps, .h = h};
    nmlp_pool_for(e->pool, s, ROW_GRAIN, norm_rows, &p);
}

static void norm_back_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct span *p = ctx;
    (void)thread;
    int64_t at = begin * p->h;
    p->ops->norm_backward(p->out + at, p->dy + at, p->x + at, p->w, p->eps, end - begin, p->h, p->accumulate);
}

void nmlp_train_norm_backward(nmlp_train_exec *e, nmlp_train_real *dx, const nmlp_train_real *dy,
                              const nmlp_train_real *x, const nmlp_train_real *w, double eps, int64_t s, int64_t h,
                              bool accumulate) {
    struct span p = {.ops = e->ops, .out = dx, .dy = dy, .x = x, .w = w, .eps = eps, .h = h, .accumulate = accumulate};
    nmlp_pool_for(e->pool, s, ROW_GRAIN, norm_back_rows, &p);
}

void nmlp_train_norm_backward_weight(nmlp_train_exec *e, nmlp_train_real *dw, const nmlp_train_real *dy,
                                     const nmlp_train_real *x, double eps, int64_t s, int64_t h) {
    e->ops->norm_backward_weight(dw, dy, x, eps, s, h);
}

static void rope_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct span *p = ctx;
    (void)thread;
    p->ops->rope(p->out, p->w, begin, end - begin, p->t, p->heads, p->h, p->sign);
}

void nmlp_train_rope_rotate(nmlp_train_exec *e, nmlp_train_real *x, const nmlp_train_real *table, int64_t s, int64_t t,
                            int64_t heads, int64_t d, int sign) {
    struct span p = {
        .ops = e->ops, .out = x, .w = table, .t = t, .heads = heads, .h = d, .sign = (nmlp_train_real)sign};
    nmlp_pool_for(e->pool, s, ROW_GRAIN, rope_rows, &p);
}

static void swiglu_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct span *p = ctx;
    (void)thread;
    p->ops->swiglu_forward(p->out + begin, p->x + begin, p->w + begin, end - begin);
}

void nmlp_train_swiglu_forward(nmlp_train_exec *e, nmlp_train_real *act, const nmlp_train_real *gate,
                               const nmlp_train_real *up, int64_t n) {
    struct span p = {.ops = e->ops, .out = act, .x = gate, .w = up};
    nmlp_pool_for(e->pool, n, ELEM_GRAIN, swiglu_elems, &p);
}

static void swiglu_back_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct span *p = ctx;
    (void)thread;
    p->ops->swiglu_backward(p->out + begin, p->out2 + begin, p->dy + begin, end - begin);
}

void nmlp_train_swiglu_backward(nmlp_train_exec *e, nmlp_train_real *gate, nmlp_train_real *up,
                                const nmlp_train_real *d_act, int64_t n) {
    struct span p = {.ops = e->ops, .out = gate, .out2 = up, .dy = d_act};
    nmlp_pool_for(e->pool, n, ELEM_GRAIN, swiglu_back_elems, &p);
}

static void add_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct span *p = ctx;
    (void)thread;
    p->ops->add(p->out + begin, p->x + begin, end - begin);
}

void nmlp_train_rows_add(nmlp_train_exec *e, nmlp_train_real *x, const nmlp_train_real *y, int64_t n) {
    struct span p = {.ops = e->ops, .out = x, .x = y};
    nmlp_pool_for(e->pool, n, ELEM_GRAIN, add_elems, &p);
}

/* ---- attention: one sequence and one kv head is a unit of work, its query heads in order ---- */

struct attention {
    const nmlp_train_exec *e;
    const nmlp_train_heads *h;
    bool backward;
};

static void attend_units(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct attention *p = ctx;
    const nmlp_train_heads *h = p->h;
    int64_t group = h->n_heads / h->n_kv_heads;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t sequence = unit / h->n_kv_heads;
        int64_t kv = unit % h->n_kv_heads;
        for (int64_t head = kv * group; head < (kv + 1) * group; head++) {
            nmlp_train_attention a = {.products = p->e->products,
                                      .q_stride = h->n_heads * h->d,
                                      .kv_stride = h->n_kv_heads * h->d,
                                      .t = h->t,
                                      .d = h->d};
            int64_t q_at = sequence * h->t * a.q_stride + head * h->d;
            int64_t kv_at = sequence * h->t * a.kv_stride + kv * h->d;
            a.scale = (nmlp_train_real)(1 / sqrt((double)h->d));
            a.out = h->out + q_at;
            a.q = h->q + q_at;
            a.k = h->k + kv_at;
            a.v = h->v + kv_at;
            a.lse = h->lse + (sequence * h->n_heads + head) * h->t;
            a.scratch = thread_scratch(p->e, thread);
            if (!p->backward) {
                p->e->ops->attend_forward(&a);
                continue;
            }
            a.d_out = h->d_out + q_at;
            a.dq = h->dq + q_at;
            a.dk = h->dk + kv_at;
            a.dv = h->dv + kv_at;
            p->e->ops->attend_backward(&a);
        }
    }
}

void nmlp_train_attention_forward(nmlp_train_exec *e, const nmlp_train_heads *h) {
    struct attention p = {.e = e, .h = h};
    nmlp_pool_for(e->pool, h->s / h->t * h->n_kv_heads, 1, attend_units, &p);
}

void nmlp_train_attention_backward(nmlp_train_exec *e, const nmlp_train_heads *h) {
    struct attention p = {.e = e, .h = h, .backward = true};
    size_t bytes = (size_t)(h->s * h->n_kv_heads * h->d) * sizeof *h->dk;
    memset(h->dk, 0, bytes);
    memset(h->dv, 0, bytes);
    nmlp_pool_for(e->pool, h->s / h->t * h->n_kv_heads, 1, attend_units, &p);
}

struct newest {
    const nmlp_train_exec *e;
    const nmlp_train_newest *a;
};

static void attend_newest(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct newest *p = ctx;
    const nmlp_train_newest *a = p->a;
    int64_t group = a->n_heads / a->n_kv_heads;
    int64_t kv_dim = a->n_kv_heads * a->d;
    for (int64_t b = begin; b < end; b++) {
        for (int64_t head = 0; head < a->n_heads; head++) {
            int64_t at = (b * a->n_heads + head) * a->d;
            int64_t kv_at = b * a->room * kv_dim + head / group * a->d;
            p->e->ops->attend_next(a->out + at, a->q + at, a->k + kv_at, a->v + kv_at, kv_dim, a->n, a->d,
                                   thread_scratch(p->e, thread));
        }
    }
}

void nmlp_train_attention_next(nmlp_train_exec *e, const nmlp_train_newest *newest) {
    struct newest p = {.e = e, .a = newest};
    nmlp_pool_for(e->pool, newest->b, 1, attend_newest, &p);
}

/* ---- embedding and losses ---- */

void nmlp_train_embed_forward(nmlp_train_exec *e, nmlp_train_real *rows, const nmlp_train_real *table,
                              const int32_t *ids, int64_t s, int64_t h) {
    (void)e;
    for (int64_t i = 0; i < s; i++) memcpy(rows + i * h, table + ids[i] * h, (size_t)h * sizeof *rows);
}

void nmlp_train_embed_backward(nmlp_train_exec *e, nmlp_train_real *d_table, const nmlp_train_real *d_rows,
                               const int32_t *ids, int64_t s, int64_t h) {
    for (int64_t i = 0; i < s; i++) e->ops->add(d_table + ids[i] * h, d_rows + i * h, h);
}

struct losses {
    const nmlp_train_ops *ops;
    const nmlp_train_losses *l;
};

static void loss_some(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct losses *p = ctx;
    const nmlp_train_losses *l = p->l;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        nmlp_train_loss_row row = {.logits = l->logits + i * l->v,
                                   .teacher = l->teacher ? l->teacher + i * l->v : NULL,
                                   .target = l->targets[i],
                                   .v = l->v,
                                   .scale = l->scale};
        p->ops->loss_row(&row);
        l->loss[i] = row.loss;
        l->nll[i] = row.nll;
    }
}

struct matching {
    const nmlp_train_ops *ops;
    const nmlp_train_matching *m;
};

static void match_some(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct matching *p = ctx;
    const nmlp_train_matching *m = p->m;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        m->loss[i] = p->ops->match_row(m->dx + i * m->h, m->x + i * m->h, m->y + i * m->h, m->h, m->scale);
}

void nmlp_train_match_rows(nmlp_train_exec *e, const nmlp_train_matching *matching) {
    struct matching p = {.ops = e->ops, .m = matching};
    nmlp_pool_for(e->pool, matching->s, ROW_GRAIN, match_some, &p);
}

void nmlp_train_loss_rows(nmlp_train_exec *e, const nmlp_train_losses *losses) {
    struct losses p = {.ops = e->ops, .l = losses};
    nmlp_pool_for(e->pool, losses->s, 4, loss_some, &p);
}

#endif
