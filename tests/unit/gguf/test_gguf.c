/* GGUF files: blocks against values of another implementation, models there and back, and every way a file can be
 * broken. */
#define _GNU_SOURCE /* memmem */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "gguf/gguf_export.h"
#include "gguf/gguf_import.h"
#include "gguf/gguf_names.h"
#include "gguf/gguf_write.h"
#include "lib/testing.h"
#include "lib/tiny_checkpoint.h"
#include "tensor/quant.h"
#include "text/tokenizer.h"

static int setup(void **state) {
    *state = tiny_fixture_create(3);
    return 0;
}

static int teardown(void **state) {
    tiny_fixture_destroy(*state);
    return 0;
}

/* Pseudo-random blocks with known scales, dequantised by the Python package gguf 0.19: the sum of (i + 1) w[i], and
 * elements of it. */
static void blocks_mean_what_another_reader_says(void **state) {
    static const int places[] = {0, 1, 7, 16, 17, 31, 32, 63, 64, 100, 128, 191, 200, 255};
    static const struct {
        nmlp_gguf_type type;
        double sum;
        float w[14];
    } cases[] = {
        {NMLP_GGUF_TYPE_Q8_0,
         -168.31744384765625,
         {-1.9354248f, -2.77410889f, -1.7741394f, -3.06442261f, 3.41925049f, -1.09674072f}},
        {NMLP_GGUF_TYPE_Q4_0,
         -21.87030029296875,
         {0.0f, -0.225799561f, -0.225799561f, 0.0645141602f, -0.0322570801f, 0.1612854f}},
        {NMLP_GGUF_TYPE_Q4_1,
         166.86639404296875,
         {0.289276123f, 0.127990723f, 0.224761963f, 0.0634765625f, 0.386047363f, 0.547332764f}},
        {NMLP_GGUF_TYPE_Q5_0,
         -10.25775146484375,
         {-0.258056641f, 0.0f, -0.290313721f, 0.0f, 0.387084961f, 0.0967712402f}},
        {NMLP_GGUF_TYPE_Q5_1,
         309.5072021484375,
         {0.0634765625f, 0.902160645f, 0.676361084f, 0.547332764f, 0.934417725f, 1.03118896f}},
        {NMLP_GGUF_TYPE_Q4_K,
         150423.92474365234,
         {-1.03552246f, -3.06771851f, -2.16452026f, -3.06771851f, -1.48712158f, -2.16452026f, 11.9070129f, 7.22973633f,
          4.9331665f, 13.2741699f, 0.597229004f, 6.10385132f, -2.60253906f, -1.26226807f}},
        {NMLP_GGUF_TYPE_Q5_K,
         290267.13296508789,
         {27.6763916f, 32.4181824f, 24.5151978f, 30.8375854f, 8.70922852f, 38.7405701f, 26.8565674f, 5.17980957f,
          4.37234497f, 21.0637817f, 12.677887f, -0.444335938f, 11.4314575f, 4.84063721f}},
        {NMLP_GGUF_TYPE_Q6_K,
         -43204.649200439453,
         {-12.1931763f, -24.3863525f, 48.7727051f, -25.1605225f, -27.6765747f, 30.192627f, -34.5795898f, 10.4512939f,
          -77.6750488f, 12.7738037f, 7.90298462f, -28.2572021f, 26.7088623f, -38.7084961f}},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const nmlp_gguf_layout *layout = nmlp_gguf_layout_of(cases[c].type);
        unsigned char block[256];
        float w[256];
        uint32_t x = 100 + (uint32_t)cases[c].type;
        bool has_min = cases[c].type == NMLP_GGUF_TYPE_Q4_1 || cases[c].type == NMLP_GGUF_TYPE_Q5_1 ||
                       cases[c].type == NMLP_GGUF_TYPE_Q4_K || cases[c].type == NMLP_GGUF_TYPE_Q5_K;
        size_t scale_at = cases[c].type == NMLP_GGUF_TYPE_Q6_K ? 208 : 0;
        for (size_t i = 0; i < layout->bytes; i++) {
            x = x * 1664525u + 1013904223u;
            block[i] = (unsigned char)(x >> 24);
        }
        for (size_t i = 0; i < (has_min ? 2u : 1u); i++) {
            uint16_t half = nmlp_f32_to_f16(0.03125f * (float)(1 + i) + 0.001f);
            memcpy(block + scale_at + 2 * i, &half, sizeof half);
        }
        nmlp_gguf_row_to_f32(w, block, cases[c].type, layout->block);
        double sum = 0;
        for (int i = 0; i < layout->block; i++) sum += (double)w[i] * (i + 1);
        if (fabs(sum - cases[c].sum) > 1e-5 * fabs(cases[c].sum) + 1e-4)
            fail_msg("%s: sum %.9g, expected %.9g", layout->name, sum, cases[c].sum);
        for (int i = 0; i < 14 && places[i] < layout->block; i++)
            if (fabsf(w[places[i]] - cases[c].w[i]) > 1e-5f * fabsf(cases[c].w[i]))
                fail_msg("%s: element %d is %.9g, expected %.9g", layout->name, places[i], (double)w[places[i]],
                         (double)cases[c].w[i]);
    }
}

