#include "compress/calibrate/gram.h"

#include <math.h>
#include <string.h>

#include "base/ints.h"
#include "base/mem.h"
#include "linalg/linalg.h"
#include "tensor/dtype.h"

enum { ROWS_PER_TASK = 64, ELEMS_PER_TASK = 1 << 16 };

void nmlp_token_weights(float *weights, const float *rows, int64_t s, int64_t h) {
    for (int64_t t = 0; t < s; t++) {
        double norm2 = 0;
        for (int64_t i = 0; i < h; i++) norm2 += (double)rows[t * h + i] * (double)rows[t * h + i];
        weights[t] = norm2 > 0 ? (float)(1 / sqrt(norm2)) : 0;
    }
}

void nmlp_token_weights_scale(float *weights, int64_t s) {
    double sum = 0;
    for (int64_t t = 0; t < s; t++) sum += (double)weights[t] * (double)weights[t];
    double scale = sum > 0 ? sqrt((double)s / sum) : 0;
    for (int64_t t = 0; t < s; t++) weights[t] = sum > 0 ? (float)(scale * (double)weights[t]) : 1.0f;
}

struct norms {
    const float *rows;
    int64_t h;
    double *norm2; /* [S] */
    int64_t first; /* of the rows among all tokens */
};

static void square_norms(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct norms *n = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        double sum[4] = {0};
        const float *row = n->rows + t * n->h;
        int64_t i = 0;
        for (; i + 4 <= n->h; i += 4)
            for (int k = 0; k < 4; k++) sum[k] += (double)row[i + k] * (double)row[i + k];
        for (; i < n->h; i++) sum[0] += (double)row[i] * (double)row[i];
        n->norm2[t] = sum[0] + sum[1] + (sum[2] + sum[3]);
    }
}

/* Norms of all tokens, of which this process has s from `first` on. */
static nmlp_status all_norms(nmlp_pool *pool, const nmlp_window_share *of, struct norms *own, int64_t s,
                             nmlp_err *err) {
    nmlp_pool_for(pool, s, ROWS_PER_TASK, square_norms, own);
    return of ? nmlp_window_share_gather(of, own->norm2 - own->first, sizeof *own->norm2, false, err) : NMLP_OK;
}

/* One round over all tokens; own rows that weigh too much are scaled, and those of others known to be. */
static int64_t cap_round(struct norms *own, const double *norm2, int64_t n_all, float *rows, int64_t s, double share) {
    double total = 0;
    int64_t n_capped = 0;
    for (int64_t t = 0; t < n_all; t++) total += norm2[t];
    for (int64_t t = 0; t < n_all; t++) {
        if (norm2[t] <= 1.01 * share * total) continue;
        n_capped++;
        int64_t mine = t - own->first;
        if (mine < 0 || mine >= s) continue;
        float scale = (float)sqrt(share * total / norm2[t]);
        for (int64_t i = 0; i < own->h; i++) rows[mine * own->h + i] *= scale;
        square_norms(own, mine, mine + 1, 0);
    }
    return n_capped;
}

/* Capping shrinks the sum itself, so the limit is found again until nothing moves: at most a few rounds, as every round
 * takes the excess of the same few tokens away. */
nmlp_status nmlp_gram_cap_tokens(nmlp_pool *pool, const nmlp_window_share *of, float *rows, int64_t s, int64_t h,
                                 double share, int64_t *n_capped, nmlp_err *err) {
    int64_t n_all = of ? of->calib_tokens : s, moved = 1;
    nmlp_status st = NMLP_OK;
    *n_capped = 0;
    if (!(share > 0) || share * (double)n_all <= 1) return NMLP_OK; /* so few tokens that every one is above it */
    double *norm2 = nmlp_mem_new((size_t)n_all, sizeof *norm2, err);
    if (!norm2) return NMLP_E_NOMEM;
    struct norms own = {.rows = rows, .h = h};
    if (of) own.first = nmlp_window_share_first(of, false, nmlp_group_rank(of->group));
    own.norm2 = norm2 + own.first;
    NMLP_TRY(all_norms(pool, of, &own, s, err));
    for (int round = 0; round < 8 && moved > 0; round++) {
        moved = cap_round(&own, norm2, n_all, rows, s, share);
        if (round == 0) *n_capped = moved;
        if (of && moved > 0) NMLP_TRY(nmlp_window_share_gather(of, norm2, sizeof *norm2, false, err));
    }
out:
    nmlp_mem_free(norm2);
    return st;
}

/* ---- X^T X and Y^T X ---- */

