/* Factors of slices: what a checkpoint holds, a model with the products written out, and the parts of processes agree.
 */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "compress/factor/factor_file.h"
#include "compress/factor/factor_slices.h"
#include "lib/loaded_engine.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "model/expand.h"
#include "model/model_shard.h"
#include "model/slices.h"
#include "tensor/diff.h"

enum { SLICES = 4, WIDTH = TINY_INTERMEDIATE / SLICES, N = 12, RANK = 5 };

struct fixture {
    char sliced_dir[256], dense_dir[256];
    tiny_checkpoint sliced, dense;
};

static tiny_tensor *add_random(tiny_checkpoint *c, const char *name, int64_t rows, int64_t cols, nmlp_rng *rng) {
    tiny_tensor *t = tiny_add(c, name, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) t->data[i] = (float)(0.3 * nmlp_rng_normal(rng));
    return t;
}

static double product(const tiny_tensor *u, int64_t row, const tiny_tensor *v, int64_t first, int64_t col) {
    double sum = 0;
    for (int64_t k = 0; k < u->shape[1]; k++)
        sum += (double)u->data[row * u->shape[1] + k] * (double)v->data[(first + k) * v->shape[1] + col];
    return sum;
}

/* Random factors of every slice in `sliced`, the matrix they stand for in `dense`. */
static void slice_matrix(struct fixture *f, int layer, const char *matrix, const char *basis, nmlp_rng *rng) {
    char name[96];
    bool down = strcmp(matrix, "down_proj") == 0;
    snprintf(name, sizeof name, "model.layers.%d.mlp.%s.weight", layer, matrix);
    tiny_tensor *w = tiny_find(&f->dense, name);
    tiny_remove(&f->sliced, name);
    snprintf(name, sizeof name, "model.layers.%d.mlp.%s.u", layer, matrix);
    int64_t u_rows = down ? SLICES * TINY_HIDDEN : TINY_INTERMEDIATE;
    tiny_tensor *u = add_random(&f->sliced, name, u_rows, RANK, rng);
    snprintf(name, sizeof name, "model.layers.%d.mlp.%s.v", layer, basis);
    tiny_tensor *v = NULL;
    for (size_t i = 0; i < f->sliced.n; i++)
        if (strcmp(f->sliced.tensors[i].name, name) == 0) v = &f->sliced.tensors[i];
    if (!v) v = add_random(&f->sliced, name, SLICES * RANK, down ? WIDTH : TINY_HIDDEN, rng);
    for (int64_t i = 0; i < w->shape[0]; i++)
        for (int64_t j = 0; j < w->shape[1]; j++) {
            int64_t s = (down ? j : i) / WIDTH;
            double value =
                down ? product(u, s * TINY_HIDDEN + i, v, s * RANK, j % WIDTH) : product(u, i, v, s * RANK, j);
            w->data[i * w->shape[1] + j] = (float)value;
        }
}

static int setup(void **state) {
    struct fixture *f = nmlp_mem_new(1, sizeof *f, NULL);
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 17);
    nmlp_test_mkdtemp(f->sliced_dir, sizeof f->sliced_dir);
    nmlp_test_mkdtemp(f->dense_dir, sizeof f->dense_dir);
    tiny_init(&f->sliced, 5);
    tiny_init(&f->dense, 5);
    size_t len = strlen(f->sliced.config);
    snprintf(f->sliced.config + len - 1, sizeof f->sliced.config - len + 1,
             ",\"neuronmlp\":{\"version\":1,\"ratio\":0.2,\"tile\":1,\"slices\":%d}}", SLICES);
    /* layer 0: gate dense, up and down with factors; layer 1: a shared basis, down dense */
    slice_matrix(f, 0, "up_proj", "up_proj", &rng);
    slice_matrix(f, 0, "down_proj", "down_proj", &rng);
    slice_matrix(f, 1, "gate_proj", "gate_up_proj", &rng);
    slice_matrix(f, 1, "up_proj", "gate_up_proj", &rng);
    tiny_write(&f->sliced, f->sliced_dir, NMLP_DTYPE_F32);
    tiny_write(&f->dense, f->dense_dir, NMLP_DTYPE_F32);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    tiny_fini(&f->sliced);
    tiny_fini(&f->dense);
    nmlp_test_rmdir(f->sliced_dir);
    nmlp_test_rmdir(f->dense_dir);
    nmlp_mem_free(f);
    return 0;
}

static float *logits_of(const char *dir, const char *isa) {
    loaded_engine l;
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = (7 * i + 3) % TINY_VOCAB;
    loaded_engine_open(&l, dir, isa, 2);
    float *logits = loaded_engine_logits(&l, ids, N, 5);
    loaded_engine_close(&l);
    return logits;
}

/* Both in f32: products of thin factors instead of their product, sums of up to 48 terms, a condition of about 10. */
static const double tolerance = 2 * 4 * 64 * 10 * 0x1p-24;

