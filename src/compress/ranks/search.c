#include "compress/ranks/search.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compress/factor/expert_ranks.h"

static const nmlp_config *config_of(const nmlp_search *s) { return &nmlp_engine_model(s->engine)->config; }

double nmlp_ranks_cost(const nmlp_search *s, const nmlp_layer_ranks *ranks) {
    const nmlp_cost *cost = s->cost;
    double total = 0;
    for (int64_t b = 0; b < s->n_blocks; b++) {
        const nmlp_layer_ranks *r = &ranks[b];
        const nmlp_block *block = &s->blocks[b];
        int last = block->n_first, joint = last + 1;
        double one = cost->matrix(cost->ctx, block->rows[last], block->cols[last], r->rank[last]);
        if (r->joint) one += cost->matrix(cost->ctx, block->rows[joint], block->cols[joint], r->rank[0]);
        for (int i = 0; !r->joint && i < last; i++)
            one += cost->matrix(cost->ctx, block->rows[i], block->cols[i], r->rank[i]);
        total += one * (double)block->count;
    }
    return total;
}

/* No multiple of the tile serves the first matrices of an MLP; `most` is the largest that saves parameters. */
static nmlp_status refuse_rounding(const nmlp_search *s, const nmlp_block *block, int64_t most, nmlp_err *err) {
    int64_t inner = block->rows[0], hidden = block->cols[0];
    double break_even = (double)(hidden * inner) / (double)(hidden + inner);
    if (most == 0) {
        nmlp_fail_field(err, NMLP_E_ARG, "tile",
                        "is %lld; even rank %lld of a %lld x %lld matrix has more parameters than the dense one",
                        (long long)s->tile, (long long)s->tile, (long long)inner, (long long)hidden);
        nmlp_fail_hint(err, "use a smaller `tile`; break-even is at rank %.1f", break_even);
    } else {
        nmlp_fail_field(err, NMLP_E_ARG, "ratio",
                        "is %g; in tiles of %lld the nearest rank has more parameters than the dense matrix", s->ratio,
                        (long long)s->tile);
        nmlp_fail_hint(err, "the smallest uniform ratio is %.4f; or use a smaller `tile` or adaptive `allocation`",
                       1 - (double)most / break_even);
    }
    return NMLP_E_ARG;
}

/* The same share of every matrix of a block; what no tile makes smaller stays dense. */
static nmlp_layer_ranks uniform_of(const nmlp_search *s, int64_t b, bool joint) {
    const nmlp_block *block = &s->blocks[b];
    nmlp_layer_ranks r = {.joint = joint};
    for (int i = 0; i <= block->n_first; i++) {
        int entry = nmlp_block_entry(block, &r, i);
        r.rank[i] = nmlp_rank_uniform(block->rows[entry], block->cols[entry], s->ratio, s->tile);
    }
    if (r.rank[0] == 0) r.joint = false;
    return r;
}

nmlp_status nmlp_search_uniform(const nmlp_search *s, nmlp_layer_ranks *ranks, nmlp_err *err) {
    for (int64_t b = 0; b < s->n_blocks; b++) {
        const nmlp_block *block = &s->blocks[b];
        int64_t inner = block->rows[0], hidden = block->cols[0], most = uniform_of(s, b, false).rank[0];
        double want = (1 - s->ratio) * (double)(hidden * inner) / (double)(hidden + inner);
        if (block->kind == NMLP_MODULE_MLP && (most == 0 || floor(want / (double)s->tile + 0.5) * (double)s->tile >
                                                                (double)nmlp_rank_break_even(inner, hidden)))
            return refuse_rounding(s, block, most, err);
        ranks[b] = uniform_of(s, b, s->joint == NMLP_JOINT_ALWAYS);
    }
    return NMLP_OK;
}

/* ---- measuring ---- */

/* Factors in place of the engine's own matrices: `ranks` of every block but for `other` in one. */
struct trial {
    const nmlp_search *search;
    const nmlp_layer_ranks *ranks; /* [n_blocks]; NULL: dense */
    int64_t block;                 /* -1: none differs */
    nmlp_layer_ranks other;
    nmlp_layer_mlps mlps; /* of the layer under way */
    nmlp_layer_attention attention;
};

