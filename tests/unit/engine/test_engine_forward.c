/* The forward pass against a float64 decoder, and its invariants. */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "engine/session.h"
#include "lib/loaded_engine.h"
#include "lib/reference_forward.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "tensor/diff.h"

enum { N = 50 };

/* f32 roundings through two layers: each reduction of up to 64 terms carries at most 64 * 2^-24 relative to its
 * absolute sum; four such in a row per layer with a condition of about 10. */
static const double tolerance = 2 * 4 * 64 * 10 * 0x1p-24;

struct fixture {
    char dir[256];
    tiny_checkpoint c;
    int32_t ids[N];
};

static int setup(void **state) {
    struct fixture *f = nmlp_mem_new(1, sizeof *f, NULL);
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 9);
    nmlp_test_mkdtemp(f->dir, sizeof f->dir);
    tiny_init(&f->c, 5);
    for (int i = 0; i < N; i++) f->ids[i] = (int32_t)nmlp_rng_below(&rng, TINY_VOCAB);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    tiny_fini(&f->c);
    nmlp_test_rmdir(f->dir);
    nmlp_mem_free(f);
    return 0;
}

static void check_against_reference(struct fixture *f, nmlp_dtype dtype) {
    loaded_engine l;
    double want[N * TINY_VOCAB];
    tiny_write(&f->c, f->dir, dtype);
    loaded_engine_open(&l, f->dir, NULL, 2);
    reference_forward(&l.model, f->ids, N, want);
    float *got = loaded_engine_logits(&l, f->ids, N, 16);
    nmlp_diff diff = nmlp_diff_f64(got, want, N * TINY_VOCAB);
    if (!(diff.rel_to_max < tolerance)) fail_msg("relative error %g, allowed %g", diff.rel_to_max, tolerance);
    nmlp_mem_free(got);
    loaded_engine_close(&l);
}

static void logits_equal_a_float64_decoder(void **state) {
    check_against_reference(*state, NMLP_DTYPE_F32);
    check_against_reference(*state, NMLP_DTYPE_BF16);
    check_against_reference(*state, NMLP_DTYPE_F16);
}

static void qkv_biases_and_norms_are_applied(void **state) {
    struct fixture *f = *state;
    nmlp_rng rng;
    nmlp_rng_seed(&rng, 4);
    static const char *const parts[] = {"q_proj.bias", "k_proj.bias",   "v_proj.bias",
                                        "o_proj.bias", "q_norm.weight", "k_norm.weight"};
    static const int64_t sizes[] = {32, 16, 16, 32, 8, 8};
    for (int l = 0; l < TINY_LAYERS; l++) {
        for (int i = 0; i < 6; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.self_attn.%s", l, parts[i]);
            tiny_tensor *t = tiny_add(&f->c, name, sizes[i], 0);
            for (int64_t j = 0; j < sizes[i]; j++) t->data[j] = (float)(0.5 * nmlp_rng_normal(&rng));
        }
    }
    /* Qwen3 with attention_bias has all six */
    snprintf(f->c.config, sizeof f->c.config,
             "{\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":48,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"
             "\"vocab_size\":64,\"max_position_embeddings\":128,\"rope_theta\":10000.0,\"attention_bias\":true,"
             "\"neuronmlp\":{\"version\":1},\"tie_word_embeddings\":true}");
    check_against_reference(f, NMLP_DTYPE_F32);
}

static void factorised_mlps_equal_a_float64_decoder(void **state) {
    struct fixture *f = *state;
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 0, "gate_proj", 5, NULL);
    tiny_factorise(&f->c, 0, "up_proj", 7, NULL);
    tiny_factorise(&f->c, 0, "down_proj", 3, NULL);
    tiny_factorise(&f->c, 1, "gate_proj", 9, NULL);
    tiny_factorise(&f->c, 1, "up_proj", 9, NULL);
    /* layer 1 shares a basis, its down stays dense */
    tiny_remove(&f->c, "model.layers.1.mlp.up_proj.v");
    snprintf(tiny_find(&f->c, "model.layers.1.mlp.gate_proj.v")->name, 96, "model.layers.1.mlp.gate_up_proj.v");
    check_against_reference(f, NMLP_DTYPE_F32);
    check_against_reference(f, NMLP_DTYPE_BF16);
}

