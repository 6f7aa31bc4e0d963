#include "trainium/sim/check.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "trainium/neuron/pack.h"
#include "trainium/sim/check_matrix.h"
#include "trainium/sim/check_mlp.h"

enum { ROWS_MAX = 16, CHUNK = 4096 };

typedef nmlp_check_matrix matrix;

typedef struct chain {
    matrix x, f[2], y; /* y = x f0 (f1) */
    bool x_transposed;
    int n_factors;
    int64_t s, o;
} chain;

static nmlp_status find_chain(chain *c, nmlp_values *v, const nmlp_program *p, nmlp_err *err) {
    *c = (chain){.n_factors = 1};
    c->x_transposed = nmlp_check_matrix_find(&c->x, v, p, "xT", 0, false, err);
    bool ok = c->x_transposed || nmlp_check_matrix_find(&c->x, v, p, "x", 0, false, err);
    ok = ok && (nmlp_check_matrix_find(&c->y, v, p, "y", 0, false, err) ||
                nmlp_check_matrix_find(&c->y, v, p, "yT", 0, true, err));
    if (ok && !nmlp_check_matrix_find(&c->f[0], v, p, "w", 0, false, err)) {
        c->n_factors = 2;
        ok = nmlp_check_matrix_find(&c->f[0], v, p, "u", 0, false, err) &&
             nmlp_check_matrix_find(&c->f[1], v, p, "v", 0, false, err);
    }
    if (!ok)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "program %s: no reference for its tensors; needs x or xT, w or u and v, y", p->name);
    c->s = c->y.rows;
    c->o = c->y.cols;
    return NMLP_OK;
}

static void release_chain(chain *c) {
    nmlp_check_matrix_fini(&c->x);
    nmlp_check_matrix_fini(&c->y);
    for (int i = 0; i < 2; i++) nmlp_check_matrix_fini(&c->f[i]);
}

/* Rows of different size, some not larger than the norm's epsilon: a kernel that forgets either computes other values.
 */
static float row_size(int64_t row) {
    static const float sizes[] = {3.0f, 1.0f, 0.25f, 0.001f};
    return sizes[row % 4];
}

/* Codes of FP8 use their range: normal numbers over sqrt(K) times this, which the scales take back. */
static double codes_per_unit(const nmlp_pack *pack) {
    return 64.0 * sqrt((double)(pack->k > pack->k_second ? pack->k : pack->k_second));
}

/* Scales of a packed tensor of FP8: from half to one and a half times what makes up for the size of its codes. */
static bool fill_scales(nmlp_values *v, const nmlp_program *p, int tensor, nmlp_rng *rng) {
    static const char suffix[] = "_scale";
    const nmlp_tensor *t = &p->tensors[tensor];
    size_t len = strlen(t->name), end = sizeof suffix - 1;
    char base[NMLP_NAME_MAX] = "";
    nmlp_pack pack;
    if (len <= end || len - end >= sizeof base || strcmp(t->name + len - end, suffix) != 0) return false;
    memcpy(base, t->name, len - end);
    if (t->dtype != NMLP_NC_FP32 || !nmlp_pack_find(p, base, &pack)) return false;
    float *scales = nmlp_values_tensor(v, tensor);
    for (int64_t i = 0; i < t->rows * t->cols; i++)
        scales[i] = (float)((0.5 + nmlp_rng_uniform(rng)) / codes_per_unit(&pack));
    return true;
}

/* Weights of a norm: around one. */
static bool fill_gain(nmlp_values *v, const nmlp_program *p, int tensor, nmlp_rng *rng) {
    const nmlp_tensor *t = &p->tensors[tensor];
    if (strcmp(t->name, NMLP_GAIN_TENSOR) != 0) return false;
    float *gain = nmlp_values_tensor(v, tensor);
    for (int64_t i = 0; i < t->rows * t->cols; i++) gain[i] = (float)(0.5 + nmlp_rng_uniform(rng));
    return true;
}

