/* Launching kernels that overlap with their neighbours in the stream (programmatic dependent launch), and kernels whose
 * blocks wait for each other. */
#ifndef NMLP_CUDA_COOPERATIVE_LAUNCH_CUH
#define NMLP_CUDA_COOPERATIVE_LAUNCH_CUH

#include <cuda_runtime.h>

/* Cooperative, so that all blocks are resident. The next launch in the stream may begin to copy weights where a block
 * of this one has ended. */
template <typename Program>
inline cudaError_t launch_resident(void (*kernel)(const Program), const Program &program, int grid, int threads,
                                   size_t shared_bytes, void *stream) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeCooperative;
    attributes[0].val.cooperative = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)grid);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return cudaLaunchKernelEx(&config, kernel, program);
}

/* Begins while the kernel before it still runs; nothing that kernel wrote may be read, and nothing written, before
 * wait_previous(). */
template <typename... Args>
inline cudaError_t launch_dependent(void (*kernel)(Args...), dim3 grid, int threads, size_t shared_bytes, void *stream,
                                    Args... args) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = (cudaStream_t)stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/* Lets the next kernel begin; it may prefetch weights. */
__device__ __forceinline__ void begin_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Waits until the kernel before has ended. Every block of a dependent kernel does: a kernel that ends before its
 * predecessor would break the chain. */
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The first thing that a dependent kernel does, where it has nothing to do in between. */
__device__ __forceinline__ void wait_previous() {
    begin_dependents();
    await_previous();
}

#endif
