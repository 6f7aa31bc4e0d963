/* What each instruction does to the memories. */
#include <math.h>
#include <string.h>

#include "trainium/sim/values_internal.h"

/* A buffer access as at most c0 x c1 runs of `run` neighbouring elements per partition. */
typedef struct runs {
    float *base;
    int64_t part_stride, s0, s1, c0, c1, run;
} runs;

static runs runs_of(const nmlp_values *v, const nmlp_box *box) {
    const nmlp_buffer *b = &v->p->buffers[box->buffer];
    int64_t start[3] = {0, 0, 0}, count[3] = {1, 1, 1}, dims[3] = {1, 1, 1};
    for (int d = 0; d < b->n_dims; d++) {
        int at = 3 - b->n_dims + d;
        start[at] = box->start[d], count[at] = box->count[d], dims[at] = b->dims[d];
    }
    runs r = {.part_stride = nmlp_buffer_free_elems(b), .s0 = dims[1] * dims[2], .s1 = dims[2]};
    r.base = v->buffers[box->buffer] + box->part * r.part_stride + start[0] * r.s0 + start[1] * r.s1 + start[2];
    r.c0 = count[0], r.c1 = count[1], r.run = count[2];
    if (r.run == dims[2]) r.run *= r.c1, r.c1 = 1; /* whole rows stand side by side */
    return r;
}

static void gather(const runs *r, int64_t part, float *dst) {
    for (int64_t i = 0; i < r->c0; i++)
        for (int64_t j = 0; j < r->c1; j++, dst += r->run)
            memcpy(dst, r->base + part * r->part_stride + i * r->s0 + j * r->s1, (size_t)r->run * sizeof(float));
}

static void scatter(const runs *r, int64_t part, const float *src) {
    for (int64_t i = 0; i < r->c0; i++)
        for (int64_t j = 0; j < r->c1; j++, src += r->run)
            memcpy(r->base + part * r->part_stride + i * r->s0 + j * r->s1, src, (size_t)r->run * sizeof(float));
}

static bool is_poison(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits == NMLP_POISON_F32;
}

static bool has_poison(const float *x, int64_t n) {
    unsigned found = 0;
    for (int64_t i = 0; i < n; i++) found |= is_poison(x[i]);
    return found != 0;
}

/* Rounds to the dtype, staying in fp32. */
static void round_to(float *x, int64_t n, nmlp_nc_dtype dtype) {
    if (dtype == NMLP_NC_FP32) return;
    if (dtype == NMLP_NC_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
            bits = (bits & 0x7fffffffu) > 0x7f800000u ? ((bits | 0x400000u) & 0xffff0000u) : rounded;
            memcpy(&x[i], &bits, sizeof bits);
        }
        return;
    }
    for (int64_t i = 0; i < n; i++)
        x[i] = dtype == NMLP_NC_FP8 ? nmlp_fp8_round(x[i]) : nmlp_f16_to_f32(nmlp_f32_to_f16(x[i]));
}

static nmlp_nc_dtype dtype_of(const nmlp_values *v, const nmlp_box *box) { return v->p->buffers[box->buffer].dtype; }

static nmlp_status refuse_poison(const nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    nmlp_status st = nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "reads data that was never written", err);
    nmlp_fail_hint(err, "a load, memset or first product is missing, or an alloc comes too late");
    return st;
}

/* Where element (row, col) of the tensor is. */
static char *hbm_at(const nmlp_values *v, const nmlp_step *step, int64_t row, int64_t col) {
    const nmlp_tensor *t = &v->p->tensors[step->instr->hbm.tensor];
    return (char *)v->tensors[step->instr->hbm.tensor] + (size_t)(row * t->cols + col) * nmlp_nc_dtype_bytes(t->dtype);
}

