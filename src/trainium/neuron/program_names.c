/* Names of everything a tile program is made of, as the text form spells them. */
#include <string.h>

#include "trainium/neuron/program.h"

static const char *const dtype_names[] = {"fp32", "bf16", "fp16", "fp8"};
static const char *const space_names[] = {"sbuf", "psum"};
static const char *const role_names[] = {"input", "weight", "output", "scratch"};
static const char *const engine_names[] = {"tensor", "vector", "scalar", "gpsimd", "dma"};
static const char *const op_names[] = {"alloc",         "dma_load",     "dma_store",   "dma_transpose",
                                       "nc_matmul",     "nc_transpose", "tensor_copy", "tensor_tensor",
                                       "tensor_scalar", "activation",   "memset"};
static const char *const alu_names[] = {"add", "mul", "sub", "max"};
static const char *const func_names[] = {"copy", "silu", "gelu", "sigmoid", "relu", "exp", "rsqrt"};

size_t nmlp_nc_dtype_bytes(nmlp_nc_dtype dtype) { return dtype == NMLP_NC_FP32 ? 4 : dtype == NMLP_NC_FP8 ? 1 : 2; }
const char *nmlp_nc_dtype_name(nmlp_nc_dtype dtype) { return dtype_names[dtype]; }
const char *nmlp_space_name(nmlp_space space) { return space_names[space]; }
const char *nmlp_role_name(nmlp_role role) { return role_names[role]; }
const char *nmlp_nc_engine_name(nmlp_nc_engine engine) { return engine_names[engine]; }
const char *nmlp_op_name(nmlp_op op) { return op_names[op]; }
const char *nmlp_alu_name(nmlp_alu alu) { return alu_names[alu]; }
const char *nmlp_func_name(nmlp_func func) { return func_names[func]; }

bool nmlp_nc_dtype_parse(const char *name, nmlp_nc_dtype *dtype) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, dtype_names[i]) != 0) continue;
        *dtype = (nmlp_nc_dtype)i;
        return true;
    }
    return false;
}

int64_t nmlp_buffer_free_elems(const nmlp_buffer *buffer) {
    int64_t n = 1;
    for (int d = 0; d < buffer->n_dims; d++) n *= buffer->dims[d];
    return n;
}

int64_t nmlp_buffer_copy_bytes(const nmlp_buffer *buffer) {
    return nmlp_buffer_free_elems(buffer) * (int64_t)nmlp_nc_dtype_bytes(buffer->dtype);
}
