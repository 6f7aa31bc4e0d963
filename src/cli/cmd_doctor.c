/* neuronmlp doctor: what this machine offers, and what would make it faster. */
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"
#include "cli/commands.h"
#include "cli/version.h"
#include "doctor/advice.h"
#include "doctor/selftest.h"
#include "kernels/kernels.h"

enum { SETS_MAX = 8 };

typedef enum set_state { SET_SOUND, SET_WRONG, SET_ABSENT } set_state;

typedef struct findings {
    nmlp_survey survey;
    nmlp_advice advice;
    set_state sets[SETS_MAX]; /* as nmlp_kernels_name_at counts */
    int n_wrong;
} findings;

static nmlp_status examine(findings *f, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(nmlp_survey_take(&f->survey, err));
    nmlp_advise(&f->advice, &f->survey, nmlp_build_info_get()->build_type);
    for (size_t i = 0; i < SETS_MAX && nmlp_kernels_name_at(i); i++) {
        bool sound;
        const nmlp_kernels *set;
        f->sets[i] = SET_ABSENT;
        if (nmlp_kernels_select(&set, &f->survey.cpu, nmlp_kernels_name_at(i), err) != NMLP_OK) continue;
        NMLP_RETURN_IF_FAILED(nmlp_selftest(&sound, set, err));
        f->sets[i] = sound ? SET_SOUND : SET_WRONG;
        f->n_wrong += f->sets[i] == SET_WRONG;
    }
    return NMLP_OK;
}

static const char *tiles_text(const nmlp_cpu_amx *t) {
    if (!t->in_cpu) return "not in this CPU";
    if (!t->enabled) return "in the CPU, not enabled by the system";
    if (!t->permitted) return "in the CPU, permission refused";
    return "permitted";
}

static void print_processor(const findings *f) {
    static const char *const states[] = {"sound", "WRONG RESULTS", "not on this CPU"};
    const nmlp_survey *s = &f->survey;
    printf("  cpu          %s\n", s->cpu.name[0] ? s->cpu.name : "unknown");
    printf("  AMX          %s\n", tiles_text(&s->cpu.amx));
    if (strcmp(s->set, s->set_bf16) == 0) {
        printf("  kernels      %s runs everything, activations in f32\n", s->set);
    } else {
        printf("  kernels      %s in run, for bf16 weights: activations are rounded to bf16\n", s->set_bf16);
        printf("               %s, exact, with --precision f32, for other weights and in logits and eval\n", s->set);
    }
    for (size_t i = 0; i < SETS_MAX && nmlp_kernels_name_at(i); i++)
        printf("               %-7s %s\n", nmlp_kernels_name_at(i), states[f->sets[i]]);
    printf("  threads      %d", s->n_threads);
    if (s->n_cores) printf(" on a machine of %d cores", s->n_cores);
    if (s->cpu_quota > 0) printf(", container limit %.3g CPUs", s->cpu_quota);
    printf("\n  caches       L1 %zu KiB, L2 %zu KiB, L3 %zu KiB\n", s->caches.l1_bytes >> 10, s->caches.l2_bytes >> 10,
           s->caches.l3_bytes >> 10);
}

static void print_memory(const nmlp_survey *s) {
    char text[32];
    nmlp_cli_bytes_text(text, (double)s->memory_bytes);
    printf("  memory       %s", text);
    nmlp_cli_bytes_text(text, (double)s->available_bytes);
    printf(", %s available", text);
    nmlp_cli_bytes_text(text, (double)s->memory_limit_bytes);
    if (s->memory_limit_bytes) printf(", container limit %s", text);
    printf("\n  huge pages   %s; %lld reserved\n", nmlp_huge_pages_name(s->huge_pages),
           (long long)s->n_reserved_huge_pages);
}

static void print_rest(const nmlp_survey *s) {
    printf("  OpenBLAS     %s kernels%s\n", s->blas_core, s->blas_better ? " (a slow fallback)" : "");
    if (s->gpu_usable) {
        char text[32];
        nmlp_cli_bytes_text(text, (double)s->gpu.total_bytes);
        printf("  GPU          %s, compute %d.%d, %s\n", s->gpu.name, s->gpu.major, s->gpu.minor, text);
    } else {
        printf("  GPU          none: %s\n", s->gpu_reason);
    }
}

static void print_text(const findings *f) {
    printf("what this machine offers\n");
    print_processor(f);
    print_memory(&f->survey);
    print_rest(&f->survey);
    printf("\nwhat would make it faster\n");
    for (int i = 0; i < f->advice.n; i++) printf("  - %s\n", f->advice.lines[i]);
    if (f->advice.n == 0) printf("  nothing was found\n");
}

