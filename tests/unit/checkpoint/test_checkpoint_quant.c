/* Quantised weights in checkpoints: a hand-made file in the spelling of compressed-tensors, our own files read back,
 * and every way such a file can be broken. */
#include <math.h>

#include "base/mem.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_write.h"
#include "lib/testing.h"
#include "tensor/quant.h"

enum { CONFIG_MAX = 2048, DATA_MAX = 1 << 16 };

struct fixture {
    char dir[256];
    const char *quantisation; /* of config.json */
    char header[CONFIG_MAX];
    unsigned char data[DATA_MAX];
    size_t bytes;
};

static const char pack_quantized[] =
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{"
    "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\","
    "\"group_size\":32,\"dynamic\":false},\"input_activations\":null}}}";

static int setup(void **state) {
    struct fixture *f = nmlp_mem_new(1, sizeof *f, NULL);
    nmlp_test_mkdtemp(f->dir, sizeof f->dir);
    f->quantisation = pack_quantized;
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    nmlp_test_rmdir(f->dir);
    nmlp_mem_free(f);
    return 0;
}

/* A tensor behind those before it; `data` NULL: zeros. */
static void add(struct fixture *f, const char *name, const char *dtype, const char *shape, const void *data,
                size_t bytes) {
    size_t at = strlen(f->header);
    assert_true(f->bytes + bytes <= DATA_MAX);
    if (data) memcpy(f->data + f->bytes, data, bytes);
    snprintf(f->header + at, sizeof f->header - at,
             "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", at ? "," : "{", name, dtype, shape,
             f->bytes, f->bytes + bytes);
    f->bytes += bytes;
}

static void save(struct fixture *f) {
    char path[512], config[CONFIG_MAX];
    unsigned char *image = nmlp_mem_new(CONFIG_MAX + DATA_MAX, 1, NULL);
    size_t len = strlen(f->header) + 1, padded = (len + 7) / 8 * 8;
    for (int i = 0; i < 8; i++) image[i] = (unsigned char)(padded >> (8 * i));
    memset(image + 8, ' ', padded);
    memcpy(image + 8, f->header, len - 1);
    image[8 + len - 1] = '}';
    memcpy(image + 8 + padded, f->data, f->bytes);
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    nmlp_test_write_file(path, image, 8 + padded + f->bytes);
    nmlp_mem_free(image);
    snprintf(config, sizeof config,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":32,"
             "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"vocab_size\":8%s%s}",
             f->quantisation ? ",\"quantization_config\":" : "", f->quantisation ? f->quantisation : "");
    snprintf(path, sizeof path, "%s/config.json", f->dir);
    nmlp_test_write_file(path, config, strlen(config));
    f->header[0] = '\0';
    f->bytes = 0;
    memset(f->data, 0, sizeof f->data);
}

static void refuse(struct fixture *f, nmlp_status code, const char *part, const char *part2) {
    nmlp_checkpoint c;
    nmlp_err err;
    save(f);
    nmlp_assert_fails(nmlp_checkpoint_open(&c, f->dir, &err), &err, code, part, part2, NULL);
}

/* The words as the format's description computes them: value + 8 of input 8 i + j in bits 4 j of word i. */
static void words_of_four_bits_mean_what_the_format_says(void **state) {
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    int32_t words[2 * 4] = {0};
    uint16_t scales[2] = {nmlp_f32_to_f16(0.5f), nmlp_f32_to_f16(-0.25f)};
    int64_t shape[2] = {2, 32};
    float want[2][32], row[32];
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < 32; k++) {
            int value = (k * 7 + 3 * r) % 16 - 8;
            words[r * 4 + k / 8] = (int32_t)((uint32_t)words[r * 4 + k / 8] | (uint32_t)(value + 8) << 4 * (k % 8));
            want[r][k] = (float)value * (r ? -0.25f : 0.5f);
        }
    }
    add(f, "a.weight_packed", "I32", "[2,4]", words, sizeof words);
    add(f, "a.weight_scale", "F16", "[2,1]", scales, sizeof scales);
    add(f, "a.weight_shape", "I64", "[2]", shape, sizeof shape);
    save(f);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    assert_int_equal(c.n_tensors, 1);
    const nmlp_named_tensor *t = nmlp_checkpoint_find(&c, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->view.dtype, NMLP_DTYPE_Q4);
    assert_int_equal(t->view.group, 32);
    for (int r = 0; r < 2; r++) {
        nmlp_quant_row_to_f32(row, &t->view, r);
        for (int k = 0; k < 32; k++) assert_true(row[k] == want[r][k]);
    }
    nmlp_checkpoint_close(&c);
}

