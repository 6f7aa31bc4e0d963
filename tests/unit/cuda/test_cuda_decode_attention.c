/* Attention of decode rows on the GPU against float64: texts that end around rounds, pages and chunks, rows that the
 * kernel rotates and appends itself and rows that are there already. Pages of a text are in random places, and what
 * lies behind a text in its last page is NaN. How a launch may run (keys read early or late, heads of a block) changes
 * no bit. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cuda/batch/batch_kernels.h"
#include "cuda/layout.h"
#include "lib/gpu.h"
#include "lib/testing.h"
#include "tensor/dtype.h"

enum { PAGE = NMLP_CUDA_PAGE_POSITIONS, DIM_MAX = 128, MANY = 1 << 20 };

static const int32_t n_keys[] = {1, 2, 63, 64, 65, 128, 191, 192, 193, 255, 256, 257, 500, 3000, 4500};
enum { TEXTS = sizeof n_keys / sizeof n_keys[0], PADDING = 6 /* this row has no sequence */, ROWS = TEXTS + 1 };

struct shape {
    int32_t dim;
    int32_t n_heads;
    int32_t n_kv_heads;
    bool appends;
    bool has_bias;
    bool has_norms;
};

/* Row r is of text r, past the padding of text r - 1. Text t has n_keys[t] keys, the row's own among them. */
struct problem {
    const struct shape *shape;
    int32_t table_pages;
    int32_t n_pages;
    int32_t qkv_pitch;
    int32_t sequence[ROWS];
    int32_t position[ROWS];
    int32_t *tables; /* [TEXTS, table_pages] */
    float *qkv, *bias, *q_norm, *k_norm, *rope;
    uint16_t *q, *k, *v; /* bf16: queries that are made already, pages */
    uint16_t *k_after, *v_after, *out, *first_out;
    size_t cache;   /* elements */
    size_t queries; /* elements */
    nmlp_cuda_paged_attention job;
    void *on_device[16];
    int n_on_device;
};

static float *random_f32(size_t n, float middle, float scale, nmlp_rng *rng) {
    float *to = nmlp_mem_new(n, sizeof *to, NULL);
    for (size_t i = 0; i < n; i++) to[i] = middle + scale * (float)nmlp_rng_normal(rng);
    return to;
}

static uint16_t *random_bf16(size_t n, float scale, nmlp_rng *rng) {
    uint16_t *to = nmlp_mem_new(n, sizeof *to, NULL);
    for (size_t i = 0; i < n; i++) to[i] = nmlp_f32_to_bf16(scale * (float)nmlp_rng_normal(rng));
    return to;
}

static int32_t text_of(int32_t row) { return row - (row > PADDING); }

static size_t element_of(const struct problem *p, int32_t text, int32_t kv_head, int32_t position) {
    const struct shape *s = p->shape;
    size_t page = (size_t)p->tables[text * p->table_pages + position / PAGE];
    return ((page * (size_t)s->n_kv_heads + (size_t)kv_head) * PAGE + (size_t)(position % PAGE)) * (size_t)s->dim;
}

static void shuffle_pages(struct problem *p, nmlp_rng *rng) {
    int32_t *page = nmlp_mem_new((size_t)p->n_pages, sizeof *page, NULL);
    for (int32_t i = 0; i < p->n_pages; i++) page[i] = i;
    for (int32_t i = p->n_pages - 1; i > 0; i--) {
        int32_t j = (int32_t)nmlp_rng_below(rng, (uint64_t)(i + 1));
        int32_t other = page[j];
        page[j] = page[i];
        page[i] = other;
    }
    for (int32_t t = 0, i = 0; t < TEXTS; t++)
        for (int32_t at = 0; at < n_keys[t]; at += PAGE) p->tables[t * p->table_pages + at / PAGE] = page[i++];
    nmlp_mem_free(page);
}

/* What no row may read: the row's own place, where the kernel fills it, and all behind it. */
static void spoil(struct problem *p) {
    const struct shape *s = p->shape;
    for (int32_t t = 0; t < TEXTS; t++) {
        int32_t first = n_keys[t] - s->appends;
        int32_t end = nmlp_cuda_divide_up(n_keys[t], PAGE) * PAGE;
        for (int32_t at = first; at < end; at++)
            for (int32_t h = 0; h < s->n_kv_heads; h++)
                for (int32_t d = 0; d < s->dim; d++)
                    p->k[element_of(p, t, h, at) + (size_t)d] = p->v[element_of(p, t, h, at) + (size_t)d] = 0x7fc0;
    }
}

