/* Building tile programs. */
#include "trainium/neuron/program.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

static bool failed(const nmlp_program *p) { return p->failure.code != NMLP_OK; }

static bool name_ok(const char *name) {
    size_t len = strlen(name);
    if (len == 0 || len >= NMLP_NAME_MAX || !(isalpha((unsigned char)name[0]) || name[0] == '_')) return false;
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_') return false;
    return true;
}

static const char *keep_name(nmlp_program *p, const char *what, const char *name) {
    if (!name_ok(name)) {
        nmlp_fail(&p->failure, NMLP_E_ARG, "%s name \"%.60s\" is not an identifier of 1 to %d letters, digits or _",
                  what, name, NMLP_NAME_MAX - 1);
        return NULL;
    }
    return nmlp_arena_strdup(&p->arena, name, &p->failure);
}

/* Room for one more element; false after a failure. */
static bool grow(nmlp_program *p, void **array, size_t *capacity, size_t n, size_t elem_bytes) {
    return nmlp_mem_grow(array, capacity, n + 1, elem_bytes, &p->failure) == NMLP_OK;
}

#define GROW(p, list) grow((p), (void **)&(p)->list, &(p)->cap_##list, (p)->n_##list, sizeof *(p)->list)

nmlp_status nmlp_program_create(nmlp_program **out, const char *name, nmlp_err *err) {
    nmlp_program *p = nmlp_mem_new(1, sizeof *p, err);
    *out = NULL;
    if (!p) return NMLP_E_NOMEM;
    nmlp_arena_init(&p->arena);
    p->name = keep_name(p, "program", name);
    if (!p->name) {
        if (err) *err = p->failure;
        nmlp_status st = p->failure.code;
        nmlp_program_destroy(p);
        return st;
    }
    *out = p;
    return NMLP_OK;
}

void nmlp_program_destroy(nmlp_program *p) {
    if (!p) return;
    nmlp_mem_free(p->params);
    nmlp_mem_free(p->tensors);
    nmlp_mem_free(p->buffers);
    nmlp_mem_free(p->loops);
    nmlp_mem_free(p->instrs);
    nmlp_mem_free(p->nodes);
    nmlp_arena_fini(&p->arena);
    nmlp_mem_free(p);
}

nmlp_status nmlp_program_rename(nmlp_program *p, const char *name, nmlp_err *err) {
    const char *kept = keep_name(p, "program", name);
    if (kept) p->name = kept;
    if (kept) return NMLP_OK;
    if (err) *err = p->failure;
    return p->failure.code;
}

nmlp_status nmlp_program_finish(nmlp_program *p, nmlp_err *err) {
    if (!failed(p) && p->n_open > 0)
        nmlp_fail(&p->failure, NMLP_E_ARG, "program %s: %d loops are not closed", p->name, p->n_open);
    if (!failed(p)) return NMLP_OK;
    if (err) *err = p->failure;
    return p->failure.code;
}

void nmlp_program_add_param(nmlp_program *p, const char *name, int64_t value) {
    if (failed(p) || !GROW(p, params)) return;
    const char *kept = keep_name(p, "param", name);
    if (kept) p->params[p->n_params++] = (nmlp_tile_param){kept, value};
}

bool nmlp_program_param(const nmlp_program *p, const char *name, int64_t *value) {
    for (size_t i = 0; i < p->n_params; i++) {
        if (strcmp(p->params[i].name, name) != 0) continue;
        *value = p->params[i].value;
        return true;
    }
    return false;
}

int nmlp_program_add_tensor(nmlp_program *p, const char *name, nmlp_role role, nmlp_nc_dtype dtype, int64_t rows,
                            int64_t cols) {
    if (failed(p) || !GROW(p, tensors)) return -1;
    for (size_t i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, name) == 0)
            nmlp_fail(&p->failure, NMLP_E_ARG, "tensor \"%s\" is declared twice", name);
    if (rows < 1 || cols < 1 || rows > NMLP_INDEX_MAX || cols > NMLP_INDEX_MAX)
        nmlp_fail(&p->failure, NMLP_E_SHAPE, "tensor \"%s\" is %lldx%lld; both must be 1 to %d", name, (long long)rows,
                  (long long)cols, NMLP_INDEX_MAX);
    if (dtype == NMLP_NC_FP8 && role != NMLP_ROLE_INPUT && role != NMLP_ROLE_WEIGHT)
        nmlp_fail(&p->failure, NMLP_E_ARG, "tensor \"%s\" is fp8; only inputs and weights may be", name);
    if (failed(p)) return -1;
    const char *kept = keep_name(p, "tensor", name);
    if (!kept) return -1;
    p->tensors[p->n_tensors] = (nmlp_tensor){kept, role, dtype, rows, cols};
    return (int)p->n_tensors++;
}

