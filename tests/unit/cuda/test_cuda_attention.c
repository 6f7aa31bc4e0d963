/* Attention of prompts on the GPU against float64: every kernel, paged caches and caches in one piece, rows that end
 * inside a tile, a page, a step; what lies behind a text in its last page is NaN. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "cuda/prefill/attention_prefill_sm90.h"
#include "cuda/prefill/prefill.h"
#include "cuda/tensor_map.h"
#include "lib/gpu.h"
#include "lib/testing.h"
#include "tensor/dtype.h"

enum { TEXTS_MAX = 5, PAGE = NMLP_CUDA_PAGE_POSITIONS, CHECKED = 40, MULTIPROCESSORS = 132 };

struct text {
    int32_t before; /* positions that are in the cache already */
    int32_t n;
};

struct shape {
    int32_t dim;
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t multiprocessors; /* decides whether heads share blocks */
    struct text texts[TEXTS_MAX];
};

/* Device and host side of one case. Pages of a text are not neighbours. */
struct problem {
    const struct shape *shape;
    int n_texts;
    int32_t rows;
    int32_t table_pages;
    int32_t n_pages;
    int32_t n_tiles;
    int32_t *table;            /* [texts, table_pages] */
    uint16_t *q, *k, *v, *out; /* bf16 */
    nmlp_cuda_query_tile *tiles;
    void *on_device[6];
};

static uint16_t *random_bf16(size_t n, float scale, nmlp_rng *rng) {
    uint16_t *to = nmlp_mem_new(n, sizeof *to, NULL);
    for (size_t i = 0; i < n; i++) to[i] = nmlp_f32_to_bf16(scale * (float)nmlp_rng_normal(rng));
    return to;
}

static size_t element_of(const struct problem *p, int text, int32_t kv_head, int32_t position) {
    const struct shape *s = p->shape;
    size_t page = (size_t)p->table[text * p->table_pages + position / PAGE];
    return ((page * (size_t)s->n_kv_heads + (size_t)kv_head) * PAGE + (size_t)(position % PAGE)) * (size_t)s->dim;
}

/* Rows behind the end of every text. */
static void spoil(struct problem *p) {
    for (int t = 0; t < p->n_texts; t++) {
        int32_t end = p->shape->texts[t].before + p->shape->texts[t].n;
        for (int32_t position = end; position % PAGE; position++)
            for (int32_t h = 0; h < p->shape->n_kv_heads; h++)
                for (int32_t d = 0; d < p->shape->dim; d++)
                    p->k[element_of(p, t, h, position) + (size_t)d] = p->v[element_of(p, t, h, position) + (size_t)d] =
                        0x7fc0;
    }
}

static int32_t pages_of(struct text t) { return (t.before + t.n + PAGE - 1) / PAGE; }

static void number_pages(struct problem *p) {
    for (int t = 0; t < TEXTS_MAX && p->shape->texts[t].n; t++) {
        p->n_texts++;
        p->rows += p->shape->texts[t].n;
        p->n_pages += pages_of(p->shape->texts[t]);
        if (pages_of(p->shape->texts[t]) > p->table_pages) p->table_pages = pages_of(p->shape->texts[t]);
    }
    p->table = nmlp_mem_new((size_t)(p->n_texts * p->table_pages), sizeof *p->table, NULL);
    for (int t = 0, page = 0; t < p->n_texts; t++)
        for (int32_t i = 0; i < pages_of(p->shape->texts[t]); i++, page++)
            p->table[t * p->table_pages + i] = p->n_pages - 1 - page;
}

static void make_tiles(struct problem *p) {
    p->tiles = nmlp_mem_new((size_t)p->rows, sizeof *p->tiles, NULL);
    for (int t = 0, row = 0; t < p->n_texts; t++)
        for (int32_t i = 0; i < p->shape->texts[t].n; i += NMLP_CUDA_ATTENTION_TILE_ROWS) {
            int32_t n = nmlp_cuda_smaller(NMLP_CUDA_ATTENTION_TILE_ROWS, p->shape->texts[t].n - i);
            p->tiles[p->n_tiles++] = (nmlp_cuda_query_tile){row, n, p->shape->texts[t].before + i, t};
            row += n;
        }
}

