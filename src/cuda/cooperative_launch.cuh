/* Launching a kernel whose blocks wait for each other. */
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

#endif
