/* Prints tile programs. */
#include <inttypes.h>

#include "trainium/neuron/program_text.h"

static void print_affine(const nmlp_program *p, const nmlp_affine *a, nmlp_str *out) {
    bool first = true;
    if (a->base != 0 || a->n_terms == 0) {
        nmlp_str_printf(out, "%" PRId64, a->base);
        first = false;
    }
    for (int i = 0; i < a->n_terms; i++) {
        int64_t coef = a->terms[i].coef;
        const char *name = p->loops[a->terms[i].var].name;
        if (first)
            nmlp_str_puts(out, coef < 0 ? "-" : "");
        else
            nmlp_str_puts(out, coef < 0 ? " - " : " + ");
        int64_t size = coef < 0 ? -coef : coef;
        if (size == 1)
            nmlp_str_puts(out, name);
        else
            nmlp_str_printf(out, "%" PRId64 "*%s", size, name);
        first = false;
    }
}

static void print_size(const nmlp_program *p, const nmlp_size *s, nmlp_str *out) {
    if (!s->clamped) {
        nmlp_str_printf(out, "%" PRId64, s->full);
        return;
    }
    nmlp_str_printf(out, "min(%" PRId64 ", %s", s->full, s->step == 1 ? "" : "cdiv(");
    print_affine(p, &s->rest, out);
    if (s->step != 1) nmlp_str_printf(out, ", %" PRId64 ")", s->step);
    nmlp_str_putc(out, ')');
}

static void print_range(const nmlp_program *p, const nmlp_affine *start, const nmlp_size *count, nmlp_str *out) {
    print_affine(p, start, out);
    if (!count->clamped && count->full == 1) return;
    nmlp_str_puts(out, " :+ ");
    print_size(p, count, out);
}

static void print_buf(const nmlp_program *p, const nmlp_buf_ref *ref, nmlp_str *out) {
    const nmlp_buffer *b = &p->buffers[ref->buffer];
    nmlp_affine part = nmlp_affine_const(ref->part);
    nmlp_str_printf(out, "%s[", b->name);
    print_range(p, &part, &ref->parts, out);
    for (int d = 0; d < b->n_dims; d++) {
        nmlp_str_puts(out, d ? ", " : "; ");
        print_range(p, &ref->start[d], &ref->count[d], out);
    }
    nmlp_str_putc(out, ']');
}

static void print_hbm(const nmlp_program *p, const nmlp_hbm_ref *ref, nmlp_str *out) {
    nmlp_str_printf(out, "%s[", p->tensors[ref->tensor].name);
    print_range(p, &ref->row, &ref->rows, out);
    nmlp_str_puts(out, ", ");
    print_range(p, &ref->col, &ref->cols, out);
    nmlp_str_putc(out, ']');
    if (!ref->tiles.clamped && ref->tiles.full == 1 && ref->tile_rows == 0) return;
    nmlp_str_puts(out, " stack ");
    print_size(p, &ref->tiles, out);
    nmlp_str_printf(out, " by %" PRId64, ref->tile_rows);
}

static void print_matmul(const nmlp_program *p, const nmlp_instr *in, nmlp_str *out) {
    print_buf(p, &in->dst, out);
    nmlp_str_puts(out, " stationary ");
    print_buf(p, &in->a, out);
    nmlp_str_puts(out, " moving ");
    print_buf(p, &in->b, out);
    nmlp_str_puts(out, " accumulate ");
    if (in->accumulate.always)
        nmlp_str_puts(out, "always");
    else if (in->accumulate.n_vars == 0)
        nmlp_str_puts(out, "never");
    for (int i = 0; !in->accumulate.always && i < in->accumulate.n_vars; i++)
        nmlp_str_printf(out, "%s%s", i ? ", " : "", p->loops[in->accumulate.vars[i]].name);
}

static void print_elementwise(const nmlp_program *p, const nmlp_instr *in, nmlp_str *out) {
    print_buf(p, &in->dst, out);
    nmlp_str_puts(out, " = ");
    if (in->op == NMLP_OP_ACTIVATION) nmlp_str_printf(out, "%s(", nmlp_func_name(in->func));
    if (in->op == NMLP_OP_MEMSET)
        nmlp_str_printf(out, "%.17g", in->value);
    else
        print_buf(p, &in->a, out);
    if (in->op == NMLP_OP_TENSOR_TENSOR || in->op == NMLP_OP_TENSOR_SCALAR) {
        nmlp_str_printf(out, " %s ", nmlp_alu_name(in->alu));
        print_buf(p, &in->b, out);
    }
    if (in->op == NMLP_OP_ACTIVATION && in->b.buffer >= 0) {
        nmlp_str_puts(out, ") scale ");
        print_buf(p, &in->b, out);
    } else if (in->op == NMLP_OP_ACTIVATION) {
        nmlp_str_printf(out, ") scale %.17g", in->scale);
    }
    nmlp_str_printf(out, " on %s", nmlp_nc_engine_name(in->engine));
}