/* The block of a layer's module; -1: it stays dense. */
static int64_t block_at(const nmlp_search *s, nmlp_module_kind kind, int64_t l) {
    int64_t b = l + (int64_t)kind * config_of(s)->n_layers;
    return b < s->n_blocks ? b : -1;
}

/* NULL: dense. */
static const nmlp_layer_ranks *trial_ranks(const struct trial *t, nmlp_module_kind kind, int64_t l) {
    int64_t b = block_at(t->search, kind, l);
    const nmlp_layer_ranks *r = b < 0 ? NULL : b == t->block ? &t->other : t->ranks ? &t->ranks[b] : NULL;
    return r && !nmlp_layer_ranks_are_dense(r) ? r : NULL;
}

static bool trial_changes(const void *ctx, int64_t l) {
    return trial_ranks(ctx, NMLP_MODULE_MLP, l) || trial_ranks(ctx, NMLP_MODULE_ATTENTION, l);
}

static nmlp_status trial_install(void *ctx, int64_t l, nmlp_err *err) {
    struct trial *t = ctx;
    const nmlp_search *s = t->search;
    const nmlp_layer *dense = &nmlp_engine_model(s->engine)->layers[l];
    nmlp_pool *pool = nmlp_engine_pool(s->engine);
    const nmlp_layer_ranks *mlp = trial_ranks(t, NMLP_MODULE_MLP, l);
    const nmlp_layer_ranks *attention = trial_ranks(t, NMLP_MODULE_ATTENTION, l);
    if (mlp) {
        NMLP_RETURN_IF_FAILED(nmlp_layer_mlps_build(&t->mlps, &s->factor_files[l], dense, mlp, pool, err));
        NMLP_RETURN_IF_FAILED(nmlp_engine_set_mlp(s->engine, l, t->mlps.descs, err));
    }
    if (!attention) return NMLP_OK;
    const nmlp_factor_file *file = &s->factor_files[block_at(s, NMLP_MODULE_ATTENTION, l)];
    NMLP_RETURN_IF_FAILED(nmlp_layer_attention_build(&t->attention, file, dense, attention, pool, err));
    return nmlp_engine_set_attention(s->engine, l, &t->attention.layer, err);
}

/* Dense again; removing an override cannot fail. */
static void trial_remove(void *ctx, int64_t l) {
    struct trial *t = ctx;
    const nmlp_search *s = t->search;
    (void)nmlp_engine_set_mlp(s->engine, l, NULL, NULL);
    if (block_at(s, NMLP_MODULE_ATTENTION, l) >= 0) (void)nmlp_engine_set_attention(s->engine, l, NULL, NULL);
    nmlp_layer_mlps_fini(&t->mlps);
    nmlp_layer_attention_fini(&t->attention);
    for (int kind = 0; kind < NMLP_MODULES; kind++) {
        int64_t b = block_at(s, (nmlp_module_kind)kind, l);
        if (b >= 0) nmlp_factor_file_release(&s->factor_files[b]);
    }
    nmlp_layer_release(&nmlp_engine_model(s->engine)->layers[l], &s->factor_files[l]);
}

static nmlp_status measure_trial(struct trial *t, int64_t from_layer, int64_t n_windows, nmlp_loss *loss,
                                 nmlp_err *err) {
    nmlp_mlp_overrides in = {.ctx = t, .changes = trial_changes, .install = trial_install, .remove = trial_remove};
    return nmlp_heldout_measure(t->search->heldout, t->search->engine, from_layer, n_windows, &in, loss, err);
}

/* These ranks on some windows, by all processes. */
static nmlp_status measure_together(const nmlp_search *s, const nmlp_layer_ranks *ranks, int64_t n_windows,
                                    nmlp_loss *loss, nmlp_err *err) {
    struct trial t = {.search = s, .ranks = ranks, .block = -1};
    nmlp_mlp_overrides in = {.ctx = &t, .changes = trial_changes, .install = trial_install, .remove = trial_remove};
    return nmlp_heldout_measure_shared(s->heldout, s->engine, n_windows, &in, loss, err);
}

nmlp_status nmlp_search_measure(const nmlp_search *s, const nmlp_layer_ranks *ranks, nmlp_loss *loss, nmlp_err *err) {
    return measure_together(s, ranks, s->heldout->windows->n_heldout, loss, err);
}