/* Groups of 128 are two of 64 with the same scale; bf16 scales and 32-bit shapes are what other writers use. */
static void wide_groups_and_bf16_scales_are_read(void **state) {
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    uint16_t scales[2] = {nmlp_f32_to_bf16(0.5f), nmlp_f32_to_bf16(2.0f)};
    uint16_t q8_scales[2] = {nmlp_f32_to_bf16(1.0f), nmlp_f32_to_bf16(3.0f)};
    int32_t shape[2] = {1, 256};
    int8_t codes[2 * 4] = {1, -2, 3, -4, 5, -6, 127, -128};
    float row[256];
    add(f, "a.u_packed", "I32", "[1,32]", NULL, 128); /* zeros: value -8 */
    add(f, "a.u_shape", "I32", "[2]", shape, sizeof shape);
    add(f, "a.u_scale", "BF16", "[1,2]", scales, sizeof scales);
    add(f, "b.weight", "I8", "[2,4]", codes, sizeof codes);
    add(f, "b.weight_scale", "BF16", "[2,1]", q8_scales, sizeof q8_scales);
    save(f);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    const nmlp_view *u = &nmlp_checkpoint_find(&c, "a.u")->view;
    assert_int_equal(u->group, 64);
    nmlp_quant_row_to_f32(row, u, 0);
    for (int k = 0; k < 256; k++) assert_true(row[k] == (k < 128 ? -4.0f : -16.0f));
    const nmlp_view *b = &nmlp_checkpoint_find(&c, "b.weight")->view;
    nmlp_quant_row_to_f32(row, b, 1);
    for (int k = 0; k < 4; k++) assert_true(row[k] == 3.0f * (float)codes[4 + k]);
    nmlp_checkpoint_close(&c);
}

static const char with_zero_points[] =
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{"
    "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\","
    "\"group_size\":128,\"dynamic\":false},\"input_activations\":null}}}";

/* Zero points of row r and group g: value + 8 in bits 4 (r mod 8) of word [r / 8, g]. Ten rows, two groups of 128. */
static void zero_points_mean_what_the_format_says(void **state) {
    enum { R = 10, K = 256, G = 2 };
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    static int32_t words[R * K / 8];
    uint32_t zeros[2 * G] = {0};
    uint16_t scales[R * G];
    int64_t shape[2] = {R, K};
    static float want[R][K];
    float row[K];
    memset(words, 0, sizeof words);
    for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++) {
            int g = k / 128, value = (k * 7 + 3 * r) % 16 - 8, zero = (5 * r + 3 * g) % 16 - 8;
            uint32_t *word = (uint32_t *)words + r * (K / 8) + k / 8;
            *word |= (uint32_t)(value + 8) << 4 * (k % 8);
            if (k % 128 == 0) zeros[r / 8 * G + g] |= (uint32_t)(zero + 8) << 4 * (r % 8);
            scales[r * G + g] = nmlp_f32_to_f16(0.5f * (float)(r + 1));
            want[r][k] = (float)(value - zero) * 0.5f * (float)(r + 1);
        }
    f->quantisation = with_zero_points;
    add(f, "a.weight_packed", "I32", "[10,32]", words, sizeof words);
    add(f, "a.weight_scale", "F16", "[10,2]", scales, sizeof scales);
    add(f, "a.weight_zero_point", "I32", "[2,2]", zeros, sizeof zeros);
    add(f, "a.weight_shape", "I64", "[2]", shape, sizeof shape);
    save(f);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    assert_int_equal(c.n_tensors, 1);
    const nmlp_view *view = &nmlp_checkpoint_find(&c, "a.weight")->view;
    assert_int_equal(view->group, 64);
    for (int r = 0; r < R; r++) {
        nmlp_quant_row_to_f32(row, view, r);
        for (int k = 0; k < K; k++) assert_true(row[k] == want[r][k]);
    }
    nmlp_view part = nmlp_view_rows(view, 7, 3);
    nmlp_quant_row_to_f32(row, &part, 2);
    for (int k = 0; k < K; k++) assert_true(row[k] == want[9][k]);
    nmlp_checkpoint_close(&c);
}

static nmlp_status put_view(void *ctx, size_t i, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    (void)i;
    return nmlp_checkpoint_put_view(writer, ctx, err);
}