nmlp_status nmlp_check_fill(nmlp_values *v, const nmlp_program *p, uint64_t seed, nmlp_err *err) {
    float *chunk = nmlp_mem_new(CHUNK, sizeof *chunk, err);
    if (!chunk) return NMLP_E_NOMEM;
    int64_t epsilon;
    bool normed = nmlp_program_param(p, "norm_e12", &epsilon);
    for (size_t i = 0; i < p->n_tensors; i++) {
        const nmlp_tensor *t = &p->tensors[i];
        if (t->role != NMLP_ROLE_INPUT && t->role != NMLP_ROLE_WEIGHT) continue;
        nmlp_rng rng;
        nmlp_rng_seed(&rng, seed + i + 1);
        nmlp_pack pack = {.k = t->rows};
        nmlp_pack_find(p, t->name, &pack);
        if (fill_scales(v, p, (int)i, &rng) || fill_gain(v, p, (int)i, &rng)) continue;
        double scale =
            t->role == NMLP_ROLE_WEIGHT ? 1.0 / sqrt((double)(pack.k > pack.k_second ? pack.k : pack.k_second)) : 1.0;
        if (t->dtype == NMLP_NC_FP8) scale *= codes_per_unit(&pack);
        char *out = nmlp_values_tensor(v, (int)i);
        size_t elem = nmlp_nc_dtype_bytes(t->dtype);
        for (int64_t done = 0, n = t->rows * t->cols; done < n;) {
            int64_t count = n - done < CHUNK ? n - done : CHUNK;
            /* Sum of four 16-bit uniforms: close enough to normal, and fast for half a billion numbers. */
            for (int64_t j = 0; j < count; j++) {
                uint64_t r = nmlp_rng_next(&rng);
                double sum =
                    (double)(r & 0xffff) + (double)(r >> 16 & 0xffff) + (double)(r >> 32 & 0xffff) + (double)(r >> 48);
                chunk[j] = (float)((sum / 65536.0 - 2.0) * 1.7320508 * scale);
                if (normed && t->role == NMLP_ROLE_INPUT) chunk[j] *= row_size((done + j) / t->cols);
            }
            nmlp_from_f32(out + (size_t)done * elem, nmlp_nc_dtype_to_tensor(t->dtype), chunk, (size_t)count);
            done += count;
        }
    }
    nmlp_mem_free(chunk);
    return NMLP_OK;
}

typedef struct scratch {
    double *vec[3]; /* each as long as the longest side */
    float *row;
} scratch;

static nmlp_status scratch_new(scratch *s, const chain *c, nmlp_err *err) {
    int64_t longest = c->s > c->o ? c->s : c->o;
    for (int i = 0; i < c->n_factors; i++) longest = c->f[i].rows > longest ? c->f[i].rows : longest;
    *s = (scratch){0};
    for (int i = 0; i < 3; i++) s->vec[i] = nmlp_mem_new((size_t)longest, sizeof(double), err);
    s->row = nmlp_mem_new((size_t)longest, sizeof(float), err);
    return s->vec[0] && s->vec[1] && s->vec[2] && s->row ? NMLP_OK : NMLP_E_NOMEM;
}

static void scratch_free(scratch *s) {
    for (int i = 0; i < 3; i++) nmlp_mem_free(s->vec[i]);
    nmlp_mem_free(s->row);
}

/* vec[0] f0 (f1); returns the vector that holds the result. */
static double *through_factors(const chain *c, scratch *s) {
    nmlp_check_left_product(&c->f[0], s->vec[0], s->vec[1], s->row);
    if (c->n_factors == 1) return s->vec[1];
    nmlp_check_left_product(&c->f[1], s->vec[1], s->vec[2], s->row);
    return s->vec[2];
}

typedef struct row_job {
    const chain *c;
    scratch *scratch; /* per thread */
    int64_t rows[ROWS_MAX];
    double max_err[ROWS_MAX], max_want[ROWS_MAX];
    bool nan[ROWS_MAX];
} row_job;

static void check_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    row_job *job = ctx;
    const chain *c = job->c;
    scratch *s = &job->scratch[thread];
    for (int64_t i = begin; i < end; i++) {
        int64_t row = job->rows[i];
        for (int64_t h = 0; h < c->f[0].rows; h++)
            s->vec[0][h] = c->x_transposed ? nmlp_check_matrix_at(&c->x, h, row) : nmlp_check_matrix_at(&c->x, row, h);
        const double *want = through_factors(c, s);
        for (int64_t j = 0; j < c->o; j++) {
            double got = nmlp_check_matrix_at(&c->y, row, j), err = fabs(got - want[j]);
            if (isnan(got)) job->nan[i] = true;
            job->max_err[i] = fmax(job->max_err[i], err);
            job->max_want[i] = fmax(job->max_want[i], fabs(want[j]));
        }
    }
}

static int choose_rows(int64_t s, int64_t rows[ROWS_MAX]) {
    static const int64_t edges[] = {0, 127, 128, 129, 511, 512, 1023, 1024};
    nmlp_rng rng;
    int n = 0;
    nmlp_rng_seed(&rng, 7);
    if (s <= ROWS_MAX) {
        for (; n < s; n++) rows[n] = n;
        return n;
    }
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++)
        if (edges[i] < s) rows[n++] = edges[i];
    rows[n++] = s - 1;
    while (n < ROWS_MAX) rows[n++] = nmlp_rng_below(&rng, s);
    return n;
}

static void random_signs(double *t, int64_t n, uint64_t seed) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, seed);
    for (int64_t i = 0; i < n; i++) t[i] = nmlp_rng_next(&rng) & 1 ? 1.0 : -1.0;
}

