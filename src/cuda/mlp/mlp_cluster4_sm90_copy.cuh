/* The copying warps of quad.cu. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_COPY_CUH
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_COPY_CUH

#include "cuda/mlp/mlp_cluster4_sm90_block.cuh"

namespace {

/* A place in the rounds that the multiplying warps make. Warps have one of two numbers of slots. A copying warp serves
 * every COPIERS-th of them. */
struct place {
    int warp;
    ring_cursor fewer;
    ring_cursor more;
    __device__ __forceinline__ int slot(int n_slots) const {
        return slots_of(n_slots, warp).first + (warp < n_slots % WARPS ? more.slot : fewer.slot);
    }
    __device__ __forceinline__ uint32_t parity(int n_slots) const {
        return warp < n_slots % WARPS ? more.parity : fewer.parity;
    }
    __device__ __forceinline__ void advance(int n_slots) {
        warp += COPIERS;
        if (warp < WARPS) return;
        warp -= WARPS;
        fewer.advance(1, n_slots / WARPS);
        more.advance(1, n_slots / WARPS + 1);
    }
};

/* What the loop over slots needs of the program, in registers: constant memory answers slowly, and every barrier would
 * have it read again. */
struct ring_terms {
    uint32_t full; /* addresses */
    uint32_t empty;
    uint32_t ring;
    int n_slots;
    int slot_bytes;
    int n_under_way;
    uint64_t policy; /* of L2: what is read once makes room first, so that code, arguments and rows stay */
};

__device__ __forceinline__ uint64_t evict_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void bring_box(uint32_t to, uint32_t full, const void *map, int column, int row,
                                          uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(full), "l"(policy)
                 : "memory");
}

struct copier {
    ring_terms ring;
    int first; /* of the warps it serves */
    place at;
    place landing; /* the oldest under way */
    int under_way;
};

__device__ __forceinline__ void await_barrier(uint32_t bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
}

__device__ __forceinline__ void await_room(copier &c, int slot) {
    if (c.under_way == c.ring.n_under_way) {
        await_barrier(c.ring.full + c.landing.slot(c.ring.n_slots) * 8, c.landing.parity(c.ring.n_slots));
        c.landing.advance(c.ring.n_slots);
    } else {
        c.under_way++;
    }
    await_barrier(c.ring.empty + slot * 8, c.at.parity(c.ring.n_slots) ^ 1);
}

/* Octets of a slot that begins at `row`. Past the end of W there is nothing to read, so slots there are whole: boxes
 * end with a cluster's rows only where other rows follow. */
__device__ __forceinline__ int octets_copied(const part &p, int row, int slot_octets, bool to_the_end) {
    const int there = max(0, min(slot_octets, (p.end - row) / OCTET));
    return to_the_end && there > 0 ? slot_octets : there;
}

/* The slots of its warps for each block of columns, in the order in which they take them. One lane. */
__device__ __forceinline__ void copy_part(const nmlp_cuda_quad_product &ph, const part &p, copier &c) {
    const int n = n_places(ph, p);
    const int side_shift = ph.side_shift;
    const int row_mask = (1 << ph.row_shift) - 1;
    const int row_shift = ph.row_shift;
    const int slot_octets = ph.slot_octets;
    const int box_octets = ph.box_octets;
    const bool to_the_end = p.end == ph.rows;
    const void *const first_map = ph.map[0];
    const void *const second_map = ph.map[1];
    for (int i = c.first; i < n; i += COPIERS) {
        const int block = i >> side_shift;
        const int side = i & ((1 << side_shift) - 1);
        const int row = p.row + (side & row_mask) * slot_octets * OCTET;
        const int column = p.column + block * COLS;
        const void *map = side >> row_shift ? second_map : first_map;
        const int octets = block < p.n_blocks ? octets_copied(p, row, slot_octets, to_the_end) : 0;
        const int slot = c.at.slot(c.ring.n_slots);
        const uint32_t full = c.ring.full + slot * 8;
        const uint32_t to = c.ring.ring + slot * c.ring.slot_bytes;
        await_room(c, slot);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(octets * OCTET_BYTES)
                     : "memory");
        for (int o = 0; o < octets; o += box_octets)
            bring_box(to + o * OCTET_BYTES, full, map, column, row + o * OCTET, c.ring.policy);
        c.at.advance(c.ring.n_slots);
    }
}

/* Every warp asks for one map. */
__device__ __forceinline__ void ask_for_map(const nmlp_cuda_quad_program &prog) {
    const int warp = threadIdx.x >> 5;
    if (warp < prog.n_maps && (threadIdx.x & 31) == 0) prefetch_map(prog.maps + warp * NMLP_CUDA_QUAD_MAP_BYTES);
}

__device__ void copy_weights(const nmlp_cuda_quad_program &prog, const block_memory &mem) {
    if ((threadIdx.x & 31) != 0) return;
    copier c = {};
    c.first = c.at.warp = c.landing.warp = (int)(threadIdx.x >> 5) - WARPS;
    c.ring = {shared_address(mem.sh->full),
              shared_address(mem.sh->empty),
              shared_address(mem.ring),
              prog.n_slots,
              prog.slot_bytes,
              prog.n_under_way / COPIERS,
              evict_first()};
    for (int i = 0; i < prog.n_products; i++) {
        const nmlp_cuda_quad_product &ph = prog.product[i];
        for (int pass = 0; pass < ph.n_passes; pass++) copy_part(ph, part_of(prog, ph, mem, pass), c);
    }
}

} // namespace

#endif
