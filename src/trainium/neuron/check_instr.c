/* Rules that one instruction can break by itself. */
#include "trainium/neuron/check_internal.h"

static bool same_affine(const nmlp_affine *a, const nmlp_affine *b) {
    bool same = a->base == b->base && a->n_terms == b->n_terms;
    for (int i = 0; same && i < a->n_terms; i++)
        same = a->terms[i].var == b->terms[i].var && a->terms[i].coef == b->terms[i].coef;
    return same;
}

static bool same_size(const nmlp_size *a, const nmlp_size *b) {
    if (a->full != b->full || a->clamped != b->clamped) return false;
    return !a->clamped || (a->step == b->step && same_affine(&a->rest, &b->rest));
}

/* The extents of an access along its free elements; extents of 1 do not count. */
typedef struct extents {
    nmlp_size size[NMLP_FREE_DIMS_MAX];
    int n;
} extents;

static void extents_add(extents *e, const nmlp_size *s) {
    if (s->clamped || s->full != 1) e->size[e->n++] = *s;
}

static extents extents_of(const nmlp_program *p, const nmlp_buf_ref *ref) {
    extents e = {.n = 0};
    for (int d = 0; d < p->buffers[ref->buffer].n_dims; d++) extents_add(&e, &ref->count[d]);
    return e;
}

static int64_t extents_upper(const nmlp_program *p, const extents *e) {
    int64_t n = 1;
    for (int i = 0; i < e->n; i++) n *= nmlp_size_upper(p, &e->size[i]);
    return n;
}

/* Same number of elements in every iteration: the same expressions, or constants with the same product. */
static bool extents_equal(const nmlp_program *p, const extents *a, const extents *b) {
    bool same = a->n == b->n, fixed = true;
    for (int i = 0; i < a->n; i++) fixed = fixed && !a->size[i].clamped;
    for (int i = 0; i < b->n; i++) fixed = fixed && !b->size[i].clamped;
    for (int i = 0; same && i < a->n; i++) same = same_size(&a->size[i], &b->size[i]);
    return same || (fixed && extents_upper(p, a) == extents_upper(p, b));
}

static nmlp_status check_partitions(nmlp_checker *ck, const nmlp_buf_ref *ref) {
    const nmlp_buffer *b = &ck->p->buffers[ref->buffer];
    int64_t parts = nmlp_size_upper(ck->p, &ref->parts), limit = (int64_t)ck->m->partitions;
    if (parts < 1 || parts > limit) return nmlp_check_refuse(ck, NMLP_RULE_partition_count, parts, limit, b->name);
    int step = parts > 64 ? 128 : parts > 32 ? 64 : 32;
    if (ref->part < 0 || ref->part % step != 0 || ref->part >= 128)
        return nmlp_check_refuse(ck, NMLP_RULE_partition_start, ref->part, ref->part - ref->part % step, b->name);
    if (ref->part + parts > b->partitions)
        return nmlp_check_refuse(ck, NMLP_RULE_buffer_range, ref->part + parts, b->partitions,
                                 "partitions of the buffer");
    return NMLP_OK;
}

/* Upper bound of start + count. */
static int64_t range_end(const nmlp_program *p, const nmlp_affine *start, const nmlp_size *count) {
    int64_t end = nmlp_affine_upper(p, start) + nmlp_size_upper(p, count);
    if (!count->clamped || count->step != 1) return end;
    nmlp_affine sum = nmlp_affine_plus(*start, count->rest);
    if (sum.n_terms > NMLP_AFFINE_TERMS_MAX) return end;
    int64_t edge = nmlp_affine_upper(p, &sum);
    return edge < end ? edge : end;
}

static int64_t range_begin(const nmlp_program *p, const nmlp_affine *start) {
    nmlp_affine negative = nmlp_affine_times(*start, -1);
    return -nmlp_affine_upper(p, &negative);
}

