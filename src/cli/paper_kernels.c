/* The paper's kernel tables: latency, speed-up, traffic, rate, block sizes, ablation. */
#include <math.h>
#include <stdio.h>

#include "cli/neuron_sweep.h"
#include "cli/paper_table.h"
#include "service/kernel.h"

static const char figure_tiling[] = "m=8;n=2;k=8"; /* of the published figure's kernels */

static const struct {
    int kernel;
    const char *published; /* name in the table of published figures */
} shown[] = {{NMLP_SWEEP_DENSE, "xw-opt"},
             {NMLP_SWEEP_SEQUENTIAL, "xuv-seq"},
             {NMLP_SWEEP_PAPER_T, NULL},
             {NMLP_SWEEP_OURS, NULL}};

enum { DENSE, SEQUENTIAL, PAPER, OURS, N_SHOWN };

static int n_lengths(const nmlp_paper_scope *s) {
    int n = 0;
    while (n < NMLP_SWEEP_LENGTHS && nmlp_sweep_lengths[n] <= s->rows_max) n++;
    return n;
}

static nmlp_status cost_at(nmlp_kernel_cost *cost, const nmlp_paper_scope *s, int kernel, int length, nmlp_err *err) {
    return nmlp_sweep_measure(cost, s->machine, &nmlp_sweep_kernels[shown[kernel].kernel], nmlp_sweep_lengths[length],
                              err);
}

/* One row per length: value of the published figures, then of all four kernels. */
typedef double cost_value(const nmlp_kernel_cost *cost, int kernel, int64_t rows);

static double as_ms(const nmlp_kernel_cost *cost, int kernel, int64_t rows) {
    (void)kernel, (void)rows;
    return cost->latency_us * 1e-3;
}

static double as_gib(const nmlp_kernel_cost *cost, int kernel, int64_t rows) {
    (void)kernel, (void)rows;
    return cost->hbm_bytes / 1073741824.0;
}

static double as_tflops(const nmlp_kernel_cost *cost, int kernel, int64_t rows) {
    return nmlp_sweep_flops(&nmlp_sweep_kernels[shown[kernel].kernel], rows) / cost->latency_us * 1e-6;
}

static nmlp_status over_lengths(nmlp_paper_table *t, const nmlp_paper_scope *s, const char *unit, cost_value *value,
                                nmlp_err *err) {
    for (int l = 0; l < n_lengths(s); l++) {
        int64_t rows = nmlp_sweep_lengths[l];
        char label[32];
        snprintf(label, sizeof label, "%lld", (long long)rows);
        nmlp_paper_row *row = nmlp_paper_add_row(t, label);
        int column = 0;
        for (int k = 0; unit && k <= SEQUENTIAL; k++)
            row->cells[column++] =
                nmlp_paper_published_cell(nmlp_paper_published(shown[k].published, rows, unit, figure_tiling));
        for (int k = 0; k < N_SHOWN; k++) {
            nmlp_kernel_cost cost;
            NMLP_RETURN_IF_FAILED(cost_at(&cost, s, k, l, err));
            row->cells[column++] = nmlp_paper_simulated(value(&cost, k, rows));
        }
    }
    return NMLP_OK;
}

nmlp_status nmlp_paper_latency(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    *t = (nmlp_paper_table){.id = "latency",
                            .title = "Kernel latency, ms",
                            .lead =
                                "x w of 8192 x 16384 and (x u) v at rank 4096, bf16, one core. Of the paper's kernel "
                                "only the mean over 1K to 32K rows is known to us.",
                            .rows_are = "rows",
                            .columns = {"AWS dense", "two kernels", "AWS dense, ours to simulate", "two kernels, same",
                                        "paper's fused", "ours"},
                            .unit = "milliseconds",
                            .decimals = 2,
                            .log = true};
    NMLP_RETURN_IF_FAILED(over_lengths(t, s, "ms", as_ms, err));
    nmlp_paper_row mean = {0};
    for (int c = 0; c < 6; c++) {
        double sum = 0;
        for (int r = 0; r < t->n_rows; r++) sum += t->rows[r].cells[c].value;
        mean.cells[c] = t->rows[0].cells[c];
        mean.cells[c].value = sum / t->n_rows;
        if (isnan(sum)) mean.cells[c].origin = NMLP_CELL_IMPOSSIBLE;
    }
    nmlp_paper_row *row = nmlp_paper_add_row(t, "mean");
    for (int c = 0; c < 6; c++) row->cells[c] = mean.cells[c];
    row = nmlp_paper_add_row(t, "mean, paper's own");
    row->cells[4] = nmlp_paper_published_cell(nmlp_paper_published("xtuv-fused", 0, "mean_ms", "-"));
    return NMLP_OK;
}