/* ---- sensitivities ---- */

struct sensitivity {
    double *first; /* [n_blocks] of the matrices of one input */
    double *last;  /* [n_blocks] */
};

/* What a block loses in its first matrices, or in its last one. */
static double lost_in(const nmlp_search *s, int64_t b, const nmlp_layer_ranks *r, bool first) {
    const nmlp_nested *nested = s->factor_files[b].nested;
    int last = s->blocks[b].n_first;
    double lost = 0;
    if (!first) return r->rank[last] ? nested[last].loss[r->rank[last]] : 0;
    if (r->joint) return nested[last + 1].loss[r->rank[0]];
    for (int i = 0; i < last; i++) lost += r->rank[i] ? nested[i].loss[r->rank[i]] : 0;
    return lost;
}

/* The same ranks with one of the two groups dense. */
static nmlp_layer_ranks without(const nmlp_search *s, int64_t b, const nmlp_layer_ranks *r, bool first) {
    nmlp_layer_ranks out = *r;
    int last = s->blocks[b].n_first;
    if (!first) out.rank[last] = 0;
    for (int i = 0; first && i < last; i++) out.rank[i] = 0;
    if (first) out.joint = false;
    return out;
}

static nmlp_status tell(const nmlp_search *s, const char *stage, int64_t done, nmlp_err *err) {
    if (nmlp_progress_update(s->progress, stage, (double)done, (double)s->n_blocks, "layers")) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_INTERRUPTED, "probing was stopped");
}

/* Trials are dealt to the processes: each measures whole ones, so none depends on how many there are. */
struct probes {
    const nmlp_search *search;
    const nmlp_layer_ranks *ranks; /* [n_blocks] */
    const char *stage;
    double *kl; /* [n_blocks,2] of the block's trial with its last matrix, and with its first ones; 0: none */
    struct trial (*trial)(const struct probes *probes, int64_t block, bool first);
};

static nmlp_status run_probes(const struct probes *p, bool from_layer, nmlp_err *err) {
    const nmlp_search *s = p->search;
    const nmlp_process_group *group = s->heldout->group;
    for (int64_t b = 0; b < s->n_blocks; b++) {
        for (int first = 0; first < 2; first++) {
            struct trial t = p->trial(p, b, first);
            int64_t from = from_layer ? s->blocks[b].layer : 0;
            nmlp_loss loss;
            if (!nmlp_group_deals(group, 2 * b + first) || !(lost_in(s, b, &p->ranks[b], first) > 0)) continue;
            NMLP_RETURN_IF_FAILED(measure_trial(&t, from, s->heldout->n_probe, &loss, err));
            p->kl[2 * b + first] = loss.kl;
        }
        NMLP_RETURN_IF_FAILED(tell(s, p->stage, b + 1, err));
    }
    return nmlp_group_gather_dealt(group, p->kl, sizeof *p->kl, 2 * s->n_blocks, err);
}

static struct trial trial_alone(const struct probes *p, int64_t b, bool first) {
    return (struct trial){.search = p->search, .block = b, .other = without(p->search, b, &p->ranks[b], !first)};
}

static struct trial trial_among(const struct probes *p, int64_t b, bool first) {
    return (struct trial){
        .search = p->search, .ranks = p->ranks, .block = b, .other = without(p->search, b, &p->ranks[b], first)};
}

/* One group compressed alone, everything else dense. */
static nmlp_status probe_alone(const nmlp_search *s, const nmlp_layer_ranks *ranks, struct sensitivity *out,
                               nmlp_err *err) {
    struct probes p = {.search = s, .ranks = ranks, .stage = "probing", .trial = trial_alone};
    p.kl = nmlp_mem_new(2 * (size_t)s->n_blocks, sizeof *p.kl, err);
    nmlp_status st = p.kl ? run_probes(&p, true, err) : NMLP_E_NOMEM;
    for (int64_t i = 0; i < 2 * s->n_blocks && st == NMLP_OK; i++) {
        double lost = lost_in(s, i / 2, &ranks[i / 2], i % 2);
        (i % 2 ? out->first : out->last)[i / 2] = lost > 0 ? p.kl[i] / lost : 0;
    }
    nmlp_mem_free(p.kl);
    return st;
}

