/* neuronmlp plan: the best kernel and tiling for a shape on a Trainium core. */
#include <stdio.h>

#include "service/kernel.h"
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/neuron_args.h"

typedef struct planning {
    const nmlp_cli *cli;
    nmlp_kernel_args args;
    const char *cache;
    nmlp_built_kernel kernel;
    double seconds;
} planning;

static nmlp_status find(planning *pl, nmlp_err *err) {
    nmlp_kernel_problem problem;
    NMLP_RETURN_IF_FAILED(nmlp_cli_kernel_problem(&problem, &pl->args, err));
    problem.plan_cache = pl->cache;
    double start = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(nmlp_kernel_plan_problem(&pl->kernel, &problem, err));
    pl->seconds = nmlp_clock_seconds() - start;
    return NMLP_OK;
}

static void put_candidate(nmlp_json_writer *w, const char *key, const nmlp_plan_candidate *c) {
    if (!c->kernel) return;
    nmlp_json_begin_object(w, key);
    nmlp_json_put_string(w, "kernel", c->kernel);
    nmlp_json_put_number(w, "latency_us", c->cost.latency_us);
    nmlp_json_put_number(w, "hbm_bytes", c->cost.hbm_bytes);
    nmlp_json_end_object(w);
}

static int print_json(const planning *pl) {
    const nmlp_kernel_plan *p = &pl->kernel.plan;
    nmlp_str text, tiling;
    nmlp_json_writer w;
    nmlp_str_init(&text);
    nmlp_str_init(&tiling);
    nmlp_tiling_print(&p->winner.tiling, &tiling);
    nmlp_json_writer_init(&w, &text);
    nmlp_json_begin_object(&w, NULL);
    nmlp_json_put_string(&w, "target", pl->kernel.machine.name);
    nmlp_json_put_string(&w, "kernel", p->winner.kernel);
    nmlp_json_put_bool(&w, "simulated", true);
    nmlp_json_put_string(&w, "tiling", nmlp_str_text(&tiling));
    nmlp_json_put_number(&w, "latency_us", p->winner.cost.latency_us);
    nmlp_json_put_number(&w, "hbm_bytes", p->winner.cost.hbm_bytes);
    nmlp_json_put_number(&w, "tensor_utilisation", p->winner.cost.tensor_utilisation);
    nmlp_json_put_number(&w, "tensor_utilisation_sustained", p->winner.cost.tensor_utilisation_sustained);
    nmlp_json_put_int(&w, "sbuf_bytes", p->winner.cost.sbuf_bytes);
    nmlp_json_put_string(&w, "busiest_engine", p->engine);
    nmlp_json_put_string(&w, "binding", p->bounds.binding);
    nmlp_json_put_number(&w, "limit_us", p->limit_us);
    nmlp_json_put_number(&w, "over_limit", p->winner.cost.latency_us / p->limit_us);
    nmlp_json_put_number(&w, "floor_us", p->floor_us);
    put_candidate(&w, "runner_up", &p->runner_up);
    put_candidate(&w, "paper", &p->paper);
    nmlp_json_put_int(&w, "candidates", (int64_t)p->n_candidates);
    nmlp_json_put_int(&w, "fitting", (int64_t)p->n_fitting);
    nmlp_json_put_int(&w, "judged", (int64_t)p->n_simulated);
    nmlp_json_put_bool(&w, "cached", p->cached);
    nmlp_json_put_number(&w, "seconds", pl->seconds);
    nmlp_json_end_object(&w);
    text.failed |= tiling.failed;
    int code = nmlp_cli_print_json(pl->cli, &text);
    nmlp_str_fini(&text);
    nmlp_str_fini(&tiling);
    return code;
}

static void print_candidate(nmlp_str *out, const char *title, const nmlp_plan_candidate *c) {
    char bytes[32];
    if (!c->kernel || c->cost.latency_us <= 0) return;
    nmlp_cli_bytes_text(bytes, c->cost.hbm_bytes);
    nmlp_str_printf(out, "  %-10s %12.1f us  %9s  %-10s ", title, c->cost.latency_us, bytes, c->kernel);
    nmlp_tiling_print(&c->tiling, out);
    nmlp_str_putc(out, '\n');
}

