#include "engine/split_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/ints.h"
#include "base/mem.h"

enum { SAMPLES = 9, FEW = 64, MANY = 8192, READ_WORDS = 1 << 22, READ_GRAIN = 1 << 16, READ_ROUNDS = 3 };
static const double no_wire_gbit = 1e6; /* where more bytes take no longer */

/* ---- measuring ---- */

/* What one process found. */
struct sample {
    double few_s, many_s; /* of a sum of so many floats */
    double read_s;        /* of READ_WORDS words */
};

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static nmlp_status time_sums(double *median, float *values, int64_t n, const nmlp_process_group *group, nmlp_err *err) {
    double seconds[SAMPLES];
    memset(values, 0, (size_t)n * sizeof *values);
    for (int i = 0; i < SAMPLES; i++) {
        double begin = nmlp_clock_seconds();
        NMLP_RETURN_IF_FAILED(nmlp_group_sum_f32(group, values, n, err));
        seconds[i] = nmlp_clock_seconds() - begin;
    }
    qsort(seconds, SAMPLES, sizeof *seconds, compare);
    *median = seconds[SAMPLES / 2];
    return NMLP_OK;
}

struct reading {
    const uint64_t *words;
    _Atomic uint64_t sum; /* so that the reading is not left out */
};

static void read_words(void *arg, int64_t begin, int64_t end, int thread) {
    struct reading *r = arg;
    uint64_t sum = 0;
    (void)thread;
    for (int64_t i = begin; i < end; i++) sum += r->words[i];
    r->sum += sum;
}

/* All processes at the same time, as they read weights. */
static nmlp_status time_reading(double *seconds, const nmlp_process_group *group, nmlp_pool *pool, nmlp_err *err) {
    uint64_t *words = nmlp_mem_new(READ_WORDS, sizeof *words, err);
    if (!words) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < READ_WORDS; i++) words[i] = (uint64_t)i;
    struct reading reading = {.words = words};
    nmlp_status st = nmlp_group_meet(group, err);
    *seconds = INFINITY;
    for (int i = 0; i < READ_ROUNDS; i++) { /* the best: a process that has lost its CPU meanwhile has not read */
        double begin = nmlp_clock_seconds();
        nmlp_pool_for(pool, READ_WORDS, READ_GRAIN, read_words, &reading);
        *seconds = fmin(*seconds, nmlp_clock_seconds() - begin);
    }
    nmlp_mem_free(words);
    return st;
}

static nmlp_status measure(nmlp_cluster_spec *spec, const nmlp_process_group *group, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    float *values = nmlp_mem_new(MANY, sizeof *values, err);
    struct sample *all = nmlp_mem_new((size_t)group->size, sizeof *all, err), worst = {0};
    int64_t *first = nmlp_mem_new((size_t)group->size + 1, sizeof *first, err);
    if (!values || !all || !first) NMLP_TRY(NMLP_E_NOMEM);
    struct sample *own = &all[group->rank];
    NMLP_TRY(time_reading(&own->read_s, group, pool, err));
    NMLP_TRY(time_sums(&own->few_s, values, FEW, group, err));
    NMLP_TRY(time_sums(&own->many_s, values, MANY, group, err));
    for (int k = 0; k <= group->size; k++) first[k] = k;
    NMLP_TRY(nmlp_group_gather(group, all, sizeof *all, first, err));
    for (int k = 0; k < group->size; k++) {
        worst.few_s = fmax(worst.few_s, all[k].few_s);
        worst.many_s = fmax(worst.many_s, all[k].many_s);
        worst.read_s = fmax(worst.read_s, all[k].read_s);
    }
    /* As the arithmetic counts the waits and the bytes of a sum. */
    bool small = nmlp_group_sum_is_small(group->size, MANY);
    double p = group->size, wire_s = worst.many_s - (small ? 1 : 2) * worst.few_s;
    double bits = (small ? p - 1 : 2 * (p - 1) / p) * (MANY - FEW) * 8.0 * sizeof(float);
    spec->nodes = group->size;
    spec->latency_us = 1e6 * worst.few_s;
    spec->gbit = wire_s > 0 ? fmin(no_wire_gbit, 1e-9 * bits / wire_s) : no_wire_gbit;
    spec->read_gbs = 1e-9 * READ_WORDS * sizeof(uint64_t) / worst.read_s;
out:
    nmlp_mem_free(values);
    nmlp_mem_free(all);
    nmlp_mem_free(first);
    return st;
}

/* ---- choosing ---- */

