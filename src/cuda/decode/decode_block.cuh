/* What the warps of a decode block share: their roles, its shared memory, its share of a phase, and how they move from
 * phase to phase together. */
#ifndef NMLP_CUDA_DECODE_DECODE_BLOCK_CUH
#define NMLP_CUDA_DECODE_DECODE_BLOCK_CUH

#include "cuda/decode/decode_program.h"
#include "cuda/decode/decode_input.cuh"
#include "cuda/decode/decode_ring.cuh"

namespace {

/* Warps 0..7 multiply, one finishes what they summed, one copies. */
enum { EPILOGUE = NMLP_CUDA_DECODE_CONSUMER_WARPS, PRODUCER, THREADS = (PRODUCER + 1) * 32 };

/* Sums of one warp and matrix, and of one unit; there is room for two units. */
enum {
    WARP_SUMS = NMLP_CUDA_DECODE_ROWS_MAX * NMLP_CUDA_DECODE_TILE_ROWS,
    UNIT_SUMS = NMLP_CUDA_DECODE_CONSUMER_WARPS * 2 * WARP_SUMS
};

#ifdef NMLP_CUDA_CLOCKS
__device__ void note_clock(const nmlp_cuda_decode_program &prog, int phase, int event, long long begin) {
    if ((threadIdx.x & 31) == 0 && prog.clocks)
        prog.clocks[((int64_t)blockIdx.x * prog.n_phases + phase) * NMLP_CUDA_DECODE_CLOCK_EVENTS + event] =
            clock64() - begin;
}
#define NOTE_CLOCK(phase, event) note_clock(prog, phase, event, mem.sh->begin_clock)
#else
#define NOTE_CLOCK(phase, event) (void)0
#endif

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A lane's part of 32 columns of the staged rows: column g of the mma is row g, the high half of token g/2 or the low
 * one. Lanes of columns past the last token ask for nothing, which leaves shared memory to the weights. */
__device__ __forceinline__ void load_staged(uint32_t (&r)[4], uint32_t at, bool wanted) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.shared.v4.b32 {%0,%1,%2,%3}, [%4]; }"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
                 : "r"(at), "r"((uint32_t)wanted)
                 : "memory");
}

enum { TILE_BLOCKS = NMLP_CUDA_DECODE_TILE_COLS / TILE_BLOCK };

/* Where a consumer warp stands; it takes every CONSUMER_WARPS-th tile. */
struct consumer {
    ring_cursor ring;
    unsigned n_done; /* units */
    int skip;        /* tiles until the next of its own */
};

/* The block's part of a phase, the same for every role. */
__device__ __forceinline__ unit_range my_units(const nmlp_cuda_decode_phase *ph) {
    unit_range r;
    r.groups = (ph->n + NMLP_CUDA_DECODE_TILE_ROWS - 1) / NMLP_CUDA_DECODE_TILE_ROWS;
    unsigned n_units = (unsigned)r.groups * (unsigned)ph->n_chunks;
    r.begin = (int)(n_units * blockIdx.x / gridDim.x);
    r.end = (int)(n_units * (blockIdx.x + 1) / gridDim.x);
    return r;
}

__device__ __forceinline__ const nmlp_cuda_decode_phase *phase_at(const nmlp_cuda_decode_program &prog, int i) {
    return i < NMLP_CUDA_DECODE_FIRST_PHASES ? prog.first + i : prog.phases + i;
}

/* Where things lie in the block's shared memory. */
struct block_memory {
    shared_head *sh;
    float *sums;
    __nv_bfloat16 *x;
    __nv_bfloat16 *ring;
};

enum { TILE_ELEMS = NMLP_CUDA_DECODE_TILE_ROWS * NMLP_CUDA_DECODE_TILE_COLS };

/* Of a split-K chunk; the narrower matrix of two may have none left of it. */
__device__ __forceinline__ int n_tiles(int cols) {
    return (max(cols, 0) + NMLP_CUDA_DECODE_TILE_COLS - 1) / NMLP_CUDA_DECODE_TILE_COLS;
}

/* Room for a unit's sums of this warp, once the epilogue warp has read those that were there. */
__device__ __forceinline__ float *await_sums(const block_memory &mem, const consumer &at) {
    mbar_wait(&mem.sh->sums_empty[at.n_done & 1], (at.n_done >> 1 & 1) ^ 1);
    return mem.sums + (at.n_done & 1) * UNIT_SUMS + (threadIdx.x >> 5) * 2 * WARP_SUMS;
}

/* What the warps of a phase read: columns of a piece of K, for each matrix. */
struct phase_input {
    int len[2];  /* columns */
    int second;  /* where matrix 1 finds its rows */
    int x_pitch; /* between rows */
};