static nmlp_status check_access(nmlp_checker *ck, const nmlp_buf_ref *ref) {
    const nmlp_buffer *b = &ck->p->buffers[ref->buffer];
    int64_t limit = (int64_t)(b->space == NMLP_SPACE_PSUM ? ck->m->psum_free_max : ck->m->sbuf_free_max);
    NMLP_RETURN_IF_FAILED(check_partitions(ck, ref));
    for (int d = 0; d < b->n_dims; d++) {
        int64_t begin = range_begin(ck->p, &ref->start[d]), end = range_end(ck->p, &ref->start[d], &ref->count[d]);
        if (begin < 0) return nmlp_check_refuse(ck, NMLP_RULE_buffer_range, begin, 0, "start of a free range");
        if (end > b->dims[d])
            return nmlp_check_refuse(ck, NMLP_RULE_buffer_range, end, b->dims[d], "end of a free range");
    }
    extents e = extents_of(ck->p, ref);
    int64_t elems = extents_upper(ck->p, &e);
    if (elems > limit) return nmlp_check_refuse(ck, NMLP_RULE_free_size, elems, limit, "elements per partition");
    return NMLP_OK;
}

static nmlp_status check_hbm(nmlp_checker *ck, const nmlp_hbm_ref *ref) {
    const nmlp_tensor *t = &ck->p->tensors[ref->tensor];
    int64_t begin = range_begin(ck->p, &ref->row), end = range_end(ck->p, &ref->row, &ref->rows);
    int64_t tiles = nmlp_size_upper(ck->p, &ref->tiles);
    if (tiles > 1) end += (tiles - 1) * ref->tile_rows;
    if (begin < 0) return nmlp_check_refuse(ck, NMLP_RULE_hbm_range, begin, 0, "first row");
    if (end > t->rows) return nmlp_check_refuse(ck, NMLP_RULE_hbm_range, end, t->rows, "end of the rows");
    begin = range_begin(ck->p, &ref->col);
    end = range_end(ck->p, &ref->col, &ref->cols);
    if (begin < 0) return nmlp_check_refuse(ck, NMLP_RULE_hbm_range, begin, 0, "first column");
    if (end > t->cols) return nmlp_check_refuse(ck, NMLP_RULE_hbm_range, end, t->cols, "end of the columns");
    if (tiles > 1 && ref->tile_rows < nmlp_size_upper(ck->p, &ref->rows))
        return nmlp_check_refuse(ck, NMLP_RULE_dma_overlap, ref->tile_rows, nmlp_size_upper(ck->p, &ref->rows),
                                 "rows from tile to tile");
    return NMLP_OK;
}

static nmlp_space space_of(const nmlp_checker *ck, const nmlp_buf_ref *ref) {
    return ck->p->buffers[ref->buffer].space;
}
static nmlp_nc_dtype dtype_of(const nmlp_checker *ck, const nmlp_buf_ref *ref) {
    return ck->p->buffers[ref->buffer].dtype;
}

static nmlp_status need_space(nmlp_checker *ck, const nmlp_buf_ref *ref, nmlp_space space, const char *what) {
    if (space_of(ck, ref) == space) return NMLP_OK;
    return nmlp_check_refuse(ck, NMLP_RULE_operand_memory, space_of(ck, ref), space, what);
}

/* Does every access start at a multiple of NMLP_DMA_TRANSPOSE_ALIGN bytes inside its partition? */
static nmlp_status check_transpose_align(nmlp_checker *ck, const nmlp_buf_ref *ref) {
    const nmlp_buffer *b = &ck->p->buffers[ref->buffer];
    int64_t stride = (int64_t)nmlp_nc_dtype_bytes(b->dtype), align = NMLP_DMA_TRANSPOSE_ALIGN;
    for (int d = b->n_dims - 1; d >= 0; d--) {
        int64_t off = ref->start[d].base * stride % align;
        for (int i = 0; off == 0 && i < ref->start[d].n_terms; i++) off = ref->start[d].terms[i].coef * stride % align;
        if (off != 0)
            return nmlp_check_refuse(ck, NMLP_RULE_dma_transpose_align, off, 0, "bytes beyond a multiple of 32");
        stride *= b->dims[d];
    }
    return NMLP_OK;
}