/* Layer 0 has factors of its own for q, k and o and a dense v, layer 1 a v that q, k and v share. */
static void factorise_attention(struct fixture *f) {
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 0, "q_proj", 9, NULL);
    tiny_factorise(&f->c, 0, "k_proj", 5, NULL);
    tiny_factorise(&f->c, 0, "o_proj", 11, NULL);
    tiny_factorise(&f->c, 1, "q_proj", 13, NULL);
    tiny_factorise(&f->c, 1, "k_proj", 13, NULL);
    tiny_factorise(&f->c, 1, "v_proj", 13, NULL);
    tiny_remove(&f->c, "model.layers.1.self_attn.k_proj.v");
    tiny_remove(&f->c, "model.layers.1.self_attn.v_proj.v");
    snprintf(tiny_find(&f->c, "model.layers.1.self_attn.q_proj.v")->name, 96, "model.layers.1.self_attn.qkv_proj.v");
}

static void factorised_attention_equals_a_float64_decoder(void **state) {
    struct fixture *f = *state;
    factorise_attention(f);
    check_against_reference(f, NMLP_DTYPE_F32);
    check_against_reference(f, NMLP_DTYPE_BF16);
}

static void biases_of_factorised_attention_are_applied_once(void **state) {
    factorise_attention(*state);
    qkv_biases_and_norms_are_applied(state);
}

/* Activations are rounded to 2^-16 of the largest of 32, so that a product of K terms errs by at most K 2^-17 of the
 * largest weight times the largest activation; four in a row per layer with a condition of about 10. */
static const double quant_tolerance = 2 * 4 * 10 * 8 * 0x1p-17 + 2 * 4 * 64 * 10 * 0x1p-24;

static void check_quantised(struct fixture *f, nmlp_dtype dtype, int group) {
    loaded_engine l;
    double want[N * TINY_VOCAB];
    tiny_write_quantised(&f->c, f->dir, dtype, group);
    loaded_engine_open(&l, f->dir, NULL, 2);
    assert_int_equal(l.model.embedding.dtype, dtype);
    assert_int_equal(l.model.layers[1].attention[NMLP_ATTENTION_Q].w.dtype, dtype);
    reference_forward(&l.model, f->ids, N, want);
    float *got = loaded_engine_logits(&l, f->ids, N, 16);
    nmlp_diff diff = nmlp_diff_f64(got, want, N * TINY_VOCAB);
    if (!(diff.rel_to_max < quant_tolerance))
        fail_msg("%s: relative error %g, allowed %g", nmlp_dtype_name(dtype), diff.rel_to_max, quant_tolerance);
    float *again = loaded_engine_logits(&l, f->ids, N, 1);
    assert_memory_equal(again, got, sizeof(float) * N * TINY_VOCAB);
    nmlp_mem_free(again);
    nmlp_mem_free(got);
    loaded_engine_close(&l);
}

static void quantised_weights_equal_a_float64_decoder(void **state) {
    struct fixture *f = *state;
    check_quantised(f, NMLP_DTYPE_Q8, 0);
    check_quantised(f, NMLP_DTYPE_Q6, 0);
    check_quantised(f, NMLP_DTYPE_Q6M, 16);
    check_quantised(f, NMLP_DTYPE_Q5M, 16);
    check_quantised(f, NMLP_DTYPE_Q4M, 16);
    check_quantised(f, NMLP_DTYPE_Q4, 32);
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 0, "gate_proj", 32, NULL);
    tiny_factorise(&f->c, 0, "down_proj", 32, NULL);
    tiny_factorise(&f->c, 1, "up_proj", 7, NULL);
    check_quantised(f, NMLP_DTYPE_Q8, 0);
    check_quantised(f, NMLP_DTYPE_Q6, 0);
    check_quantised(f, NMLP_DTYPE_Q6M, 16);
    check_quantised(f, NMLP_DTYPE_Q5M, 16);
    check_quantised(f, NMLP_DTYPE_Q4M, 16);
    check_quantised(f, NMLP_DTYPE_Q4, 32);
}

static void results_depend_neither_on_chunks_nor_on_threads(void **state) {
    struct fixture *f = *state;
    loaded_engine one;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_BF16);
    loaded_engine_open(&one, f->dir, NULL, 1);
    float *want = loaded_engine_logits(&one, f->ids, N, N);
    for (int threads = 2; threads <= 4; threads++) {
        loaded_engine many;
        loaded_engine_open(&many, f->dir, NULL, threads);
        float *got = loaded_engine_logits(&many, f->ids, N, N);
        assert_memory_equal(got, want, N * TINY_VOCAB * sizeof *got);
        nmlp_mem_free(got);
        loaded_engine_close(&many);
    }
    for (int64_t chunk = 1; chunk < N; chunk += 13) {
        float *got = loaded_engine_logits(&one, f->ids, N, chunk);
        assert_memory_equal(got, want, N * TINY_VOCAB * sizeof *got);
        nmlp_mem_free(got);
    }
    nmlp_mem_free(want);
    loaded_engine_close(&one);
}

