/* Test helper: emits a tile program, or runs it in the simulator on given values.
 *
 *   emit_case emit   TARGET DIALECT SPEC         source on stdout
 *   emit_case values TARGET SPEC ARGS OUT        ARGS: inputs and weights in order, as float32; OUT: outputs likewise
 *   emit_case tensors TARGET SPEC                one line per tensor: name role dtype rows cols
 *
 * SPEC is a file with a program in text form, or KERNEL:SHAPE[:TILING[:DTYPE[:GATE/UP/DOWN[/shared][:FUSED]]]],
 * ranks with 0 for dense, FUSED of the words norm, residual and fp8 (weights). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "trainium/emit/emit.h"
#include "trainium/neuron/program_text.h"
#include "trainium/plan/kernel_table.h"
#include "trainium/sim/time.h"
#include "trainium/sim/values.h"
#include "tensor/dtype.h"

enum { SPEC_MAX = 512, FILE_MAX = 1 << 20 };

static nmlp_status read_program(nmlp_program **out, const char *path, nmlp_err *err) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_status st = nmlp_file_read(&text, path, FILE_MAX, err);
    if (st == NMLP_OK) st = nmlp_program_parse(out, path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_kernel_shape parse_shape(const char *text) {
    long long n[4] = {0};
    int count = sscanf(text, "%lld,%lld,%lld,%lld", &n[0], &n[1], &n[2], &n[3]);
    return count == 4 ? (nmlp_kernel_shape){n[0], n[1], n[2], n[3]} : (nmlp_kernel_shape){n[0], n[1], 0, n[2]};
}

static nmlp_status build(nmlp_program **out, const char *spec, const nmlp_machine *m, nmlp_err *err) {
    char text[SPEC_MAX];
    const char *field[6] = {"", "", "", "bf16", "", ""};
    nmlp_mlp_ranks ranks = {0};
    nmlp_tiling tiling;
    nmlp_nc_dtype dtype;
    if (nmlp_file_exists(spec)) return read_program(out, spec, err);
    snprintf(text, sizeof text, "%s", spec);
    char *at = text;
    for (int i = 0; i < 6 && at; i++) {
        field[i] = at;
        at = strchr(at, ':');
        if (at) *at++ = '\0';
    }
    const nmlp_kernel *kernel = nmlp_kernel_find(field[0], err);
    if (!kernel) return NMLP_E_MISSING;
    NMLP_RETURN_IF_FAILED(nmlp_tiling_parse(&tiling, field[2], err));
    long long r[3] = {0};
    if (sscanf(field[4], "%lld/%lld/%lld", &r[0], &r[1], &r[2]) == 3)
        ranks = (nmlp_mlp_ranks){r[0], r[1], r[2], strstr(field[4], "shared") != NULL};
    if (!nmlp_nc_dtype_parse(field[3][0] ? field[3] : "bf16", &dtype))
        return nmlp_fail(err, NMLP_E_ARG, "no dtype %s", field[3]);
    nmlp_kernel_request rq = {
        .shape = parse_shape(field[1]), .ranks = ranks, .dtype = dtype, .tiling = &tiling, .machine = m};
    rq.fuse = (nmlp_mlp_fusion){.norm_e12 = strstr(field[5], "norm") ? 1000000 : 0,
                                .residual = strstr(field[5], "residual") != NULL};
    rq.fp8 = strstr(field[5], "fp8") != NULL;
    return nmlp_kernel_build(out, kernel, &rq, err);
}

static nmlp_status emit(const nmlp_program *p, const nmlp_machine *m, const char *dialect, nmlp_err *err) {
    nmlp_emit_options options = {.machine = m, .latency_us = -1};
    nmlp_str text;
    if (!nmlp_dialect_parse(dialect, &options.dialect)) return nmlp_fail(err, NMLP_E_ARG, "no dialect %s", dialect);
    nmlp_str_init(&text);
    nmlp_status st = nmlp_emit_kernel(&text, p, &options, NULL, err);
    if (st == NMLP_OK) fputs(nmlp_str_text(&text), stdout);
    nmlp_str_fini(&text);
    return st;
}

static void list_tensors(const nmlp_program *p) {
    for (size_t i = 0; i < p->n_tensors; i++) {
        const nmlp_tensor *t = &p->tensors[i];
        printf("%s %s %s %lld %lld\n", t->name, nmlp_role_name(t->role), nmlp_nc_dtype_name(t->dtype),
               (long long)t->rows, (long long)t->cols);
    }
}

/* Moves all tensors of inputs and weights (in) or of outputs (out) between the file and the simulator. */
static nmlp_status transfer(nmlp_values *v, const nmlp_program *p, FILE *file, bool in, nmlp_err *err) {
    for (size_t i = 0; i < p->n_tensors; i++) {
        const nmlp_tensor *t = &p->tensors[i];
        bool given = t->role == NMLP_ROLE_INPUT || t->role == NMLP_ROLE_WEIGHT;
        if (t->role == NMLP_ROLE_SCRATCH || given != in) continue;
        size_t n = (size_t)(t->rows * t->cols);
        float *line = nmlp_mem_new(n, sizeof *line, err);
        if (!line) return NMLP_E_NOMEM;
        bool ok = true;
        if (in) {
            ok = fread(line, sizeof *line, n, file) == n;
            nmlp_from_f32(nmlp_values_tensor(v, (int)i), nmlp_nc_dtype_to_tensor(t->dtype), line, n);
        } else {
            nmlp_to_f32(line, nmlp_values_tensor(v, (int)i), nmlp_nc_dtype_to_tensor(t->dtype), n);
            ok = fwrite(line, sizeof *line, n, file) == n;
        }
        nmlp_mem_free(line);
        if (!ok)
            return nmlp_fail(err, NMLP_E_IO, "tensor %s: the file of values is too short or cannot be written",
                             t->name);
    }
    return NMLP_OK;
}

