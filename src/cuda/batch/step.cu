/* The kernel of step_program.h. */
#include "cuda/batch/step_program.h"
#include "cuda/mlp/mlp_rows32_sm80_producer.cuh"
#include "cuda/mlp/mlp_rows32_sm80_epilogue.cuh"
#include "cuda/mlp/mlp_rows32_sm80_consumer.cuh"
#include "cuda/batch/decode_attention_paged.cuh"
#include "cuda/batch/step_epilogue.cuh"
#include "cuda/cooperative_launch.cuh"

static_assert(sizeof(nmlp_cuda_step_program) <= 32764, "arguments of a kernel");
static_assert((int)ATTENTION_WARPS == (int)WARPS, "all consumer warps attend");

namespace {

/* ---- producer ---- */

/* A value that the compiler keeps in a register: arguments would be read again after every barrier. */
template <class T> __device__ __forceinline__ T kept(T v) {
    asm volatile("" : "+r"(v));
    return v;
}

__device__ __forceinline__ const void *kept(const void *v) {
    asm volatile("" : "+l"(v));
    return v;
}

struct step_producer {
    ring_cursor at;
    ring_cursor landing;
    int in_flight;
    int n_stages;
    int n_in_flight;
    int stage_bytes;
};

__device__ __forceinline__ unsigned char *acquire(const block_memory &mem, step_producer &c) {
    if (c.in_flight == c.n_in_flight) {
        mbar_wait(&mem.sh->full[c.landing.stage], c.landing.parity);
        c.landing.advance(1, c.n_stages);
    } else {
        c.in_flight++;
    }
    mbar_wait(&mem.sh->empty[c.at.stage], c.at.parity ^ 1);
    return mem.ring + c.at.stage * c.stage_bytes;
}

#if __CUDA_ARCH__ >= 900
/* One stage of weights, which leave L2 before anything else does. */
__device__ __forceinline__ void fill(unsigned char *stage, uint64_t *full, const void *map, int row, int block,
                                     int bytes) {
    if ((threadIdx.x & 31) != 0) return;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(stage)),
                 "l"(map), "r"(0), "r"(row), "r"(block), "r"(shared_address(full)), "l"(EVICT_FIRST)
                 : "memory");
}
#endif

__device__ __forceinline__ void produce_phase(const nmlp_cuda_mlp_rows32_phase &ph, const block_memory &mem,
                                              step_producer &c) {
    const void *const map0 = kept(ph.f[0].map);
    const void *const map1 = kept(ph.f[1].map);
    const int blocks_k = kept(ph.blocks_k);
    const int bytes = kept(ph.groups * ph.blocks_k * TILE_BYTES);
    const int n = n_tiles(ph);
    for (int r = first_tile(ph); r < n; r += gridDim.x) {
        const block_tile p = tile_at(ph, r);
        const int n0 = kept(p.n[0]);
        const int n1 = kept(ph.n_factors == 2 ? p.n[1] : 0);
        for (int run = 0; run < max(n0, n1); run += FACTOR_RUN) {
            for (int j = 0; j < 2 * FACTOR_RUN; j++) {
                const int m = j / FACTOR_RUN;
                const int i = run + j % FACTOR_RUN;
                if (i >= (m ? n1 : n0)) continue;
                unsigned char *const stage = acquire(mem, c);
                const int block = ((m ? p.first[1] : p.first[0]) + i) * blocks_k;
#if __CUDA_ARCH__ >= 900
                fill(stage, &mem.sh->full[c.at.stage], m ? map1 : map0, p.row, block, bytes);
#else
                (void)map0, (void)map1, (void)bytes;
                load_stage(stage, &mem.sh->full[c.at.stage], ph, ph.f[m], p.row, block, threadIdx.x & 31);
#endif
                c.at.advance(1, c.n_stages);
            }
        }
    }
}

__device__ void produce_step(const nmlp_cuda_step_program &prog, const block_memory &mem) {
    step_producer c = {{0, 0}, {0, 0}, 0, kept(prog.n_stages), kept(prog.n_in_flight), kept(prog.stage_bytes)};
    const int MAPS_AHEAD = 3;
    const int lane = threadIdx.x & 31;
    const int n = kept(prog.n_phases);
    if (lane < 2 * MAPS_AHEAD && lane / 2 < n) prefetch_map(prog.phase[lane / 2].gemm.f[lane % 2].map);
    for (int i = 0; i < n; i++) {
        if (prog.phase[i].output != NMLP_CUDA_STEP_ATTENTION) produce_phase(prog.phase[i].gemm, mem, c);
        if (lane < 2 && i + MAPS_AHEAD < n) prefetch_map(prog.phase[i + MAPS_AHEAD].gemm.f[lane].map);
    }
}

/* ---- consumers ---- */

