#include "compress/budget/mix.h"

#include <math.h>
#include <string.h>

#include "base/hash64.h"
#include "base/mem.h"
#include "compress/ranks/allocate.h"

enum {
    UNITS = 1 << 13,
    N_ATTENTION = NMLP_QUANT_GATE,
    GROUPS_OF_LAYER = N_ATTENTION + 2, /* q, k, v, o; gate with up; down */
    FACTORS = 2,                       /* of a matrix: both are rounded */
    LOSS_STEPS = 24                    /* halvings of the range of costs */
};

/* ---- mixes ---- */

static nmlp_status new_mix(nmlp_mix *mix, int64_t n_layers, nmlp_err *err) {
    *mix = (nmlp_mix){.n_layers = n_layers, .head = nmlp_quant_option(NMLP_QUANT_OPTION_PLAIN)};
    mix->ranks = nmlp_mem_new((size_t)n_layers, sizeof *mix->ranks, err);
    mix->formats = nmlp_mem_new((size_t)(n_layers * NMLP_QUANT_MATRICES), sizeof *mix->formats, err);
    if (mix->ranks && mix->formats) return NMLP_OK;
    nmlp_mix_fini(mix);
    return NMLP_E_NOMEM;
}

void nmlp_mix_fini(nmlp_mix *mix) {
    nmlp_mem_free(mix->ranks);
    nmlp_mem_free(mix->formats);
    *mix = (nmlp_mix){0};
}

nmlp_status nmlp_mix_copy(nmlp_mix *to, const nmlp_mix *from, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(new_mix(to, from->n_layers, err));
    memcpy(to->ranks, from->ranks, (size_t)from->n_layers * sizeof *to->ranks);
    memcpy(to->formats, from->formats, (size_t)(from->n_layers * NMLP_QUANT_MATRICES) * sizeof *to->formats);
    to->head = from->head;
    to->cost = from->cost;
    to->loss = from->loss;
    return NMLP_OK;
}

nmlp_status nmlp_mix_uniform(nmlp_mix *mix, int64_t n_layers, const nmlp_quant_format *body,
                             const nmlp_quant_format *head, nmlp_err *err) {
    NMLP_RETURN_IF_FAILED(new_mix(mix, n_layers, err));
    for (int64_t i = 0; i < n_layers * NMLP_QUANT_MATRICES; i++) mix->formats[i] = *body;
    mix->head = *head;
    return NMLP_OK;
}

bool nmlp_mix_has_ranks(const nmlp_mix *mix) {
    for (int64_t l = 0; l < mix->n_layers; l++)
        for (int i = 0; i < NMLP_MLP_MATRICES; i++)
            if (mix->ranks[l].rank[i] > 0) return true;
    return false;
}

bool nmlp_mix_has_bits(const nmlp_mix *mix) {
    for (int64_t i = 0; i < mix->n_layers * NMLP_QUANT_MATRICES; i++)
        if (nmlp_dtype_is_quantised(mix->formats[i].dtype)) return true;
    return nmlp_dtype_is_quantised(mix->head.dtype);
}

static uint64_t hash_format(const nmlp_quant_format *f, uint64_t hash) {
    int64_t words[] = {(int64_t)f->dtype, f->group, f->zeros};
    return nmlp_hash64(words, sizeof words, hash);
}

uint64_t nmlp_mix_hash(const nmlp_mix *mix) {
    uint64_t hash = hash_format(&mix->head, (uint64_t)mix->n_layers);
    for (int64_t i = 0; i < mix->n_layers * NMLP_QUANT_MATRICES; i++) hash = hash_format(&mix->formats[i], hash);
    for (int64_t l = 0; l < mix->n_layers; l++) {
        const nmlp_layer_ranks *r = &mix->ranks[l];
        int64_t words[] = {r->rank[0], r->rank[1], r->rank[2], r->joint};
        hash = nmlp_hash64(words, sizeof words, hash);
    }
    return hash;
}

