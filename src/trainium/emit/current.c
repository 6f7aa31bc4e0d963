/* Instructions in current NKI: destination first, slices with edges in them, no masks. */
#include <string.h>

#include "trainium/emit/source.h"

static const char *engine_name(nmlp_nc_engine engine) {
    static const char *const names[] = {"nisa.engine.tensor", "nisa.engine.vector", "nisa.engine.scalar",
                                        "nisa.engine.gpsimd", "nisa.engine.dma"};
    return names[engine];
}

static bool is_whole(const nmlp_emit_source *src, const nmlp_affine *start, const nmlp_size *size, int64_t extent) {
    nmlp_affine a = nmlp_emit_fold(&src->shape, start);
    nmlp_size s = nmlp_emit_fold_size(&src->shape, size);
    return a.n_terms == 0 && a.base == 0 && !s.clamped && s.full == extent;
}

static bool is_whole_buffer(const nmlp_emit_source *src, const nmlp_buf_ref *ref) {
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    nmlp_affine part = nmlp_affine_const(ref->part);
    bool whole = is_whole(src, &part, &ref->parts, b->partitions);
    for (int d = 0; d < b->n_dims; d++) whole = whole && is_whole(src, &ref->start[d], &ref->count[d], b->dims[d]);
    for (int d = 0; d < b->n_dims - 1; d++) whole = whole && b->dims[d] > 1; /* an index drops a dimension */
    return whole;
}

static void put_buf(const nmlp_emit_source *src, const nmlp_buf_ref *ref, nmlp_str *out) {
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    nmlp_str_puts(out, src->buffer_names[ref->buffer]);
    if (is_whole_buffer(src, ref)) return;
    nmlp_str_putc(out, '[');
    nmlp_emit_put_parts(src, ref->part, &ref->parts, src->shape.part_axis[ref->buffer], out);
    for (int d = 0; d < b->n_dims; d++) {
        nmlp_size count = nmlp_emit_fold_size(&src->shape, &ref->count[d]);
        bool last = d == b->n_dims - 1;
        nmlp_str_puts(out, ", ");
        if (!last && !count.clamped && count.full == 1)
            nmlp_emit_put_affine(src, &ref->start[d], out);
        else
            nmlp_emit_put_range(src, &ref->start[d], &count, last ? src->shape.last_axis[ref->buffer] : NMLP_AXIS_NONE,
                                out);
    }
    nmlp_str_putc(out, ']');
}

/* A stack of tiles as an access pattern over the tensor's storage: partition, tile, column. */
static void put_stack(const nmlp_emit_source *src, const nmlp_hbm_ref *ref, nmlp_str *out) {
    const int *axis = &src->shape.tensor_axis[2 * ref->tensor];
    const nmlp_tensor *t = &src->p->tensors[ref->tensor];
    nmlp_affine col = nmlp_emit_fold(&src->shape, &ref->col), row = nmlp_emit_fold(&src->shape, &ref->row);
    nmlp_str_printf(out, "%s.ap(pattern=[[", src->tensor_names[ref->tensor]);
    nmlp_emit_put_length(&src->shape, axis[1], t->cols, out);
    nmlp_str_puts(out, ", ");
    nmlp_emit_put_size(src, &ref->rows, axis[0], out);
    nmlp_str_puts(out, "], [");
    nmlp_emit_put_length(&src->shape, axis[0], ref->tile_rows, out);
    nmlp_str_puts(out, " * ");
    nmlp_emit_put_length(&src->shape, axis[1], t->cols, out);
    nmlp_str_puts(out, ", ");
    nmlp_emit_put_size(src, &ref->tiles, NMLP_AXIS_NONE, out);
    nmlp_str_puts(out, "], [1, ");
    nmlp_emit_put_size(src, &ref->cols, axis[1], out);
    nmlp_str_puts(out, "]], offset=");
    if (row.n_terms || row.base) {
        nmlp_str text;
        nmlp_str_init(&text);
        nmlp_emit_put_affine(src, &row, &text);
        nmlp_str_printf(out, strchr(nmlp_str_text(&text), ' ') ? "(%s) * " : "%s * ", nmlp_str_text(&text));
        nmlp_emit_source_part_end(src, &text);
        nmlp_emit_put_length(&src->shape, axis[1], t->cols, out);
    }
    if (!(row.n_terms || row.base))
        nmlp_emit_put_affine(src, &col, out);
    else if (col.n_terms || col.base) {
        nmlp_str_puts(out, " + ");
        nmlp_emit_put_affine(src, &col, out);
    }
    nmlp_str_putc(out, ')');
}

