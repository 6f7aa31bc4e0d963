#include "trainium/sim/check_mlp.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "trainium/neuron/pack.h"
#include "trainium/sim/check_matrix.h"

enum { GATE, UP, DOWN, N_PATHS };

typedef struct path {
    nmlp_check_matrix f[2];
    int n; /* factors; 0: absent */
} path;

typedef struct network {
    nmlp_check_matrix x, y;
    bool x_transposed;
    double epsilon;    /* of a norm in front; 0: none */
    bool residual;     /* x is added to the result */
    const float *gain; /* of the norm, where it has a tensor of its own: [gain_rows, gain_cols]; NULL: none */
    int64_t gain_rows, gain_cols;
    path paths[N_PATHS];
    double *vec[4];
    double *squares[4]; /* of the sizes that rounding errors follow, beside vec */
    float *row;
    int64_t longest;
} network;

/* Where each kernel keeps a matrix: names to try, in order, and the plane of a packed pair. */
typedef struct place {
    const char *first, *second; /* second NULL: dense */
    int64_t plane[2];
} place;

enum { N_PLACES = 8 };

static const place places[N_PATHS][N_PLACES] = {
    {{"w_gate_up", NULL, {0, 0}},
     {"w_gate_v_up", NULL, {0, 0}},
     {"u_shared", "v_gate_up", {0, 0}},
     {"u_gate_up", "v_gate_up", {0, 0}},
     {"u_gate", "v_gate_up", {0, 0}},
     {"u_gate", "v_gate_w_up", {0, 0}},
     {"u_gate", "v_gate", {0, 0}},
     {"w_gate", NULL, {0, 0}}},
    {{"w_gate_up", NULL, {1, 0}},
     {"v_gate_w_up", NULL, {1, 0}},
     {"u_shared", "v_gate_up", {0, 1}},
     {"u_gate_up", "v_gate_up", {1, 1}},
     {"u_up", "v_gate_up", {0, 1}},
     {"u_up", "w_gate_v_up", {0, 1}},
     {"u_up", "v_up", {0, 0}},
     {"w_up", NULL, {0, 0}}},
    {{"w_down", NULL, {0, 0}}, {"u_down", "v_down", {0, 0}}},
};

static bool has_tensor(const nmlp_program *p, const char *name) {
    for (size_t i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, name) == 0) return true;
    return false;
}

bool nmlp_check_is_mlp(const nmlp_program *p) {
    for (int i = 0; i < N_PLACES; i++) {
        const place *at = &places[GATE][i];
        if (has_tensor(p, at->second ? at->second : at->first)) return true;
    }
    return false;
}

static bool find_path(path *out, nmlp_values *v, const nmlp_program *p, const place *tries, nmlp_err *err) {
    *out = (path){0};
    for (int i = 0; i < N_PLACES && tries[i].first; i++) {
        if (!has_tensor(p, tries[i].first) || (tries[i].second && !has_tensor(p, tries[i].second))) continue;
        out->n = tries[i].second ? 2 : 1;
        return nmlp_check_matrix_find(&out->f[0], v, p, tries[i].first, tries[i].plane[0], false, err) &&
               (!tries[i].second ||
                nmlp_check_matrix_find(&out->f[1], v, p, tries[i].second, tries[i].plane[1], false, err));
    }
    return true;
}

static nmlp_status network_open(network *n, nmlp_values *v, const nmlp_program *p, nmlp_err *err) {
    bool ok = true;
    n->x_transposed = nmlp_check_matrix_find(&n->x, v, p, "xT", 0, false, err);
    ok = (n->x_transposed || nmlp_check_matrix_find(&n->x, v, p, "x", 0, false, err));
    ok = ok && (nmlp_check_matrix_find(&n->y, v, p, "y", 0, false, err) ||
                nmlp_check_matrix_find(&n->y, v, p, "yT", 0, true, err));
    for (int i = 0; i < N_PATHS && ok; i++) ok = find_path(&n->paths[i], v, p, places[i], err);
    int64_t norm = 0, residual = 0;
    if (nmlp_program_param(p, "norm_e12", &norm)) n->epsilon = (double)norm * 1e-12;
    for (size_t i = 0; i < p->n_tensors; i++) {
        if (strcmp(p->tensors[i].name, NMLP_GAIN_TENSOR) != 0) continue;
        n->gain = nmlp_values_tensor(v, (int)i);
        n->gain_rows = p->tensors[i].rows;
        n->gain_cols = p->tensors[i].cols;
    }
    n->residual = nmlp_program_param(p, "residual", &residual) && residual > 0;
    if (!ok || n->paths[GATE].n == 0 || n->paths[UP].n == 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED, "program %s: no reference for its tensors", p->name);
    n->longest = n->y.cols > n->y.rows ? n->y.cols : n->y.rows;
    for (int i = 0; i < N_PATHS; i++)
        for (int k = 0; k < n->paths[i].n; k++) {
            const nmlp_check_matrix *m = &n->paths[i].f[k];
            if (m->rows > n->longest) n->longest = m->rows;
            if (m->cols > n->longest) n->longest = m->cols;
        }
    bool room = true;
    for (int i = 0; i < 4 && room; i++) {
        n->vec[i] = nmlp_mem_new((size_t)n->longest, sizeof(double), err);
        n->squares[i] = nmlp_mem_new((size_t)n->longest, sizeof(double), err);
        room = n->vec[i] && n->squares[i];
    }
    n->row = nmlp_mem_new((size_t)n->longest, sizeof(float), err);
    return room && n->row ? NMLP_OK : NMLP_E_NOMEM;
}

