#include "trainium/emit/shape.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "trainium/neuron/check.h"
#include "trainium/neuron/pack.h"

/* What tensors are called decides their letters where extents alone do not. */
static const struct {
    const char *tensor, *rows, *cols;
} conventions[] = {
    {"x", "S", "H"},        {"xT", "H", "S"},     {"w", "H", "O"},      {"u", "H", "R"},      {"v", "R", "O"},
    {"y", "S", "O"},        {"y", "S", "H"},      {"yT", "O", "S"},     {"xu", "S", "R"},     {"xuT", "R", "S"},
    {"w_gate", "H", "O"},   {"w_up", "H", "O"},   {"w_down", "O", "H"}, {"u_gate", "H", "R"}, {"u_up", "H", "R"},
    {"u_shared", "H", "R"}, {"v_gate", "R", "O"}, {"v_up", "R", "O"},   {"u_down", "O", "R"}, {"v_down", "R", "H"},
};

enum { N_CONVENTIONS = sizeof conventions / sizeof conventions[0] };

nmlp_affine nmlp_emit_fold(const nmlp_emit_shape *s, const nmlp_affine *a) {
    nmlp_affine r = {.base = a->base};
    for (int i = 0; i < a->n_terms; i++)
        if (!s->single[a->terms[i].var]) r.terms[r.n_terms++] = a->terms[i];
    return r;
}

static int64_t lower(const nmlp_program *p, const nmlp_affine *a) {
    nmlp_affine negative = nmlp_affine_times(*a, -1);
    return -nmlp_affine_upper(p, &negative);
}

nmlp_size nmlp_emit_fold_size(const nmlp_emit_shape *s, const nmlp_size *size) {
    if (!size->clamped) return *size;
    nmlp_size r = *size;
    r.rest = nmlp_emit_fold(s, &size->rest);
    if (r.rest.n_terms == 0) return nmlp_size_const(nmlp_size_eval(&r, NULL));
    if (lower(s->p, &r.rest) > (r.full - 1) * r.step) return nmlp_size_const(r.full);
    return r;
}

bool nmlp_emit_may_vanish(const nmlp_emit_shape *s, const nmlp_size *size) {
    nmlp_size folded = nmlp_emit_fold_size(s, size);
    return folded.clamped ? lower(s->p, &folded.rest) <= 0 : folded.full <= 0;
}

int nmlp_emit_innermost(const nmlp_affine *a) {
    int var = -1;
    for (int i = 0; i < a->n_terms; i++)
        if (a->terms[i].var > var) var = a->terms[i].var;
    return var;
}

bool nmlp_emit_same_affine(const nmlp_affine *a, const nmlp_affine *b) {
    bool same = a->base == b->base && a->n_terms == b->n_terms;
    for (int i = 0; same && i < a->n_terms; i++)
        same = a->terms[i].var == b->terms[i].var && a->terms[i].coef == b->terms[i].coef;
    return same;
}

bool nmlp_emit_same_size(const nmlp_size *a, const nmlp_size *b) {
    if (a->full != b->full || a->clamped != b->clamped) return false;
    return !a->clamped || (a->step == b->step && nmlp_emit_same_affine(&a->rest, &b->rest));
}

static int axis_named(const nmlp_emit_shape *s, const char *name, int64_t extent) {
    for (int i = 0; i < s->n_axes; i++)
        if (strcmp(s->axes[i].name, name) == 0 && s->axes[i].extent == extent) return i;
    return NMLP_AXIS_NONE;
}

static const char *upper_case(nmlp_emit_shape *s, const char *name) {
    char *copy = nmlp_arena_strdup(&s->arena, name, NULL);
    for (char *c = copy; c && *c; c++) *c = (char)toupper((unsigned char)*c);
    if (!copy) s->failed = true;
    return copy ? copy : name;
}

