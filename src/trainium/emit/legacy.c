/* Instructions in legacy NKI: values returned and assigned. The program has no edges (neuron/program_peel.h), so every
 * size is a number: no masks, no tile is larger than what it holds. */
#include "trainium/emit/source.h"

#include <inttypes.h>

/* Free dimensions of an access that are not a single index. */
typedef struct tile_dims {
    int dim[NMLP_FREE_DIMS_MAX];
    int64_t extent[NMLP_FREE_DIMS_MAX];
    int n;
} tile_dims;

static tile_dims dims_of(const nmlp_emit_source *src, const nmlp_buf_ref *ref) {
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    tile_dims t = {.n = 0};
    for (int d = 0; d < b->n_dims; d++) {
        nmlp_size count = nmlp_emit_fold_size(&src->shape, &ref->count[d]);
        if (count.full == 1 && d < b->n_dims - 1) continue;
        t.dim[t.n] = d;
        t.extent[t.n++] = count.full;
    }
    return t;
}

/* buf[0:128, i, 0:512]: partitions first, which every SDK takes. */
static void put_slices(const nmlp_emit_source *src, const nmlp_buf_ref *ref, nmlp_str *out) {
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    nmlp_str_printf(out, "%s[", src->buffer_names[ref->buffer]);
    nmlp_emit_put_parts(src, ref->part, &ref->parts, src->shape.part_axis[ref->buffer], out);
    for (int d = 0; d < b->n_dims; d++) {
        bool last = d == b->n_dims - 1;
        nmlp_str_puts(out, ", ");
        if (!last && ref->count[d].full == 1)
            nmlp_emit_put_affine(src, &ref->start[d], out);
        else
            nmlp_emit_put_range(src, &ref->start[d], &ref->count[d],
                                last ? src->shape.last_axis[ref->buffer] : NMLP_AXIS_NONE, out);
    }
    nmlp_str_putc(out, ']');
}

static void put_grid_name(const nmlp_emit_grid *g, nmlp_str *out) {
    char letter = g->at == 0 ? 'p' : g->at == g->rank - 1 ? 'f' : g->at == 1 ? 't' : 'q';
    nmlp_str_printf(out, "i_%c%" PRId64, letter, g->extent);
    if (g->rank > 2) nmlp_str_printf(out, "_%dd", g->rank);
}

/* The grid for dimension `at` of a tile of `rank` dimensions, by name. */
static void put_grid(nmlp_emit_source *src, int rank, int at, int64_t extent, nmlp_str *out) {
    int i = 0;
    while (i < src->n_grids && (src->grids[i].rank != rank || src->grids[i].at != at || src->grids[i].extent != extent))
        i++;
    if (i == src->n_grids && i < NMLP_EMIT_SOURCE_GRIDS_MAX)
        src->grids[src->n_grids++] = (nmlp_emit_grid){rank, at, extent};
    if (i == NMLP_EMIT_SOURCE_GRIDS_MAX) out->failed = true;
    put_grid_name(&(nmlp_emit_grid){rank, at, extent}, out);
}

static void put_offset_grid(nmlp_emit_source *src, const nmlp_affine *start, nmlp_emit_grid g, nmlp_str *out) {
    nmlp_affine at = nmlp_emit_fold(&src->shape, start);
    if (at.n_terms || at.base) {
        nmlp_emit_put_affine(src, &at, out);
        nmlp_str_puts(out, " + ");
    }
    put_grid(src, g.rank, g.at, g.extent, out);
}

/* The buffer side of a DMA with index grids. */
static void put_chip_grids(nmlp_emit_source *src, const nmlp_buf_ref *ref, const tile_dims *t, nmlp_str *out) {
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    nmlp_affine part = nmlp_affine_const(ref->part);
    int next = 0;
    nmlp_str_printf(out, "%s[", src->buffer_names[ref->buffer]);
    put_offset_grid(src, &part, (nmlp_emit_grid){t->n + 1, 0, ref->parts.full}, out);
    for (int d = 0; d < b->n_dims; d++) {
        nmlp_str_puts(out, ", ");
        if (next < t->n && t->dim[next] == d) {
            put_offset_grid(src, &ref->start[d], (nmlp_emit_grid){t->n + 1, next + 1, t->extent[next]}, out);
            next++;
        } else {
            nmlp_emit_put_affine(src, &ref->start[d], out);
        }
    }
    nmlp_str_putc(out, ']');
}

