/* The kernel of gemm_resident_sm90.h. */
#include "cuda/batch/gemm_resident_sm90.h"

#include <cuda_runtime.h>

#include "cuda/decode/decode_ring.cuh"
#include "cuda/l2_prefetch.cuh"
#include "cuda/mlp/mlp_cluster4_sm90.h"
#include "cuda/residual.cuh"

namespace {

enum {
    WARPS = 8,
    THREADS = WARPS * 32,
    N8 = NMLP_CUDA_GEMM_RESIDENT_N8,
    COLS = NMLP_CUDA_GEMM_RESIDENT_COLS,
    ROW_BYTES = COLS * 2, /* of a slab */
    N8_BYTES = N8 * ROW_BYTES,
    M16_SUM_BYTES = 32 * 16, /* sums of 16 tokens and an n8 tile, as the lanes have them */
    HEAD_BYTES = 1024
};

struct shared_head {
    uint64_t w_full[WARPS];
    uint64_t x_full[WARPS];
    uint64_t sums_full; /* the other block's */
    float scales[32];   /* of rows */
};
static_assert(sizeof(shared_head) <= HEAD_BYTES, "the head has its place");

/* NT times 8 tokens. */
template <int NT> struct shape {
    static const int tokens = NT * 8;
    static const int tiles = (NT + 1) / 2; /* of 16 tokens: m of the mma */
    static const int slab_bytes = tokens * ROW_BYTES;
    static const int n8_sum_bytes = tiles * M16_SUM_BYTES;
};

__host__ __device__ inline int most_slabs(int n_slabs, int cluster) { return (n_slabs + cluster - 1) / cluster; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* What a block has: slab i of it is of columns (first + i) * 64 and belongs to warp i modulo WARPS. */
struct block_memory {
    shared_head *sh;
    unsigned char *w;        /* [slabs][rows of W]; then, in each warp's first slab, its sums */
    unsigned char *x;        /* [slabs][tokens] */
    unsigned char *received; /* [n8 tiles of this block]: sums of the other block */
    int rank;
    int row; /* first of W */
    int first;
    int n;
};

template <int NT, int N8_TILES, int CLUSTER>
__device__ __forceinline__ block_memory lay_out(const nmlp_cuda_gemm_resident &g, unsigned char *memory) {
    block_memory mem;
    mem.sh = reinterpret_cast<shared_head *>(memory);
    mem.w = memory + HEAD_BYTES;
    mem.x = mem.w + most_slabs(g.n_slabs, CLUSTER) * N8_TILES * N8_BYTES;
    mem.received = mem.x + most_slabs(g.n_slabs, CLUSTER) * shape<NT>::slab_bytes;
    mem.rank = (int)blockIdx.x % CLUSTER;
    mem.row = (int)blockIdx.x / CLUSTER * N8_TILES * N8;
    mem.first = g.n_slabs * mem.rank / CLUSTER;
    mem.n = g.n_slabs * (mem.rank + 1) / CLUSTER - mem.first;
    return mem;
}

__device__ __forceinline__ void expect_bytes(uint64_t *bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void load_box(unsigned char *to, uint64_t *full, const void *map, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(full))
                 : "memory");
}

/* The same for what is read once, which leaves L2 first. */
__device__ __forceinline__ void load_box_once(unsigned char *to, uint64_t *full, const void *map, int column, int row) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(full)), "l"(EVICT_FIRST)
                 : "memory");
}

__device__ __forceinline__ int slabs_of_warp(const block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    return warp < mem.n ? (mem.n - warp + WARPS - 1) / WARPS : 0;
}

/* One lane of every warp. */
template <int N8_TILES> __device__ __forceinline__ void request_w(const nmlp_cuda_gemm_resident &g, block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    uint64_t *full = &mem.sh->w_full[warp];
    expect_bytes(full, slabs_of_warp(mem) * N8_TILES * N8_BYTES);
    for (int i = warp; i < mem.n; i += WARPS)
        load_box_once(mem.w + i * N8_TILES * N8_BYTES, full, g.w_map, (mem.first + i) * COLS, mem.row);
}