nmlp_status nmlp_paper_speedup(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    *t = (nmlp_paper_table){
        .id = "speedup",
        .title = "Speed-up over AWS's dense kernel",
        .lead =
            "The paper reports 1.35x on average and 2.22x at most. The same two kernels simulated give 1.65x on "
            "average "
            "and 2.04x at most. The published figures themselves say more than 1.35: six dense times of 348 ms in all "
            "against six times the fused kernel's published mean are 2.10. So that average must be over other shapes "
            "or lengths than those of the figure, which are shown here.",
        .rows_are = "rows",
        .columns = {"published", "paper's fused", "ours", "limit of the machine"},
        .unit = "times faster",
        .decimals = 2};
    double sum[3] = {0}, most[3] = {0};
    int n = n_lengths(s);
    for (int l = 0; l < n; l++) {
        nmlp_kernel_cost dense, paper, ours;
        char label[32];
        NMLP_RETURN_IF_FAILED(cost_at(&dense, s, DENSE, l, err));
        NMLP_RETURN_IF_FAILED(cost_at(&paper, s, PAPER, l, err));
        NMLP_RETURN_IF_FAILED(cost_at(&ours, s, OURS, l, err));
        double limit = nmlp_sweep_limit_of(s->machine, nmlp_sweep_lengths[l]).latency_us;
        const double gains[] = {dense.latency_us / paper.latency_us, dense.latency_us / ours.latency_us,
                                dense.latency_us / limit};
        snprintf(label, sizeof label, "%lld", (long long)nmlp_sweep_lengths[l]);
        nmlp_paper_row *row = nmlp_paper_add_row(t, label);
        for (int k = 0; k < 3; k++) {
            row->cells[k + 1] = nmlp_paper_simulated(gains[k]);
            sum[k] += gains[k];
            most[k] = fmax(most[k], gains[k]);
        }
    }
    nmlp_paper_row *mean = nmlp_paper_add_row(t, "mean"), *largest = nmlp_paper_add_row(t, "largest");
    mean->cells[0] = nmlp_paper_published_cell(nmlp_paper_published("xtuv-fused", 0, "mean_speedup", "-"));
    largest->cells[0] = nmlp_paper_published_cell(nmlp_paper_published("xtuv-fused", 0, "max_speedup", "-"));
    for (int k = 0; k < 3 && n > 0; k++) {
        mean->cells[k + 1] = nmlp_paper_simulated(sum[k] / n);
        largest->cells[k + 1] = nmlp_paper_simulated(most[k]);
    }
    return NMLP_OK;
}

nmlp_status nmlp_paper_traffic(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    *t = (nmlp_paper_table){
        .id = "traffic",
        .title = "HBM traffic, GiB",
        .lead = "Bytes read and written. Published traffic of the dense kernel is 1.2 to 1.4 times what "
                "it has to move even where nothing is spilled; nothing published explains it.",
        .rows_are = "rows",
        .columns = {"AWS dense", "two kernels", "AWS dense, ours to simulate", "two kernels, same", "paper's fused",
                    "ours"},
        .unit = "GiB",
        .decimals = 2,
        .log = true};
    return over_lengths(t, s, "GiB", as_gib, err);
}

nmlp_status nmlp_paper_rate(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    *t = (nmlp_paper_table){.id = "rate",
                            .title = "Useful arithmetic, TFLOP/s",
                            .lead =
                                "Of the product itself, over the time. The nominal peak of the tensor engine is in the "
                                "last column; third parties measured 87.5 % of it on trn1.",
                            .rows_are = "rows",
                            .columns = {"AWS dense", "two kernels", "paper's fused", "ours", "peak"},
                            .unit = "TFLOP/s",
                            .decimals = 1};
    NMLP_RETURN_IF_FAILED(over_lengths(t, s, NULL, as_tflops, err));
    for (int r = 0; r < t->n_rows; r++)
        t->rows[r].cells[4] = nmlp_paper_published_cell(nmlp_machine_peak_flops_per_ns(s->machine, false) * 1e-3);
    return NMLP_OK;
}