nmlp_status nmlp_search_probe(const nmlp_search *s, double *gate_up, double *down, nmlp_err *err) {
    struct sensitivity out = {.first = gate_up, .last = down};
    nmlp_layer_ranks *ranks = nmlp_mem_new((size_t)s->n_blocks, sizeof *ranks, err);
    if (!ranks) return NMLP_E_NOMEM;
    for (int64_t b = 0; b < s->n_blocks; b++) ranks[b] = uniform_of(s, b, s->joint != NMLP_JOINT_NEVER);
    nmlp_status st = probe_alone(s, ranks, &out, err);
    nmlp_mem_free(ranks);
    return st;
}

/* One group made dense again, everything else as in `ranks`: what compressing it costs where the rest is compressed
 * too. Groups that are dense there keep their old sensitivity. */
static nmlp_status probe_among(const nmlp_search *s, const nmlp_layer_ranks *ranks, struct sensitivity *out,
                               nmlp_err *err) {
    int64_t n_blocks = s->n_blocks;
    struct probes p = {.search = s, .ranks = ranks, .stage = "probing again", .trial = trial_among};
    nmlp_loss all;
    NMLP_RETURN_IF_FAILED(measure_together(s, ranks, s->heldout->n_probe, &all, err));
    p.kl = nmlp_mem_new(2 * (size_t)n_blocks, sizeof *p.kl, err);
    nmlp_status st = p.kl ? run_probes(&p, false, err) : NMLP_E_NOMEM;
    for (int64_t i = 0; i < 2 * n_blocks && st == NMLP_OK; i++) {
        double lost = lost_in(s, i / 2, &ranks[i / 2], i % 2), gain = all.kl - p.kl[i];
        double least = 1e-3 * all.kl / (double)(2 * n_blocks); /* noise can make it negative */
        if (lost > 0) (i % 2 ? out->first : out->last)[i / 2] = (gain > least ? gain : least) / lost;
    }
    nmlp_mem_free(p.kl);
    return st;
}

/* ---- candidates ---- */

static bool same_ranks(const nmlp_layer_ranks *a, const nmlp_layer_ranks *b, int64_t n) {
    for (int64_t l = 0; l < n; l++)
        if (a[l].joint != b[l].joint || memcmp(a[l].rank, b[l].rank, sizeof a[l].rank) != 0) return false;
    return true;
}

static nmlp_status add_candidate(const nmlp_search *s, nmlp_search_result *r, const char *name,
                                 const nmlp_layer_ranks *ranks, nmlp_err *err) {
    size_t bytes = (size_t)s->n_blocks * sizeof *ranks;
    for (int i = 0; i < r->n_candidates; i++)
        if (same_ranks(r->candidates[i].ranks, ranks, s->n_blocks)) return NMLP_OK; /* known */
    if (r->n_candidates == NMLP_RANK_CANDIDATES_MAX) return NMLP_OK;
    nmlp_rank_candidate *c = &r->candidates[r->n_candidates];
    *c = (nmlp_rank_candidate){.name = name, .cost = nmlp_ranks_cost(s, ranks)};
    c->ranks = nmlp_mem_new((size_t)s->n_all, sizeof *ranks, err);
    if (!c->ranks) return NMLP_E_NOMEM;
    memcpy(c->ranks, ranks, bytes);
    r->n_candidates++;
    return NMLP_OK;
}

