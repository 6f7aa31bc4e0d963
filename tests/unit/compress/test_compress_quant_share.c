/* Windows, sums, matrices and rows of a quantisation shared by processes: together what one process has, to the bit. */
#include "compress/quantize/quant_share.h"

#include "base/ints.h"
#include "base/rng.h"
#include "compress/calibrate/gram.h"
#include "compress/quantize/quant_sum.h"
#include "lib/testing.h"
#include "lib/thread_group.h"
#include "linalg/linalg.h"
#include "tensor/quant.h"

enum { CONTEXT = 6, CALIB = 7, TOGETHER = 3, HELDOUT = 3, K = 600, ROWS = 100, COLS = 64 };

static int32_t all_ids[(CALIB + HELDOUT) * CONTEXT]; /* 0, 1, 2, ... */
static const nmlp_calib_windows all = {.ids = all_ids, .context = CONTEXT, .n_calib = CALIB, .n_heldout = HELDOUT};

/* What a matrix sees in a window; of the model as it was where `dense`. */
static void fill_window(float *rows, int64_t window, bool dense) {
    nmlp_rng rng;
    nmlp_rng_seed(&rng, (uint64_t)(2 * window + dense));
    for (int i = 0; i < CONTEXT * K; i++) rows[i] = (float)nmlp_rng_normal(&rng);
}

struct shared {
    const char *isa;
    nmlp_quant_moments moments; /* of the owner, copied */
    nmlp_view view[THREAD_GROUP_MAX];
    nmlp_layer *layers; /* [members] */
    nmlp_config config;
    float w[ROWS * COLS];
    int32_t seen[(CALIB + HELDOUT) * CONTEXT]; /* how often an id was dealt */
    nmlp_arena arenas[THREAD_GROUP_MAX];
};

/* ---- sums ---- */

static void sum_windows(void *ctx, const nmlp_process_group *group) {
    struct shared *s = ctx;
    int owner = group->size - 1;
    nmlp_quant_share share;
    nmlp_quant_summer summer;
    nmlp_quant_sum sum;
    nmlp_arena arena;
    nmlp_err err;
    nmlp_arena_init(&arena);
    nmlp_assert_ok(nmlp_quant_share_init(&share, group, &all, &err), &err);
    nmlp_assert_ok(nmlp_quant_summer_init(&summer, &share, s->isa, NULL, &arena, &err), &err);
    assert_int_equal(summer.together, NMLP_GRAM_TOKENS / CONTEXT);
    summer.together = TOGETHER;
    nmlp_assert_ok(nmlp_quant_sum_init(&sum, &summer, K, true, &arena, &err), &err);
    for (int64_t t = 0; t < nmlp_quant_share_turns(&share, CALIB); t++) {
        if (t < share.own.n_calib) {
            int64_t window = share.own.ids[t * CONTEXT] / CONTEXT;
            assert_int_equal(window, t * group->size + group->rank);
            fill_window(sum.x, window, false);
            fill_window(sum.d, window, true);
        }
        nmlp_assert_ok(nmlp_quant_sum_add(&sum, &summer, nmlp_quant_share_in_turn(&share, CALIB, t), &err), &err);
    }
    nmlp_assert_ok(nmlp_quant_sum_finish(&sum, &summer, CALIB * CONTEXT, owner, &err), &err);
    if (group->rank == owner) {
        memcpy(s->moments.second[0], sum.second, K * K * sizeof(double));
        memcpy(s->moments.drift[0], sum.drift, K * K * sizeof(double));
    }
    nmlp_arena_fini(&arena);
    nmlp_quant_share_fini(&share);
}

/* Some windows after the others, all of each. */
static void sum_alone(const char *isa, double *second, double *drift) {
    static float x[TOGETHER * CONTEXT * K], d[TOGETHER * CONTEXT * K];
    const nmlp_kernels *kernels;
    nmlp_err err;
    nmlp_assert_ok(nmlp_kernels_select(&kernels, nmlp_cpu_get(), isa, &err), &err);
    memset(second, 0, K * K * sizeof *second);
    memset(drift, 0, K * K * sizeof *drift);
    for (int64_t first = 0; first < CALIB; first += TOGETHER) {
        int64_t n = nmlp_min(TOGETHER, CALIB - first);
        for (int64_t i = 0; i < n; i++) {
            fill_window(x + i * CONTEXT * K, first + i, false);
            fill_window(d + i * CONTEXT * K, first + i, true);
        }
        nmlp_assert_ok(nmlp_gram_add(kernels, NULL, second, x, n * CONTEXT, K, &err), &err);
        nmlp_assert_ok(nmlp_gram_add_cross(kernels, NULL, drift, d, x, n * CONTEXT, K, K, &err), &err);
    }
    for (int i = 0; i < K * K; i++) {
        second[i] /= CALIB * CONTEXT;
        drift[i] = drift[i] / (CALIB * CONTEXT) - second[i];
    }
    nmlp_gram_shrink(second, K, CALIB * CONTEXT);
}

