#define _GNU_SOURCE /* setenv */
/* bench_mlp: the gated MLP of this library beside oneDNN and OpenBLAS on the same shapes, one after the other in one
 * process, every sample between two readings of the probe. CSV on stdout.
 *
 * Usage: bench_mlp [--threads N] [--seconds T] [--rows S,S,...] [--shape H,I,R]... [--peers NAME,...]
 * Peers: avx512 avx2 amx ref openblas onednn-f32 onednn-bf16. R = 0 is dense. Up to 16 rows weights are cold: copies
 * rotate through 512 MB, and the probe is the bandwidth of memory; above it is the rate of arithmetic. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "peer.h"
#include "probe.h"
#include "stats.h"
#include "timer.h"
#include "tensor/diff.h"

enum { PEERS_MAX = 8, SHAPES_MAX = 8, ROWS_MAX = 16, COLD_ROWS = 16, CHECK_ROWS = 3 };
static const double COLD_BYTES = 512e6;

struct options {
    int n_threads;
    double seconds; /* per peer, shape and number of rows */
    int64_t rows[ROWS_MAX];
    int n_rows;
    int64_t shape[SHAPES_MAX][3];
    int n_shapes;
    const char *peers;
};

struct bench {
    struct options options;
    nmlp_pool *pool;
    nmlp_cpu cpu;
    nmlp_probe *probe;
    nmlp_bench_case c;
    nmlp_peer peer[PEERS_MAX];
    int n_peers;
    float *x;
    float *y;
    float *want; /* [CHECK_ROWS,H] from the portable set */
};

static double weights_of(const nmlp_bench_case *c) {
    double h = (double)c->hidden;
    double i = (double)c->inner;
    return c->rank ? 3.0 * (double)c->rank * (h + i) : 3.0 * h * i;
}

static nmlp_view random_weight(int64_t n, int64_t k, nmlp_rng *rng) {
    uint16_t *data = nmlp_mem_new((size_t)(n * k), sizeof *data, NULL);
    float scale = 3.46f / sqrtf((float)k); /* variance 1/k from a uniform number */
    for (int64_t i = 0; i < n * k; i++) data[i] = nmlp_f32_to_bf16(((float)nmlp_rng_uniform(rng) - 0.5f) * scale);
    return nmlp_view_2d(data, NMLP_DTYPE_BF16, n, k);
}

static nmlp_factors random_factors(int64_t n, int64_t k, int64_t rank, nmlp_rng *rng) {
    if (!rank) return (nmlp_factors){.w = random_weight(n, k, rng)};
    return (nmlp_factors){.u = random_weight(n, rank, rng), .v = random_weight(rank, k, rng)};
}

static void free_factors(nmlp_factors *f) {
    nmlp_mem_free((void *)(uintptr_t)f->w.data);
    nmlp_mem_free((void *)(uintptr_t)f->u.data);
    nmlp_mem_free((void *)(uintptr_t)f->v.data);
}

static bool wanted(const struct bench *b, const char *name) {
    char list[256];
    snprintf(list, sizeof list, ",%s,", b->options.peers);
    char item[64];
    snprintf(item, sizeof item, ",%s,", name);
    return strstr(list, item) != NULL;
}

static void add_peers(struct bench *b) {
    static const char *const sets[] = {"amx", "avx512", "avx2", "ref"};
    b->n_peers = 0;
    for (int i = 0; i < 4; i++)
        if (wanted(b, sets[i]) && nmlp_peer_ours(&b->peer[b->n_peers], &b->c, sets[i])) b->n_peers++;
#if defined(NMLP_BENCH_OPENBLAS)
    if (wanted(b, "openblas") && nmlp_peer_openblas(&b->peer[b->n_peers], &b->c)) b->n_peers++;
#endif
#if defined(NMLP_BENCH_ONEDNN)
    if (wanted(b, "onednn-f32") && nmlp_peer_onednn(&b->peer[b->n_peers], &b->c, NMLP_DTYPE_F32)) b->n_peers++;
    if (wanted(b, "onednn-bf16") && nmlp_peer_onednn(&b->peer[b->n_peers], &b->c, NMLP_DTYPE_BF16)) b->n_peers++;
#endif
}

/* Nobody is timed whose result is wrong. */
static bool verify(struct bench *b, nmlp_peer *peer, int64_t s) {
    size_t n = (size_t)((s < CHECK_ROWS ? s : CHECK_ROWS) * b->c.hidden);
    memset(b->y, 0, n * sizeof(float));
    peer->run(peer->ctx, 0, b->y, b->x, s);
    nmlp_diff diff = nmlp_diff_f32(b->y, b->want, n);
    double allowed = peer->bf16 ? 5e-2 : 1e-4;
    if (diff.rel_to_max <= allowed) return true;
    fprintf(stderr, "%s, S=%lld: off by %.2g of the largest value, %.2g allowed: not timed\n", peer->name, (long long)s,
            diff.rel_to_max, allowed);
    return false;
}

