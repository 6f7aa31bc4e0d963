/* Weights trained through their rounding: the nearest code at the scales given, by hand. */
#include <math.h>

#include "base/mem.h"
#include "lib/testing.h"
#include "tensor/quant.h"
#include "train/rounded.h"

enum { ROWS = 3, COLS = 64, GROUP = 32 };

struct fixture {
    int8_t q8[ROWS * COLS];
    uint8_t q4[ROWS * COLS / 2];
    float scales8[ROWS];
    uint16_t scales4[ROWS * COLS / GROUP];
    int8_t zeros[ROWS * COLS / GROUP];
    float data[ROWS * COLS];
};

static float scale_of(const struct fixture *f, bool q8, int i, int j) {
    return q8 ? f->scales8[i] : nmlp_f16_to_f32(f->scales4[i * (COLS / GROUP) + j / GROUP]);
}

static int zero_of(const struct fixture *f, int i, int j) { return f->zeros[i * (COLS / GROUP) + j / GROUP]; }

static nmlp_train_param fill(struct fixture *f, bool q8, bool zeros) {
    for (int i = 0; i < ROWS; i++) {
        f->scales8[i] = 0.01f * (float)(i + 1);
        for (int g = 0; g < COLS / GROUP; g++) /* negative ones too */
            f->scales4[i * (COLS / GROUP) + g] = nmlp_f32_to_f16((g ? -0.25f : 0.125f) * (float)(i + 1));
        for (int j = 0; j < COLS; j++) {
            int code = (i * 31 + j * 7) % 16 - 8;
            f->q8[i * COLS + j] = (int8_t)(code * 15);
            f->q4[(i * COLS + j) / 2] |= (uint8_t)((code + 8) << (j & 1 ? 4 : 0));
        }
    }
    nmlp_view view = q8 ? nmlp_quant_view_q8(f->q8, f->scales8, ROWS, COLS)
                        : nmlp_quant_view_q4(f->q4, f->scales4, GROUP, ROWS, COLS);
    for (int g = 0; zeros && g < ROWS * COLS / GROUP; g++) f->zeros[g] = (int8_t)(g * 5 % 16 - 8);
    if (zeros) view.per_group = f->zeros;
    for (int i = 0; i < ROWS; i++) nmlp_quant_row_to_f32(f->data + i * COLS, &view, i);
    return (nmlp_train_param){.name = "w", .source = view, .rows = ROWS, .cols = COLS, .data = f->data};
}

static void codes_follow_the_master(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        bool q8 = kind == 1;
        struct fixture f = {0};
        nmlp_train_param p = fill(&f, q8, kind == 2);
        nmlp_train_rounded r;
        nmlp_arena arena;
        nmlp_err err;
        float before[ROWS * COLS];
        nmlp_arena_init(&arena);
        memcpy(before, f.data, sizeof before);
        nmlp_assert_ok(nmlp_train_rounded_init(&r, &p, &arena, &err), &err);
        nmlp_train_rounded_apply(&r, NULL);
        assert_memory_equal(f.data, before, sizeof before);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) /* by 0.4, 0.6 and 300 steps up */
                r.master[i * COLS + j] += (j % 3 == 0 ? 0.4f : j % 3 == 1 ? 0.6f : 300.0f) * scale_of(&f, q8, i, j);
        nmlp_train_rounded_apply(&r, NULL);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) {
                float scale = scale_of(&f, q8, i, j);
                int code = (int)lroundf(before[i * COLS + j] / scale), most = q8 ? 127 : 7 - zero_of(&f, i, j);
                int want = j % 3 == 0 ? code : j % 3 == 1 ? code + 1 : most;
                if (want > most) want = most;
                if (q8 && want < -127) want = -127;
                assert_true(f.data[i * COLS + j] == (float)want * scale);
            }
        nmlp_arena_fini(&arena);
    }
}

/* Types with multipliers: steps of a weight are those of its row times the multiplier of its group. */
static void multiplied_codes_follow_the_master(void **state) {
    static const nmlp_dtype types[] = {NMLP_DTYPE_Q6M, NMLP_DTYPE_Q5M, NMLP_DTYPE_Q4M};
    static const int halves[] = {32, 16, 8}, units[] = {1, 1, 2};
    (void)state;
    for (int t = 0; t < 3; t++) {
        uint8_t words[ROWS * COLS] = {0};
        int8_t multipliers[ROWS * COLS / 16];
        float scales[ROWS] = {0.5f, -0.25f, 2.0f}, data[ROWS * COLS];
        nmlp_view view = nmlp_quant_view_multiplied(words, types[t], scales, multipliers, ROWS, COLS);
        nmlp_train_param p = {.name = "w", .source = view, .rows = ROWS, .cols = COLS, .data = data};
        nmlp_train_rounded r;
        nmlp_arena arena;
        nmlp_err err;
        for (int g = 0; g < ROWS * COLS / 16; g++) multipliers[g] = (int8_t)(g % 3 == 0 ? -3 : 1 + g % 4);
        for (int i = 0; i < ROWS * COLS; i++) { /* a code, and 0.4 of a step more */
            float step = scales[i / COLS] * (float)(units[t] * multipliers[i / 16]);
            data[i] = ((float)(i * 7 % (2 * halves[t]) - halves[t]) + 0.4f) * step;
        }
        data[5] *= 100; /* past the end of the codes, at either side */
        nmlp_arena_init(&arena);
        nmlp_assert_ok(nmlp_train_rounded_init(&r, &p, &arena, &err), &err);
        nmlp_train_rounded_apply(&r, NULL);
        for (int i = 0; i < ROWS * COLS; i++) {
            float step = scales[i / COLS] * (float)(units[t] * multipliers[i / 16]);
            int code = i * 7 % (2 * halves[t]) - halves[t];
            if (i == 5) code = code < 0 ? -halves[t] : halves[t] - 1;
            assert_true(data[i] == (float)code * step);
        }
        nmlp_arena_fini(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(codes_follow_the_master),
                                       cmocka_unit_test(multiplied_codes_follow_the_master)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