/* Which of the tile's dimensions count tiles of the stack and which count columns: dims [0, n_stack) are the stack. */
static nmlp_status split_dims(nmlp_emit_source *src, const nmlp_instr *in, const tile_dims *t, int *n_stack) {
    nmlp_size tiles = nmlp_emit_fold_size(&src->shape, &in->hbm.tiles);
    nmlp_size along = nmlp_emit_fold_size(&src->shape, in->op == NMLP_OP_DMA_TRANSPOSE ? &in->hbm.rows : &in->hbm.cols);
    int first = t->n - 1; /* the last dimension is columns, even a single one */
    int64_t columns = t->extent[first];
    while (first > 0 && columns < along.full) columns *= t->extent[--first];
    int64_t stacked = 1;
    for (int i = 0; i < first; i++) stacked *= t->extent[i];
    if (columns != along.full || stacked != tiles.full || (in->op == NMLP_OP_DMA_TRANSPOSE && t->n != 1))
        return nmlp_fail(src->err, NMLP_E_UNSUPPORTED, "program %s: legacy NKI cannot index a DMA of %s into buffer %s",
                         src->p->name, src->p->tensors[in->hbm.tensor].name,
                         src->p->buffers[in->op == NMLP_OP_DMA_STORE ? in->a.buffer : in->dst.buffer].name);
    *n_stack = first;
    return NMLP_OK;
}

/* Sum of stride * grid over dimensions [from, to) of the tile, innermost stride `unit`. */
static void put_strided(nmlp_emit_source *src, const tile_dims *t, int from, int to, int64_t unit, nmlp_str *out) {
    for (int i = from; i < to; i++) {
        int64_t stride = unit;
        for (int k = i + 1; k < to; k++) stride *= t->extent[k];
        if (i > from) nmlp_str_puts(out, " + ");
        put_grid(src, t->n + 1, i + 1, t->extent[i], out);
        if (stride != 1) nmlp_str_printf(out, " * %" PRId64, stride);
    }
}

static void put_start_plus(nmlp_emit_source *src, const nmlp_affine *start, nmlp_str *out) {
    nmlp_affine at = nmlp_emit_fold(&src->shape, start);
    if (at.n_terms == 0 && at.base == 0) return;
    nmlp_emit_put_affine(src, &at, out);
    nmlp_str_puts(out, " + ");
}

/* tensor[row + p, col + f]; with a stack row + tile_rows * t + p. A transposed load indexes rows with its free
 * dimension. */
static void put_hbm_grids(nmlp_emit_source *src, const nmlp_instr *in, const tile_dims *t, int n_stack, nmlp_str *out) {
    bool flip = in->op == NMLP_OP_DMA_TRANSPOSE;
    int64_t rows = nmlp_emit_fold_size(&src->shape, &in->hbm.rows).full,
            cols = nmlp_emit_fold_size(&src->shape, &in->hbm.cols).full;
    nmlp_str_printf(out, "%s[", src->tensor_names[in->hbm.tensor]);
    put_start_plus(src, &in->hbm.row, out);
    if (n_stack) {
        put_strided(src, t, 0, n_stack, in->hbm.tile_rows, out);
        nmlp_str_puts(out, " + ");
    }
    put_grid(src, t->n + 1, 0, rows, out); /* of the tensor's rectangle, also where the load transposes it */
    nmlp_str_puts(out, ", ");
    put_start_plus(src, &in->hbm.col, out);
    if (flip)
        put_grid(src, 2, 1, cols, out);
    else
        put_strided(src, t, n_stack, t->n, 1, out);
    nmlp_str_putc(out, ']');
}

