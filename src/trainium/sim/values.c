#include "trainium/sim/values.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "trainium/neuron/program_text.h"
#include "trainium/neuron/walk.h"
#include "trainium/sim/matmul.h"
#include "trainium/sim/values_internal.h"

nmlp_dtype nmlp_nc_dtype_to_tensor(nmlp_nc_dtype dtype) {
    static const nmlp_dtype of[] = {NMLP_DTYPE_F32, NMLP_DTYPE_BF16, NMLP_DTYPE_F16, NMLP_DTYPE_FP8};
    return of[dtype];
}

static void poison_tensor(const nmlp_tensor *t, void *data) {
    size_t n = (size_t)(t->rows * t->cols);
    if (t->dtype == NMLP_NC_FP32) {
        uint32_t *wide = data;
        for (size_t i = 0; i < n; i++) wide[i] = NMLP_POISON_F32;
    } else {
        uint16_t *narrow = data;
        uint16_t bits = t->dtype == NMLP_NC_BF16 ? NMLP_POISON_BF16 : NMLP_POISON_F16;
        for (size_t i = 0; i < n; i++) narrow[i] = bits;
    }
}

static void poison_buffer(nmlp_values *v, int buffer) {
    uint32_t *data = (uint32_t *)(void *)v->buffers[buffer];
    size_t n = (size_t)(v->p->buffers[buffer].partitions * nmlp_buffer_free_elems(&v->p->buffers[buffer]));
    for (size_t i = 0; i < n; i++) data[i] = NMLP_POISON_F32;
}

static nmlp_status create_memories(nmlp_values *v, nmlp_err *err) {
    const nmlp_program *p = v->p;
    size_t widest = 1;
    for (size_t i = 0; i < p->n_tensors; i++) {
        const nmlp_tensor *t = &p->tensors[i];
        size_t n;
        if (nmlp_mul_overflows((size_t)t->rows, (size_t)t->cols, &n))
            return nmlp_fail(err, NMLP_E_LIMIT, "tensor %s is too large", t->name);
        v->tensors[i] = nmlp_mem_new(n, nmlp_nc_dtype_bytes(t->dtype), err);
        if (!v->tensors[i]) return NMLP_E_NOMEM;
        if (t->role == NMLP_ROLE_OUTPUT || t->role == NMLP_ROLE_SCRATCH) poison_tensor(t, v->tensors[i]);
    }
    for (size_t i = 0; i < p->n_buffers; i++) {
        size_t n = (size_t)nmlp_buffer_free_elems(&p->buffers[i]);
        v->buffers[i] = nmlp_mem_new(n, (size_t)p->buffers[i].partitions * sizeof(float), err);
        if (!v->buffers[i]) return NMLP_E_NOMEM;
        poison_buffer(v, (int)i);
        if (n > widest) widest = n;
    }
    for (int i = 0; i < 2; i++) {
        v->row[i] = nmlp_mem_new(widest, sizeof(float), err);
        if (!v->row[i]) return NMLP_E_NOMEM;
    }
    return NMLP_OK;
}

nmlp_status nmlp_values_create(nmlp_values **out, const nmlp_program *program, nmlp_pool *pool, nmlp_err *err) {
    nmlp_status st = NMLP_E_NOMEM;
    *out = NULL;
    nmlp_values *v = nmlp_mem_new(1, sizeof *v, err);
    if (!v) return NMLP_E_NOMEM;
    v->p = program;
    v->pool = pool;
    v->matmul_fn = nmlp_sim_matmul_choose();
    v->tensors = nmlp_mem_new(program->n_tensors + 1, sizeof *v->tensors, err);
    v->buffers = nmlp_mem_new(program->n_buffers + 1, sizeof *v->buffers, err);
    v->scratch = nmlp_mem_new((size_t)nmlp_pool_threads(pool), NMLP_SIM_MATMUL_SCRATCH * sizeof(float), err);
    v->packed = nmlp_mem_new(3 * NMLP_SIM_MATMUL_K_MAX, NMLP_MOVING_LIMIT * sizeof(float), err);
    if (v->tensors && v->buffers && v->scratch && v->packed) st = create_memories(v, err);
    if (st == NMLP_OK)
        *out = v;
    else
        nmlp_values_destroy(v);
    return st;
}

void nmlp_values_destroy(nmlp_values *v) {
    if (!v) return;
    for (size_t i = 0; v->tensors && i < v->p->n_tensors; i++) nmlp_mem_free(v->tensors[i]);
    for (size_t i = 0; v->buffers && i < v->p->n_buffers; i++) nmlp_mem_free(v->buffers[i]);
    nmlp_mem_free(v->tensors);
    nmlp_mem_free(v->buffers);
    nmlp_mem_free(v->scratch);
    nmlp_mem_free(v->packed);
    nmlp_mem_free(v->row[0]);
    nmlp_mem_free(v->row[1]);
    nmlp_mem_free(v);
}

