/* Kernels of a Trainium core over the number of rows: time, traffic and roofline. Simulated. */
#include <math.h>
#include <stdio.h>

#include "cli/command_text.h"
#include "cli/neuron_sweep.h"
#include "cli/report_sections.h"

enum { N_KERNELS = 5, N_LENGTHS = NMLP_SWEEP_LENGTHS, LABEL = 256 };

static const struct shown {
    int kernel;
    nmlp_colour colour;
    const char *name;
} shown[N_KERNELS] = {
    {NMLP_SWEEP_DENSE, NMLP_COLOUR_DENSE, "dense, AWS kernel"},
    {NMLP_SWEEP_SEQUENTIAL, NMLP_COLOUR_SEQUENTIAL, "low rank, two kernels"},
    {NMLP_SWEEP_NAIVE, NMLP_COLOUR_NAIVE, "low rank, naive fusion"},
    {NMLP_SWEEP_PAPER, NMLP_COLOUR_PAPER, "low rank, paper's fusion"},
    {NMLP_SWEEP_OURS, NMLP_COLOUR_OURS, "low rank, ours"},
};

typedef struct sweep {
    size_t n; /* lengths */
    double rows[N_LENGTHS];
    double ms[N_KERNELS][N_LENGTHS], gb[N_KERNELS][N_LENGTHS];
    double intensity[N_KERNELS][N_LENGTHS], tflops[N_KERNELS][N_LENGTHS]; /* FLOP per byte; TFLOP/s */
    double limit_ms[N_LENGTHS], limit_gb[N_LENGTHS];
    double over[N_KERNELS][N_LENGTHS], one[N_LENGTHS]; /* time over the limit */
} sweep;

static nmlp_status measure(sweep *s, const nmlp_machine *m, int64_t rows_max, const nmlp_progress *progress,
                           nmlp_err *err) {
    while (s->n < N_LENGTHS && nmlp_sweep_lengths[s->n] <= rows_max) s->n++;
    if (s->n < 2)
        return nmlp_fail(err, NMLP_E_ARG, "--rows-max %lld: must be at least %lld", (long long)rows_max,
                         (long long)nmlp_sweep_lengths[1]);
    for (size_t k = 0; k < s->n; k++) {
        int64_t rows = nmlp_sweep_lengths[k];
        nmlp_sweep_limit limit = nmlp_sweep_limit_of(m, rows);
        s->rows[k] = (double)rows;
        s->limit_ms[k] = limit.latency_us * 1e-3;
        s->one[k] = 1;
        s->limit_gb[k] = limit.hbm_bytes * 1e-9;
        for (int i = 0; i < N_KERNELS; i++) {
            const nmlp_sweep_kernel *kernel = &nmlp_sweep_kernels[shown[i].kernel];
            nmlp_kernel_cost cost;
            NMLP_RETURN_IF_FAILED(nmlp_sweep_measure(&cost, m, kernel, rows, err));
            s->ms[i][k] = cost.latency_us * 1e-3;
            s->over[i][k] = s->ms[i][k] / s->limit_ms[k];
            s->gb[i][k] = cost.hbm_bytes * 1e-9;
            s->intensity[i][k] = nmlp_sweep_flops(kernel, rows) / cost.hbm_bytes;
            s->tflops[i][k] = nmlp_sweep_flops(kernel, rows) / cost.latency_us * 1e-6;
            if (!nmlp_progress_update(progress, "simulating", (double)(k * N_KERNELS + (size_t)i + 1),
                                      (double)(s->n * N_KERNELS), "kernels"))
                return nmlp_fail(err, NMLP_E_INTERRUPTED, "the report was stopped");
        }
    }
    return NMLP_OK;
}

static void put_over_rows(nmlp_page *page, const sweep *s, const char *title, const char *unit, const char *about,
                          const double (*values)[N_LENGTHS], const double *limit, const char *command) {
    nmlp_plot_series series[N_KERNELS + 1];
    for (int i = 0; i < N_KERNELS; i++)
        series[i] = (nmlp_plot_series){.name = shown[i].name,
                                       .mark = NMLP_MARK_LINE,
                                       .colour = shown[i].colour,
                                       .x = s->rows,
                                       .y = values[i],
                                       .n = s->n,
                                       .in_legend = true};
    series[N_KERNELS] = (nmlp_plot_series){.name = "limit of the low-rank product",
                                           .mark = NMLP_MARK_LIMIT,
                                           .x = s->rows,
                                           .y = limit,
                                           .n = s->n,
                                           .in_legend = true};
    nmlp_plot plot = {.title = title,
                      .about = about,
                      .x = {.label = "sequence length, rows", .kind = NMLP_SCALE_LOG, .ticks = s->rows, .n = s->n},
                      .y = {.label = unit, .kind = NMLP_SCALE_LOG},
                      .series = series,
                      .n_series = N_KERNELS + 1};
    nmlp_page_chart(page, &plot, command);
}

