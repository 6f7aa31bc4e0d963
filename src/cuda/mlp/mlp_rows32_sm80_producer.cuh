/* The producer warp of mlp_rows32_sm80.cu: weights into the ring buffer, by TMA or cp.async. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_PRODUCER_CUH
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_PRODUCER_CUH

#include "cuda/mlp/mlp_rows32_sm80_block.cuh"

namespace {

/* A stage: [blocks of columns][rows][64 columns], swizzled as in decode_ring.cuh. Rows past the end are zero. */
__device__ __forceinline__ void load_stage(unsigned char *stage, uint64_t *full, const nmlp_cuda_mlp_rows32_phase &ph,
                                           const nmlp_cuda_mlp_rows32_factor &f, int row, int block, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)),
                 "r"(ph.groups * ph.blocks_k * TILE_BYTES)
                 : "memory");
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(shared_address(stage)),
                 "l"(f.map), "r"(0), "r"(row), "r"(block), "r"(shared_address(full))
                 : "memory");
#else
    const int rows = ph.groups * M16;
    const int n = rows * ph.blocks_k * (K64 / 8);
    const __nv_bfloat16 *w = static_cast<const __nv_bfloat16 *>(f.weight);
    for (int i = lane; i < n; i += 32) {
        const int chunk = i % (K64 / 8);
        const int r = i / (K64 / 8) % rows;
        const int b = i / (K64 / 8) / rows;
        const int col = (block + b) * K64 + chunk * 8;
        const bool live = row + r < ph.n && col < f.k;
        const int bytes = live ? 16 : 0; /* the rest of the 16 is filled with zeros */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         shared_address(stage + (b * rows + r) * K64 * 2 + ((chunk ^ r) & 7) * 16)),
                     "l"(live ? w + (int64_t)(row + r) * f.k + col : w), "r"(bytes)
                     : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

struct producer {
    ring_cursor at;
    ring_cursor landing; /* the oldest stage in flight */
    int in_flight;
};

__device__ __forceinline__ void acquire_stage(const nmlp_cuda_mlp_rows32_program &prog, const block_memory &mem,
                                              producer &c) {
    if (c.in_flight == prog.n_in_flight) {
        mbar_wait(&mem.sh->full[c.landing.stage], c.landing.parity);
        c.landing.advance(1, prog.n_stages);
    } else {
        c.in_flight++;
    }
    mbar_wait(&mem.sh->empty[c.at.stage], c.at.parity ^ 1);
}

__device__ __forceinline__ void produce_tile(const nmlp_cuda_mlp_rows32_program &prog,
                                             const nmlp_cuda_mlp_rows32_phase &ph, const block_tile &p,
                                             const block_memory &mem, producer &c) {
    for (int run = 0; run < max(p.n[0], p.n[1]); run += FACTOR_RUN) {
        for (int j = 0; j < 2 * FACTOR_RUN; j++) {
            const int m = j / FACTOR_RUN;
            const int i = run + j % FACTOR_RUN;
            if (i >= (m ? p.n[1] : p.n[0])) continue;
            acquire_stage(prog, mem, c);
            load_stage(mem.ring + c.at.stage * prog.stage_bytes, &mem.sh->full[c.at.stage], ph, ph.f[m], p.row,
                       ((m ? p.first[1] : p.first[0]) + i) * ph.blocks_k, threadIdx.x & 31);
            c.at.advance(1, prog.n_stages);
        }
    }
}

__device__ void produce(const nmlp_cuda_mlp_rows32_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    producer c = {{0, 0}, {0, 0}, 0};
    if (lane < 2 * prog.n_phases) prefetch_map(prog.phase[lane / 2].f[lane % 2].map);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_mlp_rows32_phase &ph = prog.phase[i];
        for (int r = first_tile(ph); r < n_tiles(ph); r += gridDim.x) produce_tile(prog, ph, tile_at(ph, r), mem, c);
    }
}

} // namespace

#endif