static void sums_are_those_of_one_process(void **state) {
    static double want[2][K * K], got[2][K * K];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct shared *s = test_calloc(1, sizeof *s);
        s->isa = i ? "amx-emu" : "ref";
        s->moments = (nmlp_quant_moments){.second = {got[0]}, .drift = {got[1]}};
        sum_alone(s->isa, want[0], want[1]);
        for (int size = 1; size <= THREAD_GROUP_MAX; size++) {
            memset(got, 0, sizeof got);
            thread_group_run(size, sum_windows, s);
            assert_memory_equal(want, got, sizeof want);
        }
        test_free(s);
    }
}

/* ---- windows ---- */

static void deal_windows(void *ctx, const nmlp_process_group *group) {
    struct shared *s = ctx;
    nmlp_quant_share share;
    nmlp_err err;
    nmlp_assert_ok(nmlp_quant_share_init(&share, group, &all, &err), &err);
    for (int64_t i = 0; i < nmlp_calib_windows_tokens(&share.own); i++) s->seen[share.own.ids[i]]++;
    for (int64_t i = 0; i < share.own.n_heldout * CONTEXT; i++)
        assert_int_equal(share.own.ids[share.own.n_calib * CONTEXT + i],
                         (CALIB + nmlp_group_share(group, HELDOUT, group->rank)) * CONTEXT +
                             i); /* as nmlp_heldout shares them */
    nmlp_quant_share_fini(&share);
}

static void every_window_is_dealt_once(void **state) {
    (void)state;
    for (int size = 1; size <= THREAD_GROUP_MAX; size++) {
        struct shared *s = test_calloc(1, sizeof *s);
        thread_group_run(size, deal_windows, s);
        for (int i = 0; i < (CALIB + HELDOUT) * CONTEXT; i++) assert_int_equal(s->seen[i], 1);
        test_free(s);
    }
}

/* ---- rows and matrices ---- */

static nmlp_view quantised(nmlp_arena *arena, int zeros) {
    nmlp_quant_format format = {.dtype = NMLP_DTYPE_Q4, .group = 32, .zeros = zeros};
    nmlp_view view;
    nmlp_err err;
    nmlp_assert_ok(nmlp_quant_view_new(&view, arena, &format, ROWS, COLS, &err), &err);
    return view;
}

static void assert_same_view(const nmlp_view *a, const nmlp_view *b) {
    assert_memory_equal(a->data, b->data, nmlp_view_bytes(a));
    assert_memory_equal(a->scales, b->scales, nmlp_quant_scale_bytes(a));
    assert_int_equal(a->per_group != NULL, b->per_group != NULL);
    if (a->per_group) assert_memory_equal(a->per_group, b->per_group, (size_t)(ROWS * nmlp_quant_groups(a)));
}

static void round_rows(const nmlp_view *view, const float *w, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) nmlp_quant_row_from_f32(view, i, w + i * COLS);
}

static void share_rows(void *ctx, const nmlp_process_group *group) {
    struct shared *s = ctx;
    nmlp_quant_share share = {.group = group};
    nmlp_view *view = &s->view[group->rank];
    nmlp_err err;
    int64_t first = nmlp_quant_share_row(&share, ROWS, group->rank);
    assert_true(first % NMLP_GPTQ_ROWS == 0 || first == ROWS);
    *view = quantised(&s->arenas[group->rank], true);
    round_rows(view, s->w, first, nmlp_quant_share_row(&share, ROWS, group->rank + 1));
    nmlp_assert_ok(nmlp_quant_share_rows(&share, view, &err), &err);
}

/* A layer whose q, k and v share a basis, o is dense and stays as it is, and whose MLP is dense. */
static void make_layer(const struct shared *s, nmlp_layer *layer) {
    *layer = (nmlp_layer){.attention_shares_basis = true};
    nmlp_view plain = nmlp_view_2d(s->w, NMLP_DTYPE_F32, ROWS, COLS);
    for (int i = 0; i < NMLP_ATTENTION_O; i++) layer->attention[i].u = layer->attention[i].v = plain;
    layer->attention[NMLP_ATTENTION_O].w = plain;
    for (int i = 0; i < NMLP_MLP_MATRICES; i++) layer->mlp[i].w = plain;
}

