/* The copying warp of batch.cu. */
#ifndef NMLP_CUDA_MLP_MLP_ROWS32_SM80_COPY_CUH
#define NMLP_CUDA_MLP_MLP_ROWS32_SM80_COPY_CUH

#include "cuda/mlp/mlp_rows32_sm80_block.cuh"

namespace {

/* A slot: [blocks of columns][rows][64 columns], swizzled as in stream_ring.cuh. Rows past the end are zero. */
__device__ __forceinline__ void bring_slot(unsigned char *slot, uint64_t *full, const nmlp_cuda_batch_phase &ph,
                                           const nmlp_cuda_batch_factor &f, int row, int block, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane != 0) return;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)),
                 "r"(ph.groups * ph.blocks_k * PIECE_BYTES)
                 : "memory");
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(shared_address(slot)),
                 "l"(f.map), "r"(0), "r"(row), "r"(block), "r"(shared_address(full))
                 : "memory");
#else
    const int rows = ph.groups * GROUP;
    const int n = rows * ph.blocks_k * (BLOCK / 8);
    const __nv_bfloat16 *w = static_cast<const __nv_bfloat16 *>(f.weight);
    for (int i = lane; i < n; i += 32) {
        const int chunk = i % (BLOCK / 8);
        const int r = i / (BLOCK / 8) % rows;
        const int b = i / (BLOCK / 8) / rows;
        const int col = (block + b) * BLOCK + chunk * 8;
        const bool live = row + r < ph.n && col < f.k;
        const int bytes = live ? 16 : 0; /* the rest of the 16 is filled with zeros */
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         shared_address(slot + (b * rows + r) * BLOCK * 2 + ((chunk ^ r) & 7) * 16)),
                     "l"(live ? w + (int64_t)(row + r) * f.k + col : w), "r"(bytes)
                     : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(full)) : "memory");
#endif
}

struct copier {
    ring_cursor at;
    ring_cursor landing; /* the oldest slot under way */
    int under_way;
};

__device__ __forceinline__ void await_room(const nmlp_cuda_batch_program &prog, const block_memory &mem, copier &c) {
    if (c.under_way == prog.n_under_way) {
        mbar_wait(&mem.sh->full[c.landing.slot], c.landing.parity);
        c.landing.advance(1, prog.n_slots);
    } else {
        c.under_way++;
    }
    mbar_wait(&mem.sh->empty[c.at.slot], c.at.parity ^ 1);
}

__device__ __forceinline__ void copy_part(const nmlp_cuda_batch_program &prog, const nmlp_cuda_batch_phase &ph,
                                          const part &p, const block_memory &mem, copier &c) {
    for (int turn = 0; turn < max(p.n[0], p.n[1]); turn += TURN) {
        for (int j = 0; j < 2 * TURN; j++) {
            const int m = j / TURN;
            const int i = turn + j % TURN;
            if (i >= (m ? p.n[1] : p.n[0])) continue;
            await_room(prog, mem, c);
            bring_slot(mem.ring + c.at.slot * prog.slot_bytes, &mem.sh->full[c.at.slot], ph, ph.f[m], p.row,
                       ((m ? p.first[1] : p.first[0]) + i) * ph.blocks_k, threadIdx.x & 31);
            c.at.advance(1, prog.n_slots);
        }
    }
}

__device__ void copy_weights(const nmlp_cuda_batch_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    copier c = {{0, 0}, {0, 0}, 0};
    if (lane < 2 * prog.n_phases) prefetch_map(prog.phase[lane / 2].f[lane % 2].map);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_batch_phase &ph = prog.phase[i];
        for (int r = first_part(ph); r < n_parts(ph); r += gridDim.x) copy_part(prog, ph, part_at(ph, r), mem, c);
    }
}

} // namespace

#endif