template <int NT> __device__ __forceinline__ void request_x(const nmlp_cuda_gemm_resident &g, block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    uint64_t *full = &mem.sh->x_full[warp];
    expect_bytes(full, slabs_of_warp(mem) * shape<NT>::slab_bytes);
    for (int i = warp; i < mem.n; i += WARPS)
        load_box(mem.x + i * shape<NT>::slab_bytes, full, g.x_map, (mem.first + i) * COLS, 0);
}

/* One lane of every warp: its barriers, and of the first one that of the other block's sums. */
__device__ __forceinline__ void init_barriers(const block_memory &mem, int received_bytes) {
    const int warp = threadIdx.x >> 5;
    mbar_init(&mem.sh->w_full[warp], 1);
    mbar_init(&mem.sh->x_full[warp], 1);
    if (warp == 0) mbar_init(&mem.sh->sums_full, 1);
    fence_barrier_init();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (warp == 0 && received_bytes) expect_bytes(&mem.sh->sums_full, received_bytes);
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Where the 16 bytes `chunk` of a row of a slab are: at place chunk ^ row, modulo 8. */
__device__ __forceinline__ uint32_t in_slab(int row, int chunk) { return row * ROW_BYTES + ((chunk ^ row) & 7) * 16; }

/* 32 columns of X, 16 for each step. Of eight tokens one instruction has all. */
template <int NT>
__device__ __forceinline__ void load_x(uint32_t (&a)[2][shape<NT>::tiles][4], uint32_t slab, int half) {
    const int lane = threadIdx.x & 31;
    if (NT == 1) {
        uint32_t r[4];
        load_matrices(r, slab + in_slab(lane & 7, half * 4 + (lane >> 3)));
#pragma unroll
        for (int step = 0; step < 2; step++) {
            a[step][0][0] = r[step * 2];
            a[step][0][2] = r[step * 2 + 1];
            a[step][0][1] = a[step][0][3] = 0;
        }
    } else {
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++)
                load_matrices(a[step][i], slab + in_slab(i * 16 + (lane & 15), half * 4 + step * 2 + (lane >> 4)));
    }
}

template <int NT, int N8_TILES> using sums = float[N8_TILES][shape<NT>::tiles][4];

template <int NT, int N8_TILES>
__device__ __forceinline__ void multiply_half(sums<NT, N8_TILES> &acc, uint32_t w, uint32_t x, int half) {
    const int lane = threadIdx.x & 31;
    uint32_t a[2][shape<NT>::tiles][4];
    uint32_t b[N8_TILES][4];
    load_x<NT>(a, x, half);
#pragma unroll
    for (int j = 0; j < N8_TILES; j++)
        load_matrices(b[j], w + j * N8_BYTES + in_slab(lane & 7, half * 4 + (lane >> 3)));
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int j = 0; j < N8_TILES; j++)
#pragma unroll
            for (int i = 0; i < shape<NT>::tiles; i++) mma(acc[j][i], a[step][i], b[j][step * 2], b[j][step * 2 + 1]);
}

