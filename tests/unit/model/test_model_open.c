/* Opening model directories: shards, factors, and every way a directory can be broken. */
#include <math.h>
#include <unistd.h>

#include "base/mem.h"
#include "checkpoint/checkpoint_write.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "model/expand.h"
#include "model/fingerprint.h"
#include "model/model.h"
#include "model/preset.h"
#include "tensor/quant.h"

static int setup(void **state) {
    *state = tiny_fixture_create(1);
    return 0;
}

static int teardown(void **state) {
    tiny_fixture_destroy(*state);
    return 0;
}

static void refuse(tiny_fixture *f, nmlp_status code, const char *part, const char *part2) {
    nmlp_model model;
    nmlp_err err;
    nmlp_assert_fails(nmlp_model_open(&model, f->dir, &err), &err, code, part, part2, NULL);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    nmlp_test_write_file(path, text, strlen(text));
}

static void a_sound_directory_opens(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_BF16);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    nmlp_assert_ok(nmlp_model_check_finite(&model, NULL, NULL, &err), &err);
    nmlp_model_size size = nmlp_model_measure(&model);
    assert_int_equal(size.n_dense, 6);
    assert_int_equal(size.mlp_params, 2 * 3 * 32 * 48);
    assert_int_equal(size.params, 64 * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32) + 2 * 3 * 32 * 48);
    assert_int_equal(size.bytes, 2 * size.params);
    nmlp_model_close(&model);
}

static void fill_nan(const char *dir, const nmlp_model *model, const char *name) {
    const nmlp_view *view = &nmlp_checkpoint_find(&model->checkpoint, name)->view;
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    long at = (long)((const unsigned char *)view->scales - model->checkpoint.files[0].map.data);
    float nan = NAN;
    assert_int_equal(fseek(file, at + 8, SEEK_SET), 0);
    assert_int_equal(fwrite(&nan, sizeof nan, 1, file), 1);
    assert_int_equal(fclose(file), 0);
}

static void quantised_weights_open_and_expand(void **state) {
    tiny_fixture *f = *state;
    static const nmlp_dtype dtypes[] = {NMLP_DTYPE_Q8, NMLP_DTYPE_Q4, NMLP_DTYPE_Q6};
    for (int d = 0; d < 3; d++) {
        nmlp_model model, dense;
        nmlp_err err;
        char out[300];
        int64_t bytes;
        tiny_write_quantised(&f->c, f->dir, dtypes[d], 32);
        nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
        assert_int_equal(model.layers[0].attention[NMLP_ATTENTION_O].w.dtype, dtypes[d]);
        uint64_t before = 1, after = 1;
        assert_int_equal(nmlp_model_fingerprint(&before, &model, NULL, NULL), NMLP_OK);
        snprintf(out, sizeof out, "%s/dense", f->dir);
        nmlp_assert_ok(nmlp_model_expand(&model, out, NULL, NULL, &bytes, &err), &err);
        nmlp_assert_ok(nmlp_model_open(&dense, out, &err), &err);
        assert_false(dense.config.quantised);
        for (int64_t i = 0; i < TINY_HIDDEN; i++) {
            float want[TINY_HIDDEN], got[TINY_HIDDEN];
            nmlp_quant_row_to_f32(want, &model.layers[1].attention[NMLP_ATTENTION_O].w, i);
            nmlp_quant_row_to_f32(got, &dense.layers[1].attention[NMLP_ATTENTION_O].w, i);
            for (int k = 0; k < TINY_HIDDEN; k++) assert_true(got[k] == nmlp_bf16_to_f32(nmlp_f32_to_bf16(want[k])));
        }
        nmlp_model_close(&dense);
        fill_nan(f->dir, &model, "model.layers.0.self_attn.k_proj.weight");
        nmlp_model_close(&model);
        nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
        assert_int_equal(nmlp_model_fingerprint(&after, &model, NULL, NULL), NMLP_OK);
        assert_true(after != before);
        nmlp_assert_fails(nmlp_model_check_finite(&model, NULL, NULL, &err), &err, NMLP_E_NUMERIC,
                          "k_proj.weight_scale", "NaN", NULL);
        nmlp_model_close(&model);
        nmlp_test_rmdir(out);
    }
}