static void *upload(const void *from, size_t bytes) {
    void *to = NULL;
    assert_int_equal(cudaMalloc(&to, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return to;
}

static void make(struct problem *p, const struct shape *s) {
    nmlp_rng rng;
    memset(p, 0, sizeof *p);
    p->shape = s;
    nmlp_rng_seed(&rng, 31);
    number_pages(p);
    make_tiles(p);
    size_t cache = (size_t)(p->n_pages * s->n_kv_heads * PAGE * s->dim);
    size_t queries = (size_t)(p->rows * s->n_heads * s->dim);
    p->q = random_bf16(queries, 1.5f / sqrtf((float)s->dim), &rng);
    p->k = random_bf16(cache, 1, &rng);
    p->v = random_bf16(cache, 1, &rng);
    p->out = nmlp_mem_new(queries, sizeof *p->out, NULL);
    memset(p->out, 0xff, queries * sizeof *p->out);
    spoil(p);
    p->on_device[0] = upload(p->q, queries * 2);
    p->on_device[1] = upload(p->k, cache * 2);
    p->on_device[2] = upload(p->v, cache * 2);
    p->on_device[3] = upload(p->out, queries * 2);
    p->on_device[4] = upload(p->table, (size_t)(p->n_texts * p->table_pages) * sizeof *p->table);
    p->on_device[5] = upload(p->tiles, (size_t)p->n_tiles * sizeof *p->tiles);
}

static void discard(struct problem *p) {
    for (int i = 0; i < 6; i++) cudaFree(p->on_device[i]);
    nmlp_mem_free(p->table);
    nmlp_mem_free(p->tiles);
    nmlp_mem_free(p->q);
    nmlp_mem_free(p->k);
    nmlp_mem_free(p->v);
    nmlp_mem_free(p->out);
}

/* want [D]: row `at` of a text, one head. */
static void attend(const struct problem *p, double *want, int text, int32_t at, int32_t row, int32_t head) {
    const struct shape *s = p->shape;
    const uint16_t *q = p->q + ((size_t)row * (size_t)s->n_heads + (size_t)head) * (size_t)s->dim;
    int32_t kv_head = head / (s->n_heads / s->n_kv_heads);
    double top = -INFINITY, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t key = 0; key <= s->texts[text].before + at; key++) {
            size_t from = element_of(p, text, kv_head, key);
            double score = 0;
            for (int32_t d = 0; d < s->dim; d++)
                score += (double)nmlp_bf16_to_f32(q[d]) * (double)nmlp_bf16_to_f32(p->k[from + (size_t)d]);
            if (pass == 0) {
                top = fmax(top, score);
                continue;
            }
            double weight = exp(score - top);
            sum += weight;
            for (int32_t d = 0; d < s->dim; d++) want[d] += weight * (double)nmlp_bf16_to_f32(p->v[from + (size_t)d]);
        }
    for (int32_t d = 0; d < s->dim; d++) want[d] /= sum;
}

/* Weights are rounded to bf16 before values are added, and so are results: 2^-9 each of the norm at most; doubled. */
static void check_row(const struct problem *p, int text, int32_t at, int32_t row, int32_t head, const char *what) {
    const struct shape *s = p->shape;
    const uint16_t *got = p->out + ((size_t)row * (size_t)s->n_heads + (size_t)head) * (size_t)s->dim;
    double want[128] = {0};
    double off = 0, size = 0;
    attend(p, want, text, at, row, head);
    for (int32_t d = 0; d < s->dim; d++) {
        double difference = (double)nmlp_bf16_to_f32(got[d]) - want[d];
        off += difference * difference;
        size += want[d] * want[d];
    }
    if (!(sqrt(off / size) <= 4 * 0x1p-9))
        fail_msg("%s D=%d heads=%d/%d text %d row %d head %d: off by %g of the norm", what, s->dim, s->n_heads,
                 s->n_kv_heads, text, at, head, sqrt(off / size));
}

/* First and last rows of every text, and some between. All elements are numbers. */
static void check(struct problem *p, const char *what) {
    const struct shape *s = p->shape;
    size_t n = (size_t)(p->rows * s->n_heads * s->dim);
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 7);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(p->out, p->on_device[3], n * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(nmlp_bf16_to_f32(p->out[i])))
            fail_msg("%s: element %zu is %g", what, i, (double)nmlp_bf16_to_f32(p->out[i]));
    for (int t = 0, first = 0; t < p->n_texts; first += s->texts[t++].n)
        for (int i = 0; i < CHECKED; i++) {
            int32_t last = s->texts[t].n - 1;
            int32_t at = i == 0 ? 0 : i < 4 ? last : (int32_t)nmlp_rng_below(&rng, s->texts[t].n);
            check_row(p, t, at, first + at, (int32_t)nmlp_rng_below(&rng, s->n_heads), what);
        }
    assert_int_equal(cudaMemset(p->on_device[3], 0xff, n * 2), cudaSuccess);
}

static nmlp_cuda_attention_sm90 hopper_job(const struct problem *p) {
    const struct shape *s = p->shape;
    int32_t rows = p->n_pages * s->n_kv_heads * PAGE;
    nmlp_cuda_attention_sm90 job = {.q = p->on_device[0],
                                    .out = p->on_device[3],
                                    .tables = p->on_device[4],
                                    .tiles = p->on_device[5],
                                    .table_pages = p->table_pages,
                                    .n_tiles = p->n_tiles,
                                    .out_pitch = s->n_heads * s->dim,
                                    .n_heads = s->n_heads,
                                    .n_kv_heads = s->n_kv_heads,
                                    .head_dim = s->dim,
                                    .n_multiprocessors = s->multiprocessors};
    nmlp_err err;
    nmlp_assert_ok(nmlp_cuda_tensor_map_make(&job.cache.k, p->on_device[1], rows, s->dim, s->dim, PAGE, &err), &err);
    nmlp_assert_ok(nmlp_cuda_tensor_map_make(&job.cache.v, p->on_device[2], rows, s->dim, s->dim, PAGE, &err), &err);
    return job;
}

