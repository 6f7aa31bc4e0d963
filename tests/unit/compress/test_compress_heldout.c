/* The measurement itself: held-out losses against a plain double-precision computation, work files against their own
 * contents. */
#include "lib/testing.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "compress/ranks/heldout.h"
#include "compress/factor/layer_file.h"
#include "compress/calibrate/hidden_states.h"
#include "engine/session.h"

enum { CONTEXT = 24, CALIB = 1, HELDOUT = 2 };

struct fixture {
    nmlp_model model;
    nmlp_engine *engine;
    nmlp_calib_windows windows;
};

static int set_up(void **state) {
    static struct fixture f;
    nmlp_err err;
    int32_t ids[(CALIB + HELDOUT) * CONTEXT];
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) ids[i] = (int32_t)(300 + (i * 7919) % 5000);
    nmlp_assert_ok(nmlp_model_open(&f.model, NMLP_TEST_ROOT "/models/tiny", &err), &err);
    nmlp_engine_options options = {.isa = "ref"};
    nmlp_assert_ok(nmlp_engine_create(&f.engine, &f.model, &options, &err), &err);
    nmlp_assert_ok(nmlp_calib_windows_cut(&f.windows, ids, sizeof ids / sizeof ids[0], CONTEXT, CALIB * CONTEXT,
                                          HELDOUT * CONTEXT, &err),
                   &err);
    *state = &f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    nmlp_calib_windows_fini(&f->windows);
    nmlp_engine_destroy(f->engine);
    nmlp_model_close(&f->model);
    return 0;
}

/* Log-probabilities [CONTEXT-1, V] of a window, in f64. */
static double *log_probabilities(const nmlp_engine *engine, const int32_t *ids) {
    nmlp_err err;
    int64_t vocab = nmlp_engine_model(engine)->config.vocab;
    nmlp_session *session;
    double *out = nmlp_mem_new((size_t)((CONTEXT - 1) * vocab), sizeof *out, &err);
    nmlp_assert_ok(nmlp_session_create(&session, engine, CONTEXT, 0, false, &err), &err);
    for (int t = 0; t < CONTEXT - 1; t++) {
        nmlp_assert_ok(nmlp_session_append(session, ids + t, 1, NULL, NULL, &err), &err);
        const float *logits = nmlp_session_last_logits(session);
        double sum = 0;
        for (int64_t i = 0; i < vocab; i++) sum += exp((double)logits[i]);
        for (int64_t i = 0; i < vocab; i++) out[t * vocab + i] = (double)logits[i] - log(sum);
    }
    nmlp_session_destroy(session);
    return out;
}

/* An MLP whose down projection is half of the original. */
static uint16_t *halved(const nmlp_view *w) {
    nmlp_err err;
    int64_t n = nmlp_view_elems(w);
    uint16_t *out = nmlp_mem_new((size_t)n, sizeof *out, &err);
    const uint16_t *from = w->data;
    for (int64_t i = 0; i < n; i++) out[i] = nmlp_f32_to_bf16(0.5f * nmlp_bf16_to_f32(from[i]));
    return out;
}