/* The roofs are drawn over the range of the points. */
static void put_roofline(nmlp_page *page, const nmlp_machine *m, const sweep *s, const char *command) {
    nmlp_plot_series series[N_KERNELS + 2];
    double peak = nmlp_machine_peak_flops_per_ns(m, false) * m->tensor_sustained * 1e-3, low = INFINITY, high = 0;
    for (int i = 0; i < N_KERNELS; i++)
        for (size_t k = 0; k < s->n; k++) {
            low = fmin(low, s->intensity[i][k]);
            high = fmax(high, s->intensity[i][k]);
        }
    double ridge = peak * 1e3 / m->hbm_bytes_per_ns;
    low = fmin(low, ridge / 2);
    double slope_x[] = {low, ridge}, slope_y[] = {low * m->hbm_bytes_per_ns * 1e-3, peak};
    double flat_x[] = {ridge, fmax(high, 2 * ridge)}, flat_y[] = {peak, peak};
    for (int i = 0; i < N_KERNELS; i++)
        series[i] = (nmlp_plot_series){.name = shown[i].name,
                                       .mark = NMLP_MARK_LINE,
                                       .colour = shown[i].colour,
                                       .x = s->intensity[i],
                                       .y = s->tflops[i],
                                       .n = s->n,
                                       .in_legend = true};
    series[N_KERNELS] = (nmlp_plot_series){.name = "memory and tensor roofs",
                                           .mark = NMLP_MARK_LIMIT,
                                           .x = slope_x,
                                           .y = slope_y,
                                           .n = 2,
                                           .in_legend = true};
    series[N_KERNELS + 1] =
        (nmlp_plot_series){.name = "tensor roof", .mark = NMLP_MARK_LIMIT, .x = flat_x, .y = flat_y, .n = 2};
    nmlp_plot plot = {
        .title = "Roofline: useful arithmetic over its traffic (simulated)",
        .about =
            "Points below two dashed roofs: memory bandwidth rising from the left and the sustained tensor rate as a "
            "flat line. Each kernel has one point for each sequence length.",
        .x = {.label = "FLOP per byte of HBM traffic", .kind = NMLP_SCALE_LOG},
        .y = {.label = "TFLOP/s", .kind = NMLP_SCALE_LOG},
        .series = series,
        .n_series = N_KERNELS + 2};
    nmlp_page_chart(page, &plot, command);
}

nmlp_status nmlp_report_kernels(nmlp_page *page, const nmlp_report_target *target, int64_t rows_max,
                                const nmlp_progress *progress, nmlp_err *err) {
    const nmlp_machine *m = &target->machine;
    sweep s = {.n = 0};
    char lead[LABEL], value[LABEL], label[LABEL];
    nmlp_str text;
    NMLP_RETURN_IF_FAILED(measure(&s, m, rows_max, progress, err));
    snprintf(lead, sizeof lead,
             "Simulated on one %s core, not measured: y = x w, and y = (x u) v in its place, bf16, %d inputs, rank %d, "
             "%d outputs.",
             m->name, NMLP_SWEEP_H, NMLP_SWEEP_R, NMLP_SWEEP_O);
    nmlp_str_init(&text);
    nmlp_str_puts(&text, "neuronmlp bench neuron --target");
    nmlp_command_word(&text, target->name);
    nmlp_str_puts(&text, " -o .");
    const char *command = nmlp_str_text(&text);
    nmlp_page_section_begin(page, "kernels", "Trainium kernels", lead);
    nmlp_page_grid_begin(page);
    put_over_rows(page, &s, "Time over sequence length (simulated)", "milliseconds",
                  "Time of five kernels over the number of rows, both axes logarithmic; ours lies on the limit.", s.ms,
                  s.limit_ms, command);
    put_over_rows(page, &s, "HBM traffic over sequence length (simulated)", "gigabytes",
                  "Bytes read from and written to HBM by five kernels over the number of rows, both axes logarithmic.",
                  s.gb, s.limit_gb, command);
    put_over_rows(page, &s, "Time over the limit (simulated)", "times the limit",
                  "How many times longer than the limit each kernel takes; 1 cannot be passed.", s.over, s.one,
                  command);
    put_roofline(page, m, &s, command);
    nmlp_page_grid_end(page);
    nmlp_page_section_end(page);
    snprintf(value, sizeof value, "%.2f×", s.ms[0][s.n - 1] / s.ms[N_KERNELS - 1][s.n - 1]);
    snprintf(label, sizeof label, "faster than AWS's dense kernel on %s: %d × %d at rank %d, %.0f rows (simulated)",
             m->name, NMLP_SWEEP_H, NMLP_SWEEP_O, NMLP_SWEEP_R, s.rows[s.n - 1]);
    nmlp_page_card(page, value, label, "kernels");
    nmlp_str_fini(&text);
    return NMLP_OK;
}