static void the_engine_runs_slices_as_their_product(void **state) {
    const struct fixture *f = *state;
    static const char *const sets[] = {"ref", NULL};
    for (int i = 0; i < 2; i++) {
        float *got = logits_of(f->sliced_dir, sets[i]), *want = logits_of(f->dense_dir, sets[i]);
        nmlp_diff diff = nmlp_diff_f32(got, want, N * TINY_VOCAB);
        if (!(diff.rel_to_max < tolerance)) fail_msg("relative error %g, allowed %g", diff.rel_to_max, tolerance);
        nmlp_mem_free(got);
        nmlp_mem_free(want);
    }
}

static void expanding_and_counting(void **state) {
    const struct fixture *f = *state;
    nmlp_model sliced, expanded, dense;
    nmlp_err err;
    char out[300];
    int64_t bytes;
    snprintf(out, sizeof out, "%s/expanded", f->sliced_dir);
    nmlp_assert_ok(nmlp_model_open(&sliced, f->sliced_dir, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&dense, f->dense_dir, &err), &err);
    nmlp_model_size size = nmlp_model_measure(&sliced);
    assert_int_equal(size.mlp_params_dense, nmlp_model_measure(&dense).mlp_params);
    int64_t h = TINY_HIDDEN, i = TINY_INTERMEDIATE, matrix = h * i;
    assert_int_equal(size.mlp_params, 2 * matrix + 2 * RANK * (i + SLICES * h) + RANK * (2 * i + SLICES * h));
    nmlp_assert_ok(nmlp_model_expand(&sliced, out, NULL, NULL, &bytes, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&expanded, out, &err), &err);
    assert_false(expanded.config.compressed);
    for (int l = 0; l < TINY_LAYERS; l++)
        for (int m = 0; m < NMLP_MLP_MATRICES; m++) {
            const float *got = expanded.layers[l].mlp[m].w.data, *want = dense.layers[l].mlp[m].w.data;
            for (int64_t e = 0; e < matrix; e++) assert_true(fabsf(got[e] - want[e]) <= RANK * 4 * 0x1p-24f);
        }
    nmlp_model_close(&expanded);
    nmlp_model_close(&dense);
    nmlp_model_close(&sliced);
}

/* W [rows,cols] in f64, of factors or dense. */
static void multiply_out(double *w, const nmlp_factors *f) {
    int64_t rows = nmlp_factors_rows(f), cols = nmlp_factors_cols(f), rank = nmlp_factors_rank(f);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = nmlp_factors_is_dense(f) ? (double)((const float *)f->w.data)[i * cols + j] : 0;
            for (int64_t k = 0; k < rank; k++)
                sum +=
                    (double)((const float *)f->u.data)[i * rank + k] * (double)((const float *)f->v.data)[k * cols + j];
            w[i * cols + j] = sum;
        }
}

/* A process's part must be the part of the dense matrices: rows of gate and up, columns of down. */
static void processes_take_whole_slices(void **state) {
    const struct fixture *f = *state;
    nmlp_model sliced, dense;
    nmlp_err err;
    double got[TINY_HIDDEN * TINY_INTERMEDIATE];
    nmlp_assert_ok(nmlp_model_open(&sliced, f->sliced_dir, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&dense, f->dense_dir, &err), &err);
    int size = 2;
    for (int rank = 0; rank < size; rank++) {
        nmlp_model_shard *shard;
        char copy[TINY_HIDDEN * WIDTH * sizeof(float)];
        nmlp_assert_ok(nmlp_model_shard_create(&shard, &sliced, rank, size, NULL, NULL, &err), &err);
        for (int l = 0; l < TINY_LAYERS; l++) {
            const nmlp_layer *layer = &shard->model.layers[l];
            assert_int_equal(layer->slices, SLICES / size);
            for (int64_t s = 0; s < layer->slices; s++) {
                nmlp_factors mlp[NMLP_MLP_MATRICES];
                nmlp_layer_slice(mlp, layer, s, copy);
                int64_t first = (rank * layer->slices + s) * WIDTH;
                for (int m = 0; m < NMLP_MLP_MATRICES; m++) {
                    bool down = m == NMLP_MLP_DOWN;
                    const float *want = dense.layers[l].mlp[m].w.data;
                    multiply_out(got, &mlp[m]);
                    for (int64_t i = 0; i < (down ? TINY_HIDDEN : WIDTH); i++)
                        for (int64_t j = 0; j < (down ? WIDTH : TINY_HIDDEN); j++) {
                            double w = (double)(down ? want[i * TINY_INTERMEDIATE + first + j]
                                                     : want[(first + i) * TINY_HIDDEN + j]);
                            assert_true(fabs(got[i * (down ? WIDTH : TINY_HIDDEN) + j] - w) < 1e-6);
                        }
                }
            }
        }
        nmlp_model_shard_destroy(shard);
    }
    nmlp_model_shard *none;
    assert_int_equal(nmlp_model_shard_create(&none, &sliced, 0, 8, NULL, NULL, &err), NMLP_E_UNSUPPORTED);
    nmlp_model_close(&dense);
    nmlp_model_close(&sliced);
}