static void put_hbm(const nmlp_emit_source *src, const nmlp_hbm_ref *ref, nmlp_str *out) {
    const nmlp_tensor *t = &src->p->tensors[ref->tensor];
    nmlp_size tiles = nmlp_emit_fold_size(&src->shape, &ref->tiles);
    if (tiles.clamped || tiles.full > 1) {
        put_stack(src, ref, out);
        return;
    }
    nmlp_str_puts(out, src->tensor_names[ref->tensor]);
    if (is_whole(src, &ref->row, &ref->rows, t->rows) && is_whole(src, &ref->col, &ref->cols, t->cols)) return;
    nmlp_emit_put_rect(src, ref, out);
}

static void put_accumulate(const nmlp_emit_source *src, const nmlp_accumulate *acc, nmlp_str *out) {
    int n = 0;
    if (acc->always) {
        nmlp_str_puts(out, "True");
        return;
    }
    for (int i = 0; i < acc->n_vars; i++) {
        if (src->shape.single[acc->vars[i]]) continue;
        nmlp_str_printf(out, "%s%s > 0", n++ ? " or " : "(", src->loop_names[acc->vars[i]]);
    }
    nmlp_str_puts(out, n ? ")" : "False");
}

static void put_operand(const nmlp_emit_source *src, const char *key, const nmlp_buf_ref *ref, nmlp_str *out) {
    nmlp_str_printf(out, "\1%s=", key);
    put_buf(src, ref, out);
}

static void put_dma(const nmlp_emit_source *src, const nmlp_instr *in, nmlp_str *out) {
    nmlp_str_puts(out, in->op == NMLP_OP_DMA_TRANSPOSE ? "nisa.dma_transpose\2dst=" : "nisa.dma_copy\2dst=");
    if (in->op == NMLP_OP_DMA_STORE)
        put_hbm(src, &in->hbm, out);
    else
        put_buf(src, &in->dst, out);
    nmlp_str_puts(out, "\1src=");
    if (in->op == NMLP_OP_DMA_STORE)
        put_buf(src, &in->a, out);
    else
        put_hbm(src, &in->hbm, out);
    if (in->op == NMLP_OP_DMA_TRANSPOSE) nmlp_str_puts(out, "\1axes=(1, 0)");
}

static void put_compute(const nmlp_emit_source *src, const nmlp_instr *in, nmlp_str *out) {
    static const char *const calls[NMLP_N_OPS] = {
        [NMLP_OP_MATMUL] = "nc_matmul",      [NMLP_OP_TRANSPOSE] = "nc_transpose",
        [NMLP_OP_COPY] = "tensor_copy",      [NMLP_OP_TENSOR_TENSOR] = "tensor_tensor",
        [NMLP_OP_ACTIVATION] = "activation", [NMLP_OP_TENSOR_SCALAR] = "tensor_scalar",
        [NMLP_OP_MEMSET] = "memset",
    };
    nmlp_str_printf(out, "nisa.%s\2dst=", calls[in->op]);
    put_buf(src, &in->dst, out);
    switch (in->op) {
    case NMLP_OP_MATMUL:
        put_operand(src, "stationary", &in->a, out);
        put_operand(src, "moving", &in->b, out);
        nmlp_str_puts(out, "\1accumulate=");
        put_accumulate(src, &in->accumulate, out);
        return;
    case NMLP_OP_TRANSPOSE: put_operand(src, "data", &in->a, out); break;
    case NMLP_OP_COPY: put_operand(src, "src", &in->a, out); break;
    case NMLP_OP_TENSOR_TENSOR:
        put_operand(src, "data1", &in->a, out);
        put_operand(src, "data2", &in->b, out);
        nmlp_str_printf(out, "\1op=%s", nmlp_emit_python_alu(in->alu));
        break;
    case NMLP_OP_TENSOR_SCALAR:
        put_operand(src, "data", &in->a, out);
        nmlp_str_printf(out, "\1op0=%s", nmlp_emit_python_alu(in->alu));
        put_operand(src, "operand0", &in->b, out);
        break;
    case NMLP_OP_ACTIVATION:
        nmlp_str_printf(out, "\1op=%s", nmlp_emit_python_func(in->func));
        put_operand(src, "data", &in->a, out);
        if (in->b.buffer >= 0) {
            put_operand(src, "scale", &in->b, out);
        } else if (in->scale != 1.0) {
            nmlp_str_puts(out, "\1scale=");
            nmlp_emit_put_float(in->scale, out);
        }
        return;
    default:
        nmlp_str_puts(out, "\1value=");
        nmlp_emit_put_float(in->value, out);
        return;
    }
    nmlp_str_printf(out, "\1engine=%s", engine_name(in->engine));
}