/* Candidates from `first` on, dealt to the processes. */
static nmlp_status measure_candidates(const nmlp_search *s, nmlp_search_result *r, int first, nmlp_err *err) {
    const nmlp_process_group *group = s->heldout->group;
    nmlp_loss losses[NMLP_RANK_CANDIDATES_MAX] = {0};
    int n = r->n_candidates - first;
    for (int i = 0; i < n; i++) {
        struct trial t = {.search = s, .ranks = r->candidates[first + i].ranks, .block = -1};
        if (!nmlp_group_deals(group, i)) continue;
        NMLP_RETURN_IF_FAILED(measure_trial(&t, 0, s->heldout->windows->n_heldout, &losses[i], err));
        if (!nmlp_progress_update(s->progress, "measuring", first + i + 1, r->n_candidates, "candidates"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "measuring candidates was stopped");
    }
    NMLP_RETURN_IF_FAILED(nmlp_group_gather_dealt(group, losses, sizeof losses[0], n, err));
    for (int i = 0; i < n; i++) {
        r->candidates[first + i].loss = losses[i];
        if (losses[i].kl < r->candidates[r->best].loss.kl) r->best = first + i;
    }
    return NMLP_OK;
}

/* s_bar (s/s_bar)^gamma about the geometric mean of the positive ones. */
static void temper(double *out, const double *s, int64_t n, double gamma, double log_mean) {
    for (int64_t i = 0; i < n; i++) out[i] = s[i] > 0 ? exp(log_mean + gamma * (log(s[i]) - log_mean)) : 0;
}

static double mean_log(const struct sensitivity *s, int64_t n) {
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (s->first[i] > 0) sum += log(s->first[i]), count++;
        if (s->last[i] > 0) sum += log(s->last[i]), count++;
    }
    return count ? sum / (double)count : 0;
}