enum { TOKENS = NMLP_GRAM_TOKENS, ROWS = 512, COLUMNS = ROWS, SIDE = 64, ADDED_ROWS_PER_TASK = 32 };

/* Tokens become columns: Y as f32 rows of a matmul, X as its bf16 weight. */
struct transposing {
    const float *from; /* [tokens, n] */
    int64_t tokens, n;
    float *wide;      /* [n, tokens], or NULL */
    uint16_t *narrow; /* the same in bf16, or NULL */
};

static void transpose_square(const struct transposing *t, int64_t first, int64_t n_tokens, int64_t column, int64_t n) {
    float square[SIDE * (SIDE + 1)]; /* rows of a power of two would share the lines of L1 */
    for (int64_t i = 0; i < n_tokens; i++)
        memcpy(square + i * (SIDE + 1), t->from + (first + i) * t->n + column, (size_t)n * sizeof *square);
    for (int64_t j = 0; j < n; j++) {
        int64_t to = (column + j) * t->tokens + first;
        for (int64_t i = 0; i < n_tokens; i++) {
            float value = square[i * (SIDE + 1) + j];
            if (t->wide) t->wide[to + i] = value;
            if (t->narrow) t->narrow[to + i] = nmlp_f32_to_bf16(value);
        }
    }
}

/* begin and end: squares side by side. */
static void transpose_columns(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct transposing *t = ctx;
    (void)thread;
    for (int64_t task = begin; task < end; task++) {
        int64_t column = task * SIDE, n = nmlp_min(SIDE, t->n - column);
        for (int64_t first = 0; first < t->tokens; first += SIDE)
            transpose_square(t, first, nmlp_min(SIDE, t->tokens - first), column, n);
    }
}

struct adding {
    double *c; /* rows c_stride apart */
    int64_t c_stride, n;
    const float *part; /* [rows, n] */
};

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct adding *a = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < a->n; j++) a->c[i * a->c_stride + j] += (double)a->part[i * a->n + j];
}

struct chunk {
    const nmlp_kernels *kernels;
    nmlp_pool *pool;
    int64_t m, n;
    bool symmetric; /* only what lies on and below the diagonal */
    nmlp_block_part blocks;
    float *yt;    /* [m, tokens] */
    uint16_t *xt; /* [n, tokens] */
    float *part;  /* [ROWS, COLUMNS] */
};

/* Whether the block at row i and column j is to be done here. */
static bool is_mine(const struct chunk *k, int64_t i, int64_t j) {
    return nmlp_block_is_mine(k->blocks, i / ROWS, j / COLUMNS, (k->n + COLUMNS - 1) / COLUMNS, k->symmetric);
}

static bool has_mine(const struct chunk *k, int64_t j) {
    bool some = false;
    for (int64_t i = 0; i < k->m; i += ROWS) some |= is_mine(k, i, j);
    return some;
}

/* Some columns of C: their rows of xt are the weight of a matmul. */
static nmlp_status add_columns(const struct chunk *k, double *c, int64_t first, int64_t tokens, nmlp_err *err) {
    nmlp_linear *linear = NULL;
    void *workspace = NULL;
    nmlp_status st = NMLP_OK;
    int64_t n_columns = nmlp_min(COLUMNS, k->n - first);
    nmlp_view no_bias = {0}, weight = nmlp_view_2d(k->xt + first * tokens, NMLP_DTYPE_BF16, n_columns, tokens);
    NMLP_TRY(nmlp_linear_create(&linear, k->kernels, &weight, &no_bias, k->pool, err));
    workspace = nmlp_mem_new(nmlp_linear_workspace_bytes(linear, ROWS, nmlp_pool_threads(k->pool)), 1, err);
    if (!workspace) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    for (int64_t i = k->symmetric ? first : 0; i < k->m; i += ROWS) {
        if (!is_mine(k, i, first)) continue;
        int64_t n_rows = nmlp_min(ROWS, k->m - i);
        struct adding adding = {.c = c + i * k->n + first, .c_stride = k->n, .n = n_columns, .part = k->part};
        nmlp_linear_run(linear, k->part, k->yt + i * tokens, n_rows, workspace, k->pool);
        nmlp_pool_for(k->pool, n_rows, ADDED_ROWS_PER_TASK, add_rows, &adding);
    }
out:
    nmlp_mem_free(workspace);
    nmlp_linear_destroy(linear);
    return st;
}

