#include "cli/emit_package.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/model_args.h"
#include "service/kernel.h"
#include "service/text_session.h"
#include "trainium/package/package.h"

enum { EXPECTED_TOKENS = 12 };

typedef struct packaging {
    const nmlp_cli *cli;
    const nmlp_emit_package_args *args;
    nmlp_machine machine;
    nmlp_package_options options;
    nmlp_package_report report;
    double seconds;
} packaging;

static nmlp_status parse_buckets(nmlp_package_options *o, const char *text, nmlp_err *err) {
    int64_t *rows = NULL;
    size_t n = 0;
    NMLP_RETURN_IF_FAILED(nmlp_cli_parse_ints(&rows, &n, text, "--buckets", err));
    o->n_buckets = n <= NMLP_PACKAGE_BUCKETS_MAX ? (int)n : NMLP_PACKAGE_BUCKETS_MAX + 1;
    for (size_t i = 0; i < n && i < NMLP_PACKAGE_BUCKETS_MAX; i++) o->buckets[i] = rows[i];
    nmlp_mem_free(rows);
    return NMLP_OK;
}

static nmlp_status choose_options(packaging *p, nmlp_err *err) {
    const nmlp_emit_package_args *a = p->args;
    nmlp_package_options *o = &p->options;
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&p->machine, a->target, err));
    o->model_name = a->model;
    o->tp = a->tp;
    o->lnc = a->lnc;
    o->dialect = nmlp_dialect_for(&p->machine);
    if (a->sdk) NMLP_RETURN_IF_FAILED(nmlp_dialect_for_sdk(&o->dialect, &p->machine, a->sdk, err));
    if (a->dialect && !nmlp_dialect_parse(a->dialect, &o->dialect))
        return nmlp_fail_field(err, NMLP_E_ARG, "dialect", "is \"%.40s\"; expected nki or nki-legacy", a->dialect);
    if (!nmlp_nc_dtype_parse(a->dtype, &o->dtype))
        return nmlp_fail_field(err, NMLP_E_ARG, "dtype", "is \"%.40s\"; expected bf16, fp16 or fp32", a->dtype);
    if (!nmlp_package_fuse_parse(a->fuse, &o->fuse))
        return nmlp_fail_field(err, NMLP_E_ARG, "fuse", "is \"%.40s\"; expected auto, none, norm or all", a->fuse);
    return parse_buckets(o, a->buckets, err);
}

typedef struct logit_rows {
    float *logits;
    int64_t vocab;
} logit_rows;

static bool keep_row(void *ctx, int64_t position, const float *row) {
    const logit_rows *r = ctx;
    memcpy(r->logits + position * r->vocab, row, (size_t)r->vocab * sizeof *row);
    return true;
}

/* What this machine's engine says about a few tokens spread over the vocabulary: the host's check compares with it. */
static nmlp_status expect_logits(float **logits, int32_t ids[EXPECTED_TOKENS], const nmlp_loaded *loaded,
                                 nmlp_err *err) {
    nmlp_text_session *session = NULL;
    logit_rows rows = {.vocab = loaded->model.config.vocab};
    for (int64_t i = 0; i < EXPECTED_TOKENS; i++) ids[i] = (int32_t)((2 * i + 1) * rows.vocab / (2 * EXPECTED_TOKENS));
    rows.logits = *logits = nmlp_mem_new((size_t)(EXPECTED_TOKENS * rows.vocab), sizeof **logits, err);
    if (!*logits) return NMLP_E_NOMEM;
    NMLP_RETURN_IF_FAILED(nmlp_text_session_create(&session, loaded, NULL, EXPECTED_TOKENS, err));
    nmlp_status st = nmlp_text_session_logits(session, ids, EXPECTED_TOKENS, 0, keep_row, &rows, err);
    nmlp_text_session_destroy(session);
    return st;
}

