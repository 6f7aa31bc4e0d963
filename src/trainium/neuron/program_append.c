/* One builder call per instruction. */
#include "trainium/neuron/program.h"

static nmlp_instr blank(nmlp_op op, nmlp_nc_engine engine) {
    nmlp_instr instr = {.op = op, .engine = engine, .scale = 1.0};
    instr.dst.buffer = instr.a.buffer = instr.b.buffer = instr.hbm.tensor = -1;
    return instr;
}

void nmlp_program_append_alloc(nmlp_program *program, int buffer) {
    nmlp_instr instr = blank(NMLP_OP_ALLOC, NMLP_ENGINE_DMA);
    instr.dst.buffer = buffer;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_load(nmlp_program *program, nmlp_buf_ref dst, nmlp_hbm_ref src, int queue) {
    nmlp_instr instr = blank(NMLP_OP_DMA_LOAD, NMLP_ENGINE_DMA);
    instr.dst = dst;
    instr.hbm = src;
    instr.queue = queue;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_store(nmlp_program *program, nmlp_hbm_ref dst, nmlp_buf_ref src, int queue) {
    nmlp_instr instr = blank(NMLP_OP_DMA_STORE, NMLP_ENGINE_DMA);
    instr.a = src;
    instr.hbm = dst;
    instr.queue = queue;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_dma_transpose(nmlp_program *program, nmlp_buf_ref dst, nmlp_hbm_ref src, int queue) {
    nmlp_instr instr = blank(NMLP_OP_DMA_TRANSPOSE, NMLP_ENGINE_DMA);
    instr.dst = dst;
    instr.hbm = src;
    instr.queue = queue;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_matmul(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref stationary, nmlp_buf_ref moving,
                                nmlp_accumulate accumulate) {
    nmlp_instr instr = blank(NMLP_OP_MATMUL, NMLP_ENGINE_TENSOR);
    instr.dst = dst;
    instr.a = stationary;
    instr.b = moving;
    instr.accumulate = accumulate;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_transpose(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref data, nmlp_nc_engine engine) {
    nmlp_instr instr = blank(NMLP_OP_TRANSPOSE, engine);
    instr.dst = dst;
    instr.a = data;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_copy(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref src, nmlp_nc_engine engine) {
    nmlp_instr instr = blank(NMLP_OP_COPY, engine);
    instr.dst = dst;
    instr.a = src;
    nmlp_program_add_instr(program, &instr);
}

static void append_two_operands(nmlp_program *program, nmlp_op op, nmlp_buf_ref dst, nmlp_buf_ref a, nmlp_buf_ref b,
                                nmlp_alu alu, nmlp_nc_engine engine) {
    nmlp_instr instr = blank(op, engine);
    instr.dst = dst;
    instr.a = a;
    instr.b = b;
    instr.alu = alu;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_tensor_tensor(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref a, nmlp_buf_ref b,
                                       nmlp_alu alu, nmlp_nc_engine engine) {
    append_two_operands(program, NMLP_OP_TENSOR_TENSOR, dst, a, b, alu, engine);
}

void nmlp_program_append_tensor_scalar(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref a, nmlp_buf_ref b,
                                       nmlp_alu alu, nmlp_nc_engine engine) {
    append_two_operands(program, NMLP_OP_TENSOR_SCALAR, dst, a, b, alu, engine);
}

void nmlp_program_append_scaled(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref src, nmlp_func func,
                                nmlp_buf_ref scale) {
    nmlp_instr instr = blank(NMLP_OP_ACTIVATION, NMLP_ENGINE_SCALAR);
    instr.dst = dst;
    instr.a = src;
    instr.b = scale;
    instr.func = func;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_activation(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref src, nmlp_func func,
                                    double scale) {
    nmlp_instr instr = blank(NMLP_OP_ACTIVATION, NMLP_ENGINE_SCALAR);
    instr.dst = dst;
    instr.a = src;
    instr.func = func;
    instr.scale = scale;
    nmlp_program_add_instr(program, &instr);
}

void nmlp_program_append_memset(nmlp_program *program, nmlp_buf_ref dst, double value, nmlp_nc_engine engine) {
    nmlp_instr instr = blank(NMLP_OP_MEMSET, engine);
    instr.dst = dst;
    instr.value = value;
    nmlp_program_add_instr(program, &instr);
}