nmlp_mix_scale nmlp_mix_scale_none(void) {
    nmlp_mix_scale scale = {.ranks = 1};
    for (int i = 0; i < NMLP_QUANT_OPTIONS; i++) scale.bits[i] = 1;
    return scale;
}

/* ---- losses ---- */

static int option_of(const nmlp_quant_format *f) {
    for (int i = 0; i < NMLP_QUANT_OPTIONS; i++) {
        nmlp_quant_format option = nmlp_quant_option(i);
        if (option.dtype == f->dtype && option.group == f->group && option.zeros == f->zeros) return i;
    }
    return NMLP_QUANT_OPTION_PLAIN;
}

/* Of one matrix (or the head, the last) in a format. */
static double bits_loss(const nmlp_mix_problem *p, int64_t matrix, int option) {
    return p->scale.bits[option] * p->survey->bits[matrix * NMLP_QUANT_OPTIONS + option];
}

/* Of a matrix of the MLP at a rank: what is cut off, and the rounding of what is left. */
static double cut_loss(const nmlp_mix_problem *p, int64_t l, int kind, int64_t rank) {
    const nmlp_loss_survey *s = p->survey;
    if (rank == 0) return 0;
    return p->scale.ranks * s->cut[(l * NMLP_NESTED_COUNT + kind) * s->n_ranks + rank / s->tile - 1];
}

static double mlp_loss(const nmlp_mix_problem *p, int64_t l, int matrix, int64_t rank, int option) {
    double rounding = bits_loss(p, l * NMLP_QUANT_MATRICES + NMLP_QUANT_GATE + matrix, option);
    return cut_loss(p, l, matrix, rank) + (rank > 0 ? FACTORS : 1) * rounding;
}

static double joint_loss(const nmlp_mix_problem *p, int64_t l, int64_t rank, int option) {
    int64_t gate = l * NMLP_QUANT_MATRICES + NMLP_QUANT_GATE;
    return cut_loss(p, l, NMLP_NESTED_JOINT, rank) +
           FACTORS * (bits_loss(p, gate, option) + bits_loss(p, gate + 1, option));
}

static double matrix_cost(const nmlp_mix_problem *p, int64_t rows, int64_t cols, int64_t rank, int option) {
    return p->cost->matrix(p->cost->ctx, rows, cols, rank, option);
}

static double attention_cost(const nmlp_mix_problem *p, const nmlp_view *view, int option) {
    return p->cost->mlp_only ? 0 : matrix_cost(p, view->shape[0], view->shape[1], 0, option);
}

static double head_cost(const nmlp_mix_problem *p, int option) {
    return p->cost->mlp_only ? 0 : p->cost->head(p->cost->ctx, option);
}

/* ---- the groups of a knapsack ---- */

struct groups {
    nmlp_rank_group *at;
    int64_t n;
};

struct list {
    nmlp_rank_option *at;
    size_t n, capacity;
};

static nmlp_status push(struct list *list, nmlp_rank_option option, nmlp_err *err) {
    void *at = list->at;
    if (!isfinite(option.loss)) return NMLP_OK;
    nmlp_status st = nmlp_mem_grow(&at, &list->capacity, list->n + 1, sizeof option, err);
    list->at = at;
    if (st == NMLP_OK) list->at[list->n++] = option;
    return st;
}

static bool allowed(const nmlp_mix_problem *p, int option) { return (p->options >> option) & 1; }

static nmlp_status list_attention(const nmlp_mix_problem *p, int64_t l, int matrix, struct list *list, nmlp_err *err) {
    const nmlp_view *view = &p->model->layers[l].attention[matrix].w;
    for (int f = 0; f < NMLP_QUANT_OPTIONS; f++) {
        if (!allowed(p, f)) continue;
        nmlp_rank_option option = {.cost = attention_cost(p, view, f),
                                   .loss = bits_loss(p, l * NMLP_QUANT_MATRICES + matrix, f),
                                   .format = {f, f}};
        NMLP_RETURN_IF_FAILED(push(list, option, err));
    }
    return NMLP_OK;
}