static nmlp_status add_chunk(const struct chunk *k, double *c, const float *y, const float *x, int64_t tokens,
                             nmlp_err *err) {
    struct transposing columns = {.from = x, .tokens = tokens, .n = k->n, .narrow = k->xt};
    struct transposing rows = {.from = y, .tokens = tokens, .n = k->m, .wide = k->yt};
    nmlp_pool_for(k->pool, (k->n + SIDE - 1) / SIDE, 1, transpose_columns, &columns);
    nmlp_pool_for(k->pool, (k->m + SIDE - 1) / SIDE, 1, transpose_columns, &rows);
    for (int64_t j = 0; j < k->n; j += COLUMNS)
        if (has_mine(k, j)) NMLP_RETURN_IF_FAILED(add_columns(k, c, j, tokens, err));
    return NMLP_OK;
}

static nmlp_status add_rounded(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *y, const float *x,
                               int64_t s, int64_t m, int64_t n, bool symmetric, nmlp_block_part blocks, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct chunk k = {.kernels = kernels,
                      .pool = pool,
                      .m = m,
                      .n = n,
                      .symmetric = symmetric,
                      .blocks = blocks,
                      .yt = nmlp_mem_new_raw((size_t)(m * nmlp_min(s, TOKENS)), sizeof *k.yt, err),
                      .xt = nmlp_mem_new_raw((size_t)(n * nmlp_min(s, TOKENS)), sizeof *k.xt, err),
                      .part = nmlp_mem_new((size_t)ROWS * COLUMNS, sizeof *k.part, err)};
    if (!k.yt || !k.xt || !k.part) st = NMLP_E_NOMEM;
    for (int64_t t = 0; st == NMLP_OK && t < s; t += TOKENS)
        st = add_chunk(&k, c, y + t * m, x + t * n, nmlp_min(TOKENS, s - t), err);
    nmlp_mem_free(k.yt);
    nmlp_mem_free(k.xt);
    nmlp_mem_free(k.part);
    return st;
}

nmlp_status nmlp_gram_add_blocks(const nmlp_kernels *kernels, nmlp_pool *pool, const nmlp_process_group *group,
                                 double *c, const float *y, const float *x, int64_t s, int64_t m, int64_t n,
                                 bool symmetric, nmlp_err *err) {
    nmlp_block_part mine = {.index = nmlp_group_rank(group), .count = nmlp_group_size(group)};
    if (nmlp_kernels_rounds_to_bf16(kernels)) return add_rounded(kernels, pool, c, y, x, s, m, n, symmetric, mine, err);
    return nmlp_linalg_blocks_add(pool, c, y, x, s, m, n, symmetric, mine, err);
}

nmlp_status nmlp_gram_add(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s, int64_t n,
                          nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_gram_add_blocks(kernels, pool, NULL, c, x, x, s, n, n, true, err));
    nmlp_linalg_mirror(pool, c, n);
    return NMLP_OK;
}

nmlp_status nmlp_gram_add_cross(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *y, const float *x,
                                int64_t s, int64_t m, int64_t n, nmlp_err *err) {
    return nmlp_gram_add_blocks(kernels, pool, NULL, c, y, x, s, m, n, false, err);
}

/* ---- blocks of several processes ---- */

struct blocks {
    double *c; /* [m,n] */
    int64_t m, n, side;
    bool symmetric;
};

/* Between C and its blocks of one process, side^2 values each, one behind the other; returns how many there are. */
static int64_t move_blocks(const struct blocks *b, nmlp_block_part part, double *packed, bool pack) {
    int64_t columns = (b->n + b->side - 1) / b->side, n_blocks = 0;
    for (int64_t i = 0; i < b->m; i += b->side) {
        for (int64_t j = 0; j < b->n; j += b->side) {
            if (!nmlp_block_is_mine(part, i / b->side, j / b->side, columns, b->symmetric)) continue;
            double *block = packed ? packed + n_blocks * b->side * b->side : NULL;
            size_t bytes = (size_t)nmlp_min(b->side, b->n - j) * sizeof *block;
            for (int64_t r = 0; block && r < nmlp_min(b->side, b->m - i); r++) {
                double *whole = b->c + (i + r) * b->n + j;
                memcpy(pack ? block + r * b->side : whole, pack ? whole : block + r * b->side, bytes);
            }
            n_blocks++;
        }
    }
    return n_blocks;
}