struct step_link {
    __device__ __forceinline__ void sync() const { consumer_sync(); }
    __device__ __forceinline__ void load(head_pairs &p, const float *from, int half) const {
        bool there;
        do {
            there = true;
#pragma unroll
            for (int i = 0; i < ROPE_PAIRS; i++) {
                const int d = (int)(threadIdx.x & 31) + i * 32;
                p.x[i] = d < half ? get_float(from + d) : 0.0f;
                p.y[i] = d < half ? get_float(from + d + half) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < ROPE_PAIRS; i++) there = there && is_written(p.x[i]) && is_written(p.y[i]);
        } while (!there);
        __syncwarp();
    }
    __device__ __forceinline__ void put(__nv_bfloat16 *to, float a, float b) const { put_pair(to, a, b); }
};

/* The result of a row that is nothing but padding. */
__device__ __forceinline__ void attend_nothing(const nmlp_cuda_paged_attention &a, const attention_unit &unit) {
    const int groups = head_groups(a.n_heads, a.n_kv_heads);
    const int per_kv = a.n_heads / a.n_kv_heads;
    const int in_group = unit.group % groups * HEADS;
    const int head = unit.group / groups * per_kv + in_group;
    const int n = min((int)HEADS, per_kv - in_group) * a.head_dim;
    if (unit.chunk > 0) return;
    __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(a.out) + (int64_t)unit.row * a.out_pitch + head * a.head_dim;
    for (int i = threadIdx.x * 2; i < n; i += WARPS * 32 * 2) put_pair(out + i, 0, 0);
}

template <int LANES>
__device__ __forceinline__ void run_attention(const nmlp_cuda_step_program &prog, const nmlp_cuda_step_phase &ph,
                                              const block_memory &mem, uint32_t set) {
    nmlp_cuda_paged_attention a = prog.attention;
    const int64_t into_set = set * prog.set_bytes;
    a.qkv = reinterpret_cast<const float *>(static_cast<const char *>(ph.gemm.f[0].x) + into_set);
    a.out = static_cast<char *>(ph.gemm.out) + into_set;
    a.bias = ph.bias;
    a.q_norm = ph.q_norm;
    a.k_norm = ph.k_norm;
    a.k_pages = ph.k_pages;
    a.v_pages = ph.v_pages;
    const int per_row = a.n_kv_heads * head_groups(a.n_heads, a.n_kv_heads);
    const int per_chunk = prog.s * per_row;
    attention_shared &shared = *reinterpret_cast<attention_shared *>(mem.sums);
    for (int i = blockIdx.x; i < per_chunk * a.n_chunks; i += gridDim.x) {
        const attention_unit unit = {i % per_chunk / per_row, i % per_row, i / per_chunk};
        consumer_sync(); /* nobody reads sums or the unit before any more */
        if (a.rows.sequence[unit.row] < 0)
            attend_nothing(a, unit);
        else
            attend<LANES>(a, shared, unit, step_link{});
    }
    consumer_sync();
}

/* The other set is made ready for the next launch, some of it after every phase. */
__device__ __forceinline__ void clear_part(const nmlp_cuda_step_program &prog, uint32_t set, int phase) {
    uint4 *to = reinterpret_cast<uint4 *>(prog.exchange + (set ^ 1) * prog.set_bytes);
    const int64_t n = prog.set_bytes / 16;
    const int64_t per_phase = (n + prog.n_phases - 1) / prog.n_phases;
    const int64_t end = min(n, (phase + 1) * per_phase);
    for (int64_t i = phase * per_phase + (int64_t)blockIdx.x * (WARPS * 32) + threadIdx.x; i < end;
         i += (int64_t)gridDim.x * (WARPS * 32))
        to[i] = make_uint4(unwritten, unwritten, unwritten, unwritten);
}

template <int NT>
__device__ __forceinline__ void multiply_phase(const nmlp_cuda_step_program &prog, const nmlp_cuda_step_phase &ph,
                                               const block_memory &mem, step_shared *sh, consumer &c, int &slot) {
    const nmlp_cuda_mlp_rows32_phase &gemm = ph.gemm;
    bool first = true;
    for (int r = first_tile(gemm); r < n_tiles(gemm); r += gridDim.x) {
        const block_tile p = tile_at(gemm, r);
        const bool scales = ph.scaled && first;
        float acc[shape<NT>::groups_max][NT][4] = {};
        square_sums<NT> squares;
        add_input<NT> before;
        multiply_tile<NT>(acc, prog, gemm, p, mem, c, [&] {
            if (scales) ask_squares(squares, prog, ph, c.set);
        });
        c.ring.advance_far(p.n[0] + (gemm.n_factors == 2 ? p.n[1] : 0), prog.n_stages);
        if (scales) slot ^= 1;
        if (scales) put_scales(sh->scales[slot], squares, prog, ph, c.set);
        if (ph.output == NMLP_CUDA_STEP_ADD) ask_before(before, prog, ph, p, c.set);
        mbar_wait(&mem.sh->sums_free, (c.n_tiles & 1) ^ 1);
        put_sums<NT>(mem.sums, acc, gemm.groups);
        consumer_sync();
        store_step_tile<NT>(prog, ph, p, mem.sums, sh, sh->scales[slot], before, c.set);
        warp_arrive(&mem.sh->sums_free);
        c.n_tiles++;
        first = false;
    }
}

