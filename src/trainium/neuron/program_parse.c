/* Parses the text form of tile programs; the grammar is in program_text.h. */
#include <string.h>

#include "trainium/neuron/program_lexer.h"
#include "trainium/neuron/program_text.h"

typedef struct parser {
    nmlp_lexer lx;
    nmlp_program *p;
} parser;

static const char *dtype_at(int i) { return nmlp_nc_dtype_name((nmlp_nc_dtype)i); }
static const char *space_at(int i) { return nmlp_space_name((nmlp_space)i); }
static const char *role_at(int i) { return nmlp_role_name((nmlp_role)i); }
static const char *engine_at(int i) { return nmlp_nc_engine_name((nmlp_nc_engine)i); }
static const char *op_at(int i) { return nmlp_op_name((nmlp_op)i); }
static const char *alu_at(int i) { return nmlp_alu_name((nmlp_alu)i); }
static const char *func_at(int i) { return nmlp_func_name((nmlp_func)i); }

/* The builder's error, with the line. */
static nmlp_status built(parser *ps, int line) {
    if (ps->p->failure.code == NMLP_OK) return NMLP_OK;
    return nmlp_fail(ps->lx.err, NMLP_E_FORMAT, "%s:%d: %s", ps->lx.where, line, ps->p->failure.message);
}

static nmlp_status take_var(parser *ps, int *var) {
    char name[NMLP_NAME_MAX];
    int line = ps->lx.token_line;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_name(&ps->lx, name, "a loop variable"));
    for (int i = ps->p->n_open - 1; i >= 0; i--) {
        const nmlp_node *node = &ps->p->nodes[ps->p->open[i]];
        if (node->kind != NMLP_NODE_LOOP || strcmp(ps->p->loops[node->loop].name, name) != 0) continue;
        *var = node->loop;
        return NMLP_OK;
    }
    return nmlp_fail(ps->lx.err, NMLP_E_FORMAT, "%s:%d: \"%s\" is not a loop around this line", ps->lx.where, line,
                     name);
}

static nmlp_status take_term(parser *ps, int64_t sign, nmlp_affine *sum) {
    int64_t coef = 1;
    int var;
    if (ps->lx.kind == NMLP_TOKEN_NUMBER) {
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &coef));
        if (!nmlp_lexer_is_mark(&ps->lx, '*')) {
            *sum = nmlp_affine_plus(*sum, nmlp_affine_const(sign * coef));
            return NMLP_OK;
        }
        NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    }
    NMLP_RETURN_IF_FAILED(take_var(ps, &var));
    *sum = nmlp_affine_plus(*sum, nmlp_affine_var(var, sign * coef));
    return NMLP_OK;
}

static nmlp_status take_affine(parser *ps, nmlp_affine *a) {
    *a = nmlp_affine_const(0);
    for (int n = 0;; n++) {
        bool minus = nmlp_lexer_is_mark(&ps->lx, '-'), plus = nmlp_lexer_is_mark(&ps->lx, '+');
        if (n > 0 && !minus && !plus) return NMLP_OK;
        if (n > 4 * NMLP_AFFINE_TERMS_MAX || a->n_terms > NMLP_AFFINE_TERMS_MAX)
            return nmlp_lexer_expected(&ps->lx, "an index of at most 6 loops");
        if (minus || plus) NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
        NMLP_RETURN_IF_FAILED(take_term(ps, minus ? -1 : 1, a));
    }
}

static nmlp_status take_size(parser *ps, nmlp_size *s) {
    *s = nmlp_size_const(0);
    if (!nmlp_lexer_is_name(&ps->lx, "min")) return nmlp_lexer_take_int(&ps->lx, &s->full);
    s->clamped = true;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '('));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &s->full));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ','));
    bool cdiv = nmlp_lexer_is_name(&ps->lx, "cdiv");
    if (cdiv) {
        NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '('));
    }
    NMLP_RETURN_IF_FAILED(take_affine(ps, &s->rest));
    if (cdiv) {
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ','));
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &s->step));
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ')'));
    }
    return nmlp_lexer_take_mark(&ps->lx, ')');
}

static nmlp_status take_span(parser *ps, nmlp_affine *start, nmlp_size *count) {
    NMLP_RETURN_IF_FAILED(take_affine(ps, start));
    *count = nmlp_size_const(1);
    if (!ps->lx.range) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    return take_size(ps, count);
}

static nmlp_status take_buffer_name(parser *ps, int *buffer) {
    char name[NMLP_NAME_MAX];
    int line = ps->lx.token_line;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_name(&ps->lx, name, "a buffer"));
    for (size_t i = 0; i < ps->p->n_buffers; i++) {
        if (strcmp(ps->p->buffers[i].name, name) != 0) continue;
        *buffer = (int)i;
        return NMLP_OK;
    }
    return nmlp_fail(ps->lx.err, NMLP_E_FORMAT, "%s:%d: no buffer \"%s\" is declared", ps->lx.where, line, name);
}