static void rows_of_heads_change_order_and_come_back(void **state) {
    (void)state;
    /* Row 2 i + j of a head in pairs is row j D/2 + i in halves. */
    for (int64_t head = 0; head < 3; head++)
        for (int64_t i = 0; i < 4; i++)
            for (int64_t j = 0; j < 2; j++) {
                assert_int_equal(nmlp_gguf_row_in_halves(8 * head + 2 * i + j, 8), 8 * head + 4 * j + i);
                assert_int_equal(nmlp_gguf_row_in_pairs(8 * head + 4 * j + i, 8), 8 * head + 2 * i + j);
            }
}

static void go_there_and_back(const tiny_fixture *f, const char *type, char path[300], char back[300]) {
    nmlp_model model;
    nmlp_gguf_result out, in;
    nmlp_err err;
    snprintf(path, 300, "%s/m.gguf", f->dir);
    snprintf(back, 300, "%s/back", f->dir);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    nmlp_assert_ok(nmlp_gguf_export(&model, path, type, NULL, &out, &err), &err);
    nmlp_assert_ok(nmlp_gguf_import(path, back, NULL, &in, &err), &err);
    assert_int_equal(in.params, nmlp_model_measure(&model).params);
    nmlp_model_close(&model);
}

static void compare(const tiny_fixture *f, const char *back, double tolerance) {
    nmlp_model a, b;
    nmlp_err err;
    nmlp_assert_ok(nmlp_model_open(&a, f->dir, &err), &err);
    nmlp_assert_ok(nmlp_model_open(&b, back, &err), &err);
    assert_string_equal(a.config.architecture, b.config.architecture);
    assert_int_equal(a.config.n_kv_heads, b.config.n_kv_heads);
    assert_true(fabs(a.config.rope.theta - b.config.rope.theta) < 1);
    for (size_t i = 0; i < a.checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &a.checkpoint.tensors[i];
        const nmlp_named_tensor *u = nmlp_checkpoint_find(&b.checkpoint, t->name);
        assert_non_null(u);
        int64_t rows = t->view.n_dims == 2 ? t->view.shape[0] : 1, cols = nmlp_view_elems(&t->view) / rows;
        nmlp_view x = t->view, y = u->view;
        x.shape[0] = y.shape[0] = rows;
        x.shape[1] = y.shape[1] = cols;
        for (int64_t r = 0; r < rows; r++) {
            float want[256], got[256], peak = 0;
            nmlp_quant_row_to_f32(want, &x, r);
            nmlp_quant_row_to_f32(got, &y, r);
            for (int64_t k = 0; k < cols; k++) peak = fmaxf(peak, fabsf(want[k]));
            for (int64_t k = 0; k < cols; k++)
                if (fabs((double)got[k] - (double)want[k]) > tolerance * (double)peak)
                    fail_msg("%s [%d,%d]: %g, expected %g", t->name, (int)r, (int)k, (double)got[k], (double)want[k]);
        }
    }
    nmlp_model_close(&a);
    nmlp_model_close(&b);
}