__device__ __forceinline__ phase_input input_of(const nmlp_cuda_decode_phase *ph, int piece) {
    const int k_chunk = ph->k_chunk;
    const int start = piece * k_chunk;
    const int second = ph->same_x ? 0 : k_chunk;
    return {{min(ph->op[0].k - start, k_chunk), min(ph->op[1].k - start, k_chunk)},
            second,
            (ph->n_matrices == 2 && second ? 2 : 1) * k_chunk + NMLP_CUDA_DECODE_ROW_SKEW};
}

/* ---- phases within a block, launches within the stream ---- */

/* The launch before this one in the stream has ended and what it wrote is seen. Weights may be copied earlier. */
__device__ __forceinline__ void wait_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Multiplying and finishing warps together, before a phase. racecheck does not see that a barrier which warps reach at
 * different places in the code orders them, not even __syncthreads; checking builds meet at an mbarrier, which it does
 * see. */
enum { MEETING_THREADS = CONSUMERS + 32 };

#ifdef NMLP_CUDA_RACECHECK
struct meetings {
    uint64_t *bar;
    uint32_t parity;
};

__device__ __forceinline__ void meet(meetings &m) {
    mbar_arrive(m.bar);
    mbar_wait(m.bar, m.parity);
    m.parity ^= 1;
}

__device__ __forceinline__ meetings begin_meetings(shared_head *sh) { return {&sh->meeting, 0}; }
#else
struct meetings {};

__device__ __forceinline__ void meet(meetings &) {
    static_assert(MEETING_THREADS == 288, "meet counts threads");
    asm volatile("bar.sync 2, 288;" ::: "memory");
}

__device__ __forceinline__ meetings begin_meetings(shared_head *) { return {}; }
#endif

/* Where a role stands in a launch. */
struct program_place {
    int step;
    int phase;
    unsigned number; /* of phases before, all steps together; its parity says where the description is */
};

__device__ __forceinline__ bool is_last(const nmlp_cuda_decode_program &prog, const program_place &at) {
    return at.phase + 1 == prog.n_phases && at.step + 1 == prog.n_steps;
}

__device__ __forceinline__ program_place place_after(const nmlp_cuda_decode_program &prog, const program_place &at) {
    const bool wraps = at.phase + 1 == prog.n_phases;
    return {at.step + wraps, wraps ? 0 : at.phase + 1, at.number + 1};
}

/* The description of a phase starts for shared memory. */
__device__ void fetch_phase(const nmlp_cuda_decode_program &prog, const program_place &at, shared_head *sh) {
    static_assert(sizeof(nmlp_cuda_decode_phase) % 16 == 0, "phases are copied 16 bytes at a time");
    const int i = at.phase;
    const char *from = reinterpret_cast<const char *>(phase_at(prog, i));
    char *to = reinterpret_cast<char *>(&sh->phase[at.number & 1]);
    if (i < NMLP_CUDA_DECODE_FIRST_PHASES) {
        for (int at = (threadIdx.x & 31) * 8; at < (int)sizeof(nmlp_cuda_decode_phase); at += 32 * 8)
            *reinterpret_cast<uint64_t *>(to + at) = *reinterpret_cast<const uint64_t *>(from + at);
        return;
    }
    for (int at = (threadIdx.x & 31) * 16; at < (int)sizeof(nmlp_cuda_decode_phase); at += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + at)), "l"(from + at)
                     : "memory");
}

/* The description is there; its small vectors start for L2. */
__device__ void wait_phase(const nmlp_cuda_decode_program &prog, const program_place &at, shared_head *sh) {
    const int lane = threadIdx.x & 31;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    const int place = at.number & 1;
    const nmlp_cuda_decode_phase *ph = &sh->phase[place];
    if (lane == 0) {
        if (ph->kind == NMLP_CUDA_DECODE_MATMUL) sh->units[place] = my_units(ph);
        sh->phase_index[place] = at.phase;
        sh->is_last[place] = is_last(prog, at);
    }
    if (ph->norm_weight)
        for (int k = lane * 32; k < ph->op[0].k; k += 32 * 32)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(ph->norm_weight + k));
}

__device__ __forceinline__ nmlp_cuda_decode_state read_state(const nmlp_cuda_decode_state *from) {
    return {__ldcg(&from->token), __ldcg(&from->length), __ldcg(&from->n_choices), __ldcg(&from->inverse_temperature),
            __ldcg(&from->seed)};
}

/* Tells this launch from those before: tickets only grow, by one per block and launch. */
__device__ uint32_t take_ticket(const nmlp_cuda_decode_program &prog) {
    uint32_t launch = 0;
    if ((threadIdx.x & 31) == 0) launch = atomicAdd(prog.tickets, 1u) / gridDim.x;
    return __shfl_sync(0xffffffffu, launch, 0) * NMLP_CUDA_DECODE_STEPS_MAX * (uint32_t)(prog.n_phases + 1);
}

} // namespace

#endif