/* An edge may leave nothing of the tile: then the instruction is not issued. */
static bool put_guard(nmlp_emit_source *src, const nmlp_size *size, int n_before, nmlp_str *out) {
    if (!nmlp_emit_may_vanish(&src->shape, size)) return false;
    nmlp_str_puts(out, n_before ? " and " : "if ");
    nmlp_emit_put_size(src, size, NMLP_AXIS_NONE, out);
    nmlp_str_puts(out, " > 0");
    return true;
}

static bool put_guards(nmlp_emit_source *src, const nmlp_instr *in) {
    const nmlp_buf_ref *refs[] = {&in->dst, &in->a, &in->b};
    const nmlp_size *seen[16];
    int n_seen = 0, n = 0;
    nmlp_str text;
    nmlp_str_init(&text);
    for (int i = 0; i < 3; i++) {
        if (refs[i]->buffer < 0) continue;
        for (int d = -1; d < src->p->buffers[refs[i]->buffer].n_dims; d++) {
            const nmlp_size *size = d < 0 ? &refs[i]->parts : &refs[i]->count[d];
            bool known = false;
            for (int k = 0; k < n_seen; k++) known = known || nmlp_emit_same_size(seen[k], size);
            if (known) continue;
            seen[n_seen++] = size;
            if (put_guard(src, size, n, &text)) n++;
        }
    }
    if (n) nmlp_emit_source_line(src, "%s:", nmlp_str_text(&text));
    nmlp_emit_source_part_end(src, &text);
    return n > 0;
}

/* A transposing DMA has as many dimensions on chip as in HBM: two. */
static nmlp_status check_transpose(nmlp_emit_source *src, const nmlp_instr *in) {
    const nmlp_buffer *b = &src->p->buffers[in->dst.buffer];
    for (int d = 0; d < b->n_dims - 1; d++) {
        nmlp_size count = nmlp_emit_fold_size(&src->shape, &in->dst.count[d]);
        if (count.clamped || count.full != 1)
            return nmlp_fail(src->err, NMLP_E_UNSUPPORTED,
                             "program %s: a transposing DMA fills several indices of buffer %s at once", src->p->name,
                             b->name);
    }
    return NMLP_OK;
}

nmlp_status nmlp_emit_current_instr(nmlp_emit_source *src, const nmlp_instr *in) {
    nmlp_str text;
    if (in->op == NMLP_OP_DMA_TRANSPOSE) NMLP_RETURN_IF_FAILED(check_transpose(src, in));
    bool guarded = put_guards(src, in);
    src->depth += guarded;
    nmlp_str_init(&text);
    if (in->hbm.tensor >= 0)
        put_dma(src, in, &text);
    else
        put_compute(src, in, &text);
    nmlp_str_putc(&text, '\3');
    nmlp_emit_source_statement(src, &text);
    nmlp_emit_source_part_end(src, &text);
    src->depth -= guarded;
    return NMLP_OK;
}

nmlp_status nmlp_emit_current_declare(nmlp_emit_source *src, int buffer) {
    const nmlp_buffer *b = &src->p->buffers[buffer];
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_printf(&text, "%s = nl.ndarray\2(", src->buffer_names[buffer]);
    if (b->partitions == (int)src->options->machine->partitions)
        nmlp_str_puts(&text, "P");
    else
        nmlp_emit_put_length(&src->shape, src->shape.part_axis[buffer], b->partitions, &text);
    for (int d = 0; d < b->n_dims; d++) {
        nmlp_str_puts(&text, ", ");
        if (d == b->n_dims - 1)
            nmlp_emit_put_extent(&src->shape, src->shape.last_axis[buffer], b->dims[d], b->space == NMLP_SPACE_PSUM,
                                 &text);
        else
            nmlp_emit_put_count(&src->shape, src->shape.lead_axis[2 * buffer + d], src->shape.lead_step[2 * buffer + d],
                                b->dims[d], &text);
    }
    nmlp_str_puts(&text, ")\1dtype=");
    nmlp_emit_put_dtype(b->dtype, &text);
    nmlp_str_printf(&text, "\1buffer=nl.%s\3", nmlp_space_name(b->space));
    nmlp_emit_source_statement(src, &text);
    nmlp_emit_source_part_end(src, &text);
    return NMLP_OK;
}