static void missing_files_are_named(void **state) {
    tiny_fixture *f = *state;
    char path[512];
    refuse(f, NMLP_E_MISSING, "config.json", "not found");
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    unlink(path);
    refuse(f, NMLP_E_MISSING, "model.safetensors", f->dir);
}

static void missing_and_misshapen_tensors_are_named(void **state) {
    tiny_fixture *f = *state;
    tiny_remove(&f->c, "model.layers.1.mlp.up_proj.weight");
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_MISSING, "model.layers.1.mlp.up_proj.weight", "missing");
    tiny_add(&f->c, "model.layers.1.mlp.up_proj.weight", 48, 31);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_SHAPE, "[48,31]", "expected [48,32]");
}

static void nan_and_inf_weights_are_named(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    tiny_find(&f->c, "model.layers.0.self_attn.o_proj.weight")->data[77] = INFINITY;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F16);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    nmlp_assert_fails(nmlp_model_check_finite(&model, NULL, NULL, &err), &err, NMLP_E_NUMERIC,
                      "model.layers.0.self_attn.o_proj.weight", "element 77", NULL);
    nmlp_model_close(&model);
}

static void an_index_with_an_absent_shard_is_refused(void **state) {
    tiny_fixture *f = *state;
    char path[512];
    nmlp_model model;
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    write_text(f->dir, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"gone.safetensors\"}}");
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err); /* stale beside a single file, which goes before */
    nmlp_model_close(&model);
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    unlink(path);
    refuse(f, NMLP_E_MISSING, "gone.safetensors", "absent");
    write_text(f->dir, "model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}");
    refuse(f, NMLP_E_FORMAT, "../../etc/passwd", "file name");
    write_text(f->dir, "model.safetensors.index.json", "{\"weight_map\":{}}");
    refuse(f, NMLP_E_FORMAT, "weight_map", "empty");
    write_text(f->dir, "model.safetensors.index.json", "{}");
    refuse(f, NMLP_E_MISSING, "weight_map", "missing");
}

/* The index names a whole shard with other weights: what counts is the single file, as in transformers. */
static void a_stale_index_beside_a_single_file_is_not_used(void **state) {
    tiny_fixture *f = *state;
    char single[512], shard[512];
    nmlp_model model;
    nmlp_err err;
    nmlp_str index;
    float *weights = tiny_find(&f->c, "model.norm.weight")->data;
    weights[0] = 3;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    snprintf(single, sizeof single, "%s/model.safetensors", f->dir);
    snprintf(shard, sizeof shard, "%s/model-00001-of-00001.safetensors", f->dir);
    assert_int_equal(rename(single, shard), 0);
    nmlp_str_init(&index);
    for (size_t i = 0; i < f->c.n; i++)
        nmlp_str_printf(&index, "%s\"%s\":\"model-00001-of-00001.safetensors\"", i ? "," : "{\"weight_map\":{",
                        f->c.tensors[i].name);
    nmlp_str_puts(&index, "}}");
    write_text(f->dir, "model.safetensors.index.json", nmlp_str_text(&index));
    nmlp_str_fini(&index);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    assert_true(((const float *)model.final_norm.data)[0] == 3); /* alone the index is sound */
    nmlp_model_close(&model);
    weights[0] = 5;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    assert_true(((const float *)model.final_norm.data)[0] == 5);
    nmlp_model_close(&model);
}

/* What nothing uses belongs to another model: more layers than config.json says, norms of another family. */
static void tensors_without_a_place_are_refused(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    tiny_add(&f->c, "model.layers.0.self_attn.rotary_emb.inv_freq", 4, 0);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err); /* what old versions stored and nobody reads */
    nmlp_model_close(&model);
    tiny_add(&f->c, "model.layers.0.self_attn.q_norm.weight", 8, 0);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_UNSUPPORTED, "model.layers.0.self_attn.q_norm.weight", "no part of a llama model");
    tiny_remove(&f->c, "model.layers.0.self_attn.q_norm.weight");
    char *layers = strstr(f->c.config, "\"num_hidden_layers\":2");
    assert_non_null(layers);
    layers[strlen("\"num_hidden_layers\":")] = '1';
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_UNSUPPORTED, "model.layers.1.", "of 1 layers");
}