/* How far to trust the measured sensitivities, how low ranks may go, how the loss grows with the error. */
static const struct setting {
    const char *name, *name_with_attention;
    double gamma;
    double floor; /* share of the uniform rank */
    double power;
} settings[] = {
    {"measured", "measured, with attention", 1, 0, 1},
    {"measured, floor 1/2", "measured, floor 1/2, with attention", 1, 0.5, 1},
    {"tempered 0.7", "tempered 0.7, with attention", 0.7, 0.5, 1},
    {"tempered 0.4", "tempered 0.4, with attention", 0.4, 0.5, 1},
    {"equal", "equal, with attention", 0, 0.5, 1},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

struct scratch {
    struct sensitivity measured, tempered;
    nmlp_layer_ranks *ranks;
};

static nmlp_status try_settings(const nmlp_search *s, nmlp_search_result *r, struct scratch *scratch,
                                const nmlp_layer_ranks *uniform, int n_settings, nmlp_err *err) {
    int first = r->n_candidates;
    int64_t n = s->n_blocks;
    bool with_attention = n > config_of(s)->n_layers;
    double log_mean = mean_log(&scratch->measured, n);
    for (int i = 0; i < n_settings; i++) {
        const struct setting *b = &settings[i];
        temper(scratch->tempered.first, scratch->measured.first, n, b->gamma, log_mean);
        temper(scratch->tempered.last, scratch->measured.last, n, b->gamma, log_mean);
        nmlp_allocation a = {.factor_files = s->factor_files,
                             .blocks = s->blocks,
                             .n_blocks = n,
                             .tile = s->tile,
                             .cost = s->cost,
                             .budget = s->budget,
                             .separate = s->joint != NMLP_JOINT_ALWAYS,
                             .joint = s->joint != NMLP_JOINT_NEVER,
                             .dense = true,
                             .floor = b->floor,
                             .uniform = uniform,
                             .cap = INFINITY,
                             .s_first = scratch->tempered.first,
                             .s_last = scratch->tempered.last,
                             .power = b->power};
        nmlp_status st = nmlp_allocate(&a, scratch->ranks, err);
        if (st == NMLP_E_LIMIT && b->floor > 0) continue; /* a floor may ask for more than the budget */
        NMLP_RETURN_IF_FAILED(st);
        NMLP_RETURN_IF_FAILED(
            add_candidate(s, r, with_attention ? b->name_with_attention : b->name, scratch->ranks, err));
    }
    return measure_candidates(s, r, first, err);
}

static nmlp_status new_scratch(struct scratch *x, nmlp_arena *arena, int64_t n, nmlp_err *err) {
    x->measured.first = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->measured.last = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->tempered.first = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->tempered.last = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->ranks = nmlp_arena_new(arena, (size_t)n, sizeof *x->ranks, err);
    return x->measured.first && x->measured.last && x->tempered.first && x->tempered.last && x->ranks ? NMLP_OK
                                                                                                      : NMLP_E_NOMEM;
}

/* The reference point of the probes and, where it fits the budget, a candidate: the clamped uniform ranks. */
static nmlp_status start_from_uniform(const nmlp_search *s, nmlp_search_result *r, nmlp_layer_ranks *uniform,
                                      nmlp_err *err) {
    bool with_attention = s->n_blocks > config_of(s)->n_layers;
    int begun = r->n_candidates;
    static const char *const names[2][2] = {{"uniform", "uniform, shared basis"},
                                            {"uniform, with attention", "uniform, shared basis, with attention"}};
    for (int joint = s->joint == NMLP_JOINT_ALWAYS; joint <= (s->joint != NMLP_JOINT_NEVER); joint++) {
        for (int64_t b = 0; b < s->n_blocks; b++) {
            if (s->blocks[b].kind == NMLP_MODULE_MLP && uniform_of(s, b, false).rank[0] == 0)
                return refuse_rounding(s, &s->blocks[b], 0, err);
            uniform[b] = uniform_of(s, b, joint);
        }
        if (nmlp_ranks_cost(s, uniform) > s->budget * (1 + 1e-9)) continue;
        NMLP_RETURN_IF_FAILED(add_candidate(s, r, names[with_attention][joint], uniform, err));
    }
    return measure_candidates(s, r, begun, err);
}

static nmlp_status search_blocks(const nmlp_search *s, nmlp_search_result *r, nmlp_err *err) {
    int64_t n = s->n_blocks;
    nmlp_arena arena;
    struct scratch scratch;
    nmlp_status st = NMLP_OK;
    nmlp_arena_init(&arena);
    nmlp_layer_ranks *uniform = nmlp_arena_new(&arena, (size_t)n, sizeof *uniform, err);
    if (!uniform) {
        st = NMLP_E_NOMEM;
        goto out;
    }
    NMLP_TRY(new_scratch(&scratch, &arena, n, err));
    NMLP_TRY(start_from_uniform(s, r, uniform, err));
    NMLP_TRY(probe_alone(s, uniform, &scratch.measured, err));
    NMLP_TRY(try_settings(s, r, &scratch, uniform, N_SETTINGS, err));
    for (int round = 0; round < s->rounds; round++) {
        int before = r->best;
        NMLP_TRY(probe_among(s, r->candidates[r->best].ranks, &scratch.measured, err));
        NMLP_TRY(try_settings(s, r, &scratch, uniform, N_SETTINGS - 1, err));
        if (r->best == before) break;
    }
out:
    nmlp_arena_fini(&arena);
    return st;
}

/* The search among MLPs alone that costs as much; false: the attentions' dense matrices leave no room for it. */
static bool narrow_to_mlps(const nmlp_search *s, nmlp_search *out) {
    double attention = 0, mlps = 0;
    *out = *s;
    out->n_blocks = config_of(s)->n_layers;
    for (int64_t b = 0; b < s->n_blocks; b++)
        *(b < out->n_blocks ? &mlps : &attention) +=
            (double)(nmlp_block_params(&s->blocks[b], NULL) * s->blocks[b].count);
    out->budget = s->budget - attention;
    out->ratio = 1 - out->budget / mlps;
    if (!(out->ratio > 0 && out->ratio < 1)) return false;
    double least = 0;
    for (int64_t b = 0; b < out->n_blocks; b++) {
        if (uniform_of(out, b, false).rank[0] == 0) return false;
        nmlp_layer_ranks lowest = {.rank = {s->tile, s->tile, s->tile}};
        least += (double)(nmlp_block_params(&s->blocks[b], &lowest) * s->blocks[b].count);
    }
    return least <= out->budget;
}

nmlp_status nmlp_search_adaptive(const nmlp_search *s, nmlp_search_result *r, nmlp_err *err) {
    nmlp_search mlps;
    nmlp_status st = NMLP_OK;
    *r = (nmlp_search_result){0};
    if (s->n_blocks > config_of(s)->n_layers && narrow_to_mlps(s, &mlps)) st = search_blocks(&mlps, r, err);
    if (st == NMLP_OK) st = search_blocks(s, r, err);
    if (st != NMLP_OK) nmlp_search_result_fini(r);
    return st;
}

void nmlp_search_result_fini(nmlp_search_result *r) {
    for (int i = 0; i < r->n_candidates; i++) nmlp_mem_free(r->candidates[i].ranks);
    *r = (nmlp_search_result){0};
}
