#include "cuda/batch/step_plan.h"

#include "cuda/mlp/mlp_plan.h"

enum {
    GROUPS_MOST = 4, /* of a tile: stages of 8 kB, whatever the phase */
    IN_FLIGHT_BYTES = 64 << 10,
    STAGES_MIN = 12,
    STAGES_BEHIND = 8
};

/* A program that is being made, and what its next phase reads: rows times the weight of the norm, sums of squares, the
 * residual stream. */
struct builder {
    nmlp_cuda_step_program *p;
    const nmlp_cuda_step_call *call;
    int32_t next_block;
    nmlp_cuda_step_words x;
    nmlp_cuda_step_words squares;
    nmlp_cuda_step_words hidden;
    int32_t n_squares;
    bool fits;
};

static nmlp_cuda_step_words take_words(struct builder *b, int64_t bytes) {
    return (nmlp_cuda_step_words){.at = nmlp_cuda_exchange_take(&b->p->set_bytes, bytes), .in_set = 1};
}

static nmlp_cuda_mlp_rows32_factor factor(const nmlp_cuda_matrix *w, nmlp_cuda_step_words x, int32_t pitch) {
    return (nmlp_cuda_mlp_rows32_factor){
        .weight = w->data, .x = x.at, .x_pitch = pitch, .k = w->k, .from_before = !x.in_set};
}

/* A GEMM whose factors and output are known: its tiles. */
static nmlp_cuda_step_phase *add_gemm(struct builder *b, const nmlp_cuda_step_phase *phase) {
    nmlp_cuda_step_phase *ph = &b->p->phase[b->p->n_phases++];
    const nmlp_cuda_device *device = &b->call->engine->device;
    *ph = *phase;
    if (ph->scaled) {
        ph->squares = b->squares;
        ph->n_squares = b->n_squares;
    }
    nmlp_cuda_mlp_rows32_cut(&ph->gemm, b->p->s, GROUPS_MOST, device);
    int32_t tiles = ph->gemm.n_row_tiles * ph->gemm.n_splits;
    ph->gemm.first_block = b->next_block;
    b->next_block = (b->next_block + nmlp_cuda_smaller(tiles, device->n_blocks)) % device->n_blocks;
    if (ph->gemm.n_splits > 1) ph->gemm.parts = take_words(b, nmlp_cuda_mlp_rows32_parts_bytes(&ph->gemm, b->p->s)).at;
    return ph;
}

/* Rows of a phase that the next one reads, bf16. */
static nmlp_cuda_step_words add_rows(struct builder *b, const nmlp_cuda_mlp_rows32_factor *f, int n_factors,
                                     int32_t scaled, int32_t n, nmlp_cuda_step_output output) {
    int32_t pitch = nmlp_cuda_pad(n);
    nmlp_cuda_step_words out =
        take_words(b, (int64_t)b->p->s * pitch * (output == NMLP_CUDA_STEP_F32 ? (int64_t)sizeof(float) : 2));
    nmlp_cuda_step_phase ph = {.gemm = {.n_factors = n_factors, .n = n, .out = out.at, .out_pitch = pitch},
                               .output = output,
                               .scaled = scaled,
                               .out_in_set = 1};
    for (int i = 0; i < n_factors; i++) ph.gemm.f[i] = f[i];
    add_gemm(b, &ph);
    return out;
}

/* The residual stream += x w^T. */
static void add_residual(struct builder *b, const nmlp_cuda_matrix *w, nmlp_cuda_step_words x, int32_t pitch,
                         const float *bias, const float *norm_weight) {
    int32_t out_pitch = nmlp_cuda_pad(w->n);
    int64_t values = (int64_t)b->p->s * out_pitch;
    nmlp_cuda_step_words hidden = take_words(b, values * (int64_t)sizeof(float));
    nmlp_cuda_step_words out = take_words(b, values * 2);
    nmlp_cuda_step_words squares =
        take_words(b, (int64_t)b->p->s * NMLP_CUDA_STEP_SQUARES_MAX * (int64_t)sizeof(float));
    const nmlp_cuda_step_phase ph = {
        .gemm = {.f = {factor(w, x, pitch)}, .n_factors = 1, .n = w->n, .out = out.at, .out_pitch = out_pitch},
        .output = NMLP_CUDA_STEP_ADD,
        .out_in_set = out.in_set,
        .before = b->hidden,
        .hidden = hidden,
        .squares_out = squares,
        .norm_weight = norm_weight,
        .bias = bias};
    const nmlp_cuda_step_phase *made = add_gemm(b, &ph);
    b->hidden = hidden;
    b->x = out;
    b->squares = squares;
    b->n_squares = made->gemm.n_row_tiles * made->gemm.n_splits;
    b->fits = b->fits && b->n_squares <= NMLP_CUDA_STEP_SQUARES_MAX;
}