void *nmlp_values_tensor(nmlp_values *v, int tensor) { return v->tensors[tensor]; }

nmlp_status nmlp_values_refuse(const nmlp_values *v, const nmlp_step *step, nmlp_status code, const char *what,
                               nmlp_err *err) {
    nmlp_str text;
    nmlp_str_init(&text);
    nmlp_program_print_instr(v->p, step->instr, &text);
    nmlp_status st = nmlp_fail(err, code, "instruction %d `%.700s` %s", step->instr_index, nmlp_str_text(&text), what);
    nmlp_str_fini(&text);
    return st;
}

static bool box_inside(const nmlp_values *v, const nmlp_box *box) {
    if (box->buffer < 0) return true;
    const nmlp_buffer *b = &v->p->buffers[box->buffer];
    bool ok = box->part >= 0 && box->part + box->parts <= b->partitions;
    for (int d = 0; d < b->n_dims; d++) ok = ok && box->start[d] >= 0 && box->start[d] + box->count[d] <= b->dims[d];
    return ok;
}

static nmlp_status check_ranges(const nmlp_values *v, const nmlp_step *step, nmlp_err *err) {
    const nmlp_instr *in = step->instr;
    if (!box_inside(v, &step->dst) || !box_inside(v, &step->a) || !box_inside(v, &step->b))
        return nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "reaches outside its buffer", err);
    if (in->hbm.tensor < 0) return NMLP_OK;
    const nmlp_tensor *t = &v->p->tensors[in->hbm.tensor];
    int64_t last = step->row + (step->tiles - 1) * in->hbm.tile_rows + step->rows;
    if (step->row < 0 || step->col < 0 || last > t->rows || step->col + step->cols > t->cols)
        return nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "reaches outside its tensor", err);
    const nmlp_box *box = in->op == NMLP_OP_DMA_STORE ? &step->a : &step->dst;
    bool flip = in->op == NMLP_OP_DMA_TRANSPOSE;
    if (box->parts != (flip ? step->cols : step->rows) ||
        nmlp_box_free(box) != step->tiles * (flip ? step->rows : step->cols))
        return nmlp_values_refuse(v, step, NMLP_E_ILLEGAL, "moves a different number of elements than it has room for",
                                  err);
    return NMLP_OK;
}

static nmlp_status check_outputs(const nmlp_values *v, nmlp_err *err) {
    for (size_t i = 0; i < v->p->n_tensors; i++) {
        const nmlp_tensor *t = &v->p->tensors[i];
        if (t->role != NMLP_ROLE_OUTPUT) continue;
        for (int64_t j = 0; j < t->rows * t->cols; j++) {
            uint32_t bits =
                t->dtype == NMLP_NC_FP32 ? ((const uint32_t *)v->tensors[i])[j] : ((const uint16_t *)v->tensors[i])[j];
            uint32_t mark = t->dtype == NMLP_NC_FP32   ? NMLP_POISON_F32
                            : t->dtype == NMLP_NC_BF16 ? NMLP_POISON_BF16
                                                       : NMLP_POISON_F16;
            if (bits == mark)
                return nmlp_fail(err, NMLP_E_ILLEGAL, "program %s never writes %s[%lld, %lld]", v->p->name, t->name,
                                 (long long)(j / t->cols), (long long)(j % t->cols));
        }
    }
    return NMLP_OK;
}

nmlp_status nmlp_values_run(nmlp_values *v, const nmlp_progress *progress, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_walk walk = {0};
    nmlp_step step;
    int64_t n = 0;
    NMLP_TRY(nmlp_walk_init(&walk, v->p, err));
    for (; nmlp_walk_next(&walk, &step); n++) {
        if (step.instr->op == NMLP_OP_ALLOC) {
            NMLP_TRY(nmlp_values_flush(v, err));
            poison_buffer(v, step.dst.buffer);
            continue;
        }
        NMLP_TRY(check_ranges(v, &step, err));
        NMLP_TRY(nmlp_values_step(v, &step, err));
        if (n % 4096 == 0 && !nmlp_progress_update(progress, "values", (double)n, 0, "instructions"))
            NMLP_TRY(nmlp_fail(err, NMLP_E_INTERRUPTED, "stopped after %lld instructions", (long long)n));
    }
    NMLP_TRY(nmlp_values_flush(v, err));
    NMLP_TRY(check_outputs(v, err));
out:
    nmlp_walk_fini(&walk);
    return st;
}
