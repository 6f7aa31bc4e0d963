/* Keeping step: phases within a block, launches within the stream. */
#ifndef NMLP_CUDA_DECODE_DECODE_STEP_CUH
#define NMLP_CUDA_DECODE_DECODE_STEP_CUH

#include "cuda/decode/decode_block.cuh"

namespace {

/* The launch before this one in the stream has ended and what it wrote is seen. Weights may be copied earlier. */
__device__ __forceinline__ void await_launch_before() {
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

__device__ __forceinline__ bool is_last(const nmlp_cuda_program &prog, const program_place &at) {
    return at.phase + 1 == prog.n_phases && at.step + 1 == prog.n_steps;
}

__device__ __forceinline__ program_place place_after(const nmlp_cuda_program &prog, const program_place &at) {
    const bool wraps = at.phase + 1 == prog.n_phases;
    return {at.step + wraps, wraps ? 0 : at.phase + 1, at.number + 1};
}

/* The description of a phase starts for shared memory. */
__device__ void fetch_phase(const nmlp_cuda_program &prog, const program_place &at, shared_head *sh) {
    static_assert(sizeof(nmlp_cuda_phase) % 16 == 0, "phases are copied 16 bytes at a time");
    const int i = at.phase;
    const char *from = reinterpret_cast<const char *>(phase_at(prog, i));
    char *to = reinterpret_cast<char *>(&sh->phase[at.number & 1]);
    if (i < NMLP_CUDA_FIRST_PHASES) {
        for (int at = (threadIdx.x & 31) * 8; at < (int)sizeof(nmlp_cuda_phase); at += 32 * 8)
            *reinterpret_cast<uint64_t *>(to + at) = *reinterpret_cast<const uint64_t *>(from + at);
        return;
    }
    for (int at = (threadIdx.x & 31) * 16; at < (int)sizeof(nmlp_cuda_phase); at += 32 * 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + at)), "l"(from + at)
                     : "memory");
}

/* The description is there; its small vectors start for L2. */
__device__ void await_phase(const nmlp_cuda_program &prog, const program_place &at, shared_head *sh) {
    const int lane = threadIdx.x & 31;
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    const int place = at.number & 1;
    const nmlp_cuda_phase *ph = &sh->phase[place];
    if (lane == 0) {
        if (ph->kind == NMLP_CUDA_MATMUL) sh->units[place] = my_units(ph);
        sh->phase_index[place] = at.phase;
        sh->is_last[place] = is_last(prog, at);
    }
    if (ph->norm_weight)
        for (int k = lane * 32; k < ph->op[0].k; k += 32 * 32)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(ph->norm_weight + k));
}

__device__ __forceinline__ nmlp_cuda_state read_state(const nmlp_cuda_state *from) {
    return {__ldcg(&from->token), __ldcg(&from->length), __ldcg(&from->n_choices), __ldcg(&from->inverse_temperature),
            __ldcg(&from->seed)};
}

/* Tells this launch from those before: tickets only grow, by one per block and launch. */
__device__ uint32_t take_ticket(const nmlp_cuda_program &prog) {
    uint32_t launch = 0;
    if ((threadIdx.x & 31) == 0) launch = atomicAdd(prog.tickets, 1u) / gridDim.x;
    return __shfl_sync(0xffffffffu, launch, 0) * NMLP_CUDA_STEPS_MAX * (uint32_t)(prog.n_phases + 1);
}

} // namespace

#endif
