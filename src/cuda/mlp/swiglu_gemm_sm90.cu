/* SwiGLU GEMM for Hopper: out = silu(x0 w0^T) * (x1 w1^T), warp-specialised and persistent.
 *
 * A cluster of two thread blocks computes 2 x 128 rows of the same 256 columns; each block loads half of w's tile and
 * multicasts it to both. In a block, one producer thread issues TMA loads into a ring buffer of 4 stages (x [128,64], w
 * [256,64], 128-byte swizzle); two consumer warpgroups run wgmma m64n256k16 over 64 rows each, first for gate, then for
 * up. The epilogue overlaps the main loop: silu(gate) is evaluated while the tensor cores multiply up, and results are
 * stored by TMA while they multiply the next tile's gate. */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/mlp/swiglu_gemm_sm90.h"
#include "cuda/sm90.cuh"

namespace {

enum {
    ROWS = NMLP_CUDA_SWIGLU_GEMM_ROWS,
    COLS = NMLP_CUDA_SWIGLU_GEMM_COLS,
    STEP = NMLP_CUDA_SWIGLU_GEMM_STEP,
    CLUSTER = 2,
    STAGES = 4,
    CONSUMER_GROUPS = 2, /* of consumer warps */
    GROUP_THREADS = 128,
    GROUP_ROWS = ROWS / CONSUMER_GROUPS,
    THREADS = (1 + CONSUMER_GROUPS) * GROUP_THREADS,
    X_BYTES = ROWS * STEP * 2,
    W_BYTES = COLS * STEP * 2,
    STAGE_BYTES = X_BYTES + W_BYTES,
    BOXES = 2, /* of results a group has in shared memory */
    BOX_COLS = STEP,
    BOX_BYTES = GROUP_ROWS * BOX_COLS * 2,
    OUT_BYTES = CONSUMER_GROUPS * BOXES * BOX_BYTES,
    SHARED_BYTES = STAGES * STAGE_BYTES + OUT_BYTES + 2 * STAGES * 8,
    SWIZZLE_PAIRS = 8,         /* of rows, that run beside each other so that w's tiles are shared in L2 */
    ACCUMULATORS = 128,        /* of a thread: 64 rows by 256 columns over 128 threads */
    PACKED = ACCUMULATORS / 2, /* the same as bf16, two in a word */
    SLICES = 8,                /* of what is done with them beside the first steps of the next product */
    SLICE = PACKED / SLICES,
    SLICES_PER_BOX = SLICES / (COLS / BOX_COLS)
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Shared memory of a block. */
struct shared_layout {
    uint32_t stages;
    uint32_t out;
    uint32_t full; /* barriers, 8 bytes each */
    uint32_t empty;
};

struct cursor {
    int stage;
    uint32_t parity;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

struct tile {
    int row;
    int col;
};

/* Tiles in an order that keeps those in flight close to a square. */
__device__ __forceinline__ tile tile_at(const nmlp_cuda_swiglu_gemm_sm90 &job, int i, uint32_t rank) {
    const int per_band = SWIZZLE_PAIRS * job.col_tiles;
    const int band = i / per_band;
    const int in_band = i - band * per_band;
    const int pairs = min((int)SWIZZLE_PAIRS, job.row_pairs - band * SWIZZLE_PAIRS);
    const int pair = band * SWIZZLE_PAIRS + in_band % pairs;
    return {(pair * CLUSTER + (int)rank) * ROWS, in_band / pairs * COLS};
}

/* One thread. A stage is written in both blocks, so it must be empty in both. */
__device__ void produce_tiles(const nmlp_cuda_swiglu_gemm_sm90 &job, const shared_layout &at, uint32_t rank) {
    const int n_tiles = job.row_pairs * job.col_tiles;
    cursor c = {0, 0};
    for (int i = blockIdx.x / CLUSTER; i < n_tiles; i += gridDim.x / CLUSTER) {
        const tile t = tile_at(job, i, rank);
        for (int m = 0; m < 2; m++) {
            for (int k = 0; k < job.steps[m]; k++) {
                const uint32_t x = at.stages + c.stage * STAGE_BYTES;
                const uint32_t w = x + X_BYTES + rank * (W_BYTES / CLUSTER);
                const uint32_t full = at.full + c.stage * 8;
                sm90::mbar_wait(at.empty + c.stage * 8, c.parity ^ 1);
                sm90::mbar_expect(full, STAGE_BYTES);
                sm90::load_box(x, &job.x[m], k * STEP, t.row, full);
                asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
                             "multicast::cluster [%0], [%1, {%2, %3}], "
                             "[%4], %5;" ::"r"(w),
                             "l"(&job.w[m]), "r"(k * STEP), "r"(t.col + (int)rank * (COLS / CLUSTER)), "r"(full),
                             "h"((uint16_t)3)
                             : "memory");
                c.advance();
            }
        }
    }
}

__device__ __forceinline__ void mma_step(float (&c)[ACCUMULATORS], uint64_t a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, p, 1, 1, 0, 0; }"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
                   "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]),
                   "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
                   "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), "+f"(c[49]), "+f"(c[50]),
                   "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]),
                   "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]), "+f"(c[64]),
                   "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]),
                   "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]),
                   "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]),
                   "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]),
                   "+f"(c[93]), "+f"(c[94]), "+f"(c[95]), "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]),
                   "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]), "+f"(c[104]), "+f"(c[105]), "+f"(c[106]),
                   "+f"(c[107]), "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]), "+f"(c[112]), "+f"(c[113]),
                   "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]), "+f"(c[120]),
                   "+f"(c[121]), "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])
                 : "l"(a), "l"(b), "r"(add));
}