static nmlp_status run_values(const nmlp_program *p, const char *args, const char *out, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_values *v = NULL;
    nmlp_progress progress = {0};
    FILE *in_file = fopen(args, "rb"), *out_file = fopen(out, "wb");
    if (!in_file || !out_file) {
        st = nmlp_fail(err, NMLP_E_IO, "cannot open %s or %s", args, out);
        goto out;
    }
    NMLP_TRY(nmlp_values_create(&v, p, NULL, err));
    NMLP_TRY(transfer(v, p, in_file, true, err));
    NMLP_TRY(nmlp_values_run(v, &progress, err));
    NMLP_TRY(transfer(v, p, out_file, false, err));
out:
    nmlp_values_destroy(v);
    if (in_file) fclose(in_file);
    if (out_file) fclose(out_file);
    return st;
}

int main(int argc, char **argv) {
    nmlp_machine m;
    nmlp_program *p = NULL;
    nmlp_err err = {0};
    nmlp_status st = NMLP_OK;
    bool emits = argc == 5 && strcmp(argv[1], "emit") == 0, runs = argc == 6 && strcmp(argv[1], "values") == 0;
    if (!emits && !runs && !(argc == 4 && strcmp(argv[1], "tensors") == 0)) return 2;
    NMLP_TRY(nmlp_machine_open(&m, argv[2], &err));
    NMLP_TRY(build(&p, argv[emits ? 4 : 3], &m, &err));
    if (emits)
        NMLP_TRY(emit(p, &m, argv[3], &err));
    else if (runs)
        NMLP_TRY(run_values(p, argv[4], argv[5], &err));
    else
        list_tensors(p);
out:
    nmlp_program_destroy(p);
    if (st != NMLP_OK) fprintf(stderr, "%s\n", err.message);
    return st == NMLP_OK ? 0 : 1;
}
