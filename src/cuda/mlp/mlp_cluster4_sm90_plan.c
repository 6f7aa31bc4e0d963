#include "cuda/mlp/mlp_plan.h"

#include "cuda/decode/decode_program.h"
#include "cuda/tensor_map.h"

enum {
    IN_FLIGHT_BYTES = 64 << 10,
    N8_WANTED = 4, /* of a stage: smaller copies cost the producer warps as much */
    STAGES_WANTED = 3 * NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS, /* one in use, one there, one on its way */
    STAGES_MIN = NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS,
    MANY_TOKENS = 16,
    N8 = NMLP_CUDA_MLP_CLUSTER4_N8,
    N8_BYTES = N8 * NMLP_CUDA_MLP_CLUSTER4_COLS * 2
};

static int32_t gcd(int32_t a, int32_t b) { return b == 0 ? a : gcd(b, a % b); }

static int32_t log2_of(int32_t power) {
    int32_t n = 0;
    while (1 << n < power) n++;
    return n;
}

static int32_t round_up(int32_t n, int32_t to) { return nmlp_cuda_divide_up(n, to) * to; }

/* Rows by clusters, and by warps where that makes stages small enough; the other warps differ in K, and of many tokens
 * their sums are much to exchange. */
static void cut_output_rows(nmlp_cuda_mlp_cluster4_product *ph, const nmlp_cuda_mlp_cluster4_program *p,
                            int32_t n8_max) {
    int32_t n8_tiles = nmlp_cuda_divide_up(ph->rows / N8, p->n_clusters);
    int32_t row_warps = ph->n_factors == 2 || p->s > MANY_TOKENS ? NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS / 2 : 2;
    while (row_warps * ph->n_factors < NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS &&
           nmlp_cuda_divide_up(n8_tiles, row_warps) > n8_max)
        row_warps *= 2;
    n8_tiles =
        round_up(n8_tiles, ph->kind == NMLP_CUDA_MLP_CLUSTER4_GATE_UP ? NMLP_CUDA_MLP_CLUSTER4_COLS / N8 : row_warps);
    ph->cluster_rows = n8_tiles * N8;
    ph->n_passes = nmlp_cuda_divide_up(n8_tiles, row_warps * n8_max);
    ph->stage_n8 = nmlp_cuda_divide_up(n8_tiles, row_warps * ph->n_passes);
    ph->box_n8 = gcd(ph->stage_n8, n8_tiles % ph->stage_n8); /* a cluster's rows end with a box */
    ph->row_shift = log2_of(row_warps);
    ph->side_shift = log2_of(row_warps * ph->n_factors);
}

/* All rows by the warps of a cluster. */
static void cut_split_k(nmlp_cuda_mlp_cluster4_product *ph, int32_t n8_max) {
    int32_t n8_tiles = ph->rows / N8;
    int32_t warps = NMLP_CUDA_MLP_CLUSTER4_BLOCKS * NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS;
    ph->cluster_rows = ph->rows;
    ph->n_passes = nmlp_cuda_divide_up(n8_tiles, warps * n8_max);
    ph->stage_n8 = nmlp_cuda_divide_up(n8_tiles, warps * ph->n_passes);
    ph->box_n8 = ph->stage_n8;
    ph->row_shift = ph->side_shift = log2_of(NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS);
}