static nmlp_status run_dma(nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    const nmlp_instr *in = step->instr;
    bool store = in->op == NMLP_OP_DMA_STORE;
    runs r = runs_of(v, store ? &step->a : &step->dst);
    nmlp_dtype dtype = nmlp_nc_dtype_to_tensor(v->p->tensors[in->hbm.tensor].dtype);
    for (int64_t part = 0; part < step->rows; part++) {
        if (store) {
            gather(&r, part, v->row[0]);
            if (has_poison(v->row[0], step->tiles * step->cols)) return refuse_poison(v, step, err);
        }
        for (int64_t t = 0; t < step->tiles; t++) {
            char *hbm = hbm_at(v, step, step->row + t * in->hbm.tile_rows + part, step->col);
            if (store)
                nmlp_from_f32(hbm, dtype, v->row[0] + t * step->cols, (size_t)step->cols);
            else
                nmlp_to_f32(v->row[0] + t * step->cols, hbm, dtype, (size_t)step->cols);
        }
        if (store) continue;
        if (has_poison(v->row[0], step->tiles * step->cols)) return refuse_poison(v, step, err);
        scatter(&r, part, v->row[0]);
    }
    return NMLP_OK;
}

static nmlp_status run_dma_transpose(nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    runs r = runs_of(v, &step->dst);
    nmlp_dtype dtype = nmlp_nc_dtype_to_tensor(v->p->tensors[step->instr->hbm.tensor].dtype);
    float line[128];
    if (step->cols > 128) return nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "has more than 128 partitions", err);
    for (int64_t f = 0; f < step->rows; f++) {
        int64_t i = f / (r.c1 * r.run), j = f / r.run % r.c1;
        float *dst = r.base + i * r.s0 + j * r.s1 + f % r.run;
        nmlp_to_f32(line, hbm_at(v, step, step->row + f, step->col), dtype, (size_t)step->cols);
        if (has_poison(line, step->cols)) return refuse_poison(v, step, err);
        for (int64_t part = 0; part < step->cols; part++) dst[part * r.part_stride] = line[part];
    }
    return NMLP_OK;
}

static void matmul_columns(void *ctx, int thread, int n_threads) {
    nmlp_values *v = ctx;
    const nmlp_pending *todo = &v->pending;
    int64_t units = (todo->n + 31) / 32, per = (units + n_threads - 1) / n_threads;
    int64_t begin = thread * per * 32, end = begin + per * 32;
    if (end > todo->n) end = todo->n;
    for (int i = 0; begin < end && i < todo->count; i++)
        v->matmul_fn(&todo->matmuls[i], begin, end, v->scratch + (size_t)thread * NMLP_SIM_MATMUL_SCRATCH);
}

/* The operand as one run per partition, packed where it is not. */
static const float *as_matrix(const runs *r, int64_t parts, float *packed, int64_t *stride) {
    *stride = r->part_stride;
    if (r->c0 * r->c1 == 1) return r->base;
    *stride = r->c0 * r->c1 * r->run;
    for (int64_t part = 0; part < parts; part++) gather(r, part, packed + part * *stride);
    return packed;
}

/* A marked NaN in a row of the stationary operand spoils a whole row of the result, one in the moving operand a column:
 * the first row and the first column show both. */
static bool result_spoiled(const nmlp_sim_matmul *p, int64_t n) {
    bool bad = false;
    for (int64_t j = 0; j < n; j++) bad = bad || isnan(p->out[j]);
    for (int i = 0; i < p->m; i++) bad = bad || isnan(p->out[i * p->out_stride]);
    return bad;
}

static bool operand_poison(const runs *r, int64_t parts, float *row) {
    for (int64_t part = 0; part < parts; part++) {
        gather(r, part, row);
        if (has_poison(row, r->c0 * r->c1 * r->run)) return true;
    }
    return false;
}

nmlp_status nmlp_values_flush(nmlp_values *v, nmlp_err *err) {
    nmlp_pending *todo = &v->pending;
    int count = todo->count;
    if (count == 0) return NMLP_OK;
    nmlp_pool_run(todo->n >= 64 ? v->pool : NULL, matmul_columns, v);
    todo->count = 0;
    if (!result_spoiled(&todo->matmuls[0], todo->n)) return NMLP_OK;
    for (int i = 0; i < count; i++) {
        const nmlp_step *step = &todo->steps[i];
        runs a = runs_of(v, &step->a), b = runs_of(v, &step->b), dst = runs_of(v, &step->dst);
        if (operand_poison(&a, step->a.parts, v->row[0]) || operand_poison(&b, step->b.parts, v->row[0]) ||
            (i == 0 && step->accumulate && operand_poison(&dst, step->dst.parts, v->row[0])))
            return refuse_poison(v, step, err);
    }
    return NMLP_OK;
}