static nmlp_status check_dma(nmlp_checker *ck, const nmlp_instr *in) {
    const nmlp_buf_ref *ref = in->op == NMLP_OP_DMA_STORE ? &in->a : &in->dst;
    const nmlp_tensor *t = &ck->p->tensors[in->hbm.tensor];
    extents chip = extents_of(ck->p, ref), hbm = {.n = 0};
    bool flip = in->op == NMLP_OP_DMA_TRANSPOSE;
    NMLP_RETURN_IF_FAILED(check_access(ck, ref));
    NMLP_RETURN_IF_FAILED(check_hbm(ck, &in->hbm));
    NMLP_RETURN_IF_FAILED(need_space(ck, ref, NMLP_SPACE_SBUF, "DMA reaches SBUF (0) only, not PSUM (1)"));
    if (dtype_of(ck, ref) != t->dtype)
        return nmlp_check_refuse(ck, NMLP_RULE_dma_dtype, dtype_of(ck, ref), t->dtype,
                                 "dtype (0 fp32, 1 bf16, 2 fp16, 3 fp8)");
    if (in->op == NMLP_OP_DMA_STORE && (t->role == NMLP_ROLE_INPUT || t->role == NMLP_ROLE_WEIGHT))
        return nmlp_check_refuse(ck, NMLP_RULE_read_only, t->role, NMLP_ROLE_OUTPUT,
                                 "role of the tensor (0 input, 1 weight, 2 output)");
    if (flip && ck->m->generation >= 3) NMLP_RETURN_IF_FAILED(check_transpose_align(ck, ref));
    extents_add(&hbm, &in->hbm.tiles);
    extents_add(&hbm, flip ? &in->hbm.rows : &in->hbm.cols);
    const nmlp_size *across = flip ? &in->hbm.cols : &in->hbm.rows;
    if (!same_size(&ref->parts, across))
        return nmlp_check_refuse(ck, NMLP_RULE_element_count, nmlp_size_upper(ck->p, &ref->parts),
                                 nmlp_size_upper(ck->p, across), "partitions");
    if (!extents_equal(ck->p, &chip, &hbm))
        return nmlp_check_refuse(ck, NMLP_RULE_element_count, extents_upper(ck->p, &chip), extents_upper(ck->p, &hbm),
                                 "elements per partition");
    return NMLP_OK;
}

static nmlp_status check_matmul_result(nmlp_checker *ck, const nmlp_instr *in, const extents *n) {
    const nmlp_buffer *b = &ck->p->buffers[in->dst.buffer];
    int64_t bank = (int64_t)ck->m->psum_bank_bytes,
            row = b->dims[b->n_dims - 1] * (int64_t)nmlp_nc_dtype_bytes(b->dtype);
    extents dst = extents_of(ck->p, &in->dst);
    if (!extents_equal(ck->p, &dst, n))
        return nmlp_check_refuse(ck, NMLP_RULE_matmul_result, extents_upper(ck->p, &dst), extents_upper(ck->p, n),
                                 "free elements");
    if (b->dtype != NMLP_NC_FP32 && !(ck->m->psum_16bit > 0 && b->dtype == NMLP_NC_BF16))
        return nmlp_check_refuse(ck, NMLP_RULE_psum_dtype, b->dtype, NMLP_NC_FP32,
                                 "dtype (0 fp32, 1 bf16, 2 fp16, 3 fp8)");
    if (ck->m->generation >= 4) return NMLP_OK; /* a matmul may span banks */
    if (row > bank) return nmlp_check_refuse(ck, NMLP_RULE_psum_bank, row, bank, "bytes of a row");
    if (bank % row != 0 && nmlp_buffer_copy_bytes(b) > bank)
        return nmlp_check_refuse(ck, NMLP_RULE_psum_bank, row, bank / (bank / row + 1),
                                 "rows of this size straddle banks; bytes of a row");
    return NMLP_OK;
}

