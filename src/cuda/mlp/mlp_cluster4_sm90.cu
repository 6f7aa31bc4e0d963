/* The kernel of mlp_cluster4_sm90.h: launch, roles of warps, the consumers' walk over GEMMs and passes. */
#include "cuda/mlp/mlp_cluster4_sm90.h"

#include <cuda_runtime.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#include "cuda/mlp/mlp_cluster4_sm90_producer.cuh"
#include "cuda/mlp/mlp_cluster4_sm90_split_k.cuh"
#endif

namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The other set is made ready for the next launch; the launch before this one, which used it, has ended. */
__device__ void clear_other_set(const nmlp_cuda_mlp_cluster4_program &prog, uint32_t launch) {
    uint4 *to = reinterpret_cast<uint4 *>(prog.exchange + (~launch & 1) * prog.set_bytes);
    const int64_t n = prog.set_bytes / 16;
    for (int64_t i = (int64_t)blockIdx.x * (WARPS * 32) + threadIdx.x; i < n; i += (int64_t)gridDim.x * (WARPS * 32))
        to[i] = make_uint4(unwritten, unwritten, unwritten, unwritten);
}

/* Whether the cluster's sums meet once more after that pass. */
__device__ __forceinline__ bool exchanges_again(const nmlp_cuda_mlp_cluster4_program &prog, const block_memory &mem,
                                                int product, int pass) {
    if (pass + 1 < prog.product[product].n_passes && tile_of_pass(prog, prog.product[product], mem, pass + 1).live)
        return true;
    for (int i = product + 1; i < prog.n_products; i++)
        if (prog.product[i].kind != NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K &&
            tile_of_pass(prog, prog.product[i], mem, 0).live)
            return true;
    return false;
}

/* Where a consumer warp stands. */
struct progress {
    ring_cursor ring; /* in its own stages */
    int n_exchanges;
    int64_t into_set; /* from set 0 to this launch's */
    bool odd;         /* launches count from 1: memory was zero before the first */
};

/* What a warp does in one pass. */
struct pass_work {
    block_tile p;
    warp_tile w;
    k_loop s;
};

template <int NT>
__device__ __forceinline__ pass_work make_pass(const nmlp_cuda_mlp_cluster4_program &prog,
                                               const nmlp_cuda_mlp_cluster4_product &ph, const block_tile &first,
                                               const block_memory &mem, int pass) {
    pass_work t;
    t.p = pass == 0 ? first : tile_of_pass(prog, ph, mem, pass);
    t.w = make_warp_tile(ph, t.p, mem.rank);
    const bool is_part = ph.kind == NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K;
    const x_layout layout = layout_of(ph, first);
    const uint32_t x = is_part ? shared_address(mem.act) : shared_address(mem.x) + (t.w.factor ? layout.second : 0);
    t.s = make_k_loop<NT>(prog, t.p, t.w, mem, x, is_part ? prog.act_pitch : layout.pitch);
    keep_in_register(t.p.row);
    keep_in_register(t.w.row);
    keep_in_register(t.w.n8_tile);
    keep_in_register(t.w.n8_tiles);
    keep_in_register(t.w.factor);
    keep_in_register(t.w.n_sources);
    keep_in_register(t.w.mine);
    keep_in_register(t.s.ring);
    keep_in_register(t.s.n_stages);
    keep_in_register(t.s.stage_bytes);
    keep_in_register(t.s.x);
    keep_in_register(t.s.x_pitch);
    keep_in_register(t.s.n_blocks);
    keep_in_register(t.s.k);
    keep_in_register(t.s.k_step);
    return t;
}

template <int NT>
__device__ __forceinline__ void run_passes(const nmlp_cuda_mlp_cluster4_program &prog, int product, pass_work t,
                                           const block_tile &first, const block_memory &mem, progress &at) {
    const nmlp_cuda_mlp_cluster4_product &ph = prog.product[product];
    for (int pass = 0; t.p.live;) {
        sums<NT> acc = {};
        multiply_tile<NT>(acc, t.s, t.w.n8_tiles, at.ring);
        if (ph.kind == NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K) {
            store_partials<NT>(acc, prog, t.w, mem, at.odd);
        } else {
            exchange<NT>(acc, prog, ph, t.p, t.w, mem, at.into_set, at.n_exchanges++);
            if (exchanges_again(prog, mem, product, pass))
                free_sums(mem); /* after the last time nothing is on its way to a block that may have ended */
        }
        if (++pass == ph.n_passes) break;
        t = make_pass<NT>(prog, ph, first, mem, pass);
    }
}