/* The bytes of the file: the words that the format's description computes, and the same matrix back. */
static void zero_points_are_written_as_they_are_read(void **state) {
    enum { R = 12, K = 64, G = 2 };
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    uint8_t codes[R * K / 2];
    uint16_t scales[R * G];
    int8_t zeros[R * G];
    char path[512];
    for (int i = 0; i < R * K / 2; i++) codes[i] = (uint8_t)(i * 37);
    for (int i = 0; i < R * G; i++) {
        scales[i] = nmlp_f32_to_f16(0.25f * (float)(i + 1));
        zeros[i] = (int8_t)(i * 5 % 16 - 8);
    }
    nmlp_view view = nmlp_quant_view_q4(codes, scales, 32, R, K), back;
    view.per_group = zeros;
    nmlp_tensor_spec spec = nmlp_tensor_spec_of("a.weight", &view);
    assert_int_equal(nmlp_tensor_spec_bytes(&spec), sizeof codes + sizeof scales + 2 * G * sizeof(uint32_t));
    assert_int_equal(nmlp_quant_stored_bytes(&view), nmlp_tensor_spec_bytes(&spec));
    nmlp_checkpoint_source source = {.specs = &spec, .n_specs = 1, .put = put_view, .ctx = &view};
    f->quantisation = with_zero_points;
    add(f, "b", "F32", "[1]", NULL, 4);
    save(f); /* for its config.json */
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    assert_int_equal(remove(path), 0);
    nmlp_assert_ok(nmlp_checkpoint_write(f->dir, &source, &err), &err);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    back = nmlp_checkpoint_find(&c, "a.weight")->view;
    assert_memory_equal(back.data, codes, sizeof codes);
    assert_memory_equal(back.scales, scales, sizeof scales);
    assert_memory_equal(back.per_group, zeros, sizeof zeros);
    nmlp_checkpoint_close(&c);
}

static const char float_quantized[] =
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"group_0\":{"
    "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":"
    "\"channel\",\"dynamic\":false},\"input_activations\":{\"num_bits\":8,\"type\":\"float\",\"dynamic\":true}}}}";

/* Codes of one row each: 1, -0.5, 448, the least subnormal; bf16 scales are what other writers use. */
static void floats_of_eight_bits_mean_what_the_format_says(void **state) {
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    static const uint8_t codes[8] = {0x38, 0xb0, 0x7e, 0x01, 0x00, 0x77, 0xf7, 0x40};
    static const float want[8] = {1.0f, -0.5f, 448.0f, 0x1p-9f, 0.0f, 240.0f, -240.0f, 2.0f};
    uint16_t scales[2] = {nmlp_f32_to_bf16(0.5f), nmlp_f32_to_bf16(-3.0f)};
    float row[4];
    f->quantisation = float_quantized;
    add(f, "a.weight", "F8_E4M3", "[2,4]", codes, sizeof codes);
    add(f, "a.weight_scale", "BF16", "[2,1]", scales, sizeof scales);
    save(f);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    assert_int_equal(c.n_tensors, 1);
    const nmlp_view *view = &nmlp_checkpoint_find(&c, "a.weight")->view;
    assert_int_equal(view->dtype, NMLP_DTYPE_FP8);
    for (int r = 0; r < 2; r++) {
        nmlp_view one = nmlp_view_rows(view, r, 1);
        nmlp_quant_row_to_f32(row, &one, 0);
        for (int k = 0; k < 4; k++) assert_true(row[k] == want[4 * r + k] * (r ? -3.0f : 0.5f));
    }
    nmlp_checkpoint_close(&c);
}

static void broken_floats_of_eight_bits_are_named(void **state) {
    struct fixture *f = *state;
    f->quantisation = float_quantized;
    add(f, "a.weight", "F8_E4M3", "[2,4]", NULL, 8);
    refuse(f, NMLP_E_MISSING, "a.weight_scale", "missing");
    add(f, "a.weight", "F8_E4M3", "[2,4]", NULL, 8);
    add(f, "a.weight_scale", "F32", "[1]", NULL, 4);
    refuse(f, NMLP_E_SHAPE, "a.weight_scale", "one scale per row");
    add(f, "a.weight", "F8_E4M3", "[2,4]", NULL, 8);
    add(f, "a.weight_scale", "F8_E4M3", "[2,1]", NULL, 2);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_scale", "F32, F16 or BF16");
    add(f, "a.weight", "F8_E4M3", "[8]", NULL, 8);
    add(f, "a.weight_scale", "F32", "[8]", NULL, 32);
    refuse(f, NMLP_E_SHAPE, "a.weight", "two dimensions");
    add(f, "a.weight", "F8_E5M2", "[2,4]", NULL, 8);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight", "F8_E5M2");
}

