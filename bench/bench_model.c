/* bench_model: whole models, prefill and decode, side by side in one process, as CSV.
 * Usage: bench_model [--threads N] [--precision f32|bf16] [--rounds N] MODEL [MODEL...]
 *
 * Every round visits all models and lengths in turn, so that a slow moment of the machine hits all of them; each sample stands beside a probe
 * of the machine taken before and after it, and its share of that probe is what to read. Prefill counts the FLOPs of the weights (attention is not
 * counted, the head once), decode the bytes of the weights, read once per token. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "probe.h"
#include "stats.h"

enum { MODELS_MAX = 8, N_CASES = 4, DECODE_TOKENS = 16, DECODE_PROMPT = 16, PROMPT_MAX = 2048 };
static const size_t DRAM_BYTES = (size_t)1 << 30;
static const int prompts[N_CASES] = {128, 512, 2048, 0}; /* 0: decode */

struct subject {
    const char *dir;
    nmlp_model model;
    nmlp_engine *engine;
    nmlp_session *session;
    double layer_params; /* matrices of all layers as stored */
    double head_params;
    nmlp_samples rate[N_CASES];  /* tokens/s */
    nmlp_samples share[N_CASES]; /* of the probe */
};

struct options {
    int n_threads;
    int rounds;
    bool bf16;
};

static double matrix_params(const nmlp_view *view) { return (double)nmlp_view_elems(view); }

static void count_params(struct subject *s) {
    const nmlp_model *m = &s->model;
    s->head_params = matrix_params(&m->lm_head);
    s->layer_params = (double)nmlp_model_measure(m).mlp_params;
    for (int64_t l = 0; l < m->config.n_layers; l++) {
        const nmlp_layer *layer = &m->layers[l];
        s->layer_params += matrix_params(&layer->q) + matrix_params(&layer->k) + matrix_params(&layer->v) +
                           matrix_params(&layer->o);
    }
}

static nmlp_status open_subject(struct subject *s, const struct options *o, nmlp_pool *pool, nmlp_err *err) {
    nmlp_engine_options engine = {.pool = pool, .bf16 = o->bf16, .skip_finite_check = true};
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&s->model, s->dir, err));
    count_params(s);
    NMLP_RETURN_IF_FAILED(nmlp_engine_create(&s->engine, &s->model, &engine, err));
    int64_t context = s->model.config.max_positions < PROMPT_MAX ? s->model.config.max_positions : PROMPT_MAX;
    return nmlp_session_create(&s->session, s->engine, context, 0, false, err);
}

static void close_subject(struct subject *s) {
    nmlp_session_destroy(s->session);
    nmlp_engine_destroy(s->engine);
    nmlp_model_close(&s->model);
}

static void fill_ids(int32_t *ids, int n, int64_t vocab) {
    for (int i = 0; i < n; i++) ids[i] = (int32_t)((i * 7919 + 13) % vocab);
}

/* Seconds per token. */
static nmlp_status time_prefill(struct subject *s, int n, double *seconds, nmlp_err *err) {
    int32_t ids[PROMPT_MAX];
    fill_ids(ids, n, s->model.config.vocab);
    nmlp_session_truncate(s->session, 0);
    double started = nmlp_clock_seconds();
    NMLP_RETURN_IF_FAILED(nmlp_session_append(s->session, ids, n, NULL, NULL, err));
    (void)nmlp_session_last_logits(s->session);
    *seconds = (nmlp_clock_seconds() - started) / n;
    return NMLP_OK;
}

static nmlp_status time_decode(struct subject *s, double *seconds, nmlp_err *err) {
    int32_t ids[DECODE_PROMPT + DECODE_TOKENS];
    fill_ids(ids, DECODE_PROMPT + DECODE_TOKENS, s->model.config.vocab);
    nmlp_session_truncate(s->session, 0);
    NMLP_RETURN_IF_FAILED(nmlp_session_append(s->session, ids, DECODE_PROMPT, NULL, NULL, err));
    double started = nmlp_clock_seconds();
    for (int i = 0; i < DECODE_TOKENS; i++) {
        NMLP_RETURN_IF_FAILED(nmlp_session_append(s->session, ids + DECODE_PROMPT + i, 1, NULL, NULL, err));
        (void)nmlp_session_last_logits(s->session);
    }
    *seconds = (nmlp_clock_seconds() - started) / DECODE_TOKENS;
    return NMLP_OK;
}

static double read_probe(nmlp_probe *probe, bool decode, bool bf16) {
    if (decode) return nmlp_probe_dram_gbs(probe);
    double amx = bf16 ? nmlp_probe_amx_fed_gflops(probe) : 0;
    return amx > 0 ? amx : nmlp_probe_fma_gflops(probe);
}

