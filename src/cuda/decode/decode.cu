/* The persistent kernel that runs a decode program (decode_program.h). */
#include <cuda_runtime.h>

#include "cuda/decode/decode_program.h"
#include "cuda/cooperative_launch.cuh"
#include "cuda/decode/decode_attention.cuh"
#include "cuda/decode/decode_producer.cuh"
#include "cuda/decode/decode_producer_quant.cuh"
#include "cuda/decode/decode_epilogue.cuh"
#include "cuda/decode/decode_consumer.cuh"

namespace {

__device__ void finish(const nmlp_cuda_decode_program &prog, const block_memory &mem) {
    const int lane = threadIdx.x & 31;
    shared_head *sh = mem.sh;
    epilogue_state done = {0, 0};
    meetings meeting = begin_meetings(sh);
    pick best = {};
    program_place at = {0, 0, 0};
    fetch_phase(prog, at, sh);
    wait_phase(prog, at, sh);
    const bool early = sh->phase[0].kind == NMLP_CUDA_DECODE_MATMUL; /* whose input has no tags yet */
    if (early) meet(meeting);
    wait_previous_launch();
    uint32_t tag_base = take_ticket(prog);
    if (prog.state) {
        const nmlp_cuda_decode_state state = read_state(prog.state);
        best = begin_pick(state);
        if (lane == 0) sh->state = state;
    }
    if (lane == 0) sh->tag_base = tag_base;
    __syncwarp();
    if (!early) meet(meeting);
    for (;;) {
        const nmlp_cuda_decode_phase *ph = &sh->phase[at.number & 1];
        const bool last = is_last(prog, at);
        const program_place next = place_after(prog, at);
        const uint32_t tag = tag_base + (uint32_t)at.phase + 1;
        if (!last) fetch_phase(prog, next, sh);
        if (!last)
            wait_phase(prog, next, sh); /* there is time: nothing is to be finished before the phase's input has come */
        if (ph->kind == NMLP_CUDA_DECODE_MATMUL) {
            const bool logits = ph->output == NMLP_CUDA_DECODE_LOGITS;
            if (logits && prog.n_steps > 1)
                __threadfence(); /* keys and values the block wrote, for who reads its best */
            epilogue_phase(prog, ph, sh->units[at.number & 1], mem, done, tag, best);
            if (logits) publish_best(prog, best, tag);
        } else if (ph->kind == NMLP_CUDA_DECODE_PICK) {
            const nmlp_cuda_decode_state state = pick_token(prog, sh->state, tag - 1);
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

template <int DB, bool QUANTISED>
__device__ void multiply(const nmlp_cuda_decode_program &prog, const block_memory &mem) {
    shared_head *sh = mem.sh;
    const int warp = threadIdx.x >> 5;
    consumer at = {{warp, 0}, 0, warp};
    meetings meeting = begin_meetings(sh);
    prefetch_first_map(prog, warp);
    wait_previous_launch();
    for (const nmlp_cuda_decode_phase *ph = sh->phase;; ph = &sh->phase[ph == sh->phase]) {
        meet(meeting); /* the description is there */
        const int place = ph != sh->phase;
        const int index = sh->phase_index[place];
        if (warp == 0) NOTE_CLOCK(index, 0);
        switch (ph->kind) {
        case NMLP_CUDA_DECODE_MATMUL:
            multiply_phase<DB <= 2, QUANTISED>(prog, ph, sh->units[place], mem, at, index);
            break;
        case NMLP_CUDA_DECODE_ATTENTION:
            run_attention<DB>(ph, sh->tag_base + (uint32_t)ph->op[0].x_written_by, sh->tag_base + (uint32_t)index + 1,
                              reinterpret_cast<float *>(mem.x), sh->state.length, prog.table);
            break;
        case NMLP_CUDA_DECODE_EMBED: embed(ph, sh->state.token, sh->tag_base + (uint32_t)index + 1); break;
        default: break; /* the epilogue warp picks */
        }
        if (sh->is_last[ph != sh->phase]) break;
        if (ph->kind == NMLP_CUDA_DECODE_PICK) consumer_end_step(mem, at, prog.n_stages);
    }
}

const int head_bytes = (sizeof(shared_head) + 127) / 128 * 128;

/* Head, sums, input, ring. */
__host__ __device__ size_t ring_offset(int32_t input_elems) {
    size_t bytes = head_bytes + 2 * UNIT_SUMS * sizeof(float) + (size_t)input_elems * 2;
    return (bytes + STAGE_ALIGN_BYTES - 1) / STAGE_ALIGN_BYTES * STAGE_ALIGN_BYTES;
}

__device__ __forceinline__ void init_barriers(const nmlp_cuda_decode_program &prog, shared_head *sh) {
    init_ring(sh->full, sh->empty, prog.n_stages, THREADS / 32);
    if (threadIdx.x != 0) return;
    for (int i = 0; i < 2; i++) {
        mbar_init(&sh->sums_full[i], NMLP_CUDA_DECODE_CONSUMER_WARPS * WARP_ARRIVALS);
        mbar_init(&sh->sums_empty[i], WARP_ARRIVALS);
    }
    mbar_init(&sh->squared, NMLP_CUDA_DECODE_CONSUMER_WARPS * WARP_ARRIVALS);
    mbar_init(&sh->meeting, MEETING_THREADS);
}

/* Heads of up to DB * 32 columns: the registers that wide ones take would be missed elsewhere. So would the code of
 * quantised weights where there are none. */
template <int DB, bool QUANTISED>
__global__ void __launch_bounds__(THREADS, 1) decode_kernel(const __grid_constant__ nmlp_cuda_decode_program prog) {
    extern __shared__ __align__(STAGE_ALIGN_BYTES) unsigned char memory[];
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
    if (warp == PRODUCER && QUANTISED)
        produce_quantised(prog, mem);
    else if (warp == PRODUCER)
        produce(prog, mem);
    else if (warp == EPILOGUE)
        finish(prog, mem);
    else
        multiply<DB, QUANTISED>(prog, mem);
}

typedef void kernel_fn(const nmlp_cuda_decode_program);

kernel_fn *const kernels[2][2] = {{decode_kernel<2, false>, decode_kernel<2, true>},
                                  {decode_kernel<4, false>, decode_kernel<4, true>}};

kernel_fn *kernel_for(const nmlp_cuda_decode_program *program) {
    return kernels[program->head_dim > 2 * DIMS_PER_BLOCK][program->quantised != 0];
}

/* Codes 15 and 240 (the latter in rows g + 8) of 16 columns times 2^64, as multiply_tile has them. */
__global__ void multiply_subnormals(float *out) {
    const uint32_t codes[4] = {0x000f000fu, 0x00f000f0u, 0x000f000fu, 0x00f000f0u};
    const uint32_t row = 0x5f805f80u;
    const float none[4] = {0, 0, 0, 0};
    float sum[4];
    mma_from(sum, codes, row, row, none);
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = sum[i];
}

} // namespace

int nmlp_cuda_decode_check_subnormals(int *exact) {
    float sums[32 * 4];
    float *out = nullptr;
    *exact = 0;
    cudaError_t e = cudaMalloc(&out, sizeof sums);
    if (e != cudaSuccess) return e;
    multiply_subnormals<<<1, 32>>>(out);
    e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost);
    (void)cudaFree(out);
    if (e != cudaSuccess) return e;
    *exact = 1;
    for (int i = 0; i < 32 * 4; i++)
        if (sums[i] != 16 * (i % 4 < 2 ? 15 : 240) * 0x1p-69f) *exact = 0;
    return cudaSuccess;
}

size_t nmlp_cuda_decode_shared_bytes(int32_t input_elems, int32_t n_stages, int32_t stage_elems) {
    return ring_offset(input_elems) + (size_t)n_stages * (size_t)stage_elems * 2;
}

int nmlp_cuda_decode_attention_elems(int32_t head_dim) { return 2 * attention_scratch(head_dim); }

int nmlp_cuda_decode_prepare(size_t bytes) {
    for (int i = 0; i < 4; i++) {
        const cudaError_t e = cudaFuncSetAttribute((const void *)kernels[i / 2][i % 2],
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

int nmlp_cuda_decode_launch(const nmlp_cuda_decode_program *program, int grid, void *stream) {
    size_t shared_bytes = nmlp_cuda_decode_shared_bytes(program->input_elems, program->n_stages, program->stage_elems);
    return launch_resident(kernel_for(program), *program, grid, THREADS, shared_bytes, stream);
}
