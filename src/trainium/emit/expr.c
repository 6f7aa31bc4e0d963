/* Index expressions in Python, with constants and loop starts by name. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "trainium/emit/source.h"

const char *nmlp_emit_python_dtype(nmlp_nc_dtype dtype) {
    static const char *const names[] = {"float32", "bfloat16", "float16", "float8_e4m3"};
    return names[dtype];
}

void nmlp_emit_put_dtype(nmlp_nc_dtype dtype, nmlp_str *out) {
    nmlp_str_printf(out, "nl.%s", nmlp_emit_python_dtype(dtype));
}

void nmlp_emit_put_float(double value, nmlp_str *out) {
    char text[40];
    snprintf(text, sizeof text, "%.9g", value);
    nmlp_str_printf(out, "%s%s", text, strpbrk(text, ".en") ? "" : ".0");
}

const char *nmlp_emit_python_func(nmlp_func func) {
    static const char *const names[] = {"nl.copy", "nl.silu", "nl.gelu", "nl.sigmoid", "nl.relu", "nl.exp", "nl.rsqrt"};
    return names[func];
}

const char *nmlp_emit_python_alu(nmlp_alu alu) {
    static const char *const names[] = {"nl.add", "nl.multiply", "nl.subtract", "nl.maximum"};
    return names[alu];
}

int nmlp_emit_axis_of_affine(const nmlp_emit_source *src, const nmlp_affine *a) {
    int axis = NMLP_AXIS_NONE;
    for (int i = 0; i < a->n_terms; i++) {
        int64_t coef = a->terms[i].coef;
        int of_loop = nmlp_emit_axis_of_term(&src->shape, a->terms[i].var, coef < 0 ? -coef : coef);
        if (axis == NMLP_AXIS_NONE)
            axis = of_loop;
        else if (of_loop != NMLP_AXIS_NONE && of_loop != axis)
            axis = NMLP_AXIS_MIXED;
    }
    return axis;
}

/* coef * variable; coef > 0. */
static void put_term(const nmlp_emit_source *src, int var, int64_t coef, nmlp_str *out) {
    const nmlp_emit_shape *s = &src->shape;
    nmlp_str_puts(out, src->loop_names[var]);
    if (coef == 1) return;
    nmlp_str_puts(out, " * ");
    int axis = s->loop_axis[var];
    for (int i = 0; i < s->n_loop_uses[var]; i++) {
        if (s->loop_uses[var][i].step != coef) continue;
        nmlp_emit_put_length(s, s->loop_uses[var][i].axis, coef, out);
        return;
    }
    if (axis >= 0 && s->loop_step[var] % coef == 0) { /* an index in tiles of a loop over blocks */
        nmlp_str text;
        nmlp_str_init(&text);
        nmlp_emit_put_count(s, axis, s->loop_step[var] / coef, coef, &text);
        bool digits = text.len > 0 && text.data[0] >= '0' && text.data[0] <= '9';
        nmlp_str_printf(out, digits ? "%s" : "(%s)", nmlp_str_text(&text));
        nmlp_emit_source_part_end(src, &text);
        return;
    }
    nmlp_str_printf(out, "%" PRId64, coef);
}

static bool has_term(const nmlp_affine *a, int var, int64_t coef) {
    for (int i = 0; i < a->n_terms; i++)
        if (a->terms[i].var == var && a->terms[i].coef == coef) return true;
    return false;
}

/* The local with the most terms of `a`, all of them in `a`. */
static const nmlp_emit_local *best_local(const nmlp_emit_source *src, const nmlp_affine *a) {
    const nmlp_emit_local *best = NULL;
    for (int i = 0; i < src->n_locals; i++) {
        const nmlp_emit_local *l = &src->locals[i];
        bool inside = !l->is_size && l->start.n_terms <= a->n_terms;
        for (int t = 0; inside && t < l->start.n_terms; t++)
            inside = has_term(a, l->start.terms[t].var, l->start.terms[t].coef);
        if (inside && (!best || l->start.n_terms > best->start.n_terms)) best = l;
    }
    return best;
}

void nmlp_emit_put_affine(const nmlp_emit_source *src, const nmlp_affine *given, nmlp_str *out) {
    nmlp_affine a = nmlp_emit_fold(&src->shape, given);
    const nmlp_emit_local *local = best_local(src, &a);
    bool first = true;
    if (local) {
        nmlp_str_puts(out, local->name);
        first = false;
    }
    for (int i = 0; i < a.n_terms; i++) {
        if (local && has_term(&local->start, a.terms[i].var, a.terms[i].coef)) continue;
        int64_t coef = a.terms[i].coef;
        if (!first || coef < 0) nmlp_str_puts(out, first ? "-" : coef < 0 ? " - " : " + ");
        put_term(src, a.terms[i].var, coef < 0 ? -coef : coef, out);
        first = false;
    }
    if (first)
        nmlp_str_printf(out, "%" PRId64, a.base);
    else if (a.base != 0)
        nmlp_str_printf(out, " %c %" PRId64, a.base < 0 ? '-' : '+', a.base < 0 ? -a.base : a.base);
}

void nmlp_emit_split_rest(const nmlp_affine *rest, nmlp_affine *start, int64_t *limit) {
    *limit = rest->base;
    *start = nmlp_affine_times(*rest, -1);
    start->base = 0;
}

