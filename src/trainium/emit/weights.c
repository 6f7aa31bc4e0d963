#include "trainium/emit/weights.h"

#include <string.h>

#include "trainium/neuron/pack.h"

/* Tensors by name, with the letters of the matrices' shape [K,N]. */
static const struct {
    const char *tensor, *matrix[2], *k, *n;
} known[] = {
    {"w", {"w", NULL}, "H", "O"},
    {"u", {"u", NULL}, "H", "R"},
    {"v", {"v", NULL}, "R", "O"},
    {"w_gate", {"w_gate", NULL}, "H", "O"},
    {"w_up", {"w_up", NULL}, "H", "O"},
    {"w_gate_up", {"w_gate", "w_up"}, "H", "O"},
    {"w_down", {"w_down", NULL}, "O", "H"},
    {"u_gate", {"u_gate", NULL}, "H", "R"},
    {"u_up", {"u_up", NULL}, "H", "R"},
    {"u_gate_up", {"u_gate", "u_up"}, "H", "R"},
    {"u_shared", {"u_shared", NULL}, "H", "R"},
    {"v_gate", {"v_gate", NULL}, "R", "O"},
    {"v_up", {"v_up", NULL}, "R", "O"},
    {"v_gate_up", {"v_gate", "v_up"}, "R", "O"},
    {"u_down", {"u_down", NULL}, "O", "R"},
    {"v_down", {"v_down", NULL}, "R", "H"},
};

enum { N_KNOWN = sizeof known / sizeof known[0] };

static bool set_packing(const nmlp_program *p, const nmlp_tensor *t, nmlp_emit_weight *w) {
    nmlp_pack pack;
    if (!nmlp_pack_find(p, t->name, &pack)) return w->n_planes == 1 && t->rows == w->k && t->cols == w->n;
    w->packed = true;
    w->chunk_tiles = pack.chunk_tiles;
    w->columns = pack.columns;
    return pack.k == w->k && pack.n == w->n && pack.planes == w->n_planes && nmlp_pack_rows(&pack) == t->rows &&
           nmlp_pack_cols(&pack) == t->cols;
}

bool nmlp_emit_weight_of(const nmlp_program *p, int tensor, nmlp_emit_weight *w) {
    const nmlp_tensor *t = &p->tensors[tensor];
    *w = (nmlp_emit_weight){.matrix = {t->name, NULL}, .n_planes = 1, .k = t->rows, .n = t->cols};
    if (t->role == NMLP_ROLE_INPUT) return true;
    if (t->role != NMLP_ROLE_WEIGHT) return false;
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcmp(known[i].tensor, t->name) != 0) continue;
        if (!nmlp_program_param(p, known[i].k, &w->k) || !nmlp_program_param(p, known[i].n, &w->n)) return false;
        w->k_name = known[i].k, w->n_name = known[i].n;
        w->matrix[0] = known[i].matrix[0], w->matrix[1] = known[i].matrix[1];
        w->n_planes = known[i].matrix[1] ? 2 : 1;
        return set_packing(p, t, w);
    }
    return false;
}

static bool has_matrix(const nmlp_program *p, const char *name) {
    for (size_t t = 0; t < p->n_tensors; t++) {
        nmlp_emit_weight w;
        if (!nmlp_emit_weight_of(p, (int)t, &w)) continue;
        for (int i = 0; i < w.n_planes; i++)
            if (strcmp(w.matrix[i], name) == 0) return true;
    }
    return false;
}

static bool has_tensor(const nmlp_program *p, const char *name) {
    for (size_t t = 0; t < p->n_tensors; t++)
        if (strcmp(p->tensors[t].name, name) == 0) return true;
    return false;
}

nmlp_emit_math nmlp_emit_math_of(const nmlp_program *p) {
    nmlp_emit_math math = {.x_transposed = has_tensor(p, "xT"), .y_transposed = has_tensor(p, "yT")};
    if (!math.x_transposed && !has_tensor(p, "x")) return math;
    if (!math.y_transposed && !has_tensor(p, "y")) return math;
    math.shared = has_matrix(p, "u_shared");
    bool first = math.shared || (has_matrix(p, "u_gate") && has_matrix(p, "u_up"));
    math.low_rank = first && has_matrix(p, "v_gate") && has_matrix(p, "v_up");
    bool gated = math.low_rank || (has_matrix(p, "w_gate") && has_matrix(p, "w_up"));
    bool down = math.low_rank ? has_matrix(p, "u_down") && has_matrix(p, "v_down") : has_matrix(p, "w_down");
    if (gated)
        math.op = down ? NMLP_EMIT_OP_MLP : NMLP_EMIT_OP_GATED;
    else if (has_matrix(p, "w"))
        math.op = NMLP_EMIT_OP_XW;
    else if (has_matrix(p, "u") && has_matrix(p, "v"))
        math.op = NMLP_EMIT_OP_XUV;
    return math;
}