/* NULL for NULL. */
static void *upload(struct problem *p, const void *from, size_t bytes) {
    void *to = NULL;
    if (!from) return NULL;
    assert_int_equal(cudaMalloc(&to, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    p->on_device[p->n_on_device++] = to;
    return to;
}

static void *zeros(struct problem *p, size_t bytes) {
    void *to = NULL;
    assert_int_equal(cudaMalloc(&to, bytes), cudaSuccess);
    assert_int_equal(cudaMemset(to, 0, bytes), cudaSuccess);
    p->on_device[p->n_on_device++] = to;
    return to;
}

static void make_inputs(struct problem *p) {
    const struct shape *s = p->shape;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 41);
    for (int32_t t = 0; t < TEXTS; t++) {
        int32_t pages = nmlp_cuda_divide_up(n_keys[t], PAGE);
        p->n_pages += pages;
        p->table_pages = nmlp_cuda_larger(p->table_pages, pages);
    }
    p->tables = nmlp_mem_new((size_t)(TEXTS * p->table_pages), sizeof *p->tables, NULL);
    shuffle_pages(p, &rng);
    for (int32_t r = 0; r < ROWS; r++) {
        p->sequence[r] = r == PADDING ? -1 : text_of(r);
        p->position[r] = r == PADDING ? 0 : n_keys[text_of(r)] - 1;
    }
    p->qkv_pitch = nmlp_cuda_pad((s->n_heads + 2 * s->n_kv_heads) * s->dim);
    p->cache = (size_t)(p->n_pages * s->n_kv_heads * PAGE * s->dim);
    p->queries = (size_t)(ROWS * s->n_heads * s->dim);
    p->qkv = random_f32((size_t)(ROWS * p->qkv_pitch), 0, 1, &rng);
    if (s->has_bias) p->bias = random_f32((size_t)p->qkv_pitch, 0, 1, &rng);
    if (s->has_norms) p->q_norm = random_f32((size_t)s->dim, 1, 0.1f, &rng);
    if (s->has_norms) p->k_norm = random_f32((size_t)s->dim, 1, 0.1f, &rng);
    p->rope = random_f32((size_t)(p->table_pages * PAGE * s->dim), 0, 0.7f, &rng);
    p->q = random_bf16(p->queries, 1.0f / sqrtf((float)s->dim), &rng);
    p->k = random_bf16(p->cache, 1, &rng);
    p->v = random_bf16(p->cache, 1, &rng);
    spoil(p);
}

static nmlp_cuda_paged_attention job_of(struct problem *p) {
    const struct shape *s = p->shape;
    size_t dim = (size_t)s->dim;
    size_t partial = (size_t)(ROWS * s->n_heads) * NMLP_CUDA_ATTENTION_CHUNKS_MAX * (dim + 2);
    size_t arrivals = (size_t)nmlp_cuda_batch_arrivals(ROWS, s->n_heads, s->n_kv_heads);
    return (nmlp_cuda_paged_attention){
        .rows = {.position = upload(p, p->position, sizeof p->position),
                 .sequence = upload(p, p->sequence, sizeof p->sequence)},
        .qkv = upload(p, p->qkv, (size_t)(ROWS * p->qkv_pitch) * sizeof *p->qkv),
        .bias = upload(p, p->bias, (size_t)p->qkv_pitch * sizeof *p->bias),
        .q_norm = upload(p, p->q_norm, dim * sizeof *p->q_norm),
        .k_norm = upload(p, p->k_norm, dim * sizeof *p->k_norm),
        .rope = upload(p, p->rope, (size_t)(p->table_pages * PAGE) * dim * sizeof *p->rope),
        .q = upload(p, p->q, p->queries * 2),
        .k_pages = upload(p, p->k, p->cache * 2),
        .v_pages = upload(p, p->v, p->cache * 2),
        .tables = upload(p, p->tables, (size_t)(TEXTS * p->table_pages) * sizeof *p->tables),
        .out = upload(p, p->out, p->queries * 2),
        .partial = zeros(p, partial * sizeof(float)),
        .arrived = zeros(p, arrivals * sizeof(uint32_t)),
        .eps = 1e-5f,
        .scale = 1.0f / sqrtf((float)s->dim),
        .n_rows = ROWS,
        .n_decode_rows = ROWS,
        .appends = s->appends,
        .n_chunks = NMLP_CUDA_ATTENTION_CHUNKS_MAX,
        .qkv_pitch = p->qkv_pitch,
        .out_pitch = s->n_heads * s->dim,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->dim,
        .table_pages = p->table_pages};
}

static void make(struct problem *p, const struct shape *s) {
    memset(p, 0, sizeof *p);
    p->shape = s;
    make_inputs(p);
    p->out = nmlp_mem_new(p->queries, sizeof *p->out, NULL);
    p->first_out = nmlp_mem_new(p->queries, sizeof *p->first_out, NULL);
    p->k_after = nmlp_mem_new(p->cache, sizeof *p->k_after, NULL);
    p->v_after = nmlp_mem_new(p->cache, sizeof *p->v_after, NULL);
    p->job = job_of(p);
}

static void discard(struct problem *p) {
    for (int i = 0; i < p->n_on_device; i++) cudaFree(p->on_device[i]);
    void *const all[] = {p->tables, p->qkv, p->bias,    p->q_norm,  p->k_norm, p->rope,     p->q,
                         p->k,      p->v,   p->k_after, p->v_after, p->out,    p->first_out};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) nmlp_mem_free(all[i]);
}

