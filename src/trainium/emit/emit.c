#include "trainium/emit/emit.h"

#include <stdio.h>
#include <string.h>

#include "trainium/emit/frame.h"
#include "trainium/emit/source.h"
#include "trainium/neuron/program_cores.h"
#include "trainium/neuron/program_peel.h"
#include "trainium/neuron/walk.h"

nmlp_dialect nmlp_dialect_for(const nmlp_machine *machine) {
    return machine->generation < 3 ? NMLP_DIALECT_NKI_LEGACY : NMLP_DIALECT_NKI;
}

const char *nmlp_dialect_name(nmlp_dialect dialect) { return dialect == NMLP_DIALECT_NKI ? "nki" : "nki-legacy"; }

void nmlp_dialect_sdk(nmlp_dialect dialect, const char **from, const char **to) {
    *from = dialect == NMLP_DIALECT_NKI ? "2.29" : "2.23"; /* `+=` on PSUM is consistent from 2.23 on */
    *to = dialect == NMLP_DIALECT_NKI ? "2.32" : "2.26";
}

/* "2.26" as 2026; 0: not a version. */
static int sdk_number(const char *text) {
    int major, minor, used = 0;
    if (sscanf(text, "%d.%d%n", &major, &minor, &used) != 2 || (text[used] && text[used] != '.')) return 0;
    return major >= 0 && minor >= 0 && major < 1000 && minor < 1000 ? 1000 * major + minor : 0;
}

nmlp_status nmlp_dialect_for_sdk(nmlp_dialect *dialect, const nmlp_machine *machine, const char *sdk, nmlp_err *err) {
    const char *from, *to;
    *dialect = nmlp_dialect_for(machine);
    nmlp_dialect_sdk(*dialect, &from, &to);
    int version = sdk_number(sdk);
    if (version >= sdk_number(from) && version <= sdk_number(to)) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "sdk", "is \"%.40s\"; kernels for %s are printed for Neuron SDK %s to %s",
                           sdk, machine->name, from, to);
}

bool nmlp_dialect_parse(const char *name, nmlp_dialect *dialect) {
    for (int i = 0; i < 2; i++) {
        if (strcmp(name, nmlp_dialect_name((nmlp_dialect)i)) != 0) continue;
        *dialect = (nmlp_dialect)i;
        return true;
    }
    return false;
}

static nmlp_status count_instructions(const nmlp_program *p, int64_t *n, nmlp_err *err) {
    nmlp_walk walk;
    nmlp_step step;
    NMLP_RETURN_IF_FAILED(nmlp_walk_init(&walk, p, err));
    for (*n = 0; nmlp_walk_next(&walk, &step);)
        if (step.instr->op != NMLP_OP_ALLOC) ++*n;
    nmlp_walk_fini(&walk);
    return NMLP_OK;
}

static bool allocate(nmlp_emit_source *src) {
    const nmlp_program *p = src->p;
    nmlp_arena *a = &src->arena;
    src->loop_names = nmlp_arena_new(a, p->n_loops + 1, sizeof *src->loop_names, src->err);
    src->buffer_names = nmlp_arena_new(a, p->n_buffers + 1, sizeof *src->buffer_names, src->err);
    src->tensor_names = nmlp_arena_new(a, p->n_tensors + 1, sizeof *src->tensor_names, src->err);
    src->declared_at = nmlp_arena_new(a, p->n_buffers + 1, sizeof *src->declared_at, src->err);
    src->dead = nmlp_arena_new(a, p->n_instrs + 1, sizeof *src->dead, src->err);
    src->tested = nmlp_arena_new(a, p->n_loops + 1, sizeof *src->tested, src->err);
    src->accumulator = nmlp_arena_new(a, p->n_buffers + 1, sizeof *src->accumulator, src->err);
    return src->dead && src->loop_names && src->buffer_names && src->tensor_names && src->declared_at && src->tested &&
           src->accumulator;
}

/* `text` inside a docstring: file names may hold quotes, backslashes, line ends or any other byte. */
static const char *docstring_text(nmlp_emit_source *src, const char *text) {
    nmlp_str out;
    nmlp_str_init(&out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '\\' || *c == '"')
            nmlp_str_printf(&out, "\\%c", *c);
        else if (*c < ' ' || *c > '~')
            nmlp_str_printf(&out, "\\x%02x", *c);
        else
            nmlp_str_putc(&out, (char)*c);
    }
    const char *kept = out.failed ? NULL : nmlp_arena_strdup(&src->arena, nmlp_str_text(&out), src->err);
    nmlp_str_fini(&out);
    return kept;
}