static double read_probe(struct bench *b, bool cold, bool bf16) {
    if (cold) return nmlp_probe_dram_gbs(b->probe);
    double fed = bf16 ? nmlp_probe_amx_fed_gflops(b->probe) : 0.0;
    return fed > 0.0 ? fed : nmlp_probe_fma_gflops(b->probe);
}

struct result {
    nmlp_samples ms;
    nmlp_samples rate;
    nmlp_samples ratio;
};

static void sample(struct bench *b, nmlp_peer *peer, int64_t s, int round, struct result *result) {
    bool cold = s <= COLD_ROWS;
    double before = read_probe(b, cold, peer->bf16);
    int n_threads = nmlp_pool_threads(b->pool);
    double begin = nmlp_bench_seconds(n_threads);
    peer->run(peer->ctx, round, b->y, b->x, s);
    double seconds = nmlp_bench_seconds(n_threads) - begin;
    double probe = (before + read_probe(b, cold, peer->bf16)) / 2.0;
    double work = cold ? peer->bytes_per_weight : 2.0 * (double)s;
    double rate = weights_of(&b->c) * work / seconds / 1e9;
    nmlp_samples_add(&result->ms, seconds * 1e3);
    nmlp_samples_add(&result->rate, rate);
    nmlp_samples_add(&result->ratio, rate / probe);
}

static void print_result(const struct bench *b, const nmlp_peer *peer, int64_t s, const struct result *r) {
    printf("%s,%lld,%lld,%lld,%lld,%d,%d,%.3f,%.3f,%.3f,%.1f,%s,%.3f,%.3f,%.3f\n", peer->name, (long long)b->c.hidden,
           (long long)b->c.inner, (long long)b->c.rank, (long long)s, nmlp_pool_threads(b->pool), r->ms.n,
           nmlp_samples_quantile(&r->ms, 0.5), nmlp_samples_quantile(&r->ms, 0.1), nmlp_samples_quantile(&r->ms, 0.9),
           nmlp_samples_quantile(&r->rate, 0.5), s <= COLD_ROWS ? "GB/s" : "GFLOP/s",
           nmlp_samples_quantile(&r->ratio, 0.5), nmlp_samples_quantile(&r->ratio, 0.1),
           nmlp_samples_quantile(&r->ratio, 0.9));
    fflush(stdout);
}

static void bench_rows(struct bench *b, int64_t s) {
    static struct result result[PEERS_MAX];
    bool runs[PEERS_MAX];
    memset(result, 0, sizeof result);
    for (int i = 0; i < b->n_peers; i++) runs[i] = verify(b, &b->peer[i], s);
    double end = nmlp_clock_seconds() + b->options.seconds * b->n_peers;
    for (int round = 0; round < NMLP_SAMPLES_MAX && (round < 3 || nmlp_clock_seconds() < end); round++)
        for (int i = 0; i < b->n_peers; i++)
            if (runs[i]) sample(b, &b->peer[i], s, round, &result[i]);
    for (int i = 0; i < b->n_peers; i++)
        if (runs[i]) print_result(b, &b->peer[i], s, &result[i]);
}

static void print_plan(const struct bench *b, int64_t s) {
    static const char *const sets[] = {"amx", "avx512", "avx2", "ref"};
    for (int i = 0; i < 4; i++) {
        const nmlp_kernels *kernels;
        nmlp_mlp *mlp;
        nmlp_str text;
        nmlp_err err;
        if (!wanted(b, sets[i]) || nmlp_kernels_select(&kernels, &b->cpu, sets[i], &err) != NMLP_OK ||
            nmlp_mlp_create(&mlp, kernels, &b->c.desc, b->pool, &err) != NMLP_OK)
            continue;
        nmlp_str_init(&text);
        nmlp_mlp_describe_plan(mlp, s, &text);
        fprintf(stderr, "plan S=%lld: %s\n", (long long)s, nmlp_str_text(&text));
        nmlp_str_fini(&text);
        nmlp_mlp_destroy(mlp);
    }
}

/* The truth of the first rows: the portable set, itself checked against float64 by the tests. */
static void compute_want(struct bench *b) {
    nmlp_peer ref;
    nmlp_bench_case c = b->c;
    c.n_copies = 1;
    c.s_max = CHECK_ROWS;
    if (!nmlp_peer_ours(&ref, &c, "ref")) exit(1);
    ref.run(ref.ctx, 0, b->want, b->x, CHECK_ROWS);
    ref.destroy(ref.ctx);
}