static int axis_of_dim(const nmlp_emit_shape *s, const nmlp_tensor *t, int n_letters, bool cols) {
    int64_t extent = cols ? t->cols : t->rows;
    nmlp_pack pack;
    if (nmlp_pack_find(s->p, t->name, &pack))
        return NMLP_AXIS_NONE; /* tiles in a row: an equal extent would be chance */
    for (int i = 0; i < N_CONVENTIONS; i++) {
        if (strcmp(conventions[i].tensor, t->name) != 0) continue;
        int axis = axis_named(s, cols ? conventions[i].cols : conventions[i].rows, extent);
        if (axis >= 0) return axis;
    }
    for (int i = 0; i < n_letters; i++)
        if (s->axes[i].extent == extent) return i;
    return NMLP_AXIS_NONE;
}

/* Joins what is known of a place with what an instruction says; true when that changed something. */
static bool join(int *place, int axis) {
    if (axis < 0 || *place == axis || *place == NMLP_AXIS_MIXED) return false; /* doubt does not spread */
    *place = *place == NMLP_AXIS_NONE ? axis : NMLP_AXIS_MIXED;
    return true;
}

static bool use_loop(nmlp_emit_shape *s, int var, int axis, int64_t step) {
    nmlp_emit_loop_use *uses = s->loop_uses[var];
    int *n = &s->n_loop_uses[var];
    if (axis < 0 || step <= 1 || s->single[var]) return false;
    for (int i = 0; i < *n; i++)
        if (uses[i].axis == axis && uses[i].step == step) return false;
    if (*n == NMLP_LOOP_USES_MAX) return false;
    uses[(*n)++] = (nmlp_emit_loop_use){axis, step};
    bool better = s->loop_axis[var] == NMLP_AXIS_NONE || (s->axes[s->loop_axis[var]].run && !s->axes[axis].run);
    if (better) s->loop_axis[var] = axis, s->loop_step[var] = step;
    return true;
}

int nmlp_emit_axis_of_term(const nmlp_emit_shape *s, int loop, int64_t coef) {
    for (int i = 0; i < s->n_loop_uses[loop]; i++)
        if (s->loop_uses[loop][i].step == coef) return s->loop_uses[loop][i].axis;
    return s->loop_axis[loop];
}

static void place_loops(nmlp_emit_shape *s, const nmlp_affine *at, int axis) {
    for (int i = 0; i < at->n_terms; i++) use_loop(s, at->terms[i].var, axis, at->terms[i].coef);
}

static void add_step(nmlp_emit_axis *axis, int64_t step) {
    int at = 0;
    if (step <= 1 || step >= axis->extent) return;
    while (at < axis->n_steps && axis->steps[at] < step) at++;
    if (at < axis->n_steps && axis->steps[at] == step) return;
    if (axis->n_steps == NMLP_AXIS_STEPS_MAX) return; /* a fourth level stays a number */
    for (int i = axis->n_steps; i > at; i--) axis->steps[i] = axis->steps[i - 1];
    axis->steps[at] = step;
    axis->n_steps++;
}

static void place_dma(nmlp_emit_shape *s, const nmlp_instr *in) {
    const nmlp_buf_ref *chip = in->op == NMLP_OP_DMA_STORE ? &in->a : &in->dst;
    int rows = s->tensor_axis[2 * in->hbm.tensor], cols = s->tensor_axis[2 * in->hbm.tensor + 1];
    bool flip = in->op == NMLP_OP_DMA_TRANSPOSE;
    place_loops(s, &in->hbm.row, rows);
    place_loops(s, &in->hbm.col, cols);
    if (rows >= 0 && (in->hbm.tiles.clamped || in->hbm.tiles.full > 1)) add_step(&s->axes[rows], in->hbm.tile_rows);
    join(&s->part_axis[chip->buffer], flip ? cols : rows);
    join(&s->last_axis[chip->buffer], flip ? rows : cols);
}

/* Both places hold the same axis. */
static bool tie(int *a, int *b) {
    bool changed = join(a, *b);
    return join(b, *a) || changed;
}

