#include "kernels/gemm/blocking.h"

enum {
    L1_PERCENT = 60,
    L1_PERCENT_WIDENED = 80,
    ALL_INPUTS = 1 << 30,
    CHUNK_UNIT = 512,
    ROWS_MAX_F32 = 384,
    ROWS_MAX_BF16 = 512,
    ROWS_MIN = 64,
    TEAM_ROWS_MIN = 512
};

static int64_t round_down(int64_t n, int64_t unit) { return nmlp_max(unit, n / unit * unit); }

/* The weights of one block of columns stay in L1 while all tiles of rows pass. */
static int64_t inputs_in_l1(const nmlp_caches *caches, int64_t percent, int64_t bytes_per_input) {
    return round_down((int64_t)caches->l1_bytes * percent / 100 / bytes_per_input, NMLP_PAD);
}

/* f32: the weights of a block of columns share L1 with the rest. Tiles take all inputs at once. */
static int64_t inputs_at_a_time(const nmlp_gemm *gemm, const nmlp_caches *caches) {
    if (gemm->full_tiles) return ALL_INPUTS;
    return inputs_in_l1(caches, gemm->widen ? L1_PERCENT_WIDENED : L1_PERCENT,
                        (int64_t)gemm->strips * NMLP_STRIP * gemm->elem_bytes);
}

/* Weights come from memory once per block of rows, so blocks are as high as L2 allows. With f32 the sums weigh most and
 * a part of the activations is enough in L2; with bf16 tiles all inputs must be there, because arithmetic is too fast
 * for L3. */
static int64_t rows_at_a_time(const nmlp_gemm *gemm, const nmlp_caches *caches, int64_t kc, int64_t k) {
    int64_t half = (int64_t)caches->l2_bytes / 2;
    if (gemm->elem_bytes == 2) {
        int64_t rows = half / (nmlp_pad(k) * gemm->elem_bytes);
        return nmlp_min(ROWS_MAX_BF16, nmlp_max(ROWS_MIN, rows));
    }
    int64_t sums = (int64_t)gemm->strips * NMLP_STRIP * (int64_t)sizeof(float);
    int64_t rows = half / (kc * gemm->elem_bytes + sums);
    return nmlp_min(ROWS_MAX_F32, nmlp_max(ROWS_MIN, rows));
}

/* Blocks of equal height, none of them a small rest, their number a multiple of `unit`. */
static int64_t balanced(int64_t s, int64_t most, int64_t mr, int64_t unit) {
    int64_t n_blocks = nmlp_ceil_div(nmlp_ceil_div(s, most), unit) * unit;
    return nmlp_ceil_div(nmlp_ceil_div(s, n_blocks), mr) * mr;
}

/* A stream of weights as packed: one pass, one block of columns at a time. */
static nmlp_gemm_blocking block_for_stream(const nmlp_gemm *gemm, const nmlp_caches *caches, int64_t s, int64_t inner) {
    int64_t kc = ALL_INPUTS;
    if (s > gemm->mr)
        kc = inputs_in_l1(caches, L1_PERCENT, (int64_t)gemm->strips * NMLP_STRIP * 2); /* for the second tile */
    return (nmlp_gemm_blocking){.gemm = gemm,
                                .rows = s,
                                .rows_most = s,
                                .kc = kc,
                                .stream = true,
                                .chunk = nmlp_pad(inner),
                                .rows_cap = s,
                                .chunk_cap = s * nmlp_pad(inner)};
}

/* Part of I whose activations stay in L2 until `down` has read them; blocks of columns enough for threads to share
 * evenly. */
static void block_inner(nmlp_gemm_blocking *blocking, const nmlp_caches *caches, int64_t inner) {
    int64_t all = nmlp_pad(inner);
    int64_t share = blocking->gemm->elem_bytes == 2 ? 2 : 4; /* of L2 */
    int64_t elems = (int64_t)caches->l2_bytes / share / blocking->gemm->elem_bytes;
    int64_t most = round_down(elems / blocking->rows, CHUNK_UNIT);
    blocking->chunk = nmlp_min(all, most);
    blocking->chunk_cap = nmlp_min(blocking->rows_cap * all, nmlp_max(elems, blocking->rows_cap * CHUNK_UNIT));
}

nmlp_gemm_blocking nmlp_gemm_blocking_make(const nmlp_kernels *kernels, const nmlp_caches *caches, int64_t s, int64_t k,
                                           int64_t inner, bool quantised) {
    const nmlp_gemm *gemm = nmlp_kernels_gemm(kernels, s, quantised);
    if (s < 1) s = 1;
    if (inner < 1) inner = 1;
    if (s <= gemm->narrow_rows && !gemm->full_tiles) return block_for_stream(gemm, caches, s, inner);
    nmlp_gemm_blocking blocking = {.gemm = gemm, .widen = gemm->widen != NULL};
    blocking.kc = inputs_at_a_time(gemm, caches);
    int64_t most = round_down(rows_at_a_time(gemm, caches, blocking.kc, k), gemm->mr);
    blocking.rows = balanced(s, most, gemm->mr, 1);
    blocking.rows_most = most;
    blocking.rows_cap = nmlp_min(most, nmlp_ceil_div(s, gemm->mr) * gemm->mr);
    block_inner(&blocking, caches, inner);
    return blocking;
}

void nmlp_gemm_blocking_worst_rows(const nmlp_kernels *kernels, int64_t s, int64_t worst[NMLP_GEMM_BLOCKING_KINDS]) {
    worst[0] = s;
    worst[1] = nmlp_min(s, kernels->narrow_rows);
    worst[2] = nmlp_min(s, kernels->narrow->narrow_rows);
    worst[3] = nmlp_min(s, kernels->wide->narrow_rows);
    worst[4] = nmlp_min(s, kernels->few_rows);
    worst[5] = nmlp_min(s, kernels->quant_rows);
}

/* Every thread reads all rows of its team, as others made them, so blocks of rows that could follow each other are
 * better side by side: weights are read as often, rows and barriers are fewer. Two blocks for every team of one thread
 * at least: with one, all would wait for the slowest. */
int nmlp_gemm_blocking_teams_max(const nmlp_gemm_blocking *blocking, int64_t s, int n_threads) {
    if (!blocking->gemm->panel) return 1;
    int64_t alone = nmlp_min(n_threads, s / nmlp_min(2 * blocking->rows_most, TEAM_ROWS_MIN));
    int64_t together = nmlp_min(n_threads / 2, nmlp_ceil_div(s, nmlp_min(blocking->rows_most, TEAM_ROWS_MIN / 2)));
    return (int)nmlp_max(1, nmlp_max(alone, together));
}

int nmlp_gemm_blocking_teams(const nmlp_gemm_blocking *blocking, int64_t s, int n_threads) {
    int n_teams = nmlp_gemm_blocking_teams_max(blocking, s, n_threads);
    while (n_threads % n_teams != 0) n_teams--;
    return n_teams;
}

int64_t nmlp_gemm_blocking_team_rows(const nmlp_gemm_blocking *blocking, int64_t s, int n_teams) {
    if (n_teams == 1) return blocking->rows;
    return balanced(s, nmlp_min(blocking->rows_most, TEAM_ROWS_MIN / 2), blocking->gemm->mr, n_teams);
}