static void models_go_there_and_back(void **state) {
    tiny_fixture *f = *state;
    char path[300], back[300];
    tiny_write(&f->c, f->dir, NMLP_DTYPE_BF16);
    go_there_and_back(f, "bf16", path, back);
    compare(f, back, 0);
    go_there_and_back(f, "q8_0", path, back);
    compare(f, back, 0.5 / 127 + 0x1p-8); /* half a step of a block, and bf16 */
    tiny_write_quantised(&f->c, f->dir, NMLP_DTYPE_Q4, 32);
    go_there_and_back(f, "q4_0", path, back);
    nmlp_model model;
    nmlp_err err;
    nmlp_assert_ok(nmlp_model_open(&model, back, &err), &err);
    assert_int_equal(model.layers[1].attention[NMLP_ATTENTION_Q].w.dtype, NMLP_DTYPE_Q4);
    nmlp_model_close(&model);
    compare(f, back, 0);
}

static void put_field(nmlp_str *out, int field, const char *bytes, size_t len) {
    nmlp_str_putc(out, (char)(field << 3 | 2));
    nmlp_str_putc(out, (char)len);
    nmlp_str_append(out, bytes, len);
}

/* A sentencepiece model of 64 pieces: control ones, letters, and some words of them by falling scores. */
static void write_pieces(const char *dir) {
    static const char *const words[] = {"he", "ll", "hell", "hello", "\xe2\x96\x81w", "or", "ld", "\xe2\x96\x81wor"};
    nmlp_str all, piece;
    char path[300];
    nmlp_str_init(&all);
    nmlp_str_init(&piece);
    for (int i = 0; i < TINY_VOCAB; i++) {
        char text[16];
        int type = i == 0 ? 2 : i < 3 ? 3 : 1;
        if (i < 3)
            snprintf(text, sizeof text, "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else if (i == 3)
            snprintf(text, sizeof text, "\xe2\x96\x81");
        else if (i < 30)
            snprintf(text, sizeof text, "%c", 'a' + i - 4);
        else if (i < 38)
            snprintf(text, sizeof text, "%s", words[i - 30]);
        else
            snprintf(text, sizeof text, "<extra%d>", i);
        nmlp_str_clear(&piece);
        put_field(&piece, 1, text, strlen(text));
        nmlp_str_putc(&piece, 2 << 3 | 5);
        nmlp_gguf_put_f32(&piece, (float)-i);
        nmlp_str_putc(&piece, 3 << 3);
        nmlp_str_putc(&piece, (char)type);
        put_field(&all, 1, nmlp_str_text(&piece), piece.len);
    }
    static const char trainer[] = {3 << 3, 2}; /* BPE */
    put_field(&all, 2, trainer, sizeof trainer);
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    nmlp_test_write_file(path, all.data, all.len);
    nmlp_str_fini(&piece);
    nmlp_str_fini(&all);
}

static void sentencepiece_tokenizers_go_there_and_back(void **state) {
    tiny_fixture *f = *state;
    char path[300], back[300];
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_BF16);
    write_pieces(f->dir);
    go_there_and_back(f, "bf16", path, back);
    nmlp_tokenizer *a, *b;
    nmlp_assert_ok(nmlp_tokenizer_load(&a, f->dir, &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_load(&b, back, &err), &err);
    nmlp_ids x = {0}, y = {0};
    static const char text[] = "hello world";
    nmlp_assert_ok(nmlp_tokenizer_encode(a, text, strlen(text), NMLP_BOS_NONE, false, &x, &err), &err);
    nmlp_assert_ok(nmlp_tokenizer_encode(b, text, strlen(text), NMLP_BOS_NONE, false, &y, &err), &err);
    assert_int_equal(x.len, 4); /* _ hello _wor ld */
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len * sizeof x.data[0]);
    assert_int_equal(x.data[1], 33);
    nmlp_ids_fini(&x);
    nmlp_ids_fini(&y);
    nmlp_tokenizer_destroy(a);
    nmlp_tokenizer_destroy(b);
}