static nmlp_status check_matmul(nmlp_checker *ck, const nmlp_instr *in) {
    const nmlp_machine *m = ck->m;
    extents k = extents_of(ck->p, &in->a), n = extents_of(ck->p, &in->b), parts = {.n = 0};
    int64_t stationary = extents_upper(ck->p, &k), moving = extents_upper(ck->p, &n);
    NMLP_RETURN_IF_FAILED(need_space(ck, &in->a, NMLP_SPACE_SBUF, "stationary in SBUF (0), not PSUM (1)"));
    NMLP_RETURN_IF_FAILED(need_space(ck, &in->b, NMLP_SPACE_SBUF, "moving in SBUF (0), not PSUM (1)"));
    NMLP_RETURN_IF_FAILED(need_space(ck, &in->dst, NMLP_SPACE_PSUM, "result in PSUM (1), not SBUF (0)"));
    if ((dtype_of(ck, &in->a) == NMLP_NC_FP32) != (dtype_of(ck, &in->b) == NMLP_NC_FP32))
        return nmlp_check_refuse(ck, NMLP_RULE_matmul_dtype, dtype_of(ck, &in->b), dtype_of(ck, &in->a),
                                 "dtype (0 fp32, 1 bf16, 2 fp16, 3 fp8)");
    if (!same_size(&in->a.parts, &in->b.parts) || in->a.part != in->b.part)
        return nmlp_check_refuse(ck, NMLP_RULE_matmul_contraction, nmlp_size_upper(ck->p, &in->b.parts),
                                 nmlp_size_upper(ck->p, &in->a.parts), "partitions");
    if (stationary > (int64_t)m->stationary_max)
        return nmlp_check_refuse(ck, NMLP_RULE_matmul_stationary, stationary, (int64_t)m->stationary_max,
                                 "free elements");
    if (moving > (int64_t)m->moving_max)
        return nmlp_check_refuse(ck, NMLP_RULE_matmul_moving, moving, (int64_t)m->moving_max, "free elements");
    extents_add(&parts, &in->dst.parts);
    if (!extents_equal(ck->p, &parts, &k))
        return nmlp_check_refuse(ck, NMLP_RULE_matmul_result, extents_upper(ck->p, &parts), stationary, "partitions");
    return check_matmul_result(ck, in, &n);
}

static nmlp_status check_transpose(nmlp_checker *ck, const nmlp_instr *in) {
    bool tensor = in->engine == NMLP_ENGINE_TENSOR;
    int64_t limit = tensor ? (int64_t)ck->m->stationary_max : 32;
    extents free = extents_of(ck->p, &in->a), out = extents_of(ck->p, &in->dst), rows = {.n = 0}, parts = {.n = 0};
    int64_t wide = extents_upper(ck->p, &free), tall = nmlp_size_upper(ck->p, &in->a.parts);
    if (wide > limit || tall > limit)
        return nmlp_check_refuse(ck, NMLP_RULE_transpose_size, wide > limit ? wide : tall, limit, "rows or columns");
    if (tensor) {
        NMLP_RETURN_IF_FAILED(need_space(ck, &in->a, NMLP_SPACE_SBUF, "data in SBUF (0), not PSUM (1)"));
        NMLP_RETURN_IF_FAILED(need_space(ck, &in->dst, NMLP_SPACE_PSUM, "result in PSUM (1), not SBUF (0)"));
        nmlp_nc_dtype want = ck->m->generation >= 3 ? dtype_of(ck, &in->a) : NMLP_NC_FP32;
        if (dtype_of(ck, &in->dst) != want)
            return nmlp_check_refuse(ck, NMLP_RULE_psum_dtype, dtype_of(ck, &in->dst), want,
                                     "dtype (0 fp32, 1 bf16, 2 fp16, 3 fp8)");
    }
    extents_add(&rows, &in->a.parts);
    extents_add(&parts, &in->dst.parts);
    if (!extents_equal(ck->p, &parts, &free) || !extents_equal(ck->p, &out, &rows))
        return nmlp_check_refuse(ck, NMLP_RULE_element_count, extents_upper(ck->p, &parts), wide,
                                 "partitions of the result");
    return NMLP_OK;
}

static nmlp_status check_engine(nmlp_checker *ck, const nmlp_instr *in) {
    unsigned vector = 1u << NMLP_ENGINE_VECTOR, scalar = 1u << NMLP_ENGINE_SCALAR, gpsimd = 1u << NMLP_ENGINE_GPSIMD;
    unsigned tensor = 1u << NMLP_ENGINE_TENSOR, dma = 1u << NMLP_ENGINE_DMA, allowed = 0;
    switch (in->op) {
    case NMLP_OP_ALLOC:
    case NMLP_OP_DMA_LOAD:
    case NMLP_OP_DMA_STORE:
    case NMLP_OP_DMA_TRANSPOSE: allowed = dma; break;
    case NMLP_OP_MATMUL: allowed = tensor; break;
    case NMLP_OP_TRANSPOSE: allowed = tensor | vector; break;
    case NMLP_OP_COPY: allowed = vector | gpsimd | (ck->m->scalar_tensor_copy > 0 ? scalar : 0); break;
    case NMLP_OP_TENSOR_TENSOR: allowed = vector | gpsimd; break;
    case NMLP_OP_TENSOR_SCALAR: allowed = vector; break;
    case NMLP_OP_ACTIVATION: allowed = scalar; break;
    case NMLP_OP_MEMSET: allowed = vector | gpsimd; break;
    case NMLP_N_OPS: break;
    }
    if (allowed & (1u << in->engine)) return NMLP_OK;
    int lowest = 0;
    while (allowed && !(allowed & (1u << lowest))) lowest++;
    return nmlp_check_refuse(ck, NMLP_RULE_engine, in->engine, lowest,
                             "engine (0 tensor, 1 vector, 2 scalar, 3 gpsimd, 4 dma)");
}