static void truncating_forgets(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    float want[TINY_VOCAB];
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 1);
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, N, 8, false, &err), &err);
    nmlp_assert_ok(nmlp_session_append(session, f->ids, 20, NULL, NULL, &err), &err);
    nmlp_assert_ok(nmlp_session_append(session, f->ids + 20, 1, NULL, NULL, &err), &err);
    memcpy(want, nmlp_session_last_logits(session), sizeof want);
    nmlp_assert_ok(nmlp_session_append(session, f->ids + 30, 15, NULL, NULL, &err), &err);
    assert_memory_not_equal(nmlp_session_last_logits(session), want, sizeof want);
    nmlp_session_truncate(session, 20);
    assert_int_equal(nmlp_session_length(session), 20);
    nmlp_assert_ok(nmlp_session_append(session, f->ids + 20, 1, NULL, NULL, &err), &err);
    assert_memory_equal(nmlp_session_last_logits(session), want, sizeof want);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

static void limits_are_refused_without_a_trace(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    int32_t bad[2] = {1, TINY_VOCAB};
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 1);
    nmlp_assert_fails(nmlp_session_create(&session, l.engine, 129, 0, false, &err), &err, NMLP_E_LIMIT, "129", "128",
                      NULL);
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, 10, 0, false, &err), &err);
    nmlp_assert_fails(nmlp_session_append(session, f->ids, 11, NULL, NULL, &err), &err, NMLP_E_LIMIT, "11", "10", NULL);
    nmlp_assert_fails(nmlp_session_append(session, bad, 2, NULL, NULL, &err), &err, NMLP_E_ARG, "64", "position 1",
                      NULL);
    assert_int_equal(nmlp_session_length(session), 0);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

struct seen {
    double attention_input[TINY_LAYERS];
    double attention_mixed[TINY_LAYERS];
    double input[TINY_LAYERS];
    double output[TINY_LAYERS];
    double worst; /* |act - silu(gate)*up| */
    int64_t rows;
};

static void see_input(void *ctx, int64_t layer, const float *x, int64_t s) {
    struct seen *seen = ctx;
    seen->rows += layer == 0 ? s : 0;
    for (int64_t i = 0; i < s * TINY_HIDDEN; i++) seen->input[layer] += (double)x[i] * (double)x[i];
}

static void see_attention_input(void *ctx, int64_t layer, const float *x, int64_t s) {
    struct seen *seen = ctx;
    for (int64_t i = 0; i < s * TINY_HIDDEN; i++) seen->attention_input[layer] += (double)x[i] * (double)x[i];
}

static void see_attention_mixed(void *ctx, int64_t layer, const float *x, int64_t s) {
    struct seen *seen = ctx;
    for (int64_t i = 0; i < s; i++) seen->attention_mixed[layer] += fabs((double)x[i]);
}

static void see_inside(void *ctx, int64_t layer, const float *gate, const float *up, const float *act, int64_t s) {
    struct seen *seen = ctx;
    (void)layer;
    for (int64_t i = 0; i < s * TINY_INTERMEDIATE; i++) {
        double want = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
        seen->worst = fmax(seen->worst, fabs(want - (double)act[i]));
    }
}

static void see_output(void *ctx, int64_t layer, const float *y, int64_t s) {
    struct seen *seen = ctx;
    for (int64_t i = 0; i < s * TINY_HIDDEN; i++) seen->output[layer] += fabs((double)y[i]);
}

static void observers_see_every_row_and_change_nothing(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    struct seen seen = {0};
    nmlp_observer observer = {.ctx = &seen,
                              .attention_input = see_attention_input,
                              .attention_mixed = see_attention_mixed,
                              .mlp_input = see_input,
                              .mlp_inside = see_inside,
                              .mlp_output = see_output};
    float plain[TINY_VOCAB];
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 2);
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, N, 16, true, &err), &err);
    nmlp_assert_ok(nmlp_session_append(session, f->ids, N, NULL, NULL, &err), &err);
    memcpy(plain, nmlp_session_last_logits(session), sizeof plain);
    nmlp_session_truncate(session, 0);
    nmlp_session_set_observer(session, &observer);
    nmlp_assert_ok(nmlp_session_append(session, f->ids, N, NULL, NULL, &err), &err);
    assert_true(nmlp_diff_f32(nmlp_session_last_logits(session), plain, TINY_VOCAB).rel_to_max < tolerance);
    assert_int_equal(seen.rows, N);
    assert_true(seen.worst < 1e-5);
    for (int i = 0; i < TINY_LAYERS; i++) {
        assert_true(seen.input[i] > 0 && seen.output[i] > 0);
        assert_true(seen.attention_input[i] > 0 && seen.attention_mixed[i] > 0);
    }
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