static nmlp_status take_sample(struct subject *s, int which, nmlp_probe *probe, const struct options *o, nmlp_err *err) {
    bool decode = prompts[which] == 0;
    double seconds = 0;
    double before = read_probe(probe, decode, o->bf16);
    NMLP_RETURN_IF_FAILED(decode ? time_decode(s, &seconds, err) : time_prefill(s, prompts[which], &seconds, err));
    double limit = 0.5 * (before + read_probe(probe, decode, o->bf16));
    double weight_bytes = (double)nmlp_dtype_bytes(s->model.embedding.dtype);
    double work = decode ? weight_bytes * (s->layer_params + s->head_params) * 1e-9
                         : 2 * (s->layer_params + s->head_params / prompts[which]) * 1e-9;
    nmlp_samples_add(&s->rate[which], 1 / seconds);
    nmlp_samples_add(&s->share[which], work / seconds / limit);
    return NMLP_OK;
}

static nmlp_status measure(struct subject *subjects, int n, nmlp_probe *probe, const struct options *o, nmlp_err *err) {
    for (int round = 0; round < o->rounds; round++) {
        for (int which = 0; which < N_CASES; which++) {
            for (int i = 0; i < n; i++) {
                if (prompts[which] > nmlp_session_context(subjects[i].session)) continue;
                NMLP_RETURN_IF_FAILED(take_sample(&subjects[i], which, probe, o, err));
            }
        }
    }
    return NMLP_OK;
}

static void print_results(const struct subject *subjects, int n, int n_threads) {
    printf("model,phase,tokens,isa,threads,tok_s_median,tok_s_p10,tok_s_p90,share_of_probe,speedup_over_first\n");
    for (int which = 0; which < N_CASES; which++) {
        for (int i = 0; i < n; i++) {
            const struct subject *s = &subjects[i];
            const nmlp_samples *rate = &s->rate[which];
            if (rate->n == 0) continue;
            double median = nmlp_samples_quantile(rate, 0.5);
            double first = nmlp_samples_quantile(&subjects[0].rate[which], 0.5);
            printf("%s,%s,%d,%s,%d,%.4g,%.4g,%.4g,%.3f,%.3f\n", s->dir, prompts[which] ? "prefill" : "decode",
                   prompts[which] ? prompts[which] : DECODE_TOKENS, nmlp_engine_isa(s->engine), n_threads, median,
                   nmlp_samples_quantile(rate, 0.1), nmlp_samples_quantile(rate, 0.9),
                   nmlp_samples_quantile(&s->share[which], 0.5), first > 0 ? median / first : 0);
        }
    }
}

static int usage(void) {
    fprintf(stderr, "usage: bench_model [--threads N] [--precision f32|bf16] [--rounds N] MODEL [MODEL...]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct options *o) {
    static const struct option names[] = {{"threads", required_argument, NULL, 't'},
                                          {"precision", required_argument, NULL, 'p'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {NULL, 0, NULL, 0}};
    int code;
    while ((code = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (code == 't') o->n_threads = atoi(optarg);
        if (code == 'r') o->rounds = atoi(optarg);
        if (code == 'p') o->bf16 = strcmp(optarg, "bf16") == 0;
        if (code == '?') return false;
    }
    return argc > optind && argc - optind <= MODELS_MAX && o->rounds > 0;
}

int main(int argc, char **argv) {
    struct options o = {.rounds = 5};
    static struct subject subjects[MODELS_MAX];
    nmlp_cpu cpu = nmlp_cpu_detect();
    nmlp_pool *pool = NULL;
    nmlp_probe *probe = NULL;
    nmlp_status st = NMLP_OK;
    nmlp_err err;
    int n = 0;
    if (!parse(argc, argv, &o)) return usage();
    NMLP_TRY(nmlp_pool_create(&pool, o.n_threads, &err));
    NMLP_TRY(nmlp_probe_create(&probe, pool, &cpu, DRAM_BYTES, &err));
    for (int i = optind; i < argc; i++) {
        subjects[n].dir = argv[i];
        NMLP_TRY(open_subject(&subjects[n++], &o, pool, &err));
    }
    NMLP_TRY(measure(subjects, n, probe, &o, &err));
    print_results(subjects, n, nmlp_pool_threads(pool));
out:
    if (st != NMLP_OK) fprintf(stderr, "bench_model: %s\n", err.message);
    for (int i = 0; i < n; i++) close_subject(&subjects[i]);
    nmlp_probe_destroy(probe);
    nmlp_pool_destroy(pool);
    return st == NMLP_OK ? 0 : 1;
}
