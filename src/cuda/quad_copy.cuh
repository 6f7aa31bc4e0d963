/* The copying warp of quad.cu. */
#ifndef NMLP_CUDA_QUAD_COPY_CUH
#define NMLP_CUDA_QUAD_COPY_CUH

#include "cuda/quad_block.cuh"

namespace {

/* A place in the rounds that the multiplying warps make. Warps have one of two numbers of slots. */
struct place {
    int warp;
    ring_cursor fewer;
    ring_cursor more;
    __device__ __forceinline__ int slot(int n_slots) const {
        return slots_of(n_slots, warp).first + (warp < n_slots % WARPS ? more.slot : fewer.slot);
    }
    __device__ __forceinline__ uint32_t parity(int n_slots) const { return warp < n_slots % WARPS ? more.parity : fewer.parity; }
    __device__ __forceinline__ void advance(int n_slots) {
        if (++warp < WARPS) return;
        warp = 0;
        fewer.advance(1, n_slots / WARPS);
        more.advance(1, n_slots / WARPS + 1);
    }
};

struct copier {
    place at;
    place landing; /* the oldest under way */
    int under_way;
#ifdef EVICT_FIRST
    uint64_t policy;
#endif
};

__device__ __forceinline__ void await_room(const nmlp_cuda_quad_program &prog, const block_memory &mem, copier &c) {
    if (c.under_way == prog.n_under_way) {
        mbar_wait(&mem.sh->full[c.landing.slot(prog.n_slots)], c.landing.parity(prog.n_slots));
        c.landing.advance(prog.n_slots);
    } else {
        c.under_way++;
    }
    mbar_wait(&mem.sh->empty[c.at.slot(prog.n_slots)], c.at.parity(prog.n_slots) ^ 1);
}

/* Past the end of W there is nothing to read, so slots there are whole: boxes end with a cluster's rows only where other rows follow. */
__device__ __forceinline__ int octets_copied(const nmlp_cuda_quad_product &ph, const part &p, int row) {
    return p.end == ph.rows && row < p.end ? ph.slot_octets : octets_at(ph, p, row);
}

/* The slots of all warps for each block of columns, in the order in which warps take them. One lane. */
__device__ __forceinline__ void copy_part(const nmlp_cuda_quad_program &prog, const nmlp_cuda_quad_product &ph, const part &p, const block_memory &mem, copier &c) {
    const int n = n_places(ph, p);
    for (int i = 0; i < n; i++) {
        const int block = i >> ph.side_shift;
        const int side = i & ((1 << ph.side_shift) - 1);
        const int row = p.row + (side & ((1 << ph.row_shift) - 1)) * ph.slot_octets * OCTET;
        const void *map = ph.map[side >> ph.row_shift];
        const int octets = block < p.n_blocks ? octets_copied(ph, p, row) : 0;
        await_room(prog, mem, c);
        const int slot = c.at.slot(prog.n_slots);
        const uint32_t full = shared_address(&mem.sh->full[slot]);
        uint32_t to = shared_address(mem.ring + slot * prog.slot_bytes);
        expect_bytes(&mem.sh->full[slot], octets * OCTET_BYTES);
        for (int o = 0; o < octets; o += ph.box_octets, to += ph.box_octets * OCTET_BYTES)
#ifdef EVICT_FIRST
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(map),
                         "r"(p.column + block * COLS), "r"(row + o * OCTET), "r"(full), "l"(c.policy) : "memory");
#else
            asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map),
                         "r"(p.column + block * COLS), "r"(row + o * OCTET), "r"(full) : "memory");
#endif
        c.at.advance(prog.n_slots);
    }
}

__device__ void copy_weights(const nmlp_cuda_quad_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    if (lane < 2 * prog.n_products) prefetch_map(prog.product[lane / 2].map[lane % 2]);
    if (lane != 0) return;
    copier c = {};
#ifdef EVICT_FIRST
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(c.policy));
#endif
    for (int i = 0; i < prog.n_products; i++) {
        const nmlp_cuda_quad_product &ph = prog.product[i];
        for (int pass = 0; pass < ph.n_passes; pass++) copy_part(prog, ph, part_of(prog, ph, mem, pass), mem, c);
        NOTE_CLOCK(i, 5);
    }
}

} // namespace

#endif
