#include "base/process_group.h"

#include <string.h>

#include "base/ints.h"
#include "base/mem.h"

/* Values that a sum moves at a time: bounds its memory to this times (members + 1) / members. */
enum { SUM_CHUNK = 1 << 20 };

int64_t nmlp_group_share(const nmlp_process_group *group, int64_t n, int rank) {
    return n / nmlp_group_size(group) * rank + nmlp_min(n % nmlp_group_size(group), rank);
}

nmlp_status nmlp_group_gather(const nmlp_process_group *group, void *items, size_t item_bytes, const int64_t *first,
                              nmlp_err *err) {
    if (nmlp_group_size(group) == 1) return NMLP_OK;
    int64_t *bytes = nmlp_mem_new((size_t)group->size + 1, sizeof *bytes, err);
    if (!bytes) return NMLP_E_NOMEM;
    for (int k = 0; k <= group->size; k++) bytes[k] = first[k] * (int64_t)item_bytes;
    nmlp_status st = group->gather(group->ctx, items, bytes, err);
    nmlp_mem_free(bytes);
    return st;
}

nmlp_status nmlp_group_broadcast(const nmlp_process_group *group, void *data, int64_t bytes, nmlp_err *err) {
    return nmlp_group_size(group) == 1 ? NMLP_OK : group->broadcast(group->ctx, data, bytes, err);
}

/* Each member sums its share of the values, then all give their shares to all: twice (P-1)/P of the bytes per member,
 * as a ring all-reduce, but in an order that no library chooses. */
static nmlp_status sum_chunk(const nmlp_process_group *g, float *values, int64_t n, float *received, int64_t *first,
                             nmlp_err *err) {
    int64_t begin = nmlp_group_share(g, n, g->rank), mine = nmlp_group_share(g, n, g->rank + 1) - begin;
    for (int k = 0; k <= g->size; k++) first[k] = nmlp_group_share(g, n, k) * (int64_t)sizeof *values;
    NMLP_RETURN_IF_FAILED(g->exchange(g->ctx, received, values, first, err));
    memcpy(values + begin, received, (size_t)mine * sizeof *values);
    for (int k = 1; k < g->size; k++)
        for (int64_t i = 0; i < mine; i++) values[begin + i] += received[k * mine + i];
    return g->gather(g->ctx, values, first, err);
}

nmlp_status nmlp_group_sum_f32(const nmlp_process_group *g, float *values, int64_t n, nmlp_err *err) {
    if (nmlp_group_size(g) == 1) return NMLP_OK;
    nmlp_status st = NMLP_OK;
    int64_t most = nmlp_min(n, SUM_CHUNK);
    float *received = nmlp_mem_new((size_t)(most + g->size), sizeof *received, err);
    int64_t *first = nmlp_mem_new((size_t)g->size + 1, sizeof *first, err);
    if (!received || !first) NMLP_TRY(NMLP_E_NOMEM);
    for (int64_t at = 0; at < n; at += most)
        NMLP_TRY(sum_chunk(g, values + at, nmlp_min(most, n - at), received, first, err));
out:
    nmlp_mem_free(received);
    nmlp_mem_free(first);
    return st;
}

nmlp_status nmlp_group_any(const nmlp_process_group *group, bool *flag, nmlp_err *err) {
    float count = *flag;
    NMLP_RETURN_IF_FAILED(nmlp_group_sum_f32(group, &count, 1, err));
    *flag = count > 0;
    return NMLP_OK;
}