/* The names and types in the file, and the same matrix back. */
static void floats_of_eight_bits_are_written_as_they_are_read(void **state) {
    enum { R = 3, K = 8 };
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    nmlp_str text;
    uint8_t codes[R * K];
    float scales[R] = {0.1f, 2.0f, 3e-5f};
    for (int i = 0; i < R * K; i++) codes[i] = (uint8_t)(i * 5);
    nmlp_view view = nmlp_quant_view_fp8(codes, scales, R, K);
    nmlp_tensor_spec spec = nmlp_tensor_spec_of("a.weight", &view);
    nmlp_tensor_part parts[NMLP_TENSOR_PARTS_MAX];
    assert_int_equal(nmlp_tensor_spec_parts(&spec, parts), 2);
    assert_string_equal(parts[0].dtype, "F8_E4M3");
    assert_string_equal(parts[1].name, "a.weight_scale");
    assert_int_equal(nmlp_tensor_spec_bytes(&spec), sizeof codes + sizeof scales);
    nmlp_str_init(&text);
    nmlp_tensor_specs_quant_config(&spec, 1, &text);
    assert_non_null(strstr(nmlp_str_text(&text), "\"format\":\"float-quantized\""));
    assert_non_null(strstr(nmlp_str_text(&text), "\"type\":\"float\""));
    f->quantisation = nmlp_str_text(&text);
    add(f, "b", "F32", "[1]", NULL, 4);
    save(f); /* for its config.json */
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    assert_int_equal(remove(path), 0);
    nmlp_checkpoint_source source = {.specs = &spec, .n_specs = 1, .put = put_view, .ctx = &view};
    nmlp_assert_ok(nmlp_checkpoint_write(f->dir, &source, &err), &err);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    nmlp_view back = nmlp_checkpoint_find(&c, "a.weight")->view;
    assert_int_equal(back.dtype, NMLP_DTYPE_FP8);
    assert_memory_equal(back.data, codes, sizeof codes);
    assert_memory_equal(back.scales, scales, sizeof scales);
    nmlp_checkpoint_close(&c);
    nmlp_str_fini(&text);
}