/* tie_word_embeddings with a head in the file: the file's head counts, unless it is the embedding again. */
static void a_head_of_its_own_is_not_tied(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    tiny_tensor *head = tiny_add(&f->c, "lm_head.weight", TINY_VOCAB, TINY_HIDDEN);
    memcpy(head->data, tiny_find(&f->c, "model.embed_tokens.weight")->data, sizeof(float) * TINY_VOCAB * TINY_HIDDEN);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    assert_true(model.config.tied && model.lm_head.data == model.embedding.data);
    nmlp_model_close(&model);
    head->data[5] += 1;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    assert_true(!model.config.tied && model.lm_head.data != model.embedding.data);
    assert_true(((const float *)model.lm_head.data)[5] == head->data[5]);
    nmlp_model_close(&model);
}

static void factors_bind_as_one_matrix(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    tiny_factorise(&f->c, 1, "down_proj", 8, NULL);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_FORMAT, "down_proj.u", "neuronmlp");
    tiny_mark_compressed(&f->c);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    const nmlp_factors *down = &model.layers[1].mlp[NMLP_MLP_DOWN];
    assert_int_equal(nmlp_factors_rank(down), 8);
    assert_int_equal(nmlp_factors_rows(down), 32);
    assert_int_equal(nmlp_factors_cols(down), 48);
    nmlp_model_size size = nmlp_model_measure(&model);
    assert_int_equal(size.n_lowrank, 1);
    assert_int_equal(size.mlp_params, 5 * 32 * 48 + 8 * (32 + 48));
    nmlp_model_close(&model);
}

static void a_shared_basis_counts_once(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    tiny_factorise(&f->c, 0, "gate_proj", 8, NULL);
    tiny_factorise(&f->c, 0, "up_proj", 8, NULL);
    tiny_remove(&f->c, "model.layers.0.mlp.gate_proj.v");
    tiny_remove(&f->c, "model.layers.0.mlp.up_proj.v");
    tiny_add(&f->c, "model.layers.0.mlp.gate_up_proj.v", 8, 32);
    tiny_mark_compressed(&f->c);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    assert_true(model.layers[0].shared_basis);
    assert_ptr_equal(model.layers[0].mlp[NMLP_MLP_GATE].v.data, model.layers[0].mlp[NMLP_MLP_UP].v.data);
    assert_int_equal(nmlp_model_measure(&model).mlp_params, 4 * 32 * 48 + 8 * (48 + 48 + 32));
    nmlp_model_close(&model);
}

/* q [32,32], k and v [16,32]. */
static void attentions_share_a_basis_or_have_their_own(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_err err;
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 0, "q_proj", 8, NULL);
    tiny_factorise(&f->c, 0, "k_proj", 8, NULL);
    tiny_factorise(&f->c, 0, "v_proj", 8, NULL);
    tiny_factorise(&f->c, 1, "o_proj", 4, NULL);
    tiny_remove(&f->c, "model.layers.0.self_attn.k_proj.v");
    tiny_remove(&f->c, "model.layers.0.self_attn.v_proj.v");
    snprintf(tiny_find(&f->c, "model.layers.0.self_attn.q_proj.v")->name, 96, "model.layers.0.self_attn.qkv_proj.v");
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    assert_true(model.layers[0].attention_shares_basis);
    assert_false(model.layers[1].attention_shares_basis);
    assert_string_equal(nmlp_config_beyond_plain(&model.config), "factorised attention");
    nmlp_model_size size = nmlp_model_measure(&model);
    assert_int_equal(size.n_attention_lowrank, 4);
    assert_int_equal(size.attention_params_dense, 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32));
    assert_int_equal(size.attention_params, 8 * (64 + 32) + 32 * 32 + 32 * 32 + 2 * 16 * 32 + 4 * (32 + 32));
    nmlp_model_close(&model);
    /* a v of its own beside the shared one; and one that shares while another does not */
    tiny_add(&f->c, "model.layers.0.self_attn.k_proj.v", 8, 32);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_FORMAT, "k_proj.v", "one v");
    tiny_remove(&f->c, "model.layers.0.self_attn.k_proj.v");
    tiny_remove(&f->c, "model.layers.0.self_attn.v_proj.u");
    tiny_add(&f->c, "model.layers.0.self_attn.v_proj.weight", 16, 32);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_FORMAT, "layer 0", "only in part");
}

