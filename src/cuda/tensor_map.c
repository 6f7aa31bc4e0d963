#include "cuda/tensor_map.h"

#include <cuda.h>
#include <stdint.h>
#include <string.h>

enum { DRIVER_VERSION = 12000, HOPPER_MAJOR = 9, BLOCK = 64 };

/* The driver's function, without linking the driver: programs must start on machines without one. */
static nmlp_status find_encoder(__typeof__(&cuTensorMapEncodeTiled) *encode, nmlp_err *err) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, DRIVER_VERSION, cudaEnableDefault, &result),
        "looking for the driver's tensor maps", err));
    if (result != cudaDriverEntryPointSuccess || !found)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "the CUDA driver is too old for tensor maps; update it");
    memcpy(encode, &found, sizeof found);
    return NMLP_OK;
}

nmlp_status nmlp_cuda_tensor_map_upload(void *map, const void *data, int32_t n, int32_t k, int32_t rows,
                                        int32_t blocks_k, nmlp_err *err) {
    __typeof__(&cuTensorMapEncodeTiled) encode = NULL;
    CUtensorMap made;
    int major = 0;
    NMLP_RETURN_IF_FAILED(NMLP_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
                                          "asking for the device's generation", err));
    if (major < HOPPER_MAJOR) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(find_encoder(&encode, err));
    /* [blocks of columns][n][BLOCK]: what the swizzle takes is 128 bytes wide */
    cuuint64_t size[] = {BLOCK, (cuuint64_t)n, (cuuint64_t)k / BLOCK};
    cuuint64_t pitch_bytes[] = {(cuuint64_t)k * 2, BLOCK * 2};
    cuuint32_t box[] = {BLOCK, (cuuint32_t)rows, (cuuint32_t)blocks_k};
    cuuint32_t step[] = {1, 1, 1};
    CUresult code = encode(&made, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)(uintptr_t)data, size, pitch_bytes, box,
                           step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return nmlp_fail(err, NMLP_E_IO, "CUDA: a tensor map of a [%d,%d] matrix was refused with code %d", n, k,
                         (int)code);
    return NMLP_CUDA_CHECK(cudaMemcpy(map, &made, sizeof made, cudaMemcpyHostToDevice), "uploading a tensor map", err);
}

nmlp_status nmlp_cuda_tensor_map_make(nmlp_cuda_tensor_map *map, const void *data, int32_t n, int32_t k, int32_t pitch,
                                      int32_t box_rows, nmlp_err *err) {
    __typeof__(&cuTensorMapEncodeTiled) encode = NULL;
    CUtensorMap made;
    _Static_assert(sizeof made == sizeof map->bytes, "a map is one of the driver's");
    NMLP_RETURN_IF_FAILED(find_encoder(&encode, err));
    cuuint64_t size[] = {(cuuint64_t)k, (cuuint64_t)n};
    cuuint64_t pitch_bytes[] = {(cuuint64_t)pitch * 2};
    cuuint32_t box[] = {BLOCK, (cuuint32_t)box_rows};
    cuuint32_t step[] = {1, 1};
    CUresult code = encode(&made, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)(uintptr_t)data, size, pitch_bytes, box,
                           step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return nmlp_fail(err, NMLP_E_IO, "CUDA: a tensor map of a [%d,%d] matrix was refused with code %d", n, k,
                         (int)code);
    memcpy(map->bytes, &made, sizeof made);
    return NMLP_OK;
}
