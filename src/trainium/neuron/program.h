/* The tile program: a NeuronCore kernel as data.
 *
 * A program declares HBM tensors (2-D, row-major) and on-chip buffers, and holds a tree of nodes: loops, conditions,
 * comments and instructions. Loops stay loops; every index is affine in the loop variables, every size is a constant or
 * a constant clamped at an edge. Meaning is sequential: instructions take effect in program order, so a race cannot be
 * written down. Machines overlap instructions only where buffers allow it; the simulator derives the waits from the
 * buffers each instruction reads and writes.
 *
 * Buffers. A buffer [P; d0, d1, …] has P partitions and 1 to 3 free dimensions. `alloc` gives its name fresh, undefined
 * contents, as a declaration inside a loop body does in NKI; with `copies` > 1 the next of that many physical copies is
 * taken, so the previous contents may still be in use by instructions in flight. A buffer that is never alloc'ed exists
 * once, from the start. Dependencies are tracked per copy and per row of the last dimension: give parts that are
 * produced and consumed independently their own index in a leading dimension.
 *
 * Building. nmlp_program_create, declare, emit in order, then nmlp_program_finish. Errors stick: after the first one
 * nothing is added and nmlp_program_finish reports it, so builders need no check per call. All names are copied. */
#ifndef NMLP_TRAINIUM_NEURON_PROGRAM_H
#define NMLP_TRAINIUM_NEURON_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"

enum {
    NMLP_FREE_DIMS_MAX = 3,
    NMLP_AFFINE_TERMS_MAX = 6,
    NMLP_LOOP_DEPTH_MAX = 16,
    NMLP_ACCUMULATE_VARS_MAX = 4,
    NMLP_NAME_MAX = 48,
    NMLP_INDEX_MAX = 1 << 30 /* constants, coefficients, extents: products of a few stay inside int64 */
};

/* FP8 is e4m3 (tensor/dtype.h), for weights on their way to the tensor engine. */
typedef enum nmlp_nc_dtype { NMLP_NC_FP32, NMLP_NC_BF16, NMLP_NC_FP16, NMLP_NC_FP8, NMLP_N_NC_DTYPES } nmlp_nc_dtype;
typedef enum nmlp_space { NMLP_SPACE_SBUF, NMLP_SPACE_PSUM } nmlp_space;
/* What a tensor is for; HBM traffic is reported by role. */
typedef enum nmlp_role { NMLP_ROLE_INPUT, NMLP_ROLE_WEIGHT, NMLP_ROLE_OUTPUT, NMLP_ROLE_SCRATCH } nmlp_role;
typedef enum nmlp_nc_engine {
    NMLP_ENGINE_TENSOR,
    NMLP_ENGINE_VECTOR,
    NMLP_ENGINE_SCALAR,
    NMLP_ENGINE_GPSIMD,
    NMLP_ENGINE_DMA,
    NMLP_N_ENGINES
} nmlp_nc_engine;

typedef enum nmlp_op {
    NMLP_OP_ALLOC,         /* dst.buffer: fresh contents, next copy */
    NMLP_OP_DMA_LOAD,      /* dst = hbm */
    NMLP_OP_DMA_STORE,     /* hbm = a */
    NMLP_OP_DMA_TRANSPOSE, /* dst[p, f] = hbm[row f, col p] */
    NMLP_OP_MATMUL,        /* dst[M; N] (+)= a[K; M]^T b[K; N]; a stationary, b moving, dst PSUM */
    NMLP_OP_TRANSPOSE,     /* dst[F; P] = a[P; F]^T; TensorE (SBUF to PSUM) or VectorE (up to 32x32) */
    NMLP_OP_COPY,          /* tensor_copy: dst = a, with cast */
    NMLP_OP_TENSOR_TENSOR, /* dst = a alu b */
    NMLP_OP_TENSOR_SCALAR, /* dst = a alu b, b [P; 1] in fp32: one number for each partition */
    NMLP_OP_ACTIVATION,    /* dst = func(scale * a), or with such a b func(b * a) */
    NMLP_OP_MEMSET,        /* dst = value */
    NMLP_N_OPS
} nmlp_op;

typedef enum nmlp_alu { NMLP_ALU_ADD, NMLP_ALU_MUL, NMLP_ALU_SUB, NMLP_ALU_MAX, NMLP_N_ALUS } nmlp_alu;
typedef enum nmlp_func {
    NMLP_FUNC_COPY,
    NMLP_FUNC_SILU,
    NMLP_FUNC_GELU,
    NMLP_FUNC_SIGMOID,
    NMLP_FUNC_RELU,
    NMLP_FUNC_EXP,
    NMLP_FUNC_RSQRT,
    NMLP_N_FUNCS
} nmlp_func;

/* base + sum of coef * loop variable. */
typedef struct nmlp_affine {
    int64_t base;
    int n_terms;
    struct {
        int var; /* index into nmlp_program.loops */
        int64_t coef;
    } terms[NMLP_AFFINE_TERMS_MAX];
} nmlp_affine;