static const char six_bits[] =
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{"
    "\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":6,\"type\":\"int\",\"symmetric\":true,\"strategy\":"
    "\"channel\",\"dynamic\":false},\"input_activations\":null}}}";

/* The words as the format's description computes them: value + 32 of input i in bits 6 i of a row's words, also across
 * two of them; rows of 7, 16 and 45 inputs end within a word or with one. */
static void words_of_six_bits_mean_what_the_format_says(void **state) {
    static const int cols[] = {7, 16, 45};
    struct fixture *f = *state;
    f->quantisation = six_bits;
    for (int c = 0; c < 3; c++) {
        int n_words = (6 * cols[c] + 31) / 32;
        uint32_t words[2 * 9] = {0};
        float scales[2] = {0.5f, -3.0f}, row[45];
        int64_t shape[2] = {2, cols[c]};
        char text[32];
        nmlp_checkpoint checkpoint;
        nmlp_err err;
        for (int i = 0; i < 2 * cols[c]; i++) {
            uint32_t value = (uint32_t)((i * 11 + 5) % 64), *at = words + i / cols[c] * n_words;
            int bit = i % cols[c] * 6;
            at[bit / 32] |= value << bit % 32;
            if (bit % 32 > 26) at[bit / 32 + 1] |= value >> (32 - bit % 32);
        }
        snprintf(text, sizeof text, "[2,%d]", n_words);
        add(f, "a.weight_packed", "I32", text, words, (size_t)n_words * 8);
        add(f, "a.weight_scale", "F32", "[2,1]", scales, sizeof scales);
        add(f, "a.weight_shape", "I64", "[2]", shape, sizeof shape);
        save(f);
        nmlp_assert_ok(nmlp_checkpoint_open(&checkpoint, f->dir, &err), &err);
        const nmlp_view *view = &nmlp_checkpoint_find(&checkpoint, "a.weight")->view;
        assert_int_equal(view->dtype, NMLP_DTYPE_Q6);
        for (int r = 0; r < 2; r++) {
            nmlp_view one = nmlp_view_rows(view, r, 1);
            nmlp_quant_row_to_f32(row, &one, 0);
            for (int k = 0; k < cols[c]; k++)
                assert_true(row[k] == (float)(((r * cols[c] + k) * 11 + 5) % 64 - 32) * scales[r]);
        }
        nmlp_checkpoint_close(&checkpoint);
    }
}

/* The names, types and bits in the file, and the same matrix back. */
static void weights_of_six_bits_are_written_as_they_are_read(void **state) {
    enum { R = 3, K = 45, ROW_BYTES = 36 };
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    nmlp_str text;
    uint8_t codes[R * ROW_BYTES] = {0};
    float scales[R] = {0}, w[R * K];
    nmlp_view view = nmlp_quant_view_q6(codes, scales, R, K);
    assert_int_equal(nmlp_view_bytes(&view), sizeof codes);
    for (int i = 0; i < R * K; i++) w[i] = (float)(i * 37 % 101 - 50) * 0.01f;
    for (int r = 0; r < R; r++) nmlp_quant_row_from_f32(&view, r, w + r * K);
    nmlp_tensor_spec spec = nmlp_tensor_spec_of("a.u", &view);
    nmlp_tensor_part parts[NMLP_TENSOR_PARTS_MAX];
    assert_int_equal(nmlp_tensor_spec_parts(&spec, parts), 3);
    assert_string_equal(parts[0].name, "a.u_packed");
    assert_string_equal(parts[0].dtype, "I32");
    assert_int_equal(parts[0].shape[1], 9);
    assert_int_equal(nmlp_tensor_spec_bytes(&spec), sizeof codes + sizeof scales);
    nmlp_str_init(&text);
    nmlp_tensor_specs_quant_config(&spec, 1, &text);
    assert_non_null(strstr(nmlp_str_text(&text), "\"format\":\"pack-quantized\""));
    assert_non_null(strstr(nmlp_str_text(&text), "\"num_bits\":6"));
    assert_non_null(strstr(nmlp_str_text(&text), "\"strategy\":\"channel\""));
    f->quantisation = nmlp_str_text(&text);
    add(f, "b", "F32", "[1]", NULL, 4);
    save(f); /* for its config.json */
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    assert_int_equal(remove(path), 0);
    nmlp_checkpoint_source source = {.specs = &spec, .n_specs = 1, .put = put_view, .ctx = &view};
    nmlp_assert_ok(nmlp_checkpoint_write(f->dir, &source, &err), &err);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    nmlp_view back = nmlp_checkpoint_find(&c, "a.u")->view;
    assert_int_equal(back.dtype, NMLP_DTYPE_Q6);
    assert_int_equal(back.shape[1], K);
    assert_memory_equal(back.data, codes, sizeof codes);
    assert_memory_equal(back.scales, scales, sizeof scales);
    for (int r = 0; r < R; r++) { /* no further off than half a step, but for the end without a code of its own */
        float row[K];
        nmlp_quant_row_to_f32(row, &back, r);
        for (int k = 0; k < K; k++) assert_true(fabsf(row[k] - w[r * K + k]) <= 1.001f * fabsf(scales[r]));
    }
    nmlp_checkpoint_close(&c);
    nmlp_str_fini(&text);
}

static const char with_multipliers[] =
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"neuronmlp-packed\",\"config_groups\":{\"group_0\":{"
    "\"format\":\"neuronmlp-packed\",\"targets\":[\"a\"],\"weights\":{\"num_bits\":5,\"type\":\"int\",\"symmetric\":"
    "true,\"strategy\":\"group\",\"group_size\":16,\"dynamic\":false},\"input_activations\":null}}}";

/* Words by hand as the format's description has them: codes of 6, 5 and 4 bits, and multipliers of row r and group g as
 * m + 7 in bits 4 (r mod 8) of word [r / 8, g]. */
static void multipliers_mean_what_the_format_says(void **state) {
    enum { R = 9, K = 48, G = 3 };
    static const int steps[] = {2, 1, 1}, least[] = {-7, -7, -3}, most[] = {8, 8, 4};
    static const nmlp_dtype types[] = {NMLP_DTYPE_Q4M, NMLP_DTYPE_Q5M, NMLP_DTYPE_Q6M};
    struct fixture *f = *state;
    f->quantisation = with_multipliers;
    for (int t = 0; t < 3; t++) {
        int bits = 4 + t, n_words = (bits * K + 31) / 32;
        uint32_t words[R * 9] = {0}, multipliers[2 * G] = {0};
        float scales[R], row[K], want[R][K];
        int64_t shape[2] = {R, K};
        char text[32];
        nmlp_checkpoint c;
        nmlp_err err;
        for (int r = 0; r < R; r++) {
            scales[r] = 0.125f * (float)(r - 4);
            for (int k = 0; k < K; k++) {
                int g = k / 16, m = least[t] + (5 * r + 3 * g) % (most[t] - least[t] + 1), at = bits * k;
                uint32_t value = (uint32_t)(k * 7 + 3 * r) % (1u << bits), *word = words + r * n_words + at / 32;
                *word |= value << at % 32;
                if (at % 32 + bits > 32) word[1] |= value >> (32 - at % 32);
                if (k % 16 == 0) multipliers[r / 8 * G + g] |= (uint32_t)(m + 7) << 4 * (r % 8);
                want[r][k] = (float)(((int)value - (1 << (bits - 1))) * m * steps[t]) * scales[r];
            }
        }
        snprintf(text, sizeof text, "[9,%d]", n_words);
        add(f, "a.weight_packed", "I32", text, words, (size_t)(R * n_words) * 4);
        add(f, "a.weight_scale", "F32", "[9,1]", scales, sizeof scales);
        add(f, "a.weight_multiplier", "I32", "[2,3]", multipliers, sizeof multipliers);
        add(f, "a.weight_shape", "I64", "[2]", shape, sizeof shape);
        save(f);
        nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
        assert_int_equal(c.n_tensors, 1);
        const nmlp_view *view = &nmlp_checkpoint_find(&c, "a.weight")->view;
        assert_int_equal(view->dtype, types[t]);
        for (int r = 0; r < R; r++) {
            nmlp_view one = nmlp_view_rows(view, r, 1);
            nmlp_quant_row_to_f32(row, &one, 0);
            for (int k = 0; k < K; k++) assert_true(row[k] == want[r][k]);
        }
        nmlp_checkpoint_close(&c);
    }
}

/* The parts of the file, its configuration, and the same matrix back. */
static void multipliers_are_written_as_they_are_read(void **state) {
    enum { R = 10, K = 32, G = 2, ROW_BYTES = 20 };
    struct fixture *f = *state;
    nmlp_checkpoint c;
    nmlp_err err;
    nmlp_str text;
    uint8_t codes[R * ROW_BYTES] = {0};
    int8_t multipliers[R * G] = {0};
    float scales[R] = {0}, w[R * K];
    char path[512];
    nmlp_view view = nmlp_quant_view_multiplied(codes, NMLP_DTYPE_Q5M, scales, multipliers, R, K);
    assert_int_equal(nmlp_view_bytes(&view), sizeof codes);
    for (int i = 0; i < R * K; i++) w[i] = (float)(i * 37 % 101 - 50) * (i / 16 % 2 ? 0.01f : 0.002f);
    for (int r = 0; r < R; r++) nmlp_quant_row_from_f32(&view, r, w + r * K);
    nmlp_tensor_spec spec = nmlp_tensor_spec_of("a.weight", &view);
    nmlp_tensor_part parts[NMLP_TENSOR_PARTS_MAX];
    assert_int_equal(nmlp_tensor_spec_parts(&spec, parts), 4);
    assert_string_equal(parts[2].name, "a.weight_multiplier");
    assert_int_equal(parts[2].shape[0], 2);
    assert_int_equal(parts[2].shape[1], G);
    assert_int_equal(nmlp_tensor_spec_bytes(&spec), sizeof codes + sizeof scales + 2 * G * sizeof(uint32_t));
    assert_int_equal(nmlp_quant_stored_bytes(&view), nmlp_tensor_spec_bytes(&spec));
    nmlp_str_init(&text);
    nmlp_tensor_specs_quant_config(&spec, 1, &text);
    assert_non_null(strstr(nmlp_str_text(&text), "\"format\":\"neuronmlp-packed\"")); /* which nobody else reads */
    assert_non_null(strstr(nmlp_str_text(&text), "\"num_bits\":5"));
    f->quantisation = nmlp_str_text(&text);
    add(f, "b", "F32", "[1]", NULL, 4);
    save(f); /* for its config.json */
    snprintf(path, sizeof path, "%s/model.safetensors", f->dir);
    assert_int_equal(remove(path), 0);
    nmlp_checkpoint_source source = {.specs = &spec, .n_specs = 1, .put = put_view, .ctx = &view};
    nmlp_assert_ok(nmlp_checkpoint_write(f->dir, &source, &err), &err);
    nmlp_assert_ok(nmlp_checkpoint_open(&c, f->dir, &err), &err);
    nmlp_view back = nmlp_checkpoint_find(&c, "a.weight")->view;
    assert_int_equal(back.dtype, NMLP_DTYPE_Q5M);
    assert_memory_equal(back.data, codes, sizeof codes);
    assert_memory_equal(back.scales, scales, sizeof scales);
    assert_memory_equal(back.per_group, multipliers, sizeof multipliers);
    for (int i = 0; i < R * K; i++) { /* no further off than a step of its group */
        float row[K];
        nmlp_quant_row_to_f32(row, &back, i / K);
        assert_true(fabsf(row[i % K] - w[i]) <= 1.001f * fabsf(scales[i / K] * (float)multipliers[i / 16]));
    }
    nmlp_checkpoint_close(&c);
    nmlp_str_fini(&text);
}

static void broken_multipliers_are_named(void **state) {
    struct fixture *f = *state;
    int64_t shape[2] = {2, 32}, ragged[2] = {2, 40}, one_group[2] = {2, 16};
    const uint32_t large[2] = {0xcc, 0x88}; /* 12 - 7 = 5: too much for 6 bits */
    f->quantisation = with_multipliers;
    add(f, "a.weight_packed", "I32", "[2,6]", NULL, 48);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_multiplier", "I32", "[1,2]", large, sizeof large);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_multiplier", "multiplier 5, expected -3 to 4");
    add(f, "a.weight_packed", "I32", "[2,5]", NULL, 40);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_multiplier", "I32", "[1,1]", NULL, 4);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_SHAPE, "a.weight_multiplier", "one multiplier of 4 bits per 16");
    add(f, "a.weight_packed", "I32", "[2,5]", NULL, 40);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_SHAPE, "a.weight_packed", "no matrix of 2 x 32");
    add(f, "a.weight_packed", "I32", "[2,7]", NULL, 56);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_multiplier", "I32", "[1,2]", NULL, 8);
    add(f, "a.weight_shape", "I64", "[2]", ragged, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_multiplier", "rows of 40 weights");
    add(f, "a.weight_packed", "I32", "[2,3]", NULL, 24);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_multiplier", "I32", "[1,1]", NULL, 4);
    add(f, "a.weight_shape", "I64", "[2]", one_group, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_multiplier", "two or more");
    add(f, "a.weight_packed", "I32", "[2,4]", NULL, 32);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_multiplier", "I32", "[1,2]", NULL, 8);
    add(f, "a.weight_zero_point", "I32", "[1,2]", NULL, 8);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_packed", "no zero points");
}

static void broken_parts_are_named(void **state) {
    struct fixture *f = *state;
    int64_t shape[2] = {2, 32}, longer[2] = {2, 40}, wide[2] = {1, 48};
    add(f, "a.weight_packed", "I32", "[2,4]", NULL, 32);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_MISSING, "a.weight_scale", "missing");
    add(f, "a.weight_packed", "I32", "[2,4]", NULL, 32);
    add(f, "a.weight_scale", "F16", "[2,1]", NULL, 4);
    refuse(f, NMLP_E_MISSING, "a.weight_packed", "a.weight_shape");
    add(f, "a.weight_packed", "I32", "[2,4]", NULL, 32);
    add(f, "a.weight_scale", "F16", "[2,1]", NULL, 4);
    add(f, "a.weight_shape", "I64", "[2]", longer, 16);
    refuse(f, NMLP_E_SHAPE, "a.weight_packed", "2 x 40");
    add(f, "a.weight_packed", "I32", "[2,4]", NULL, 32);
    add(f, "a.weight_scale", "F16", "[2,3]", NULL, 12);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_scale", "groups must divide rows");
    add(f, "a.weight_packed", "I32", "[1,6]", NULL, 24);
    add(f, "a.weight_scale", "F16", "[1,1]", NULL, 2);
    add(f, "a.weight_shape", "I64", "[2]", wide, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "groups of 48", "a.weight_scale");
    add(f, "a.weight_packed", "I32", "[2,8]", NULL, 64);
    add(f, "a.weight_scale", "F16", "[2,1]", NULL, 4);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "8 bits", "a.weight_packed");
    add(f, "a.weight_packed", "I32", "[2,7]", NULL, 56);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_UNSUPPORTED, "five weights of 6 bits", "a.weight_packed");
    add(f, "a.weight_packed", "I32", "[2,6]", NULL, 48);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_MISSING, "a.weight_scale", "missing");
    add(f, "a.weight_packed", "I32", "[2,6]", NULL, 48);
    add(f, "a.weight_scale", "F16", "[2,2]", NULL, 8);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    refuse(f, NMLP_E_SHAPE, "a.weight_scale", "one scale per row");
    add(f, "a.weight_packed", "I32", "[2,6]", NULL, 48);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    add(f, "a.weight_zero_point", "I8", "[2,1]", NULL, 2);
    refuse(f, NMLP_E_UNSUPPORTED, "only weights of 4 bits", "a.weight_zero_point");
    add(f, "a.weight", "I8", "[2,4]", NULL, 8);
    add(f, "a.weight_scale", "F32", "[3,1]", NULL, 12);
    refuse(f, NMLP_E_SHAPE, "a.weight_scale", "one scale per row");
    add(f, "a.weight_zero_point", "I8", "[2,1]", NULL, 2);
    refuse(f, NMLP_E_UNSUPPORTED, "zero point", "a.weight_zero_point");
    add(f, "a.weight_packed", "I32", "[2,4]", NULL, 32);
    add(f, "a.weight_scale", "F16", "[2,1]", NULL, 4);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    add(f, "a.weight_zero_point", "I32", "[2,1]", NULL, 8);
    refuse(f, NMLP_E_SHAPE, "a.weight_zero_point", "zero point");
    add(f, "a.weight_packed", "I32", "[2,4]", NULL, 32);
    add(f, "a.weight_scale", "F16", "[2,1]", NULL, 4);
    add(f, "a.weight_shape", "I64", "[2]", shape, 16);
    add(f, "a.weight_zero_point", "I8", "[2,1]", "\x07\x08", 2);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_zero_point", "zero point 8");
    add(f, "a.weight_g_idx", "I32", "[8]", NULL, 32);
    refuse(f, NMLP_E_UNSUPPORTED, "a.weight_g_idx", "I32");
    add(f, "a.weight", "I8", "[2,4]", NULL, 8);
    add(f, "a.weight_scale", "F32", "[2,1]", NULL, 8);
    f->quantisation = NULL;
    refuse(f, NMLP_E_FORMAT, "a.weight", "quantization_config");
}