static nmlp_status take_buf(parser *ps, nmlp_buf_ref *ref) {
    nmlp_affine part;
    *ref = (nmlp_buf_ref){.buffer = -1};
    NMLP_RETURN_IF_FAILED(take_buffer_name(ps, &ref->buffer));
    int n_dims = ps->p->buffers[ref->buffer].n_dims;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '['));
    NMLP_RETURN_IF_FAILED(take_span(ps, &part, &ref->parts));
    if (part.n_terms != 0 || part.base < 0 || part.base > 4096)
        return nmlp_lexer_expected(&ps->lx, "a constant start partition");
    ref->part = (int)part.base;
    for (int d = 0; d < n_dims; d++) {
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, d ? ',' : ';'));
        NMLP_RETURN_IF_FAILED(take_span(ps, &ref->start[d], &ref->count[d]));
    }
    return nmlp_lexer_take_mark(&ps->lx, ']');
}

static nmlp_status take_hbm(parser *ps, nmlp_hbm_ref *ref) {
    char name[NMLP_NAME_MAX];
    int line = ps->lx.token_line;
    *ref = (nmlp_hbm_ref){.tensor = -1, .tiles = nmlp_size_const(1)};
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_name(&ps->lx, name, "a tensor"));
    for (size_t i = 0; i < ps->p->n_tensors; i++)
        if (strcmp(ps->p->tensors[i].name, name) == 0) ref->tensor = (int)i;
    if (ref->tensor < 0)
        return nmlp_fail(ps->lx.err, NMLP_E_FORMAT, "%s:%d: no tensor \"%s\" is declared", ps->lx.where, line, name);
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '['));
    NMLP_RETURN_IF_FAILED(take_span(ps, &ref->row, &ref->rows));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ','));
    NMLP_RETURN_IF_FAILED(take_span(ps, &ref->col, &ref->cols));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ']'));
    if (!nmlp_lexer_is_name(&ps->lx, "stack")) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    NMLP_RETURN_IF_FAILED(take_size(ps, &ref->tiles));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "by"));
    return nmlp_lexer_take_int(&ps->lx, &ref->tile_rows);
}

static nmlp_status take_accumulate(parser *ps, nmlp_accumulate *acc) {
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "accumulate"));
    if (nmlp_lexer_is_name(&ps->lx, "never")) return nmlp_lexer_next(&ps->lx);
    acc->always = nmlp_lexer_is_name(&ps->lx, "always");
    if (acc->always) return nmlp_lexer_next(&ps->lx);
    for (;;) {
        if (acc->n_vars == NMLP_ACCUMULATE_VARS_MAX)
            return nmlp_lexer_expected(&ps->lx, "at most 4 loops to accumulate over");
        NMLP_RETURN_IF_FAILED(take_var(ps, &acc->vars[acc->n_vars++]));
        if (!nmlp_lexer_is_mark(&ps->lx, ',')) return NMLP_OK;
        NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    }
}

static nmlp_status take_engine(parser *ps, nmlp_nc_engine *engine) {
    int choice = 0;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "on"));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_choice(&ps->lx, engine_at, NMLP_N_ENGINES, "an engine", &choice));
    *engine = (nmlp_nc_engine)choice;
    return NMLP_OK;
}

static nmlp_status take_dma(parser *ps, nmlp_instr *in) {
    int64_t queue;
    in->engine = NMLP_ENGINE_DMA;
    bool store = in->op == NMLP_OP_DMA_STORE;
    if (store)
        NMLP_RETURN_IF_FAILED(take_hbm(ps, &in->hbm));
    else
        NMLP_RETURN_IF_FAILED(take_buf(ps, &in->dst));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '='));
    if (store)
        NMLP_RETURN_IF_FAILED(take_buf(ps, &in->a));
    else
        NMLP_RETURN_IF_FAILED(take_hbm(ps, &in->hbm));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "queue"));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &queue));
    in->queue = (int)queue;
    return NMLP_OK;
}

static nmlp_status take_matmul(parser *ps, nmlp_instr *in) {
    in->engine = NMLP_ENGINE_TENSOR;
    NMLP_RETURN_IF_FAILED(take_buf(ps, &in->dst));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "stationary"));
    NMLP_RETURN_IF_FAILED(take_buf(ps, &in->a));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "moving"));
    NMLP_RETURN_IF_FAILED(take_buf(ps, &in->b));
    return take_accumulate(ps, &in->accumulate);
}

