#include "text/bpe.h"

#include <string.h>

#include "base/mem.h"

enum { SHORT_MAX = 48 }; /* up to here looking through all pairs beats a heap */
static const uint32_t no_rank = UINT32_MAX;
static const uint32_t no_node = UINT32_MAX;

struct nmlp_bpe_slot {
    uint32_t left, right;
    uint32_t rank_plus_1; /* 0: free */
};

struct nmlp_bpe_node {
    uint32_t id;
    uint32_t previous, next; /* no_node at the ends */
    uint32_t rank;           /* of the pair (this, next); no_rank for none and for nodes that were joined away */
};

nmlp_status nmlp_bpe_init(nmlp_bpe *bpe, size_t n_merges, nmlp_err *err) {
    *bpe = (nmlp_bpe){0};
    size_t n_slots = 16;
    while (n_slots / 2 < n_merges) n_slots *= 2;
    bpe->slots = nmlp_mem_new(n_slots, sizeof *bpe->slots, err);
    bpe->merged = nmlp_mem_new(n_merges, sizeof *bpe->merged, err);
    if (!bpe->slots || !bpe->merged) {
        nmlp_bpe_fini(bpe);
        return NMLP_E_NOMEM;
    }
    bpe->n_slots = n_slots;
    bpe->n_merges = n_merges;
    return NMLP_OK;
}

void nmlp_bpe_fini(nmlp_bpe *bpe) {
    nmlp_mem_free(bpe->slots);
    nmlp_mem_free(bpe->merged);
    *bpe = (nmlp_bpe){0};
}

static nmlp_bpe_slot *find_slot(const nmlp_bpe *bpe, uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    size_t i = (size_t)(h >> 32) & (bpe->n_slots - 1);
    for (;;) {
        nmlp_bpe_slot *slot = &bpe->slots[i];
        if (!slot->rank_plus_1 || (slot->left == left && slot->right == right)) return slot;
        i = (i + 1) & (bpe->n_slots - 1);
    }
}

void nmlp_bpe_put(nmlp_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    *find_slot(bpe, left, right) = (nmlp_bpe_slot){.left = left, .right = right, .rank_plus_1 = rank + 1};
    bpe->merged[rank] = merged;
}

static uint32_t rank_of(const nmlp_bpe *bpe, uint32_t left, uint32_t right) {
    return find_slot(bpe, left, right)->rank_plus_1 - 1; /* 0 - 1 is no_rank */
}

static size_t merge_short(const nmlp_bpe *bpe, int32_t *ids, size_t n) {
    uint32_t ranks[SHORT_MAX]; /* of the pair that starts there */
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = rank_of(bpe, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == no_rank) break;
        ids[best] = (int32_t)bpe->merged[ranks[best]];
        size_t n_moved = n - best - 2;
        memmove(ids + best + 1, ids + best + 2, n_moved * sizeof *ids);
        if (n_moved) memmove(ranks + best + 1, ranks + best + 2, (n_moved - 1) * sizeof *ranks);
        n--;
        if (best > 0) ranks[best - 1] = rank_of(bpe, (uint32_t)ids[best - 1], (uint32_t)ids[best]);
        if (best + 1 < n) ranks[best] = rank_of(bpe, (uint32_t)ids[best], (uint32_t)ids[best + 1]);
    }
    return n;
}

/* A binary heap of rank << 32 | position: the smallest is the leftmost pair of the lowest rank. Entries whose pair
 * changed since stay in and are recognised when they come out. */
static nmlp_status heap_push(nmlp_bpe_scratch *scratch, uint64_t entry, nmlp_err *err) {
    void *heap = scratch->heap;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&heap, &scratch->heap_capacity, scratch->heap_len + 1, sizeof entry, err));
    scratch->heap = heap;
    size_t at = scratch->heap_len++;
    while (at > 0) {
        size_t parent = (at - 1) / 2;
        if (scratch->heap[parent] <= entry) break;
        scratch->heap[at] = scratch->heap[parent];
        at = parent;
    }
    scratch->heap[at] = entry;
    return NMLP_OK;
}

static uint64_t heap_pop(nmlp_bpe_scratch *scratch) {
    uint64_t *heap = scratch->heap;
    uint64_t top = heap[0];
    size_t n = --scratch->heap_len;
    uint64_t last = heap[n];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (last <= heap[child]) break;
        heap[at] = heap[child];
    }
    if (n) heap[at] = last;
    return top;
}

static nmlp_status rank_pair(const nmlp_bpe *bpe, nmlp_bpe_scratch *scratch, uint32_t at, nmlp_err *err) {
    nmlp_bpe_node *node = &scratch->nodes[at];
    node->rank = node->next == no_node ? no_rank : rank_of(bpe, node->id, scratch->nodes[node->next].id);
    return node->rank == no_rank ? NMLP_OK : heap_push(scratch, (uint64_t)node->rank << 32 | at, err);
}

static nmlp_status join_with_next(const nmlp_bpe *bpe, nmlp_bpe_scratch *scratch, uint32_t at, nmlp_err *err) {
    nmlp_bpe_node *node = &scratch->nodes[at];
    nmlp_bpe_node *gone = &scratch->nodes[node->next];
    node->id = bpe->merged[node->rank];
    gone->rank = no_rank;
    node->next = gone->next;
    if (node->next != no_node) scratch->nodes[node->next].previous = at;
    if (node->previous != no_node) NMLP_RETURN_IF_FAILED(rank_pair(bpe, scratch, node->previous, err));
    return rank_pair(bpe, scratch, at, err);
}

static nmlp_status merge_long(const nmlp_bpe *bpe, nmlp_bpe_scratch *scratch, int32_t *ids, size_t *n, nmlp_err *err) {
    void *nodes = scratch->nodes;
    NMLP_RETURN_IF_FAILED(nmlp_mem_grow(&nodes, &scratch->nodes_capacity, *n, sizeof(nmlp_bpe_node), err));
    scratch->nodes = nodes;
    scratch->heap_len = 0;
    uint32_t count = (uint32_t)*n;
    for (uint32_t i = 0; i < count; i++) {
        scratch->nodes[i] = (nmlp_bpe_node){.id = (uint32_t)ids[i],
                                            .previous = i ? i - 1 : no_node,
                                            .next = i + 1 < count ? i + 1 : no_node,
                                            .rank = no_rank};
    }
    for (uint32_t i = 0; i < count; i++) NMLP_RETURN_IF_FAILED(rank_pair(bpe, scratch, i, err));
    while (scratch->heap_len) {
        uint64_t top = heap_pop(scratch);
        uint32_t at = (uint32_t)top;
        if (scratch->nodes[at].rank != top >> 32) continue;
        NMLP_RETURN_IF_FAILED(join_with_next(bpe, scratch, at, err));
    }
    size_t n_out = 0;
    for (uint32_t i = 0; i != no_node; i = scratch->nodes[i].next) ids[n_out++] = (int32_t)scratch->nodes[i].id;
    *n = n_out;
    return NMLP_OK;
}

nmlp_status nmlp_bpe_merge(const nmlp_bpe *bpe, nmlp_bpe_scratch *scratch, int32_t *ids, size_t *n, nmlp_err *err) {
    if (*n > SHORT_MAX) return merge_long(bpe, scratch, ids, n, err);
    *n = merge_short(bpe, ids, *n);
    return NMLP_OK;
}

void nmlp_bpe_scratch_fini(nmlp_bpe_scratch *scratch) {
    nmlp_mem_free(scratch->nodes);
    nmlp_mem_free(scratch->heap);
    *scratch = (nmlp_bpe_scratch){0};
}
