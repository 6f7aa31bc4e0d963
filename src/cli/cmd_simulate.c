/* neuronmlp simulate: runs a named kernel on a simulated NeuronCore. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/pool.h"
#include "cli/commands.h"
#include "cli/neuron_args.h"
#include "trainium/neuron/program_text.h"
#include "trainium/plan/kernel_table.h"
#include "report/timeline.h"
#include "trainium/sim/check_run.h"
#include "trainium/sim/time.h"

typedef struct simulate_args {
    nmlp_kernel_args kernel;
    const char *trace;
    bool check, print_program;
    int64_t seed;
} simulate_args;

typedef struct simulation {
    const nmlp_cli *cli;
    simulate_args args;
    nmlp_built_kernel built;
    nmlp_time_report time;
    nmlp_check_report check;
} simulation;

static nmlp_status check_values(simulation *sim, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_pool *pool = NULL;
    nmlp_cli_bar bar;
    nmlp_progress progress = nmlp_cli_progress(&bar);
    NMLP_TRY(nmlp_pool_create(&pool, (int)sim->cli->n_threads, err));
    NMLP_TRY(nmlp_check_run(&sim->check, sim->built.program, (uint64_t)sim->args.seed, pool, &progress, err));
out:
    nmlp_cli_progress_end(&bar);
    nmlp_pool_destroy(pool);
    return st;
}

static nmlp_status write_trace(const simulation *sim, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    const char *path = sim->args.trace, *dot = strrchr(path, '.');
    bool svg = dot && strcmp(dot, ".svg") == 0;
    char title[256];
    nmlp_timeline timeline;
    nmlp_str text;
    nmlp_time_report again;
    if (!svg && !(dot && strcmp(dot, ".json") == 0))
        return nmlp_fail(err, NMLP_E_ARG, "--trace %s: the name must end in .json or .svg", path);
    snprintf(title, sizeof title, "%s %s on %s, %.1f us", sim->args.kernel.kernel, sim->args.kernel.shape,
             sim->built.machine.name, sim->time.latency_us);
    nmlp_timeline_init(&timeline, sim->time.latency_us, svg);
    nmlp_str_init(&text);
    nmlp_time_options options = {.on_event = nmlp_timeline_add, .ctx = &timeline};
    NMLP_TRY(nmlp_time_run(&again, sim->built.program, &sim->built.machine, &options, err));
    if (timeline.failed) NMLP_TRY(nmlp_fail(err, NMLP_E_NOMEM, "no memory for the trace"));
    if (svg)
        nmlp_timeline_write_svg(&timeline, title, &text);
    else
        nmlp_timeline_write_json(&timeline, title, &text);
    NMLP_TRY(nmlp_str_status(&text, err));
    NMLP_TRY(nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err));
out:
    nmlp_str_fini(&text);
    nmlp_timeline_fini(&timeline);
    return st;
}

static void json_engines(nmlp_json_writer *w, const nmlp_time_report *t) {
    nmlp_json_begin_object(w, "engines");
    for (int e = 0; e < NMLP_N_ENGINES; e++) {
        nmlp_json_begin_object(w, nmlp_nc_engine_name((nmlp_nc_engine)e));
        nmlp_json_put_number(w, "busy_us", t->busy_us[e]);
        nmlp_json_put_int(w, "instructions", t->n_instrs[e]);
        nmlp_json_begin_object(w, "stall_us");
        for (int s = 0; e != NMLP_ENGINE_DMA && s < NMLP_N_STALLS; s++)
            nmlp_json_put_number(w, nmlp_stall_name((nmlp_stall)s), t->stall_us[e][s]);
        nmlp_json_end_object(w);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_object(w);
}

static int print_json(const simulation *sim) {
    const nmlp_time_report *t = &sim->time;
    nmlp_json_out out;
    nmlp_json_writer *w = nmlp_json_out_begin(&out);
    nmlp_json_put_string(w, "target", sim->built.machine.name);
    nmlp_json_put_string(w, "kernel", sim->built.kernel->name);
    nmlp_json_put_bool(w, "simulated", true);
    nmlp_json_put_number(w, "latency_us", t->latency_us);
    nmlp_json_put_number(w, "hbm_read_bytes", t->hbm_read_bytes);
    nmlp_json_put_number(w, "hbm_write_bytes", t->hbm_write_bytes);
    nmlp_json_put_number(w, "spill_bytes", t->spill_bytes);
    nmlp_json_put_number(w, "flops", t->flops);
    nmlp_json_put_number(w, "tensor_utilisation", t->tensor_utilisation);
    nmlp_json_put_number(w, "tensor_utilisation_sustained", t->tensor_sustained_utilisation);
    json_engines(w, t);
    nmlp_json_begin_object(w, "hbm_bytes_by_cause");
    for (int i = 0; i < NMLP_N_TRAFFICS; i++)
        nmlp_json_put_number(w, nmlp_traffic_name((nmlp_traffic)i), t->read_bytes[i] + t->write_bytes[i]);
    nmlp_json_end_object(w);
    nmlp_json_put_int(w, "sbuf_bytes", t->sbuf_bytes);
    nmlp_json_put_int(w, "psum_banks", t->psum_banks);
    nmlp_json_put_int(w, "instructions", t->n_total);
    if (sim->args.check) {
        nmlp_json_put_number(w, "max_rel_err", sim->check.max_rel_err);
        nmlp_json_put_number(w, "max_rel_err_limit", sim->check.limit);
        nmlp_json_put_number(w, "sum_err", sim->check.sum_err);
        nmlp_json_put_number(w, "sum_err_limit", sim->check.sum_limit);
    }
    return nmlp_json_out_end(&out, sim->cli);
}

static void print_engines(const nmlp_time_report *t) {
    printf("\n  %-8s %12s %7s %13s  waits (us)\n", "engine", "busy (us)", "busy", "instructions");
    for (int e = 0; e < NMLP_N_ENGINES; e++) {
        printf("  %-8s %12.1f %6.1f%% %13lld ", nmlp_nc_engine_name((nmlp_nc_engine)e), t->busy_us[e],
               100.0 * t->busy_us[e] / t->latency_us, (long long)t->n_instrs[e]);
        for (int s = 0; e != NMLP_ENGINE_DMA && s < NMLP_N_STALLS; s++)
            if (t->stall_us[e][s] >= 0.05) printf(" %s %.1f", nmlp_stall_name((nmlp_stall)s), t->stall_us[e][s]);
        printf("\n");
    }
}

static void print_human(const simulation *sim) {
    const nmlp_time_report *t = &sim->time;
    char text[32];
    printf("%s on %s: %.1f us (simulated)\n", sim->built.kernel->name, sim->built.machine.name, t->latency_us);
    printf("  tensor engine: %.1f%% of nominal peak, %.1f%% of the sustained rate; %.1f GFLOP\n",
           100 * t->tensor_utilisation, 100 * t->tensor_sustained_utilisation, t->flops * 1e-9);
    print_engines(t);
    printf("\n  %-8s %12s %12s\n", "HBM", "read", "written");
    for (int i = 0; i < NMLP_N_TRAFFICS; i++) {
        if (t->read_bytes[i] + t->write_bytes[i] == 0) continue;
        nmlp_cli_bytes_text(text, t->read_bytes[i]);
        printf("  %-8s %12s", nmlp_traffic_name((nmlp_traffic)i), text);
        nmlp_cli_bytes_text(text, t->write_bytes[i]);
        printf(" %12s\n", text);
    }
    printf("\n  SBUF %lld of %.0f bytes per partition, PSUM %lld of %.0f banks", (long long)t->sbuf_bytes,
           sim->built.machine.sbuf_usable_bytes, (long long)t->psum_banks, sim->built.machine.psum_banks);
    if (t->n_lost_copies) printf("; %d rotating copies given up for lack of SBUF", t->n_lost_copies);
    if (t->n_spilled_rows) printf("; %lld rows live in HBM", (long long)t->n_spilled_rows);
    printf("\n");
    if (sim->args.check)
        printf("  values: error %.3g of the largest (limit %.3g) in %d rows; all sums within %.3g (limit %.3g)\n",
               sim->check.max_rel_err, sim->check.limit, sim->check.n_rows, sim->check.sum_err, sim->check.sum_limit);
}

static nmlp_status simulate(simulation *sim, nmlp_err *err) {
    nmlp_kernel_problem problem;
    NMLP_RETURN_IF_FAILED(nmlp_cli_kernel_problem(&problem, &sim->args.kernel, err));
    NMLP_RETURN_IF_FAILED(nmlp_kernel_build_problem(&sim->built, &problem, err));
    if (sim->args.print_program) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_time_run(&sim->time, sim->built.program, &sim->built.machine, NULL, err));
    if (sim->args.trace) NMLP_RETURN_IF_FAILED(write_trace(sim, err));
    return sim->args.check ? check_values(sim, err) : NMLP_OK;
}

static int print_program(const simulation *sim) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_program_print(sim->built.program, &text);
    int code = nmlp_cli_print_text(sim->cli, &text);
    nmlp_str_fini(&text);
    return code;
}

static int run(int argc, char **argv) {
    simulation sim = {.args = {.kernel = {.tiling = "", .dtype = "bf16"}}};
    simulate_args *a = &sim.args;
    nmlp_kernel_args *k = &a->kernel;
    const nmlp_opt opts[] = {
        {"target", 0, NMLP_OPT_STRING, &k->target, "TARGET", "trn1, trn2, trn3 or a machine file"},
        {"kernel", 0, NMLP_OPT_STRING, &k->kernel, "KERNEL",
         "xw, xuv, mlp (ours), xw-opt, xuv-fused, mlp-paper, ...; a wrong name lists all"},
        {"shape", 0, NMLP_OPT_STRING, &k->shape, "S,H,R,O", "rows, inputs, rank, outputs (xw-*: S,H,O)"},
        {"ranks", 0, NMLP_OPT_STRING, &k->ranks, "gate=R,up=R,down=R",
         "mlp: ranks that differ from R of the shape; a number or dense"},
        {"shared", 0, NMLP_OPT_FLAG, &k->shared, NULL, "mlp: gate and up have one first factor"},
        {"norm", 0, NMLP_OPT_NUMBER, &k->norm, "EPS",
         "mlp: RMSNorm of x in the kernel, with this epsilon (default none)"},
        {"residual", 0, NMLP_OPT_FLAG, &k->residual, NULL, "mlp: add x to the result in the kernel"},
        {"fp8", 0, NMLP_OPT_FLAG, &k->fp8, NULL, "mlp: weights in fp8 (e4m3) with a scale for each output"},
        {"tiling", 0, NMLP_OPT_STRING, &k->tiling, "K=V,...", "tiles per block; keys depend on the kernel"},
        {"dtype", 0, NMLP_OPT_STRING, &k->dtype, "bf16|fp16|fp32", "of tensors and SBUF data (default bf16)"},
        {"check", 0, NMLP_OPT_FLAG, &a->check, NULL, "also compute values and compare them with float64"},
        {"seed", 0, NMLP_OPT_SEED, &a->seed, "N", "of the random operands of --check"},
        {"trace", 0, NMLP_OPT_STRING, &a->trace, "FILE", "write FILE.json (Chrome, Perfetto) or FILE.svg"},
        {"program", 0, NMLP_OPT_FLAG, &a->print_program, NULL, "print the tile program instead of running it"},
    };
    nmlp_cli cli;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_simulate, opts, sizeof opts / sizeof opts[0], 0, 0, argc, argv);
    if (code >= 0) return code;
    if (!a->check && (code = nmlp_cli_refuse(&cli, "seed", "is that of --check's operands")) >= 0) return code;
    if (a->print_program && (code = nmlp_cli_refuse(&cli, "check trace", "needs a run; --program only prints")) >= 0)
        return code;
    if (a->print_program && cli.json) return nmlp_cli_usage(&cli, "--program is a text of its own, without --json");
    if (!k->target || !k->kernel || !k->shape) return nmlp_cli_usage(&cli, "--target, --kernel and --shape are needed");
    sim.cli = &cli;
    nmlp_err err = {0};
    nmlp_status st = simulate(&sim, &err);
    if (st != NMLP_OK)
        code = nmlp_cli_fail(&cli, &err);
    else if (a->print_program)
        code = print_program(&sim);
    else if (cli.json)
        code = print_json(&sim);
    else
        print_human(&sim), code = NMLP_EXIT_OK;
    nmlp_built_kernel_fini(&sim.built);
    return code;
}

const nmlp_command nmlp_cmd_simulate = {
    .name = "simulate",
    .summary = "run a kernel on a simulated NeuronCore: time, traffic, values",
    .usage = "--target TARGET --kernel KERNEL --shape S,H,R,O [options]",
    .about = "Values as the hardware computes them (--check compares with float64), time in engine queues, "
             "traffic, and a timeline (--trace).",
    .examples = "neuronmlp simulate --target trn1 --kernel xw-opt --shape 1024,512,1024\n"
                "neuronmlp simulate --target trn2 --kernel xtuv-fused --shape 256,512,128,1024 --check\n",
    .run = run,
};