static nmlp_status take_elementwise(parser *ps, nmlp_instr *in) {
    int choice = 0;
    NMLP_RETURN_IF_FAILED(take_buf(ps, &in->dst));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '='));
    if (in->op == NMLP_OP_MEMSET) {
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_real(&ps->lx, &in->value));
    } else if (in->op == NMLP_OP_ACTIVATION) {
        NMLP_RETURN_IF_FAILED(
            nmlp_lexer_take_choice(&ps->lx, func_at, NMLP_N_FUNCS, "an activation function", &choice));
        in->func = (nmlp_func)choice;
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '('));
        NMLP_RETURN_IF_FAILED(take_buf(ps, &in->a));
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ')'));
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "scale"));
        if (ps->lx.kind == NMLP_TOKEN_NAME)
            NMLP_RETURN_IF_FAILED(take_buf(ps, &in->b));
        else
            NMLP_RETURN_IF_FAILED(nmlp_lexer_take_real(&ps->lx, &in->scale));
    } else {
        NMLP_RETURN_IF_FAILED(take_buf(ps, &in->a));
    }
    if (in->op == NMLP_OP_TENSOR_TENSOR || in->op == NMLP_OP_TENSOR_SCALAR) {
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_choice(&ps->lx, alu_at, NMLP_N_ALUS, "add, mul, sub or max", &choice));
        in->alu = (nmlp_alu)choice;
        NMLP_RETURN_IF_FAILED(take_buf(ps, &in->b));
    }
    return take_engine(ps, &in->engine);
}

static nmlp_status take_instr(parser *ps) {
    int line = ps->lx.token_line, choice = 0;
    nmlp_instr in = {.scale = 1.0};
    in.dst.buffer = in.a.buffer = in.b.buffer = in.hbm.tensor = -1;
    NMLP_RETURN_IF_FAILED(
        nmlp_lexer_take_choice(&ps->lx, op_at, NMLP_N_OPS, "an instruction, for, if, } or end", &choice));
    in.op = (nmlp_op)choice;
    switch (in.op) {
    case NMLP_OP_ALLOC:
        in.engine = NMLP_ENGINE_DMA;
        NMLP_RETURN_IF_FAILED(take_buffer_name(ps, &in.dst.buffer));
        break;
    case NMLP_OP_DMA_LOAD:
    case NMLP_OP_DMA_STORE:
    case NMLP_OP_DMA_TRANSPOSE: NMLP_RETURN_IF_FAILED(take_dma(ps, &in)); break;
    case NMLP_OP_MATMUL: NMLP_RETURN_IF_FAILED(take_matmul(ps, &in)); break;
    default: NMLP_RETURN_IF_FAILED(take_elementwise(ps, &in)); break;
    }
    nmlp_program_add_instr(ps->p, &in);
    return built(ps, line);
}

static nmlp_status take_for(parser *ps) {
    char name[NMLP_NAME_MAX];
    nmlp_size trips;
    int line = ps->lx.token_line;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    bool sequential = nmlp_lexer_is_name(&ps->lx, "sequential");
    if (sequential) NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_name(&ps->lx, name, "a loop name"));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "in"));
    NMLP_RETURN_IF_FAILED(take_size(ps, &trips));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '{'));
    nmlp_program_begin_loop(ps->p, name, trips, sequential);
    return built(ps, line);
}

static nmlp_status take_if(parser *ps) {
    int var, line = ps->lx.token_line;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    bool first = nmlp_lexer_is_name(&ps->lx, "first");
    if (!first && !nmlp_lexer_is_name(&ps->lx, "later")) return nmlp_lexer_expected(&ps->lx, "first or later");
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    NMLP_RETURN_IF_FAILED(take_var(ps, &var));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '{'));
    nmlp_program_begin_if(ps->p, first ? NMLP_WHEN_FIRST : NMLP_WHEN_LATER, var);
    return built(ps, line);
}

static nmlp_status take_body(parser *ps) {
    while (!nmlp_lexer_is_name(&ps->lx, "end")) {
        int line = ps->lx.token_line;
        if (ps->lx.kind == NMLP_TOKEN_COMMENT) {
            nmlp_program_add_comment(ps->p, ps->lx.text);
            NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
        } else if (nmlp_lexer_is_mark(&ps->lx, '}')) {
            nmlp_program_end(ps->p);
            NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
        } else if (nmlp_lexer_is_name(&ps->lx, "for")) {
            NMLP_RETURN_IF_FAILED(take_for(ps));
        } else if (nmlp_lexer_is_name(&ps->lx, "if")) {
            NMLP_RETURN_IF_FAILED(take_if(ps));
        } else {
            NMLP_RETURN_IF_FAILED(take_instr(ps));
        }
        NMLP_RETURN_IF_FAILED(built(ps, line));
    }
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    while (ps->lx.kind == NMLP_TOKEN_COMMENT) NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    return ps->lx.kind == NMLP_TOKEN_END ? NMLP_OK : nmlp_lexer_expected(&ps->lx, "nothing after end");
}