static void losses_equal_a_plain_computation(void **state) {
    struct fixture *f = *state;
    nmlp_heldout heldout;
    nmlp_loss loss, from_layer;
    nmlp_err err;
    int64_t vocab = f->model.config.vocab;
    int64_t last = f->model.config.n_layers - 1;
    const nmlp_layer *layer = &f->model.layers[last];
    nmlp_heldout_options options = {.n_probe = HELDOUT, .step = 1};
    nmlp_assert_ok(nmlp_heldout_create(&heldout, f->engine, &f->windows, &options, &err), &err);
    assert_true(fabs(heldout.dense.kl) < 1e-6);
    uint16_t *half = halved(&layer->mlp[NMLP_MLP_DOWN].w);
    nmlp_mlp_desc desc = {.gate = layer->mlp[0], .up = layer->mlp[1], .down = layer->mlp[2]};
    desc.down.w.data = half;
    double kl = 0, nll = 0;
    double *p[HELDOUT];
    for (int w = 0; w < HELDOUT; w++) p[w] = log_probabilities(f->engine, f->windows.ids + (CALIB + w) * CONTEXT);
    nmlp_assert_ok(nmlp_engine_set_mlp(f->engine, last, &desc, &err), &err);
    for (int w = 0; w < HELDOUT; w++) {
        const int32_t *ids = f->windows.ids + (CALIB + w) * CONTEXT;
        double *q = log_probabilities(f->engine, ids);
        for (int t = 0; t < CONTEXT - 1; t++) {
            nll -= q[t * vocab + ids[t + 1]];
            for (int64_t i = 0; i < vocab; i++)
                kl += exp(p[w][t * vocab + i]) * (p[w][t * vocab + i] - q[t * vocab + i]);
        }
        nmlp_mem_free(p[w]);
        nmlp_mem_free(q);
    }
    nmlp_assert_ok(nmlp_heldout_measure(&heldout, f->engine, 0, HELDOUT, NULL, &loss, &err), &err);
    nmlp_assert_ok(nmlp_heldout_measure(&heldout, f->engine, last, HELDOUT, NULL, &from_layer, &err), &err);
    nmlp_assert_ok(nmlp_engine_set_mlp(f->engine, last, NULL, &err), &err);
    assert_int_equal(loss.n_tokens, HELDOUT * (CONTEXT - 1));
    assert_true(kl / (double)loss.n_tokens > 0.01); /* the change is seen at all */
    /* logits of size 20 in f32 (2^-24 each) and an exponential good to 2e-7 */
    assert_true(fabs(loss.kl - kl / (double)loss.n_tokens) < 1e-4);
    assert_true(fabs(loss.nll - nll / (double)loss.n_tokens) < 1e-4);
    assert_true(fabs(loss.kl - from_layer.kl) < 1e-6);
    nmlp_mem_free(half);
    nmlp_heldout_destroy(&heldout);
}

/* An MLP that stands in for the last layer's. */
struct swap {
    nmlp_engine *engine;
    nmlp_mlp_desc desc;
    int64_t layer;
    int n_installed, n_removed;
};

static bool swap_changes(const void *ctx, int64_t layer) { return layer == ((const struct swap *)ctx)->layer; }

static nmlp_status swap_install(void *ctx, int64_t layer, nmlp_err *err) {
    struct swap *swap = ctx;
    swap->n_installed++;
    return nmlp_engine_set_mlp(swap->engine, layer, &swap->desc, err);
}

static void swap_remove(void *ctx, int64_t layer) {
    struct swap *swap = ctx;
    swap->n_removed++;
    (void)nmlp_engine_set_mlp(swap->engine, layer, NULL, NULL);
}