/* The warp's slabs; its sums then lie where its first slab of W was. */
template <int NT, int N8_TILES> __device__ __forceinline__ void multiply(const block_memory &mem) {
    const int warp = threadIdx.x >> 5;
    const int lane = threadIdx.x & 31;
    sums<NT, N8_TILES> acc = {};
    if (warp >= mem.n) return;
    mbar_wait(&mem.sh->w_full[warp], 0);
    mbar_wait(&mem.sh->x_full[warp], 0);
#pragma unroll 1
    for (int i = warp; i < mem.n; i += WARPS)
#pragma unroll
        for (int half = 0; half < 2; half++)
            multiply_half<NT, N8_TILES>(acc, shared_address(mem.w + i * N8_TILES * N8_BYTES),
                                        shared_address(mem.x + i * shape<NT>::slab_bytes), half);
    __syncwarp();
    static_assert(shape<NT>::n8_sum_bytes <= N8_BYTES, "sums are no larger than a slab");
#pragma unroll
    for (int j = 0; j < N8_TILES; j++)
#pragma unroll
        for (int i = 0; i < shape<NT>::tiles; i++)
            *reinterpret_cast<float4 *>(mem.w + warp * N8_TILES * N8_BYTES + j * shape<NT>::n8_sum_bytes +
                                        i * M16_SUM_BYTES + lane * 16) =
                make_float4(acc[j][i][0], acc[j][i][1], acc[j][i][2], acc[j][i][3]);
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* What all warps have there, in order. */
template <int N8_TILES> __device__ __forceinline__ float4 add_warps(const block_memory &mem, int at) {
    float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < WARPS; k++)
        if (k < mem.n) v = add4(v, *reinterpret_cast<const float4 *>(mem.w + k * N8_TILES * N8_BYTES + at));
    return v;
}

__device__ __forceinline__ uint32_t mapa(uint32_t address, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ __forceinline__ void send(uint32_t to, uint32_t bar, float4 v) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
        "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)),
        "r"(bar)
        : "memory");
}

/* Four results of a thread: two neighbouring rows of W for a token, and for that 8 later. */
struct result_place {
    int row;
    int token;
    int n; /* rows of the two that exist */
};

/* N8 tile j of the cluster is its block j modulo CLUSTER's. Place i of those. */
template <int NT, int CLUSTER>
__device__ __forceinline__ result_place place_of(const nmlp_cuda_gemm_resident &g, const block_memory &mem, int i) {
    const int per_n8 = shape<NT>::tiles * 32;
    result_place p;
    p.row = mem.row + (i / per_n8 * CLUSTER + mem.rank) * N8 + i % 4 * 2;
    p.token = i % per_n8 / 32 * 16 + i % 32 / 4;
    p.n = max(0, min(2, g.n - p.row));
    return p;
}

__device__ __forceinline__ void store_pair(const nmlp_cuda_gemm_resident &g, int token, const result_place &p, float a,
                                           float b) {
    float *to = g.y + (int64_t)token * g.y_pitch + p.row;
    if (token >= g.s) return;
    if (p.n > 1)
        *reinterpret_cast<float2 *>(to) = make_float2(a, b);
    else if (p.n > 0)
        *to = a;
}

/* What the thread's results are added to: asked for before there are any. */
template <int ITEMS> struct residual_input {
    residual_pair v[ITEMS][2];
};

template <int NT, int N8_TILES, int CLUSTER> struct items {
    static const int all = N8_TILES / CLUSTER * shape<NT>::tiles * 32;
    static const int of_thread = (all + THREADS - 1) / THREADS;
};

__device__ __forceinline__ int n_wanted(const nmlp_cuda_gemm_resident &g, const result_place &p, int half) {
    return p.token + half * 8 < g.s ? p.n : 0;
}

template <int NT, int N8_TILES, int CLUSTER>
__device__ __forceinline__ void load_before(residual_input<items<NT, N8_TILES, CLUSTER>::of_thread> &in,
                                            const nmlp_cuda_gemm_resident &g, const block_memory &mem) {
    typedef items<NT, N8_TILES, CLUSTER> I;
#pragma unroll
    for (int k = 0; k < I::of_thread; k++) {
        const int i = (int)threadIdx.x + k * THREADS;
        const result_place p = place_of<NT, CLUSTER>(g, mem, i);
#pragma unroll
        for (int half = 0; half < 2; half++)
            in.v[k][half] = load_residual(g.residual, p.token + half * 8, p.row, i < I::all ? n_wanted(g, p, half) : 0);
    }
}

