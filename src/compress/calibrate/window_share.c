#include "compress/calibrate/window_share.h"

#include <string.h>

#include "base/ints.h"
#include "base/mem.h"

static int64_t n_windows(const nmlp_window_share *s, bool heldout) {
    return heldout ? s->all->n_heldout : s->all->n_calib;
}

int64_t nmlp_window_share_first(const nmlp_window_share *s, bool heldout, int rank) {
    return nmlp_group_share(s->group, n_windows(s, heldout), rank) * s->all->context;
}

/* Copies this process's windows of one kind; returns how many. */
static int64_t take_windows(const nmlp_window_share *s, bool heldout, int32_t *ids) {
    int rank = nmlp_group_rank(s->group);
    int64_t first = nmlp_window_share_first(s, heldout, rank),
            n = nmlp_window_share_first(s, heldout, rank + 1) - first;
    const int32_t *from = s->all->ids + (heldout ? s->all->n_calib * s->all->context : 0) + first;
    memcpy(ids, from, (size_t)n * sizeof *ids);
    return n / s->all->context;
}

nmlp_status nmlp_window_share_init(nmlp_window_share *s, const nmlp_process_group *group, const nmlp_calib_windows *all,
                                   nmlp_err *err) {
    *s = (nmlp_window_share){.group = group,
                             .all = all,
                             .own = *all,
                             .calib_tokens = nmlp_calib_windows_calib_tokens(all),
                             .heldout_tokens = nmlp_calib_windows_heldout_tokens(all)};
    if (nmlp_group_size(group) == 1) return NMLP_OK;
    s->own.ids = nmlp_mem_new((size_t)nmlp_calib_windows_tokens(all), sizeof *s->own.ids, err);
    if (!s->own.ids) return NMLP_E_NOMEM;
    s->own.n_calib = take_windows(s, false, s->own.ids);
    s->own.n_heldout = take_windows(s, true, s->own.ids + s->own.n_calib * all->context);
    return NMLP_OK;
}

void nmlp_window_share_fini(nmlp_window_share *s) {
    if (nmlp_group_size(s->group) > 1) nmlp_calib_windows_fini(&s->own);
    *s = (nmlp_window_share){0};
}

/* Offsets [size+1] of what each process has of tokens begin..end-1. */
static int64_t *offsets_within(const nmlp_window_share *s, bool heldout, int64_t begin, int64_t end, nmlp_err *err) {
    int64_t *first = nmlp_mem_new((size_t)nmlp_group_size(s->group) + 1, sizeof *first, err);
    for (int k = 0; first && k <= nmlp_group_size(s->group); k++)
        first[k] = nmlp_min(nmlp_max(nmlp_window_share_first(s, heldout, k), begin), end) - begin;
    return first;
}

nmlp_status nmlp_window_share_gather(const nmlp_window_share *s, void *items, size_t item_bytes, bool heldout,
                                     nmlp_err *err) {
    if (nmlp_group_size(s->group) == 1) return NMLP_OK;
    int64_t *first = offsets_within(s, heldout, 0, n_windows(s, heldout) * s->all->context, err);
    nmlp_status st = first ? nmlp_group_gather(s->group, items, item_bytes, first, err) : NMLP_E_NOMEM;
    nmlp_mem_free(first);
    return st;
}

nmlp_own_tokens nmlp_window_share_own(const nmlp_window_share *s, int64_t first, int64_t n) {
    int rank = nmlp_group_rank(s->group);
    int64_t begin = nmlp_window_share_first(s, false, rank), end = nmlp_window_share_first(s, false, rank + 1);
    int64_t from = nmlp_min(nmlp_max(begin, first), first + n), to = nmlp_min(nmlp_max(end, first), first + n);
    return (nmlp_own_tokens){.at = from - first, .own = from - begin, .count = to - from};
}

nmlp_status nmlp_window_share_fill(const nmlp_window_share *s, float *rows, int64_t width, int64_t begin, int64_t n,
                                   nmlp_err *err) {
    if (nmlp_group_size(s->group) == 1) return NMLP_OK;
    int64_t *first = offsets_within(s, false, begin, begin + n, err);
    nmlp_status st = first ? nmlp_group_gather(s->group, rows, (size_t)width * sizeof *rows, first, err) : NMLP_E_NOMEM;
    nmlp_mem_free(first);
    return st;
}

nmlp_status nmlp_window_share_rows(const nmlp_window_share *s, const float *own, int64_t width, int64_t begin,
                                   int64_t n, float *room, const float **rows, nmlp_err *err) {
    *rows = own + begin * width;
    if (nmlp_group_size(s->group) == 1) return NMLP_OK;
    nmlp_own_tokens mine = nmlp_window_share_own(s, begin, n);
    *rows = room;
    if (mine.count > 0)
        memcpy(room + mine.at * width, own + mine.own * width, (size_t)(mine.count * width) * sizeof *room);
    return nmlp_window_share_fill(s, room, width, begin, n, err);
}
