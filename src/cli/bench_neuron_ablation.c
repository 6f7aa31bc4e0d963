/* bench neuron-ablation: the paper's three ideas on and off, one at a time. Simulated. */
#include <stdio.h>

#include "base/file.h"
#include "cli/bench.h"
#include "service/kernel.h"
#include "trainium/neuron/walk.h"

enum { S = 2048, H = 8192, R = 4096, O = 16384, N_CASES = 8 };

typedef struct ablation {
    bool cache, turn, block;
    nmlp_kernel_cost cost;
    int64_t n_transposes, n_flops;
} ablation;

/* Transposes on the tensor engine, and multiplications. */
static nmlp_status count(const nmlp_program *p, ablation *a, nmlp_err *err) {
    nmlp_walk walk;
    nmlp_step step;
    NMLP_RETURN_IF_FAILED(nmlp_walk_init(&walk, p, err));
    while (nmlp_walk_next(&walk, &step)) {
        a->n_transposes += step.instr->op == NMLP_OP_TRANSPOSE;
        if (step.instr->op == NMLP_OP_MATMUL)
            a->n_flops += 2 * step.a.parts * nmlp_box_free(&step.a) * nmlp_box_free(&step.b);
    }
    nmlp_walk_fini(&walk);
    return NMLP_OK;
}

static nmlp_status measure(ablation *a, const nmlp_machine *m, nmlp_err *err) {
    static const char *const blocks[] = {"m=1,r=1,k=1,n=1", "m=4,r=8,k=8,n=2"}; /* the second: the paper's */
    char tiling[80];
    nmlp_built_kernel k;
    snprintf(tiling, sizeof tiling, "cache=%d,turn=%d,%s", a->cache ? 2 : 1, a->turn ? 2 : 1, blocks[a->block]);
    nmlp_kernel_problem problem = {.machine = m, .kernel = "xuv-naive", .shape = {S, H, R, O}, .tiling = tiling};
    nmlp_status st = nmlp_kernel_build_problem(&k, &problem, err);
    if (st == NMLP_OK) st = nmlp_kernel_simulate_cost(NULL, k.program, m, &a->cost, err);
    if (st == NMLP_OK) st = count(k.program, a, err);
    nmlp_built_kernel_fini(&k);
    return st;
}

static const char *on(bool b) { return b ? "on" : "off"; }

static nmlp_status write_csv(const ablation *list, const nmlp_machine *m, const char *dir, nmlp_err *err) {
    char path[4096], name[64];
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_str_puts(&text,
                  "simulated_on,caching,implicit_transposition,blocking,latency_us,hbm_bytes,transposes,flops\n");
    for (int i = 0; i < N_CASES; i++)
        nmlp_str_printf(&text, "%s,%s,%s,%s,%.1f,%.0f,%lld,%lld\n", m->name, on(list[i].cache), on(list[i].turn),
                        on(list[i].block), list[i].cost.latency_us, list[i].cost.hbm_bytes,
                        (long long)list[i].n_transposes, (long long)list[i].n_flops);
    snprintf(name, sizeof name, "neuron-ablation-%s.csv", m->name);
    nmlp_status st = nmlp_str_status(&text, err);
    if (st == NMLP_OK) st = nmlp_path_join(path, sizeof path, dir, name, err);
    if (st == NMLP_OK) st = nmlp_file_write_text(path, nmlp_str_text(&text), text.len, err);
    nmlp_str_fini(&text);
    return st;
}

static void put_json(nmlp_json_writer *w, const ablation *a) {
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_bool(w, "caching", a->cache);
    nmlp_json_put_bool(w, "implicit_transposition", a->turn);
    nmlp_json_put_bool(w, "blocking", a->block);
    nmlp_json_put_number(w, "latency_us", a->cost.latency_us);
    nmlp_json_put_number(w, "hbm_bytes", a->cost.hbm_bytes);
    nmlp_json_put_int(w, "transposes", a->n_transposes);
    nmlp_json_end_object(w);
}

static nmlp_status run(const nmlp_bench_args *args, nmlp_json_writer *json, nmlp_err *err) {
    nmlp_machine m;
    ablation list[N_CASES] = {0};
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&m, args->target, err));
    if (json) {
        nmlp_json_put_string(json, "target", m.name);
        nmlp_json_put_bool(json, "simulated", true);
        nmlp_json_begin_array(json, "cases");
    } else {
        printf("simulated on %s: (x u) v, S %d, H %d, rank %d, O %d\n", m.name, S, H, R, O);
        printf("  %-8s %-10s %-9s %12s %10s %12s %10s\n", "caching", "transpose", "blocking", "ms", "HBM GB",
               "transposes", "TFLOP");
    }
    for (int i = 0; i < N_CASES; i++) {
        ablation *a = &list[i];
        a->cache = i & 1, a->turn = i & 2, a->block = i & 4;
        NMLP_RETURN_IF_FAILED(measure(a, &m, err));
        if (json)
            put_json(json, a);
        else
            printf("  %-8s %-10s %-9s %12.2f %10.3f %12lld %10.3f\n", on(a->cache), a->turn ? "implicit" : "explicit",
                   on(a->block), a->cost.latency_us * 1e-3, a->cost.hbm_bytes * 1e-9, (long long)a->n_transposes,
                   (double)a->n_flops * 1e-12);
    }
    if (json) nmlp_json_end_array(json);
    return write_csv(list, &m, args->out, err);
}

const nmlp_bench nmlp_bench_neuron_ablation = {"neuron-ablation",
                                               "caching, implicit transposition and blocking on and off, simulated",
                                               "target out",
                                               run,
                                               false,
                                               true};