static nmlp_status put_dma(nmlp_emit_source *src, const nmlp_instr *in) {
    bool store = in->op == NMLP_OP_DMA_STORE, flip = in->op == NMLP_OP_DMA_TRANSPOSE;
    const nmlp_buf_ref *chip = store ? &in->a : &in->dst;
    tile_dims t = dims_of(src, chip);
    int n_stack = 0;
    NMLP_RETURN_IF_FAILED(split_dims(src, in, &t, &n_stack));
    bool plain = t.n == 1;
    nmlp_str text;
    nmlp_str_init(&text);
    if (store) nmlp_str_puts(&text, "nl.store\2");
    if (!store) {
        if (plain || flip)
            put_slices(src, chip, &text);
        else
            put_chip_grids(src, chip, &t, &text);
        nmlp_str_puts(&text, flip ? " = nl.load_transpose2d\2" : " = nl.load\2");
    }
    if (plain) {
        nmlp_str_puts(&text, src->tensor_names[in->hbm.tensor]);
        nmlp_emit_put_rect(src, &in->hbm, &text);
    } else {
        put_hbm_grids(src, in, &t, n_stack, &text);
    }
    if (store) {
        nmlp_str_puts(&text, "\1value=");
        if (plain)
            put_slices(src, chip, &text);
        else
            put_chip_grids(src, chip, &t, &text);
    }
    nmlp_str_puts(&text, "\3");
    nmlp_emit_source_statement(src, &text);
    nmlp_emit_source_part_end(src, &text);
    return NMLP_OK;
}

/* `+=` adds to what the declaration zeroed: every loop between the two must select a result or be part of the sum. */
static nmlp_status check_group(nmlp_emit_source *src, const nmlp_instr *in) {
    for (int i = src->declared_at[in->dst.buffer]; i < src->n_open; i++) {
        bool known = in->accumulate.always;
        for (int v = 0; v < in->accumulate.n_vars; v++) known = known || in->accumulate.vars[v] == src->open_loops[i];
        for (int d = 0; d < src->p->buffers[in->dst.buffer].n_dims; d++)
            for (int k = 0; k < in->dst.start[d].n_terms; k++)
                known = known || in->dst.start[d].terms[k].var == src->open_loops[i];
        if (!known)
            return nmlp_fail(
                src->err, NMLP_E_UNSUPPORTED,
                "program %s: legacy NKI needs buffer %s allocated inside loop %s, one PSUM tile per accumulation group",
                src->p->name, src->p->buffers[in->dst.buffer].name, src->p->loops[src->open_loops[i]].name);
    }
    return NMLP_OK;
}

static nmlp_status put_matmul(nmlp_emit_source *src, const nmlp_instr *in, nmlp_str *text) {
    bool adds = in->accumulate.always;
    for (int i = 0; i < in->accumulate.n_vars; i++) adds = adds || !src->shape.single[in->accumulate.vars[i]];
    if (adds) NMLP_RETURN_IF_FAILED(check_group(src, in));
    put_slices(src, &in->dst, text);
    nmlp_str_puts(text, adds ? " += nisa.nc_matmul\2" : " = nisa.nc_matmul\2");
    put_slices(src, &in->a, text);
    nmlp_str_putc(text, '\1');
    put_slices(src, &in->b, text);
    nmlp_str_putc(text, '\3');
    return NMLP_OK;
}

static bool same_place(const nmlp_emit_source *src, const nmlp_buf_ref *a, const nmlp_buf_ref *b) {
    bool same = a->buffer == b->buffer && a->part == b->part && nmlp_emit_same_size(&a->parts, &b->parts);
    for (int d = 0; same && d < src->p->buffers[a->buffer].n_dims; d++)
        same = nmlp_emit_same_affine(&a->start[d], &b->start[d]) && nmlp_emit_same_size(&a->count[d], &b->count[d]);
    return same;
}

