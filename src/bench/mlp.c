#include "bench/mlp.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "bench/probe.h"
#include "bench/samples.h"
#include "tensor/diff.h"
#include "tensor/quant.h"

enum { CHECK_ROWS = 3, ROUNDS_MIN = 3, TYPES_MAX = 8 };
static const double COLD_BYTES = 512e6;
static const double QUIET = 0.8;       /* of the best probe */
static const double PROBE_SHARE = 0.3; /* how long a probe is, of the sample before */

/* One way to run one MLP. */
struct subject {
    nmlp_peer peer;
    const nmlp_bench_case *c;
    const float *want;
    nmlp_mlp *planned; /* ours: to ask for the plan */
    nmlp_err why;      /* not made or not right */
    bool runs;
    nmlp_samples ms;
    nmlp_samples rate;
    nmlp_samples probe;
};

/* One MLP: dense or of some rank, its weights in each of the types. */
struct variant {
    nmlp_bench_case cases[TYPES_MAX];
    float *want[TYPES_MAX]; /* [CHECK_ROWS,H] from the portable set */
};

struct bench {
    const nmlp_bench_mlp_options *options;
    nmlp_probe *probe;
    struct variant *variants; /* dense first */
    size_t n_variants;
    struct subject *subjects; /* [variant][ours in each type, peers...] */
    size_t n_per_variant;
    float *x; /* [s_max,H] */
    float *y;
};

static double weights_of(const nmlp_bench_case *c) {
    double h = (double)c->hidden;
    double i = (double)c->inner;
    return c->rank ? 3.0 * (double)c->rank * (h + i) : 3.0 * h * i;
}

/* ---- the weights ---- */

static const nmlp_bench_weight_type weight_types[] = {
    {"f32", NMLP_DTYPE_F32, 0, false},   {"bf16", NMLP_DTYPE_BF16, 0, false}, {"q8", NMLP_DTYPE_Q8, 0, false},
    {"q4", NMLP_DTYPE_Q4, 32, false},    {"q4-64", NMLP_DTYPE_Q4, 64, false}, {"q4z", NMLP_DTYPE_Q4, 32, true},
    {"q4z-64", NMLP_DTYPE_Q4, 64, true}, {"q4m", NMLP_DTYPE_Q4M, 16, false}};

const nmlp_bench_weight_type *nmlp_bench_weight_type_of(const char *name) {
    for (size_t i = 0; i < sizeof weight_types / sizeof weight_types[0]; i++)
        if (strcmp(weight_types[i].name, name) == 0) return &weight_types[i];
    return NULL;
}

static nmlp_status new_weight(nmlp_view *view, const nmlp_bench_weight_type *type, int64_t n, int64_t k,
                              nmlp_err *err) {
    *view = nmlp_view_2d(NULL, type->dtype, n, k);
    view->group = type->group;
    view->data = nmlp_mem_new(nmlp_view_bytes(view), 1, err);
    if (nmlp_dtype_is_quantised(type->dtype)) view->scales = nmlp_mem_new(nmlp_quant_scale_bytes(view), 1, err);
    bool per_group = type->zeros || nmlp_quant_has_multipliers(type->dtype);
    if (per_group) view->per_group = nmlp_mem_new((size_t)(n * nmlp_quant_groups(view)), 1, err);
    bool whole =
        view->data && (view->scales || !nmlp_dtype_is_quantised(type->dtype)) && (view->per_group || !per_group);
    return whole ? NMLP_OK : NMLP_E_NOMEM;
}

/* Uniform of variance 1/k: activations keep their size through the layer. */
static nmlp_status random_weight(nmlp_view *view, const nmlp_bench_weight_type *type, int64_t n, int64_t k,
                                 nmlp_rng *rng, nmlp_err *err) {
    float scale = 3.46f / sqrtf((float)k);
    NMLP_RETURN_IF_FAILED(new_weight(view, type, n, k, err));
    float *row = nmlp_mem_new((size_t)k, sizeof *row, err);
    if (!row) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < k; j++) row[j] = ((float)nmlp_rng_uniform(rng) - 0.5f) * scale;
        nmlp_quant_row_from_f32(view, i, row);
    }
    nmlp_mem_free(row);
    return NMLP_OK;
}

static nmlp_status random_factors(nmlp_factors *f, const nmlp_bench_weight_type *type, int64_t n, int64_t k,
                                  int64_t rank, nmlp_rng *rng, nmlp_err *err) {
    if (!rank) return random_weight(&f->w, type, n, k, rng, err);
    NMLP_RETURN_IF_FAILED(random_weight(&f->u, type, n, rank, rng, err));
    return random_weight(&f->v, type, rank, k, rng, err);
}

