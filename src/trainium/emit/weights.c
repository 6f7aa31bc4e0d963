#include "trainium/emit/weights.h"

#include <string.h>

#include "trainium/neuron/pack.h"
#include "trainium/neuron/program_cores.h"

/* Tensors by name: the matrix of each plane with the letter of its K, and the letter of their N. */
static const struct {
    const char *tensor;
    struct {
        const char *matrix, *k;
    } planes[2];
    const char *n;
} known[] = {
    {"w", {{"w", "H"}, {0}}, "O"},
    {"u", {{"u", "H"}, {0}}, "R"},
    {"v", {{"v", "R"}, {0}}, "O"},
    {"w_gate", {{"w_gate", "H"}, {0}}, "O"},
    {"w_up", {{"w_up", "H"}, {0}}, "O"},
    {"w_gate_up", {{"w_gate", "H"}, {"w_up", "H"}}, "O"},
    {"w_down", {{"w_down", "O"}, {0}}, "H"},
    {"u_gate", {{"u_gate", "H"}, {0}}, "RG"},
    {"u_up", {{"u_up", "H"}, {0}}, "RU"},
    {"u_gate_up", {{"u_gate", "H"}, {"u_up", "H"}}, "RG"},
    {"u_shared", {{"u_shared", "H"}, {0}}, "RG"},
    {"v_gate", {{"v_gate", "RG"}, {0}}, "O"},
    {"v_up", {{"v_up", "RU"}, {0}}, "O"},
    {"v_gate_up", {{"v_gate", "RG"}, {"v_up", "RU"}}, "O"},
    {"v_gate_w_up", {{"v_gate", "RG"}, {"w_up", "H"}}, "O"},
    {"w_gate_v_up", {{"w_gate", "H"}, {"v_up", "RU"}}, "O"},
    {"u_down", {{"u_down", "O"}, {0}}, "RD"},
    {"v_down", {{"v_down", "RD"}, {0}}, "H"},
};

enum { N_KNOWN = sizeof known / sizeof known[0] };

/* The letter under which a program has an extent: its own, that of the factor gate and up share, or R for all. */
static const char *find_letter(const nmlp_program *p, const char *letter, int64_t *extent) {
    const char *const tries[] = {letter, strcmp(letter, "RU") == 0 ? "RG" : letter, letter[0] == 'R' ? "R" : letter};
    for (int i = 0; i < 3; i++)
        if (nmlp_program_param(p, tries[i], extent) && *extent > 0) return tries[i];
    return NULL;
}

bool nmlp_emit_weight_is_split(const nmlp_emit_weight *w) {
    const char *name = w->matrix[0];
    if (!name || strlen(name) < 2) return false;
    if (w->gain) return false;
    if (w->scales) return strcmp(name + 1, "_down") != 0 && name[0] != 'u'; /* follow the outputs */
    return strcmp(name + 1, "_down") == 0 ? name[0] != 'v' : name[0] != 'u';
}

static bool set_packing(const nmlp_program *p, const nmlp_tensor *t, nmlp_emit_weight *w) {
    nmlp_pack pack;
    if (!nmlp_pack_find(p, t->name, &pack)) return w->n_planes == 1 && t->rows == w->k[0] && t->cols == w->n;
    w->packed = true;
    w->chunk_tiles = nmlp_pack_plane_tiles(&pack, 0);
    if (pack.planes > 1 && nmlp_pack_plane_tiles(&pack, 1) > w->chunk_tiles)
        w->chunk_tiles = nmlp_pack_plane_tiles(&pack, 1);
    w->columns = pack.columns;
    bool same = pack.n == w->n && pack.planes == w->n_planes && nmlp_pack_rows(&pack) == t->rows;
    w->cores = nmlp_pack_cols(&pack) == t->cols ? 1 : nmlp_program_cores(p);
    same = same && nmlp_pack_cols(&pack) * w->cores == t->cols;
    for (int i = 0; i < w->n_planes; i++) {
        w->rows[i] = nmlp_pack_plane_rows(&pack, i);
        same = same && nmlp_pack_plane_k(&pack, i) == w->k[i];
    }
    return same;
}