static void put_tensor_tensor(nmlp_emit_source *src, const nmlp_instr *in, nmlp_str *text) {
    put_slices(src, &in->dst, text);
    if (in->alu == NMLP_ALU_ADD && (same_place(src, &in->dst, &in->a) || same_place(src, &in->dst, &in->b))) {
        nmlp_str_puts(text, " += ");
        put_slices(src, same_place(src, &in->dst, &in->a) ? &in->b : &in->a, text);
        return;
    }
    nmlp_str_printf(text, " = %s\2", nmlp_emit_python_alu(in->alu));
    put_slices(src, &in->a, text);
    nmlp_str_putc(text, '\1');
    put_slices(src, &in->b, text);
    nmlp_str_puts(text, "\1dtype=");
    nmlp_emit_put_dtype(src->p->buffers[in->dst.buffer].dtype, text);
    nmlp_str_putc(text, '\3');
}

static void put_unary(nmlp_emit_source *src, const nmlp_instr *in, nmlp_str *text) {
    put_slices(src, &in->dst, text);
    if (in->op == NMLP_OP_TRANSPOSE) {
        nmlp_str_puts(text, " = nisa.nc_transpose\2");
        put_slices(src, &in->a, text);
        nmlp_str_putc(text, '\3');
        return;
    }
    if (in->op == NMLP_OP_COPY) {
        nmlp_str_puts(text, " = nl.copy\2");
        put_slices(src, &in->a, text);
    } else if (in->op == NMLP_OP_TENSOR_SCALAR) {
        nmlp_str_puts(text, " = nisa.tensor_scalar\2");
        put_slices(src, &in->a, text);
        nmlp_str_printf(text, "\1op0=%s\1operand0=", nmlp_emit_python_alu(in->alu));
        put_slices(src, &in->b, text);
    } else {
        nmlp_str_printf(text, " = nisa.activation\2op=%s\1data=", nmlp_emit_python_func(in->func));
        put_slices(src, &in->a, text);
        if (in->b.buffer >= 0) {
            nmlp_str_puts(text, "\1scale=");
            put_slices(src, &in->b, text);
        } else if (in->scale != 1.0) {
            nmlp_str_puts(text, "\1scale=");
            nmlp_emit_put_float(in->scale, text);
        }
    }
    nmlp_str_puts(text, "\1dtype=");
    nmlp_emit_put_dtype(src->p->buffers[in->dst.buffer].dtype, text);
    nmlp_str_putc(text, '\3');
}

/* The tiles on both sides must have the same shape, not only as many elements. */
static nmlp_status check_tiles(nmlp_emit_source *src, const nmlp_buf_ref *a, const nmlp_buf_ref *b) {
    if (b->buffer < 0) return NMLP_OK;
    tile_dims x = dims_of(src, a), y = dims_of(src, b);
    bool same = x.n == y.n;
    for (int i = 0; same && i < x.n; i++) same = x.extent[i] == y.extent[i];
    if (same) return NMLP_OK;
    return nmlp_fail(src->err, NMLP_E_UNSUPPORTED, "program %s: legacy NKI cannot reshape between %s and %s",
                     src->p->name, src->p->buffers[a->buffer].name, src->p->buffers[b->buffer].name);
}

static void put_par_dim(const nmlp_emit_source *src, int64_t parts, nmlp_str *out) {
    if (parts == (int64_t)src->options->machine->partitions)
        nmlp_str_puts(out, "nl.par_dim(P)");
    else
        nmlp_str_printf(out, "nl.par_dim(%" PRId64 ")", parts);
}

