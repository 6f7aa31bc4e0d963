#include "compress/quantize/quant_budget.h"

#include "base/mem.h"
#include "compress/ranks/allocate.h"

enum { UNITS = 1 << 15, N_OPTIONS = NMLP_QUANT_OPTIONS };

/* ---- bytes ---- */

static int64_t stored_bytes(const nmlp_view *view, int option) {
    return view->data ? nmlp_quant_option_bytes(view->dtype, view->shape[0], view->shape[1], option) : 0;
}

static int64_t matrix_bytes(const nmlp_model *m, int64_t l, int matrix, int option) {
    int64_t sum = 0;
    nmlp_layer *layer = &m->layers[l];
    for (int64_t i = 0; i < nmlp_quant_layer_views(&m->config, l); i++)
        if (nmlp_quant_owns(layer, i, matrix)) sum += stored_bytes(nmlp_quant_layer_view(layer, i), option);
    return sum;
}

static int64_t head_bytes(const nmlp_model *m, int option) {
    bool tied = m->embedding.data == m->lm_head.data;
    return stored_bytes(&m->lm_head, option) + (tied ? 0 : stored_bytes(&m->embedding, option));
}

/* Of everything that stays as it is. */
static int64_t fixed_bytes(const nmlp_model *m) {
    int64_t rest = nmlp_model_measure(m).bytes - head_bytes(m, N_OPTIONS - 1);
    for (int64_t l = 0; l < m->config.n_layers; l++)
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) rest -= matrix_bytes(m, l, i, N_OPTIONS - 1);
    return rest;
}

int64_t nmlp_quant_budget_least(const nmlp_model *m) {
    int64_t sum = fixed_bytes(m) + head_bytes(m, 0);
    for (int64_t l = 0; l < m->config.n_layers; l++)
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) sum += matrix_bytes(m, l, i, 0);
    return sum;
}

/* ---- the choice ---- */

struct choice {
    nmlp_rank_group *groups; /* of all layers, then the head */
    nmlp_rank_option *options;
    int64_t *chosen;
    int64_t n;
};

static void fill_groups(struct choice *c, const nmlp_model *m, const double *loss) {
    for (int64_t g = 0; g < c->n; g++) {
        nmlp_rank_option *o = c->options + g * N_OPTIONS;
        for (int i = 0; i < N_OPTIONS; i++) {
            int64_t bytes = g == c->n - 1 ? head_bytes(m, i)
                                          : matrix_bytes(m, g / NMLP_QUANT_MATRICES, (int)(g % NMLP_QUANT_MATRICES), i);
            o[i] = (nmlp_rank_option){.cost = (double)bytes, .loss = loss[g * N_OPTIONS + i]};
        }
        c->groups[g] = (nmlp_rank_group){.options = o, .n_options = N_OPTIONS};
    }
}

static nmlp_status check_bytes(const nmlp_quant_budget *b, nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    int64_t least = nmlp_quant_budget_least(m), most = nmlp_model_measure(m).bytes;
    if (b->bytes >= most)
        return nmlp_fail_field(err, NMLP_E_ARG, "budget_bytes", "is %lld; the checkpoint has %lld: nothing to do",
                               (long long)b->bytes, (long long)most);
    if (b->bytes >= least) return NMLP_OK;
    nmlp_fail_field(err, NMLP_E_LIMIT, "budget_bytes", "is %lld; with all weights in 4 bits it takes %lld",
                    (long long)b->bytes, (long long)least);
    nmlp_fail_hint(err, "fewer bytes need lower ranks too: compress the checkpoint first");
    return NMLP_E_LIMIT;
}

nmlp_status nmlp_quant_budget_choose(const nmlp_quant_budget *b, nmlp_quant_format *formats, nmlp_quant_format *head,
                                     nmlp_err *err) {
    const nmlp_model *m = nmlp_engine_model(b->engine);
    struct choice c = {.n = m->config.n_layers * NMLP_QUANT_MATRICES + 1};
    nmlp_arena arena;
    nmlp_status st = NMLP_OK;
    NMLP_RETURN_IF_FAILED(check_bytes(b, err));
    nmlp_arena_init(&arena);
    c.groups = nmlp_arena_new(&arena, (size_t)c.n, sizeof *c.groups, err);
    c.options = nmlp_arena_new(&arena, (size_t)(c.n * N_OPTIONS), sizeof *c.options, err);
    c.chosen = nmlp_arena_new(&arena, (size_t)c.n, sizeof *c.chosen, err);
    double *loss = nmlp_arena_new(&arena, (size_t)(c.n * N_OPTIONS), sizeof *loss, err);
    if (!c.groups || !c.options || !c.chosen || !loss) NMLP_TRY(NMLP_E_NOMEM);
    nmlp_quant_probe probe = {.engine = b->engine, .heldout = b->heldout, .progress = b->progress};
    NMLP_TRY(nmlp_quant_probe_run(&probe, loss, err));
    fill_groups(&c, m, loss);
    /* Costs are rounded up to units: the least bytes must still fit. */
    double room = (double)(b->bytes - fixed_bytes(m)), unit = room / UNITS;
    st = nmlp_knapsack_solve(c.groups, c.n, room, unit, c.chosen, err);
    if (st == NMLP_E_LIMIT) {
        st = NMLP_OK;
        for (int64_t g = 0; g < c.n; g++) c.chosen[g] = 0;
    }
    if (st != NMLP_OK) goto out;
    for (int64_t g = 0; g < c.n - 1; g++) formats[g] = nmlp_quant_option((int)c.chosen[g]);
    for (int64_t l = 0; l < m->config.n_layers; l++)
        if (m->layers[l].shared_basis)
            formats[l * NMLP_QUANT_MATRICES + NMLP_QUANT_UP] = formats[l * NMLP_QUANT_MATRICES + NMLP_QUANT_GATE];
    *head = nmlp_quant_option((int)c.chosen[c.n - 1]);
out:
    nmlp_arena_fini(&arena);
    return st;
}