/* Everything matrices see comes as ever; the layer ends there. */
static void a_layer_for_its_inputs_alone_ends_at_the_last(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    struct seen seen[2] = {0};
    float rows[2][N * TINY_HIDDEN];
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 2);
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, N, N, true, &err), &err);
    for (int i = 0; i < 2; i++) {
        nmlp_observer observer = {.ctx = &seen[i],
                                  .attention_input = see_attention_input,
                                  .attention_mixed = see_attention_mixed,
                                  .mlp_input = see_input,
                                  .mlp_inside = see_inside,
                                  .mlp_output = see_output,
                                  .inputs_only = i == 1};
        nmlp_assert_ok(nmlp_session_embed(session, f->ids, N, rows[i], &err), &err);
        nmlp_session_set_observer(session, &observer);
        nmlp_session_run_layer(session, 1, rows[i], 0, N);
    }
    assert_true(seen[0].attention_input[1] > 0 && seen[0].attention_mixed[1] > 0 && seen[0].input[1] > 0);
    assert_true(seen[0].output[1] > 0 && seen[1].output[1] == 0);
    assert_true(seen[1].attention_input[1] == seen[0].attention_input[1]);
    assert_true(seen[1].attention_mixed[1] == seen[0].attention_mixed[1]);
    assert_true(seen[1].input[1] == seen[0].input[1]);
    assert_true(seen[1].worst == seen[0].worst);
    assert_memory_not_equal(rows[0], rows[1], sizeof rows[0]);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

/* Only weights of the checkpoint may leave memory once they are packed: the system would hand out zeros for others. */
static void the_memory_of_a_stand_in_is_left_alone(void **state) {
    enum { PAGE = 4096 };
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 2);
    nmlp_layer other = l.model.layers[0];
    nmlp_view *q = &other.attention[NMLP_ATTENTION_Q].w; /* [32,32]: a page */
    assert_int_equal(nmlp_view_bytes(q), PAGE);
    float *own = aligned_alloc(PAGE, PAGE);
    memcpy(own, q->data, PAGE);
    q->data = own;
    nmlp_assert_ok(nmlp_engine_set_attention(l.engine, 0, &other, &err), &err);
    assert_memory_equal(own, l.model.layers[0].attention[NMLP_ATTENTION_Q].w.data, PAGE);
    nmlp_assert_ok(nmlp_engine_set_attention(l.engine, 0, NULL, &err), &err);
    free(own);
    loaded_engine_close(&l);
}

static void an_attention_is_replaced_and_comes_back(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 2);
    size_t bytes = (size_t)(N * l.model.config.vocab) * sizeof(float);
    float *want = loaded_engine_logits(&l, f->ids, N, N);
    nmlp_assert_ok(nmlp_engine_set_attention(l.engine, 0, &l.model.layers[0], &err), &err);
    float *same = loaded_engine_logits(&l, f->ids, N, N);
    nmlp_assert_ok(nmlp_engine_set_attention(l.engine, 0, &l.model.layers[1], &err), &err);
    float *other = loaded_engine_logits(&l, f->ids, N, N);
    nmlp_assert_ok(nmlp_engine_set_attention(l.engine, 0, NULL, &err), &err);
    float *back = loaded_engine_logits(&l, f->ids, N, N);
    assert_memory_equal(same, want, bytes);
    assert_memory_not_equal(other, want, bytes);
    assert_memory_equal(back, want, bytes);
    nmlp_mem_free(want);
    nmlp_mem_free(same);
    nmlp_mem_free(other);
    nmlp_mem_free(back);
    loaded_engine_close(&l);
}

static void a_layer_at_a_time_gives_the_same_states(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    float want[TINY_VOCAB];
    float rows[N * TINY_HIDDEN];
    float last[TINY_HIDDEN];
    float got[TINY_VOCAB];
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 1);
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, N, N, false, &err), &err);
    nmlp_assert_ok(nmlp_session_append(session, f->ids, N, NULL, NULL, &err), &err);
    memcpy(want, nmlp_session_last_logits(session), sizeof want);
    nmlp_assert_ok(nmlp_session_embed(session, f->ids, N, rows, &err), &err);
    for (int64_t layer = 0; layer < TINY_LAYERS; layer++) nmlp_session_run_layer(session, layer, rows, 0, N);
    nmlp_session_final_norm(session, rows + (N - 1) * TINY_HIDDEN, 1, last);
    nmlp_session_logits(session, last, 1, got);
    assert_memory_equal(got, want, sizeof want);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