/* The other block's n8 tiles' sums go there; then the block finishes its own. */
template <int NT, int N8_TILES, int CLUSTER>
__device__ __forceinline__ void finish(const nmlp_cuda_gemm_resident &g, const block_memory &mem,
                                       const residual_input<items<NT, N8_TILES, CLUSTER>::of_thread> &in) {
    typedef items<NT, N8_TILES, CLUSTER> I;
    const int per_n8 = shape<NT>::tiles * 32;
    if (CLUSTER == 2) {
        const int other = mem.rank ^ 1;
        const uint32_t bar = mapa(shared_address(&mem.sh->sums_full), other);
        const uint32_t to = mapa(shared_address(mem.received), other);
        for (int i = threadIdx.x; i < I::all; i += THREADS)
            send(to + i * 16, bar,
                 add_warps<N8_TILES>(mem, (i / per_n8 * CLUSTER + other) * shape<NT>::n8_sum_bytes + i % per_n8 * 16));
    }
#pragma unroll
    for (int k = 0; k < I::of_thread; k++) {
        const int i = (int)threadIdx.x + k * THREADS;
        if (i >= I::all) break; /* whole warps */
        const result_place p = place_of<NT, CLUSTER>(g, mem, i);
        float4 v =
            add_warps<N8_TILES>(mem, (i / per_n8 * CLUSTER + mem.rank) * shape<NT>::n8_sum_bytes + i % per_n8 * 16);
        if (CLUSTER == 2) {
            mbar_wait(&mem.sh->sums_full, 0);
            v = add4(v, *reinterpret_cast<const float4 *>(mem.received + i * 16));
        }
        const float y[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
        for (int half = 0; half < (NT == 1 ? 1 : 2); half++) {
            const int token = p.token + half * 8;
            const float scale = mem.sh->scales[token];
            const float2 two = make_float2(y[half][0] * scale, y[half][1] * scale);
            if (!g.residual.hidden) {
                store_pair(g, token, p, two.x, two.y);
                continue;
            }
            const int n = n_wanted(g, p, half);
            const float squares = add_residual(g.residual, in.v[k][half], token, p.row, n, two);
            put_squares(g.residual, token, p.row, n > 0 && i % 4 == 0, 1, squares);
        }
    }
}

/* One lane of every warp, for the block of that number in the MLP's launch. */
__device__ __forceinline__ void ask_ahead(const nmlp_cuda_gemm_ahead &a) {
    const int blocks = NMLP_CUDA_MLP_CLUSTER4_BLOCKS;
    const int first_row = (int)blockIdx.x / blocks * a.cluster_rows;
    const int first_slab = a.n_slabs * ((int)blockIdx.x % blocks) / blocks;
    const int end = min(first_row + a.cluster_rows, a.rows);
    if (!a.map[0]) return;
    for (int i = threadIdx.x >> 5; i < a.asked_for * 2 * a.n_boxes; i += WARPS) {
        const int row = first_row + i % a.n_boxes * a.box_rows;
        const int rest = i / a.n_boxes;
        if (row < end) prefetch_box(a.map[rest % 2], (first_slab + rest / 2) * COLS, row);
    }
}

/* Relaxed: the barriers are made visible by a fence of their own, and nothing else is handed over. */
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

#endif

template <int NT, int N8_TILES, int CLUSTER>
__global__ void __launch_bounds__(THREADS, 2) gemm_resident_kernel(const __grid_constant__ nmlp_cuda_gemm_resident g) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    static_assert(N8_TILES % CLUSTER == 0, "every block of a cluster finishes as many n8 tiles");
    const bool first_lane = (threadIdx.x & 31) == 0;
    block_memory mem = lay_out<NT, N8_TILES, CLUSTER>(g, memory);
    asm volatile("griddepcontrol.launch_dependents;");
    if (first_lane) {
        prefetch_map(g.w_map);
        init_barriers(mem, CLUSTER == 2 ? N8_TILES / CLUSTER * shape<NT>::n8_sum_bytes : 0);
        request_w<N8_TILES>(g, mem);
        prefetch_map(g.x_map);
        ask_ahead(g.ahead);
    }
    __syncwarp();
    if (CLUSTER == 2) cluster_arrive();
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (first_lane) {
        asm volatile("fence.proxy.async.global;" ::: "memory"); /* X was written otherwise than TMA reads */
        request_x<NT>(g, mem);
    }
    __syncwarp();
    if (CLUSTER == 2) cluster_wait(); /* the other block's barrier is ready */
    row_squares<NT> squares;
    residual_input<items<NT, N8_TILES, CLUSTER>::of_thread> before = {};
    load_squares<NT, WARPS>(squares, g.scale, g.s);
    if (g.residual.hidden) load_before<NT, N8_TILES, CLUSTER>(before, g, mem);
    put_scales<NT, WARPS>(mem.sh->scales, squares, g.scale, g.s);
    multiply<NT, N8_TILES>(mem);
    __syncthreads();
    finish<NT, N8_TILES, CLUSTER>(g, mem, before);
#endif
}