/* Gate and up apart. Both have one format where one of them has a rank. */
static nmlp_status list_apart(const nmlp_mix_problem *p, int64_t l, int f, int second, struct list *list,
                              nmlp_err *err) {
    const nmlp_config *c = &p->model->config;
    int64_t tile = p->survey->tile, most = p->ranks && f == second ? p->survey->n_ranks * tile : 0;
    for (int64_t g = 0; g <= most; g += tile) {
        for (int64_t u = 0; u <= most; u += tile) {
            nmlp_rank_option option = {.cost = matrix_cost(p, c->intermediate, c->hidden, g, f) +
                                               matrix_cost(p, c->intermediate, c->hidden, u, second),
                                       .loss =
                                           mlp_loss(p, l, NMLP_MLP_GATE, g, f) + mlp_loss(p, l, NMLP_MLP_UP, u, second),
                                       .rank = {g, u},
                                       .format = {f, second}};
            NMLP_RETURN_IF_FAILED(push(list, option, err));
        }
    }
    return NMLP_OK;
}

static nmlp_status list_joint(const nmlp_mix_problem *p, int64_t l, int f, struct list *list, nmlp_err *err) {
    const nmlp_config *c = &p->model->config;
    int64_t tile = p->survey->tile;
    for (int64_t k = tile; p->ranks && k <= p->survey->n_ranks * tile; k += tile) {
        nmlp_rank_option option = {.cost = matrix_cost(p, 2 * c->intermediate, c->hidden, k, f),
                                   .loss = joint_loss(p, l, k, f),
                                   .rank = {k, k},
                                   .joint = true,
                                   .format = {f, f}};
        NMLP_RETURN_IF_FAILED(push(list, option, err));
    }
    return NMLP_OK;
}

static nmlp_status list_gate_up(const nmlp_mix_problem *p, int64_t l, struct list *list, nmlp_err *err) {
    for (int f = 0; f < NMLP_QUANT_OPTIONS; f++) {
        if (!allowed(p, f)) continue;
        NMLP_RETURN_IF_FAILED(list_joint(p, l, f, list, err));
        for (int second = 0; second < NMLP_QUANT_OPTIONS; second++)
            if (allowed(p, second)) NMLP_RETURN_IF_FAILED(list_apart(p, l, f, second, list, err));
    }
    return NMLP_OK;
}

static nmlp_status list_down(const nmlp_mix_problem *p, int64_t l, struct list *list, nmlp_err *err) {
    const nmlp_config *c = &p->model->config;
    int64_t tile = p->survey->tile, most = p->ranks ? p->survey->n_ranks * tile : 0;
    for (int f = 0; f < NMLP_QUANT_OPTIONS; f++) {
        for (int64_t k = 0; k <= most && allowed(p, f); k += tile) {
            nmlp_rank_option option = {.cost = matrix_cost(p, c->hidden, c->intermediate, k, f),
                                       .loss = mlp_loss(p, l, NMLP_MLP_DOWN, k, f),
                                       .rank = {k, 0},
                                       .format = {f, f}};
            NMLP_RETURN_IF_FAILED(push(list, option, err));
        }
    }
    return NMLP_OK;
}

static nmlp_status list_head(const nmlp_mix_problem *p, struct list *list, nmlp_err *err) {
    for (int f = 0; f < NMLP_QUANT_OPTIONS; f++) {
        if (!allowed(p, f)) continue;
        nmlp_rank_option option = {.cost = head_cost(p, f),
                                   .loss = bits_loss(p, p->survey->n_layers * NMLP_QUANT_MATRICES, f),
                                   .format = {f, f}};
        NMLP_RETURN_IF_FAILED(push(list, option, err));
    }
    return NMLP_OK;
}

static void groups_fini(struct groups *g) {
    for (int64_t i = 0; g->at && i < g->n; i++) nmlp_mem_free(g->at[i].options);
    nmlp_mem_free(g->at);
    *g = (struct groups){0};
}

