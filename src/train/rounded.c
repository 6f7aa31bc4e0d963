#include "train/rounded.h"

#include <math.h>
#include <string.h>

#include "tensor/quant.h"

enum { ROWS_PER_TASK = 8 };

nmlp_status nmlp_train_rounded_init(nmlp_train_rounded *r, nmlp_train_param *target, nmlp_arena *arena, nmlp_err *err) {
    size_t n = (size_t)(target->rows * target->cols);
    *r = (nmlp_train_rounded){.target = target, .master = nmlp_arena_new(arena, n, sizeof(float), err)};
    if (!r->master) return NMLP_E_NOMEM;
    memcpy(r->master, target->data, n * sizeof(float));
    return NMLP_OK;
}

/* Of a zero point or a multiplier. */
static int per_group_at(const nmlp_view *view, int64_t row, int64_t column) {
    return view->per_group[row * nmlp_quant_groups(view) + column / view->group];
}

static float scale_at(const nmlp_view *view, int64_t row, int64_t column) {
    if (view->dtype == NMLP_DTYPE_Q4)
        return nmlp_f16_to_f32(((const uint16_t *)view->scales)[row * nmlp_quant_groups(view) + column / view->group]);
    float scale = ((const float *)view->scales)[row];
    if (!nmlp_quant_has_multipliers(view->dtype)) return scale;
    return scale * (float)(nmlp_quant_multiplier_step(view->dtype) * per_group_at(view, row, column));
}

static int zero_at(const nmlp_view *view, int64_t row, int64_t column) {
    return view->dtype == NMLP_DTYPE_Q4 && view->per_group ? per_group_at(view, row, column) : 0;
}

/* Without its zero point. */
static float code_of(const nmlp_view *view, float w, float scale, int zero) {
    int lowest = nmlp_quant_lowest(view->dtype) - zero, highest = nmlp_quant_highest(view->dtype) - zero;
    if (scale == 0) return 0;
    if (view->dtype == NMLP_DTYPE_FP8) return nmlp_fp8_round(w / scale);
    return fminf(fmaxf(nearbyintf(w / scale), (float)lowest), (float)highest);
}

static void round_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const nmlp_train_rounded *r = ctx;
    const nmlp_train_param *p = r->target;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < p->cols; j++) {
            float scale = scale_at(&p->source, i, j);
            float code = code_of(&p->source, r->master[i * p->cols + j], scale, zero_at(&p->source, i, j));
            p->data[i * p->cols + j] = code * scale;
        }
}

void nmlp_train_rounded_apply(const nmlp_train_rounded *r, nmlp_pool *pool) {
    nmlp_pool_for(pool, r->target->rows, ROWS_PER_TASK, round_rows, (void *)(uintptr_t)r);
}

nmlp_status nmlp_train_rounded_put(const nmlp_train_param *p, nmlp_checkpoint_writer *writer, nmlp_err *err) {
    size_t bytes = nmlp_view_bytes(&p->source), row_bytes = bytes / (size_t)p->rows;
    unsigned char *codes = nmlp_mem_new(bytes, 1, err);
    if (!codes) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < p->rows; i++) {
        for (int64_t j = 0; j < p->cols; j++) {
            int zero = zero_at(&p->source, i, j);
            float code = code_of(&p->source, p->data[i * p->cols + j], scale_at(&p->source, i, j), zero);
            unsigned char *row = codes + (size_t)i * row_bytes;
            if (p->source.dtype == NMLP_DTYPE_Q8)
                row[j] = (unsigned char)(int8_t)code;
            else if (p->source.dtype == NMLP_DTYPE_FP8)
                row[j] = nmlp_fp8_from_rounded(code);
            else if (nmlp_quant_widens_to_q8(p->source.dtype))
                nmlp_quant_put_code(row, p->source.dtype, j, (int)code);
            else
                row[j / 2] |= (unsigned char)(((int)code + zero + 8) << (j & 1 ? 4 : 0));
        }
    }
    nmlp_status st = nmlp_checkpoint_put(writer, codes, bytes, err);
    if (st == NMLP_OK) st = nmlp_checkpoint_put_scales(writer, &p->source, err);
    nmlp_mem_free(codes);
    return st;
}