static bool propagate(nmlp_emit_shape *s, const nmlp_instr *in) {
    int d = in->dst.buffer, a = in->a.buffer, b = in->b.buffer;
    bool changed = false;
    if (in->op == NMLP_OP_MATMUL) {
        changed = tie(&s->part_axis[d], &s->last_axis[a]);
        changed = tie(&s->last_axis[d], &s->last_axis[b]) || changed;
        return tie(&s->part_axis[a], &s->part_axis[b]) || changed;
    }
    if (in->op == NMLP_OP_TRANSPOSE) {
        changed = tie(&s->part_axis[d], &s->last_axis[a]);
        return tie(&s->last_axis[d], &s->part_axis[a]) || changed;
    }
    bool scalar = in->op == NMLP_OP_ACTIVATION || in->op == NMLP_OP_TENSOR_SCALAR; /* b is a number a partition */
    if (in->op != NMLP_OP_COPY && in->op != NMLP_OP_TENSOR_TENSOR && !scalar) return false;
    changed = tie(&s->part_axis[d], &s->part_axis[a]);
    changed = tie(&s->last_axis[d], &s->last_axis[a]) || changed;
    if (b < 0) return changed;
    changed = tie(&s->part_axis[d], &s->part_axis[b]) || changed;
    return scalar ? changed : tie(&s->last_axis[d], &s->last_axis[b]) || changed;
}

/* A loop that no DMA uses steps along the axis of what it indexes on chip. */
static bool place_loop(nmlp_emit_shape *s, int var, int axis, int64_t step) {
    if (s->loop_axis[var] != NMLP_AXIS_NONE) return false;
    return use_loop(s, var, axis, step);
}

static bool place_by_clamp(nmlp_emit_shape *s, const nmlp_size *size, int axis) {
    bool changed = false;
    if (!size->clamped || axis < 0 || size->rest.base != s->axes[axis].extent) return false;
    for (int i = 0; i < size->rest.n_terms; i++)
        changed = place_loop(s, size->rest.terms[i].var, axis, -size->rest.terms[i].coef) || changed;
    return changed;
}

/* Leading dimensions count steps: what one loop over them says holds for all. */
static bool place_leading(nmlp_emit_shape *s, const nmlp_buf_ref *ref, int d) {
    int *axis = &s->lead_axis[2 * ref->buffer + d];
    int64_t *step = &s->lead_step[2 * ref->buffer + d];
    bool changed = false;
    for (int i = 0; i < ref->start[d].n_terms; i++) {
        int var = ref->start[d].terms[i].var;
        int64_t coef = ref->start[d].terms[i].coef;
        if (coef < 1 || s->single[var]) continue;
        if (*axis == NMLP_AXIS_NONE && s->loop_axis[var] >= 0 && s->loop_step[var] % coef == 0) {
            *axis = s->loop_axis[var];
            *step = s->loop_step[var] / coef;
            changed = true;
        }
        changed = place_loop(s, var, *axis, *step * coef) || changed;
    }
    return changed;
}

/* Loops over a block of packed tiles are named after the tensor: they step by tiles and by runs of tiles. */
static bool place_packed(nmlp_emit_shape *s, int var, int64_t coef) {
    for (size_t t = 0; t < s->p->n_tensors; t++) {
        nmlp_pack pack;
        const char *name = s->p->tensors[t].name;
        size_t len = strlen(name);
        if (strncmp(s->p->loops[var].name, name, len) != 0 || s->p->loops[var].name[len] != '_') continue;
        if (strchr(s->p->loops[var].name + len + 1, '_') || !nmlp_pack_find(s->p, name, &pack)) continue;
        if (coef == pack.columns || coef == nmlp_pack_tile_run(&pack))
            return use_loop(s, var, s->tensor_axis[2 * t + 1], coef);
    }
    return false;
}

static bool place_access(nmlp_emit_shape *s, const nmlp_buf_ref *ref) {
    if (ref->buffer < 0) return false;
    int last = s->p->buffers[ref->buffer].n_dims - 1;
    bool changed = place_by_clamp(s, &ref->parts, s->part_axis[ref->buffer]);
    changed = place_by_clamp(s, &ref->count[last], s->last_axis[ref->buffer]) || changed;
    for (int i = 0; i < ref->start[last].n_terms; i++) {
        int var = ref->start[last].terms[i].var;
        int64_t coef = ref->start[last].terms[i].coef;
        changed = place_loop(s, var, s->last_axis[ref->buffer], coef) || changed;
        changed = place_packed(s, var, coef) || changed;
    }
    for (int d = 0; d < last; d++) changed = place_leading(s, ref, d) || changed;
    return changed;
}

