#include "trainium/package/package.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dir_stage.h"
#include "base/file.h"
#include "base/mem.h"
#include "trainium/neuron/program_cores.h"
#include "trainium/package/package_internal.h"

enum { PATH_MAX_BYTES = 4096, HEAD_BYTES = 1 << 26 };

static bool is_empty_dir(const char *dir) {
    DIR *open_dir = opendir(dir);
    const struct dirent *entry;
    bool empty = open_dir != NULL;
    while (empty && (entry = readdir(open_dir)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (open_dir) closedir(open_dir);
    return empty;
}

/* The folder is replaced as a whole: it must hold nothing but an older package. */
static nmlp_status check_target(const char *dir, nmlp_err *err) {
    static const char ours[] = "{\"format\":\"neuronmlp-trainium-package\"";
    char path[PATH_MAX_BYTES];
    nmlp_str text;
    nmlp_err unread = {0};
    if (!nmlp_file_exists(dir) || is_empty_dir(dir)) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "manifest.json", err));
    nmlp_str_init(&text);
    bool package = nmlp_file_read(&text, path, HEAD_BYTES, &unread) == NMLP_OK &&
                   strncmp(nmlp_str_text(&text), ours, sizeof ours - 1) == 0;
    nmlp_str_fini(&text);
    if (package) return NMLP_OK;
    nmlp_fail(err, NMLP_E_ARG, "%s: would be replaced as a whole, and holds something else than a package", dir);
    nmlp_fail_hint(err, "choose a new folder, or empty the old one");
    return NMLP_E_ARG;
}

bool nmlp_package_is_split(const nmlp_package *p, const nmlp_emit_weight *weight) {
    return p->model->config.slices > 0 || nmlp_emit_weight_is_split(weight);
}

static nmlp_status spread_over_cores(const nmlp_package *p, nmlp_program **out, const nmlp_program *program,
                                     nmlp_err *err) {
    bool *split = nmlp_mem_new(program->n_tensors, sizeof *split, err);
    if (!split) return NMLP_E_NOMEM;
    for (size_t t = 0; t < program->n_tensors; t++) {
        nmlp_emit_weight w;
        split[t] = program->tensors[t].role == NMLP_ROLE_WEIGHT && nmlp_emit_weight_of(program, (int)t, &w) &&
                   nmlp_package_is_split(p, &w);
    }
    nmlp_status st = nmlp_program_over_cores(out, program, p->options->lnc, split, err);
    nmlp_mem_free(split);
    return st;
}

static nmlp_status write_kernel(nmlp_package *p, size_t form, int bucket, const char *dir, nmlp_err *err) {
    char id[NMLP_PACKAGE_ID_MAX], name[NMLP_PACKAGE_ID_MAX + 4], path[PATH_MAX_BYTES];
    nmlp_package_form *plan = &p->plans[form];
    nmlp_program *spread = NULL;
    nmlp_emit_options options = {.dialect = p->options->dialect,
                                 .machine = p->options->planner->machine,
                                 .latency_us = plan->cost[bucket].latency_us};
    nmlp_emit_result result;
    nmlp_str text;
    nmlp_status st = NMLP_OK;
    nmlp_str_init(&text);
    nmlp_package_kernel_id(id, form, p->options->buckets[bucket]);
    snprintf(name, sizeof name, "%s.py", id);
    NMLP_TRY(nmlp_program_rename(plan->program[bucket], id, err));
    if (p->options->lnc > 1) NMLP_TRY(spread_over_cores(p, &spread, plan->program[bucket], err));
    NMLP_TRY(nmlp_emit_kernel(&text, spread ? spread : plan->program[bucket], &options, &result, err));
    NMLP_TRY(nmlp_path_join(path, sizeof path, dir, name, err));
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err));
    plan->instructions[bucket] = result.instructions;
    p->report->instructions += result.instructions;
    p->report->n_kernels++;
