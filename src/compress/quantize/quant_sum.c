#include "compress/quantize/quant_sum.h"

#include <string.h>

#include "base/ints.h"
#include "compress/calibrate/gram.h"

nmlp_status nmlp_quant_summer_init(nmlp_quant_summer *s, const nmlp_quant_share *share, const char *isa,
                                   nmlp_pool *pool, nmlp_arena *windows, nmlp_err *err) {
    *s = (nmlp_quant_summer){.share = share, .pool = pool, .windows = windows};
    s->together = nmlp_max(1, NMLP_GRAM_TOKENS / share->all->context);
    return nmlp_kernels_select(&s->kernels, nmlp_cpu_get(), isa, err);
}

static nmlp_status new_rows(float **own, float **kept, const nmlp_quant_summer *s, int64_t n, nmlp_err *err) {
    size_t elems = (size_t)(s->share->all->context * n);
    *own = nmlp_arena_new(s->windows, elems, sizeof **own, err);
    *kept = nmlp_arena_new(s->windows, (size_t)s->together * elems, sizeof **kept, err);
    return *own && *kept ? NMLP_OK : NMLP_E_NOMEM;
}

nmlp_status nmlp_quant_sum_init(nmlp_quant_sum *sum, const nmlp_quant_summer *s, int64_t n, bool drift,
                                nmlp_arena *arena, nmlp_err *err) {
    *sum = (nmlp_quant_sum){.n = n};
    sum->second = nmlp_arena_new(arena, (size_t)(n * n), sizeof *sum->second, err);
    if (!sum->second) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(new_rows(&sum->x, &sum->kept[0], s, n, err));
    if (!drift) return NMLP_OK;
    sum->drift = nmlp_arena_new(arena, (size_t)(n * n), sizeof *sum->drift, err);
    if (!sum->drift) return NMLP_E_NOMEM;
    return new_rows(&sum->d, &sum->kept[1], s, n, err);
}

/* A window of process `from`, behind those that are kept. */
static nmlp_status keep(nmlp_quant_sum *sum, const nmlp_quant_summer *s, int from, nmlp_err *err) {
    const nmlp_process_group *g = s->share->group;
    int64_t elems = s->share->all->context * sum->n, bytes = elems * (int64_t)sizeof *sum->x;
    const float *own[] = {sum->x, sum->d};
    for (int i = 0; i < 2 && own[i]; i++) {
        float *to = sum->kept[i] + sum->n_kept * elems;
        if (from == nmlp_group_rank(g)) memcpy(to, own[i], (size_t)bytes);
        NMLP_RETURN_IF_FAILED(nmlp_group_give(g, to, bytes, from, err));
    }
    sum->n_kept++;
    return NMLP_OK;
}

static nmlp_status add_kept(nmlp_quant_sum *sum, const nmlp_quant_summer *s, nmlp_err *err) {
    const nmlp_process_group *g = s->share->group;
    int64_t tokens = sum->n_kept * s->share->all->context, n = sum->n;
    const float *x = sum->kept[0], *d = sum->kept[1];
    sum->n_kept = 0;
    NMLP_RETURN_IF_FAILED(nmlp_gram_add_blocks(s->kernels, s->pool, g, sum->second, x, x, tokens, n, n, true, err));
    if (!d) return NMLP_OK;
    return nmlp_gram_add_blocks(s->kernels, s->pool, g, sum->drift, d, x, tokens, n, n, false, err);
}

nmlp_status nmlp_quant_sum_add(nmlp_quant_sum *sum, const nmlp_quant_summer *s, int64_t n_windows, nmlp_err *err) {
    for (int from = 0; from < n_windows; from++) {
        NMLP_RETURN_IF_FAILED(keep(sum, s, from, err));
        if (sum->n_kept == s->together) NMLP_RETURN_IF_FAILED(add_kept(sum, s, err));
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
    if (sum->n_kept) NMLP_RETURN_IF_FAILED(add_kept(sum, s, err));
    NMLP_RETURN_IF_FAILED(nmlp_gram_collect(s->kernels, s->pool, g, c, n, n, true, owner, err));
    if (drift) NMLP_RETURN_IF_FAILED(nmlp_gram_collect(s->kernels, s->pool, g, drift, n, n, false, owner, err));
    if (nmlp_group_rank(g) != owner) return NMLP_OK;
    for (int64_t i = 0; i < n * n; i++) c[i] /= (double)tokens;
    for (int64_t i = 0; drift && i < n * n; i++) drift[i] = drift[i] / (double)tokens - c[i];
    nmlp_gram_shrink(c, n, nmlp_min(tokens, TOKENS_PER_INPUT_MAX * n));
    return NMLP_OK;
}