static void expanding_multiplies_the_factors_of_attention(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model, dense;
    nmlp_err err;
    char out[300];
    float want_k[16 * 32], want_o[32 * 32];
    int64_t bytes;
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 0, "k_proj", 6, want_k);
    tiny_factorise(&f->c, 1, "o_proj", 12, want_o);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    snprintf(out, sizeof out, "%s/dense", f->dir);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    nmlp_assert_ok(nmlp_model_expand(&model, out, NULL, NULL, &bytes, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&dense, out, &err), &err);
    assert_int_equal(nmlp_model_measure(&dense).n_attention_lowrank, 0);
    assert_null(nmlp_config_beyond_plain(&dense.config));
    const float *k = dense.layers[0].attention[NMLP_ATTENTION_K].w.data;
    const float *o = dense.layers[1].attention[NMLP_ATTENTION_O].w.data;
    /* sums of at most 12 products of size < 4 in f32 */
    for (int i = 0; i < 16 * 32; i++) assert_true(fabsf(k[i] - want_k[i]) <= 12 * 4 * 0x1p-24f);
    for (int i = 0; i < 32 * 32; i++) assert_true(fabsf(o[i] - want_o[i]) <= 12 * 4 * 0x1p-24f);
    nmlp_model_close(&dense);
    nmlp_model_close(&model);
}

static void half_a_factorisation_is_refused(void **state) {
    tiny_fixture *f = *state;
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 0, "up_proj", 8, NULL);
    tiny_add(&f->c, "model.layers.0.mlp.up_proj.weight", 48, 32);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_FORMAT, "up_proj.weight", "both");
    tiny_remove(&f->c, "model.layers.0.mlp.up_proj.weight");
    tiny_remove(&f->c, "model.layers.0.mlp.up_proj.v");
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_MISSING, "up_proj.u", "no matching v");
    tiny_add(&f->c, "model.layers.0.mlp.up_proj.v", 7, 32);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    refuse(f, NMLP_E_SHAPE, "[7,32]", "[8,32]");
}

static void expanding_multiplies_the_factors(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_model dense;
    nmlp_err err;
    char out[300];
    float want[48 * 32];
    int64_t bytes;
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 1, "gate_proj", 12, want);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_F32);
    snprintf(out, sizeof out, "%s/dense", f->dir);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    nmlp_assert_ok(nmlp_model_expand(&model, out, NULL, NULL, &bytes, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&dense, out, &err), &err);
    assert_false(dense.config.compressed);
    assert_int_equal(nmlp_model_measure(&dense).n_lowrank, 0);
    const float *got = dense.layers[1].mlp[NMLP_MLP_GATE].w.data;
    /* sums of 12 products of size < 4 in f32: 12 roundings of 2^-24 each */
    for (int i = 0; i < 48 * 32; i++) assert_true(fabsf(got[i] - want[i]) <= 12 * 4 * 0x1p-24f);
    nmlp_model_close(&dense);
    nmlp_model_close(&model);
}

static nmlp_status put_in_two_parts(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    float data[8];
    (void)ctx;
    for (int j = 0; j < 8; j++) data[j] = (float)(10 * i) + (float)j;
    NMLP_RETURN_IF_FAILED(nmlp_checkpoint_put(writer, data, 12, err));
    return nmlp_checkpoint_put(writer, (char *)data + 12, 20, err);
}

static nmlp_status put_too_little(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    float data[8] = {0};
    (void)ctx;
    return nmlp_checkpoint_put(writer, data, i < 2 ? sizeof data : 12, err);
}

static bool stop_in_third_tensor(void *ctx, const char *stage, double done, double total, const char *unit) {
    (void)ctx, (void)stage, (void)unit;
    assert_true(total == 5 * 32);
    return done < 2 * 32 + 12;
}

