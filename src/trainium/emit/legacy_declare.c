/* Legacy declarations: buffers with par_dim and block dimensions, index grids, fills. */
#include <inttypes.h>

#include "trainium/emit/legacy.h"

static void put_par_dim(const nmlp_emit_source *src, int64_t parts, nmlp_str *out) {
    if (parts == (int64_t)src->options->machine->partitions)
        nmlp_str_puts(out, "nl.par_dim(P)");
    else
        nmlp_str_printf(out, "nl.par_dim(%" PRId64 ")", parts);
}

static void put_lead(const nmlp_emit_source *src, int buffer, int d, nmlp_str *out) {
    const nmlp_emit_shape *s = &src->shape;
    nmlp_emit_put_count(s, s->lead_axis[2 * buffer + d], s->lead_step[2 * buffer + d], src->padded[4 * buffer + 1 + d],
                        out);
}

nmlp_status nmlp_emit_legacy_declare(nmlp_emit_source *src, int buffer) {
    const nmlp_buffer *b = &src->p->buffers[buffer];
    const int64_t *padded = &src->padded[4 * buffer];
    bool blocks = src->block_dims[buffer];
    bool zeros = b->space == NMLP_SPACE_PSUM ? src->accumulator[buffer] : src->zero_start[buffer];
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_printf(&text, "%s = nl.%s\2(", src->buffer_names[buffer], zeros ? "zeros" : "ndarray");
    for (int d = 0; blocks && d < b->n_dims - 1; d++) {
        put_lead(src, buffer, d, &text);
        nmlp_str_puts(&text, ", ");
    }
    put_par_dim(src, padded[0], &text);
    for (int d = 0; !blocks && d < b->n_dims - 1; d++) {
        nmlp_str_puts(&text, ", ");
        put_lead(src, buffer, d, &text);
    }
    nmlp_str_puts(&text, ", ");
    nmlp_emit_put_extent(&src->shape, src->shape.last_axis[buffer], padded[b->n_dims], b->space == NMLP_SPACE_PSUM,
                         &text);
    nmlp_str_puts(&text, ")\1dtype=");
    nmlp_emit_put_dtype(b->dtype, &text);
    nmlp_str_printf(&text, "\1buffer=nl.%s\3", nmlp_space_name(b->space));
    nmlp_emit_source_statement(src, &text);
    nmlp_emit_source_part_end(src, &text);
    return NMLP_OK;
}

void nmlp_emit_legacy_put_grid_name(const nmlp_emit_grid *g, nmlp_str *out) {
    char letter = g->at == 0 ? 'p' : g->at == g->rank - 1 ? 'f' : g->at == 1 ? 't' : 'q';
    nmlp_str_printf(out, "i_%c%" PRId64, letter, g->extent);
    if (g->rank > 2) nmlp_str_printf(out, "_%dd", g->rank);
}

void nmlp_emit_legacy_grids(nmlp_emit_source *src) {
    for (int i = 0; i < src->n_grids; i++) {
        const nmlp_emit_grid *g = &src->grids[i];
        nmlp_str text;
        nmlp_str_init(&text);
        nmlp_emit_legacy_put_grid_name(g, &text);
        nmlp_str_printf(&text, " = nl.arange(%" PRId64 ")[", g->extent);
        for (int d = 0; d < g->rank; d++) nmlp_str_printf(&text, "%s%s", d ? ", " : "", d == g->at ? ":" : "None");
        nmlp_str_putc(&text, ']');
        nmlp_emit_source_statement(src, &text);
        nmlp_emit_source_part_end(src, &text);
    }
}

void nmlp_emit_legacy_fill(nmlp_emit_source *src, const nmlp_buf_ref *ref, double value) {
    const nmlp_buffer *b = &src->p->buffers[ref->buffer];
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_emit_legacy_put_slices(src, ref, &text);
    nmlp_str_printf(&text, " = nl.%s\2(", value == 0.0 ? "zeros" : "full");
    put_par_dim(src, nmlp_emit_fold_size(&src->shape, &ref->parts).full, &text);
    for (int d = 0; d < b->n_dims; d++) {
        nmlp_size count = nmlp_emit_fold_size(&src->shape, &ref->count[d]);
        if (d < b->n_dims - 1 && !count.clamped && count.full == 1) continue;
        nmlp_str_puts(&text, ", ");
        nmlp_emit_put_length(&src->shape, d == b->n_dims - 1 ? src->shape.last_axis[ref->buffer] : NMLP_AXIS_NONE,
                             count.full, &text);
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