static void factorised_models_are_not_exported(void **state) {
    tiny_fixture *f = *state;
    nmlp_model model;
    nmlp_gguf_result result;
    nmlp_err err;
    char path[300];
    snprintf(path, sizeof path, "%s/m.gguf", f->dir);
    tiny_mark_compressed(&f->c);
    tiny_factorise(&f->c, 0, "gate_proj", 5, NULL);
    tiny_write(&f->c, f->dir, NMLP_DTYPE_BF16);
    nmlp_assert_ok(nmlp_model_open(&model, f->dir, &err), &err);
    nmlp_assert_fails(nmlp_gguf_export(&model, path, "bf16", NULL, &result, &err), &err, NMLP_E_UNSUPPORTED,
                      "factorised", NULL);
    nmlp_assert_fails(nmlp_gguf_export(&model, path, "q3", NULL, &result, &err), &err, NMLP_E_ARG, "q3", NULL);
    assert_int_not_equal(access(path, F_OK), 0);
    nmlp_model_close(&model);
}

/* Every prefix of a sound file is refused, and none leads a byte past its end: the bytes are a copy of that size. */
static void truncated_files_are_refused(void **state) {
    tiny_fixture *f = *state;
    char path[300], back[300];
    nmlp_file_map map;
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_BF16);
    go_there_and_back(f, "q4_0", path, back);
    nmlp_assert_ok(nmlp_file_map_open(&map, path, &err), &err);
    for (size_t len = 0; len < map.bytes; len += len < 6000 ? 7 : 4099) {
        nmlp_gguf file;
        unsigned char *copy = malloc(len ? len : 1);
        memcpy(copy, map.data, len);
        nmlp_status st = nmlp_gguf_parse(&file, copy, len, "f", &err);
        if (st != NMLP_E_FORMAT) fail_msg("%zu of %zu bytes: status %d", len, map.bytes, (int)st);
        assert_non_null(strstr(err.message, "f: "));
        free(copy);
    }
    nmlp_file_map_close(&map);
}

/* A tensor with the name of another layer: the model has a hole, and no folder may appear. */
static void a_file_without_a_tensor_is_not_imported(void **state) {
    tiny_fixture *f = *state;
    char path[300], back[300], out[300];
    nmlp_str text;
    nmlp_gguf_result result;
    nmlp_err err;
    tiny_write(&f->c, f->dir, NMLP_DTYPE_BF16);
    go_there_and_back(f, "bf16", path, back);
    nmlp_str_init(&text);
    nmlp_assert_ok(nmlp_file_read(&text, path, 1 << 24, &err), &err);
    char *name = memmem(text.data, text.len, "blk.1.attn_output", 17);
    assert_non_null(name);
    name[4] = '7';
    nmlp_test_write_file(path, text.data, text.len);
    snprintf(out, sizeof out, "%s/hole", f->dir);
    nmlp_assert_fails(nmlp_gguf_import(path, out, NULL, &result, &err), &err, NMLP_E_MISSING, "m.gguf",
                      "no whole model", "layers.1.self_attn.o_proj", NULL);
    assert_int_not_equal(access(out, F_OK), 0);
    nmlp_test_write_file(path, "", 0);
    nmlp_assert_fails(nmlp_gguf_import(path, out, NULL, &result, &err), &err, NMLP_E_FORMAT, "m.gguf", "empty", NULL);
    nmlp_str_fini(&text);
}

/* A file of one key and one tensor, with what is asked for in its fields. */
struct recipe {
    uint32_t version, kind, type, n_dims;
    uint64_t n_tensors, n_values, cols, offset;
};