static void shards_are_written_and_read(void **state) {
    tiny_fixture *f = *state;
    nmlp_tensor_spec specs[5];
    char names[5][8];
    nmlp_progress stop = {.update = stop_in_third_tensor};
    nmlp_checkpoint_source source = {
        .specs = specs, .n_specs = 5, .put = put_in_two_parts, .max_shard_bytes = 64, .stage = "writing"};
    nmlp_checkpoint checkpoint;
    nmlp_err err;
    write_text(f->dir, "config.json", f->c.config);
    for (int i = 0; i < 5; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        specs[i] = (nmlp_tensor_spec){.name = names[i], .dtype = NMLP_DTYPE_F32, .n_dims = 2, .shape = {2, 4}};
    }
    source.put = put_too_little;
    nmlp_assert_fails(nmlp_checkpoint_write(f->dir, &source, &err), &err, NMLP_E_ARG, "t2", "12 of its 32", NULL);
    source.put = put_in_two_parts;
    source.progress = &stop;
    nmlp_assert_fails(nmlp_checkpoint_write(f->dir, &source, &err), &err, NMLP_E_INTERRUPTED, "writing", NULL);
    source.progress = NULL;
    nmlp_assert_ok(nmlp_checkpoint_write(f->dir, &source, &err), &err);
    nmlp_assert_ok(nmlp_checkpoint_open(&checkpoint, f->dir, &err), &err);
    assert_int_equal(checkpoint.n_files, 3);
    for (int i = 0; i < 5; i++) {
        const float *got = nmlp_checkpoint_find(&checkpoint, names[i])->view.data;
        for (int j = 0; j < 8; j++) assert_true(got[j] == (float)(10 * i + j));
    }
    nmlp_checkpoint_close(&checkpoint);
}

/* The table in the public description of the method's models: ranks at 128-tiles. */
static void ranks_follow_the_published_table(void **state) {
    static const struct {
        int64_t h, i, r05, r20, r50;
    } rows[] = {
        {2048, 8192, 1536, 1280, 768}, {3072, 8192, 2048, 1664, 1024}, {4096, 14336, 2944, 2432, 1536},
        {2048, 6144, 1408, 1152, 768}, {2560, 9728, 1920, 1536, 896},  {4096, 12288, 2816, 2432, 1536},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(nmlp_rank_for_ratio(rows[i].h, rows[i].i, 0.05, 128), rows[i].r05);
        assert_int_equal(nmlp_rank_for_ratio(rows[i].h, rows[i].i, 0.2, 128), rows[i].r20);
        assert_int_equal(nmlp_rank_for_ratio(rows[i].h, rows[i].i, 0.5, 128), rows[i].r50);
    }
    assert_int_equal(nmlp_rank_for_ratio(64, 64, 0.1, 128), 0); /* one tile is already more than dense */
}

/* Shapes as others have them; 0: no source was at hand. Unmarked rows: the table of LitGPT (litgpt/config.py, commit
 * 2685705, vocabularies as padded there). */