/* Gate and up with their results' places in a set. */
static void add_gate_up(nmlp_cuda_mlp_cluster4_program *p, const nmlp_cuda_mlp_call *m) {
    const nmlp_cuda_mlp_weights *w = m->weights;
    nmlp_cuda_mlp_cluster4_product *ph = p->product;
    const nmlp_cuda_mlp_cluster4_input x = {.x = m->x, .pitch = m->x_pitch, .k = m->x_pitch, .from_before = 1};
    nmlp_cuda_mlp_cluster4_input gate = x;
    nmlp_cuda_mlp_cluster4_input up = x;
    if (w->basis.n) {
        int32_t pitch = nmlp_cuda_pad(w->basis.n);
        void *basis = nmlp_cuda_exchange_take(&p->set_bytes, (int64_t)m->s * pitch * 2);
        *ph++ = (nmlp_cuda_mlp_cluster4_product){.kind = NMLP_CUDA_MLP_CLUSTER4_BASIS,
                                                 .in = {x},
                                                 .n_factors = 1,
                                                 .n = w->basis.n,
                                                 .rows = pitch,
                                                 .blocks = w->basis.k / NMLP_CUDA_MLP_CLUSTER4_COLS,
                                                 .out = basis,
                                                 .out_pitch = pitch};
        if (w->gate_rank) gate = (nmlp_cuda_mlp_cluster4_input){.x = basis, .pitch = pitch, .k = w->gate.k};
        if (w->up_rank)
            up = (nmlp_cuda_mlp_cluster4_input){
                .x = (const char *)basis + 2 * (size_t)w->up_start, .pitch = pitch, .k = w->up.k};
    }
    *ph++ = (nmlp_cuda_mlp_cluster4_product){
        .kind = NMLP_CUDA_MLP_CLUSTER4_GATE_UP,
        .in = {gate, up},
        .n_factors = 2,
        .same_x = gate.x == up.x && gate.k == up.k && gate.from_before == up.from_before,
        .n = w->gate.n,
        .rows = nmlp_cuda_pad(w->gate.n),
        .blocks = nmlp_cuda_larger(w->gate.k, w->up.k) / NMLP_CUDA_MLP_CLUSTER4_COLS};
    p->n_products = (int32_t)(ph - p->product);
}

/* The part of the first factor and the second, or the part alone. */
static void add_down(nmlp_cuda_mlp_cluster4_program *p, const nmlp_cuda_mlp_call *m) {
    const nmlp_cuda_mlp_weights *w = m->weights;
    nmlp_cuda_mlp_cluster4_product last = {.n_factors = 1,
                                           .n = w->down.n,
                                           .rows = round_up(w->down.n, N8),
                                           .out = m->y,
                                           .out_pitch = m->y_pitch,
                                           .last = 1};
    if (w->down_basis.n) {
        int32_t pitch = nmlp_cuda_pad(w->down_basis.n);
        void *inner = nmlp_cuda_exchange_take(&p->set_bytes, (int64_t)m->s * pitch * 2);
        p->product[p->n_products++] = (nmlp_cuda_mlp_cluster4_product){.kind = NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K,
                                                                       .n_factors = 1,
                                                                       .n = w->down_basis.n,
                                                                       .rows = pitch,
                                                                       .out = inner,
                                                                       .out_pitch = pitch};
        last.in[0] = (nmlp_cuda_mlp_cluster4_input){.x = inner, .pitch = pitch, .k = w->down.k};
        last.blocks = w->down.k / NMLP_CUDA_MLP_CLUSTER4_COLS;
    }
    last.kind = w->down_basis.n ? NMLP_CUDA_MLP_CLUSTER4_DOWN : NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K;
    p->product[p->n_products++] = last;
}

/* Shared memory for what a product's blocks read and for the sums they get. */
static void fit_product(nmlp_cuda_mlp_cluster4_program *p, const nmlp_cuda_mlp_cluster4_product *ph) {
    int32_t tokens = nmlp_cuda_mlp_cluster4_tokens(p->s);
    p->stage_bytes = nmlp_cuda_larger(p->stage_bytes, ph->stage_n8 * N8_BYTES);
    if (ph->kind == NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K) return;
    int32_t sources = NMLP_CUDA_MLP_CLUSTER4_BLOCKS * (NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS >> ph->row_shift);
    int32_t n8_tiles = nmlp_cuda_divide_up(ph->stage_n8 << ph->row_shift, NMLP_CUDA_MLP_CLUSTER4_BLOCKS);
    int32_t row_bytes = nmlp_cuda_divide_up(ph->blocks, NMLP_CUDA_MLP_CLUSTER4_BLOCKS) * NMLP_CUDA_MLP_CLUSTER4_COLS *
                        2 * (ph->n_factors == 2 && !ph->same_x ? 2 : 1);
    p->sums_bytes = nmlp_cuda_larger(p->sums_bytes, n8_tiles * sources * tokens * N8 * (int32_t)sizeof(float));
    p->x_bytes = nmlp_cuda_larger(p->x_bytes, tokens * (row_bytes + NMLP_CUDA_MLP_CLUSTER4_X_SKEW_BYTES));
}

