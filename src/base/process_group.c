#include "base/process_group.h"

#include <string.h>

#include "base/ints.h"
#include "base/mem.h"

/* Values that a sum moves at a time: bounds its memory to this times (members + 1) / members. */
enum { SUM_CHUNK = 1 << 20 };
/* Bytes that one member gives at a time. */
enum { GIVE_CHUNK = 1 << 26 };

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

nmlp_status nmlp_group_await(const nmlp_process_group *group, void *data, int64_t bytes, nmlp_err *err) {
    return nmlp_group_size(group) == 1 ? NMLP_OK : group->await(group->ctx, data, bytes, err);
}

/* Where member `one` has all of `bytes` and the others nothing. */
static int64_t *offsets_of_one(const nmlp_process_group *g, int one, int64_t bytes, nmlp_err *err) {
    int64_t *first = nmlp_mem_new((size_t)g->size + 1, sizeof *first, err);
    for (int k = one + 1; first && k <= g->size; k++) first[k] = bytes;
    return first;
}

nmlp_status nmlp_group_give(const nmlp_process_group *g, void *data, int64_t bytes, int from, nmlp_err *err) {
    if (nmlp_group_size(g) == 1) return NMLP_OK;
    nmlp_status st = NMLP_OK;
    for (int64_t at = 0; at < bytes && st == NMLP_OK; at += GIVE_CHUNK) {
        int64_t *first = offsets_of_one(g, from, nmlp_min(GIVE_CHUNK, bytes - at), err);
        st = first ? g->gather(g->ctx, (char *)data + at, first, err) : NMLP_E_NOMEM;
        nmlp_mem_free(first);
    }
    return st;
}

nmlp_status nmlp_group_collect(const nmlp_process_group *g, void *received, const void *data, int64_t bytes, int to,
                               nmlp_err *err) {
    if (nmlp_group_size(g) == 1) {
        memcpy(received, data, (size_t)bytes);
        return NMLP_OK;
    }
    nmlp_status st = NMLP_OK;
    int64_t most = nmlp_min(bytes, GIVE_CHUNK / g->size);
    char *room = g->rank == to ? nmlp_mem_new((size_t)(most * g->size), 1, err) : NULL;
    if (g->rank == to && !room) return NMLP_E_NOMEM;
    for (int64_t at = 0; at < bytes && st == NMLP_OK; at += most) {
        int64_t some = nmlp_min(most, bytes - at), *first = offsets_of_one(g, to, some, err);
        st = first ? g->exchange(g->ctx, room, (const char *)data + at, first, err) : NMLP_E_NOMEM;
        for (int k = 0; k < g->size && st == NMLP_OK && room; k++)
            memcpy((char *)received + k * bytes + at, room + k * some, (size_t)some);
        nmlp_mem_free(first);
    }
    nmlp_mem_free(room);
    return st;
}

nmlp_status nmlp_group_gather_dealt(const nmlp_process_group *g, void *items, size_t item_bytes, int64_t n,
                                    nmlp_err *err) {
    if (nmlp_group_size(g) == 1) return NMLP_OK;
    nmlp_status st = NMLP_E_NOMEM;
    char *sorted = nmlp_mem_new((size_t)n, item_bytes, err);
    int64_t *first = nmlp_mem_new((size_t)g->size + 1, sizeof *first, err);
    if (sorted && first) {
        for (int k = 0; k < g->size; k++) first[k + 1] = first[k] + (n - k + g->size - 1) / g->size;
        for (int64_t i = g->rank, at = first[g->rank]; i < n; i += g->size, at++)
            memcpy(sorted + (size_t)at * item_bytes, (char *)items + (size_t)i * item_bytes, item_bytes);
        st = nmlp_group_gather(g, sorted, item_bytes, first, err);
        for (int64_t i = 0; i < n && st == NMLP_OK; i++)
            memcpy((char *)items + (size_t)i * item_bytes,
                   sorted + (size_t)(first[i % g->size] + i / g->size) * item_bytes, item_bytes);
    }
    nmlp_mem_free(sorted);
    nmlp_mem_free(first);
    return st;
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

/* Few values: every member gets all of them and sums for itself. More bytes, but one wait instead of two, and for so
 * few bytes the waits are what a sum costs. */
static nmlp_status sum_small(const nmlp_process_group *g, float *values, int64_t n, nmlp_err *err) {
    nmlp_status st = NMLP_E_NOMEM;
    float *all = nmlp_mem_new((size_t)(n * g->size), sizeof *all, err);
    int64_t *first = nmlp_mem_new((size_t)g->size + 1, sizeof *first, err);
    if (all && first) {
        for (int k = 0; k <= g->size; k++) first[k] = k * n * (int64_t)sizeof *all;
        memcpy(all + g->rank * n, values, (size_t)n * sizeof *all);
        st = g->gather(g->ctx, all, first, err);
        if (st == NMLP_OK) memcpy(values, all, (size_t)n * sizeof *values);
        for (int k = 1; k < g->size && st == NMLP_OK; k++)
            for (int64_t i = 0; i < n; i++) values[i] += all[k * n + i];
    }
    nmlp_mem_free(all);
    nmlp_mem_free(first);
    return st;
}

nmlp_status nmlp_group_sum_f32(const nmlp_process_group *g, float *values, int64_t n, nmlp_err *err) {
    if (nmlp_group_size(g) == 1) return NMLP_OK;
    if (nmlp_group_sum_is_small(g->size, n)) return sum_small(g, values, n, err);
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

nmlp_status nmlp_group_meet(const nmlp_process_group *group, nmlp_err *err) {
    bool none = false;
    return nmlp_group_any(group, &none, err);
}