static void free_factors(nmlp_factors *f) {
    const nmlp_view *views[] = {&f->w, &f->u, &f->v};
    for (int i = 0; i < 3; i++) {
        nmlp_mem_free((void *)(uintptr_t)views[i]->data);
        nmlp_mem_free((void *)(uintptr_t)views[i]->scales);
        nmlp_mem_free((void *)(uintptr_t)views[i]->per_group);
    }
}

/* The truth of the first rows: the portable set, itself checked against float64 by the tests. */
static nmlp_status compute_want(float **want, nmlp_bench_case c, const float *x, nmlp_err *err) {
    const nmlp_kernels *ref;
    nmlp_cpu no_cpu = {0};
    nmlp_peer peer;
    *want = nmlp_mem_new((size_t)(CHECK_ROWS * c.hidden), sizeof **want, err);
    if (!*want) return NMLP_E_NOMEM;
    c.n_copies = 1;
    c.s_max = CHECK_ROWS;
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select(&ref, &no_cpu, "ref", err));
    NMLP_RETURN_IF_FAILED(nmlp_peer_ours(&peer, &c, ref, err));
    peer.run(peer.ctx, 0, *want, x, CHECK_ROWS);
    peer.destroy(peer.ctx);
    return NMLP_OK;
}

static nmlp_status make_case(nmlp_bench_case *c, const nmlp_bench_mlp_options *o, const nmlp_bench_weight_type *type,
                             int64_t rank, int64_t s_max, bool cold, nmlp_err *err) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 1);
    *c = (nmlp_bench_case){
        .hidden = o->hidden, .inner = o->inner, .rank = rank, .n_copies = 1, .s_max = s_max, .pool = o->pool};
    if (cold) c->n_copies += (int)(COLD_BYTES * 8 / ((double)nmlp_dtype_bits(type->dtype) * weights_of(c)));
    if (c->n_copies > NMLP_PEER_COPIES_MAX) c->n_copies = NMLP_PEER_COPIES_MAX;
    NMLP_RETURN_IF_FAILED(random_factors(&c->desc.gate, type, o->inner, o->hidden, rank, &rng, err));
    NMLP_RETURN_IF_FAILED(random_factors(&c->desc.up, type, o->inner, o->hidden, rank, &rng, err));
    return random_factors(&c->desc.down, type, o->hidden, o->inner, rank, &rng, err);
}

static nmlp_status make_variant(struct variant *v, const struct bench *b, int64_t rank, int64_t s_max, bool cold,
                                nmlp_err *err) {
    const nmlp_bench_mlp_options *o = b->options;
    for (size_t i = 0; i < o->n_types; i++) {
        NMLP_RETURN_IF_FAILED(make_case(&v->cases[i], o, &o->types[i], rank, s_max, cold, err));
        NMLP_RETURN_IF_FAILED(compute_want(&v->want[i], v->cases[i], b->x, err));
    }
    return NMLP_OK;
}

/* ---- the subjects ---- */

/* A peer that cannot be made is reported, not fatal. */
static nmlp_status make_subjects(struct bench *b, const struct variant *v, struct subject *subjects, nmlp_err *err) {
    const nmlp_bench_mlp_options *o = b->options;
    for (size_t i = 0; i < b->n_per_variant; i++) {
        size_t type = i < o->n_types ? i : 0;
        subjects[i].c = &v->cases[type];
        subjects[i].want = v->want[type];
    }
    for (size_t i = 0; i < o->n_types; i++) {
        NMLP_RETURN_IF_FAILED(nmlp_peer_ours(&subjects[i].peer, &v->cases[i], o->kernels, err));
        NMLP_RETURN_IF_FAILED(nmlp_mlp_create(&subjects[i].planned, o->kernels, &v->cases[i].desc, o->pool, err));
        if (o->n_types > 1 || o->types[i].dtype != NMLP_DTYPE_BF16)
            snprintf(subjects[i].peer.name, sizeof subjects[i].peer.name, "%s %s", nmlp_kernels_name(o->kernels),
                     o->types[i].name);
    }
    struct subject *peers = subjects + o->n_types;
    for (size_t i = 0; i < o->n_peers; i++)
        if (o->peers[i]->make(&peers[i].peer, &v->cases[0], &peers[i].why) != NMLP_OK)
            snprintf(peers[i].peer.name, sizeof peers[i].peer.name, "%s", o->peers[i]->name);
    return NMLP_OK;
}