/* The result, and the pages afterwards. */
static void run(struct problem *p, bool settled, int32_t n_multiprocessors) {
    nmlp_cuda_paged_attention *job = &p->job;
    job->keys_settled = settled;
    job->asks_early = settled;
    job->n_multiprocessors = n_multiprocessors;
    assert_int_equal(cudaMemcpy(job->k_pages, p->k, p->cache * 2, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(job->v_pages, p->v, p->cache * 2, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemset(job->out, 0xff, p->queries * 2), cudaSuccess);
    assert_int_equal(nmlp_cuda_batch_decode_attention(job, NULL), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(p->out, job->out, p->queries * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaMemcpy(p->k_after, job->k_pages, p->cache * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaMemcpy(p->v_after, job->v_pages, p->cache * 2, cudaMemcpyDeviceToHost), cudaSuccess);
}

/* ---- float64 ---- */

static double bf16_of(double v) { return (double)nmlp_bf16_to_f32(nmlp_f32_to_bf16((float)v)); }

/* to [D]: head `head` of the queries, keys and values of a row, as attention takes it. */
static void make_head(const struct problem *p, double *to, int32_t row, int32_t head) {
    const struct shape *s = p->shape;
    const int32_t half = s->dim / 2;
    const float *norm = head < s->n_heads ? p->q_norm : p->k_norm;
    const float *angles = p->rope + (size_t)p->position[row] * (size_t)s->dim;
    bool is_v = head >= s->n_heads + s->n_kv_heads;
    double squares = 0;
    for (int32_t d = 0; d < s->dim; d++) {
        to[d] = (double)p->qkv[row * p->qkv_pitch + head * s->dim + d];
        if (p->bias) to[d] += (double)p->bias[head * s->dim + d];
        squares += to[d] * to[d];
    }
    double scale = 1 / sqrt(squares / s->dim + 1e-5);
    for (int32_t d = 0; d < s->dim && norm && !is_v; d++) to[d] *= scale * (double)norm[d];
    for (int32_t d = 0; d < half && !is_v; d++) {
        double x = to[d], y = to[d + half];
        to[d] = x * (double)angles[d] - y * (double)angles[d + half];
        to[d + half] = y * (double)angles[d] + x * (double)angles[d + half];
    }
    for (int32_t d = 0; d < s->dim; d++) to[d] = bf16_of(head < s->n_heads ? to[d] / sqrt(s->dim) : to[d]);
}

/* Key or value `at` of a text. */
static void read_cached(const struct problem *p, double *to, const uint16_t *pages, int32_t text, int32_t kv_head,
                        int32_t at) {
    size_t from = element_of(p, text, kv_head, at);
    for (int32_t d = 0; d < p->shape->dim; d++) to[d] = (double)nmlp_bf16_to_f32(pages[from + (size_t)d]);
}

/* want [D]: row of a text, one head. */
static void attend(const struct problem *p, double *want, int32_t row, int32_t head) {
    const struct shape *s = p->shape;
    int32_t text = text_of(row), kv_head = head / (s->n_heads / s->n_kv_heads), last = n_keys[text] - 1;
    double q[DIM_MAX], k[DIM_MAX], v[DIM_MAX];
    double sum = 0;
    if (s->appends) make_head(p, q, row, head);
    for (int32_t d = 0; d < s->dim && !s->appends; d++)
        q[d] = (double)nmlp_bf16_to_f32(p->q[(row * s->n_heads + head) * s->dim + d]);
    for (int32_t key = 0; key <= last; key++) {
        double score = 0;
        read_cached(p, k, p->k, text, kv_head, key);
        read_cached(p, v, p->v, text, kv_head, key);
        if (s->appends && key == last) {
            make_head(p, k, row, s->n_heads + kv_head);
            make_head(p, v, row, s->n_heads + s->n_kv_heads + kv_head);
        }
        for (int32_t d = 0; d < s->dim; d++) score += q[d] * k[d];
        double weight = exp(score); /* scores are small */
        sum += weight;
        for (int32_t d = 0; d < s->dim; d++) want[d] += weight * v[d];
    }
    for (int32_t d = 0; d < s->dim; d++) want[d] /= sum;
}

/* Off by how much of the norm; infinite where something is no number. */
static double distance(const uint16_t *got, const double *want, int32_t n) {
    double off = 0, size = 0;
    for (int32_t d = 0; d < n; d++) {
        double difference = (double)nmlp_bf16_to_f32(got[d]) - want[d];
        off += difference * difference;
        size += want[d] * want[d];
    }
    return isfinite(off) ? sqrt(off / size) : INFINITY;
}

/* Results are rounded to bf16, 2^-9 of each at most; an element of q or of the new key that float32 rounds the other
 * way moves scores by about as much. Doubled. */
static void check_rows(const struct problem *p) {
    const struct shape *s = p->shape;
    for (int32_t row = 0; row < ROWS; row++)
        for (int32_t head = 0; head < s->n_heads; head++) {
            const uint16_t *got = p->out + (row * s->n_heads + head) * s->dim;
            double want[DIM_MAX] = {0};
            if (row == PADDING) {
                for (int32_t d = 0; d < s->dim; d++) assert_int_equal(got[d], 0xffff);
                continue;
            }
            attend(p, want, row, head);
            double off = distance(got, want, s->dim);
            if (!(off <= 4 * 0x1p-9))
                fail_msg("D=%d heads=%d/%d, %d keys, head %d: off by %g of the norm", s->dim, s->n_heads, s->n_kv_heads,
                         n_keys[text_of(row)], head, off);
        }
}

/* New keys and values are in their places, and nothing else has changed. */
static void check_pages(struct problem *p) {
    const struct shape *s = p->shape;
    for (int32_t row = 0; row < ROWS && s->appends; row++)
        for (int32_t h = 0; h < s->n_kv_heads && row != PADDING; h++) {
            size_t at = element_of(p, text_of(row), h, p->position[row]);
            double want[DIM_MAX];
            make_head(p, want, row, s->n_heads + h);
            assert_true(distance(p->k_after + at, want, s->dim) <= 4 * 0x1p-9);
            make_head(p, want, row, s->n_heads + s->n_kv_heads + h);
            assert_true(distance(p->v_after + at, want, s->dim) <= 4 * 0x1p-9);
            memcpy(p->k_after + at, p->k + at, (size_t)s->dim * 2);
            memcpy(p->v_after + at, p->v + at, (size_t)s->dim * 2);
        }
    assert_memory_equal(p->k_after, p->k, p->cache * 2);
    assert_memory_equal(p->v_after, p->v, p->cache * 2);
}

/* Few multiprocessors: many heads a block; many: few. */
static void check_shape(const struct shape *s) {
    struct problem p;
    make(&p, s);
    run(&p, false, 1);
    memcpy(p.first_out, p.out, p.queries * 2);
    check_rows(&p);
    check_pages(&p);
    for (int i = 1; i < 4; i++) {
        run(&p, i & 1, i & 2 ? MANY : 1);
        assert_memory_equal(p.out, p.first_out, p.queries * 2);
        check_pages(&p);
    }
    discard(&p);
}

static void rows_that_are_appended_match_float64(void **state) {
    static const struct shape shapes[] = {
        {16, 4, 1, true, false, false}, {32, 8, 2, true, true, false},  {64, 8, 2, true, false, false},
        {64, 3, 1, true, false, true},  {64, 14, 2, true, true, false}, {128, 8, 2, true, false, true},
        {128, 3, 3, true, true, true},
    };
    (void)state;
    if (!nmlp_test_gpu()) skip();
    assert_int_equal(nmlp_cuda_batch_decode_attention_prepare(), cudaSuccess);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_shape(&shapes[i]);
}

static void rows_that_are_there_match_float64(void **state) {
    static const struct shape shapes[] = {
        {8, 4, 2, false, false, false},  {16, 4, 1, false, false, false},  {48, 6, 2, false, false, false},
        {64, 8, 2, false, false, false}, {128, 8, 1, false, false, false},
    };
    (void)state;
    if (!nmlp_test_gpu()) skip();
    assert_int_equal(nmlp_cuda_batch_decode_attention_prepare(), cudaSuccess);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_shape(&shapes[i]);
}

/* A row's bits do not change with its company: the same row with no other chunks in its grid. */
static void a_row_alone_has_the_same_bits(void **state) {
    static const struct shape shape = {64, 8, 2, true, false, false};
    struct problem p;
    (void)state;
    if (!nmlp_test_gpu()) skip();
    assert_int_equal(nmlp_cuda_batch_decode_attention_prepare(), cudaSuccess);
    make(&p, &shape);
    run(&p, true, 132);
    memcpy(p.first_out, p.out, p.queries * 2);
    p.job.n_decode_rows = PADDING; /* texts of one chunk */
    p.job.n_chunks = 1;
    run(&p, true, 132);
    assert_memory_equal(p.out, p.first_out, (size_t)(PADDING * shape.n_heads * shape.dim) * 2);
    discard(&p);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_are_appended_match_float64),
        cmocka_unit_test(rows_that_are_there_match_float64),
        cmocka_unit_test(a_row_alone_has_the_same_bits),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