nmlp_status nmlp_paper_blocks_sweep(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    static const int64_t sizes[] = {1, 2, 4, 8, 16};
    static const char *const keys[] = {"k", "m", "r", "n"};
    *t = (nmlp_paper_table){
        .id = "blocks",
        .title = "Sensitivity to block sizes, ms",
        .lead = "The paper's fused kernel at 2048 rows with one block size changed at a time (tiles per "
                "block; the others as in its table: k 8, m 4, r 8, n 2), and ours, which is planned.",
        .rows_are = "tiles",
        .columns = {"rows k", "inputs m", "rank r", "outputs n", "ours"},
        .unit = "milliseconds",
        .decimals = 2,
        .log = true};
    nmlp_kernel_cost ours;
    nmlp_kernel_problem problem = {
        .machine = s->machine, .kernel = "xuv", .shape = {2048, NMLP_SWEEP_H, NMLP_SWEEP_R, NMLP_SWEEP_O}};
    NMLP_RETURN_IF_FAILED(nmlp_kernel_cost_problem(&ours, &problem, err));
    problem.kernel = "xtuv-fused";
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char label[32];
        snprintf(label, sizeof label, "%lld", (long long)sizes[i]);
        nmlp_paper_row *row = nmlp_paper_add_row(t, label);
        for (int k = 0; k < 4; k++) {
            char tiling[32];
            nmlp_kernel_cost cost;
            nmlp_err refused = {0};
            snprintf(tiling, sizeof tiling, "%s=%lld", keys[k], (long long)sizes[i]);
            problem.tiling = tiling;
            if (nmlp_kernel_cost_problem(&cost, &problem, &refused) != NMLP_OK) continue; /* does not fit SBUF */
            row->cells[k] = nmlp_paper_simulated(cost.latency_us * 1e-3);
        }
        row->cells[4] = nmlp_paper_simulated(ours.latency_us * 1e-3);
    }
    return NMLP_OK;
}

nmlp_status nmlp_paper_ablation(nmlp_paper_table *t, const nmlp_paper_scope *s, nmlp_err *err) {
    static const char *const blocks[] = {"m=1,r=1,k=1,n=1", "m=4,r=8,k=8,n=2"};
    *t =
        (nmlp_paper_table){.id = "ablation",
                           .title = "The paper's three ideas on and off",
                           .lead = "(x u) v at 2048 rows: caching of x u, transposition by swapped operands, blocking.",
                           .rows_are = "caching, transposition, blocking",
                           .columns = {"ms", "HBM GiB", "tensor utilisation %"},
                           .unit = "as the legend says",
                           .decimals = 2,
                           .log = true};
    for (int i = 0; i < 8; i++) {
        char tiling[80], label[48];
        bool cache = i & 1, turn = i & 2, block = i & 4;
        nmlp_kernel_cost cost;
        snprintf(tiling, sizeof tiling, "cache=%d,turn=%d,%s", cache ? 2 : 1, turn ? 2 : 1, blocks[block]);
        snprintf(label, sizeof label, "%s, %s, %s", cache ? "on" : "off", turn ? "on" : "off", block ? "on" : "off");
        nmlp_kernel_problem problem = {.machine = s->machine,
                                       .kernel = "xuv-naive",
                                       .shape = {2048, NMLP_SWEEP_H, NMLP_SWEEP_R, NMLP_SWEEP_O},
                                       .tiling = tiling};
        NMLP_RETURN_IF_FAILED(nmlp_kernel_cost_problem(&cost, &problem, err));
        nmlp_paper_row *row = nmlp_paper_add_row(t, label);
        row->cells[0] = nmlp_paper_simulated(cost.latency_us * 1e-3);
        row->cells[1] = nmlp_paper_simulated(cost.hbm_bytes / 1073741824.0);
        row->cells[2] = nmlp_paper_simulated(100 * cost.tensor_utilisation);
    }
    return NMLP_OK;
}