/* With every fifth position scored and the change brought by a stand-in: the plain computation at those positions. */
static void some_positions_and_overrides_equal_a_plain_computation(void **state) {
    enum { STEP = 5 };
    struct fixture *f = *state;
    nmlp_heldout heldout;
    nmlp_compress_times times = {0};
    nmlp_loss loss, dense;
    nmlp_err err;
    int64_t vocab = f->model.config.vocab;
    struct swap swap = {.engine = f->engine, .layer = f->model.config.n_layers - 1};
    const nmlp_layer *layer = &f->model.layers[swap.layer];
    uint16_t *half = halved(&layer->mlp[NMLP_MLP_DOWN].w);
    swap.desc = (nmlp_mlp_desc){.gate = layer->mlp[0], .up = layer->mlp[1], .down = layer->mlp[2]};
    swap.desc.down.w.data = half;
    double kl = 0, nll = 0;
    int n = 0;
    for (int w = 0; w < HELDOUT; w++) {
        const int32_t *ids = f->windows.ids + (CALIB + w) * CONTEXT;
        double *p = log_probabilities(f->engine, ids);
        nmlp_assert_ok(nmlp_engine_set_mlp(f->engine, swap.layer, &swap.desc, &err), &err);
        double *q = log_probabilities(f->engine, ids);
        nmlp_assert_ok(nmlp_engine_set_mlp(f->engine, swap.layer, NULL, &err), &err);
        for (int t = 0; t < CONTEXT - 1; t += STEP, n++) {
            nll -= q[t * vocab + ids[t + 1]];
            for (int64_t i = 0; i < vocab; i++) kl += exp(p[t * vocab + i]) * (p[t * vocab + i] - q[t * vocab + i]);
        }
        nmlp_mem_free(p);
        nmlp_mem_free(q);
    }
    nmlp_compress_times_stage(&times, NMLP_COMPRESS_STAGE_RANKS);
    nmlp_heldout_options options = {.n_probe = 1, .step = STEP, .times = &times};
    nmlp_mlp_overrides in = {.ctx = &swap, .changes = swap_changes, .install = swap_install, .remove = swap_remove};
    nmlp_assert_ok(nmlp_heldout_create(&heldout, f->engine, &f->windows, &options, &err), &err);
    nmlp_assert_ok(nmlp_heldout_measure(&heldout, f->engine, 0, HELDOUT, &in, &loss, &err), &err);
    nmlp_assert_ok(nmlp_heldout_measure(&heldout, f->engine, 0, HELDOUT, NULL, &dense, &err), &err);
    assert_true(swap.n_installed == 1 && swap.n_removed == 1);
    assert_int_equal(loss.n_tokens, n);
    assert_true(fabs(loss.kl - kl / n) < 1e-4 && fabs(loss.nll - nll / n) < 1e-4);
    assert_true(fabs(dense.kl) < 1e-6 && dense.nll == heldout.dense.nll); /* the engine is the dense model again */
    assert_true(times.seconds[NMLP_COMPRESS_STAGE_RANKS][NMLP_COMPRESS_WORK_FORWARD] > 0);
    assert_true(times.seconds[NMLP_COMPRESS_STAGE_RANKS][NMLP_COMPRESS_WORK_COMPARE] > 0);
    nmlp_mem_free(half);
    nmlp_heldout_destroy(&heldout);
}

/* A table whose row t is the embedding of token t + 1: what the engine says about a text of those tokens, scored as the
 * text that it is. */
static void another_embedding_is_scored_as_a_text_of_its_tokens(void **state) {
    struct fixture *f = *state;
    const int64_t vocab = f->model.config.vocab, hidden = f->model.config.hidden;
    nmlp_heldout heldout;
    nmlp_loss loss, same;
    nmlp_err err;
    double kl = 0, nll = 0, n = CONTEXT - 1;
    float *own = nmlp_mem_new((size_t)((vocab + 1) * hidden), sizeof *own, NULL); /* and the first one again */
    assert_true(f->model.config.embedding_scale == 1);
    nmlp_to_f32(own, f->model.embedding.data, f->model.embedding.dtype, (size_t)(vocab * hidden));
    memcpy(own + vocab * hidden, own, (size_t)hidden * sizeof *own);
    const int32_t *ids = f->windows.ids + CALIB * CONTEXT; /* of the first window */
    int32_t others[CONTEXT];
    for (int t = 0; t < CONTEXT; t++) others[t] = (int32_t)((ids[t] + 1) % vocab);
    double *p = log_probabilities(f->engine, ids), *q = log_probabilities(f->engine, others);
    for (int t = 0; t < CONTEXT - 1; t++) {
        nll -= q[t * vocab + ids[t + 1]];
        for (int64_t i = 0; i < vocab; i++) kl += exp(p[t * vocab + i]) * (p[t * vocab + i] - q[t * vocab + i]);
    }
    nmlp_heldout_options options = {.n_probe = 1, .step = 1};
    nmlp_assert_ok(nmlp_heldout_create(&heldout, f->engine, &f->windows, &options, &err), &err);
    nmlp_assert_ok(nmlp_heldout_measure_embedding(&heldout, f->engine, own + hidden, 1, &loss, &err), &err);
    nmlp_assert_ok(nmlp_heldout_measure_embedding(&heldout, f->engine, own, 1, &same, &err), &err);
    assert_true(kl / n > 0.1 && fabs(loss.kl - kl / n) < 1e-4 * (1 + kl / n) && fabs(loss.nll - nll / n) < 1e-3);
    assert_true(fabs(same.kl) < 1e-6);
    nmlp_mem_free(own);
    nmlp_mem_free(p);
    nmlp_mem_free(q);
    nmlp_heldout_destroy(&heldout);
}