int nmlp_program_add_buffer(nmlp_program *p, const nmlp_buffer *buffer) {
    if (failed(p) || !GROW(p, buffers)) return -1;
    nmlp_buffer b = *buffer;
    double elems = 1;
    bool bad = b.n_dims < 1 || b.n_dims > NMLP_FREE_DIMS_MAX || b.partitions < 1 || b.copies < 1 || b.copies > 1024;
    for (int d = 0; !bad && d < b.n_dims; d++) {
        bad = b.dims[d] < 1 || b.dims[d] > NMLP_INDEX_MAX;
        elems *= (double)b.dims[d];
    }
    if (bad || elems > NMLP_INDEX_MAX)
        nmlp_fail(&p->failure, NMLP_E_SHAPE,
                  "buffer \"%s\": partitions, 1 to %d free dimensions and copies must be at least 1, "
                  "and a copy at most 2^30 elements per partition",
                  b.name, NMLP_FREE_DIMS_MAX);
    for (size_t i = 0; i < p->n_buffers; i++)
        if (strcmp(p->buffers[i].name, b.name) == 0)
            nmlp_fail(&p->failure, NMLP_E_ARG, "buffer \"%s\" is declared twice", b.name);
    if (failed(p)) return -1;
    for (int d = b.n_dims; d < NMLP_FREE_DIMS_MAX; d++) b.dims[d] = 0;
    b.name = keep_name(p, "buffer", b.name);
    if (!b.name) return -1;
    p->buffers[p->n_buffers] = b;
    return (int)p->n_buffers++;
}

static bool var_open(const nmlp_program *p, int var) {
    for (int i = 0; i < p->n_open; i++) {
        const nmlp_node *node = &p->nodes[p->open[i]];
        if (node->kind == NMLP_NODE_LOOP && node->loop == var) return true;
    }
    return false;
}

static bool magnitude_ok(int64_t value) { return value >= -(int64_t)NMLP_INDEX_MAX && value <= NMLP_INDEX_MAX; }

static void need_affine(nmlp_program *p, const nmlp_affine *a) {
    if (a->n_terms < 0 || a->n_terms > NMLP_AFFINE_TERMS_MAX) {
        nmlp_fail(&p->failure, NMLP_E_LIMIT, "an index has more than %d terms", NMLP_AFFINE_TERMS_MAX);
        return;
    }
    bool ok = magnitude_ok(a->base);
    for (int i = 0; i < a->n_terms; i++) {
        ok = ok && magnitude_ok(a->terms[i].coef);
        if (!var_open(p, a->terms[i].var))
            nmlp_fail(&p->failure, NMLP_E_ARG, "an index uses a loop variable outside its loop");
    }
    if (!ok) nmlp_fail(&p->failure, NMLP_E_LIMIT, "an index has a constant or coefficient above 2^30");
}

static void need_size(nmlp_program *p, const nmlp_size *s) {
    if (s->full < 0 || s->full > NMLP_INDEX_MAX || (s->clamped && (s->step < 1 || s->step > NMLP_INDEX_MAX)))
        nmlp_fail(&p->failure, NMLP_E_LIMIT, "a size is negative or above 2^30");
    if (s->clamped) need_affine(p, &s->rest);
}

static void need_buf_ref(nmlp_program *p, const nmlp_instr *instr, const nmlp_buf_ref *ref) {
    if (ref->buffer < 0 || (size_t)ref->buffer >= p->n_buffers) {
        nmlp_fail(&p->failure, NMLP_E_ARG, "%s: an operand names no buffer", nmlp_op_name(instr->op));
        return;
    }
    need_size(p, &ref->parts);
    for (int d = 0; d < p->buffers[ref->buffer].n_dims; d++) {
        need_affine(p, &ref->start[d]);
        need_size(p, &ref->count[d]);
    }
}

static void need_hbm_ref(nmlp_program *p, const nmlp_instr *instr, const nmlp_hbm_ref *ref) {
    if (ref->tensor < 0 || (size_t)ref->tensor >= p->n_tensors) {
        nmlp_fail(&p->failure, NMLP_E_ARG, "%s names no tensor", nmlp_op_name(instr->op));
        return;
    }
    need_affine(p, &ref->row);
    need_affine(p, &ref->col);
    need_size(p, &ref->rows);
    need_size(p, &ref->cols);
    need_size(p, &ref->tiles);
    if (!magnitude_ok(ref->tile_rows) || ref->tile_rows < 0)
        nmlp_fail(&p->failure, NMLP_E_LIMIT, "a tile step is negative or above 2^30");
}

static int add_node(nmlp_program *p, nmlp_node node) {
    if (failed(p) || !GROW(p, nodes)) return -1;
    node.end = (int)p->n_nodes + 1;
    p->nodes[p->n_nodes] = node;
    return (int)p->n_nodes++;
}