static void wrong_shapes_are_named(void **state) {
    struct fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    char *slices = strstr(f->sliced.config, "\"slices\":4");
    slices[9] = '2';
    tiny_write(&f->sliced, f->sliced_dir, NMLP_DTYPE_F32);
    assert_int_equal(nmlp_model_open(&model, f->sliced_dir, &err), NMLP_E_SHAPE);
    assert_non_null(strstr(err.message, "mlp.up_proj.v"));
    slices[9] = '5';
    tiny_write(&f->sliced, f->sliced_dir, NMLP_DTYPE_F32);
    assert_int_equal(nmlp_model_open(&model, f->sliced_dir, &err), NMLP_E_FORMAT);
    assert_non_null(strstr(err.message, "5 slices do not divide"));
}

/* Nested vectors of slices as block diagonal factors of a whole matrix, and from there as checkpoints have them. */
static void blocks_and_stacks_hold_the_same_matrix(void **state) {
    (void)state;
    enum { ROWS = 6, COLS = 7, S = 3, MOST = 4, K = 2 };
    nmlp_rng rng;
    nmlp_err err;
    nmlp_rng_seed(&rng, 23);
    for (int down = 0; down < 2; down++) {
        nmlp_nested parts[S], joined;
        const nmlp_nested *list[S];
        float ut[S][MOST * ROWS], v[S][MOST * COLS];
        double loss[S][8];
        for (int s = 0; s < S; s++) {
            for (int i = 0; i < MOST * ROWS; i++) ut[s][i] = (float)nmlp_rng_normal(&rng);
            for (int i = 0; i < MOST * COLS; i++) v[s][i] = (float)nmlp_rng_normal(&rng);
            for (int i = 0; i < 8; i++) loss[s][i] = 7 - i + s;
            parts[s] = (nmlp_nested){.rows = ROWS,
                                     .cols = COLS,
                                     .slices = 1,
                                     .rank = MOST,
                                     .full = 7,
                                     .ut = ut[s],
                                     .v = v[s],
                                     .loss = loss[s],
                                     .dtype = NMLP_DTYPE_F32};
            list[s] = &parts[s];
        }
        nmlp_assert_ok(nmlp_nested_join(&joined, list, S, &err), &err);
        assert_true(joined.loss[2] == (5 + 6 + 7));
        nmlp_factor_file file = {0};
        int matrix = down ? NMLP_MLP_DOWN : NMLP_MLP_GATE;
        file.nested[matrix] = joined;
        nmlp_factors dense[NMLP_MLP_MATRICES] = {0};
        nmlp_layer_ranks ranks = {0};
        ranks.rank[matrix] = K;
        nmlp_layer_mlp mlp;
        nmlp_assert_ok(nmlp_layer_mlp_build(&mlp, &file, dense, &ranks, NULL, &err), &err);
        const nmlp_factors *blocks = down ? &mlp.desc.down : &mlp.desc.gate;
        int64_t rows = down ? ROWS : S * ROWS, cols = down ? S * COLS : COLS;
        double whole[S * ROWS * S * COLS];
        assert_int_equal(nmlp_factors_rows(blocks), rows);
        assert_int_equal(nmlp_factors_cols(blocks), cols);
        multiply_out(whole, blocks);
        nmlp_layer stacked = {.slices = S};
        void *u = NULL, *w = NULL;
        nmlp_assert_ok(nmlp_slice_stack(&stacked.mlp[matrix], &u, &w, blocks, down, S, &err), &err);
        for (int64_t s = 0; s < S; s++) {
            nmlp_factors own[NMLP_MLP_MATRICES];
            double got[ROWS * COLS];
            nmlp_layer_slice(own, &stacked, s, NULL);
            multiply_out(got, &own[matrix]);
            for (int64_t i = 0; i < ROWS; i++)
                for (int64_t j = 0; j < COLS; j++) {
                    double want = 0;
                    for (int k = 0; k < K; k++) want += (double)ut[s][k * ROWS + i] * (double)v[s][k * COLS + j];
                    assert_true(fabs(got[i * COLS + j] - want) < 1e-5);
                    double there = down ? whole[i * cols + s * COLS + j] : whole[(s * ROWS + i) * cols + j];
                    assert_true(fabs(there - want) < 1e-5);
                }
        }
        nmlp_mem_free(u);
        nmlp_mem_free(w);
        nmlp_layer_mlp_fini(&mlp);
        nmlp_nested_fini(&joined);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_engine_runs_slices_as_their_product, setup, teardown),
        cmocka_unit_test_setup_teardown(expanding_and_counting, setup, teardown),
        cmocka_unit_test_setup_teardown(processes_take_whole_slices, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_shapes_are_named, setup, teardown),
        cmocka_unit_test(blocks_and_stacks_hold_the_same_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
