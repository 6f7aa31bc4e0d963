/* The persistent kernel that runs a streaming program (program.h). */
#include <cuda_runtime.h>

#include "cuda/decode/decode_program.h"
#include "cuda/cooperative_launch.cuh"
#include "cuda/decode/decode_attention.cuh"
#include "cuda/decode/decode_copy.cuh"
#include "cuda/decode/decode_finish.cuh"
#include "cuda/decode/decode_multiply.cuh"
#include "cuda/decode/decode_step.cuh"

namespace {

__device__ void finish(const nmlp_cuda_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    shared_head *sh = mem.sh;
    finisher done = {0, 0};
    meetings meeting = begin_meetings(sh);
    pick best = {};
    program_place at = {0, 0, 0};
    fetch_phase(prog, at, sh);
    await_phase(prog, at, sh);
    const bool early = sh->phase[0].kind == NMLP_CUDA_MATMUL; /* whose input has no tags yet */
    if (early) meet(meeting);
    await_launch_before();
    uint32_t tag_base = take_ticket(prog);
    if (prog.state) {
        const nmlp_cuda_state state = read_state(prog.state);
        best = begin_pick(state);
        if (lane == 0) sh->state = state;
    }
    if (lane == 0) sh->tag_base = tag_base;
    __syncwarp();
    if (!early) meet(meeting);
    for (;;) {
        const nmlp_cuda_phase *ph = &sh->phase[at.number & 1];
        const bool last = is_last(prog, at);
        const program_place next = place_after(prog, at);
        const uint32_t tag = tag_base + (uint32_t)at.phase + 1;
        if (!last) fetch_phase(prog, next, sh);
        if (!last)
            await_phase(prog, next,
                        sh); /* there is time: nothing is to be finished before the phase's input has come */
        if (ph->kind == NMLP_CUDA_MATMUL) {
            const bool logits = ph->output == NMLP_CUDA_LOGITS;
            if (logits && prog.n_steps > 1)
                __threadfence(); /* keys and values the block wrote, for who reads its best */
            finish_phase(prog, ph, sh->units[at.number & 1], mem, done, tag, best);
            if (logits) publish_best(prog, best, tag);
        } else if (ph->kind == NMLP_CUDA_PICK) {
            const nmlp_cuda_state state = pick_token(prog, sh->state, tag - 1);
            best = begin_pick(state);
            tag_base += (uint32_t)prog.n_phases + 1;
            if (prog.n_steps > 1) __threadfence();
            __syncwarp();
            if (lane == 0) {
                sh->state = state;
                sh->tag_base = tag_base;
            }
        }
        NOTE_CLOCK(at.phase, 4);
        if (last) break;
        meet(meeting);
        NOTE_CLOCK(at.phase, 5);
        at = next;
    }
}

template <int DB> __device__ void multiply(const nmlp_cuda_program &prog, const block_memory &mem) {
    shared_head *sh = mem.sh;
    const int warp = threadIdx.x >> 5;
    consumer at = {{warp, 0}, 0, warp};
    meetings meeting = begin_meetings(sh);
    ask_for_first_map(prog, warp);
    await_launch_before();
    for (const nmlp_cuda_phase *ph = sh->phase;; ph = &sh->phase[ph == sh->phase]) {
        meet(meeting); /* the description is there */
        const int place = ph != sh->phase;
        const int index = sh->phase_index[place];
        if (warp == 0) NOTE_CLOCK(index, 0);
        switch (ph->kind) {
        case NMLP_CUDA_MATMUL: multiply_phase<DB <= 2>(prog, ph, sh->units[place], mem, at, index); break;
        case NMLP_CUDA_ATTENTION:
            run_attention<DB>(ph, sh->tag_base + (uint32_t)ph->op[0].x_written_by, sh->tag_base + (uint32_t)index + 1,
                              reinterpret_cast<float *>(mem.x), sh->state.length);
            break;
        case NMLP_CUDA_EMBED: embed(ph, sh->state.token, sh->tag_base + (uint32_t)index + 1); break;
        default: break; /* the finishing warp picks */
        }
        if (sh->is_last[ph != sh->phase]) break;
        if (ph->kind == NMLP_CUDA_PICK) end_step_of_multiplier(mem, at, prog.n_slots);
    }
}

const int head_bytes = (sizeof(shared_head) + 127) / 128 * 128;

/* Head, sums, input, ring. */
__host__ __device__ size_t ring_offset(int32_t input_elems) {
    size_t bytes = head_bytes + 2 * UNIT_SUMS * sizeof(float) + (size_t)input_elems * 2;
    return (bytes + SLOT_ALIGN_BYTES - 1) / SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES;
}

__device__ __forceinline__ void init_barriers(const nmlp_cuda_program &prog, shared_head *sh) {
    init_ring(sh->full, sh->empty, prog.n_slots, THREADS / 32);
    if (threadIdx.x != 0) return;
    for (int i = 0; i < 2; i++) {
        mbar_init(&sh->sums_full[i], NMLP_CUDA_CONSUMER_WARPS * WARP_ARRIVALS);
        mbar_init(&sh->sums_empty[i], WARP_ARRIVALS);
    }
    mbar_init(&sh->squared, NMLP_CUDA_CONSUMER_WARPS * WARP_ARRIVALS);
    mbar_init(&sh->meeting, MEETING_THREADS);
}

/* Heads of up to DB * 32 columns: the registers that wide ones take would be missed elsewhere. */
template <int DB>
__global__ void __launch_bounds__(THREADS, 1) stream_kernel(const __grid_constant__ nmlp_cuda_program prog) {
    extern __shared__ __align__(SLOT_ALIGN_BYTES) unsigned char memory[];
    block_memory mem;
    mem.sh = reinterpret_cast<shared_head *>(memory);
    mem.ring = reinterpret_cast<__nv_bfloat16 *>(memory + ring_offset(prog.input_elems));
    mem.sums = reinterpret_cast<float *>(memory + head_bytes);
    mem.x = reinterpret_cast<__nv_bfloat16 *>(mem.sums + 2 * UNIT_SUMS);
#ifdef NMLP_CUDA_CLOCKS
    if (threadIdx.x == 0) mem.sh->begin_clock = clock64();
#endif
    init_barriers(prog, mem.sh);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    const int warp = threadIdx.x >> 5;
    if (warp == COPIER)
        copy_weights(prog, mem);
    else if (warp == FINISHER)
        finish(prog, mem);
    else
        multiply<DB>(prog, mem);
}

typedef void kernel_fn(const nmlp_cuda_program);

kernel_fn *kernel_for(const nmlp_cuda_program *program) {
    return program->head_dim <= 2 * DIMS_PER_BLOCK ? stream_kernel<2> : stream_kernel<4>;
}

} // namespace

size_t nmlp_cuda_stream_shared_bytes(int32_t input_elems, int32_t n_slots) {
    return ring_offset(input_elems) + (size_t)n_slots * TILE_ELEMS * 2;
}

int nmlp_cuda_attention_scratch_elems(int32_t head_dim) { return 2 * attention_scratch(head_dim); }

int nmlp_cuda_stream_prepare(size_t bytes) {
    cudaError_t e =
        cudaFuncSetAttribute((const void *)stream_kernel<2>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute((const void *)stream_kernel<4>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)bytes);
}

int nmlp_cuda_stream_launch(const nmlp_cuda_program *program, int grid, void *stream) {
    size_t shared_bytes = nmlp_cuda_stream_shared_bytes(program->input_elems, program->n_slots);
    return launch_resident(kernel_for(program), *program, grid, THREADS, shared_bytes, stream);
}
