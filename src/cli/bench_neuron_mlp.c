/* bench neuron-mlp: our planned MLP against the paper's, all models, ratios and lengths. Simulated. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "cli/bench.h"
#include "service/kernel.h"
#include "model/preset.h"

enum { N_MODELS = 6, N_RATIOS = 3, N_LENGTHS = 7, TILE = 128 };

static const char *const models[N_MODELS] = {"llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
                                             "qwen3-1.7b",   "qwen3-4b",     "qwen3-8b"};
static const double ratios[N_RATIOS] = {0.05, 0.2, 0.5};
static const int64_t lengths[N_LENGTHS] = {1, 16, 128, 512, 2048, 8192, 32768};

static const double near_bound = 1.06;

typedef struct summary {
    double log_gain, worst, worst_floor, slowest_s;
    int n, n_near, n_lost;
    int n_beyond; /* where even the floor is not near the bound */
} summary;

static nmlp_status one(const nmlp_machine *m, const char *model, double ratio, int64_t rows, summary *sum,
                       nmlp_str *csv, bool quiet, nmlp_err *err) {
    nmlp_config c;
    nmlp_kernel_plan plan;
    nmlp_str tiling;
    nmlp_planner planner = nmlp_kernel_planner(m, NULL);
    NMLP_RETURN_IF_FAILED(nmlp_preset_find(&c, model, err));
    int64_t rank = nmlp_rank_for_ratio(c.intermediate, c.hidden, ratio, TILE);
    nmlp_kernel_request rq = {.shape = {rows, c.hidden, rank, c.intermediate}, .dtype = NMLP_NC_BF16, .machine = m};
    clock_t start = clock(); /* of this processor: other programs do not count */
    NMLP_RETURN_IF_FAILED(nmlp_kernel_plan_find(&plan, &planner, NMLP_PLAN_MLP, &rq, err));
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC, us = plan.winner.cost.latency_us;
    double bound = plan.limit_us - m->launch_us, floor = plan.floor_us - m->launch_us,
           over = (us - m->launch_us) / bound, over_floor = (us - m->launch_us) / floor,
           gain = plan.paper.cost.latency_us / us;
    sum->log_gain += log(gain);
    sum->n++;
    sum->n_near += over <= near_bound;
    sum->n_lost += gain < 1;
    sum->n_beyond += floor > near_bound * bound;
    sum->worst = fmax(sum->worst, over);
    sum->worst_floor = fmax(sum->worst_floor, over_floor);
    sum->slowest_s = fmax(sum->slowest_s, seconds);
    nmlp_str_init(&tiling);
    nmlp_tiling_print(&plan.winner.tiling, &tiling);
    nmlp_str_printf(csv, "%s,%s,%g,%lld,%lld,%.1f,%.1f,%s,%s,%.4f,%.1f,%.4f,%.1f,%.3f,%.0f,\"%s\"\n", m->name, model,
                    ratio, (long long)rank, (long long)rows, us, plan.limit_us, plan.bounds.binding, plan.engine, over,
                    plan.floor_us, over_floor, plan.paper.cost.latency_us, gain, plan.winner.cost.hbm_bytes,
                    nmlp_str_text(&tiling));
    nmlp_str_fini(&tiling);
    if (!quiet)
        printf("  %-13s %5.2f %6lld %12.1f %8.3f %-7s %8.3f %8.2fx %6.2f\n", model, ratio, (long long)rows, us, over,
               plan.bounds.binding, over_floor, gain, seconds);
    return NMLP_OK;
}

static nmlp_status run_all(const nmlp_machine *m, const char *only, summary *sum, nmlp_str *csv, bool quiet,
                           nmlp_err *err) {
    for (int i = 0; i < N_MODELS; i++) {
        if (only && strcmp(only, models[i]) != 0) continue;
        for (int j = 0; j < N_RATIOS; j++)
            for (int k = 0; k < N_LENGTHS; k++)
                NMLP_RETURN_IF_FAILED(one(m, models[i], ratios[j], lengths[k], sum, csv, quiet, err));
    }
    if (sum->n == 0)
        return nmlp_fail(err, NMLP_E_ARG,
                         "--model is \"%s\"; this benchmark has llama-3.2-1b, llama-3.2-3b, "
                         "llama-3.1-8b, qwen3-1.7b, qwen3-4b and qwen3-8b",
                         only);
    return nmlp_str_status(csv, err);
}

static nmlp_status run(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    nmlp_machine m;
    summary sum = {0};
    nmlp_str csv;
    char name[64], path[4096];
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&m, args->target, err));
    if (!json)
        printf("simulated on %s\n  %-13s %5s %6s %12s %8s %-7s %8s %9s %6s\n", m.name, "model", "ratio", "rows", "us",
               "over", "bound", "floor", "gain", "CPU s");
    nmlp_str_init(&csv);
    nmlp_str_puts(&csv,
                  "simulated_on,model,ratio,rank,rows,latency_us,limit_us,bound,busiest_engine,over_bound,floor_us,"
                  "over_floor,paper_us,gain,hbm_bytes,tiling\n");
    nmlp_status st = run_all(&m, args->model, &sum, &csv, json != NULL, err);
    snprintf(name, sizeof name, "neuron-mlp-%s.csv", m.name);
    if (st == NMLP_OK) st = nmlp_path_join(path, sizeof path, args->out, name, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&csv), csv.len, err);
    nmlp_str_fini(&csv);
    NMLP_RETURN_IF_FAILED(st);
    double gain = exp(sum.log_gain / sum.n);
    if (json) {
        nmlp_json_put_string(json, "target", m.name);
        nmlp_json_put_bool(json, "simulated", true);
        nmlp_json_put_int(json, "shapes", sum.n);
        nmlp_json_put_int(json, "within_1.06", sum.n_near);
        nmlp_json_put_number(json, "worst_over_bound", sum.worst);
        nmlp_json_put_int(json, "floor_beyond_1.06", sum.n_beyond);
        nmlp_json_put_number(json, "worst_over_floor", sum.worst_floor);
        nmlp_json_put_number(json, "geomean_gain", gain);
        nmlp_json_put_int(json, "slower_than_paper", sum.n_lost);
        nmlp_json_put_number(json, "slowest_plan_cpu_s", sum.slowest_s);
    } else {
        printf(
            "%d of %d within %.2f of the bound (launch apart), worst %.3f; the floor, with the latencies that nothing "
            "hides, is beyond that for %d; worst against the floor %.3f\n",
            sum.n_near, sum.n, near_bound, sum.worst, sum.n_beyond, sum.worst_floor);
        printf("geometric-mean gain over the paper's MLP %.2fx, slower in %d; slowest plan %.2f s of CPU\n", gain,
               sum.n_lost, sum.slowest_s);
    }
    return NMLP_OK;
}

const nmlp_bench nmlp_bench_neuron_mlp = {
    "neuron-mlp", "planned MLPs of six models against the paper's, simulated (minutes)", run, false, true};