static nmlp_status prepare(struct bench *b, nmlp_err *err) {
    const nmlp_bench_mlp_options *o = b->options;
    nmlp_rng rng;
    int64_t s_max = CHECK_ROWS;
    bool cold = false;
    for (size_t i = 0; i < o->n_rows; i++) {
        if (o->rows[i] > s_max) s_max = o->rows[i];
        cold = cold || o->rows[i] <= NMLP_BENCH_COLD_ROWS;
    }
    size_t n = (size_t)(s_max * o->hidden);
    b->x = nmlp_mem_new(n, sizeof *b->x, err);
    b->y = nmlp_mem_new(n, sizeof *b->y, err);
    b->n_variants = o->n_ranks + 1;
    b->n_per_variant = o->n_peers + o->n_types;
    b->variants = nmlp_mem_new(b->n_variants, sizeof *b->variants, err);
    b->subjects = nmlp_mem_new(b->n_variants * b->n_per_variant, sizeof *b->subjects, err);
    if (!b->x || !b->y || !b->variants || !b->subjects) return NMLP_E_NOMEM;
    nmlp_rng_seed(&rng, 2);
    for (size_t i = 0; i < n; i++) b->x[i] = (float)nmlp_rng_uniform(&rng) - 0.5f;
    for (size_t i = 0; i < b->n_variants; i++) {
        NMLP_RETURN_IF_FAILED(make_variant(&b->variants[i], b, i ? o->ranks[i - 1] : 0, s_max, cold, err));
        NMLP_RETURN_IF_FAILED(make_subjects(b, &b->variants[i], b->subjects + i * b->n_per_variant, err));
    }
    return NMLP_OK;
}

static void release(struct bench *b) {
    for (size_t i = 0; b->subjects && i < b->n_variants * b->n_per_variant; i++) {
        struct subject *s = &b->subjects[i];
        if (s->peer.destroy) s->peer.destroy(s->peer.ctx);
        nmlp_mlp_destroy(s->planned);
    }
    for (size_t i = 0; b->variants && i < b->n_variants; i++) {
        for (int t = 0; t < TYPES_MAX; t++) {
            free_factors(&b->variants[i].cases[t].desc.gate);
            free_factors(&b->variants[i].cases[t].desc.up);
            free_factors(&b->variants[i].cases[t].desc.down);
            nmlp_mem_free(b->variants[i].want[t]);
        }
    }
    nmlp_mem_free(b->variants);
    nmlp_mem_free(b->subjects);
    nmlp_mem_free(b->x);
    nmlp_mem_free(b->y);
    nmlp_probe_destroy(b->probe);
}

/* ---- the measurement ---- */

/* Nobody is timed whose result is wrong. */
static void verify(struct bench *b, struct subject *s, int64_t rows) {
    size_t n = (size_t)((rows < CHECK_ROWS ? rows : CHECK_ROWS) * b->options->hidden);
    double allowed = s->peer.bf16 ? 5e-2 : 1e-4;
    s->runs = s->peer.run != NULL;
    if (!s->runs) return;
    memset(b->y, 0, n * sizeof *b->y);
    s->peer.run(s->peer.ctx, 0, b->y, b->x, rows);
    nmlp_diff diff = nmlp_diff_f32(b->y, s->want, n);
    s->runs = diff.rel_to_max <= allowed;
    if (!s->runs)
        nmlp_fail(&s->why, NMLP_E_ARG, "result off by %.2g of the largest value, %.2g allowed", diff.rel_to_max,
                  allowed);
}

static double read_probe(struct bench *b, bool cold, bool bf16) {
    if (cold) return nmlp_probe_dram_gbs(b->probe);
    double fed = bf16 ? nmlp_probe_amx_fed_gflops(b->probe) : 0.0;
    return fed > 0.0 ? fed : nmlp_probe_fma_gflops(b->probe);
}

static void sample(struct bench *b, struct subject *s, int64_t rows, int round) {
    bool cold = rows <= NMLP_BENCH_COLD_ROWS;
    int n_threads = nmlp_pool_threads(b->options->pool);
    nmlp_probe_set_seconds(b->probe, s->ms.n ? PROBE_SHARE * s->ms.x[s->ms.n - 1] / 1e3 : 0.0);
    nmlp_bench_settle();
    double before = read_probe(b, cold, s->peer.bf16);
    double begin = nmlp_bench_seconds(n_threads);
    s->peer.run(s->peer.ctx, round, b->y, b->x, rows);
    double seconds = nmlp_bench_seconds(n_threads) - begin;
    nmlp_bench_settle();
    double work = cold ? s->peer.bytes_per_weight : 2.0 * (double)rows;
    nmlp_samples_add(&s->ms, seconds * 1e3);
    nmlp_samples_add(&s->rate, weights_of(s->c) * work / seconds / 1e9);
    nmlp_samples_add(&s->probe, (before + read_probe(b, cold, s->peer.bf16)) / 2.0);
}