template <int NT, int LANES>
__device__ void multiply_step(const nmlp_cuda_step_program &prog, const block_memory &mem, step_shared *sh) {
    consumer c = {{0, 0}, 0, 0, false};
    int slot = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory"); /* what the launch before wrote is seen */
#endif
    if (threadIdx.x == 0) mem.sh->set = atomicAdd(prog.tickets, 1u) / gridDim.x & 1;
    consumer_sync();
    c.set = mem.sh->set;
    for (int i = 0; i < prog.n_phases; i++) {
        const nmlp_cuda_step_phase &ph = prog.phase[i];
        if (ph.output == NMLP_CUDA_STEP_ATTENTION)
            run_attention<LANES>(prog, ph, mem, c.set);
        else
            multiply_phase<NT>(prog, ph, mem, sh, c, slot);
        clear_part(prog, c.set, i);
    }
}

const int step_head_bytes = (sizeof(step_shared) + 127) / 128 * 128;

__host__ __device__ inline int step_ring_offset(int sums_bytes) {
    return (step_head_bytes + sums_bytes + STAGE_ALIGN_BYTES - 1) / STAGE_ALIGN_BYTES * STAGE_ALIGN_BYTES;
}

/* NT times 8 rows; a key is LANES times 8 columns at most. */
template <int NT, int LANES>
__global__ void __launch_bounds__(THREADS, 1) step_kernel(const __grid_constant__ nmlp_cuda_step_program prog) {
    extern __shared__ __align__(STAGE_ALIGN_BYTES) unsigned char memory[];
    step_shared *const sh = reinterpret_cast<step_shared *>(memory);
    const block_memory mem = {&sh->head, reinterpret_cast<float *>(memory + step_head_bytes),
                              memory + step_ring_offset(prog.sums_bytes)};
    init_ring(mem.sh->full, mem.sh->empty, prog.n_stages, THREADS / 32);
    if (threadIdx.x == 0) mbar_init(&mem.sh->sums_free, WARPS * WARP_ARRIVALS);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (threadIdx.x >> 5 == PRODUCER)
        produce_step(prog, mem);
    else
        multiply_step<NT, LANES>(prog, mem, sh);
}

enum { EMBED_THREADS = 256 };

__global__ void step_embed_kernel(const nmlp_cuda_step_embed e) {
    __shared__ float sums[EMBED_THREADS / 32];
    wait_previous();
    const int row = blockIdx.x;
    const bool live = e.rows.sequence[row] >= 0;
    const __nv_bfloat16 *from =
        static_cast<const __nv_bfloat16 *>(e.embedding) + (int64_t)(live ? e.rows.ids[row] : 0) * e.pitch;
    float sum = 0;
    for (int i = threadIdx.x * 2; i < e.pitch; i += EMBED_THREADS * 2) {
        const __nv_bfloat162 pair = *reinterpret_cast<const __nv_bfloat162 *>(from + i);
        const float2 w = *reinterpret_cast<const float2 *>(e.weight + i);
        const float2 h = live ? __bfloat1622float2(pair) : make_float2(0, 0);
        const int64_t at = (int64_t)row * e.pitch + i;
        *reinterpret_cast<float2 *>(e.hidden + at) = h;
        *reinterpret_cast<__nv_bfloat162 *>(static_cast<__nv_bfloat16 *>(e.x) + at) =
            __floats2bfloat162_rn(h.x * w.x, h.y * w.y);
        sum += h.x * h.x + h.y * h.y;
    }
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    float all = 0;
    for (int w = 0; w < EMBED_THREADS / 32; w++) all += sums[w];
    e.squares[row] = all;
}

typedef void step_kernel_fn(const nmlp_cuda_step_program);

/* By the width of heads. */
step_kernel_fn *const kernels[2] = {step_kernel<1, 8>, step_kernel<1, 16>};

} // namespace

size_t nmlp_cuda_step_shared_bytes(const nmlp_cuda_step_program *p) {
    return (size_t)step_ring_offset(p->sums_bytes) + (size_t)p->n_stages * (size_t)p->stage_bytes;
}

size_t nmlp_cuda_step_attention_bytes(void) { return sizeof(attention_shared); }

int nmlp_cuda_step_prepare(size_t shared_bytes) {
    for (int i = 0; i < 2; i++) {
        const cudaError_t e = cudaFuncSetAttribute((const void *)kernels[i],
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

int nmlp_cuda_step_launch(const nmlp_cuda_step_program *p, int grid, void *stream) {
    return launch_resident(kernels[p->attention.head_dim > 64], *p, grid, THREADS, nmlp_cuda_step_shared_bytes(p),
                           stream);
}

int nmlp_cuda_step_embed_launch(const nmlp_cuda_step_embed *e, void *stream) {
    return launch_dependent(step_embed_kernel, dim3((unsigned)e->n), EMBED_THREADS, 0, stream, *e);
}
