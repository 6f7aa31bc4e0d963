/* One kernel at one shape on a Trainium core: its competitors and its engines over time. Simulated. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/command_text.h"
#include "service/kernel.h"
#include "cli/report_sections.h"
#include "report/timeline.h"
#include "trainium/sim/time.h"

enum { CELL = 64, EVENTS_MAX = 40000, N_RIVALS = 4 };

typedef struct scene {
    nmlp_page *page;
    const nmlp_report_target *target;
    const nmlp_kernel *kernel;
    nmlp_kernel_shape shape;
    char shape_text[CELL];
    nmlp_str commands; /* that simulate its rivals, one a line */
    nmlp_str command;  /* that simulates the kernel */
} scene;

static void put_command(nmlp_str *out, const char *target, const char *kernel, const char *shape) {
    nmlp_str_puts(out, "neuronmlp simulate --target");
    nmlp_command_word(out, target);
    nmlp_str_printf(out, " --kernel %s --shape %s\n", kernel, shape);
}

static void print_shape(char text[CELL], const nmlp_kernel *kernel, const nmlp_kernel_shape *s) {
    if (kernel->has_rank)
        snprintf(text, CELL, "%lld,%lld,%lld,%lld", (long long)s->s, (long long)s->h, (long long)s->r, (long long)s->o);
    else
        snprintf(text, CELL, "%lld,%lld,%lld", (long long)s->s, (long long)s->h, (long long)s->o);
}

/* Another way to compute the same MLP. */
typedef struct rival {
    const char *name;
    nmlp_kernel_cost cost;
} rival;

static nmlp_status simulate(rival *out, scene *sc, const char *name, const nmlp_kernel_shape *shape, nmlp_err *err) {
    nmlp_kernel_cost cost;
    char text[CELL];
    const nmlp_kernel *kernel = nmlp_kernel_find(name, err);
    if (!kernel) return NMLP_E_MISSING;
    nmlp_kernel_problem problem = {.machine = &sc->target->machine, .kernel = name, .shape = *shape};
    NMLP_RETURN_IF_FAILED(nmlp_kernel_cost_problem(&cost, &problem, err));
    print_shape(text, kernel, shape);
    put_command(&sc->commands, sc->target->name, name, text);
    out->cost.latency_us += cost.latency_us;
    out->cost.hbm_bytes += cost.hbm_bytes;
    out->cost.tensor_utilisation_sustained = cost.tensor_utilisation_sustained;
    return NMLP_OK;
}

/* AWS publishes a matmul, no MLP: three of them, with nothing counted for the activation between. */
static nmlp_status simulate_rivals(rival rivals[N_RIVALS], scene *sc, nmlp_err *err) {
    int64_t s = sc->shape.s, h = sc->shape.h, r = sc->shape.r, i = sc->shape.o;
    nmlp_kernel_shape up = {s, h, 0, i}, down = {s, i, 0, h}, low_rank = {s, h, r, i};
    rivals[0].name = "dense, AWS matmul kernel three times (xw-opt)";
    NMLP_RETURN_IF_FAILED(simulate(&rivals[0], sc, "xw-opt", &down, err));
    NMLP_RETURN_IF_FAILED(simulate(&rivals[0], sc, "xw-opt", &up, err));
    NMLP_RETURN_IF_FAILED(simulate(&rivals[0], sc, "xw-opt", &up, err));
    rivals[1].name = "dense, ours fused (mlp, rank 0)";
    NMLP_RETURN_IF_FAILED(simulate(&rivals[1], sc, "mlp", &up, err));
    rivals[2].name = "low rank, the paper's (mlp-paper)";
    NMLP_RETURN_IF_FAILED(simulate(&rivals[2], sc, "mlp-paper", &low_rank, err));
    rivals[3].name = "low rank, ours planned (mlp)";
    return simulate(&rivals[3], sc, "mlp", &low_rank, err);
}

static nmlp_status put_rivals(scene *sc, nmlp_err *err) {
    static const char *const heads[] = {"MLP", "time, µs", "against AWS dense", "HBM traffic", "tensor engine"};
    rival rivals[N_RIVALS] = {{.name = NULL}};
    char value[CELL], label[160];
    NMLP_RETURN_IF_FAILED(simulate_rivals(rivals, sc, err));
    nmlp_page_panel_begin(sc->page);
    nmlp_page_table_begin(sc->page, "Simulated; tensor engine: share of its sustained rate (AWS: of the last product)",
                          heads, 5);
    for (int i = 0; i < N_RIVALS; i++) {
        char time[CELL], gain[CELL], bytes[32], tensor[CELL];
        snprintf(time, sizeof time, "%.1f", rivals[i].cost.latency_us);
        snprintf(gain, sizeof gain, "%.2f×", rivals[0].cost.latency_us / rivals[i].cost.latency_us);
        nmlp_cli_bytes_text(bytes, rivals[i].cost.hbm_bytes);
        snprintf(tensor, sizeof tensor, "%.1f %%", 100 * rivals[i].cost.tensor_utilisation_sustained);
        nmlp_page_table_row(sc->page, (const char *const[]){rivals[i].name, time, gain, bytes, tensor}, 5, 1);
    }
    nmlp_page_table_end(sc->page);
    nmlp_page_panel_end(sc->page);
    nmlp_page_command(sc->page, nmlp_str_text(&sc->commands));
    snprintf(value, sizeof value, "%.2f×", rivals[0].cost.latency_us / rivals[3].cost.latency_us);
    snprintf(label, sizeof label,
             "faster than AWS's dense kernels on %s: an MLP of %lld × %lld at rank %lld, %lld rows (simulated)",
             sc->target->machine.name, (long long)sc->shape.h, (long long)sc->shape.o, (long long)sc->shape.r,
             (long long)sc->shape.s);
    nmlp_page_card(sc->page, value, label, "timeline");
    return NMLP_OK;
}