static int print_human(const planning *pl) {
    const nmlp_kernel_plan *p = &pl->kernel.plan;
    const nmlp_kernel_cost *c = &p->winner.cost;
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_printf(&text, "%s %s on %s: %.1f us (simulated)\n\n", pl->args.kernel, pl->args.shape,
                    pl->kernel.machine.name, c->latency_us);
    nmlp_str_printf(&text, "  %-10s %15s  %9s  %-10s tiling\n", "", "latency", "HBM", "kernel");
    print_candidate(&text, "winner", &p->winner);
    print_candidate(&text, "runner-up", &p->runner_up);
    print_candidate(&text, "paper", &p->paper);
    nmlp_str_printf(
        &text,
        "\n  why: the %s bound is %.1f us (tensor %.1f, dma %.1f, vector %.1f, scalar %.1f), %.1f with the launch;\n"
        "       the winner takes %.3f times that. Busiest engine: %s.\n"
        "       With what nothing hides (first DMA, last matmul, read-out and store) it is %.1f us: %.3f times that.\n",
        p->bounds.binding, p->bounds.largest_ns * 1e-3, p->bounds.tensor_ns * 1e-3, p->bounds.dma_ns * 1e-3,
        p->bounds.vector_ns * 1e-3, p->bounds.scalar_ns * 1e-3, p->limit_us, c->latency_us / p->limit_us, p->engine,
        p->floor_us, c->latency_us / p->floor_us);
    nmlp_str_printf(
        &text,
        "  tensor engine: %.1f%% of nominal peak, %.1f%% of the sustained rate; SBUF %lld of %.0f bytes per "
        "partition\n",
        100 * c->tensor_utilisation, 100 * c->tensor_utilisation_sustained, (long long)c->sbuf_bytes,
        pl->kernel.machine.sbuf_usable_bytes);
    nmlp_str_printf(&text, "  %zu candidates, %zu fit, %zu simulations, %.2f s%s\n", p->n_candidates, p->n_fitting,
                    p->n_simulated, pl->seconds, p->cached ? " (from the cache)" : "");
    int code = nmlp_cli_print_text(pl->cli, &text);
    nmlp_str_fini(&text);
    return code;
}

static int run(int argc, char **argv) {
    planning pl = {.args = {.tiling = "", .dtype = "bf16"}};
    nmlp_kernel_args *a = &pl.args;
    nmlp_plan_op op;
    const nmlp_opt opts[] = {
        {"target", 0, NMLP_OPT_STRING, &a->target, "TARGET", "trn1, trn2, trn3 or a machine file"},
        {"op", 0, NMLP_OPT_STRING, &a->kernel, "xw|xuv|mlp", "dense product, chain of two factors, or gated MLP"},
        {"shape", 0, NMLP_OPT_STRING, &a->shape, "S,H,R,O",
         "rows, inputs, rank (mlp: 0 is dense), outputs (mlp: intermediate width)"},
        {"ranks", 0, NMLP_OPT_STRING, &a->ranks, "gate=R,up=R,down=R",
         "mlp: ranks that differ from R of the shape; a number or dense"},
        {"shared", 0, NMLP_OPT_FLAG, &a->shared, NULL, "mlp: gate and up have one first factor"},
        {"norm", 0, NMLP_OPT_NUMBER, &a->norm, "EPS",
         "mlp: RMSNorm of x in the kernel, with this epsilon (default none)"},
        {"residual", 0, NMLP_OPT_FLAG, &a->residual, NULL, "mlp: add x to the result in the kernel"},
        {"fp8", 0, NMLP_OPT_FLAG, &a->fp8, NULL, "mlp: weights in fp8 (e4m3) with a scale for each output"},
        {"tiling", 0, NMLP_OPT_STRING, &a->tiling, "K=V,...", "fix parts of the tiling; x=1: x is given transposed"},
        {"dtype", 0, NMLP_OPT_STRING, &a->dtype, "bf16|fp16|fp32", "of tensors and SBUF data (default bf16)"},
        {"cache", 0, NMLP_OPT_STRING, &pl.cache, "FILE", "remember choices in FILE"},
    };
    nmlp_cli cli;
    int code = nmlp_cli_parse(&cli, &nmlp_cmd_plan, opts, sizeof opts / sizeof opts[0], 0, 0, argc, argv);
    if (code >= 0) return code;
    if (!a->target || !a->kernel || !a->shape) return nmlp_cli_usage(&cli, "--target, --op and --shape are needed");
    if (!nmlp_plan_op_parse(a->kernel, &op))
        return nmlp_cli_usage(&cli, "--op is \"%s\"; expected xw, xuv or mlp", a->kernel);
    pl.cli = &cli;
    nmlp_err err = {0};
    if (find(&pl, &err) != NMLP_OK) return nmlp_cli_fail(&cli, &err);
    if (cli.json) return print_json(&pl);
    return print_human(&pl);
}

const nmlp_command nmlp_cmd_plan = {
    .name = "plan",
    .summary = "the best kernel and tiling for a shape on Trainium (simulated)",
    .usage = "--target TARGET --op xw|xuv|mlp --shape S,H,R,O [options]",
    .about = "Searches the tilings of one operation and says what bounds the best: tensor engine, memory or "
             "another engine. xw is x W, xuv is x U V, mlp a gated MLP. The time is simulated.",
    .examples = "neuronmlp plan --target trn1 --op xuv --shape 1024,1024,512,2048\n"
                "neuronmlp plan --target trn2 --op mlp --shape 128,2048,768,8192\n"
                "neuronmlp plan --target trn2 --op mlp --shape 1,1024,0,3072 --json\n"
                "neuronmlp plan --target trn1 --op mlp --shape 1,1024,112,3072 --ranks down=dense --shared\n",
    .run = run,
};
