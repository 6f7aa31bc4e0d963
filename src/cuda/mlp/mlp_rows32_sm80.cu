/* The kernel of mlp_rows32_sm80.h: launch, roles of warps, the consumers' walk over phases. */
#include "cuda/mlp/mlp_rows32_sm80_producer.cuh"
#include "cuda/mlp/mlp_rows32_sm80_epilogue.cuh"
#include "cuda/mlp/mlp_rows32_sm80_consumer.cuh"
#include "cuda/cooperative_launch.cuh"

namespace {

/* Which of the two sets this launch uses: tickets only grow, by one per block and launch. One thread. */
__device__ void take_ticket(const nmlp_cuda_mlp_rows32_program &prog, shared_head *sh) {
    sh->set = atomicAdd(prog.tickets, 1u) / gridDim.x & 1;
}

__device__ __forceinline__ bool reads_set(const nmlp_cuda_mlp_rows32_phase &ph) {
    return !ph.f[0].from_before || (ph.n_factors == 2 && !ph.f[1].from_before);
}

/* The other set is made ready for the next launch; the launch before this one, which used it, has ended. */
__device__ void clear_other_set(const nmlp_cuda_mlp_rows32_program &prog, uint32_t set) {
    uint4 *to = reinterpret_cast<uint4 *>(prog.exchange + (set ^ 1) * prog.set_bytes);
    const int64_t n = prog.set_bytes / 16;
    for (int64_t i = (int64_t)blockIdx.x * (WARPS * 32) + threadIdx.x; i < n; i += (int64_t)gridDim.x * (WARPS * 32))
        to[i] = make_uint4(unwritten, unwritten, unwritten, unwritten);
}

template <int NT> __device__ void multiply(const nmlp_cuda_mlp_rows32_program &prog, const block_memory &mem) {
    consumer c = {{0, 0}, 0, 0, false};
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* what the launch before wrote is seen */
#endif
    if (threadIdx.x == 0) take_ticket(prog, mem.sh);
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_mlp_rows32_phase &ph = prog.phase[i];
        for (int r = first_tile(ph); r < n_tiles(ph); r += gridDim.x) {
            const block_tile p = tile_at(ph, r);
            float acc[shape<NT>::groups_max][NT][4] = {};
            if (reads_set(ph) && !c.knows_set) {
                consumer_sync();
                c.set = mem.sh->set;
            }
            multiply_tile<NT>(acc, prog, ph, p, mem, c);
            c.ring.advance_far(p.n[0] + p.n[1], prog.n_stages);
            mbar_wait(&mem.sh->sums_free, (c.n_tiles & 1) ^ 1);
            put_sums<NT>(mem.sums, acc, ph.groups);
            consumer_sync();
            c.set = mem.sh->set;
            store_tile<NT>(prog, ph, p, mem.sums, c.set);
            warp_arrive(&mem.sh->sums_free);
            if (!c.knows_set) clear_other_set(prog, c.set);
            c.knows_set = true;
            c.n_tiles++;
        }
    }
    if (c.knows_set) return;
    consumer_sync();
    clear_other_set(prog, mem.sh->set);
}

const int head_bytes = (sizeof(shared_head) + 127) / 128 * 128;

__host__ __device__ inline int ring_offset(int sums_bytes) {
    return (head_bytes + sums_bytes + STAGE_ALIGN_BYTES - 1) / STAGE_ALIGN_BYTES * STAGE_ALIGN_BYTES;
}

template <int NT>
__global__ void __launch_bounds__(THREADS, 1)
    mlp_rows32_kernel(const __grid_constant__ nmlp_cuda_mlp_rows32_program prog) {
    extern __shared__ __align__(STAGE_ALIGN_BYTES) unsigned char memory[];
    const block_memory mem = {reinterpret_cast<shared_head *>(memory), reinterpret_cast<float *>(memory + head_bytes),
                              memory + ring_offset(prog.sums_bytes)};
    init_ring(mem.sh->full, mem.sh->empty, prog.n_stages, THREADS / 32);
    if (threadIdx.x == 0) mbar_init(&mem.sh->sums_free, WARPS * WARP_ARRIVALS);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (threadIdx.x >> 5 == PRODUCER)
        produce(prog, mem);
    else
        multiply<NT>(prog, mem);
}

typedef void kernel_fn(const nmlp_cuda_mlp_rows32_program);

kernel_fn *kernel_for(int32_t s) {
    if (s <= 8) return mlp_rows32_kernel<1>;
    return s <= 16 ? mlp_rows32_kernel<2> : mlp_rows32_kernel<4>;
}

} // namespace

int32_t nmlp_cuda_mlp_rows32_groups_max(int32_t s) {
    if (s <= 8) return shape<1>::groups_max;
    return s <= 16 ? shape<2>::groups_max : shape<4>::groups_max;
}

int32_t nmlp_cuda_mlp_rows32_blocks_k_max(int32_t s) {
    if (s <= 8) return shape<1>::blocks_k_max;
    return s <= 16 ? shape<2>::blocks_k_max : shape<4>::blocks_k_max;
}

size_t nmlp_cuda_mlp_rows32_sums_bytes(int32_t s, int32_t groups) {
    int tokens = s <= 8 ? 8 : s <= 16 ? 16 : 32;
    return sizeof(float) * WARPS * (size_t)groups * (size_t)tokens * TOKEN_PITCH;
}

size_t nmlp_cuda_mlp_rows32_shared_bytes(const nmlp_cuda_mlp_rows32_program *p) {
    return (size_t)ring_offset(p->sums_bytes) + (size_t)p->n_stages * (size_t)p->stage_bytes;
}

int nmlp_cuda_mlp_rows32_prepare(size_t shared_bytes) {
    const int32_t sizes[] = {8, 16, 32};
    for (int i = 0; i < 3; i++) {
        cudaError_t e = cudaFuncSetAttribute((const void *)kernel_for(sizes[i]),
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

int nmlp_cuda_mlp_rows32_launch(const nmlp_cuda_mlp_rows32_program *p, int grid, void *stream) {
    return launch_resident(kernel_for(p->s), *p, grid, THREADS, nmlp_cuda_mlp_rows32_shared_bytes(p), stream);
}
