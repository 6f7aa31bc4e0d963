#include "emit/weights.h"

#include <stdio.h>
#include <string.h>

/* Tensors by name. Chunks of K and columns are given by the parameter that holds them; "" stands for all of K, and for
 * one tile of P columns. */
static const struct {
    const char *tensor, *matrix[2], *k, *n, *chunk, *columns;
} known[] = {
    {"w", {"w", NULL}, "H", "O", "", ""},
    {"u", {"u", NULL}, "H", "R", "x_chunk", ""},
    {"v", {"v", NULL}, "R", "O", "", "columns"},
    {"w_gate", {"w_gate", NULL}, "H", "O", "", ""},
    {"w_up", {"w_up", NULL}, "H", "O", "", ""},
    {"w_gate_up", {"w_gate", "w_up"}, "H", "O", "", ""},
    {"w_down", {"w_down", NULL}, "O", "H", "act_chunk", "columns"},
    {"u_gate", {"u_gate", NULL}, "H", "R", "x_chunk", ""},
    {"u_up", {"u_up", NULL}, "H", "R", "x_chunk", ""},
    {"u_gate_up", {"u_gate_up", NULL}, "H", "R", "x_chunk", ""},
    {"v_gate", {"v_gate", NULL}, "R", "O", "", ""},
    {"v_up", {"v_up", NULL}, "R", "O", "", ""},
    {"v_gate_up", {"v_gate", "v_up"}, "R", "O", "", ""},
    {"u_down", {"u_down", NULL}, "O", "R", "act_chunk", ""},
    {"v_down", {"v_down", NULL}, "R", "H", "", "columns"},
};

enum { N_KNOWN = sizeof known / sizeof known[0] };

static int64_t cdiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t param_or(const nmlp_program *p, const char *name, int64_t fallback) {
    int64_t value;
    return name[0] && nmlp_program_param(p, name, &value) ? value : fallback;
}

/* The program says how the tensor is packed: pack_<tensor>_k, _n, _chunk, _columns, _planes. */
static bool pack_param(const nmlp_program *p, const char *tensor, const char *what, int64_t *value) {
    char name[2 * NMLP_NAME_MAX];
    snprintf(name, sizeof name, "pack_%s_%s", tensor, what);
    return nmlp_program_param(p, name, value);
}

static bool set_packing(const nmlp_program *p, const nmlp_machine *m, int at, const nmlp_tensor *t, nmlp_emit_weight *w) {
    int64_t parts = (int64_t)m->partitions, k_tiles = cdiv(w->k, parts);
    w->packed = true;
    w->chunk_tiles = param_or(p, known[at].chunk, k_tiles);
    w->columns = param_or(p, known[at].columns, parts);
    if (pack_param(p, t->name, "chunk", &w->chunk_tiles)) pack_param(p, t->name, "columns", &w->columns);
    if (w->chunk_tiles > k_tiles) w->chunk_tiles = k_tiles;
    if (w->chunk_tiles < 1 || w->columns < 1) return false;
    int64_t cols = cdiv(k_tiles, w->chunk_tiles) * cdiv(w->n, w->columns) * w->n_planes * w->chunk_tiles * w->columns;
    return t->rows == (w->k < parts ? w->k : parts) && t->cols == cols;
}

bool nmlp_emit_weight_of(const nmlp_program *p, const nmlp_machine *m, int tensor, nmlp_emit_weight *w) {
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
        int64_t packed_k;
        if (!pack_param(p, t->name, "k", &packed_k) && w->n_planes == 1 && t->rows == w->k && t->cols == w->n) return true;
        return set_packing(p, m, i, t, w);
    }
    return false;
}

static bool has_matrix(const nmlp_program *p, const nmlp_machine *m, const char *name) {
    for (size_t t = 0; t < p->n_tensors; t++) {
        nmlp_emit_weight w;
        if (!nmlp_emit_weight_of(p, m, (int)t, &w)) continue;
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

nmlp_emit_math nmlp_emit_math_of(const nmlp_program *p, const nmlp_machine *m) {
    nmlp_emit_math math = {.x_transposed = has_tensor(p, "xT"), .y_transposed = has_tensor(p, "yT")};
    if (!math.x_transposed && !has_tensor(p, "x")) return math;
    if (!math.y_transposed && !has_tensor(p, "y")) return math;
    math.shared = has_matrix(p, m, "u_gate_up");
    bool first = math.shared || (has_matrix(p, m, "u_gate") && has_matrix(p, m, "u_up"));
    math.low_rank = first && has_matrix(p, m, "v_gate") && has_matrix(p, m, "v_up") && has_matrix(p, m, "u_down") && has_matrix(p, m, "v_down");
    if (math.low_rank || (has_matrix(p, m, "w_gate") && has_matrix(p, m, "w_up") && has_matrix(p, m, "w_down"))) math.op = NMLP_EMIT_OP_MLP;
    else if (has_matrix(p, m, "w")) math.op = NMLP_EMIT_OP_XW;
    else if (has_matrix(p, m, "u") && has_matrix(p, m, "v")) math.op = NMLP_EMIT_OP_XUV;
    return math;
}