static nmlp_status write_package(packaging *p, nmlp_err *err) {
    nmlp_loaded loaded = {0};
    nmlp_load_options load = {0};
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    int32_t ids[EXPECTED_TOKENS];
    float *logits = NULL;
    nmlp_planner planner;
    nmlp_status st = NMLP_OK;
    double start = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(choose_options(p, err));
    NMLP_TRY(nmlp_cli_load(&loaded, p->cli, p->args->model, &load, err));
    NMLP_TRY(expect_logits(&logits, ids, &loaded, err));
    nmlp_package_expected expected = {ids, EXPECTED_TOKENS, loaded.model.config.vocab, logits};
    planner = nmlp_kernel_planner(&p->machine, p->args->cache);
    p->options.planner = &planner;
    p->options.progress = &progress;
    p->options.expected = &expected;
    NMLP_TRY(nmlp_package_write(&p->report, p->args->output, &loaded.model, &p->options, err));
    nmlp_cli_progress_end(&bar);
    p->seconds = nmlp_clock_seconds() - start;
out:
    nmlp_unload(&loaded);
    nmlp_mem_free(logits);
    return st;
}

static int print_json(const packaging *p, const nmlp_cli *cli) {
    const nmlp_package_report *r = &p->report;
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "file", p->args->output);
    nmlp_json_put_string(w, "target", p->machine.name);
    nmlp_json_put_string(w, "dialect", nmlp_dialect_name(p->options.dialect));
    nmlp_json_put_int(w, "tp", p->options.tp);
    nmlp_json_put_int(w, "lnc", p->options.lnc);
    nmlp_json_put_string(w, "fused", nmlp_package_fuse_name(r->fused));
    nmlp_json_put_string(w, "weights", r->fp8 ? "fp8" : nmlp_nc_dtype_name(p->options.dtype));
    nmlp_json_put_int(w, "layers", r->n_layers);
    nmlp_json_put_int(w, "forms", r->n_forms);
    nmlp_json_put_int(w, "kernels", r->n_kernels);
    nmlp_json_put_int(w, "instructions", r->instructions);
    nmlp_json_put_number(w, "bytes", r->weight_bytes);
    nmlp_json_put_number(w, "checkpoint_bytes", r->checkpoint_bytes);
    nmlp_json_begin_array(w, "simulated_us");
    for (int b = 0; b < p->options.n_buckets; b++) {
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_int(w, "rows", p->options.buckets[b]);
        nmlp_json_put_number(w, "mlp_us", r->bucket_us[b]);
        nmlp_json_put_number(w, "mlp_us_own_packing", r->free_bucket_us[b]);
        nmlp_json_put_number(w, "norm_us", r->norm_us[b]);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_put_number(w, "seconds", p->seconds);
    return nmlp_json_out_end(&out, cli);
}

static void print_human(const packaging *p) {
    const nmlp_package_report *r = &p->report;
    char packed[32], stored[32];
    nmlp_cli_bytes_text(packed, r->weight_bytes);
    nmlp_cli_bytes_text(stored, r->checkpoint_bytes);
    printf("%s: %lld layers in %lld forms, %lld kernels for %s (%s), %.1f s\n", p->args->output, (long long)r->n_layers,
           (long long)r->n_forms, (long long)r->n_kernels, p->machine.name, nmlp_dialect_name(p->options.dialect),
           p->seconds);
    printf("  weights: %s packed once for all kernels on %lld rank%s, %s in the checkpoint (%+.2f %%)\n", packed,
           (long long)p->options.tp, p->options.tp > 1 ? "s" : "", stored,
           100 * (r->weight_bytes / r->checkpoint_bytes - 1));
    printf("  in the kernels: %s\n", r->fused == NMLP_PACKAGE_FUSE_NONE   ? "the MLPs alone"
                                     : r->fused == NMLP_PACKAGE_FUSE_NORM ? "the MLPs and the norms before them"
                                                                          : "norm, MLP and residual");
    printf("  %-6s %22s %24s\n", "rows", "all MLPs, us (simulated)", "own packing for each");
    for (int b = 0; b < p->options.n_buckets; b++)
        printf("  %-6lld %22.1f %24.1f\n", (long long)p->options.buckets[b], r->bucket_us[b], r->free_bucket_us[b]);
}

int nmlp_cli_emit_package(const nmlp_cli *cli, const nmlp_emit_package_args *args) {
    packaging p = {.cli = cli, .args = args};
    nmlp_err err = {0};
    if (write_package(&p, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    if (cli->json) return print_json(&p, cli);
    print_human(&p);
    return NMLP_EXIT_OK;
}