static nmlp_cuda_step_words add_attention(struct builder *b, int64_t l, nmlp_cuda_step_words qkv, int32_t out_pitch) {
    const nmlp_cuda_layer *layer = &b->call->engine->layers[l];
    nmlp_cuda_step_words out = take_words(b, (int64_t)b->p->s * out_pitch * 2);
    b->p->phase[b->p->n_phases++] =
        (nmlp_cuda_step_phase){.gemm = {.f = {{.x = qkv.at}}, .n_factors = 0, .out = out.at, .out_pitch = out_pitch},
                               .output = NMLP_CUDA_STEP_ATTENTION,
                               .out_in_set = 1,
                               .bias = layer->qkv_bias,
                               .k_pages = b->call->k_pages[l],
                               .v_pages = b->call->v_pages[l],
                               .q_norm = layer->q_norm,
                               .k_norm = layer->k_norm};
    return out;
}

static void add_layer(struct builder *b, int64_t l) {
    const nmlp_cuda_engine *e = b->call->engine;
    const nmlp_cuda_layer *layer = &e->layers[l];
    const nmlp_cuda_mlp_weights *w = &layer->mlp;
    int32_t pitch = nmlp_cuda_pad(e->model->config.hidden);
    const nmlp_cuda_mlp_rows32_factor in = factor(&layer->qkv, b->x, pitch);
    nmlp_cuda_step_words qkv = add_rows(b, &in, 1, 1, layer->qkv.n, NMLP_CUDA_STEP_F32);
    nmlp_cuda_step_words mixed = add_attention(b, l, qkv, layer->o.k);
    add_residual(b, &layer->o, mixed, layer->o.k, layer->o_bias, layer->mlp_norm);
    const nmlp_cuda_mlp_rows32_factor both[2] = {factor(&w->gate, b->x, pitch), factor(&w->up, b->x, pitch)};
    nmlp_cuda_step_words act = add_rows(b, both, 2, 3, w->gate.n, NMLP_CUDA_STEP_BF16);
    bool last = l + 1 == e->model->config.n_layers;
    add_residual(b, &w->down, act, nmlp_cuda_pad(w->gate.n), NULL,
                 last ? e->final_norm : e->layers[l + 1].attention_norm);
}

static void add_head(struct builder *b) {
    const nmlp_cuda_matrix *w = &b->call->engine->lm_head;
    const nmlp_cuda_step_phase ph = {.gemm = {.f = {factor(w, b->x, w->k)},
                                              .n_factors = 1,
                                              .n = w->n,
                                              .out = b->call->logits,
                                              .out_pitch = nmlp_cuda_pad(w->n),
                                              .last = 1},
                                     .output = NMLP_CUDA_STEP_LOGITS,
                                     .scaled = 1};
    add_gemm(b, &ph);
}

/* Ring buffer and shared memory for sums. */
static bool fit_ring(nmlp_cuda_step_program *p, const nmlp_cuda_device *device) {
    p->sums_bytes = (int32_t)nmlp_cuda_step_attention_bytes();
    for (int32_t i = 0; i < p->n_phases; i++) {
        const nmlp_cuda_mlp_rows32_phase *ph = &p->phase[i].gemm;
        if (ph->n_factors == 0) continue;
        p->stage_bytes = nmlp_cuda_larger(p->stage_bytes, ph->groups * ph->blocks_k * NMLP_CUDA_MLP_ROWS32_PIECE_BYTES);
        p->sums_bytes = nmlp_cuda_larger(p->sums_bytes, (int32_t)nmlp_cuda_mlp_rows32_sums_bytes(p->s, ph->groups));
    }
    p->n_stages = NMLP_CUDA_MLP_ROWS32_STAGES_MAX;
    while (p->n_stages > STAGES_MIN && nmlp_cuda_step_shared_bytes(p) > device->shared_bytes) p->n_stages--;
    p->n_in_flight =
        nmlp_cuda_larger(1, nmlp_cuda_smaller(p->n_stages - STAGES_BEHIND, IN_FLIGHT_BYTES / p->stage_bytes));
    return nmlp_cuda_step_shared_bytes(p) <= device->shared_bytes;
}