void nmlp_program_print_instr(const nmlp_program *p, const nmlp_instr *in, nmlp_str *out) {
    nmlp_str_printf(out, "%s ", nmlp_op_name(in->op));
    switch (in->op) {
    case NMLP_OP_ALLOC: nmlp_str_puts(out, p->buffers[in->dst.buffer].name); break;
    case NMLP_OP_DMA_LOAD:
    case NMLP_OP_DMA_TRANSPOSE:
        print_buf(p, &in->dst, out);
        nmlp_str_puts(out, " = ");
        print_hbm(p, &in->hbm, out);
        nmlp_str_printf(out, " queue %d", in->queue);
        break;
    case NMLP_OP_DMA_STORE:
        print_hbm(p, &in->hbm, out);
        nmlp_str_puts(out, " = ");
        print_buf(p, &in->a, out);
        nmlp_str_printf(out, " queue %d", in->queue);
        break;
    case NMLP_OP_MATMUL: print_matmul(p, in, out); break;
    default: print_elementwise(p, in, out); break;
    }
}

static void print_declarations(const nmlp_program *p, nmlp_str *out) {
    nmlp_str_printf(out, "program %s\n", p->name);
    for (size_t i = 0; i < p->n_params; i++)
        nmlp_str_printf(out, "param %s = %" PRId64 "\n", p->params[i].name, p->params[i].value);
    for (size_t i = 0; i < p->n_tensors; i++) {
        const nmlp_tensor *t = &p->tensors[i];
        nmlp_str_printf(out, "tensor %s %s %s [%" PRId64 ", %" PRId64 "]\n", t->name, nmlp_role_name(t->role),
                        nmlp_nc_dtype_name(t->dtype), t->rows, t->cols);
    }
    for (size_t i = 0; i < p->n_buffers; i++) {
        const nmlp_buffer *b = &p->buffers[i];
        nmlp_str_printf(out, "buffer %s %s %s [%d", b->name, nmlp_space_name(b->space), nmlp_nc_dtype_name(b->dtype),
                        b->partitions);
        for (int d = 0; d < b->n_dims; d++) nmlp_str_printf(out, "%s%" PRId64, d ? ", " : "; ", b->dims[d]);
        nmlp_str_printf(out, "] copies %d%s\n", b->copies, b->managed ? " managed" : "");
    }
}

static void indent(int depth, nmlp_str *out) {
    for (int i = 0; i <= depth; i++) nmlp_str_puts(out, "  ");
}

void nmlp_program_print(const nmlp_program *p, nmlp_str *out) {
    int ends[NMLP_LOOP_DEPTH_MAX];
    int depth = 0;
    print_declarations(p, out);
    nmlp_str_puts(out, "begin\n");
    for (int at = 0; at <= (int)p->n_nodes; at++) {
        for (; depth > 0 && ends[depth - 1] == at; depth--) {
            indent(depth - 1, out);
            nmlp_str_puts(out, "}\n");
        }
        if (at == (int)p->n_nodes) break;
        const nmlp_node *node = &p->nodes[at];
        indent(depth, out);
        switch (node->kind) {
        case NMLP_NODE_COMMENT: nmlp_str_printf(out, "# %s\n", node->comment); break;
        case NMLP_NODE_INSTR:
            nmlp_program_print_instr(p, &p->instrs[node->instr], out);
            nmlp_str_putc(out, '\n');
            break;
        case NMLP_NODE_LOOP:
            nmlp_str_printf(out, "for %s%s in ", p->loops[node->loop].sequential ? "sequential " : "",
                            p->loops[node->loop].name);
            print_size(p, &p->loops[node->loop].trips, out);
            nmlp_str_puts(out, " {\n");
            ends[depth++] = node->end;
            break;
        case NMLP_NODE_IF:
            nmlp_str_printf(out, "if %s %s {\n", node->when == NMLP_WHEN_FIRST ? "first" : "later",
                            p->loops[node->loop].name);
            ends[depth++] = node->end;
            break;
        }
    }
    nmlp_str_puts(out, "end\n");
}