static void put_engines(const scene *sc, const nmlp_time_report *t) {
    static const char *const heads[] = {"engine", "instructions", "busy, µs", "busy", "longest wait"};
    nmlp_page_panel_begin(sc->page);
    nmlp_page_table_begin(sc->page, "What each engine did", heads, 5);
    for (int e = 0; e < NMLP_N_ENGINES; e++) {
        char count[CELL], busy[CELL], share[CELL], wait[CELL] = "";
        int worst = 0;
        if (t->n_instrs[e] == 0) continue;
        for (int s = 1; s < NMLP_N_STALLS; s++)
            if (t->stall_us[e][s] > t->stall_us[e][worst]) worst = s;
        snprintf(count, sizeof count, "%lld", (long long)t->n_instrs[e]);
        snprintf(busy, sizeof busy, "%.1f", t->busy_us[e]);
        snprintf(share, sizeof share, "%.1f %%", 100 * t->busy_us[e] / t->latency_us);
        if (e != NMLP_ENGINE_DMA)
            snprintf(wait, sizeof wait, "%s, %.1f µs", nmlp_stall_name((nmlp_stall)worst), t->stall_us[e][worst]);
        nmlp_page_table_row(
            sc->page, (const char *const[]){nmlp_nc_engine_name((nmlp_nc_engine)e), count, busy, share, wait}, 5, 1);
    }
    nmlp_page_table_end(sc->page);
    nmlp_page_panel_end(sc->page);
}

static nmlp_status put_timeline(const scene *sc, nmlp_err *err) {
    const nmlp_machine *m = &sc->target->machine;
    nmlp_kernel_problem problem = {.machine = m, .kernel = sc->kernel->name, .shape = sc->shape};
    nmlp_built_kernel built;
    nmlp_time_report report;
    nmlp_timeline timeline;
    char title[192], about[512];
    nmlp_status st = NMLP_OK;
    nmlp_timeline_init(&timeline, 1, false);
    NMLP_TRY(nmlp_kernel_build_problem(&built, &problem, err));
    NMLP_TRY(nmlp_time_run(&report, built.program, m, NULL, err));
    nmlp_timeline_init(&timeline, report.latency_us, false);
    timeline.max_events = EVENTS_MAX;
    nmlp_time_options options = {.on_event = nmlp_timeline_add, .ctx = &timeline};
    NMLP_TRY(nmlp_time_run(&report, built.program, m, &options, err));
    if (timeline.failed) NMLP_TRY(nmlp_fail(err, NMLP_E_NOMEM, "no memory for the timeline"));
    snprintf(title, sizeof title, "Engines over time: %s %s on %s, %.1f µs (simulated)", sc->kernel->name,
             sc->shape_text, m->name, report.latency_us);
    snprintf(about, sizeof about,
             "Lanes for tensor, vector, scalar engine and DMA queues with a block for each instruction; %lld "
             "instructions, the tensor engine "
             "busy %.1f %% of the time.%s",
             (long long)report.n_total, 100 * report.busy_us[NMLP_ENGINE_TENSOR] / report.latency_us,
             timeline.n_dropped ? " Only the first are drawn one by one, the rest as shades of activity." : "");
    nmlp_page_timeline(sc->page, &timeline, title, about, nmlp_str_text(&sc->command));
    put_engines(sc, &report);
out:
    nmlp_timeline_fini(&timeline);
    nmlp_built_kernel_fini(&built);
    return st;
}

nmlp_status nmlp_report_kernel(nmlp_page *page, const nmlp_report_target *target, const nmlp_kernel *kernel,
                               const nmlp_kernel_shape *shape, nmlp_err *err) {
    scene sc = {.page = page, .target = target, .kernel = kernel, .shape = *shape};
    nmlp_status st = NMLP_OK;
    char lead[256];
    print_shape(sc.shape_text, kernel, shape);
    snprintf(lead, sizeof lead, "Simulated on one %s core: kernel %s at shape %s (%s), bf16.", target->machine.name,
             kernel->name, sc.shape_text,
             kernel->gated      ? "rows, hidden, rank, intermediate"
             : kernel->has_rank ? "rows, inputs, rank, outputs"
                                : "rows, inputs, outputs");
    nmlp_page_section_begin(page, "timeline", kernel->gated ? "One MLP on Trainium" : "One kernel on Trainium", lead);
    nmlp_str_init(&sc.command);
    nmlp_str_init(&sc.commands);
    put_command(&sc.command, target->name, kernel->name, sc.shape_text);
    if (kernel->gated && shape->r > 0) NMLP_TRY(put_rivals(&sc, err));
    NMLP_TRY(put_timeline(&sc, err));
    nmlp_page_section_end(page);
out:
    nmlp_str_fini(&sc.command);
    nmlp_str_fini(&sc.commands);
    return st;
}