template <int NT> __device__ void multiply(const nmlp_cuda_mlp_cluster4_program &prog, const block_memory &mem) {
    progress at = {};
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* what the launch before wrote is seen */
    if (threadIdx.x == 0) mem.sh->launch = atomicAdd(prog.tickets, 1u) / gridDim.x;
    row_squares<NT> squares;
    load_squares<NT, WARPS>(squares, prog.scale, prog.s);
    for (int i = 0; i < prog.n_products; i++) {
        const nmlp_cuda_mlp_cluster4_product &ph = prog.product[i];
        const block_tile first = tile_of_pass(prog, ph, mem, 0);
        const pass_work t = make_pass<NT>(prog, ph, first, mem, 0);
        if (ph.kind == NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K) {
            mbar_wait(&mem.sh->act_full, 0);
        } else {
            stage_input<NT>(prog, ph, first, mem, at.into_set);
            if (i == 0) {
                put_scales<NT, WARPS>(mem.sh->scales, squares, prog.scale, prog.s);
                sm90::cluster_wait(); /* the other blocks' barriers are ready */
            }
            consumer_sync();
        }
        if (i == 0) {
            at.into_set = (int64_t)(mem.sh->launch & 1) * prog.set_bytes;
            at.odd = !(mem.sh->launch & 1);
        }
        run_passes<NT>(prog, i, t, first, mem, at);
        if (i == 0) clear_other_set(prog, mem.sh->launch);
        if (ph.kind == NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K) join_parts<NT>(prog, ph, mem, at.into_set, at.odd);
    }
}

/* Bytes the pair's results take in this cluster. */
__device__ __forceinline__ uint32_t act_bytes(const nmlp_cuda_mlp_cluster4_program &prog, const block_memory &mem,
                                              int tokens) {
    const nmlp_cuda_mlp_cluster4_product &pair =
        prog.product[prog.product[0].kind == NMLP_CUDA_MLP_CLUSTER4_GATE_UP ? 0 : 1];
    return max(0, min(pair.cluster_rows, pair.rows - mem.cluster * pair.cluster_rows)) * tokens * 2;
}

__device__ __forceinline__ void init_barriers(const nmlp_cuda_mlp_cluster4_program &prog, const block_memory &mem,
                                              int tokens) {
    init_ring(mem.sh->full, mem.sh->empty, prog.n_stages, THREADS / 32);
    if (threadIdx.x != 0) return;
    mbar_init(&mem.sh->sums_full, 1);
    mbar_init(&mem.sh->sums_free, CLUSTER * WARPS);
    mbar_init(&mem.sh->act_full, 1);
    fence_barrier_init();
    expect_bytes(&mem.sh->act_full, act_bytes(prog, mem, tokens));
}

/* The part's columns past the cluster's own. */
template <int NT>
__device__ __forceinline__ void clear_act(const nmlp_cuda_mlp_cluster4_program &prog, const block_memory &mem) {
    if (act_bytes(prog, mem, 1) + X_SKEW_BYTES == prog.act_pitch) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < shape<NT>::tokens * prog.act_pitch / 16; i += THREADS)
        reinterpret_cast<uint4 *>(mem.act)[i] = make_uint4(0, 0, 0, 0);
}

#endif

struct layout {
    int sums;
    int x;
    int act;
    int ring;
};

__host__ __device__ inline int aligned(int bytes, int to) { return (bytes + to - 1) / to * to; }

const int head_max_bytes = 1024;

__host__ __device__ inline layout lay_out(const nmlp_cuda_mlp_cluster4_program &p, int tokens) {
    layout l;
    l.sums = head_max_bytes;
    l.x = l.sums + aligned(p.sums_bytes, 128);
    l.act = l.x + aligned(p.x_bytes, 128);
    l.ring = aligned(l.act + tokens * p.act_pitch, 1024);
    return l;
}