static nmlp_cuda_mlp_cluster4_product *product_of(nmlp_cuda_mlp_cluster4_program *p, nmlp_cuda_mlp_cluster4_kind kind) {
    for (int32_t i = 0; i < p->n_products; i++)
        if (p->product[i].kind == (int32_t)kind) return &p->product[i];
    return NULL;
}

/* The same for every producer warp, and no more than each consumer warp has stages: what a barrier tells is this round
 * of a stage from the one before, no more. */
static int32_t in_flight(const nmlp_cuda_mlp_cluster4_program *p) {
    int32_t at_once = p->stage_bytes * NMLP_CUDA_MLP_CLUSTER4_PRODUCER_WARPS;
    int32_t wanted = (IN_FLIGHT_BYTES + at_once / 2) / at_once * NMLP_CUDA_MLP_CLUSTER4_PRODUCER_WARPS;
    int32_t most = p->n_stages / NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS * NMLP_CUDA_MLP_CLUSTER4_CONSUMER_WARPS;
    return nmlp_cuda_larger(NMLP_CUDA_MLP_CLUSTER4_PRODUCER_WARPS, nmlp_cuda_smaller(most, wanted));
}

/* Cuts every product into stages of at most that many n8 tiles, and sees how much ring that leaves. Pair and part,
 * which every MLP has, read most: the others' stages are no larger. */
static void cut_products(nmlp_cuda_mlp_cluster4_program *p, int32_t n8_max, size_t shared_bytes) {
    nmlp_cuda_mlp_cluster4_product *pair = product_of(p, NMLP_CUDA_MLP_CLUSTER4_GATE_UP);
    nmlp_cuda_mlp_cluster4_product *part = product_of(p, NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K);
    p->stage_bytes = p->sums_bytes = 0;
    p->x_bytes = NMLP_CUDA_MLP_CLUSTER4_REDUCE_BYTES * nmlp_cuda_mlp_cluster4_tokens(p->s);
    cut_output_rows(pair, p, n8_max);
    cut_split_k(part, n8_max);
    for (int32_t i = 0; i < p->n_products; i++) {
        nmlp_cuda_mlp_cluster4_product *ph = &p->product[i];
        if (ph != pair && ph != part) cut_output_rows(ph, p, nmlp_cuda_larger(pair->stage_n8, part->stage_n8));
        fit_product(p, ph);
    }
    p->window = pair->cluster_rows;
    p->n_sources = nmlp_cuda_divide_up(pair->rows, pair->cluster_rows);
    part->blocks = nmlp_cuda_divide_up(p->window, NMLP_CUDA_MLP_CLUSTER4_COLS);
    p->act_pitch = part->blocks * NMLP_CUDA_MLP_CLUSTER4_COLS * 2 + NMLP_CUDA_MLP_CLUSTER4_X_SKEW_BYTES;
    p->n_stages = 0;
    size_t fixed = nmlp_cuda_mlp_cluster4_shared_bytes(p);
    if (fixed < shared_bytes)
        p->n_stages = nmlp_cuda_smaller(NMLP_CUDA_MLP_CLUSTER4_STAGES_MAX,
                                        (int32_t)((shared_bytes - fixed) / (size_t)p->stage_bytes));
    p->n_in_flight = in_flight(p);
}

/* Smaller stages have smaller sums. */
static void fit_shared(nmlp_cuda_mlp_cluster4_program *p, const nmlp_cuda_device *device) {
    for (int32_t n8_tiles = NMLP_CUDA_MLP_CLUSTER4_N8_MAX; n8_tiles >= N8_WANTED; n8_tiles--) {
        cut_products(p, n8_tiles, device->shared_bytes);
        if (p->n_stages >= STAGES_WANTED) return;
    }
}

static nmlp_cuda_mlp_cluster4_program begin_program(const nmlp_cuda_mlp_call *mlp, const nmlp_cuda_device *device) {
    nmlp_cuda_mlp_cluster4_program p = {.s = mlp->s, .n_clusters = device->n_clusters};
    add_gate_up(&p, mlp);
    add_down(&p, mlp);
    fit_shared(&p, device);
    return p;
}

bool nmlp_cuda_mlp_cluster4_fits(const nmlp_cuda_mlp_call *mlp, const nmlp_cuda_device *device) {
    return device->n_clusters > 0 && begin_program(mlp, device).n_stages >= STAGES_MIN;
}