static bool open_node(nmlp_program *p, nmlp_node node) {
    if (failed(p)) return false;
    if (p->n_open == NMLP_LOOP_DEPTH_MAX) {
        nmlp_fail(&p->failure, NMLP_E_LIMIT, "loops are nested deeper than %d", NMLP_LOOP_DEPTH_MAX);
        return false;
    }
    int at = add_node(p, node);
    if (at < 0) return false;
    p->open[p->n_open++] = at;
    return true;
}

int nmlp_program_begin_loop(nmlp_program *p, const char *name, nmlp_size trips, bool sequential) {
    if (failed(p)) return -1;
    need_size(p, &trips);
    for (int i = 0; i < p->n_open; i++) {
        const nmlp_node *node = &p->nodes[p->open[i]];
        if (node->kind == NMLP_NODE_LOOP && strcmp(p->loops[node->loop].name, name) == 0)
            nmlp_fail(&p->failure, NMLP_E_ARG, "loop \"%s\" is inside a loop of the same name", name);
    }
    if (failed(p) || !GROW(p, loops)) return -1;
    const char *kept = keep_name(p, "loop", name);
    if (!kept) return -1;
    int var = (int)p->n_loops++;
    p->loops[var] = (nmlp_loop){kept, trips, sequential};
    return open_node(p, (nmlp_node){.kind = NMLP_NODE_LOOP, .loop = var}) ? var : -1;
}

void nmlp_program_begin_if(nmlp_program *p, nmlp_when when, int var) {
    if (!failed(p) && !var_open(p, var))
        nmlp_fail(&p->failure, NMLP_E_ARG, "a condition tests a loop variable outside its loop");
    open_node(p, (nmlp_node){.kind = NMLP_NODE_IF, .loop = var, .when = when});
}

void nmlp_program_end(nmlp_program *p) {
    if (failed(p)) return;
    if (p->n_open == 0) {
        nmlp_fail(&p->failure, NMLP_E_ARG, "program %s: end without a loop", p->name);
        return;
    }
    p->nodes[p->open[--p->n_open]].end = (int)p->n_nodes;
}

void nmlp_program_add_comment(nmlp_program *p, const char *text) {
    if (failed(p)) return;
    if (strpbrk(text, "\n\r")) {
        nmlp_fail(&p->failure, NMLP_E_ARG, "a comment is one line");
        return;
    }
    while (*text == ' ') text++;
    const char *kept = nmlp_arena_strdup(&p->arena, text, &p->failure);
    if (kept) add_node(p, (nmlp_node){.kind = NMLP_NODE_COMMENT, .comment = kept});
}

static void need_operands(nmlp_program *p, const nmlp_instr *instr) {
    bool dma = instr->op == NMLP_OP_DMA_LOAD || instr->op == NMLP_OP_DMA_STORE || instr->op == NMLP_OP_DMA_TRANSPOSE;
    if (instr->op == NMLP_OP_ALLOC) {
        if (instr->dst.buffer < 0 || (size_t)instr->dst.buffer >= p->n_buffers)
            nmlp_fail(&p->failure, NMLP_E_ARG, "alloc names no buffer");
        return;
    }
    if (dma) need_hbm_ref(p, instr, &instr->hbm);
    if (instr->op != NMLP_OP_DMA_STORE) need_buf_ref(p, instr, &instr->dst);
    bool reads_a = instr->op != NMLP_OP_DMA_LOAD && instr->op != NMLP_OP_DMA_TRANSPOSE && instr->op != NMLP_OP_MEMSET;
    if (reads_a) need_buf_ref(p, instr, &instr->a);
    if (instr->op == NMLP_OP_MATMUL || instr->op == NMLP_OP_TENSOR_TENSOR) need_buf_ref(p, instr, &instr->b);
    if (instr->op == NMLP_OP_MATMUL) {
        const nmlp_accumulate *acc = &instr->accumulate;
        if (acc->n_vars < 0 || acc->n_vars > NMLP_ACCUMULATE_VARS_MAX)
            nmlp_fail(&p->failure, NMLP_E_LIMIT, "accumulate names more than %d loops", NMLP_ACCUMULATE_VARS_MAX);
        for (int i = 0; !failed(p) && i < acc->n_vars; i++)
            if (!var_open(p, acc->vars[i]))
                nmlp_fail(&p->failure, NMLP_E_ARG, "accumulate uses a loop variable outside its loop");
    }
    if (!isfinite(instr->scale) || !isfinite(instr->value))
        nmlp_fail(&p->failure, NMLP_E_ARG, "scale and value must be finite");
    if (instr->queue < 0 || instr->queue > 63)
        nmlp_fail(&p->failure, NMLP_E_LIMIT, "DMA queue %d is outside 0..63", instr->queue);
}

void nmlp_program_add_instr(nmlp_program *p, const nmlp_instr *instr) {
    if (failed(p)) return;
    need_operands(p, instr);
    if (failed(p) || !GROW(p, instrs)) return;
    p->instrs[p->n_instrs] = *instr;
    add_node(p, (nmlp_node){.kind = NMLP_NODE_INSTR, .instr = (int)p->n_instrs++});
}