/* A consumer warpgroup is done with a stage: it tells both blocks. */
__device__ __forceinline__ void release_stage(uint32_t empty) {
    const uint32_t thread = threadIdx.x % GROUP_THREADS;
    if (thread >= CLUSTER) return;
    asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, "
                 "[there]; }" ::"r"(empty),
                 "r"(thread)
                 : "memory");
}

/* Gives the tensor cores 64 columns of k: c (+)= x w^T. */
__device__ __forceinline__ void begin_step(float (&c)[ACCUMULATORS], const shared_layout &at, const cursor &ring,
                                           int group, bool first) {
    const uint32_t base = at.stages + ring.stage * STAGE_BYTES;
    sm90::mbar_wait(at.full + ring.stage * 8, ring.parity);
    const uint64_t x = sm90::descriptor(base + group * (GROUP_ROWS * STEP * 2));
    const uint64_t w = sm90::descriptor(base + X_BYTES);
    sm90::wgmma_begin();
#pragma unroll
    for (int j = 0; j < STEP / 16; j++) mma_step(c, x + j * 2, w + j * 2, !first || j);
    sm90::wgmma_commit();
}

/* The stage of the step before is free once that step is done. */
__device__ __forceinline__ void end_step(const shared_layout &at, cursor &ring, uint32_t &last, bool first) {
    if (!first) {
        sm90::wgmma_wait<1>();
        release_stage(last);
    }
    last = at.empty + ring.stage * 8;
    ring.advance();
}

/* c = 64 rows of x times 256 of w, over all k. overlapped(i) for i < SLICES is what the warps do meanwhile, beside as
 * many of the first steps as there are. It is on both sides of the branch because the compiler would else move it out
 * of the steps. */
template <class Overlapped>
__device__ __forceinline__ void multiply(float (&c)[ACCUMULATORS], const shared_layout &at, cursor &ring, int steps,
                                         int group, const Overlapped overlapped) {
    uint32_t last = 0;
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        if (i < steps) {
            begin_step(c, at, ring, group, i == 0);
            overlapped(i);
            end_step(at, ring, last, i == 0);
        } else {
            overlapped(i);
        }
    }
    for (int k = SLICES; k < steps; k++) {
        begin_step(c, at, ring, group, false);
        end_step(at, ring, last, false);
    }
    sm90::wgmma_wait<0>();
    if (steps) release_stage(last);
}

__device__ __forceinline__ uint32_t as_bf16(float a, float b) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/* silu of two columns. One reciprocal serves both; exponents are cut so that the product of two denominators stays
 * finite. */
__device__ __forceinline__ uint32_t silu(uint32_t gate) {
    const float a = 1.0f + __expf(fminf(-low(gate), 40.0f));
    const float b = 1.0f + __expf(fminf(-high(gate), 40.0f));
    const float r = __fdividef(1.0f, a * b);
    return as_bf16(low(gate) * (r * b), high(gate) * (r * a));
}

__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory"); }

/* 64 columns of the group's results through shared memory to memory. */
__device__ __forceinline__ void write_box(const nmlp_cuda_swiglu_gemm_sm90 &job, const uint32_t (&packed)[PACKED],
                                          const shared_layout &at, tile t, int group, int b) {
    const int thread = threadIdx.x % GROUP_THREADS;
    const int lane = thread & 31;
    const int row = (thread >> 5) * 16 + (lane & 15);
    const uint32_t box = at.out + (group * BOXES + b % BOXES) * BOX_BYTES;
    if (thread == 0)
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(BOXES - 1)
                     : "memory"); /* what was in this box has been read */
    group_sync(group);