/* The scales of a packed tensor's outputs: [columns, tiles * planes], or [1, n] where they lie along rows. */
static bool find_scales(const nmlp_program *p, int tensor, nmlp_emit_weight *w) {
    static const char suffix[] = "_scale";
    const nmlp_tensor *t = &p->tensors[tensor];
    size_t len = strlen(t->name), end = sizeof suffix - 1;
    if (len <= end || strcmp(t->name + len - end, suffix) != 0) return false;
    for (size_t i = 0; i < p->n_tensors; i++) {
        if (strlen(p->tensors[i].name) != len - end || strncmp(p->tensors[i].name, t->name, len - end) != 0) continue;
        if (!nmlp_emit_weight_of(p, (int)i, w) || !w->packed) return false;
        int64_t tiles = (w->n + w->columns - 1) / w->columns, width = tiles * w->n_planes;
        w->packed = false;
        w->scales = true;
        w->cores = 1;
        if (w->n_planes == 1 && t->rows == 1 && t->cols == w->n) return true;
        w->tiles = tiles;
        w->cores = t->cols / width;
        return t->rows == (w->columns < w->n ? w->columns : w->n) && t->cols == width * w->cores;
    }
    return false;
}

static bool find_gain(const nmlp_program *p, const nmlp_tensor *t, nmlp_emit_weight *w) {
    int64_t h;
    w->n_name = find_letter(p, "H", &h);
    w->n = h;
    w->k[0] = 1;
    w->gain = true;
    w->columns = t->rows;
    w->tiles = t->cols;
    return w->n_name && (h + t->rows - 1) / t->rows == t->cols;
}

bool nmlp_emit_weight_of(const nmlp_program *p, int tensor, nmlp_emit_weight *w) {
    const nmlp_tensor *t = &p->tensors[tensor];
    *w = (nmlp_emit_weight){.matrix = {t->name, NULL}, .n_planes = 1, .k = {t->rows, 0}, .n = t->cols, .cores = 1};
    if (t->role == NMLP_ROLE_INPUT) return true;
    if (t->role != NMLP_ROLE_WEIGHT) return false;
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcmp(known[i].tensor, t->name) != 0) continue;
        w->n_planes = known[i].planes[1].matrix ? 2 : 1;
        w->n_name = find_letter(p, known[i].n, &w->n);
        if (!w->n_name) return false;
        for (int plane = 0; plane < w->n_planes; plane++) {
            w->matrix[plane] = known[i].planes[plane].matrix;
            w->k_name[plane] = find_letter(p, known[i].planes[plane].k, &w->k[plane]);
            if (!w->k_name[plane]) return false;
        }
        return set_packing(p, t, w);
    }
    return strcmp(t->name, NMLP_GAIN_TENSOR) == 0 ? find_gain(p, t, w) : find_scales(p, tensor, w);
}

static bool has_matrix(const nmlp_program *p, const char *name) {
    for (size_t t = 0; t < p->n_tensors; t++) {
        nmlp_emit_weight w;
        if (!nmlp_emit_weight_of(p, (int)t, &w) || w.scales || w.gain) continue;
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
    int64_t norm = 0, residual = 0;
    if (nmlp_program_param(p, "norm_e12", &norm)) math.epsilon = (double)norm * 1e-12;
    math.residual = nmlp_program_param(p, "residual", &residual) && residual > 0;
    int64_t fp8 = 0;
    math.fp8 = nmlp_program_param(p, "fp8", &fp8) && fp8 > 0;
    math.shared = has_matrix(p, "u_shared");
    math.gate_low = (math.shared || has_matrix(p, "u_gate")) && has_matrix(p, "v_gate");
    math.up_low = (math.shared || has_matrix(p, "u_up")) && has_matrix(p, "v_up");
    math.down_low = has_matrix(p, "u_down") && has_matrix(p, "v_down");
    bool gated = (math.gate_low || has_matrix(p, "w_gate")) && (math.up_low || has_matrix(p, "w_up"));
    bool down = math.down_low || has_matrix(p, "w_down");
    if (gated)
        math.op = down ? NMLP_EMIT_OP_MLP : NMLP_EMIT_OP_GATED;
    else if (has_matrix(p, "w"))
        math.op = NMLP_EMIT_OP_XW;
    else if (has_matrix(p, "u") && has_matrix(p, "v"))
        math.op = NMLP_EMIT_OP_XUV;
    return math;
}