static nmlp_status put_map(nmlp_cuda_mlp_cluster4_program *p, const void **at, const nmlp_cuda_matrix *w,
                           int32_t box_n8, bool committed, nmlp_err *err) {
    nmlp_cuda_tensor_map map;
    char *there = p->maps + p->n_maps++ * NMLP_CUDA_TENSOR_MAP_BYTES;
    *at = there;
    if (!committed) return NMLP_OK;
    NMLP_RETURN_IF_FAILED(nmlp_cuda_tensor_map_make(&map, w->data, w->n, w->k, w->k, box_n8 * N8, err));
    _Static_assert(sizeof map == NMLP_CUDA_TENSOR_MAP_BYTES, "maps lie one after the other");
    return NMLP_CUDA_CHECK(cudaMemcpy(there, &map, sizeof map, cudaMemcpyHostToDevice), "uploading a tensor map", err);
}

static nmlp_status put_maps(nmlp_cuda_mlp_cluster4_program *p, const nmlp_cuda_mlp_weights *w, nmlp_cuda_arena *arena,
                            nmlp_err *err) {
    p->maps = nmlp_cuda_arena_take(arena, NMLP_CUDA_MLP_CLUSTER4_MAPS_MAX * NMLP_CUDA_TENSOR_MAP_BYTES);
    for (int32_t i = 0; i < p->n_products; i++) {
        nmlp_cuda_mlp_cluster4_product *ph = &p->product[i];
        const nmlp_cuda_matrix *const of[] = {[NMLP_CUDA_MLP_CLUSTER4_BASIS] = &w->basis,
                                              [NMLP_CUDA_MLP_CLUSTER4_GATE_UP] = &w->gate,
                                              [NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K] =
                                                  w->down_basis.n ? &w->down_basis : &w->down,
                                              [NMLP_CUDA_MLP_CLUSTER4_DOWN] = &w->down};
        NMLP_RETURN_IF_FAILED(put_map(p, &ph->map[0], of[ph->kind], ph->box_n8, arena->committed, err));
        if (ph->n_factors == 2)
            NMLP_RETURN_IF_FAILED(put_map(p, &ph->map[1], &w->up, ph->box_n8, arena->committed, err));
    }
    return NMLP_OK;
}

nmlp_status nmlp_cuda_mlp_cluster4_plan(nmlp_cuda_mlp_cluster4_program *program, const nmlp_cuda_mlp_call *mlp,
                                        const nmlp_cuda_mlp_cluster4_program *like, const nmlp_cuda_device *device,
                                        nmlp_cuda_arena *arena, nmlp_err *err) {
    nmlp_cuda_mlp_cluster4_program *p = program;
    if (like) {
        *p = *like;
        p->n_maps = 0;
        return put_maps(p, mlp->weights, arena, err);
    }
    *p = begin_program(mlp, device);
    p->tickets = nmlp_cuda_arena_take(arena, sizeof *p->tickets);
    p->exchange = nmlp_cuda_arena_take(arena, 2 * (size_t)p->set_bytes);
    for (int32_t i = 0; i < p->n_products; i++) {
        nmlp_cuda_mlp_cluster4_product *ph = &p->product[i];
        for (int32_t j = 0; j < ph->n_factors; j++)
            if (ph->kind != NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K && !ph->in[j].from_before)
                ph->in[j].x = nmlp_cuda_exchange_pointer(ph->in[j].x, p->exchange);
        if (!ph->last && ph->kind != NMLP_CUDA_MLP_CLUSTER4_GATE_UP)
            ph->out = nmlp_cuda_exchange_pointer(ph->out, p->exchange);
        if (ph->kind == NMLP_CUDA_MLP_CLUSTER4_DOWN_SPLIT_K)
            p->parts = nmlp_cuda_arena_take(arena, (size_t)ph->rows * (size_t)p->n_sources *
                                                       (size_t)nmlp_cuda_mlp_cluster4_tokens(p->s) * sizeof(float));
    }
    NMLP_RETURN_IF_FAILED(put_maps(p, mlp->weights, arena, err));
    if (!arena->committed) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemset(p->exchange, 0xff, 2 * (size_t)p->set_bytes), "clearing the exchange", err);
}