/* Adds a product to those that wait, after computing them if they go to another tile. */
static nmlp_status defer(nmlp_values *v, const nmlp_step *step, const nmlp_sim_matmul *mm, int64_t n, nmlp_err *err) {
    nmlp_pending *todo = &v->pending;
    const nmlp_sim_matmul *first = &todo->matmuls[0];
    bool joins =
        todo->count > 0 && todo->count < NMLP_PENDING_MAX && first->out == mm->out && first->m == mm->m && todo->n == n;
    if (!joins) NMLP_RETURN_IF_FAILED(nmlp_values_flush(v, err));
    todo->matmuls[todo->count] = *mm;
    todo->steps[todo->count++] = *step;
    todo->n = n;
    return NMLP_OK;
}

static nmlp_status run_matmul(nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    runs a = runs_of(v, &step->a), b = runs_of(v, &step->b), dst = runs_of(v, &step->dst);
    int64_t m = nmlp_box_free(&step->a), n = nmlp_box_free(&step->b), k = step->a.parts;
    if (k != step->b.parts || k > NMLP_SIM_MATMUL_K_MAX || m > NMLP_SIM_MATMUL_M_MAX || n > NMLP_MOVING_LIMIT ||
        m != step->dst.parts || n != nmlp_box_free(&step->dst))
        return nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "has operands that do not fit together", err);
    float *pack_a = v->packed, *pack_b = v->packed + NMLP_SIM_MATMUL_K_MAX * NMLP_MOVING_LIMIT;
    float *pack_out = pack_b + NMLP_SIM_MATMUL_K_MAX * NMLP_MOVING_LIMIT;
    bool split = dst.c0 * dst.c1 != 1, narrow = dtype_of(v, &step->dst) != NMLP_NC_FP32;
    bool plain = !split && !narrow && a.c0 * a.c1 == 1 && b.c0 * b.c1 == 1;
    if (!plain) NMLP_RETURN_IF_FAILED(nmlp_values_flush(v, err)); /* before the packed copies are overwritten */
    nmlp_sim_matmul p = {.m = (int)m, .k = (int)k, .accumulate = step->accumulate};
    p.a = as_matrix(&a, k, pack_a, &p.a_stride);
    p.b = as_matrix(&b, k, pack_b, &p.b_stride);
    p.out = split ? pack_out : dst.base;
    p.out_stride = split ? n : dst.part_stride;
    for (int64_t part = 0; split && step->accumulate && part < m; part++) gather(&dst, part, pack_out + part * n);
    NMLP_RETURN_IF_FAILED(defer(v, step, &p, n, err));
    if (plain) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_values_flush(v, err));
    for (int64_t part = 0; part < m; part++) {
        round_to(p.out + part * p.out_stride, n, dtype_of(v, &step->dst));
        if (split) scatter(&dst, part, pack_out + part * n);
    }
    return NMLP_OK;
}

static nmlp_status run_transpose(nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    runs a = runs_of(v, &step->a), dst = runs_of(v, &step->dst);
    int64_t wide = nmlp_box_free(&step->a), tall = step->a.parts;
    if (wide != step->dst.parts || tall != nmlp_box_free(&step->dst) || wide > 128 || tall > 128)
        return nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "has a result of the wrong shape", err);
    for (int64_t part = 0; part < tall; part++) {
        gather(&a, part, v->packed + part * wide);
        if (has_poison(v->packed + part * wide, wide)) return refuse_poison(v, step, err);
    }
    for (int64_t part = 0; part < wide; part++) {
        for (int64_t i = 0; i < tall; i++) v->row[0][i] = v->packed[i * wide + part];
        round_to(v->row[0], tall, dtype_of(v, &step->dst));
        scatter(&dst, part, v->row[0]);
    }
    return NMLP_OK;
}

static float activate(nmlp_func func, float x) {
    switch (func) {
    case NMLP_FUNC_SILU: return x / (1.0f + expf(-x));
    case NMLP_FUNC_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case NMLP_FUNC_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case NMLP_FUNC_RELU: return x > 0.0f ? x : 0.0f;
    case NMLP_FUNC_EXP: return expf(x);
    case NMLP_FUNC_RSQRT: return 1.0f / sqrtf(x);
    case NMLP_FUNC_COPY:
    case NMLP_N_FUNCS: break;
    }
    return x;
}