static nmlp_status groups_make(struct groups *g, const nmlp_mix_problem *p, nmlp_err *err) {
    *g = (struct groups){.n = p->survey->n_layers * GROUPS_OF_LAYER + 1};
    g->at = nmlp_mem_new((size_t)g->n, sizeof *g->at, err);
    if (!g->at) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < g->n; i++) {
        struct list list = {0};
        int64_t l = i / GROUPS_OF_LAYER;
        int part = (int)(i % GROUPS_OF_LAYER);
        nmlp_status st = i == g->n - 1             ? list_head(p, &list, err)
                         : part < N_ATTENTION      ? list_attention(p, l, part, &list, err)
                         : part == NMLP_QUANT_GATE ? list_gate_up(p, l, &list, err)
                                                   : list_down(p, l, &list, err);
        g->at[i].options = list.at;
        g->at[i].n_options = nmlp_rank_options_prune(list.at, (int64_t)list.n);
        if (st == NMLP_OK) continue;
        groups_fini(g);
        return st;
    }
    return NMLP_OK;
}

/* ---- choices ---- */

static void take_choice(nmlp_mix *mix, const struct groups *g, const int64_t *chosen) {
    mix->cost = mix->loss = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const nmlp_rank_option *o = &g->at[i].options[chosen[i]];
        int64_t l = i / GROUPS_OF_LAYER;
        int part = (int)(i % GROUPS_OF_LAYER);
        nmlp_quant_format *formats = mix->formats + l * NMLP_QUANT_MATRICES;
        mix->cost += o->cost;
        mix->loss += o->loss;
        if (i == g->n - 1) {
            mix->head = nmlp_quant_option(o->format[0]);
        } else if (part < N_ATTENTION) {
            formats[part] = nmlp_quant_option(o->format[0]);
        } else if (part == NMLP_QUANT_GATE) {
            mix->ranks[l].rank[NMLP_MLP_GATE] = o->rank[0];
            mix->ranks[l].rank[NMLP_MLP_UP] = o->rank[1];
            mix->ranks[l].joint = o->joint;
            formats[NMLP_QUANT_GATE] = nmlp_quant_option(o->format[0]);
            formats[NMLP_QUANT_UP] = nmlp_quant_option(o->format[1]);
        } else {
            mix->ranks[l].rank[NMLP_MLP_DOWN] = o->rank[0];
            formats[NMLP_QUANT_DOWN] = nmlp_quant_option(o->format[0]);
        }
    }
}

void nmlp_mix_price(const nmlp_mix_problem *p, nmlp_mix *mix) {
    const nmlp_config *c = &p->model->config;
    int head = option_of(&mix->head);
    mix->cost = head_cost(p, head);
    mix->loss = bits_loss(p, mix->n_layers * NMLP_QUANT_MATRICES, head);
    for (int64_t l = 0; l < mix->n_layers; l++) {
        const nmlp_layer_ranks *r = &mix->ranks[l];
        int f[NMLP_QUANT_MATRICES];
        for (int i = 0; i < NMLP_QUANT_MATRICES; i++) f[i] = option_of(&mix->formats[l * NMLP_QUANT_MATRICES + i]);
        for (int i = 0; i < N_ATTENTION; i++) {
            const nmlp_view *view = &p->model->layers[l].attention[i].w;
            mix->cost += attention_cost(p, view, f[i]);
            mix->loss += bits_loss(p, l * NMLP_QUANT_MATRICES + i, f[i]);
        }
        for (int i = r->joint ? NMLP_MLP_DOWN : NMLP_MLP_GATE; i < NMLP_MLP_MATRICES; i++) {
            int64_t rows = i == NMLP_MLP_DOWN ? c->hidden : c->intermediate;
            mix->cost += matrix_cost(p, rows, c->hidden + c->intermediate - rows, r->rank[i], f[NMLP_QUANT_GATE + i]);
            mix->loss += mlp_loss(p, l, i, r->rank[i], f[NMLP_QUANT_GATE + i]);
        }
        if (!r->joint) continue;
        mix->cost += matrix_cost(p, 2 * c->intermediate, c->hidden, r->rank[0], f[NMLP_QUANT_GATE]);
        mix->loss += joint_loss(p, l, r->rank[0], f[NMLP_QUANT_GATE]);
    }
}