static void share_layer(void *ctx, const nmlp_process_group *group) {
    struct shared *s = ctx;
    nmlp_quant_share share = {.group = group};
    nmlp_layer *layer = &s->layers[group->rank];
    nmlp_arena *arena = &s->arenas[group->rank];
    int owners[NMLP_QUANT_INPUTS];
    nmlp_err err;
    make_layer(s, layer);
    nmlp_quant_share_owners(&share, layer, &s->config, 0, owners);
    for (int i = 0; i < NMLP_QUANT_INPUTS; i++) assert_in_range(owners[i], 0, group->size - 1);
    assert_int_equal(owners[NMLP_QUANT_MLP_ACT], 0); /* the largest */
    if (group->size >= NMLP_QUANT_INPUTS)
        for (int i = 0; i < NMLP_QUANT_INPUTS; i++)
            for (int k = 0; k < i; k++) assert_int_not_equal(owners[i], owners[k]);
    if (group->rank == owners[NMLP_QUANT_ATTENTION_INPUT]) {
        nmlp_view v = quantised(arena, false);
        round_rows(&v, s->w, 0, ROWS);
        for (int i = 0; i < NMLP_ATTENTION_O; i++) layer->attention[i].v = v;
    }
    if (group->rank == owners[NMLP_QUANT_MLP_ACT]) {
        layer->mlp[NMLP_MLP_DOWN].w = quantised(arena, true);
        round_rows(&layer->mlp[NMLP_MLP_DOWN].w, s->w, 0, ROWS);
    }
    nmlp_assert_ok(nmlp_quant_share_layer(&share, layer, &s->config, 0, owners, arena, &err), &err);
}

static void check_layer(const struct shared *s, const nmlp_layer *layer) {
    nmlp_arena arena;
    nmlp_arena_init(&arena);
    nmlp_view with = quantised(&arena, true), without = quantised(&arena, false);
    round_rows(&with, s->w, 0, ROWS);
    round_rows(&without, s->w, 0, ROWS);
    assert_same_view(&without, &layer->attention[0].v);
    assert_same_view(&with, &layer->mlp[NMLP_MLP_DOWN].w);
    assert_ptr_equal(layer->attention[0].v.data, layer->attention[2].v.data); /* one v, as files store it once */
    assert_ptr_equal(layer->attention[0].u.data, s->w);
    assert_ptr_equal(layer->attention[NMLP_ATTENTION_O].w.data, s->w);
    assert_ptr_equal(layer->mlp[NMLP_MLP_GATE].w.data, s->w);
    nmlp_arena_fini(&arena);
}

static void rows_and_matrices_reach_every_process(void **state) {
    nmlp_rng rng;
    (void)state;
    nmlp_rng_seed(&rng, 5);
    for (int size = 1; size <= THREAD_GROUP_MAX; size++) {
        struct shared *s = test_calloc(1, sizeof *s);
        s->layers = test_calloc((size_t)size, sizeof *s->layers);
        s->config = (nmlp_config){.hidden = COLS, .intermediate = 4 * COLS, .n_heads = 2, .head_dim = COLS / 2};
        for (int i = 0; i < ROWS * COLS; i++) s->w[i] = (float)nmlp_rng_normal(&rng);
        thread_group_run(size, share_rows, s);
        nmlp_view want = quantised(&s->arenas[0], true);
        round_rows(&want, s->w, 0, ROWS);
        for (int k = 0; k < size; k++) assert_same_view(&want, &s->view[k]);
        thread_group_run(size, share_layer, s);
        for (int k = 0; k < size; k++) check_layer(s, &s->layers[k]);
        for (int k = 0; k < size; k++) nmlp_arena_fini(&s->arenas[k]);
        test_free(s->layers);
        test_free(s);
    }
}

static int load(void **state) {
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(nmlp_linalg_load(1, &err), &err);
    (void)nmlp_linalg_begin();
    for (int i = 0; i < (CALIB + HELDOUT) * CONTEXT; i++) all_ids[i] = i;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_one_process),
        cmocka_unit_test(every_window_is_dealt_once),
        cmocka_unit_test(rows_and_matrices_reach_every_process),
    };
    return cmocka_run_group_tests(tests, load, NULL);
}