static void bench_shape(struct bench *b, const int64_t shape[3]) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 1);
    b->c = (nmlp_bench_case){.hidden = shape[0], .inner = shape[1], .rank = shape[2], .pool = b->pool, .cpu = &b->cpu};
    b->c.desc = (nmlp_mlp_desc){.gate = random_factors(shape[1], shape[0], shape[2], &rng),
                                .up = random_factors(shape[1], shape[0], shape[2], &rng),
                                .down = random_factors(shape[0], shape[1], shape[2], &rng)};
    b->c.n_copies = 1;
    b->c.s_max = CHECK_ROWS;
    for (int i = 0; i < b->options.n_rows; i++) {
        if (b->options.rows[i] > b->c.s_max) b->c.s_max = b->options.rows[i];
        if (b->options.rows[i] <= COLD_ROWS) b->c.n_copies = 1 + (int)(COLD_BYTES / (2.0 * weights_of(&b->c)));
    }
    size_t n = (size_t)(b->c.s_max * shape[0]);
    b->x = nmlp_mem_new(n, sizeof(float), NULL);
    b->y = nmlp_mem_new(n, sizeof(float), NULL);
    b->want = nmlp_mem_new((size_t)(CHECK_ROWS * shape[0]), sizeof(float), NULL);
    for (size_t i = 0; i < n; i++) b->x[i] = (float)nmlp_rng_uniform(&rng) - 0.5f;
    compute_want(b);
    add_peers(b);
    for (int i = 0; i < b->options.n_rows; i++) {
        print_plan(b, b->options.rows[i]);
        bench_rows(b, b->options.rows[i]);
    }
    for (int i = 0; i < b->n_peers; i++) b->peer[i].destroy(b->peer[i].ctx);
    free_factors(&b->c.desc.gate);
    free_factors(&b->c.desc.up);
    free_factors(&b->c.desc.down);
    nmlp_mem_free(b->x);
    nmlp_mem_free(b->y);
    nmlp_mem_free(b->want);
}

static int parse_list(const char *text, int64_t *out, int max) {
    int n = 0;
    while (n < max && *text) {
        char *end;
        out[n++] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
        if (end == text && *end) return -1;
    }
    return n;
}

static bool parse(struct options *o, int argc, char **argv) {
    *o = (struct options){
        .seconds = 1.0, .rows = {1, 8, 128, 512}, .n_rows = 4, .peers = "amx,avx512,openblas,onednn-f32,onednn-bf16"};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            o->n_threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seconds") == 0)
            o->seconds = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--rows") == 0)
            o->n_rows = parse_list(argv[i + 1], o->rows, ROWS_MAX);
        else if (strcmp(argv[i], "--peers") == 0)
            o->peers = argv[i + 1];
        else if (strcmp(argv[i], "--shape") == 0 && o->n_shapes < SHAPES_MAX &&
                 parse_list(argv[i + 1], o->shape[o->n_shapes], 3) == 3)
            o->n_shapes++;
        else
            return false;
    }
    if (o->n_shapes == 0) {
        static const int64_t usual[3][3] = {{2048, 8192, 0}, {2048, 8192, 1280}, {2048, 8192, 768}};
        memcpy(o->shape, usual, sizeof usual);
        o->n_shapes = 3;
    }
    return argc % 2 == 1 && o->n_rows > 0;
}

int main(int argc, char **argv) {
    nmlp_err err = {.message = ""};
    struct bench b = {.n_peers = 0};
    if (!parse(&b.options, argc, argv)) {
        fprintf(stderr,
                "usage: bench_mlp [--threads N] [--seconds T] [--rows S,...] [--shape H,I,R]... [--peers NAME,...]\n");
        return 2;
    }
    b.cpu = nmlp_cpu_detect();
    if (nmlp_pool_create(&b.pool, b.options.n_threads, &err) != NMLP_OK) {
        fprintf(stderr, "bench_mlp: %s\n", err.message);
        return 1;
    }
    char threads[16];
    snprintf(threads, sizeof threads, "%d", nmlp_pool_threads(b.pool));
    setenv("OMP_NUM_THREADS", threads, 1); /* oneDNN's threads are OpenMP's; read at its first use */
    if (nmlp_probe_create(&b.probe, b.pool, &b.cpu, (size_t)COLD_BYTES, &err) != NMLP_OK) {
        fprintf(stderr, "bench_mlp: %s\n", err.message);
        return 1;
    }
    printf(
        "peer,hidden,inner,rank,rows,threads,samples,ms_median,ms_p10,ms_p90,rate_median,unit,ratio_median,ratio_p10,"
        "ratio_p90\n");
    for (int i = 0; i < b.options.n_shapes; i++) bench_shape(&b, b.options.shape[i]);
    nmlp_probe_destroy(b.probe);
    nmlp_pool_destroy(b.pool);
    return 0;
}