template <int NT>
__global__ void __launch_bounds__((NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS + NMLP_CUDA_MLP_CLUSTER4_PRODUCER_WARPS) * 32,
                                  1) mlp_cluster4_kernel(const __grid_constant__ nmlp_cuda_mlp_cluster4_program prog) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    static_assert(sizeof(shared_head) <= head_max_bytes, "the head has its place");
    const layout l = lay_out(prog, shape<NT>::tokens);
    const block_memory mem = {reinterpret_cast<shared_head *>(memory),
                              memory + l.sums,
                              memory + l.x,
                              memory + l.act,
                              memory + l.ring,
                              (int)blockIdx.x % CLUSTER,
                              (int)blockIdx.x / CLUSTER};
    asm volatile("griddepcontrol.launch_dependents;");
    prefetch_maps(prog);
    init_barriers(prog, mem, shape<NT>::tokens);
    clear_act<NT>(prog, mem);
    __syncthreads();
    sm90::cluster_arrive();
    if (threadIdx.x >> 5 >= WARPS) {
        produce(prog, mem);
        __syncwarp();
        sm90::cluster_wait();
    } else {
        multiply<NT>(prog, mem);
    }
#endif
}

typedef void kernel_fn(const nmlp_cuda_mlp_cluster4_program);

kernel_fn *kernel_for(int32_t s) {
    if (s <= 8) return mlp_cluster4_kernel<1>;
    return s <= 16 ? mlp_cluster4_kernel<2> : mlp_cluster4_kernel<4>;
}

/* Cooperative, so that all blocks are resident; the next launch may begin to copy weights where this one has ended. */
struct configuration {
    cudaLaunchAttribute attributes[3];
    cudaLaunchConfig_t config;
};

void configure(configuration *c, int n_clusters, size_t shared_bytes, void *stream) {
    *c = {};
    c->attributes[0].id = cudaLaunchAttributeClusterDimension;
    c->attributes[0].val.clusterDim.x = NMLP_CUDA_MLP_CLUSTER4_BLOCKS;
    c->attributes[0].val.clusterDim.y = 1;
    c->attributes[0].val.clusterDim.z = 1;
    c->attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    c->attributes[1].val.programmaticStreamSerializationAllowed = 1;
    c->attributes[2].id = cudaLaunchAttributeCooperative;
    c->attributes[2].val.cooperative = 1;
    c->config.gridDim = dim3((unsigned)(n_clusters * NMLP_CUDA_MLP_CLUSTER4_BLOCKS));
    c->config.blockDim = dim3((NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS + NMLP_CUDA_MLP_CLUSTER4_PRODUCER_WARPS) * 32);
    c->config.dynamicSmemBytes = shared_bytes;
    c->config.stream = (cudaStream_t)stream;
    c->config.attrs = c->attributes;
    c->config.numAttrs = 3;
}

} // namespace

int32_t nmlp_cuda_mlp_cluster4_tokens(int32_t s) { return s <= 8 ? 8 : s <= 16 ? 16 : 32; }

size_t nmlp_cuda_mlp_cluster4_shared_bytes(const nmlp_cuda_mlp_cluster4_program *p) {
    return (size_t)lay_out(*p, nmlp_cuda_mlp_cluster4_tokens(p->s)).ring + (size_t)p->n_stages * (size_t)p->stage_bytes;
}

/* Of one kernel; 0 after an error, which is forgotten. */
static int clusters_of(const void *kernel, size_t shared_bytes) {
    cudaFuncAttributes found;
    configuration c;
    int n = 0;
    configure(&c, 1, shared_bytes, nullptr);
    c.config.numAttrs = 1; /* the cluster's size alone */
    bool ok =
        cudaFuncGetAttributes(&found, kernel) == cudaSuccess && found.ptxVersion >= 90 && found.binaryVersion >= 90;
    ok = ok &&
         cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes) == cudaSuccess;
    ok = ok && cudaOccupancyMaxActiveClusters(&n, kernel, &c.config) == cudaSuccess;
    if (!ok) (void)cudaGetLastError();
    return ok ? n : 0;
}

int nmlp_cuda_mlp_cluster4_clusters(size_t shared_bytes) {
    int least = clusters_of((const void *)kernel_for(8), shared_bytes);
    for (int32_t s = 16; s <= 32; s += 16) {
        int n = clusters_of((const void *)kernel_for(s), shared_bytes);
        least = n < least ? n : least;
    }
    return least;
}

int nmlp_cuda_mlp_cluster4_launch(const nmlp_cuda_mlp_cluster4_program *p, void *stream) {
    configuration c;
    configure(&c, p->n_clusters, nmlp_cuda_mlp_cluster4_shared_bytes(p), stream);
    return cudaLaunchKernelEx(&c.config, kernel_for(p->s), *p);
}