#pragma unroll
    for (int j = 0; j < BOX_COLS / 8; j += 2) {
        const int i = (b * BOX_COLS / 8 + j) * 2;
        const uint32_t to = box + row * (BOX_COLS * 2) + ((((j + (lane >> 4)) ^ row) & 7) << 4);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(packed[i]),
                     "r"(packed[i + 1]), "r"(packed[i + 2]), "r"(packed[i + 3])
                     : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    group_sync(group);
    if (thread != 0) return;
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&job.out),
                 "r"(t.col + b * BOX_COLS), "r"(t.row + group * GROUP_ROWS), "r"(box)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ void consume_tiles(const nmlp_cuda_swiglu_gemm_sm90 &job, const shared_layout &at, uint32_t rank,
                              int group) {
    const int n_tiles = job.row_pairs * job.col_tiles;
    cursor ring = {0, 0};
    uint32_t packed[PACKED]; /* gate, then its silu, then the results, until they are written */
    tile before = {-1, 0};
    for (int i = blockIdx.x / CLUSTER; i < n_tiles; i += gridDim.x / CLUSTER) {
        float c[ACCUMULATORS];
        multiply(c, at, ring, job.steps[0], group, [&](int slice) {
            if (slice % SLICES_PER_BOX == 1 && before.row >= 0)
                write_box(job, packed, at, before, group, slice / SLICES_PER_BOX);
        });
#pragma unroll
        for (int j = 0; j < PACKED; j++) packed[j] = as_bf16(c[2 * j], c[2 * j + 1]);
        multiply(c, at, ring, job.steps[1], group, [&](int slice) {
#pragma unroll
            for (int j = 0; j < SLICE; j++) packed[slice * SLICE + j] = silu(packed[slice * SLICE + j]);
        });
#pragma unroll
        for (int j = 0; j < PACKED; j++) packed[j] = as_bf16(low(packed[j]) * c[2 * j], high(packed[j]) * c[2 * j + 1]);
        before = tile_at(job, i, rank);
    }
#pragma unroll
    for (int b = 0; b < COLS / BOX_COLS; b++)
        write_box(job, packed, at, before, group, b); /* no block is without a tile */
    if (threadIdx.x % GROUP_THREADS == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#endif

__global__ void __launch_bounds__(THREADS, 1)
    swiglu_gemm_sm90_kernel(const __grid_constant__ nmlp_cuda_swiglu_gemm_sm90 job) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(1024) unsigned char memory[];
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const uint32_t base = sm90::shared_address(memory);
    const shared_layout at = {base, base + STAGES * STAGE_BYTES, base + STAGES * STAGE_BYTES + OUT_BYTES,
                              base + STAGES * STAGE_BYTES + OUT_BYTES + STAGES * 8};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            sm90::mbar_init(at.full + i * 8, 1);
            sm90::mbar_init(at.empty + i * 8, CONSUMER_GROUPS * CLUSTER);
        }
        sm90::fence_barrier_init();
    }
    cluster_sync();
    if (threadIdx.x < GROUP_THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) produce_tiles(job, at, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume_tiles(job, at, rank, (int)threadIdx.x / GROUP_THREADS - 1);
    }
    __syncwarp();
    cluster_sync(); /* neither block ends while the other may still write to it */
#endif
}

} // namespace

int nmlp_cuda_swiglu_gemm_has_sm90(void) {
    cudaFuncAttributes found;
    return cudaFuncGetAttributes(&found, (const void *)swiglu_gemm_sm90_kernel) == cudaSuccess &&
           found.ptxVersion >= 90 && found.binaryVersion >= 90;
}

int nmlp_cuda_swiglu_gemm_sm90_launch(const nmlp_cuda_swiglu_gemm_sm90 *job, int n_multiprocessors, void *stream) {
    int n_tiles = job->row_pairs * job->col_tiles;
    int clusters = n_multiprocessors / CLUSTER < n_tiles ? n_multiprocessors / CLUSTER : n_tiles;
    cudaError_t e = cudaFuncSetAttribute((const void *)swiglu_gemm_sm90_kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
    if (e != cudaSuccess) return e;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = CLUSTER;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(clusters * CLUSTER));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_BYTES;
    config.stream = (cudaStream_t)stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, swiglu_gemm_sm90_kernel, *job);
}
