#include "compress/quantize/quant_sum.h"

#include "base/ints.h"
#include "compress/calibrate/gram.h"

nmlp_status nmlp_quant_summer_init(nmlp_quant_summer *s, const nmlp_quant_share *share, const char *isa,
                                   nmlp_pool *pool, int64_t widest, nmlp_arena *windows, nmlp_err *err) {
    *s = (nmlp_quant_summer){.share = share, .pool = pool, .windows = windows};
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select(&s->kernels, nmlp_cpu_get(), isa, err));
    for (int i = 0; i < 2 && nmlp_group_size(share->group) > 1; i++) {
        s->room[i] = nmlp_arena_new(windows, (size_t)(share->all->context * widest), sizeof(float), err);
        if (!s->room[i]) return NMLP_E_NOMEM;
    }
    return NMLP_OK;
}

nmlp_status nmlp_quant_sum_init(nmlp_quant_sum *sum, const nmlp_quant_summer *s, int64_t n, bool drift,
                                nmlp_arena *arena, nmlp_err *err) {
    size_t rows = (size_t)(s->share->all->context * n);
    *sum = (nmlp_quant_sum){.n = n};
    sum->second = nmlp_arena_new(arena, (size_t)(n * n), sizeof *sum->second, err);
    sum->x = nmlp_arena_new(s->windows, rows, sizeof *sum->x, err);
    if (!sum->second || !sum->x) return NMLP_E_NOMEM;
    if (!drift) return NMLP_OK;
    sum->drift = nmlp_arena_new(arena, (size_t)(n * n), sizeof *sum->drift, err);
    sum->d = nmlp_arena_new(s->windows, rows, sizeof *sum->d, err);
    return sum->drift && sum->d ? NMLP_OK : NMLP_E_NOMEM;
}

/* Rows of process `from`, its own ones there. One window at a time: memory does not grow with the processes. */
static nmlp_status rows_of(const nmlp_quant_sum *sum, const nmlp_quant_summer *s, int from, float *own, float *room,
                           float **rows, nmlp_err *err) {
    int64_t bytes = s->share->all->context * sum->n * (int64_t)sizeof *own;
    *rows = from == nmlp_group_rank(s->share->group) ? own : room;
    return nmlp_group_give(s->share->group, *rows, bytes, from, err);
}

nmlp_status nmlp_quant_sum_add(nmlp_quant_sum *sum, const nmlp_quant_summer *s, int64_t n_windows, nmlp_err *err) {
    const nmlp_process_group *g = s->share->group;
    int64_t tokens = s->share->all->context, n = sum->n;
    for (int k = 0; k < n_windows; k++) {
        float *x, *d;
        NMLP_RETURN_IF_FAILED(rows_of(sum, s, k, sum->x, s->room[0], &x, err));
        NMLP_RETURN_IF_FAILED(nmlp_gram_add_blocks(s->kernels, s->pool, g, sum->second, x, x, tokens, n, n, true, err));
        if (!sum->drift) continue;
        NMLP_RETURN_IF_FAILED(rows_of(sum, s, k, sum->d, s->room[1], &d, err));
        NMLP_RETURN_IF_FAILED(nmlp_gram_add_blocks(s->kernels, s->pool, g, sum->drift, d, x, tokens, n, n, false, err));
    }
    return NMLP_OK;
}

/* Other text differs from the calibration text by more than its length says: pairs of inputs count as if there were no
 * more than so many tokens for each input, so at most 4 fifths (docs/lab/quantisation.md). */
enum { TOKENS_PER_INPUT_MAX = 4 };

nmlp_status nmlp_quant_sum_finish(nmlp_quant_sum *sum, const nmlp_quant_summer *s, int64_t tokens, int owner,
                                  nmlp_err *err) {
    const nmlp_process_group *g = s->share->group;
    int64_t n = sum->n;
    double *c = sum->second, *drift = sum->drift;
    NMLP_RETURN_IF_FAILED(nmlp_gram_collect(s->kernels, s->pool, g, c, n, n, true, owner, err));
    if (drift) NMLP_RETURN_IF_FAILED(nmlp_gram_collect(s->kernels, s->pool, g, drift, n, n, false, owner, err));
    if (nmlp_group_rank(g) != owner) return NMLP_OK;
    for (int64_t i = 0; i < n * n; i++) c[i] /= (double)tokens;
    for (int64_t i = 0; drift && i < n * n; i++) drift[i] = drift[i] / (double)tokens - c[i];
    nmlp_gram_shrink(c, n, nmlp_min(tokens, TOKENS_PER_INPUT_MAX * n));
    return NMLP_OK;
}