static void place_inner_loops(nmlp_emit_shape *s) {
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < s->p->n_instrs; i++) {
            const nmlp_instr *in = &s->p->instrs[i];
            if (in->op == NMLP_OP_ALLOC) continue;
            changed = place_access(s, &in->dst) || changed;
            changed = place_access(s, &in->a) || changed;
            changed = place_access(s, &in->b) || changed;
        }
    }
}

static void find_axes(nmlp_emit_shape *s) {
    const nmlp_program *p = s->p;
    for (size_t i = 0; i < p->n_params; i++) { /* shape letters are upper case; tiling numbers are not */
        bool letter = p->params[i].name[0] >= 'A' && p->params[i].name[0] <= 'Z';
        if (letter && p->params[i].value > 0)
            s->axes[s->n_axes++] = (nmlp_emit_axis){.name = p->params[i].name, .extent = p->params[i].value};
    }
    int n_letters = s->n_axes;
    for (size_t t = 0; t < p->n_tensors; t++) {
        s->tensor_axis[2 * t] = axis_of_dim(s, &p->tensors[t], n_letters, false);
        s->tensor_axis[2 * t + 1] = axis_of_dim(s, &p->tensors[t], n_letters, true);
        if (s->tensor_axis[2 * t + 1] >= 0) continue;
        s->tensor_axis[2 * t + 1] = s->n_axes;
        nmlp_pack pack = {0};
        nmlp_pack_find(p, p->tensors[t].name, &pack);
        s->axes[s->n_axes++] = (nmlp_emit_axis){
            .name = upper_case(s, p->tensors[t].name), .extent = p->tensors[t].cols, .run = true, .tile = pack.columns};
    }
}

static void analyse(nmlp_emit_shape *s) {
    const nmlp_program *p = s->p;
    for (size_t i = 0; i < p->n_loops; i++) {
        nmlp_size trips = nmlp_emit_fold_size(s, &p->loops[i].trips);
        s->single[i] = !trips.clamped && trips.full <= 1;
        s->loop_axis[i] = NMLP_AXIS_NONE;
    }
    for (size_t i = 0; i < p->n_buffers; i++)
        s->part_axis[i] = s->last_axis[i] = s->lead_axis[2 * i] = s->lead_axis[2 * i + 1] = NMLP_AXIS_NONE;
    find_axes(s);
    for (size_t i = 0; i < p->n_instrs; i++)
        if (p->instrs[i].hbm.tensor >= 0) place_dma(s, &p->instrs[i]);
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < p->n_instrs; i++) changed = propagate(s, &p->instrs[i]) || changed;
    }
    place_inner_loops(s);
    for (size_t i = 0; i < p->n_loops; i++)
        for (int u = 0; u < s->n_loop_uses[i]; u++)
            add_step(&s->axes[s->loop_uses[i][u].axis], s->loop_uses[i][u].step);
}