static void presets_have_the_shapes_of_their_models(void **state) {
    static const struct {
        const char *name;
        int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
        double theta;
    } rows[] = {
        {"llama-3.2-1b", 2048, 8192, 16, 32, 8, 64, 128256, 5e5},
        {"llama-3.2-3b", 3072, 8192, 28, 24, 8, 128, 128256, 5e5},
        {"llama-3.1-8b", 4096, 14336, 32, 32, 8, 128, 128256, 5e5},
        {"llama-3.1-70b", 8192, 28672, 80, 64, 8, 128, 128256, 5e5},
        {"llama-2-7b", 4096, 11008, 32, 32, 32, 128, 32000, 1e4},
        {"qwen3-1.7b", 2048, 6144, 28, 16, 8, 128, 151936, 1e6},
        {"qwen3-4b", 2560, 9728, 36, 32, 8, 128, 151936, 1e6},
        {"qwen3-8b", 4096, 12288, 36, 32, 8, 128, 151936, 1e6},
        {"mistral-7b-v0.3", 4096, 14336, 32, 32, 8, 128, 32768, 1e6},
        {"qwen2.5-1.5b", 1536, 8960, 28, 12, 2, 128, 151936, 1e6},
        {"phi-4", 5120, 17920, 40, 40, 10, 128, 100352, 2.5e5},
        {"gemma-2-2b", 2304, 9216, 26, 8, 4, 256, 256000, 1e4},
        {"gemma-3-1b", 1152, 6912, 26, 4, 1, 256, 262144, 1e6},
        {"mixtral-8x7b", 4096, 14336, 32, 32, 8, 128, 32000, 1e6},
        {"qwen3-30b-a3b", 2048, 6144, 48, 32, 4, 128, 151936, 1e6},
        /* defaults of transformers 5.22.2: SmolLM3Config, OlmoeConfig, Olmo3Config */
        {"smollm3-3b", 2048, 11008, 36, 16, 4, 128, 128256, 0},
        {"olmoe-1b-7b", 2048, 0, 16, 16, 16, 128, 50304, 1e4},
        {"olmo-3-7b", 4096, 11008, 32, 32, 32, 128, 0, 5e5},
        /* the model's card */
        {"olmo-2-1b", 2048, 0, 16, 16, 0, 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nmlp_config c;
        nmlp_err err;
        nmlp_assert_ok(nmlp_preset_find(&c, rows[i].name, &err), &err);
        const int64_t got[] = {c.hidden, c.intermediate, c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.vocab};
        const int64_t want[] = {rows[i].hidden,   rows[i].intermediate, rows[i].layers, rows[i].heads,
                                rows[i].kv_heads, rows[i].head_dim,     rows[i].vocab};
        for (size_t k = 0; k < sizeof got / sizeof got[0]; k++)
            if (want[k] != 0 && got[k] != want[k]) fail_msg("%s: shape %zu", rows[i].name, k);
        if (rows[i].theta != 0) assert_true(c.rope.theta == rows[i].theta);
    }
}

/* Every preset as a checkpoint of one layer whose vocabulary is cut: read back, and with the parameters of its shapes.
 */
static void presets_of_all_families_are_written_and_read(void **state) {
    static const char *const names[] = {"mistral-7b-v0.3", "qwen2.5-1.5b", "phi-4",         "granite-3.3-2b",
                                        "smollm3-3b",      "olmo-2-1b",    "olmo-3-7b",     "gemma-2-2b",
                                        "gemma-3-1b",      "mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (int compressed = 0; compressed < 2; compressed++) {
            char dir[1024], out[1100];
            nmlp_config config;
            nmlp_model model;
            nmlp_err err;
            int64_t params, bytes;
            nmlp_synth_options options = {
                .ratio = compressed ? 0.5 : 0, .tile = 2, .n_layers = 1, .dtype = NMLP_DTYPE_BF16, .seed = 1};
            nmlp_assert_ok(nmlp_preset_find(&config, names[i], &err), &err);
            config.hidden /= 32; /* the same shapes, smaller */
            config.intermediate /= 32;
            config.expert_intermediate /= 32;
            config.head_dim /= 16;
            config.rope_dim /= 16;
            config.vocab = 64;
            nmlp_test_mkdtemp(dir, sizeof dir);
            snprintf(out, sizeof out, "%s/model", dir);
            nmlp_assert_ok(nmlp_synth_write(out, &config, &options, &params, &bytes, &err), &err);
            nmlp_assert_ok(nmlp_model_open(&model, out, &err), &err);
            nmlp_model_size size = nmlp_model_measure(&model);
            assert_int_equal(size.params, params);
            assert_true(compressed ? size.n_lowrank > 0 && size.mlp_params < size.mlp_params_dense
                                   : size.n_lowrank == 0);
            assert_string_equal(model.config.architecture, config.architecture);
            nmlp_model_close(&model);
            nmlp_test_rmdir(dir);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_sound_directory_opens, setup, teardown),
        cmocka_unit_test_setup_teardown(quantised_weights_open_and_expand, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_files_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(missing_and_misshapen_tensors_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(nan_and_inf_weights_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(an_index_with_an_absent_shard_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stale_index_beside_a_single_file_is_not_used, setup, teardown),
        cmocka_unit_test_setup_teardown(tensors_without_a_place_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_head_of_its_own_is_not_tied, setup, teardown),
        cmocka_unit_test_setup_teardown(factors_bind_as_one_matrix, setup, teardown),
        cmocka_unit_test_setup_teardown(a_shared_basis_counts_once, setup, teardown),
        cmocka_unit_test_setup_teardown(half_a_factorisation_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(expanding_multiplies_the_factors, setup, teardown),
        cmocka_unit_test_setup_teardown(attentions_share_a_basis_or_have_their_own, setup, teardown),
        cmocka_unit_test_setup_teardown(expanding_multiplies_the_factors_of_attention, setup, teardown),
        cmocka_unit_test_setup_teardown(shards_are_written_and_read, setup, teardown),
        cmocka_unit_test(presets_have_the_shapes_of_their_models),
        cmocka_unit_test(presets_of_all_families_are_written_and_read),
        cmocka_unit_test(ranks_follow_the_published_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
