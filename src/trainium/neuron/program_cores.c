#include "trainium/neuron/program_cores.h"

typedef struct spreading {
    const nmlp_program *from;
    nmlp_program *to;
    const bool *split;
} spreading;

int64_t nmlp_program_cores(const nmlp_program *program) {
    int64_t cores;
    return nmlp_program_param(program, NMLP_PROGRAM_CORES_PARAM, &cores) ? cores : 1;
}

/* Loops of the source are one number further: the cores' loop is 0. */
static nmlp_affine shift_affine(nmlp_affine a) {
    for (int i = 0; i < a.n_terms; i++) a.terms[i].var++;
    return a;
}

static nmlp_size shift_size(nmlp_size s) {
    s.rest = shift_affine(s.rest);
    return s;
}

static nmlp_buf_ref shift_ref(nmlp_buf_ref ref) {
    if (ref.buffer < 0) return ref;
    ref.parts = shift_size(ref.parts);
    for (int d = 0; d < NMLP_FREE_DIMS_MAX; d++) {
        ref.start[d] = shift_affine(ref.start[d]);
        ref.count[d] = shift_size(ref.count[d]);
    }
    return ref;
}

static nmlp_hbm_ref shift_hbm(const spreading *s, nmlp_hbm_ref ref) {
    const nmlp_tensor *t = &s->from->tensors[ref.tensor];
    ref.row = shift_affine(ref.row);
    ref.col = shift_affine(ref.col);
    ref.rows = shift_size(ref.rows);
    ref.cols = shift_size(ref.cols);
    ref.tiles = shift_size(ref.tiles);
    if (t->role == NMLP_ROLE_OUTPUT) ref.row = nmlp_affine_plus(nmlp_affine_var(0, t->rows), ref.row);
    if (s->split[ref.tensor]) ref.col = nmlp_affine_plus(nmlp_affine_var(0, t->cols), ref.col);
    return ref;
}

static void put_instr(spreading *s, nmlp_instr in) {
    in.dst = shift_ref(in.dst);
    in.a = shift_ref(in.a);
    in.b = shift_ref(in.b);
    if (in.hbm.tensor >= 0) in.hbm = shift_hbm(s, in.hbm);
    for (int i = 0; i < in.accumulate.n_vars; i++) in.accumulate.vars[i]++;
    nmlp_program_add_instr(s->to, &in);
}

static void put_nodes(spreading *s, int begin, int end) {
    for (int at = begin; at < end; at = s->from->nodes[at].end) {
        const nmlp_node *node = &s->from->nodes[at];
        switch (node->kind) {
        case NMLP_NODE_COMMENT: nmlp_program_add_comment(s->to, node->comment); break;
        case NMLP_NODE_INSTR: put_instr(s, s->from->instrs[node->instr]); break;
        case NMLP_NODE_LOOP: {
            const nmlp_loop *loop = &s->from->loops[node->loop];
            nmlp_program_begin_loop(s->to, loop->name, shift_size(loop->trips), loop->sequential);
            put_nodes(s, at + 1, node->end);
            nmlp_program_end(s->to);
            break;
        }
        case NMLP_NODE_IF:
            nmlp_program_begin_if(s->to, node->when, node->loop + 1);
            put_nodes(s, at + 1, node->end);
            nmlp_program_end(s->to);
            break;
        }
    }
}

nmlp_status nmlp_program_over_cores(nmlp_program **out, const nmlp_program *program, int64_t cores, const bool *split,
                                    nmlp_err *err) {
    spreading s = {.from = program, .split = split};
    *out = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_program_create(&s.to, program->name, err));
    for (size_t i = 0; i < program->n_params; i++)
        nmlp_program_add_param(s.to, program->params[i].name, program->params[i].value);
    nmlp_program_add_param(s.to, NMLP_PROGRAM_CORES_PARAM, cores);
    for (size_t i = 0; i < program->n_tensors; i++) {
        const nmlp_tensor *t = &program->tensors[i];
        nmlp_program_add_tensor(s.to, t->name, t->role, t->dtype, t->rows * (t->role == NMLP_ROLE_OUTPUT ? cores : 1),
                                t->cols * (split[i] ? cores : 1));
    }
    for (size_t i = 0; i < program->n_buffers; i++) nmlp_program_add_buffer(s.to, &program->buffers[i]);
    nmlp_program_begin_loop(s.to, "core", nmlp_size_const(cores), false);
    put_nodes(&s, 0, (int)program->n_nodes);
    nmlp_program_end(s.to);
    nmlp_status st = nmlp_program_finish(s.to, err);
    if (st == NMLP_OK)
        *out = s.to;
    else
        nmlp_program_destroy(s.to);
    return st;
}
