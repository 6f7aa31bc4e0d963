/* Proves that a tile program is legal on a machine, or names the instruction, the rule, what was found and what is
 * allowed. Static: the cost depends on the length of the text, not on trip counts. Ranges are bounded over all
 * iterations, taking clamps and the trip counts of enclosing loops into account. */
#ifndef NMLP_TRAINIUM_NEURON_CHECK_H
#define NMLP_TRAINIUM_NEURON_CHECK_H

#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

/* X(name, the rule in words) */
#define NMLP_RULES(X)                                                                                                  \
    X(partition_count, "an access has 1 to 128 partitions")                                                            \
    X(partition_start, "accesses start at partition 0 (P>64), 0/64 (P>32) or 0/32/64/96")                              \
    X(buffer_range, "an access lies inside its buffer")                                                                \
    X(hbm_range, "a DMA lies inside its tensor")                                                                       \
    X(free_size, "one instruction touches a limited number of elements per partition")                                 \
    X(sbuf_capacity, "SBUF buffers fit the usable bytes of a partition")                                               \
    X(psum_capacity, "PSUM buffers fit the banks")                                                                     \
    X(psum_bank, "a matmul result lies inside one PSUM bank")                                                          \
    X(matmul_contraction, "stationary and moving have the same partitions")                                            \
    X(matmul_stationary, "the stationary operand has at most 128 free elements")                                       \
    X(matmul_moving, "the moving operand has at most 512 free elements (trn3: 4096)")                                  \
    X(matmul_result, "the result is [stationary free; moving free]")                                                   \
    X(matmul_dtype, "fp32 operands are not mixed with narrower ones")                                                  \
    X(psum_dtype, "matmul and transpose results have the dtype PSUM accepts from TensorE")                             \
    X(accumulate_first, "the first matmul into a fresh PSUM buffer overwrites")                                        \
    X(accumulate_foreign, "no matmul accumulates onto what another engine wrote to PSUM")                              \
    X(operand_memory, "engines reach their memories: TensorE SBUF to PSUM, GpSimdE and DMA SBUF only")                 \
    X(tensor_tensor_psum, "tensor_tensor reads at most one operand from PSUM")                                         \
    X(engine, "the engine runs this instruction")                                                                      \
    X(element_count, "both sides have the same partitions and elements")                                               \
    X(scalar_operand, "a number for each partition is one element in fp32")                                            \
    X(transpose_size, "transposes are at most 128x128 on TensorE, 32x32 on VectorE")                                   \
    X(dma_dtype, "a DMA does not change the dtype")                                                                    \
    X(dma_transpose_bank, "with DMA transposes one PSUM bank is theirs (trn2, trn3)")                                  \
    X(dma_transpose_align, "a DMA transpose writes to a multiple of 32 bytes (trn2, trn3)")                            \
    X(dma_overlap, "the tiles of a stacked DMA do not overlap")                                                        \
    X(read_only, "inputs and weights are not written")

typedef enum nmlp_rule {
#define NMLP_RULE_ENUM(name, words) NMLP_RULE_##name,
    NMLP_RULES(NMLP_RULE_ENUM)
#undef NMLP_RULE_ENUM
        NMLP_N_RULES
} nmlp_rule;

typedef struct nmlp_violation {
    nmlp_rule rule;
    int instr; /* index into program->instrs; -1: the program as a whole */
    int64_t found, allowed;
} nmlp_violation;

/* NMLP_E_ILLEGAL with the first violation (also in *violation unless NULL). */
nmlp_status nmlp_program_check(const nmlp_program *program, const nmlp_machine *machine, nmlp_violation *violation,
                               nmlp_err *err);

const char *nmlp_rule_name(nmlp_rule rule);
const char *nmlp_rule_words(nmlp_rule rule);

/* Bytes per partition with all copies, as declared. */
int64_t nmlp_program_sbuf_bytes(const nmlp_program *program);
/* Banks with all copies. */
int64_t nmlp_program_psum_banks(const nmlp_program *program, const nmlp_machine *machine);

/* Largest value an index or size takes over all iterations of its loops (an upper bound; exact for tiles clamped at
 * an edge). */
int64_t nmlp_affine_upper(const nmlp_program *program, const nmlp_affine *a);
int64_t nmlp_size_upper(const nmlp_program *program, const nmlp_size *s);

#endif