static double least_cost(const struct groups *g) {
    double sum = 0;
    for (int64_t i = 0; i < g->n; i++) sum += g->at[i].options[0].cost; /* cheapest first */
    return sum;
}

/* Costs are rounded up to units, so a budget close to the least cost may find nothing: then the cheapest of all. */
static nmlp_status solve(const struct groups *g, double budget, int64_t *chosen, nmlp_err *err) {
    if (budget < least_cost(g))
        return nmlp_fail(err, NMLP_E_LIMIT, "no mix of ranks and formats costs %.6g or less; the least is %.6g", budget,
                         least_cost(g));
    nmlp_status st = nmlp_knapsack_solve(g->at, g->n, budget, fmax(budget, 1e-300) / UNITS, chosen, err);
    if (st != NMLP_E_LIMIT) return st;
    for (int64_t i = 0; i < g->n; i++) chosen[i] = 0;
    return NMLP_OK;
}

static double loss_of(const struct groups *g, const int64_t *chosen) {
    double sum = 0;
    for (int64_t i = 0; i < g->n; i++) sum += g->at[i].options[chosen[i]].loss;
    return sum;
}

/* The last option of a group loses least. */
static double most_cost(const struct groups *g) {
    double sum = 0;
    for (int64_t i = 0; i < g->n; i++) sum += g->at[i].options[g->at[i].n_options - 1].cost;
    return sum;
}

nmlp_status nmlp_mix_within_cost(const nmlp_mix_problem *p, double budget, nmlp_mix *mix, nmlp_err *err) {
    struct groups g = {0};
    nmlp_status st = NMLP_OK;
    int64_t *chosen = NULL;
    *mix = (nmlp_mix){0};
    NMLP_TRY(groups_make(&g, p, err));
    chosen = nmlp_mem_new((size_t)g.n, sizeof *chosen, err);
    if (!chosen) NMLP_TRY(NMLP_E_NOMEM);
    NMLP_TRY(solve(&g, budget, chosen, err));
    NMLP_TRY(new_mix(mix, p->survey->n_layers, err));
    take_choice(mix, &g, chosen);
out:
    nmlp_mem_free(chosen);
    groups_fini(&g);
    return st;
}

/* The least loss falls as the cost grows: the lowest cost whose loss is within the bound, by halving. */
nmlp_status nmlp_mix_within_loss(const nmlp_mix_problem *p, double loss, nmlp_mix *mix, nmlp_err *err) {
    struct groups g = {0};
    nmlp_status st = NMLP_OK;
    int64_t *chosen = NULL, *best = NULL;
    *mix = (nmlp_mix){0};
    NMLP_TRY(groups_make(&g, p, err));
    chosen = nmlp_mem_new((size_t)g.n, sizeof *chosen, err);
    best = nmlp_mem_new((size_t)g.n, sizeof *best, err);
    if (!chosen || !best) NMLP_TRY(NMLP_E_NOMEM);
    for (int64_t i = 0; i < g.n; i++) best[i] = g.at[i].n_options - 1;
    double low = least_cost(&g), high = most_cost(&g);
    for (int step = 0; step < LOSS_STEPS && high - low > 1e-4 * high; step++) {
        double middle = step == 0 ? low : 0.5 * (low + high); /* the cheapest of all may do */
        NMLP_TRY(solve(&g, middle, chosen, err));
        if (loss_of(&g, chosen) <= loss) {
            memcpy(best, chosen, (size_t)g.n * sizeof *best);
            high = middle;
        } else {
            low = middle;
        }
    }
    NMLP_TRY(new_mix(mix, p->survey->n_layers, err));
    take_choice(mix, &g, best);
out:
    nmlp_mem_free(chosen);
    nmlp_mem_free(best);
    groups_fini(&g);
    return st;
}
