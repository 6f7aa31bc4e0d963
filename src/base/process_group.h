/* Processes that do one piece of work together, as a process group of torch.distributed. Calls are collective: every
 * member makes the same calls in the same order. A NULL group is this process alone. */
#ifndef NMLP_BASE_PROCESS_GROUP_H
#define NMLP_BASE_PROCESS_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* What a transport provides. Offsets and lengths are in bytes; a failure names the peer or the time limit. */
typedef struct nmlp_process_group {
    int rank; /* of this process, from 0 */
    int size;
    /* In place: member k has filled data[first[k]..first[k+1]); afterwards every member has all of it. */
    nmlp_status (*gather)(void *ctx, void *data, const int64_t *first, nmlp_err *err);
    /* Member k receives data[first[k]..first[k+1]) of every member, one after the other in the order of ranks. */
    nmlp_status (*exchange)(void *ctx, void *received, const void *data, const int64_t *first, nmlp_err *err);
    /* From rank 0 to all. */
    nmlp_status (*broadcast)(void *ctx, void *data, int64_t bytes, nmlp_err *err);
    /* The same, however long it takes: for members that wait for work. */
    nmlp_status (*await)(void *ctx, void *data, int64_t bytes, nmlp_err *err);
    void *ctx;
} nmlp_process_group;

static inline int nmlp_group_rank(const nmlp_process_group *group) { return group ? group->rank : 0; }
static inline int nmlp_group_size(const nmlp_process_group *group) { return group ? group->size : 1; }
/* The member that writes files and speaks to the user. */
static inline bool nmlp_group_leads(const nmlp_process_group *group) { return nmlp_group_rank(group) == 0; }

/* Where the share of member `rank` of n items begins; that of `size` is n. Shares differ by one item at most. */
int64_t nmlp_group_share(const nmlp_process_group *group, int64_t n, int rank);

/* items [n] of which member k has filled first[k]..first[k+1]-1, first [size+1]: all of them, everywhere. */
nmlp_status nmlp_group_gather(const nmlp_process_group *group, void *items, size_t item_bytes, const int64_t *first,
                              nmlp_err *err);
nmlp_status nmlp_group_broadcast(const nmlp_process_group *group, void *data, int64_t bytes, nmlp_err *err);
/* The other side of a broadcast that may be hours away. */
nmlp_status nmlp_group_await(const nmlp_process_group *group, void *data, int64_t bytes, nmlp_err *err);

/* From member `from` to all. */
nmlp_status nmlp_group_give(const nmlp_process_group *group, void *data, int64_t bytes, int from, nmlp_err *err);
/* Member `to` receives [size, bytes]: data [bytes] of every member in the order of ranks. `received` is its alone. */
nmlp_status nmlp_group_collect(const nmlp_process_group *group, void *received, const void *data, int64_t bytes, int to,
                               nmlp_err *err);
/* items [n] dealt round-robin: member k has filled k, k + size, k + 2 size, ... Afterwards every member has all. */
nmlp_status nmlp_group_gather_dealt(const nmlp_process_group *group, void *items, size_t item_bytes, int64_t n,
                                    nmlp_err *err);
static inline bool nmlp_group_deals(const nmlp_process_group *group, int64_t item) {
    return item % nmlp_group_size(group) == nmlp_group_rank(group);
}
/* Returns when every member has come so far. */
nmlp_status nmlp_group_meet(const nmlp_process_group *group, nmlp_err *err);

/* Values that the members of a sum may send to all at once, in one wait: 128 KB in all. Others take two waits and less
 * of the network. */
enum { NMLP_GROUP_SMALL_SUM = 1 << 15 };
static inline bool nmlp_group_sum_is_small(int64_t size, int64_t n) { return n <= NMLP_GROUP_SMALL_SUM / size; }

/* values [n] summed over the members, in the order of ranks: the same bits everywhere and in every run. */
nmlp_status nmlp_group_sum_f32(const nmlp_process_group *group, float *values, int64_t n, nmlp_err *err);

/* Whether some member says yes. */
nmlp_status nmlp_group_any(const nmlp_process_group *group, bool *flag, nmlp_err *err);

#endif