/* A number of elements or iterations: `full`, or min(full, ceil(rest / step)) at an edge, never below 0. */
typedef struct nmlp_size {
    int64_t full;
    bool clamped;
    nmlp_affine rest;
    int64_t step;
} nmlp_size;

/* A rectangle of an HBM tensor. With tiles > 1 it is a stack of rectangles: rows row + t*tile_rows + [0, rows). A DMA
 * maps rows to partitions and (tile, column) to the flattened free elements of its buffer. */
typedef struct nmlp_hbm_ref {
    int tensor;
    nmlp_affine row, col;
    nmlp_size rows, cols;
    nmlp_size tiles;   /* constant 1 for a plain rectangle */
    int64_t tile_rows; /* rows from one tile to the next */
} nmlp_hbm_ref;

/* A part of a buffer: partitions [part, part+parts) and a range per free dimension. */
typedef struct nmlp_buf_ref {
    int buffer; /* -1: operand absent */
    int part;
    nmlp_size parts;
    nmlp_affine start[NMLP_FREE_DIMS_MAX];
    nmlp_size count[NMLP_FREE_DIMS_MAX];
} nmlp_buf_ref;

/* nc_matmul adds to PSUM when any listed loop variable is not 0; with none listed it overwrites, with `always` it adds.
 */
typedef struct nmlp_accumulate {
    bool always;
    int n_vars;
    int vars[NMLP_ACCUMULATE_VARS_MAX];
} nmlp_accumulate;

typedef struct nmlp_instr {
    nmlp_op op;
    nmlp_nc_engine engine;
    int queue; /* DMA: issuing stream; machines with fewer share them */
    nmlp_hbm_ref hbm;
    nmlp_buf_ref dst, a, b;
    nmlp_alu alu;
    nmlp_func func;
    double scale; /* activation */
    double value; /* memset */
    nmlp_accumulate accumulate;
} nmlp_instr;

typedef struct nmlp_tensor {
    const char *name;
    nmlp_role role;
    nmlp_nc_dtype dtype;
    int64_t rows, cols;
} nmlp_tensor;

typedef struct nmlp_buffer {
    const char *name;
    nmlp_space space;
    nmlp_nc_dtype dtype;
    int partitions;
    int n_dims;
    int64_t dims[NMLP_FREE_DIMS_MAX];
    int copies;
    bool managed; /* the compiler places it: it may lose its extra copies or be spilled to HBM where SBUF is too small.
                   * Otherwise the program must fit as declared. */
} nmlp_buffer;

typedef struct nmlp_loop {
    const char *name;
    nmlp_size trips;
    bool sequential; /* iterations depend on each other (legacy dialect: sequential_range) */
} nmlp_loop;

typedef enum nmlp_node_kind { NMLP_NODE_LOOP, NMLP_NODE_IF, NMLP_NODE_INSTR, NMLP_NODE_COMMENT } nmlp_node_kind;
typedef enum nmlp_when { NMLP_WHEN_FIRST, NMLP_WHEN_LATER } nmlp_when; /* loop variable is 0, is not 0 */

/* Nodes stand in program order; the body of a loop or condition is the nodes up to `end`. */
typedef struct nmlp_node {
    nmlp_node_kind kind;
    int end;  /* index after the last node of the body; own index + 1 for leaves */
    int loop; /* LOOP: its variable; IF: the variable tested */
    nmlp_when when;
    int instr; /* INSTR: index into instrs */
    const char *comment;
} nmlp_node;

typedef struct nmlp_tile_param {
    const char *name;
    int64_t value;
} nmlp_tile_param;

typedef struct nmlp_program {
    const char *name;
    nmlp_tile_param *params;
    size_t n_params, cap_params;
    nmlp_tensor *tensors;
    size_t n_tensors, cap_tensors;
    nmlp_buffer *buffers;
    size_t n_buffers, cap_buffers;
    nmlp_loop *loops;
    size_t n_loops, cap_loops;
    nmlp_instr *instrs;
    size_t n_instrs, cap_instrs;
    nmlp_node *nodes;
    size_t n_nodes, cap_nodes;
    nmlp_arena arena; /* owns the names */
    /* building */
    int open[NMLP_LOOP_DEPTH_MAX]; /* nodes without an end yet */
    int n_open;
    nmlp_err failure;
} nmlp_program;

nmlp_status nmlp_program_create(nmlp_program **out, const char *name, nmlp_err *err);
void nmlp_program_destroy(nmlp_program *program);
/* Another name for a finished program, e.g. one that is unique in a package. */
nmlp_status nmlp_program_rename(nmlp_program *program, const char *name, nmlp_err *err);
/* Reports the first error of building, or an open loop. */
nmlp_status nmlp_program_finish(nmlp_program *program, nmlp_err *err);

/* A named constant of the kernel (shape letters, tiles per block): kept for readers and the emitter. */
void nmlp_program_add_param(nmlp_program *program, const char *name, int64_t value);
bool nmlp_program_param(const nmlp_program *program, const char *name, int64_t *value);

/* Declarations return the id that references take. */
int nmlp_program_add_tensor(nmlp_program *program, const char *name, nmlp_role role, nmlp_nc_dtype dtype, int64_t rows,
                            int64_t cols);