static nmlp_status check_same_shape(nmlp_checker *ck, const nmlp_instr *in, const nmlp_buf_ref *src) {
    extents dst = extents_of(ck->p, &in->dst), e = extents_of(ck->p, src);
    if (!same_size(&in->dst.parts, &src->parts))
        return nmlp_check_refuse(ck, NMLP_RULE_element_count, nmlp_size_upper(ck->p, &src->parts),
                                 nmlp_size_upper(ck->p, &in->dst.parts), "partitions");
    if (!extents_equal(ck->p, &dst, &e))
        return nmlp_check_refuse(ck, NMLP_RULE_element_count, extents_upper(ck->p, &e), extents_upper(ck->p, &dst),
                                 "elements per partition");
    return NMLP_OK;
}

/* One number for each partition, in fp32. */
static nmlp_status check_scalar(nmlp_checker *ck, const nmlp_instr *in) {
    extents e = extents_of(ck->p, &in->b);
    NMLP_RETURN_IF_FAILED(need_space(ck, &in->b, NMLP_SPACE_SBUF, "a number for each partition in SBUF (0)"));
    if (dtype_of(ck, &in->b) != NMLP_NC_FP32)
        return nmlp_check_refuse(ck, NMLP_RULE_scalar_operand, dtype_of(ck, &in->b), NMLP_NC_FP32,
                                 "dtype (0 fp32, 1 bf16, 2 fp16, 3 fp8)");
    if (extents_upper(ck->p, &e) != 1)
        return nmlp_check_refuse(ck, NMLP_RULE_scalar_operand, extents_upper(ck->p, &e), 1, "elements per partition");
    if (!same_size(&in->dst.parts, &in->b.parts) || in->a.part != in->b.part)
        return nmlp_check_refuse(ck, NMLP_RULE_element_count, nmlp_size_upper(ck->p, &in->b.parts),
                                 nmlp_size_upper(ck->p, &in->dst.parts), "partitions");
    return NMLP_OK;
}

static nmlp_status check_elementwise(nmlp_checker *ck, const nmlp_instr *in) {
    if (in->op == NMLP_OP_TENSOR_TENSOR && space_of(ck, &in->a) == NMLP_SPACE_PSUM &&
        space_of(ck, &in->b) == NMLP_SPACE_PSUM)
        return nmlp_check_refuse(ck, NMLP_RULE_tensor_tensor_psum, 2, 1, "operands in PSUM");
    if (in->a.buffer >= 0) NMLP_RETURN_IF_FAILED(check_same_shape(ck, in, &in->a));
    if (in->b.buffer < 0) return NMLP_OK;
    return in->op == NMLP_OP_TENSOR_TENSOR ? check_same_shape(ck, in, &in->b) : check_scalar(ck, in);
}

nmlp_status nmlp_check_instr(nmlp_checker *ck, const nmlp_instr *in) {
    const nmlp_buf_ref *refs[] = {&in->dst, &in->a, &in->b};
    if (in->op == NMLP_OP_ALLOC) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(check_engine(ck, in));
    if (in->hbm.tensor >= 0) return check_dma(ck, in);
    for (int i = 0; i < 3; i++) {
        if (refs[i]->buffer < 0) continue;
        NMLP_RETURN_IF_FAILED(check_access(ck, refs[i]));
        if (in->engine == NMLP_ENGINE_GPSIMD)
            NMLP_RETURN_IF_FAILED(
                need_space(ck, refs[i], NMLP_SPACE_SBUF, "GpSimdE reaches SBUF (0) only, not PSUM (1)"));
    }
    if (in->op == NMLP_OP_MATMUL) return check_matmul(ck, in);
    if (in->op == NMLP_OP_TRANSPOSE) return check_transpose(ck, in);
    return check_elementwise(ck, in);
}