/* Writes `value` to a tile. */
static void put_fill(nmlp_emit_source *src, const nmlp_buf_ref *ref, double value) {
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    nmlp_str text;
    nmlp_str_init(&text);
    put_slices(src, ref, &text);
    nmlp_str_printf(&text, " = nl.%s\2(", value == 0.0 ? "zeros" : "full");
    put_par_dim(src, ref->parts.full, &text);
    for (int d = 0; d < b->n_dims; d++) {
        if (d < b->n_dims - 1 && ref->count[d].full == 1) continue;
        nmlp_str_puts(&text, ", ");
        nmlp_emit_put_length(&src->shape, d == b->n_dims - 1 ? src->shape.last_axis[ref->buffer] : NMLP_AXIS_NONE,
                             ref->count[d].full, &text);
    }
    nmlp_str_putc(&text, ')');
    if (value != 0.0) {
        nmlp_str_putc(&text, '\1');
        nmlp_emit_put_float(value, &text);
    }
    nmlp_str_puts(&text, "\1dtype=");
    nmlp_emit_put_dtype(b->dtype, &text);
    nmlp_str_putc(&text, '\3');
    nmlp_emit_source_statement(src, &text);
    nmlp_emit_source_part_end(src, &text);
}

nmlp_status nmlp_emit_legacy_instr(nmlp_emit_source *src, const nmlp_instr *in) {
    nmlp_status st = NMLP_OK;
    nmlp_str text;
    if (in->hbm.tensor >= 0) return put_dma(src, in);
    nmlp_str_init(&text);
    if (in->op == NMLP_OP_MEMSET) {
        put_fill(src, &in->dst, in->value);
        goto out;
    }
    if (in->op == NMLP_OP_MATMUL) {
        NMLP_TRY(put_matmul(src, in, &text));
    } else if (in->op == NMLP_OP_TENSOR_TENSOR) {
        NMLP_TRY(check_tiles(src, &in->dst, &in->a));
        NMLP_TRY(check_tiles(src, &in->dst, &in->b));
        put_tensor_tensor(src, in, &text);
    } else {
        if (in->op != NMLP_OP_TRANSPOSE) NMLP_TRY(check_tiles(src, &in->dst, &in->a));
        put_unary(src, in, &text);
    }
    nmlp_emit_source_statement(src, &text);
out:
    nmlp_emit_source_part_end(src, &text);
    return st;
}

nmlp_status nmlp_emit_legacy_declare(nmlp_emit_source *src, int buffer) {
    const nmlp_buffer *b = &src->p->buffers[buffer];
    const nmlp_emit_shape *shape = &src->shape;
    bool psum = b->space == NMLP_SPACE_PSUM;
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_printf(&text, "%s = nl.%s\2(", src->buffer_names[buffer], src->accumulator[buffer] ? "zeros" : "ndarray");
    put_par_dim(src, b->partitions, &text);
    for (int d = 0; d < b->n_dims - 1; d++) {
        nmlp_str_puts(&text, ", ");
        nmlp_emit_put_count(shape, shape->lead_axis[2 * buffer + d], shape->lead_step[2 * buffer + d], b->dims[d],
                            &text);
    }
    nmlp_str_puts(&text, ", ");
    nmlp_emit_put_extent(shape, shape->last_axis[buffer], b->dims[b->n_dims - 1], psum, &text);
    nmlp_str_puts(&text, ")\1dtype=");
    nmlp_emit_put_dtype(b->dtype, &text);
    nmlp_str_printf(&text, "\1buffer=nl.%s\3", nmlp_space_name(b->space));
    nmlp_emit_source_statement(src, &text);
    nmlp_emit_source_part_end(src, &text);
    return NMLP_OK;
}

void nmlp_emit_legacy_grids(nmlp_emit_source *src) {
    for (int i = 0; i < src->n_grids; i++) {
        const nmlp_emit_grid *g = &src->grids[i];
        nmlp_str text;
        nmlp_str_init(&text);
        put_grid_name(g, &text);
        nmlp_str_printf(&text, " = nl.arange(%" PRId64 ")[", g->extent);
        for (int d = 0; d < g->rank; d++) nmlp_str_printf(&text, "%s%s", d ? ", " : "", d == g->at ? ":" : "None");
        nmlp_str_putc(&text, ']');
        nmlp_emit_source_statement(src, &text);
        nmlp_emit_source_part_end(src, &text);
    }
}