/* |y t - x f t| over all rows, in units of sqrt(O). */
static double row_sum_error(const chain *c, scratch *s, double *square_sum) {
    double worst = 0, *t = s->vec[0], *sums = s->vec[1], *a = s->vec[2];
    random_signs(t, c->o, 11);
    *square_sum = 0;
    for (int64_t i = 0; i < c->s; i++) { /* got */
        double sum = 0;
        nmlp_check_matrix_row(&c->y, i, s->row);
        for (int64_t j = 0; j < c->o; j++)
            sum += (double)s->row[j] * t[j], *square_sum += (double)s->row[j] * (double)s->row[j];
        sums[i] = sum;
    }
    nmlp_check_right_product(&c->f[c->n_factors - 1], t, a, s->row);
    if (c->n_factors == 2) {
        nmlp_check_right_product(&c->f[0], a, t, s->row);
        memcpy(a, t, (size_t)c->f[0].rows * sizeof *a);
    }
    if (c->x_transposed)
        nmlp_check_left_product(&c->x, a, t, s->row);
    else
        nmlp_check_right_product(&c->x, a, t, s->row);
    for (int64_t i = 0; i < c->s; i++) worst = fmax(worst, isnan(sums[i]) ? INFINITY : fabs(sums[i] - t[i]));
    return worst / sqrt((double)c->o);
}

/* |s y - s x f| over all columns, in units of sqrt(S). */
static double col_sum_error(const chain *c, scratch *s) {
    double worst = 0;
    random_signs(s->vec[1], c->s, 13);
    if (c->x_transposed)
        nmlp_check_right_product(&c->x, s->vec[1], s->vec[0], s->row);
    else
        nmlp_check_left_product(&c->x, s->vec[1], s->vec[0], s->row);
    double *want = through_factors(c, s), *signs = s->vec[0], *got = want == s->vec[1] ? s->vec[2] : s->vec[1];
    random_signs(signs, c->s, 13);
    nmlp_check_left_product(&c->y, signs, got, s->row);
    for (int64_t j = 0; j < c->o; j++) worst = fmax(worst, isnan(got[j]) ? INFINITY : fabs(got[j] - want[j]));
    return worst / sqrt((double)c->s);
}

static void set_limits(nmlp_check_report *r, const chain *c) {
    double eps = c->y.dtype == NMLP_DTYPE_F32 ? 0x1p-24 : c->y.dtype == NMLP_DTYPE_BF16 ? 0x1p-9 : 0x1p-12;
    double roundings = 2, terms = 0;
    for (int i = 0; i < c->n_factors; i++) {
        roundings += ceil((double)c->f[i].rows / 128.0);
        terms += (double)c->f[i].rows;
    }
    r->limit = 4 * eps * sqrt(roundings) + 0x1p-24 * sqrt(terms) * 4;
    r->sum_limit = 6 * (eps * sqrt(roundings) + 0x1p-24 * sqrt(terms));
}

static void rate_rows(nmlp_check_report *r, const row_job *job) {
    double err = 0, want = 0;
    bool nan = false;
    for (int i = 0; i < r->n_rows; i++) {
        err = fmax(err, job->max_err[i]);
        want = fmax(want, job->max_want[i]);
        nan = nan || job->nan[i];
    }
    r->max_rel_err = nan ? INFINITY : want > 0 ? err / want : err;
}

nmlp_status nmlp_check_values(nmlp_check_report *r, nmlp_values *v, const nmlp_program *p, nmlp_pool *pool,
                              nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    chain c;
    int n_threads = nmlp_pool_threads(pool);
    row_job job = {.c = &c};
    double squares;
    *r = (nmlp_check_report){0};
    if (nmlp_check_is_mlp(p)) {
        int64_t n = 0;
        nmlp_program_param(p, "S", &n);
        int n_rows = choose_rows(n, job.rows);
        return nmlp_check_mlp(r, v, p, job.rows, n_rows, err);
    }
    st = find_chain(&c, v, p, err);
    if (st != NMLP_OK) {
        release_chain(&c);
        return st;
    }
    job.scratch = nmlp_mem_new((size_t)n_threads, sizeof *job.scratch, err);
    if (!job.scratch) NMLP_TRY(NMLP_E_NOMEM);
    for (int i = 0; i < n_threads; i++) NMLP_TRY(scratch_new(&job.scratch[i], &c, err));
    set_limits(r, &c);
    r->n_rows = choose_rows(c.s, job.rows);
    nmlp_pool_for(pool, r->n_rows, 1, check_rows, &job);
    rate_rows(r, &job);
    double row_err = row_sum_error(&c, &job.scratch[0], &squares);
    double rms = sqrt(squares / ((double)c.s * (double)c.o));
    r->sum_err = fmax(row_err, col_sum_error(&c, &job.scratch[0])) / (rms > 0 ? rms : 1.0);
    r->ok = r->max_rel_err <= r->limit && r->sum_err <= r->sum_limit;
out:
    for (int i = 0; job.scratch && i < n_threads; i++) scratch_free(&job.scratch[i]);
    nmlp_mem_free(job.scratch);
    release_chain(&c);
    return st;
}