static const struct shape shapes[] = {
    {64, 8, 2, MULTIPROCESSORS, {{0, 1}}},
    {64, 8, 2, MULTIPROCESSORS, {{63, 1}, {64, 2}, {5, 300}, {1000, 129}, {0, 128}}},
    {64, 8, 2, 1, {{0, 1}, {0, 64}, {0, 65}, {700, 77}, {0, 200}}}, /* two heads a block */
    {64, 6, 6, MULTIPROCESSORS, {{63, 1}, {64, 2}, {5, 300}, {300, 129}}},
    {64, 3, 1, MULTIPROCESSORS, {{0, 200}}},
    {128, 4, 2, MULTIPROCESSORS, {{63, 1}, {64, 2}, {5, 300}, {700, 129}, {0, 128}}},
    {128, 5, 1, MULTIPROCESSORS, {{0, 1}, {0, 65}}},
};

static void pages_on_hopper_match_float64(void **state) {
    (void)state;
    if (!nmlp_test_gpu() || !nmlp_cuda_attention_has_sm90(64)) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct problem p;
        make(&p, &shapes[i]);
        nmlp_cuda_attention_sm90 job = hopper_job(&p);
        assert_int_equal(nmlp_cuda_attention_sm90_launch(&job, NULL), cudaSuccess);
        check(&p, "pages, wgmma");
        discard(&p);
    }
}

/* Heads that share a block and heads that do not: a row's bits are the same. */
static void sharing_a_block_changes_no_bit(void **state) {
    static const struct shape shape = {64, 8, 2, MULTIPROCESSORS, {{77, 300}, {0, 130}}};
    struct problem p;
    (void)state;
    if (!nmlp_test_gpu() || !nmlp_cuda_attention_has_sm90(64)) skip();
    make(&p, &shape);
    size_t bytes = (size_t)(p.rows * shape.n_heads * shape.dim) * 2;
    uint16_t *first = nmlp_mem_new(1, bytes, NULL);
    nmlp_cuda_attention_sm90 job = hopper_job(&p);
    assert_int_equal(nmlp_cuda_attention_sm90_launch(&job, NULL), cudaSuccess);
    assert_int_equal(cudaMemcpy(first, p.on_device[3], bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    job.n_multiprocessors = 1;
    assert_int_equal(nmlp_cuda_attention_sm90_launch(&job, NULL), cudaSuccess);
    assert_int_equal(cudaMemcpy(p.out, p.on_device[3], bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_memory_equal(first, p.out, bytes);
    nmlp_mem_free(first);
    discard(&p);
}

/* A page of one kv head is a cache in one piece: 64 positions at most, so page 0 of a text of one page. */
static void one_piece_on_hopper_matches_float64(void **state) {
    static const struct shape small[] = {{64, 4, 2, MULTIPROCESSORS, {{13, 40}}}, {128, 4, 2, 1, {{0, 51}}}};
    (void)state;
    if (!nmlp_test_gpu() || !nmlp_cuda_attention_has_sm90(64)) skip();
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++) {
        struct problem p;
        make(&p, &small[i]);
        nmlp_cuda_attention_sm90 job = hopper_job(&p);
        job.tables = NULL;
        job.tiles = NULL;
        job.context = PAGE;
        job.n_rows = p.rows;
        job.position = small[i].texts[0].before;
        assert_int_equal(nmlp_cuda_attention_sm90_launch(&job, NULL), cudaSuccess);
        check(&p, "one piece, wgmma");
        discard(&p);
    }
}

static void pages_by_mma_match_float64(void **state) {
    (void)state;
    if (!nmlp_test_gpu()) skip();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *s = &shapes[i];
        struct problem p;
        make(&p, s);
        const nmlp_cuda_paged_attention a = {.q = p.on_device[0],
                                             .k_pages = p.on_device[1],
                                             .v_pages = p.on_device[2],
                                             .tables = p.on_device[4],
                                             .out = p.on_device[3],
                                             .tiles = p.on_device[5],
                                             .n_tiles = p.n_tiles,
                                             .n_rows = p.rows,
                                             .out_pitch = s->n_heads * s->dim,
                                             .n_heads = s->n_heads,
                                             .n_kv_heads = s->n_kv_heads,
                                             .head_dim = s->dim,
                                             .table_pages = p.table_pages};
        assert_int_equal(nmlp_cuda_batch_prompt_attention(&a, NULL), cudaSuccess);
        check(&p, "pages, mma");
        discard(&p);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_on_hopper_match_float64),
        cmocka_unit_test(sharing_a_block_changes_no_bit),
        cmocka_unit_test(one_piece_on_hopper_matches_float64),
        cmocka_unit_test(pages_by_mma_match_float64),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