nmlp_status nmlp_gram_collect(const nmlp_kernels *kernels, nmlp_pool *pool, const nmlp_process_group *group, double *c,
                              int64_t m, int64_t n, bool symmetric, int owner, nmlp_err *err) {
    int rank = nmlp_group_rank(group), size = nmlp_group_size(group);
    struct blocks b = {.c = c, .m = m, .n = n, .symmetric = symmetric};
    nmlp_status st = NMLP_OK;
    b.side = nmlp_kernels_rounds_to_bf16(kernels) ? ROWS : NMLP_LINALG_BLOCK;
    if (size > 1) {
        int64_t most = move_blocks(&b, (nmlp_block_part){.index = 0, .count = size}, NULL, true) * b.side * b.side;
        double *packed = nmlp_mem_new((size_t)most, sizeof *packed, err);
        double *all = rank == owner ? nmlp_mem_new((size_t)(most * size), sizeof *all, err) : NULL;
        st = packed && (all || rank != owner) ? NMLP_OK : NMLP_E_NOMEM;
        if (st == NMLP_OK) {
            (void)move_blocks(&b, (nmlp_block_part){.index = rank, .count = size}, packed, true);
            st = nmlp_group_collect(group, all, packed, most * (int64_t)sizeof *packed, owner, err);
        }
        for (int k = 0; k < size && st == NMLP_OK && all; k++)
            (void)move_blocks(&b, (nmlp_block_part){.index = k, .count = size}, all + k * most, false);
        nmlp_mem_free(packed);
        nmlp_mem_free(all);
    }
    if (st == NMLP_OK && symmetric && rank == owner) nmlp_linalg_mirror(pool, c, n);
    return st;
}

/* ---- means and shrinking ---- */

struct division {
    double *c;
    double by;
};

static void divide_elems(void *ctx, int64_t begin, int64_t end, int thread) {
    const struct division *d = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) d->c[i] /= d->by;
}

nmlp_status nmlp_gram_mean(const nmlp_kernels *kernels, nmlp_pool *pool, double *c, const float *x, int64_t s,
                           int64_t n, nmlp_err *err) {
    memset(c, 0, (size_t)(n * n) * sizeof *c);
    NMLP_RETURN_IF_FAILED(nmlp_gram_add(kernels, pool, c, x, s, n, err));
    struct division division = {.c = c, .by = (double)s};
    nmlp_pool_for(pool, n * n, ELEMS_PER_TASK, divide_elems, &division);
    return NMLP_OK;
}

nmlp_status nmlp_gram_mean_shared(const nmlp_kernels *kernels, nmlp_pool *pool, const nmlp_window_share *share,
                                  double *c, const float *rows, int64_t n, int owner, nmlp_err *err) {
    if (nmlp_group_size(share->group) == 1) return nmlp_gram_mean(kernels, pool, c, rows, share->calib_tokens, n, err);
    nmlp_status st = NMLP_OK;
    float *room = nmlp_mem_new((size_t)(TOKENS * n), sizeof *room, err);
    if (!room) return NMLP_E_NOMEM;
    memset(c, 0, (size_t)(n * n) * sizeof *c);
    for (int64_t t = 0; t < share->calib_tokens; t += TOKENS) {
        const float *some;
        int64_t s = nmlp_min(TOKENS, share->calib_tokens - t);
        NMLP_TRY(nmlp_window_share_rows(share, rows, n, t, s, room, &some, err));
        NMLP_TRY(nmlp_gram_add_blocks(kernels, pool, share->group, c, some, some, s, n, n, true, err));
    }
    NMLP_TRY(nmlp_gram_collect(kernels, pool, share->group, c, n, n, true, owner, err));
    struct division division = {.c = c, .by = (double)share->calib_tokens};
    if (nmlp_group_rank(share->group) == owner) nmlp_pool_for(pool, n * n, ELEMS_PER_TASK, divide_elems, &division);
out:
    nmlp_mem_free(room);
    return st;
}

void nmlp_gram_shrink(double *c, int64_t n, int64_t s) {
    double a = (double)s / (double)(s + n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            if (i != j) c[i * n + j] *= a;
}

nmlp_status nmlp_gram_shrink_output(nmlp_pool *pool, double *k, const double *w, const double *c, int64_t m, int64_t n,
                                    int64_t s, bool narrow, nmlp_err *err) {
    double a = (double)s / (double)(s + n);
    nmlp_status st = NMLP_E_NOMEM;
    double *prior = nmlp_mem_new((size_t)(m * m), sizeof *prior, err);
    double *root = nmlp_mem_new((size_t)n, sizeof *root, err);
    if (prior && root) {
        for (int64_t j = 0; j < n; j++) root[j] = sqrt(c[j]);
        st = nmlp_linalg_weighted_rows(pool, m, n, w, root, narrow, prior, err);
        for (int64_t i = 0; st == NMLP_OK && i < m * m; i++) k[i] = a * k[i] + (1 - a) * prior[i];
    }
    nmlp_mem_free(prior);
    nmlp_mem_free(root);
    return st;
}