void nmlp_emit_put_limit(const nmlp_emit_source *src, const nmlp_affine *start, int64_t limit, nmlp_str *out) {
    int axis = nmlp_emit_axis_of_affine(src, start);
    if (axis >= 0 && src->shape.axes[axis].extent == limit && !src->shape.axes[axis].run)
        nmlp_str_puts(out, src->shape.axes[axis].name);
    else
        nmlp_str_printf(out, "%" PRId64, limit);
}

/* limit - start */
static void put_rest(const nmlp_emit_source *src, const nmlp_affine *rest, nmlp_str *out) {
    nmlp_affine start;
    int64_t limit;
    nmlp_emit_split_rest(rest, &start, &limit);
    nmlp_emit_put_limit(src, &start, limit, out);
    const nmlp_emit_local *local = best_local(src, &start);
    bool plain = start.n_terms == 1 || (local && local->start.n_terms == start.n_terms);
    nmlp_str_puts(out, plain ? " - " : " - (");
    nmlp_emit_put_affine(src, &start, out);
    if (!plain) nmlp_str_putc(out, ')');
}

static const char *size_local(const nmlp_emit_source *src, const nmlp_size *size) {
    for (int i = 0; i < src->n_locals; i++)
        if (src->locals[i].is_size && nmlp_emit_same_size(&src->locals[i].size, size)) return src->locals[i].name;
    return NULL;
}

void nmlp_emit_put_size(const nmlp_emit_source *src, const nmlp_size *given, int axis, nmlp_str *out) {
    nmlp_size size = nmlp_emit_fold_size(&src->shape, given);
    if (!size.clamped) {
        nmlp_emit_put_length(&src->shape, axis, size.full, out);
        return;
    }
    const char *name = size_local(src, &size);
    if (name) {
        nmlp_str_puts(out, name);
        return;
    }
    int of_rest = nmlp_emit_axis_of_affine(src, &size.rest);
    nmlp_str_puts(out, "min(");
    if (size.step == 1) {
        nmlp_emit_put_length(&src->shape, of_rest, size.full, out);
        nmlp_str_puts(out, ", ");
        put_rest(src, &size.rest, out);
    } else {
        nmlp_emit_put_count(&src->shape, of_rest, size.step, size.full, out);
        nmlp_str_puts(out, ", (");
        put_rest(src, &size.rest, out);
        nmlp_str_puts(out, " + ");
        nmlp_emit_put_length(&src->shape, of_rest, size.step, out);
        nmlp_str_puts(out, " - 1) // ");
        nmlp_emit_put_length(&src->shape, of_rest, size.step, out);
    }
    nmlp_str_putc(out, ')');
}

void nmlp_emit_put_range(const nmlp_emit_source *src, const nmlp_affine *given, const nmlp_size *size, int axis,
                         nmlp_str *out) {
    nmlp_affine start = nmlp_emit_fold(&src->shape, given);
    int of_start = nmlp_emit_axis_of_affine(src, &start);
    nmlp_emit_put_affine(src, &start, out);
    nmlp_str_putc(out, ':');
    if (start.n_terms == 0 && !nmlp_emit_fold_size(&src->shape, size).clamped && start.base != 0) {
        nmlp_str_printf(out, "%" PRId64, start.base + nmlp_emit_fold_size(&src->shape, size).full);
        return;
    }
    if (start.n_terms || start.base) {
        nmlp_emit_put_affine(src, &start, out);
        nmlp_str_puts(out, " + ");
    }
    nmlp_emit_put_size(src, size, axis >= 0 ? axis : of_start, out);
}

void nmlp_emit_put_trips(const nmlp_emit_source *src, int loop, nmlp_str *out) {
    nmlp_size trips = nmlp_emit_fold_size(&src->shape, &src->p->loops[loop].trips);
    if (trips.clamped)
        nmlp_emit_put_size(src, &trips, NMLP_AXIS_NONE, out);
    else
        nmlp_emit_put_count(&src->shape, src->shape.loop_axis[loop], src->shape.loop_step[loop], trips.full, out);
}

void nmlp_emit_put_parts(const nmlp_emit_source *src, int part, const nmlp_size *parts, int axis, nmlp_str *out) {
    nmlp_size size = nmlp_emit_fold_size(&src->shape, parts);
    nmlp_affine start = nmlp_affine_const(part);
    if (part == 0 && !size.clamped && size.full == (int64_t)src->options->machine->partitions)
        nmlp_str_puts(out, "0:P");
    else
        nmlp_emit_put_range(src, &start, &size, axis, out);
}

void nmlp_emit_put_rect(const nmlp_emit_source *src, const nmlp_hbm_ref *ref, nmlp_str *out) {
    const int *axis = &src->shape.tensor_axis[2 * ref->tensor];
    nmlp_affine row = nmlp_emit_fold(&src->shape, &ref->row);
    nmlp_str_putc(out, '[');
    if (axis[0] < 0 && row.n_terms == 0 && row.base == 0)
        nmlp_emit_put_parts(src, 0, &ref->rows, axis[0], out);
    else
        nmlp_emit_put_range(src, &row, &ref->rows, axis[0], out);
    nmlp_str_puts(out, ", ");
    nmlp_emit_put_range(src, &ref->col, &ref->cols, axis[1], out);
    nmlp_str_putc(out, ']');
}