typedef void kernel_fn(const nmlp_cuda_gemm_resident);

template <int NT> kernel_fn *kernel_of(int32_t n8_tiles, int32_t cluster) {
    switch (n8_tiles * 2 + (cluster == 2)) {
    case 5: return gemm_resident_kernel<NT, 2, 2>;
    case 9: return gemm_resident_kernel<NT, 4, 2>;
    case 13: return gemm_resident_kernel<NT, 6, 2>;
    case 17: return gemm_resident_kernel<NT, 8, 2>;
    case 4: return gemm_resident_kernel<NT, 2, 1>;
    case 6: return gemm_resident_kernel<NT, 3, 1>;
    case 8: return gemm_resident_kernel<NT, 4, 1>;
    default: return nullptr;
    }
}

kernel_fn *kernel_for(const nmlp_cuda_gemm_resident *g) {
    if (g->s <= 8) return kernel_of<1>(g->n8_tiles, g->cluster);
    return g->s <= 16 ? kernel_of<2>(g->n8_tiles, g->cluster) : kernel_of<4>(g->n8_tiles, g->cluster);
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
    c->attributes[0].val.clusterDim.x = (unsigned)g->cluster;
    c->attributes[0].val.clusterDim.y = 1;
    c->attributes[0].val.clusterDim.z = 1;
    c->attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    c->attributes[1].val.programmaticStreamSerializationAllowed = 1;
    c->config.gridDim = dim3((unsigned)(n_clusters * g->cluster));
    c->config.blockDim = dim3(THREADS);
    c->config.dynamicSmemBytes = nmlp_cuda_gemm_resident_shared_bytes(g);
    c->config.stream = (cudaStream_t)stream;
    c->config.attrs = c->attributes;
    c->config.numAttrs = 2;
}

} // namespace

size_t nmlp_cuda_gemm_resident_shared_bytes(const nmlp_cuda_gemm_resident *g) {
    const size_t tokens = g->s <= 8 ? 8 : g->s <= 16 ? 16 : 32;
    const size_t slab = (size_t)g->n8_tiles * N8_BYTES + tokens * ROW_BYTES;
    const size_t received = g->cluster == 2 ? (size_t)g->n8_tiles / 2 * ((tokens + 15) / 16) * M16_SUM_BYTES : 0;
    return HEAD_BYTES + (size_t)most_slabs(g->n_slabs, g->cluster) * slab + received;
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
    ok = ok && cudaOccupancyMaxActiveClusters(&n, kernel, &c.config) == cudaSuccess;
    if (!ok) (void)cudaGetLastError();
    return ok ? n : 0;
}

int nmlp_cuda_gemm_resident_launch(const nmlp_cuda_gemm_resident *g, void *stream) {
    configuration c;
    configure(&c, g, stream);
    return cudaLaunchKernelEx(&c.config, kernel_for(g), *g);
}