struct mlp_rows {
    float input[N * TINY_HIDDEN];
    float output[N * TINY_HIDDEN];
};

static void keep_input(void *ctx, int64_t layer, const float *x, int64_t s) {
    (void)layer;
    memcpy(((struct mlp_rows *)ctx)->input, x, (size_t)(s * TINY_HIDDEN) * sizeof *x);
}

static void keep_output(void *ctx, int64_t layer, const float *y, int64_t s) {
    (void)layer;
    memcpy(((struct mlp_rows *)ctx)->output, y, (size_t)(s * TINY_HIDDEN) * sizeof *y);
}

static void attention_alone_and_the_mlp_make_a_layer(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_session *session;
    nmlp_err err;
    struct mlp_rows mlp;
    nmlp_observer observer = {.ctx = &mlp, .mlp_input = keep_input, .mlp_output = keep_output};
    float whole[N * TINY_HIDDEN], middle[N * TINY_HIDDEN], input[N * TINY_HIDDEN];
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 2);
    nmlp_assert_ok(nmlp_session_create(&session, l.engine, N, N, false, &err), &err);
    nmlp_assert_ok(nmlp_session_embed(session, f->ids, N, whole, &err), &err);
    memcpy(middle, whole, sizeof whole);
    nmlp_session_set_observer(session, &observer);
    nmlp_session_run_layer(session, 1, whole, 0, N);
    nmlp_session_run_attention(session, 1, middle, 0, N, input);
    assert_memory_equal(input, mlp.input, sizeof input);
    for (int i = 0; i < N * TINY_HIDDEN; i++) assert_true(whole[i] == middle[i] + mlp.output[i]);
    nmlp_session_destroy(session);
    loaded_engine_close(&l);
}

static void another_mlp_can_stand_in_and_leave(void **state) {
    struct fixture *f = *state;
    loaded_engine l;
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    loaded_engine_open(&l, f->dir, NULL, 1);
    float *own = loaded_engine_logits(&l, f->ids, N, N);
    const nmlp_layer *other = &l.model.layers[1];
    nmlp_mlp_desc desc = {.gate = other->mlp[0], .up = other->mlp[1], .down = other->mlp[2]};
    nmlp_assert_ok(nmlp_engine_set_mlp(l.engine, 0, &desc, &err), &err);
    nmlp_assert_ok(nmlp_engine_set_mlp(l.engine, 0, &desc, &err), &err);
    float *swapped = loaded_engine_logits(&l, f->ids, N, N);
    assert_memory_not_equal(swapped, own, N * TINY_VOCAB * sizeof *own);
    nmlp_assert_ok(nmlp_engine_set_mlp(l.engine, 0, NULL, &err), &err);
    float *back = loaded_engine_logits(&l, f->ids, N, N);
    assert_memory_equal(back, own, N * TINY_VOCAB * sizeof *own);
    nmlp_mem_free(own);
    nmlp_mem_free(swapped);
    nmlp_mem_free(back);
    loaded_engine_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(logits_equal_a_float64_decoder, setup, teardown),
        cmocka_unit_test_setup_teardown(qkv_biases_and_norms_are_applied, setup, teardown),
        cmocka_unit_test_setup_teardown(factorised_mlps_equal_a_float64_decoder, setup, teardown),
        cmocka_unit_test_setup_teardown(factorised_attention_equals_a_float64_decoder, setup, teardown),
        cmocka_unit_test_setup_teardown(biases_of_factorised_attention_are_applied_once, setup, teardown),
        cmocka_unit_test_setup_teardown(quantised_weights_equal_a_float64_decoder, setup, teardown),
        cmocka_unit_test_setup_teardown(results_depend_neither_on_chunks_nor_on_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(truncating_forgets, setup, teardown),
        cmocka_unit_test_setup_teardown(limits_are_refused_without_a_trace, setup, teardown),
        cmocka_unit_test_setup_teardown(attention_alone_and_the_mlp_make_a_layer, setup, teardown),
        cmocka_unit_test_setup_teardown(observers_see_every_row_and_change_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_layer_for_its_inputs_alone_ends_at_the_last, setup, teardown),
        cmocka_unit_test_setup_teardown(an_attention_is_replaced_and_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(the_memory_of_a_stand_in_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_layer_at_a_time_gives_the_same_states, setup, teardown),
        cmocka_unit_test_setup_teardown(another_mlp_can_stand_in_and_leave, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