out:
    nmlp_program_destroy(spread);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status write_all(nmlp_package *p, const char *dir, nmlp_err *err) {
    char kernels[PATH_MAX_BYTES], weights[PATH_MAX_BYTES], path[PATH_MAX_BYTES];
    NMLP_RETURN_IF_FAILED(nmlp_package_make_folder(kernels, sizeof kernels, dir, "kernels", err));
    NMLP_RETURN_IF_FAILED(nmlp_package_make_folder(weights, sizeof weights, dir, "weights", err));
    for (size_t f = 0; f < p->forms.n; f++)
        for (int b = 0; b < p->options->n_buckets; b++) NMLP_RETURN_IF_FAILED(write_kernel(p, f, b, kernels, err));
    NMLP_RETURN_IF_FAILED(nmlp_package_write_weights(p, weights, err));
    NMLP_RETURN_IF_FAILED(nmlp_package_write_host(p, dir, err));
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_package_put_manifest(p, &text);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_path_join(path, sizeof path, dir, "manifest.json", err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status check_buckets(const nmlp_package_options *o, nmlp_err *err) {
    bool ok = o->n_buckets >= 1 && o->n_buckets <= NMLP_PACKAGE_BUCKETS_MAX;
    for (int b = 0; ok && b < o->n_buckets; b++) ok = o->buckets[b] > (b ? o->buckets[b - 1] : 0);
    if (ok) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "buckets", "must be 1 to %d numbers of rows, ascending from 1",
                           NMLP_PACKAGE_BUCKETS_MAX);
}

static nmlp_status check_ranks(const nmlp_package_options *o, const nmlp_config *c, nmlp_err *err) {
    if (o->tp < 1 || o->tp > NMLP_PACKAGE_TP_MAX)
        return nmlp_fail_field(err, NMLP_E_ARG, "tp", "must be 1 to %d ranks", NMLP_PACKAGE_TP_MAX);
    if (o->lnc != 1 && o->lnc != 2)
        return nmlp_fail_field(err, NMLP_E_ARG, "lnc", "must be 1 or 2 physical cores per logical one");
    if (o->lnc > 1 && o->dialect == NMLP_DIALECT_NKI_LEGACY)
        return nmlp_fail_field(err, NMLP_E_ARG, "lnc", "must be 1: %s joins no cores", o->planner->machine->name);
    if (c->intermediate % (o->tp * o->lnc) != 0)
        return nmlp_fail_field(err, NMLP_E_ARG, o->tp > 1 ? "tp" : "lnc",
                               "%lld cores cannot share an intermediate width of %lld equally",
                               (long long)(o->tp * o->lnc), (long long)c->intermediate);
    if (o->fuse == NMLP_PACKAGE_FUSE_ALL && o->tp * o->lnc > 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "fuse", "is all with %lld cores, each of which would add the residual",
                               (long long)(o->tp * o->lnc));
    if (c->slices > 0 && c->slices != o->tp * o->lnc)
        return nmlp_fail_field(err, NMLP_E_ARG, "tp",
                               "times `lnc` is %lld; the checkpoint's factors belong to %lld slices, a core each",
                               (long long)(o->tp * o->lnc), (long long)c->slices);
    return NMLP_OK;
}

/* Codes of FP8 above 240 are no numbers to trn1 and trn2. */
static nmlp_status check_codes(const nmlp_package *p, const nmlp_view *view, nmlp_err *err) {
    const uint8_t *codes = view->data;
    for (int64_t i = 0; i < view->shape[0] * view->shape[1]; i++) {
        if (nmlp_fp8_is_nan(codes[i]) || !(fabsf(nmlp_fp8_to_f32(codes[i])) > NMLP_FP8_LARGEST)) continue;
        nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: a matrix of an MLP holds the code %g; kernels take FP8 up to %g",
                  p->model->checkpoint.dir, (double)nmlp_fp8_to_f32(codes[i]), (double)NMLP_FP8_LARGEST);
        nmlp_fail_hint(err, "expand the checkpoint to bf16, or quantise it here");
        return NMLP_E_UNSUPPORTED;
    }
    return NMLP_OK;
}

/* Are the weights of all MLPs FP8? Then kernels read them as they are, unless activations are fp32. */
static nmlp_status choose_weights(nmlp_package *p, nmlp_err *err) {
    p->fp8 = p->options->dtype != NMLP_NC_FP32;
    for (int pass = 0; pass < 2 && p->fp8; pass++)
        for (int64_t l = 0; l < p->model->config.n_layers; l++)
            for (int i = 0; i < NMLP_MLP_MATRICES; i++) {
                const nmlp_factors *f = &p->model->layers[l].mlp[i];
                const nmlp_view *views[] = {&f->w, &f->u, &f->v};
                for (int v = 0; v < 3; v++) {
                    if (!views[v]->data) continue;
                    p->fp8 = p->fp8 && views[v]->dtype == NMLP_DTYPE_FP8;
                    if (pass == 1 && p->fp8) NMLP_RETURN_IF_FAILED(check_codes(p, views[v], err));
                }
            }
    p->report->fp8 = p->fp8;
    return NMLP_OK;
}

nmlp_status nmlp_package_write(nmlp_package_report *report, const char *dir, const nmlp_model *model,
                               const nmlp_package_options *options, nmlp_err *err) {
    nmlp_package p = {.model = model, .options = options, .report = report};
    nmlp_dir_stage stage = {0};
    nmlp_status st = NMLP_OK;
    *report = (nmlp_package_report){.n_layers = model->config.n_layers};
    NMLP_RETURN_IF_FAILED(check_buckets(options, err));
    NMLP_RETURN_IF_FAILED(check_ranks(options, &model->config, err));
    nmlp_config whole = model->config;
    whole.slices = 0;
    const char *beyond = whole.features->fused ? "fused projections" : nmlp_config_beyond_plain(&whole);
    if (beyond)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s: packages do not know %s, which this %s model has",
                         model->checkpoint.dir, beyond, model->config.family);
    NMLP_RETURN_IF_FAILED(check_target(dir, err));
    NMLP_TRY(choose_weights(&p, err));
    NMLP_TRY(nmlp_mlp_forms_of(&p.forms, model, err));
    report->n_forms = (int64_t)p.forms.n;
    p.plans = nmlp_mem_new(p.forms.n, sizeof *p.plans, err);
    if (!p.plans) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(nmlp_package_plan(&p, err));
    NMLP_TRY(nmlp_dir_stage_open(&stage, dir, false, err));
    NMLP_TRY(write_all(&p, stage.temp_path, err));
    NMLP_TRY(nmlp_dir_stage_commit(&stage, err));
out:
    nmlp_dir_stage_abort(&stage);
    for (size_t f = 0; p.plans && f < p.forms.n; f++)
        for (int b = 0; b < options->n_buckets; b++) nmlp_program_destroy(p.plans[f].program[b]);
    nmlp_mem_free(p.plans);
    nmlp_mlp_forms_fini(&p.forms);
    return st;
}