static void network_close(network *n) {
    nmlp_check_matrix_fini(&n->x);
    nmlp_check_matrix_fini(&n->y);
    for (int i = 0; i < N_PATHS; i++)
        for (int k = 0; k < 2; k++) nmlp_check_matrix_fini(&n->paths[i].f[k]);
    for (int i = 0; i < 4; i++) {
        nmlp_mem_free(n->vec[i]);
        nmlp_mem_free(n->squares[i]);
    }
    nmlp_mem_free(n->row);
}

/* vec[to] = vec[from] m. A sum may cancel, its rounding errors do not: they add up as the root of the terms' squares,
 * with terms as large as their own errors' measure where that is more. */
static void multiply(network *n, const nmlp_check_matrix *m, int from, int to) {
    nmlp_check_left_product(m, n->vec[from], n->vec[to], n->row);
    for (int64_t j = 0; j < m->cols; j++) n->squares[to][j] = 0;
    for (int64_t i = 0; i < m->rows; i++) {
        double size = fmax(n->vec[from][i] * n->vec[from][i], n->squares[from][i]);
        nmlp_check_matrix_row(m, i, n->row);
        for (int64_t j = 0; j < m->cols; j++) n->squares[to][j] += size * (double)n->row[j] * (double)n->row[j];
    }
}

/* vec[to] = vec[from] through a path; vec[3] is scratch. */
static void follow(network *n, int which, int from, int to) {
    const path *p = &n->paths[which];
    multiply(n, &p->f[0], from, p->n == 1 ? to : 3);
    if (p->n == 2) multiply(n, &p->f[1], 3, to);
}

/* silu(gate) up, and its errors: the slope of silu is at most 1.1. */
static void gate_row(network *n, int64_t i) {
    double gate = n->vec[1][i], up = n->vec[2][i], silu = gate / (1.0 + exp(-gate));
    n->vec[1][i] = silu * up;
    n->squares[1][i] = 1.21 * n->squares[1][i] * up * up + n->squares[2][i] * silu * silu;
}

static double x_at(const network *n, int64_t row, int64_t h) {
    return n->x_transposed ? nmlp_check_matrix_at(&n->x, h, row) : nmlp_check_matrix_at(&n->x, row, h);
}

/* x / sqrt(mean(x^2) + epsilon), times the norm's weights where no matrix has them */
static void normalise_row(network *n, int64_t width) {
    double sum = 0;
    if (n->epsilon == 0) return;
    for (int64_t h = 0; h < width; h++) sum += n->vec[0][h] * n->vec[0][h];
    for (int64_t h = 0; h < width; h++) n->vec[0][h] /= sqrt(sum / (double)width + n->epsilon);
    for (int64_t h = 0; n->gain && h < width; h++)
        n->vec[0][h] *= (double)n->gain[h % n->gain_rows * n->gain_cols + h / n->gain_rows];
}

/* The reference of one row: vec[0] or vec[1], whose number it returns. */
static int reference_row(network *n, int64_t row) {
    int64_t width = n->paths[GATE].f[0].rows, mid = n->paths[GATE].f[n->paths[GATE].n - 1].cols;
    for (int64_t h = 0; h < width; h++) n->vec[0][h] = x_at(n, row, h);
    normalise_row(n, width);
    for (int64_t h = 0; h < width; h++) n->squares[0][h] = 0; /* x is exact */
    follow(n, GATE, 0, 1);
    follow(n, UP, 0, 2);
    for (int64_t i = 0; i < mid; i++) gate_row(n, i);
    if (n->paths[DOWN].n == 0) return 1;
    follow(n, DOWN, 1, 0);
    for (int64_t h = 0; n->residual && h < width; h++) n->vec[0][h] += x_at(n, row, h);
    return 0;
}

static double limit_of(const network *n) {
    double eps = n->y.dtype == NMLP_DTYPE_F32    ? 0x1p-24
                 : n->y.dtype == NMLP_DTYPE_BF16 ? 0x1p-9
                                                 : 0x1p-12,
           roundings = 2, terms = 0;
    for (int i = 0; i < N_PATHS; i++)
        for (int k = 0; k < n->paths[i].n; k++) {
            roundings += ceil((double)n->paths[i].f[k].rows / 128.0);
            terms += (double)n->paths[i].f[k].rows;
        }
    return 3 * (4 * eps * sqrt(roundings) + 0x1p-24 * sqrt(terms) * 4);
}

nmlp_status nmlp_check_mlp(nmlp_check_report *r, nmlp_values *v, const nmlp_program *p, const int64_t *rows, int n_rows,
                           nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    network n = {0};
    double worst = 0, largest = 0;
    bool nan = false;
    NMLP_TRY(network_open(&n, v, p, err));
    for (int i = 0; i < n_rows; i++) {
        int result = reference_row(&n, rows[i]);
        const double *want = n.vec[result];
        for (int64_t j = 0; j < n.y.cols; j++) {
            double got = nmlp_check_matrix_at(&n.y, rows[i], j);
            nan = nan || isnan(got);
            worst = fmax(worst, fabs(got - want[j]));
            largest = fmax(largest, fmax(fabs(want[j]), sqrt(n.squares[result][j])));
        }
    }
    r->n_rows = n_rows;
    r->max_rel_err = nan ? INFINITY : largest > 0 ? worst / largest : worst;
    r->limit = limit_of(&n);
    r->ok = r->max_rel_err <= r->limit;
out:
    network_close(&n);
    return st;
}
