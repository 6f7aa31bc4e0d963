/* What a program's numbers mean: which shape letter a dimension belongs to, by how much each loop steps along it, and
 * so which constants deserve a name.
 *
 * An axis is a shape parameter of the program (S, H, R, …). Tensor dimensions are matched to axes by name and extent; a
 * loop belongs to the axis of the tensor dimension it steps through; partitions and last dimensions of buffers get
 * theirs from the DMAs and matmuls that use them. A name is only ever used for the value it has, so a wrong guess reads
 * oddly but computes the same. */
#ifndef NMLP_TRAINIUM_EMIT_SHAPE_H
#define NMLP_TRAINIUM_EMIT_SHAPE_H

#include "base/mem.h"
#include "base/str.h"
#include "trainium/neuron/program.h"

enum { NMLP_AXIS_STEPS_MAX = 3, NMLP_LOOP_USES_MAX = 6, NMLP_AXIS_NONE = -1, NMLP_AXIS_MIXED = -2 };

typedef struct nmlp_emit_axis {
    const char *name;
    int64_t extent;
    int64_t steps[NMLP_AXIS_STEPS_MAX]; /* ascending: TILE_x, BLOCK_x, STRIP_x */
    int n_steps;
    bool run;     /* the columns of a packed tensor, not a shape letter: TILE_x, RUN_x, SPAN_x */
    int64_t tile; /* of a packed tensor: columns of its tiles */
} nmlp_emit_axis;

/* A loop steps along an axis; along several where it reads tensors of different layout. */
typedef struct nmlp_emit_loop_use {
    int axis;
    int64_t step;
} nmlp_emit_loop_use;

typedef struct nmlp_emit_shape {
    const nmlp_program *p;
    nmlp_emit_axis *axes;
    int n_axes;
    int *tensor_axis;                                    /* [2*n_tensors]: rows, columns */
    nmlp_emit_loop_use (*loop_uses)[NMLP_LOOP_USES_MAX]; /* by loop, … */
    int *n_loop_uses;                                    /* … in order of discovery */
    int *loop_axis;     /* by loop: the first of its uses, shape letters before runs; NONE */
    int64_t *loop_step; /* elements of that axis per iteration; 0 unknown */
    bool *single;       /* by loop: at most one iteration, printed without a loop */
    int *part_axis;     /* by buffer: partitions */
    int *last_axis;     /* by buffer: last dimension */
    int *lead_axis;     /* [2*n_buffers]: leading dimensions, counted in steps … */
    int64_t *lead_step; /* … of this many elements; 0 unknown */
    nmlp_arena arena;
    bool failed; /* a name was lost for lack of memory */
} nmlp_emit_shape;

nmlp_status nmlp_emit_shape_init(nmlp_emit_shape *shape, const nmlp_program *program, nmlp_err *err);
void nmlp_emit_shape_fini(nmlp_emit_shape *shape);

/* Without the variables of loops that run once. */
nmlp_affine nmlp_emit_fold(const nmlp_emit_shape *shape, const nmlp_affine *a);
/* A constant where the clamp never bites or always bites alike. */
nmlp_size nmlp_emit_fold_size(const nmlp_emit_shape *shape, const nmlp_size *s);
/* Can the size be 0 in some iteration? */
bool nmlp_emit_may_vanish(const nmlp_emit_shape *shape, const nmlp_size *s);
/* The variable of the innermost loop, or -1. */
int nmlp_emit_innermost(const nmlp_affine *a);
bool nmlp_emit_same_affine(const nmlp_affine *a, const nmlp_affine *b);
bool nmlp_emit_same_size(const nmlp_size *a, const nmlp_size *b);

/* Appends "TILE_S", "S" or the digits of `value`, read as a length along `axis` (may be NONE or MIXED). */
void nmlp_emit_put_length(const nmlp_emit_shape *shape, int axis, int64_t value, nmlp_str *out);
/* The same for the extent of a buffer; may also append "3 * TILE_S". Accumulators serve many products: only a tile size
 * names them. */
void nmlp_emit_put_extent(const nmlp_emit_shape *shape, int axis, int64_t value, bool accumulator, nmlp_str *out);
/* Appends "BLOCK_S // TILE_S" and the like: how many `step`s of `axis` make up `count`; else the digits. */
void nmlp_emit_put_count(const nmlp_emit_shape *shape, int axis, int64_t step, int64_t count, nmlp_str *out);
/* "TILE", "BLOCK", "STRIP"; "TILE", "RUN", "SPAN" for a packed tensor */
const char *nmlp_emit_level_name(const nmlp_emit_axis *axis, int level);
/* The axis along which `coef` is a step of the loop; the loop's own axis where none is. */
int nmlp_emit_axis_of_term(const nmlp_emit_shape *shape, int loop, int64_t coef);

#endif
