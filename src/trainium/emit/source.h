/* Shared by the files that print source: the state of printing, names, expressions, statements. */
#ifndef NMLP_TRAINIUM_EMIT_SOURCE_H
#define NMLP_TRAINIUM_EMIT_SOURCE_H

#include "trainium/emit/emit.h"
#include "trainium/emit/shape.h"

enum { NMLP_EMIT_SOURCE_LOCALS_MAX = 96, NMLP_EMIT_SOURCE_NAME_MAX = 80, NMLP_EMIT_SOURCE_GRIDS_MAX = 48 };

/* A Python variable that holds the start or the size of a loop's tile. */
typedef struct nmlp_emit_local {
    bool is_size;
    nmlp_affine start; /* of the first kind; base 0 */
    nmlp_size size;    /* of the second kind */
    char name[NMLP_EMIT_SOURCE_NAME_MAX];
} nmlp_emit_local;

/* Legacy index grid: nl.arange(extent) along dimension `at` of `rank`. */
typedef struct nmlp_emit_grid {
    int rank, at;
    int64_t extent;
} nmlp_emit_grid;

typedef struct nmlp_emit_source {
    const nmlp_program *p;
    const nmlp_emit_options *options;
    const char *machine_name, *command; /* as docstrings may hold them */
    nmlp_emit_shape shape;
    bool legacy;
    int64_t instructions;
    nmlp_str *out;
    int depth; /* indentation, 4 blanks each */
    int n_statements;
    bool after_comment; /* the last line was a comment or opened a body */
    nmlp_emit_local locals[NMLP_EMIT_SOURCE_LOCALS_MAX];
    int n_locals;
    const char **loop_names, **buffer_names, **tensor_names;
    int open_loops[NMLP_LOOP_DEPTH_MAX]; /* variables of the loops around, outermost first */
    int n_open;
    bool *dead;       /* by instruction: never executed */
    int *declared_at; /* by buffer: n_open at its declaration; -1: not declared */
    /* legacy */
    nmlp_emit_grid grids[NMLP_EMIT_SOURCE_GRIDS_MAX];
    int n_grids;
    bool *tested;      /* by loop: unrolled (static_range), because its value decides something */
    bool *accumulator; /* by buffer: matmuls add to it */
    nmlp_arena arena;
    nmlp_err *err;
} nmlp_emit_source;

nmlp_status nmlp_emit_source_init(nmlp_emit_source *src, const nmlp_program *program, const nmlp_emit_options *options,
                                  nmlp_str *out, nmlp_err *err);
void nmlp_emit_source_fini(nmlp_emit_source *src);

/* dead.c */
void nmlp_emit_source_find_dead(nmlp_emit_source *src);

/* names.c: Python identifiers for loops, buffers and tensors, clear of keywords and of each other. */
nmlp_status nmlp_emit_source_name_all(nmlp_emit_source *src);

/* lines.c */
/* Releases a string that was printed; if it lacks something, so does the source. */
void nmlp_emit_source_part_end(const nmlp_emit_source *src, nmlp_str *part);
void nmlp_emit_source_line(nmlp_emit_source *src, const char *fmt, ...) NMLP_PRINTF(2, 3);
void nmlp_emit_source_comment(nmlp_emit_source *src, const char *text);
/* A statement with marks: '\1' between arguments, '\2' and '\3' around them. One line where it fits, else one argument
 * a line. */
void nmlp_emit_source_statement(nmlp_emit_source *src, const nmlp_str *marked);

/* expr.c */
void nmlp_emit_put_affine(const nmlp_emit_source *src, const nmlp_affine *a, nmlp_str *out);
/* `axis` is used where the size itself does not tell. */
void nmlp_emit_put_size(const nmlp_emit_source *src, const nmlp_size *size, int axis, nmlp_str *out);
/* start:start + size */
void nmlp_emit_put_range(const nmlp_emit_source *src, const nmlp_affine *start, const nmlp_size *size, int axis,
                         nmlp_str *out);
/* A range of partitions; 0:P for all of them. */
void nmlp_emit_put_parts(const nmlp_emit_source *src, int part, const nmlp_size *parts, int axis, nmlp_str *out);
/* [rows, columns] of a rectangle in HBM */
void nmlp_emit_put_rect(const nmlp_emit_source *src, const nmlp_hbm_ref *ref, nmlp_str *out);
/* Splits min(full, ceil((limit - start) / step)). */
void nmlp_emit_split_rest(const nmlp_affine *rest, nmlp_affine *start, int64_t *limit);
/* Appends the limit by name where the axis of `start` has it. */
void nmlp_emit_put_limit(const nmlp_emit_source *src, const nmlp_affine *start, int64_t limit, nmlp_str *out);
/* The axis an index moves along. */
int nmlp_emit_axis_of_affine(const nmlp_emit_source *src, const nmlp_affine *a);
void nmlp_emit_put_trips(const nmlp_emit_source *src, int loop, nmlp_str *out);
void nmlp_emit_put_dtype(nmlp_nc_dtype dtype, nmlp_str *out); /* nl.bfloat16 */
const char *nmlp_emit_python_dtype(nmlp_nc_dtype dtype);      /* bfloat16 */
void nmlp_emit_put_float(double value, nmlp_str *out);        /* 0.0 */
const char *nmlp_emit_python_func(nmlp_func func);
const char *nmlp_emit_python_alu(nmlp_alu alu);

/* locals.c: names for starts and sizes that depend on `loop`, printed at the head of its body. */
nmlp_status nmlp_emit_source_open_locals(nmlp_emit_source *src, int node);

/* body.c: the tree of nodes. The dialect prints declarations, loop heads and instructions. */
nmlp_status nmlp_emit_source_body(nmlp_emit_source *src);
nmlp_status nmlp_emit_current_instr(nmlp_emit_source *src, const nmlp_instr *in);
nmlp_status nmlp_emit_current_declare(nmlp_emit_source *src, int buffer);
void nmlp_emit_legacy_prepare(nmlp_emit_source *src);
nmlp_status nmlp_emit_legacy_instr(nmlp_emit_source *src, const nmlp_instr *in);
nmlp_status nmlp_emit_legacy_declare(nmlp_emit_source *src, int buffer);
/* affine_range, sequential_range or static_range */
const char *nmlp_emit_legacy_range(const nmlp_emit_source *src, int node);
void nmlp_emit_legacy_grids(nmlp_emit_source *src);

#endif
