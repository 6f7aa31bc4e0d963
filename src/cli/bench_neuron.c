/* bench neuron: the paper's kernel figure, time and HBM traffic over sequence length, with our kernel added. Simulated.
 */
#include <stdio.h>

#include "base/file.h"
#include "cli/bench.h"
#include "cli/neuron_sweep.h"
#include "report/chart.h"

enum {
    H = NMLP_SWEEP_H,
    R = NMLP_SWEEP_R,
    O = NMLP_SWEEP_O,
    N_LENGTHS = NMLP_SWEEP_LENGTHS,
    N_SERIES = NMLP_SWEEP_SERIES
};

static const char *const length_names[N_LENGTHS] = {"1024", "2048", "4096", "8192", "16384", "32768"};

typedef struct figure {
    nmlp_machine machine;
    nmlp_kernel_cost cost[N_SERIES][N_LENGTHS];
} figure;

static nmlp_status write_csv(const figure *f, const char *path, nmlp_err *err) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_puts(&text, "simulated_on,kernel,rows,latency_us,hbm_bytes,tensor_utilisation_sustained\n");
    for (int i = 0; i < N_SERIES; i++)
        for (int k = 0; k < N_LENGTHS; k++)
            nmlp_str_printf(&text, "%s,%s,%lld,%.1f,%.0f,%.4f\n", f->machine.name, nmlp_sweep_kernels[i].name,
                            (long long)nmlp_sweep_lengths[k], f->cost[i][k].latency_us, f->cost[i][k].hbm_bytes,
                            f->cost[i][k].tensor_utilisation_sustained);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}

static nmlp_status write_svg(const figure *f, const char *path, nmlp_err *err) {
    double ms[N_SERIES * N_LENGTHS], gb[N_SERIES * N_LENGTHS];
    char title[2][160], subtitle[160];
    const char *names[N_SERIES];
    for (int i = 0; i < N_SERIES; i++) names[i] = nmlp_sweep_kernels[i].name;
    for (int i = 0; i < N_SERIES; i++)
        for (int k = 0; k < N_LENGTHS; k++) {
            ms[i * N_LENGTHS + k] = f->cost[i][k].latency_us * 1e-3;
            gb[i * N_LENGTHS + k] = f->cost[i][k].hbm_bytes * 1e-9;
        }
    snprintf(title[0], sizeof title[0], "Simulated time on one %s core", f->machine.name);
    snprintf(title[1], sizeof title[1], "Simulated HBM traffic on one %s core", f->machine.name);
    snprintf(subtitle, sizeof subtitle,
             "SIMULATED, not measured. y = x w or (x u) v, bf16, H %d, rank %d, O %d; by number of rows", H, R, O);
    nmlp_chart times = {.title = title[0],
                        .subtitle = subtitle,
                        .y_label = "ms",
                        .categories = length_names,
                        .n_categories = N_LENGTHS,
                        .series = names,
                        .n_series = N_SERIES,
                        .values = ms};
    nmlp_chart bytes = times;
    bytes.title = title[1];
    bytes.y_label = "GB";
    bytes.values = gb;
    nmlp_chart charts[2] = {times, bytes};
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_chart_write_file(charts, 2, &text);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}

static void print_row(const figure *f, int i) {
    printf("  %-16s", nmlp_sweep_kernels[i].name);
    for (int k = 0; k < N_LENGTHS; k++) printf(" %9.2f", f->cost[i][k].latency_us * 1e-3);
    printf("  ms\n  %-16s", "");
    for (int k = 0; k < N_LENGTHS; k++) printf(" %9.3f", f->cost[i][k].hbm_bytes * 1e-9);
    printf("  GB\n");
}

static void put_json(const figure *f, nmlp_json_writer *w) {
    nmlp_json_put_string(w, "target", f->machine.name);
    nmlp_json_put_bool(w, "simulated", true);
    nmlp_json_begin_array(w, "kernels");
    for (int i = 0; i < N_SERIES; i++) {
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_string(w, "kernel", nmlp_sweep_kernels[i].name);
        nmlp_json_begin_array(w, "latency_us");
        for (int k = 0; k < N_LENGTHS; k++) nmlp_json_put_number(w, NULL, f->cost[i][k].latency_us);
        nmlp_json_end_array(w);
        nmlp_json_begin_array(w, "hbm_bytes");
        for (int k = 0; k < N_LENGTHS; k++) nmlp_json_put_number(w, NULL, f->cost[i][k].hbm_bytes);
        nmlp_json_end_array(w);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
}

static nmlp_status run(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    figure f;
    char name[64], path[4096];
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&f.machine, args->target, err));
    if (!json)
        printf("simulated on %s: H %d, rank %d, O %d, bf16; rows %lld to %lld\n", f.machine.name, H, R, O,
               (long long)nmlp_sweep_lengths[0], (long long)nmlp_sweep_lengths[N_LENGTHS - 1]);
    for (int i = 0; i < N_SERIES; i++) {
        for (int k = 0; k < N_LENGTHS; k++)
            NMLP_RETURN_IF_FAILED(
                nmlp_sweep_measure(&f.cost[i][k], &f.machine, &nmlp_sweep_kernels[i], nmlp_sweep_lengths[k], err));
        if (!json) print_row(&f, i);
    }
    snprintf(name, sizeof name, "neuron-%s.csv", f.machine.name);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, args->out, name, err));
    NMLP_RETURN_IF_FAILED(write_csv(&f, path, err));
    snprintf(name, sizeof name, "neuron-%s.svg", f.machine.name);
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, args->out, name, err));
    NMLP_RETURN_IF_FAILED(write_svg(&f, path, err));
    if (json)
        put_json(&f, json);
    else
        printf("written: %s/neuron-%s.csv, .svg\n", args->out, f.machine.name);
    return NMLP_OK;
}

const nmlp_bench nmlp_bench_neuron = {
    "neuron", "the paper's kernel figure with our kernels, simulated: CSV and SVG", "target out", run, false, true};