nmlp_status nmlp_emit_shape_init(nmlp_emit_shape *s, const nmlp_program *p, nmlp_err *err) {
    *s = (nmlp_emit_shape){.p = p};
    nmlp_arena_init(&s->arena);
    s->axes = nmlp_arena_new(&s->arena, p->n_params + p->n_tensors + 1, sizeof *s->axes, err);
    s->tensor_axis = nmlp_arena_new(&s->arena, 2 * p->n_tensors + 1, sizeof *s->tensor_axis, err);
    s->loop_axis = nmlp_arena_new(&s->arena, p->n_loops + 1, sizeof *s->loop_axis, err);
    s->loop_uses = nmlp_arena_new(&s->arena, p->n_loops + 1, sizeof *s->loop_uses, err);
    s->n_loop_uses = nmlp_arena_new(&s->arena, p->n_loops + 1, sizeof *s->n_loop_uses, err);
    s->loop_step = nmlp_arena_new(&s->arena, p->n_loops + 1, sizeof *s->loop_step, err);
    s->single = nmlp_arena_new(&s->arena, p->n_loops + 1, sizeof *s->single, err);
    s->part_axis = nmlp_arena_new(&s->arena, p->n_buffers + 1, sizeof *s->part_axis, err);
    s->last_axis = nmlp_arena_new(&s->arena, p->n_buffers + 1, sizeof *s->last_axis, err);
    s->lead_axis = nmlp_arena_new(&s->arena, 2 * p->n_buffers + 1, sizeof *s->lead_axis, err);
    s->lead_step = nmlp_arena_new(&s->arena, 2 * p->n_buffers + 1, sizeof *s->lead_step, err);
    if (!s->axes || !s->loop_uses || !s->n_loop_uses || !s->lead_axis || !s->lead_step || !s->tensor_axis ||
        !s->loop_axis || !s->loop_step || !s->single || !s->part_axis || !s->last_axis) {
        nmlp_emit_shape_fini(s);
        return NMLP_E_NOMEM;
    }
    analyse(s);
    if (!s->failed) return NMLP_OK;
    nmlp_emit_shape_fini(s);
    return nmlp_fail(err, NMLP_E_NOMEM, "out of memory while printing %s", p->name);
}

void nmlp_emit_shape_fini(nmlp_emit_shape *s) { nmlp_arena_fini(&s->arena); }

const char *nmlp_emit_level_name(const nmlp_emit_axis *axis, int level) {
    if (axis->run && axis->n_steps == 1 && axis->steps[0] != axis->tile) return "RUN";
    static const char *const names[2][NMLP_AXIS_STEPS_MAX] = {{"TILE", "BLOCK", "STRIP"}, {"TILE", "RUN", "SPAN"}};
    return names[axis->run][level];
}

void nmlp_emit_put_length(const nmlp_emit_shape *s, int axis, int64_t value, nmlp_str *out) {
    if (axis >= 0) {
        const nmlp_emit_axis *a = &s->axes[axis];
        for (int i = 0; i < a->n_steps; i++) {
            if (a->steps[i] != value) continue;
            nmlp_str_printf(out, "%s_%s", nmlp_emit_level_name(a, i), a->name);
            return;
        }
        if (a->extent == value && value > 1 && !a->run) {
            nmlp_str_puts(out, a->name);
            return;
        }
    }
    nmlp_str_printf(out, "%" PRId64, value);
}

void nmlp_emit_put_count(const nmlp_emit_shape *s, int axis, int64_t step, int64_t count, nmlp_str *out) {
    if (axis >= 0 && !s->axes[axis].run && step > 1 && count > 1) {
        const nmlp_emit_axis *a = &s->axes[axis];
        bool named = false, block = false;
        for (int i = 0; i < a->n_steps; i++) {
            named = named || a->steps[i] == step;
            block = block || a->steps[i] == step * count;
        }
        if (named && (block || a->extent == step * count)) {
            nmlp_emit_put_length(s, axis, step * count, out);
            nmlp_str_puts(out, " // ");
            nmlp_emit_put_length(s, axis, step, out);
            return;
        }
        if (named && (a->extent + step - 1) / step == count) {
            nmlp_str_printf(out, "(%s + ", a->name);
            nmlp_emit_put_length(s, axis, step, out);
            nmlp_str_puts(out, " - 1) // ");
            nmlp_emit_put_length(s, axis, step, out);
            return;
        }
    }
    nmlp_str_printf(out, "%" PRId64, count);
}

void nmlp_emit_put_extent(const nmlp_emit_shape *s, int axis, int64_t value, bool accumulator, nmlp_str *out) {
    const nmlp_emit_axis *a = axis < 0 || s->axes[axis].run ? NULL : &s->axes[axis];
    bool step = false;
    for (int i = 0; a && i < a->n_steps; i++) step = step || a->steps[i] == value;
    if (a && !step && !accumulator && a->extent != value && a->n_steps > 0 && value % a->steps[0] == 0) {
        nmlp_str_printf(out, "%" PRId64 " * ", value / a->steps[0]);
        value = a->steps[0];
    }
    nmlp_emit_put_length(s, a && (step || !accumulator) ? axis : NMLP_AXIS_NONE, value, out);
}