static void fill_shares(nmlp_bench_mlp_result *r, const struct subject *s) {
    nmlp_samples all = {.n = 0};
    nmlp_samples quiet = {.n = 0};
    nmlp_samples contended = {.n = 0};
    double best = nmlp_samples_quantile(&s->probe, 1.0);
    for (int i = 0; i < s->rate.n; i++) {
        double share = s->rate.x[i] / s->probe.x[i];
        nmlp_samples_add(&all, share);
        nmlp_samples_add(s->probe.x[i] >= QUIET * best ? &quiet : &contended, share);
    }
    r->share = nmlp_samples_spread(&all);
    r->n_quiet = quiet.n;
    r->share_quiet = nmlp_samples_quantile(&quiet, 0.5);
    r->share_contended = nmlp_samples_quantile(&contended, 0.5);
}

/* By what factor `fast` is faster. Times of one round stand close together, so their ratio says more than the ratio of
 * medians. */
static double speedup_of(const struct subject *fast, const struct subject *slow) {
    nmlp_samples ratios = {.n = 0};
    for (int i = 0; i < fast->ms.n && i < slow->ms.n; i++) nmlp_samples_add(&ratios, slow->ms.x[i] / fast->ms.x[i]);
    return nmlp_samples_quantile(&ratios, 0.5);
}

static nmlp_bench_mlp_result result_of(const struct bench *b, size_t at, int64_t rows) {
    const struct subject *s = &b->subjects[at];
    const struct subject *dense = &b->subjects[at % b->n_per_variant];
    const struct subject *ours = &b->subjects[at / b->n_per_variant * b->n_per_variant];
    nmlp_bench_mlp_result r = {.rank = s->c->rank, .rows = rows, .cold = rows <= NMLP_BENCH_COLD_ROWS};
    snprintf(r.name, sizeof r.name, "%s", s->peer.name);
    r.ideal_speedup = weights_of(&b->variants[0].cases[0]) / weights_of(s->c);
    if (!s->runs) {
        snprintf(r.note, sizeof r.note, "not timed: %.200s", s->why.message);
        return r;
    }
    r.n_samples = s->ms.n;
    r.ms = nmlp_samples_spread(&s->ms);
    r.rate = nmlp_samples_spread(&s->rate);
    r.probe = nmlp_samples_quantile(&s->probe, 0.5);
    fill_shares(&r, s);
    r.speedup = speedup_of(s, dense);
    r.ours_faster = s->planned ? 0.0 : speedup_of(ours, s);
    if (s->planned) {
        nmlp_str plan;
        nmlp_str_init(&plan);
        nmlp_mlp_describe_blocking(s->planned, rows, nmlp_pool_threads(b->options->pool), &plan);
        snprintf(r.note, sizeof r.note, "%s", nmlp_str_text(&plan));
        nmlp_str_fini(&plan);
    }
    return r;
}

static void measure_rows(struct bench *b, int64_t rows, nmlp_bench_mlp_result *results) {
    size_t n = b->n_variants * b->n_per_variant;
    for (size_t i = 0; i < n; i++) {
        struct subject *s = &b->subjects[i];
        s->ms.n = s->rate.n = s->probe.n = 0;
        verify(b, s, rows);
    }
    double end = nmlp_clock_seconds() + b->options->seconds * (double)n;
    for (int round = 0; round < NMLP_SAMPLES_MAX && (round < ROUNDS_MIN || nmlp_clock_seconds() < end); round++)
        for (size_t i = 0; i < n; i++)
            if (b->subjects[i].runs) sample(b, &b->subjects[i], rows, round);
    for (size_t i = 0; i < n; i++) results[i] = result_of(b, i, rows);
}

nmlp_status nmlp_bench_mlp_run(nmlp_bench_mlp_result **results, size_t *n_results,
                               const nmlp_bench_mlp_options *options, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    struct bench b = {.options = options};
    const nmlp_cpu *cpu = nmlp_cpu_get();
    *results = NULL;
    *n_results = 0;
    if (options->n_types < 1 || options->n_types > TYPES_MAX)
        return nmlp_fail(err, NMLP_E_ARG, "%zu types of weights, expected 1 to %d", options->n_types, TYPES_MAX);
    NMLP_TRY(nmlp_probe_create(&b.probe, options->pool, cpu, (size_t)COLD_BYTES, err));
    NMLP_TRY(prepare(&b, err));
    size_t n = b.n_variants * b.n_per_variant;
    *results = nmlp_mem_new(n * options->n_rows, sizeof **results, err);
    if (!*results) NMLP_TRY(NMLP_E_NOMEM);
    for (size_t i = 0; i < options->n_rows; i++) measure_rows(&b, options->rows[i], *results + i * n);
    *n_results = n * options->n_rows;
out:
    release(&b);
    return st;
}