static void wait_ms(double ms) {
    double until = nmlp_clock_seconds() + 1e-3 * ms;
    while (nmlp_clock_seconds() < until) continue;
}

/* Every second belongs to one cell of the table. */
static void times_are_booked_where_they_were_spent(void **state) {
    nmlp_compress_times t = {0};
    (void)state;
    double begin = nmlp_clock_seconds();
    nmlp_compress_times_stage(&t, NMLP_COMPRESS_STAGE_STATISTICS);
    nmlp_compress_work outer = nmlp_compress_times_enter(&t, NMLP_COMPRESS_WORK_PRODUCTS);
    wait_ms(2);
    nmlp_compress_work inner = nmlp_compress_times_enter(&t, NMLP_COMPRESS_WORK_EIGEN);
    wait_ms(4);
    nmlp_compress_times_enter(&t, inner);
    wait_ms(2);
    nmlp_compress_times_enter(&t, outer);
    nmlp_compress_times_stage(&t, NMLP_COMPRESS_STAGE_REFIT);
    nmlp_compress_times_enter(&t, NMLP_COMPRESS_WORK_FORWARD);
    wait_ms(3);
    nmlp_compress_times_stage(&t, NMLP_COMPRESS_STAGE_WRITE);
    double elapsed = nmlp_clock_seconds() - begin;
    assert_int_equal(inner, NMLP_COMPRESS_WORK_PRODUCTS);
    assert_true(t.seconds[NMLP_COMPRESS_STAGE_STATISTICS][NMLP_COMPRESS_WORK_PRODUCTS] >= 4e-3);
    assert_true(t.seconds[NMLP_COMPRESS_STAGE_STATISTICS][NMLP_COMPRESS_WORK_EIGEN] >= 4e-3);
    assert_true(nmlp_compress_times_of_work(&t, NMLP_COMPRESS_WORK_FORWARD) >= 3e-3);
    assert_true(nmlp_compress_times_of_work(&t, NMLP_COMPRESS_WORK_FORWARD) ==
                nmlp_compress_times_of_stage(&t, NMLP_COMPRESS_STAGE_REFIT) -
                    t.seconds[NMLP_COMPRESS_STAGE_REFIT][NMLP_COMPRESS_WORK_OTHER]);
    double all = nmlp_compress_times_of_stage(&t, NMLP_COMPRESS_STAGE_STATISTICS) +
                 nmlp_compress_times_of_stage(&t, NMLP_COMPRESS_STAGE_REFIT);
    assert_true(all <= elapsed && all >= 11e-3);
    assert_true(fabs(nmlp_compress_times_outside_forward(&t) +
                     nmlp_compress_times_of_work(&t, NMLP_COMPRESS_WORK_FORWARD) - all) < 1e-9);
    assert_int_equal(nmlp_compress_times_enter(NULL, NMLP_COMPRESS_WORK_FILES),
                     NMLP_COMPRESS_WORK_FILES); /* nobody asked */
}

