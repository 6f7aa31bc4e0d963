/* The kernel of gemm_resident_sm90.h and its launch. */
#include "cuda/batch/gemm_resident_sm90_block.cuh"
#include "cuda/batch/gemm_resident_sm90_finish.cuh"
#include "cuda/batch/gemm_resident_sm90_multiply.cuh"
#include "cuda/cooperative_launch.cuh"
#include "cuda/mlp/mlp_cluster4_sm90.h"

namespace {

template <int NT, int N8_TILES>
__global__ void __launch_bounds__(THREADS, 2) gemm_resident_kernel(const __grid_constant__ nmlp_cuda_gemm_resident g) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    static_assert(N8_TILES % CLUSTER == 0, "every block of a cluster finishes as many n8 tiles");
    const bool first_lane = (threadIdx.x & 31) == 0;
    block_memory mem = lay_out<NT, N8_TILES>(g, memory);
    begin_dependents();
    if (first_lane) {
        sm90::prefetch_map(g.w_map);
        init_barriers(mem, N8_TILES / CLUSTER * shape<NT>::n8_sum_bytes);
        request_w<N8_TILES>(g, mem);
        sm90::prefetch_map(g.x_map);
    }
    __syncwarp();
    sm90::cluster_arrive();
    await_previous();
    if (first_lane) {
        asm volatile("fence.proxy.async.global;" ::: "memory"); /* X was written otherwise than TMA reads */
        request_x<NT>(g, mem);
    }
    __syncwarp();
    sm90::cluster_wait(); /* the other block's barrier is ready */
    row_squares<NT> squares;
    residual_input<items<NT, N8_TILES>::of_thread> before = {};
    load_squares<NT, WARPS>(squares, g.scale, g.s);
    if (g.residual.hidden) load_before<NT, N8_TILES>(before, g, mem);
    put_scales<NT, WARPS>(mem.sh->scales, squares, g.scale, g.s);
    multiply<NT, N8_TILES>(mem);
    __syncthreads();
    finish<NT, N8_TILES>(g, mem, before);
#endif
}

typedef void kernel_fn(const nmlp_cuda_gemm_resident);

template <int NT> kernel_fn *kernel_of(int32_t n8_tiles) {
    switch (n8_tiles) {
    case 2: return gemm_resident_kernel<NT, 2>;
    case 4: return gemm_resident_kernel<NT, 4>;
    case 6: return gemm_resident_kernel<NT, 6>;
    case 8: return gemm_resident_kernel<NT, 8>;
    default: return nullptr;
    }
}

kernel_fn *kernel_for(const nmlp_cuda_gemm_resident *g) {
    if (g->s <= 8) return kernel_of<1>(g->n8_tiles);
    return g->s <= 16 ? kernel_of<2>(g->n8_tiles) : kernel_of<4>(g->n8_tiles);
}

/* The next launch may begin as soon as all blocks of this one have. */
struct configuration {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config;
};

void configure(configuration *c, const nmlp_cuda_gemm_resident *g, void *stream) {
    const int n_clusters = (g->n + g->n8_tiles * N8 - 1) / (g->n8_tiles * N8);
    *c = {};
    c->attributes[0].id = cudaLaunchAttributeClusterDimension;
    c->attributes[0].val.clusterDim.x = CLUSTER;
    c->attributes[0].val.clusterDim.y = 1;
    c->attributes[0].val.clusterDim.z = 1;
    c->attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    c->attributes[1].val.programmaticStreamSerializationAllowed = 1;
    c->config.gridDim = dim3((unsigned)(n_clusters * CLUSTER));
    c->config.blockDim = dim3(THREADS);
    c->config.dynamicSmemBytes = nmlp_cuda_gemm_resident_shared_bytes(g);
    c->config.stream = (cudaStream_t)stream;
    c->config.attrs = c->attributes;
    c->config.numAttrs = 2;
}

} // namespace

size_t nmlp_cuda_gemm_resident_shared_bytes(const nmlp_cuda_gemm_resident *g) {
    const size_t tokens = (size_t)nmlp_cuda_mlp_cluster4_tokens(g->s);
    const size_t slab = (size_t)g->n8_tiles * N8_BYTES + tokens * ROW_BYTES;
    const size_t received = (size_t)g->n8_tiles / CLUSTER * ((tokens + 15) / 16) * M16_SUM_BYTES;
    return HEAD_BYTES + (size_t)most_slabs(g->n_slabs) * slab + received;
}

int nmlp_cuda_gemm_resident_clusters(const nmlp_cuda_gemm_resident *g, size_t shared_bytes) {
    cudaFuncAttributes found;
    configuration c;
    int n = 0;
    kernel_fn *kernel = kernel_for(g);
    if (!kernel) return 0;
    configure(&c, g, nullptr);
    c.config.numAttrs = 1; /* the cluster's size alone */
    bool ok =
        cudaFuncGetAttributes(&found, kernel) == cudaSuccess && found.ptxVersion >= 90 && found.binaryVersion >= 90;
    ok = ok &&
         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes) == cudaSuccess;
    /* the next launch's blocks come beside this one's */
    ok = ok && cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared) == cudaSuccess;
    ok = ok && cudaOccupancyMaxActiveClusters(&n, kernel, &c.config) == cudaSuccess;
    if (!ok) (void)cudaGetLastError();
    return ok ? n : 0;
}

int nmlp_cuda_gemm_resident_launch(const nmlp_cuda_gemm_resident *g, void *stream) {
    configuration c;
    configure(&c, g, stream);
    return cudaLaunchKernelEx(&c.config, kernel_for(g), *g);
}