static nmlp_status parse_recipe(const struct recipe *r, nmlp_err *err) {
    nmlp_str s;
    nmlp_gguf file;
    nmlp_str_init(&s);
    nmlp_str_append(&s, "GGUF", 4);
    nmlp_gguf_put_int(&s, r->version, 4);
    nmlp_gguf_put_int(&s, r->n_tensors, 8);
    nmlp_gguf_put_int(&s, r->n_values, 8);
    nmlp_gguf_put_text(&s, "k", 1);
    nmlp_gguf_put_int(&s, r->kind, 4);
    nmlp_gguf_put_int(&s, 7, 4);
    nmlp_gguf_put_text(&s, "t", 1);
    nmlp_gguf_put_int(&s, r->n_dims, 4);
    for (uint32_t d = 0; d < r->n_dims && d < 8; d++) nmlp_gguf_put_int(&s, d ? 1 : r->cols, 8);
    nmlp_gguf_put_int(&s, r->type, 4);
    nmlp_gguf_put_int(&s, r->offset, 8);
    for (int i = 0; i < 256; i++) nmlp_str_putc(&s, 0);
    nmlp_status st = nmlp_gguf_parse(&file, (const unsigned char *)s.data, s.len, "f", err);
    if (st == NMLP_OK) nmlp_gguf_close(&file);
    nmlp_str_fini(&s);
    return st;
}

static void hostile_fields_are_refused(void **state) {
    const struct recipe sound = {.version = 3,
                                 .kind = NMLP_GGUF_U32,
                                 .type = NMLP_GGUF_TYPE_Q8_0,
                                 .n_dims = 1,
                                 .n_tensors = 1,
                                 .n_values = 1,
                                 .cols = 32};
    struct recipe r;
    nmlp_err err;
    (void)state;
    nmlp_assert_ok(parse_recipe(&sound, &err), &err);
#define REFUSE(change, code, part)                                                                                     \
    r = sound;                                                                                                         \
    r.change;                                                                                                          \
    nmlp_assert_fails(parse_recipe(&r, &err), &err, code, "f: ", part, NULL)
    REFUSE(version = 1, NMLP_E_UNSUPPORTED, "version 1");
    REFUSE(kind = 99, NMLP_E_FORMAT, "unknown type 99");
    REFUSE(type = 99, NMLP_E_UNSUPPORTED, "type 99");
    REFUSE(type = 4, NMLP_E_UNSUPPORTED, "type 4"); /* removed from the format */
    REFUSE(n_dims = 0, NMLP_E_FORMAT, "0 dimensions");
    REFUSE(n_dims = 5, NMLP_E_FORMAT, "5 dimensions");
    REFUSE(n_tensors = UINT64_MAX, NMLP_E_LIMIT, "tensors");
    REFUSE(n_values = UINT64_MAX / 2, NMLP_E_LIMIT, "keys");
    REFUSE(cols = 33, NMLP_E_FORMAT, "block of Q8_0");
    REFUSE(cols = UINT64_MAX, NMLP_E_FORMAT, "usable size");
    REFUSE(cols = 1 << 20, NMLP_E_FORMAT, "past the end");
    REFUSE(offset = UINT64_MAX - 8, NMLP_E_FORMAT, "past the end");
#undef REFUSE
}

static void weights_without_codes_are_not_written(void **state) {
    static const float bad[] = {INFINITY, -INFINITY, NAN, 1e8f, -1e8f}; /* 1e8 / 127 and / 8 are no f16 */
    static const nmlp_gguf_type types[] = {NMLP_GGUF_TYPE_Q8_0, NMLP_GGUF_TYPE_Q4_0};
    unsigned char row[2 * 34];
    (void)state;
    for (int t = 0; t < 2; t++) {
        float w[64] = {[3] = 1.5f, [40] = -2};
        assert_true(nmlp_gguf_row_from_f32(row, types[t], w, 64));
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            w[50] = bad[i];
            assert_false(nmlp_gguf_row_from_f32(row, types[t], w, 64));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_mean_what_another_reader_says),
        cmocka_unit_test(rows_of_heads_change_order_and_come_back),
        cmocka_unit_test(weights_without_codes_are_not_written),
        cmocka_unit_test_setup_teardown(models_go_there_and_back, setup, teardown),
        cmocka_unit_test_setup_teardown(sentencepiece_tokenizers_go_there_and_back, setup, teardown),
        cmocka_unit_test_setup_teardown(factorised_models_are_not_exported, setup, teardown),
        cmocka_unit_test_setup_teardown(truncated_files_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_without_a_tensor_is_not_imported, setup, teardown),
        cmocka_unit_test(hostile_fields_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