int nmlp_program_add_buffer(nmlp_program *program, const nmlp_buffer *buffer);

/* Opens `for name in trips`; returns its variable. `end` closes the innermost loop or condition. */
int nmlp_program_begin_loop(nmlp_program *program, const char *name, nmlp_size trips, bool sequential);
void nmlp_program_begin_if(nmlp_program *program, nmlp_when when, int var);
void nmlp_program_end(nmlp_program *program);
/* A line for readers of the text form and of the emitted source: say why, not what. */
void nmlp_program_add_comment(nmlp_program *program, const char *text);
void nmlp_program_add_instr(nmlp_program *program, const nmlp_instr *instr);

/* One call per instruction; thin wrappers of add_instr. */
void nmlp_program_append_alloc(nmlp_program *program, int buffer);
void nmlp_program_append_load(nmlp_program *program, nmlp_buf_ref dst, nmlp_hbm_ref src, int queue);
void nmlp_program_append_store(nmlp_program *program, nmlp_hbm_ref dst, nmlp_buf_ref src, int queue);
void nmlp_program_append_dma_transpose(nmlp_program *program, nmlp_buf_ref dst, nmlp_hbm_ref src, int queue);
void nmlp_program_append_matmul(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref stationary, nmlp_buf_ref moving,
                                nmlp_accumulate accumulate);
void nmlp_program_append_transpose(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref data, nmlp_nc_engine engine);
void nmlp_program_append_copy(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref src, nmlp_nc_engine engine);
void nmlp_program_append_tensor_tensor(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref a, nmlp_buf_ref b,
                                       nmlp_alu alu, nmlp_nc_engine engine);
void nmlp_program_append_tensor_scalar(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref a, nmlp_buf_ref b,
                                       nmlp_alu alu, nmlp_nc_engine engine);
void nmlp_program_append_activation(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref src, nmlp_func func,
                                    double scale);
/* With a scale for each partition. */
void nmlp_program_append_scaled(nmlp_program *program, nmlp_buf_ref dst, nmlp_buf_ref src, nmlp_func func,
                                nmlp_buf_ref scale);
void nmlp_program_append_memset(nmlp_program *program, nmlp_buf_ref dst, double value, nmlp_nc_engine engine);

/* Index arithmetic. */
nmlp_affine nmlp_affine_const(int64_t base);
nmlp_affine nmlp_affine_var(int var, int64_t coef);
nmlp_affine nmlp_affine_plus(nmlp_affine a, nmlp_affine b);
nmlp_affine nmlp_affine_times(nmlp_affine a, int64_t factor);
/* `values` by loop variable. */
int64_t nmlp_affine_eval(const nmlp_affine *a, const int64_t *values);

nmlp_size nmlp_size_const(int64_t n);
/* min(full, ceil((limit - start) / step)): how much of `full` is left before `limit`. Becomes the constant where the
 * clamp can be seen never to bite (start constant). */
nmlp_size nmlp_size_until(int64_t full, int64_t limit, nmlp_affine start, int64_t step);
int64_t nmlp_size_eval(const nmlp_size *s, const int64_t *values);

/* References. `nmlp_buf_all` names a whole buffer; the narrowing calls change one range and return the result. */
nmlp_buf_ref nmlp_buf_all(const nmlp_program *program, int buffer);
nmlp_buf_ref nmlp_buf_parts(nmlp_buf_ref ref, int part, nmlp_size parts);
nmlp_buf_ref nmlp_buf_range(nmlp_buf_ref ref, int dim, nmlp_affine start, nmlp_size count);
nmlp_buf_ref nmlp_buf_at(nmlp_buf_ref ref, int dim, nmlp_affine index); /* one index of a leading dimension */
nmlp_hbm_ref nmlp_hbm_rect(int tensor, nmlp_affine row, nmlp_size rows, nmlp_affine col, nmlp_size cols);
nmlp_hbm_ref nmlp_hbm_stack(nmlp_hbm_ref rect, nmlp_size tiles, int64_t tile_rows);
nmlp_accumulate nmlp_accumulate_none(void);
nmlp_accumulate nmlp_accumulate_over(int n_vars, const int *vars);
nmlp_accumulate nmlp_accumulate_always(void);

/* Sizes and names. */
size_t nmlp_nc_dtype_bytes(nmlp_nc_dtype dtype);
int64_t nmlp_buffer_free_elems(const nmlp_buffer *buffer);
int64_t nmlp_buffer_copy_bytes(const nmlp_buffer *buffer); /* per partition, one copy */
const char *nmlp_nc_dtype_name(nmlp_nc_dtype dtype);       /* fp32, bf16, fp16, fp8 */
const char *nmlp_space_name(nmlp_space space);
const char *nmlp_role_name(nmlp_role role);
const char *nmlp_nc_engine_name(nmlp_nc_engine engine);
const char *nmlp_op_name(nmlp_op op);
const char *nmlp_alu_name(nmlp_alu alu);
const char *nmlp_func_name(nmlp_func func);
/* Of activations: not fp8. */
bool nmlp_nc_dtype_parse(const char *name, nmlp_nc_dtype *dtype);

#endif
