/* The producer warps of mlp_cluster4_sm90.cu: TMA loads of weights into the ring buffer. */
#ifndef NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_PRODUCER_CUH
#define NMLP_CUDA_MLP_MLP_CLUSTER4_SM90_PRODUCER_CUH

#include "cuda/mlp/mlp_cluster4_sm90_block.cuh"

namespace {

/* A place in the rounds that the consumer warps make. Warps have one of two numbers of stages. A producer warp serves
 * every PRODUCER_WARPS-th of them. */
struct place {
    int warp;
    ring_cursor fewer;
    ring_cursor more;
    __device__ __forceinline__ int stage(int n_stages) const {
        return stages_of(n_stages, warp).first + (warp < n_stages % WARPS ? more.stage : fewer.stage);
    }
    __device__ __forceinline__ uint32_t parity(int n_stages) const {
        return warp < n_stages % WARPS ? more.parity : fewer.parity;
    }
    __device__ __forceinline__ void advance(int n_stages) {
        warp += PRODUCER_WARPS;
        if (warp < WARPS) return;
        warp -= WARPS;
        fewer.advance(1, n_stages / WARPS);
        more.advance(1, n_stages / WARPS + 1);
    }
};

/* What the loop over stages needs of the program, in registers: constant memory answers slowly, and every barrier would
 * have it read again. */
struct ring_terms {
    uint32_t full; /* addresses */
    uint32_t empty;
    uint32_t ring;
    int n_stages;
    int stage_bytes;
    int n_in_flight;
    uint64_t policy; /* of L2: what is read once makes room first, so that code, arguments and rows stay */
};

__device__ __forceinline__ uint64_t evict_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void load_box(uint32_t to, uint32_t full, const void *map, int column, int row,
                                         uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(full), "l"(policy)
                 : "memory");
}

struct producer {
    ring_terms ring;
    int first; /* of the warps it serves */
    place at;
    place landing; /* the oldest in flight */
    int in_flight;
};

__device__ __forceinline__ void mbar_wait_address(uint32_t bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
}

__device__ __forceinline__ void acquire_stage(producer &c, int stage) {
    if (c.in_flight == c.ring.n_in_flight) {
        mbar_wait_address(c.ring.full + c.landing.stage(c.ring.n_stages) * 8, c.landing.parity(c.ring.n_stages));
        c.landing.advance(c.ring.n_stages);
    } else {
        c.in_flight++;
    }
    mbar_wait_address(c.ring.empty + stage * 8, c.at.parity(c.ring.n_stages) ^ 1);
}

/* Octets of a stage that begins at `row`. Past the end of W there is nothing to read, so stages there are whole: boxes
 * end with a cluster's rows only where other rows follow. */
__device__ __forceinline__ int n8_loaded(const block_tile &p, int row, int stage_n8, bool to_the_end) {
    const int there = max(0, min(stage_n8, (p.end - row) / N8));
    return to_the_end && there > 0 ? stage_n8 : there;
}

/* The stages of its warps for each block of columns, in the order in which they take them. One lane. */
__device__ __forceinline__ void produce_tile(const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &p,
                                             producer &c) {
    const int n = n_places(ph, p);
    const int side_shift = ph.side_shift;
    const int row_mask = (1 << ph.row_shift) - 1;
    const int row_shift = ph.row_shift;
    const int stage_n8 = ph.stage_n8;
    const int box_n8 = ph.box_n8;
    const bool to_the_end = p.end == ph.rows;
    const void *const first_map = ph.map[0];
    const void *const second_map = ph.map[1];
    for (int i = c.first; i < n; i += PRODUCER_WARPS) {
        const int block = i >> side_shift;
        const int side = i & ((1 << side_shift) - 1);
        const int row = p.row + (side & row_mask) * stage_n8 * N8;
        const int column = p.column + block * COLS;
        const void *map = side >> row_shift ? second_map : first_map;
        const int n8_tiles = block < p.n_blocks ? n8_loaded(p, row, stage_n8, to_the_end) : 0;
        const int stage = c.at.stage(c.ring.n_stages);
        const uint32_t full = c.ring.full + stage * 8;
        const uint32_t to = c.ring.ring + stage * c.ring.stage_bytes;
        acquire_stage(c, stage);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(n8_tiles * N8_BYTES)
                     : "memory");
        for (int o = 0; o < n8_tiles; o += box_n8)
            load_box(to + o * N8_BYTES, full, map, column, row + o * N8, c.ring.policy);
        c.at.advance(c.ring.n_stages);
    }
}

/* Every warp prefetches one tensor map. */
__device__ __forceinline__ void prefetch_maps(const nmlp_cuda_mlp_cluster4_program &prog) {
    const int warp = threadIdx.x >> 5;
    if (warp < prog.n_maps && (threadIdx.x & 31) == 0) prefetch_map(prog.maps + warp * NMLP_CUDA_TENSOR_MAP_BYTES);
}

__device__ void produce(const nmlp_cuda_mlp_cluster4_program &prog, const block_memory &mem) {
    if ((threadIdx.x & 31) != 0) return;
    producer c = {};
    c.first = c.at.warp = c.landing.warp = (int)(threadIdx.x >> 5) - WARPS;
    c.ring = {shared_address(mem.sh->full),
              shared_address(mem.sh->empty),
              shared_address(mem.ring),
              prog.n_stages,
              prog.stage_bytes,
              prog.n_in_flight / PRODUCER_WARPS,
              evict_first()};
    for (int i = 0; i < prog.n_products; i++) {
        const nmlp_cuda_mlp_cluster4_product &ph = prog.product[i];
        for (int pass = 0; pass < ph.n_passes; pass++) produce_tile(ph, tile_of_pass(prog, ph, mem, pass), c);
    }
}

} // namespace

#endif
