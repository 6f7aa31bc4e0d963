/* bench neuron-mlp: our planned MLP against the paper's, all models, ratios and lengths. Simulated. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "cli/bench.h"
#include "service/kernel.h"
#include "model/preset.h"
#include "trainium/package/forms.h"

enum { N_MODELS = 6, N_RATIOS = 3, N_LENGTHS = 7, TILE = 128 };

static const char *const models[N_MODELS] = {"llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b",
                                             "qwen3-1.7b",   "qwen3-4b",     "qwen3-8b"};
static const double ratios[N_RATIOS] = {0.05, 0.2, 0.5};
static const int64_t lengths[N_LENGTHS] = {1, 16, 128, 512, 2048, 8192, 32768};

/* Forms of checkpoints: decode, a short and a long prompt. */
enum { N_CHECKPOINT_LENGTHS = 3 };
static const int64_t checkpoint_lengths[N_CHECKPOINT_LENGTHS] = {1, 128, 2048};

static const double near_bound = 1.06;

typedef struct summary {
    double log_gain, worst, worst_floor, slowest_s;
    int n, n_near, n_lost;
    int n_beyond; /* where even the floor is not near the bound */
} summary;

/* An MLP of a model: a preset at a ratio, or a form of a checkpoint. */
typedef struct mlp_case {
    char label[64]; /* of the ranks */
    const char *model;
    double ratio;
    int64_t hidden, intermediate;
    nmlp_mlp_ranks ranks;
} mlp_case;

static nmlp_status one(const nmlp_machine *m, const mlp_case *c, int64_t rows, summary *sum, nmlp_str *csv, bool quiet,
                       nmlp_err *err) {
    nmlp_kernel_plan plan;
    nmlp_str tiling;
    nmlp_planner planner = nmlp_kernel_planner(m, NULL);
    nmlp_kernel_request rq = {.shape = {rows, c->hidden, 0, c->intermediate}, .dtype = NMLP_NC_BF16, .machine = m};
    nmlp_kernel_set_ranks(&rq, c->ranks);
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
    nmlp_str_printf(csv, "%s,%s,%g,%s,%lld,%.1f,%.1f,%s,%s,%.4f,%.1f,%.4f,%.1f,%.3f,%.0f,\"%s\"\n", m->name, c->model,
                    c->ratio, c->label, (long long)rows, us, plan.limit_us, plan.bounds.binding, plan.engine, over,
                    plan.floor_us, over_floor, plan.paper.cost.latency_us, gain, plan.winner.cost.hbm_bytes,
                    nmlp_str_text(&tiling));
    nmlp_str_fini(&tiling);
    if (!quiet)
        printf("  %-13s %5.2f %-22s %6lld %12.1f %8.3f %-7s %8.3f %8.2fx %6.2f\n", c->model, c->ratio, c->label,
               (long long)rows, us, over, plan.bounds.binding, over_floor, gain, seconds);
    return NMLP_OK;
}

static nmlp_status run_preset(const nmlp_machine *m, const char *model, double ratio, summary *sum, nmlp_str *csv,
                              bool quiet, nmlp_err *err) {
    nmlp_config c;
    NMLP_RETURN_IF_FAILED(nmlp_preset_find(&c, model, err));
    int64_t rank = nmlp_rank_for_ratio(c.intermediate, c.hidden, ratio, TILE);
    mlp_case one_rank = {"", model, ratio, c.hidden, c.intermediate, {rank, rank, rank, false}};
    snprintf(one_rank.label, sizeof one_rank.label, "%lld", (long long)rank);
    for (int k = 0; k < N_LENGTHS; k++) NMLP_RETURN_IF_FAILED(one(m, &one_rank, lengths[k], sum, csv, quiet, err));
    return NMLP_OK;
}

static void label_ranks(char *label, size_t bytes, nmlp_mlp_ranks r) {
    const int64_t ranks[] = {r.gate, r.up, r.down};
    size_t at = 0;
    for (int k = 0; k < 3; k++)
        at += (size_t)(ranks[k] > 0 ? snprintf(label + at, bytes - at, "%s%lld", k ? "/" : "", (long long)ranks[k])
                                    : snprintf(label + at, bytes - at, "%sdense", k ? "/" : ""));
    if (r.shared) snprintf(label + at, bytes - at, " shared");
}

/* Every form of a checkpoint's MLPs that has factors. */
static nmlp_status run_checkpoint(const nmlp_machine *m, const char *dir, summary *sum, nmlp_str *csv, bool quiet,
                                  nmlp_err *err) {
    nmlp_model model;
    nmlp_mlp_forms forms = {0};
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&model, dir, err));
    nmlp_status st = nmlp_mlp_forms_of(&forms, &model, err);
    for (size_t f = 0; f < forms.n && st == NMLP_OK; f++) {
        nmlp_mlp_ranks r = forms.list[f].ranks;
        const char *slash = strrchr(dir, '/');
        mlp_case own = {
            "", slash && slash[1] ? slash + 1 : dir, model.config.ratio, model.config.hidden, model.config.intermediate,
            r};
        label_ranks(own.label, sizeof own.label, r);
        if (r.gate == 0 && r.up == 0 && r.down == 0) continue;
        for (int k = 0; k < N_CHECKPOINT_LENGTHS && st == NMLP_OK; k++)
            st = one(m, &own, checkpoint_lengths[k], sum, csv, quiet, err);
    }
    nmlp_mlp_forms_fini(&forms);
    nmlp_model_close(&model);
    return st;
}

static nmlp_status run_all(const nmlp_machine *m, const nmlp_bench_args *args, summary *sum, nmlp_str *csv, bool quiet,
                           nmlp_err *err) {
    const char *only = args->model;
    for (int i = 0; i < args->n_models; i++)
        NMLP_RETURN_IF_FAILED(run_checkpoint(m, args->models[i], sum, csv, quiet, err));
    if (args->n_models > 0 && sum->n == 0)
        return nmlp_fail(err, NMLP_E_ARG, "%s: has no MLP with factors", args->models[0]);
    for (int i = 0; i < N_MODELS && args->n_models == 0; i++) {
        if (only && strcmp(only, models[i]) != 0) continue;
        for (int j = 0; j < N_RATIOS; j++)
            NMLP_RETURN_IF_FAILED(run_preset(m, models[i], ratios[j], sum, csv, quiet, err));
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
        printf("simulated on %s\n  %-13s %5s %-22s %6s %12s %8s %-7s %8s %9s %6s\n", m.name, "model", "ratio", "rank",
               "rows", "us", "over", "bound", "floor", "gain", "CPU s");
    nmlp_str_init(&csv);
    nmlp_str_puts(&csv,
                  "simulated_on,model,ratio,rank,rows,latency_us,limit_us,bound,busiest_engine,over_bound,floor_us,"
                  "over_floor,paper_us,gain,hbm_bytes,tiling\n");
    nmlp_status st = run_all(&m, args, &sum, &csv, json != NULL, err);
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
    "neuron-mlp",
    "planned MLPs of six models, or of the checkpoints given, against the paper's, simulated (minutes)",
    "target model out",
    run,
    true,
    true};
