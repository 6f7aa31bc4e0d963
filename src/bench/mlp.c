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

enum { CHECK_ROWS = 3, ROUNDS_MIN = 3 };
static const double COLD_BYTES = 512e6;
static const double QUIET = 0.8;       /* of the best probe */
static const double PROBE_SHARE = 0.3; /* how long a probe is, of the sample before */

/* One way to run one MLP. */
struct subject {
    nmlp_peer peer;
    const struct variant *variant;
    nmlp_mlp *planned; /* ours: to ask for the plan */
    nmlp_err why;      /* not made or not right */
    bool runs;
    nmlp_samples ms;
    nmlp_samples rate;
    nmlp_samples probe;
};

/* One MLP: dense or of some rank. */
struct variant {
    nmlp_bench_case c;
    float *want; /* [CHECK_ROWS,H] from the portable set */
};

struct bench {
    const nmlp_bench_mlp_options *options;
    nmlp_probe *probe;
    struct variant *variants; /* dense first */
    size_t n_variants;
    struct subject *subjects; /* [variant][ours, peers...] */
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

/* Uniform of variance 1/k: activations keep their size through the layer. */
static nmlp_status random_weight(nmlp_view *view, int64_t n, int64_t k, nmlp_rng *rng, nmlp_err *err) {
    uint16_t *data = nmlp_mem_new((size_t)(n * k), sizeof *data, err);
    float scale = 3.46f / sqrtf((float)k);
    if (!data) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < n * k; i++) data[i] = nmlp_f32_to_bf16(((float)nmlp_rng_uniform(rng) - 0.5f) * scale);
    *view = nmlp_view_2d(data, NMLP_DTYPE_BF16, n, k);
    return NMLP_OK;
}

static nmlp_status random_factors(nmlp_factors *f, int64_t n, int64_t k, int64_t rank, nmlp_rng *rng, nmlp_err *err) {
    if (!rank) return random_weight(&f->w, n, k, rng, err);
    NMLP_RETURN_IF_FAILED(random_weight(&f->u, n, rank, rng, err));
    return random_weight(&f->v, rank, k, rng, err);
}

static void free_factors(nmlp_factors *f) {
    nmlp_mem_free((void *)(uintptr_t)f->w.data);
    nmlp_mem_free((void *)(uintptr_t)f->u.data);
    nmlp_mem_free((void *)(uintptr_t)f->v.data);
}

/* The truth of the first rows: the portable set, itself checked against float64 by the tests. */
static nmlp_status compute_want(struct variant *v, const float *x, nmlp_err *err) {
    nmlp_bench_case c = v->c;
    const nmlp_kernels *ref;
    nmlp_cpu no_cpu = {0};
    nmlp_peer peer;
    v->want = nmlp_mem_new((size_t)(CHECK_ROWS * c.hidden), sizeof *v->want, err);
    if (!v->want) return NMLP_E_NOMEM;
    c.n_copies = 1;
    c.s_max = CHECK_ROWS;
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select(&ref, &no_cpu, "ref", err));
    NMLP_RETURN_IF_FAILED(nmlp_peer_ours(&peer, &c, ref, err));
    peer.run(peer.ctx, 0, v->want, x, CHECK_ROWS);
    peer.destroy(peer.ctx);
    return NMLP_OK;
}

static nmlp_status make_variant(struct variant *v, const struct bench *b, int64_t rank, int64_t s_max, bool cold,
                                nmlp_err *err) {
    const nmlp_bench_mlp_options *o = b->options;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 1);
    v->c = (nmlp_bench_case){
        .hidden = o->hidden, .inner = o->inner, .rank = rank, .n_copies = 1, .s_max = s_max, .pool = o->pool};
    if (cold) v->c.n_copies += (int)(COLD_BYTES / (2.0 * weights_of(&v->c)));
    if (v->c.n_copies > NMLP_PEER_COPIES_MAX) v->c.n_copies = NMLP_PEER_COPIES_MAX;
    NMLP_RETURN_IF_FAILED(random_factors(&v->c.desc.gate, o->inner, o->hidden, rank, &rng, err));
    NMLP_RETURN_IF_FAILED(random_factors(&v->c.desc.up, o->inner, o->hidden, rank, &rng, err));
    NMLP_RETURN_IF_FAILED(random_factors(&v->c.desc.down, o->hidden, o->inner, rank, &rng, err));
    return compute_want(v, b->x, err);
}

/* ---- the subjects ---- */

/* A peer that cannot be made is reported, not fatal. */
static nmlp_status make_subjects(struct bench *b, const struct variant *v, struct subject *subjects, nmlp_err *err) {
    const nmlp_bench_mlp_options *o = b->options;
    NMLP_RETURN_IF_FAILED(nmlp_peer_ours(&subjects[0].peer, &v->c, o->kernels, err));
    NMLP_RETURN_IF_FAILED(nmlp_mlp_create(&subjects[0].planned, o->kernels, &v->c.desc, o->pool, err));
    for (size_t i = 0; i < o->n_peers; i++)
        if (o->peers[i]->make(&subjects[1 + i].peer, &v->c, &subjects[1 + i].why) != NMLP_OK)
            snprintf(subjects[1 + i].peer.name, sizeof subjects[1 + i].peer.name, "%s", o->peers[i]->name);
    for (size_t i = 0; i < b->n_per_variant; i++) subjects[i].variant = v;
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
    b->n_per_variant = o->n_peers + 1;
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
        free_factors(&b->variants[i].c.desc.gate);
        free_factors(&b->variants[i].c.desc.up);
        free_factors(&b->variants[i].c.desc.down);
        nmlp_mem_free(b->variants[i].want);
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
    nmlp_diff diff = nmlp_diff_f32(b->y, s->variant->want, n);
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
    nmlp_samples_add(&s->rate, weights_of(&s->variant->c) * work / seconds / 1e9);
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
    nmlp_bench_mlp_result r = {.rank = s->variant->c.rank, .rows = rows, .cold = rows <= NMLP_BENCH_COLD_ROWS};
    snprintf(r.name, sizeof r.name, "%s", s->peer.name);
    r.ideal_speedup = weights_of(&b->variants[0].c) / weights_of(&s->variant->c);
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
    r.ours_faster = s == ours ? 0.0 : speedup_of(ours, s);
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