static void nonfinite_rows_are_refused_with_layer_and_tensor(void **state) {
    float rows[6] = {1, 2, 3, 4, INFINITY, 6};
    nmlp_err err;
    (void)state;
    nmlp_assert_fails(nmlp_check_rows(rows, 2, 3, 5, "MLP output", &err), &err, NMLP_E_NUMERIC, "layer 5", "MLP output",
                      "token 1", "Inf", "channel 1", NULL);
}

/* A gate and up of rank 2 with a shared basis, and the model's own down. */
struct finished {
    char dir[64], path[128];
    uint16_t *u, *v;
    nmlp_layer_file file;
};

static void make_finished(struct finished *f, const nmlp_factors *dense) {
    int64_t rows = nmlp_factors_rows(&dense[0]), cols = nmlp_factors_cols(&dense[0]);
    nmlp_err err;
    nmlp_test_mkdtemp(f->dir, sizeof f->dir);
    snprintf(f->path, sizeof f->path, "%s/layer", f->dir);
    f->u = malloc((size_t)rows * 2 * sizeof *f->u);
    f->v = malloc((size_t)cols * 2 * sizeof *f->v);
    for (int64_t i = 0; i < 2 * rows; i++) f->u[i] = (uint16_t)(i + 1);
    for (int64_t i = 0; i < 2 * cols; i++) f->v[i] = (uint16_t)(9 * i);
    nmlp_factors joint = {.u = nmlp_view_2d(f->u, NMLP_DTYPE_BF16, rows, 2),
                          .v = nmlp_view_2d(f->v, NMLP_DTYPE_BF16, 2, cols)};
    f->file = (nmlp_layer_file){.ranks = {.rank = {2, 2, 0}, .joint = true},
                                .factors = {joint, joint, dense[NMLP_MLP_DOWN]},
                                .error = 0.25,
                                .error_before = 0.5};
    nmlp_assert_ok(nmlp_layer_file_write(f->path, 42, &f->file, NMLP_MODULE_MLP, dense, &err), &err);
}

static void free_finished(struct finished *f) {
    free(f->u);
    free(f->v);
    nmlp_test_rmdir(f->dir);
}

static nmlp_work_state state_of(const struct finished *f, uint64_t fingerprint, const nmlp_layer_ranks *ranks,
                                const nmlp_factors *dense) {
    nmlp_layer_file back;
    nmlp_work_state found;
    nmlp_err err;
    nmlp_assert_ok(nmlp_layer_file_open(&back, f->path, fingerprint, ranks, 1, NMLP_MODULE_MLP, dense, &found, &err),
                   &err);
    nmlp_layer_file_close(&back);
    return found;
}

static void layer_file_comes_back_and_not_for_another_job(void **state) {
    const nmlp_factors *dense = ((struct fixture *)*state)->model.layers[0].mlp;
    struct finished f;
    nmlp_layer_file back;
    nmlp_work_state found;
    nmlp_err err;
    make_finished(&f, dense);
    assert_int_equal(state_of(&f, 43, &f.file.ranks, dense), NMLP_WORK_OTHER);
    nmlp_assert_ok(nmlp_layer_file_open(&back, f.path, 42, &f.file.ranks, 1, NMLP_MODULE_MLP, dense, &found, &err),
                   &err);
    assert_int_equal(found, NMLP_WORK_VALID);
    assert_true(back.ranks.joint && back.ranks.rank[1] == 2 && back.error == 0.25);
    assert_memory_equal(back.factors[1].u.data, f.u, nmlp_view_bytes(&back.factors[1].u));
    assert_memory_equal(back.factors[0].v.data, f.v, nmlp_view_bytes(&back.factors[0].v));
    assert_ptr_equal(back.factors[0].v.data, back.factors[1].v.data); /* a shared basis is one tensor */
    nmlp_mlp_desc desc = nmlp_layer_file_mlp(&back, dense);
    assert_ptr_equal(desc.down.w.data, dense[NMLP_MLP_DOWN].w.data);
    nmlp_layer_file_close(&back);
    nmlp_layer_ranks other = {.rank = {4, 4, 0}, .joint = true};
    assert_int_equal(state_of(&f, 42, &other, dense), NMLP_WORK_DAMAGED);
    free_finished(&f);
}