static nmlp_status quote_options(nmlp_emit_source *src) {
    const nmlp_emit_options *o = src->options;
    src->machine_name = docstring_text(src, o->machine->name);
    if (o->command) src->command = docstring_text(src, o->command);
    if (src->machine_name && (src->command || !o->command)) return NMLP_OK;
    return nmlp_fail(src->err, NMLP_E_NOMEM, "out of memory while printing %s", src->p->name);
}

nmlp_status nmlp_emit_source_init(nmlp_emit_source *src, const nmlp_program *program, const nmlp_emit_options *options,
                                  nmlp_str *out, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    *src = (nmlp_emit_source){.p = program,
                              .options = options,
                              .out = out,
                              .legacy = options->dialect == NMLP_DIALECT_NKI_LEGACY,
                              .err = err};
    nmlp_arena_init(&src->arena);
    NMLP_TRY(nmlp_emit_shape_init(&src->shape, program, err));
    if (!allocate(src)) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    NMLP_TRY(quote_options(src));
    nmlp_emit_source_find_dead(src);
    NMLP_TRY(nmlp_emit_source_name_all(src));
out:
    if (st != NMLP_OK) nmlp_emit_source_fini(src);
    return st;
}

void nmlp_emit_source_fini(nmlp_emit_source *src) {
    nmlp_emit_shape_fini(&src->shape);
    nmlp_arena_fini(&src->arena);
}

/* Prints into `part` instead of the file. */
static void redirect(nmlp_emit_source *src, nmlp_str *part) { src->out = part; }

/* The constants come first but depend on what the rest mentions, and so do the legacy index grids: the parts are
 * printed from the inside out and then put together. */
static nmlp_status put_file(nmlp_emit_source *src, nmlp_str *parts, nmlp_str *file) {
    nmlp_str *def = &parts[0], *body = &parts[1], *rest = &parts[2];
    redirect(src, def);
    nmlp_emit_frame_signature(src);
    redirect(src, body);
    NMLP_RETURN_IF_FAILED(nmlp_emit_source_body(src));
    nmlp_emit_frame_return(src);
    redirect(src, rest);
    nmlp_emit_frame_main(src);
    src->depth++;
    redirect(src, def);
    if (src->legacy) nmlp_emit_legacy_grids(src);
    src->depth--;
    for (int i = 0; i < 3; i++) {
        NMLP_RETURN_IF_FAILED(nmlp_str_status(&parts[i], src->err));
        nmlp_str_append(&parts[3], nmlp_str_text(&parts[i]), parts[i].len);
    }
    NMLP_RETURN_IF_FAILED(nmlp_str_status(&parts[3], src->err));
    redirect(src, file);
    nmlp_emit_frame_head(src);
    nmlp_emit_frame_constants(src, nmlp_str_text(&parts[3]));
    nmlp_str_append(file, nmlp_str_text(&parts[3]), parts[3].len);
    return nmlp_str_status(file, src->err);
}

static nmlp_status emit_program(nmlp_str *out, const nmlp_program *program, const nmlp_emit_options *options,
                                nmlp_emit_result *result, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_emit_source src;
    nmlp_str parts[4];
    NMLP_RETURN_IF_FAILED(nmlp_emit_source_init(&src, program, options, out, err));
    for (int i = 0; i < 4; i++) nmlp_str_init(&parts[i]);
    NMLP_TRY(count_instructions(program, &src.instructions, err));
    src.instructions /= nmlp_program_cores(program);
    if (src.legacy) nmlp_emit_legacy_prepare(&src);
    NMLP_TRY(put_file(&src, parts, out));
    if (result) result->instructions = src.instructions;
out:
    for (int i = 0; i < 4; i++) nmlp_str_fini(&parts[i]);
    nmlp_emit_source_fini(&src);
    return st;
}

nmlp_status nmlp_emit_kernel(nmlp_str *out, const nmlp_program *program, const nmlp_emit_options *options,
                             nmlp_emit_result *result, nmlp_err *err) {
    nmlp_program *peeled = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_program_check(program, options->machine, NULL, err));
    if (options->dialect == NMLP_DIALECT_NKI_LEGACY && nmlp_program_cores(program) > 1)
        return nmlp_fail_field(err, NMLP_E_UNSUPPORTED, "lnc", "%s has one physical core per logical one; expected 1",
                               options->machine->name);
    if (options->dialect != NMLP_DIALECT_NKI_LEGACY) return emit_program(out, program, options, result, err);
    NMLP_RETURN_IF_FAILED(nmlp_program_peel(&peeled, program, err)); /* sizes must be numbers */
    nmlp_status st = emit_program(out, peeled, options, result, err);
    nmlp_program_destroy(peeled);
    return st;
}