static nmlp_cluster_mlp mlp_of(const nmlp_layer *layer) {
    const nmlp_factors *m = layer->mlp;
    nmlp_cluster_mlp mlp = {.gate = nmlp_factors_rank(&m[NMLP_MLP_GATE]),
                            .up = nmlp_factors_rank(&m[NMLP_MLP_UP]),
                            .down = nmlp_factors_rank(&m[NMLP_MLP_DOWN]),
                            .shared = layer->shared_basis,
                            .slices = layer->slices};
    /* Products of factors are kept in f32. */
    if (mlp.gate + mlp.up + mlp.down > 0) mlp.dense_bits = 8.0 * sizeof(float);
    return mlp;
}

static nmlp_cluster_split best_split(const nmlp_layer *layer, const nmlp_cluster_spec *spec, const nmlp_config *config,
                                     double *ms) {
    nmlp_cluster_mlp mlp = mlp_of(layer);
    nmlp_cluster_split best = nmlp_model_shard_usual(layer);
    *ms = INFINITY;
    for (int k = 0; k < NMLP_CLUSTER_SPLIT_COUNT; k++) {
        if (!nmlp_model_shard_allows(layer, k, (int)spec->nodes)) continue;
        double one = nmlp_cluster_layer_time(spec, spec->nodes, config, &mlp, k, 0).ms;
        if (one < *ms) *ms = one, best = k;
    }
    return best;
}

static nmlp_status check_wanted(nmlp_cluster_split *split, const char *wanted, nmlp_err *err) {
    *split = NMLP_CLUSTER_SPLIT_COUNT;
    if (!wanted || strcmp(wanted, "auto") == 0) return NMLP_OK;
    *split = nmlp_cluster_split_find(wanted);
    if (*split != NMLP_CLUSTER_SPLIT_COUNT && *split != NMLP_CLUSTER_SPLIT_SLICES) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "split", "is \"%s\"; it must be auto, dense, replicated or all", wanted);
}

nmlp_status nmlp_split_choose(nmlp_split_choice *out, const nmlp_model *whole, const char *wanted,
                              const nmlp_process_group *group, nmlp_pool *pool, nmlp_err *err) {
    const nmlp_config *config = &whole->config;
    nmlp_cluster_split forced;
    *out = (nmlp_split_choice){0};
    NMLP_RETURN_IF_FAILED(check_wanted(&forced, wanted, err));
    NMLP_RETURN_IF_FAILED(measure(&out->measured, group, pool, err));
    nmlp_model_size size = nmlp_model_measure(whole);
    out->measured.bits = 8.0 * (double)size.bytes / (double)size.params;
    out->splits = nmlp_mem_new((size_t)config->n_layers, sizeof *out->splits, err);
    if (!out->splits) return NMLP_E_NOMEM;
    out->token_ms = nmlp_cluster_head_time(&out->measured, group->size, config).ms;
    for (int64_t l = 0; l < config->n_layers; l++) {
        const nmlp_layer *layer = &whole->layers[l];
        double ms;
        out->splits[l] = best_split(layer, &out->measured, config, &ms);
        if (forced != NMLP_CLUSTER_SPLIT_COUNT && nmlp_model_shard_usual(layer) == NMLP_CLUSTER_SPLIT_REPLICATED) {
            nmlp_cluster_mlp mlp = mlp_of(layer);
            out->splits[l] = forced;
            ms = nmlp_cluster_layer_time(&out->measured, group->size, config, &mlp, forced, 0).ms;
        }
        out->token_ms += ms;
    }
    return NMLP_OK;
}

void nmlp_split_choice_fini(nmlp_split_choice *choice) {
    nmlp_mem_free(choice->splits);
    *choice = (nmlp_split_choice){0};
}

void nmlp_split_choice_text(const nmlp_split_choice *c, int64_t n_layers, nmlp_str *text) {
    const nmlp_cluster_spec *m = &c->measured;
    const char *between = "";
    for (int k = 0; k < NMLP_CLUSTER_SPLIT_COUNT; k++) {
        int64_t n = 0;
        for (int64_t l = 0; l < n_layers; l++) n += (int)c->splits[l] == k;
        if (n == 0) continue;
        nmlp_str_printf(text, "%s%lld layers %s", between, (long long)n, nmlp_cluster_split_name(k));
        between = ", ";
    }
    nmlp_str_printf(text, "; a wait takes %.1f us, %.3g Gbit/s, memory %.3g GB/s; %.3g ms a token computed",
                    m->latency_us, m->gbit, m->read_gbs, c->token_ms);
}