/* Every byte changed, one at a time, and every length: never found, never read beyond its end. */
static void damaged_layer_file_is_not_found(void **state) {
    const nmlp_factors *dense = ((struct fixture *)*state)->model.layers[0].mlp;
    struct finished f;
    nmlp_str text;
    nmlp_err err;
    make_finished(&f, dense);
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, f.path, 1 << 20, &err), &err);
    for (size_t i = 0; i < text.len; i += i < 512 ? 1 : 97) {
        text.data[i] ^= 0x41;
        nmlp_test_write_file(f.path, text.data, text.len);
        assert_true(state_of(&f, 42, &f.file.ranks, dense) != NMLP_WORK_VALID);
        text.data[i] ^= 0x41;
    }
    for (size_t len = 0; len < text.len; len += len < 64 ? 1 : 211) {
        nmlp_test_write_file(f.path, text.data, len);
        assert_true(state_of(&f, 42, &f.file.ranks, dense) != NMLP_WORK_VALID);
    }
    nmlp_test_write_file(f.path, text.data, text.len);
    assert_int_equal(state_of(&f, 42, &f.file.ranks, dense), NMLP_WORK_VALID);
    nmlp_str_fini(&text);
    free_finished(&f);
}

/* Right checksum, wrong shape: what the header says is held against the model, not believed. */
static void layer_file_of_impossible_shape_is_not_found(void **state) {
    const nmlp_factors *dense = ((struct fixture *)*state)->model.layers[0].mlp;
    enum { FIRST_VIEW_WORD = 8, U_WORD = FIRST_VIEW_WORD + 3 };
    static const int64_t hostile[][3] = {{NMLP_DTYPE_BF16, INT64_MAX, 2},
                                         {NMLP_DTYPE_BF16, -4, -2},
                                         {NMLP_DTYPE_BF16, 4, 0},
                                         {77, 4, 2},
                                         {NMLP_DTYPE_F32, 1LL << 62, 4}};
    struct finished f;
    nmlp_str text;
    nmlp_err err;
    make_finished(&f, dense);
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, f.path, 1 << 20, &err), &err);
    int64_t *words = (int64_t *)(void *)text.data;
    assert_true(words[U_WORD] == NMLP_DTYPE_BF16 && words[U_WORD + 2] == 2); /* this is where they stand */
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        nmlp_work_writer writer;
        memcpy(words + U_WORD, hostile[i], sizeof hostile[i]);
        nmlp_assert_ok(nmlp_work_writer_open(&writer, f.path, "NMLPLAY3", 42, &err), &err);
        nmlp_assert_ok(nmlp_work_writer_put(&writer, text.data, text.len - 32, &err), &err);
        nmlp_assert_ok(nmlp_work_writer_commit(&writer, &err), &err);
        assert_int_equal(state_of(&f, 42, &f.file.ranks, dense), NMLP_WORK_DAMAGED);
    }
    nmlp_str_fini(&text);
    free_finished(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_equal_a_plain_computation),
        cmocka_unit_test(another_embedding_is_scored_as_a_text_of_its_tokens),
        cmocka_unit_test(some_positions_and_overrides_equal_a_plain_computation),
        cmocka_unit_test(times_are_booked_where_they_were_spent),
        cmocka_unit_test(nonfinite_rows_are_refused_with_layer_and_tensor),
        cmocka_unit_test(layer_file_comes_back_and_not_for_another_job),
        cmocka_unit_test(damaged_layer_file_is_not_found),
        cmocka_unit_test(layer_file_of_impossible_shape_is_not_found),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
