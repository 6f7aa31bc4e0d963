/* neuronmlp emit: a kernel as Python source for Trainium. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/command_text.h"
#include "cli/commands.h"
#include "cli/emit_package.h"
#include "cli/neuron_args.h"
#include "trainium/emit/emit.h"
#include "trainium/sim/time.h"

typedef struct emit_args {
    nmlp_kernel_args kernel;
    const char *dialect, *sdk, *output, *model, *buckets, *cache, *fuse;
    int64_t tp, lnc;
    bool module;
} emit_args;

typedef struct emission {
    const nmlp_cli *cli;
    emit_args args;
    nmlp_built_kernel built;
    nmlp_emit_options options;
    nmlp_emit_result result;
    nmlp_str command, text;
} emission;

static nmlp_status build(emission *e, nmlp_err *err) {
    nmlp_kernel_problem problem;
    NMLP_RETURN_IF_FAILED(nmlp_cli_kernel_problem(&problem, &e->args.kernel, err));
    return nmlp_kernel_build_problem(&e->built, &problem, err);
}

static nmlp_status choose_options(emission *e, nmlp_err *err) {
    const emit_args *a = &e->args;
    e->options = (nmlp_emit_options){
        .dialect = nmlp_dialect_for(&e->built.machine), .machine = &e->built.machine, .latency_us = -1};
    if (a->sdk) NMLP_RETURN_IF_FAILED(nmlp_dialect_for_sdk(&e->options.dialect, &e->built.machine, a->sdk, err));
    if (a->dialect && !nmlp_dialect_parse(a->dialect, &e->options.dialect))
        return nmlp_fail_field(err, NMLP_E_ARG, "dialect", "is \"%.40s\"; expected nki or nki-legacy", a->dialect);
    nmlp_str_puts(&e->command, "neuronmlp emit --target");
    nmlp_command_word(&e->command, a->kernel.target);
    nmlp_str_printf(&e->command, " --kernel %s", e->built.kernel->name);
    nmlp_cli_put_kernel_args(&e->command, &a->kernel);
    nmlp_str_printf(&e->command, " --dialect %s", nmlp_dialect_name(e->options.dialect));
    if (a->module) nmlp_str_puts(&e->command, " --module");
    e->options.command = nmlp_str_text(&e->command);
    return nmlp_str_status(&e->command, err);
}

/* The kernel's file without folder and ".py", for the module's import; the module is written beside it. */
static void kernel_module_name(const emission *e, char *name, size_t bytes) {
    snprintf(name, bytes, "%s_kernel", e->built.program->name);
}

static nmlp_status print_source(emission *e, nmlp_err *err) {
    nmlp_time_report time;
    NMLP_RETURN_IF_FAILED(nmlp_time_run(&time, e->built.program, &e->built.machine, NULL, err));
    e->options.latency_us = time.latency_us;
    e->result.instructions = time.n_total;
    if (!e->args.module) return nmlp_emit_kernel(&e->text, e->built.program, &e->options, &e->result, err);
    char name[80];
    kernel_module_name(e, name, sizeof name);
    return nmlp_emit_module(&e->text, e->built.program, &e->options, name, err);
}

static int report(const emission *e) {
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    if (e->args.output)
        nmlp_json_put_string(w, "file", e->args.output);
    else
        nmlp_json_put_null(w, "file");
    nmlp_json_put_int(w, "instructions", e->result.instructions);
    nmlp_json_put_string(w, "dialect", nmlp_dialect_name(e->options.dialect));
    nmlp_json_put_number(w, "latency_us", e->options.latency_us);
    if (!e->args.output) nmlp_json_put_bytes(w, "source", nmlp_str_text(&e->text), e->text.len);
    return nmlp_json_out_end(&out, e->cli);
}

static int deliver(const emission *e, nmlp_err *err) {
    if (e->args.output && nmlp_file_write_text(e->args.output, nmlp_str_text(&e->text), e->text.len, err) != NMLP_OK)
        return nmlp_cli_fail(e->cli, err);
    if (e->cli->json) return report(e);
    if (!e->args.output) {
        (void)fputs(nmlp_str_text(&e->text), stdout); /* main looks whether it arrived */
        return NMLP_EXIT_OK;
    }
    printf("%s: %s, %lld instructions, %.1f us simulated\n", e->args.output, nmlp_dialect_name(e->options.dialect),
           (long long)e->result.instructions, e->options.latency_us);
    return NMLP_EXIT_OK;
}

static int run_package(const nmlp_cli *cli, const emit_args *a) {
    const nmlp_kernel_args *k = &a->kernel;
    if (!k->target || !a->output) return nmlp_cli_usage(cli, "--model needs --target and -o");
    if (k->kernel || k->shape || k->ranks || k->shared || k->norm > 0 || k->residual || k->fp8 || k->tiling[0] ||
        a->module)
        return nmlp_cli_usage(cli, "--model chooses kernels and tilings itself; --kernel, --shape, --ranks, --shared, "
                                   "--norm, --residual, --fp8, --tiling and --module do not go with it");
    nmlp_emit_package_args package = {a->model, a->sdk,    k->target, k->dtype, a->dialect, a->buckets,
                                      a->cache, a->output, a->fuse,   a->tp,    a->lnc};
    return nmlp_cli_emit_package(cli, &package);
}