static void other_schemes_are_refused(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"{\"quant_method\":\"gptq\"}", "gptq"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\",\"config_groups\":{}}",
         "nvfp4-pack-quantized"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"}", "config_groups"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{},"
         "\"kv_cache_scheme\":{\"num_bits\":8}}",
         "kv_cache_scheme"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{\"g\":{\"weights\":{"
         "\"num_bits\":8,\"symmetric\":false}}}}",
         "symmetric"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{\"g\":{\"weights\":"
         "{\"num_bits\":3}}}}",
         "3 bits"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\",\"config_groups\":{\"g\":{\"weights\":{"
         "\"num_bits\":4,\"type\":\"float\"}}}}",
         "floats of 4 bits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nmlp_checkpoint c;
        nmlp_err err;
        f->quantisation = cases[i].text;
        add(f, "a", "F32", "[1]", NULL, 4);
        save(f);
        assert_int_not_equal(nmlp_checkpoint_open(&c, f->dir, &err), NMLP_OK);
        if (!strstr(err.message, cases[i].part)) fail_msg("%s: no \"%s\"", err.message, cases[i].part);
    }
}

static void a_matrix_that_does_not_fit_is_not_written(void **state) {
    struct fixture *f = *state;
    nmlp_err err;
    nmlp_tensor_spec spec = {.name = "w", .dtype = NMLP_DTYPE_Q4, .group = 32, .n_dims = 2, .shape = {2, 48}};
    nmlp_checkpoint_source source = {.specs = &spec, .n_specs = 1};
    nmlp_assert_fails(nmlp_checkpoint_write(f->dir, &source, &err), &err, NMLP_E_SHAPE, "w [2,48]", "groups of 32",
                      NULL);
    spec = (nmlp_tensor_spec){.name = "w", .dtype = NMLP_DTYPE_Q8, .n_dims = 2, .shape = {3, 5}};
    nmlp_assert_fails(nmlp_checkpoint_write(f->dir, &source, &err), &err, NMLP_E_SHAPE, "w [3,5]", "Q8", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(words_of_four_bits_mean_what_the_format_says, setup, teardown),
        cmocka_unit_test_setup_teardown(wide_groups_and_bf16_scales_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(zero_points_mean_what_the_format_says, setup, teardown),
        cmocka_unit_test_setup_teardown(zero_points_are_written_as_they_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(floats_of_eight_bits_mean_what_the_format_says, setup, teardown),
        cmocka_unit_test_setup_teardown(broken_floats_of_eight_bits_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(floats_of_eight_bits_are_written_as_they_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(words_of_six_bits_mean_what_the_format_says, setup, teardown),
        cmocka_unit_test_setup_teardown(weights_of_six_bits_are_written_as_they_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(multipliers_mean_what_the_format_says, setup, teardown),
        cmocka_unit_test_setup_teardown(multipliers_are_written_as_they_are_read, setup, teardown),
        cmocka_unit_test_setup_teardown(broken_multipliers_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(broken_parts_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(other_schemes_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_matrix_that_does_not_fit_is_not_written, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