static void put_cpu(nmlp_json_writer *w, const findings *f) {
    static const char *const states[] = {"sound", "wrong", "absent"};
    const nmlp_survey *s = &f->survey;
    nmlp_json_put_string(w, "cpu", s->cpu.name);
    nmlp_json_put_bool(w, "avx2", s->cpu.avx2_fma);
    nmlp_json_put_bool(w, "avx512", s->cpu.avx512);
    nmlp_json_put_bool(w, "avx512_bf16", s->cpu.avx512_bf16);
    nmlp_json_begin_object(w, "amx");
    nmlp_json_put_bool(w, "in_cpu", s->cpu.amx.in_cpu);
    nmlp_json_put_bool(w, "enabled", s->cpu.amx.enabled);
    nmlp_json_put_bool(w, "permitted", s->cpu.amx.permitted);
    nmlp_json_put_bool(w, "works", s->cpu.amx_bf16);
    nmlp_json_end_object(w);
    nmlp_json_put_string(w, "kernel_set", s->set);
    nmlp_json_put_string(w, "kernel_set_bf16", s->set_bf16);
    nmlp_json_begin_object(w, "kernel_sets");
    for (size_t i = 0; i < SETS_MAX && nmlp_kernels_name_at(i); i++)
        nmlp_json_put_string(w, nmlp_kernels_name_at(i), states[f->sets[i]]);
    nmlp_json_end_object(w);
    nmlp_json_put_int(w, "threads", s->n_threads);
    nmlp_json_put_int(w, "cores", s->n_cores);
    nmlp_json_put_number(w, "cpu_quota", s->cpu_quota);
    nmlp_json_put_int(w, "l1_bytes", (int64_t)s->caches.l1_bytes);
    nmlp_json_put_int(w, "l2_bytes", (int64_t)s->caches.l2_bytes);
    nmlp_json_put_int(w, "l3_bytes", (int64_t)s->caches.l3_bytes);
}

static void put_rest(nmlp_json_writer *w, const nmlp_survey *s) {
    nmlp_json_put_int(w, "memory_bytes", s->memory_bytes);
    nmlp_json_put_int(w, "available_bytes", s->available_bytes);
    nmlp_json_put_int(w, "memory_limit_bytes", s->memory_limit_bytes);
    nmlp_json_put_string(w, "huge_pages", nmlp_huge_pages_name(s->huge_pages));
    nmlp_json_put_int(w, "reserved_huge_pages", s->n_reserved_huge_pages);
    nmlp_json_put_string(w, "blas_core", s->blas_core);
    nmlp_json_put_bool(w, "blas_slow", s->blas_better != NULL);
    nmlp_json_put_bool(w, "gpu_built", s->gpu_built);
    nmlp_json_put_bool(w, "gpu_driver", s->gpu_driver);
    nmlp_json_put_string(w, "gpu", s->gpu_usable ? s->gpu.name : "");
    nmlp_json_put_string(w, "gpu_reason", s->gpu_reason);
}

static int print_json(const nmlp_cli *cli, const findings *f) {
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    put_cpu(w, f);
    put_rest(w, &f->survey);
    nmlp_json_begin_array(w, "advice");
    for (int i = 0; i < f->advice.n; i++) nmlp_json_put_string(w, NULL, f->advice.lines[i]);
    nmlp_json_end_array(w);
    nmlp_version_put(w);
    return nmlp_json_out_end(&out, cli);
}

static int run(int argc, char **argv) {
    nmlp_cli cli;
    nmlp_err err;
    findings f = {0};
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_doctor, NULL, 0, 0, 0, argc, argv);
    if (code >= 0) return code;
    if (examine(&f, &err) != NMLP_OK) return nmlp_cli_fail(&cli, &err);
    code = NMLP_EXIT_OK;
    if (cli.json) {
        code = print_json(&cli, &f);
    } else {
        print_text(&f);
    }
    if (f.n_wrong == 0) return code;
    nmlp_fail(&err, NMLP_E_NUMERIC, "%d kernel set%s computed a wrong product on this machine", f.n_wrong,
              f.n_wrong > 1 ? "s" : "");
    nmlp_fail_hint(&err, "choose a sound one with --isa, and report this with the output of neuronmlp doctor --json");
    return nmlp_cli_fail(&cli, &err);
}

const nmlp_command nmlp_cmd_doctor = {
    .name = "doctor",
    .summary = "what this machine offers, and what would make it faster",
    .usage = "[--json]",
    .about = "Instruction sets, AMX permission, OpenBLAS kernels, huge pages, memory, GPU: what is there, what "
             "is not, and what to do about it.",
    .examples = "neuronmlp doctor\n"
                "neuronmlp doctor --json\n",
    .run = run,
};