static int run(int argc, char **argv) {
    emission e = {
        .args = {
            .kernel = {.tiling = "", .dtype = "bf16"}, .buckets = "1,128,1024", .fuse = "auto", .tp = 1, .lnc = 1}};
    nmlp_kernel_args *k = &e.args.kernel;
    const nmlp_opt opts[] = {
        {"target", 0, NMLP_OPT_STRING, &k->target, "TARGET", "trn1, trn2, trn3 or a machine file"},
        {"kernel", 'k', NMLP_OPT_STRING, &k->kernel, "KERNEL", "kernel to print; an unknown name lists them"},
        {"shape", 's', NMLP_OPT_STRING, &k->shape, "S,H,R,O", "rows, inputs, rank, outputs; S,H,O for xw-*"},
        {"ranks", 0, NMLP_OPT_STRING, &k->ranks, "gate=R,up=R,down=R",
         "mlp: ranks that differ from R of the shape; a number or dense"},
        {"shared", 0, NMLP_OPT_FLAG, &k->shared, NULL, "mlp: gate and up have one first factor"},
        {"norm", 0, NMLP_OPT_NUMBER, &k->norm, "EPS",
         "mlp: RMSNorm of x in the kernel, with this epsilon (default none)"},
        {"residual", 0, NMLP_OPT_FLAG, &k->residual, NULL, "mlp: add x to the result in the kernel"},
        {"fp8", 0, NMLP_OPT_FLAG, &k->fp8, NULL, "mlp: weights in fp8 (e4m3) with a scale for each output"},
        {"tiling", 0, NMLP_OPT_STRING, &k->tiling, "k=v,...", "numbers of the tiling instead of the kernel's own"},
        {"dtype", 0, NMLP_OPT_STRING, &k->dtype, "bf16|fp16|fp32", "of tensors and SBUF data (default bf16)"},
        {"dialect", 0, NMLP_OPT_STRING, &e.args.dialect, "nki|nki-legacy", "default by target: legacy for trn1"},
        {"sdk", 0, NMLP_OPT_STRING, &e.args.sdk, "VERSION",
         "of the Neuron SDK: refused where no dialect is known for it"},
        {"module", 0, NMLP_OPT_FLAG, &e.args.module, NULL,
         "print the PyTorch module that calls the kernel, not the kernel"},
        {"model", 0, NMLP_OPT_STRING, &e.args.model, "DIR",
         "a package of this checkpoint instead: kernels for all MLPs, packed weights, manifest"},
        {"buckets", 0, NMLP_OPT_STRING, &e.args.buckets, "S,...", "with --model: rows of its kernels (1,128,1024)"},
        {"tp", 0, NMLP_OPT_INT, &e.args.tp, "N", "with --model: ranks of tensor parallelism, a weight file each (1)"},
        {"lnc", 0, NMLP_OPT_INT, &e.args.lnc, "1|2",
         "with --model: physical cores per logical one, as NEURON_LOGICAL_NC_CONFIG says (1)"},
        {"fuse", 0, NMLP_OPT_STRING, &e.args.fuse, "auto|none|norm|all",
         "with --model: what the kernels do besides: RMSNorm before, all: and the residual after (auto: none or norm)"},
        {"cache", 0, NMLP_OPT_STRING, &e.args.cache, "FILE", "with --model: remember plans in FILE"},
        {"output", 'o', NMLP_OPT_STRING, &e.args.output, "FILE",
         "write the source there, not to stdout; with --model: the package's folder"},
    };
    nmlp_cli cli;
    nmlp_err err;
    nmlp_status st = NMLP_OK;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_emit, opts, sizeof opts / sizeof opts[0], 0, 0, argc, argv);
    if (code >= 0) return code;
    if (e.args.model) return run_package(&cli, &e.args);
    code = nmlp_cli_refuse(&cli, "buckets tp lnc fuse cache", "goes with --model");
    if (code >= 0) return code;
    if (!k->target || !k->kernel || !k->shape)
        return nmlp_cli_usage(&cli, "--target, --kernel and --shape are needed, or --target, --model and -o");
    e.cli = &cli;
    nmlp_str_init(&e.command);
    nmlp_str_init(&e.text);
    NMLP_TRY(build(&e, &err));
    NMLP_TRY(choose_options(&e, &err));
    NMLP_TRY(print_source(&e, &err));
out:
    code = st == NMLP_OK ? deliver(&e, &err) : nmlp_cli_fail(&cli, &err);
    nmlp_built_kernel_fini(&e.built);
    nmlp_str_fini(&e.text);
    nmlp_str_fini(&e.command);
    return code;
}

const nmlp_command nmlp_cmd_emit = {
    .name = "emit",
    .summary = "print a kernel as NKI source for Trainium",
    .usage = "--target TARGET (--kernel KERNEL --shape S,H,R,O [-o FILE] | --model DIR -o DIR)",
    .about = "With --kernel one kernel; with --model a folder that a Trainium host checks, times and serves "
             "the checkpoint from.",
    .examples = "neuronmlp emit --target trn1 --kernel xw-opt --shape 512,512,512\n"
                "neuronmlp emit --target trn2 --kernel xuv-fused --shape 256,512,128,512 -o /tmp/xuv_kernel.py\n"
                "neuronmlp emit --target trn2 --model models/tiny --buckets 1,128 -o /tmp/tiny-trn2\n",
    .run = run,
};