static void move_words(nmlp_cuda_step_words *w, const char *exchange) {
    if (w->in_set) w->at = nmlp_cuda_exchange_pointer(w->at, exchange);
}

/* Offsets into the exchange buffer become addresses. */
static void put_pointers(nmlp_cuda_step_program *p) {
    for (int32_t i = 0; i < p->n_phases; i++) {
        nmlp_cuda_step_phase *ph = &p->phase[i];
        nmlp_cuda_mlp_rows32_phase *gemm = &ph->gemm;
        for (int32_t j = 0; j < 2; j++)
            if (!gemm->f[j].from_before) gemm->f[j].x = nmlp_cuda_exchange_pointer(gemm->f[j].x, p->exchange);
        if (ph->out_in_set) gemm->out = nmlp_cuda_exchange_pointer(gemm->out, p->exchange);
        if (gemm->n_splits > 1) gemm->parts = nmlp_cuda_exchange_pointer(gemm->parts, p->exchange);
        move_words(&ph->squares, p->exchange);
        move_words(&ph->before, p->exchange);
        move_words(&ph->hidden, p->exchange);
        move_words(&ph->squares_out, p->exchange);
    }
}

static nmlp_status lay_out(nmlp_cuda_step_program *p, nmlp_cuda_arena *arena, nmlp_err *err) {
    p->tickets = nmlp_cuda_arena_take(arena, sizeof *p->tickets);
    p->exchange = nmlp_cuda_arena_take(arena, 2 * (size_t)p->set_bytes);
    put_pointers(p);
    for (int32_t i = 0; i < p->n_phases; i++)
        NMLP_RETURN_IF_FAILED(nmlp_cuda_mlp_rows32_map(&p->phase[i].gemm, arena, err));
    if (!arena->committed) return NMLP_OK;
    return NMLP_CUDA_CHECK(cudaMemset(p->exchange, NMLP_CUDA_UNWRITTEN, 2 * (size_t)p->set_bytes),
                           "clearing the exchange", err);
}

/* False: it has no room in shared memory, or its tiles are too many. */
static bool build(nmlp_cuda_step_program *p, const nmlp_cuda_step_call *call) {
    const nmlp_cuda_engine *e = call->engine;
    const nmlp_config *c = &e->model->config;
    *p = (nmlp_cuda_step_program){
        .s = call->rows, .norm_dim = (int32_t)c->hidden, .eps = (float)c->rms_eps, .attention = call->attention};
    struct builder b = {.p = p,
                        .call = call,
                        .x = {.at = call->x},
                        .squares = {.at = call->squares},
                        .hidden = {.at = call->hidden},
                        .n_squares = 1,
                        .fits = true};
    for (int64_t l = 0; l < c->n_layers; l++) add_layer(&b, l);
    add_head(&b);
    return b.fits && fit_ring(p, &e->device);
}

/* Attention writes whole rows of what the next phase polls, and all rows are of different sequences. Factors have more
 * and smaller phases, which gained little. */
static bool fits(const nmlp_cuda_engine *e) {
    enum { LAYER_PHASES = 5 };
    const nmlp_config *c = &e->model->config;
    for (int64_t l = 0; l < c->n_layers; l++)
        if (e->layers[l].mlp.basis.n || e->layers[l].mlp.down_basis.n) return false;
    return c->n_layers * LAYER_PHASES + 1 <= NMLP_CUDA_STEP_PHASES_MAX &&
           c->n_heads * c->head_dim % NMLP_CUDA_PAD == 0 && nmlp_cuda_batch_has_prompt_kernel((int32_t)c->head_dim);
}

nmlp_status nmlp_cuda_step_plan(nmlp_cuda_step *step, const nmlp_cuda_step_call *call, nmlp_cuda_arena *arena,
                                nmlp_err *err) {
    step->fits = fits(call->engine);
    if (!step->fits) return NMLP_OK;
    if (!step->program) step->program = nmlp_mem_new(1, sizeof *step->program, err);
    if (!step->program) return NMLP_E_NOMEM;
    step->fits = build(step->program, call);
    return step->fits ? lay_out(step->program, arena, err) : NMLP_OK;
}

void nmlp_cuda_step_free(nmlp_cuda_step *step) {
    nmlp_mem_free(step->program);
    *step = (nmlp_cuda_step){0};
}
