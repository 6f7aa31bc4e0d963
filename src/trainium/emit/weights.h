/* How the weight tensors of a program come from matrices of the model.
 *
 * A tensor is a matrix [K,N] itself, or one or two matrices (planes) with as many columns packed into tiles
 * (neuron/pack.h), or, named after such a tensor with "_scale", the scales of its outputs, or the weights of a norm.
 * Which matrices follows from the tensor's name, and is only believed when the extents agree. */
#ifndef NMLP_TRAINIUM_EMIT_WEIGHTS_H
#define NMLP_TRAINIUM_EMIT_WEIGHTS_H

#include "trainium/emit/source.h"

typedef struct nmlp_emit_weight {
    const char *matrix[2]; /* names; the second only where two planes are packed */
    int n_planes;
    const char *k_name[2], *n_name; /* shape letters of [K,N] by plane, or NULL */
    int64_t k[2], n;
    bool packed;
    int64_t chunk_tiles, columns;
    int64_t rows[2]; /* of a tile, by plane */
    int64_t cores;   /* whose packings stand side by side; 1 where all read the same */
    bool scales;     /* the tensor has the scales of the outputs of these matrices, by tile or in one row (tiles 0) */
    int64_t tiles;   /* columns of such a tensor that a plane fills */
    bool gain;       /* the tensor has the norm's weights, by tile as scales */
} nmlp_emit_weight;

/* False: the tensor's contents are not known (an output, a scratch tensor, a packing of another kind). */
bool nmlp_emit_weight_of(const nmlp_program *program, int tensor, nmlp_emit_weight *weight);

/* Does the tensor hold a part of the intermediate width: outputs of gate or up, inputs of down? */
bool nmlp_emit_weight_is_split(const nmlp_emit_weight *weight);

/* Which products the matrices make up. */
typedef enum nmlp_emit_op {
    NMLP_EMIT_OP_UNKNOWN,
    NMLP_EMIT_OP_XW,    /* x w */
    NMLP_EMIT_OP_XUV,   /* x u v */
    NMLP_EMIT_OP_GATED, /* silu(gate(x)) * up(x) */
    NMLP_EMIT_OP_MLP    /* down(silu(gate(x)) * up(x)) */
} nmlp_emit_op;

typedef struct nmlp_emit_math {
    nmlp_emit_op op;
    bool x_transposed, y_transposed;
    bool gate_low, up_low, down_low; /* GATED, MLP: the projection has two factors */
    bool shared;                     /* gate and up have one first factor */
    double epsilon;                  /* of a norm of x in front; 0: none */
    bool residual;                   /* x is added to the result */
    bool fp8;                        /* matrices are codes with a scale for each of their columns */
} nmlp_emit_math;

nmlp_emit_math nmlp_emit_math_of(const nmlp_program *program);

#endif