static nmlp_status take_tensor(parser *ps) {
    char name[NMLP_NAME_MAX];
    int role = 0, dtype = 0, line = ps->lx.token_line;
    int64_t rows, cols;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_name(&ps->lx, name, "a tensor name"));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_choice(&ps->lx, role_at, 4, "input, weight, output or scratch", &role));
    NMLP_RETURN_IF_FAILED(
        nmlp_lexer_take_choice(&ps->lx, dtype_at, NMLP_N_NC_DTYPES, "fp32, bf16, fp16 or fp8", &dtype));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '['));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &rows));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ','));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &cols));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ']'));
    nmlp_program_add_tensor(ps->p, name, (nmlp_role)role, (nmlp_nc_dtype)dtype, rows, cols);
    return built(ps, line);
}

static nmlp_status take_buffer(parser *ps) {
    char name[NMLP_NAME_MAX];
    nmlp_buffer b = {0};
    int space = 0, dtype = 0, line = ps->lx.token_line;
    int64_t n;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_name(&ps->lx, name, "a buffer name"));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_choice(&ps->lx, space_at, 2, "sbuf or psum", &space));
    NMLP_RETURN_IF_FAILED(
        nmlp_lexer_take_choice(&ps->lx, dtype_at, NMLP_N_NC_DTYPES, "fp32, bf16, fp16 or fp8", &dtype));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '['));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &n));
    b.partitions = (int)n;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ';'));
    for (;;) {
        if (b.n_dims == NMLP_FREE_DIMS_MAX) return nmlp_lexer_expected(&ps->lx, "at most 3 free dimensions");
        NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &b.dims[b.n_dims++]));
        if (!nmlp_lexer_is_mark(&ps->lx, ',')) break;
        NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    }
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, ']'));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_keyword(&ps->lx, "copies"));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &n));
    b.copies = (int)n;
    b.managed = nmlp_lexer_is_name(&ps->lx, "managed");
    if (b.managed) NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    b.name = name;
    b.space = (nmlp_space)space;
    b.dtype = (nmlp_nc_dtype)dtype;
    nmlp_program_add_buffer(ps->p, &b);
    return built(ps, line);
}

static nmlp_status take_param(parser *ps) {
    char name[NMLP_NAME_MAX];
    int64_t value;
    int line = ps->lx.token_line;
    NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_name(&ps->lx, name, "a param name"));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_mark(&ps->lx, '='));
    NMLP_RETURN_IF_FAILED(nmlp_lexer_take_int(&ps->lx, &value));
    nmlp_program_add_param(ps->p, name, value);
    return built(ps, line);
}

static nmlp_status take_declarations(parser *ps) {
    while (!nmlp_lexer_is_name(&ps->lx, "begin")) {
        if (ps->lx.kind == NMLP_TOKEN_COMMENT)
            NMLP_RETURN_IF_FAILED(nmlp_lexer_next(&ps->lx));
        else if (nmlp_lexer_is_name(&ps->lx, "param"))
            NMLP_RETURN_IF_FAILED(take_param(ps));
        else if (nmlp_lexer_is_name(&ps->lx, "tensor"))
            NMLP_RETURN_IF_FAILED(take_tensor(ps));
        else if (nmlp_lexer_is_name(&ps->lx, "buffer"))
            NMLP_RETURN_IF_FAILED(take_buffer(ps));
        else
            return nmlp_lexer_expected(&ps->lx, "param, tensor, buffer or begin");
    }
    return nmlp_lexer_next(&ps->lx);
}

nmlp_status nmlp_program_parse(nmlp_program **out, const char *where, const char *text, size_t len, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_err scratch;
    parser ps = {0};
    char name[NMLP_NAME_MAX];
    *out = NULL;
    NMLP_TRY(nmlp_lexer_init(&ps.lx, where, text, len, err ? err : &scratch));
    while (ps.lx.kind == NMLP_TOKEN_COMMENT) NMLP_TRY(nmlp_lexer_next(&ps.lx));
    NMLP_TRY(nmlp_lexer_take_keyword(&ps.lx, "program"));
    NMLP_TRY(nmlp_lexer_take_name(&ps.lx, name, "the program's name"));
    NMLP_TRY(nmlp_program_create(&ps.p, name, err));
    NMLP_TRY(take_declarations(&ps));
    NMLP_TRY(take_body(&ps));
    nmlp_program_finish(ps.p, NULL);
    NMLP_TRY(built(&ps, ps.lx.line));
    *out = ps.p;
    ps.p = NULL;
out:
    nmlp_program_destroy(ps.p);
    return st;
}