static void combine(nmlp_alu alu, float *x, const float *y, int64_t n) {
    switch (alu) {
    case NMLP_ALU_ADD:
        for (int64_t i = 0; i < n; i++) x[i] += y[i];
        break;
    case NMLP_ALU_MUL:
        for (int64_t i = 0; i < n; i++) x[i] *= y[i];
        break;
    case NMLP_ALU_SUB:
        for (int64_t i = 0; i < n; i++) x[i] -= y[i];
        break;
    case NMLP_ALU_MAX:
        for (int64_t i = 0; i < n; i++) x[i] = x[i] > y[i] ? x[i] : y[i];
        break;
    case NMLP_N_ALUS: break;
    }
}

static bool same_shape(const nmlp_box *a, const nmlp_box *b) {
    return b->buffer < 0 || (a->parts == b->parts && nmlp_box_free(a) == nmlp_box_free(b));
}

/* b: as many elements as the result has, or one for each partition. */
static bool second_fits(const nmlp_step *step) {
    if (step->b.buffer < 0 || step->instr->op == NMLP_OP_TENSOR_TENSOR) return same_shape(&step->dst, &step->b);
    return step->b.parts == step->dst.parts && nmlp_box_free(&step->b) == 1;
}

static void compute(const nmlp_instr *in, float *x, float *y, int64_t n) {
    bool one = in->b.buffer >= 0 && in->op != NMLP_OP_TENSOR_TENSOR;
    float scale = one ? y[0] : (float)in->scale;
    if (in->op == NMLP_OP_TENSOR_SCALAR)
        for (int64_t i = 1; i < n; i++) y[i] = y[0];
    if (in->op == NMLP_OP_TENSOR_TENSOR || in->op == NMLP_OP_TENSOR_SCALAR)
        combine(in->alu, x, y, n);
    else if (in->op == NMLP_OP_ACTIVATION && (in->func != NMLP_FUNC_COPY || scale != 1.0f))
        for (int64_t i = 0; i < n; i++) x[i] = activate(in->func, scale * x[i]);
}

static nmlp_status run_elementwise(nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    const nmlp_instr *in = step->instr;
    runs dst = runs_of(v, &step->dst), a = {0}, b = {0};
    int64_t n = nmlp_box_free(&step->dst);
    float *x = v->row[0], *y = v->row[1];
    if (!same_shape(&step->dst, &step->a) || !second_fits(step))
        return nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "has operands of different shapes", err);
    if (step->a.buffer >= 0) a = runs_of(v, &step->a);
    if (step->b.buffer >= 0) b = runs_of(v, &step->b);
    for (int64_t part = 0; part < step->dst.parts; part++) {
        if (in->op == NMLP_OP_MEMSET) {
            for (int64_t i = 0; i < n; i++) x[i] = (float)in->value;
        } else {
            gather(&a, part, x);
            if (has_poison(x, n)) return refuse_poison(v, step, err);
        }
        if (step->b.buffer >= 0) {
            gather(&b, part, y);
            if (has_poison(y, nmlp_box_free(&step->b))) return refuse_poison(v, step, err);
        }
        compute(in, x, y, n);
        round_to(x, n, dtype_of(v, &step->dst));
        scatter(&dst, part, x);
    }
    return NMLP_OK;
}

nmlp_status nmlp_values_step(nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    if (step->instr->op != NMLP_OP_MATMUL) NMLP_RETURN_IF_FAILED(nmlp_values_flush(v, err));
    switch (step->instr->op) {
    case NMLP_OP_DMA_LOAD:
    case NMLP_OP_DMA_STORE: return run_dma(v, step, err);
    case NMLP_OP_DMA_TRANSPOSE: return run_dma_transpose(v, step, err);
    case NMLP_OP_MATMUL: return run_matmul(v, step, err);
    case NMLP_OP_TRANSPOSE: return run_transpose(v, step, err);
    default: return run_elementwise(v, step, err);
    }
}
