#include "compress/ranks/search.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "compress/factor/expert_ranks.h"

static const nmlp_config *config_of(const nmlp_search *s) { return &nmlp_engine_model(s->engine)->config; }

/* Neurons of an MLP of layer l, or of its slice. */
static int64_t inner_of(const nmlp_search *s, int64_t l) {
    const nmlp_config *c = config_of(s);
    return nmlp_config_has_experts(c, l) ? c->expert_intermediate : s->intermediate;
}

double nmlp_ranks_cost(const nmlp_search *s, const nmlp_layer_ranks *ranks) {
    const nmlp_config *c = config_of(s);
    const nmlp_cost *cost = s->cost;
    double total = 0;
    for (int64_t l = 0; l < c->n_layers; l++) {
        const nmlp_layer_ranks *r = &ranks[l];
        int64_t inner = inner_of(s, l);
        double one = cost->matrix(cost->ctx, c->hidden, inner, r->rank[NMLP_MLP_DOWN]);
        if (r->joint) {
            one += cost->matrix(cost->ctx, 2 * inner, c->hidden, r->rank[NMLP_MLP_GATE]);
        } else {
            one += cost->matrix(cost->ctx, inner, c->hidden, r->rank[NMLP_MLP_GATE]);
            one += cost->matrix(cost->ctx, inner, c->hidden, r->rank[NMLP_MLP_UP]);
        }
        total += one * (double)nmlp_config_mlp_count(c, l);
    }
    return total;
}

/* No multiple of the tile serves an MLP of `inner` neurons; `most` is the largest that saves parameters. */
static nmlp_status refuse_rounding(const nmlp_search *s, int64_t inner, int64_t most, nmlp_err *err) {
    int64_t hidden = config_of(s)->hidden;
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

/* The same share of every matrix of layer l. */
static nmlp_layer_ranks uniform_of(const nmlp_search *s, int64_t l, bool joint) {
    const nmlp_config *c = config_of(s);
    int64_t inner = inner_of(s, l);
    int64_t tall = nmlp_rank_uniform(joint ? 2 * inner : inner, c->hidden, s->ratio, s->tile);
    int64_t down = nmlp_rank_uniform(c->hidden, inner, s->ratio, s->tile);
    return (nmlp_layer_ranks){.rank = {tall, tall, down}, .joint = joint};
}

nmlp_status nmlp_search_uniform(const nmlp_search *s, nmlp_layer_ranks *ranks, nmlp_err *err) {
    const nmlp_config *c = config_of(s);
    for (int64_t l = 0; l < c->n_layers; l++) {
        int64_t inner = inner_of(s, l), most = uniform_of(s, l, false).rank[NMLP_MLP_GATE];
        double want = (1 - s->ratio) * (double)(c->hidden * inner) / (double)(c->hidden + inner);
        if (most == 0 ||
            floor(want / (double)s->tile + 0.5) * (double)s->tile > (double)nmlp_rank_break_even(inner, c->hidden))
            return refuse_rounding(s, inner, most, err);
        ranks[l] = uniform_of(s, l, s->joint == NMLP_JOINT_ALWAYS);
    }
    return NMLP_OK;
}

/* ---- measuring ---- */

/* Factors in place of the engine's own MLPs: `ranks` of every layer but for `other` in one. */
struct trial {
    const nmlp_search *search;
    const nmlp_layer_ranks *ranks; /* [L]; NULL: dense */
    int64_t layer;                 /* -1: none differs */
    nmlp_layer_ranks other;
    nmlp_layer_mlps mlps; /* of the layer under way */
};

static const nmlp_layer_ranks *trial_ranks(const struct trial *t, int64_t l) {
    if (l == t->layer) return &t->other;
    return t->ranks ? &t->ranks[l] : NULL;
}

static bool trial_changes(const void *ctx, int64_t l) {
    const nmlp_layer_ranks *r = trial_ranks(ctx, l);
    return r && (r->rank[0] || r->rank[1] || r->rank[2]);
}

static nmlp_status trial_install(void *ctx, int64_t l, nmlp_err *err) {
    struct trial *t = ctx;
    const nmlp_search *s = t->search;
    NMLP_RETURN_IF_FAILED(nmlp_layer_mlps_build(&t->mlps, &s->factor_files[l], &nmlp_engine_model(s->engine)->layers[l],
                                                trial_ranks(t, l), nmlp_engine_pool(s->engine), err));
    return nmlp_engine_set_mlp(s->engine, l, t->mlps.descs, err);
}

/* Dense again; removing an override cannot fail. */
static void trial_remove(void *ctx, int64_t l) {
    struct trial *t = ctx;
    (void)nmlp_engine_set_mlp(t->search->engine, l, NULL, NULL);
    nmlp_layer_mlps_fini(&t->mlps);
    nmlp_factor_file_release(&t->search->factor_files[l]);
    nmlp_layer_release(&nmlp_engine_model(t->search->engine)->layers[l], &t->search->factor_files[l]);
}

static nmlp_status measure_trial(struct trial *t, int64_t from_layer, int64_t n_windows, nmlp_loss *loss,
                                 nmlp_err *err) {
    nmlp_mlp_overrides in = {.ctx = t, .changes = trial_changes, .install = trial_install, .remove = trial_remove};
    return nmlp_heldout_measure(t->search->heldout, t->search->engine, from_layer, n_windows, &in, loss, err);
}

/* These ranks on some windows, by all processes. */
static nmlp_status measure_together(const nmlp_search *s, const nmlp_layer_ranks *ranks, int64_t n_windows,
                                    nmlp_loss *loss, nmlp_err *err) {
    struct trial t = {.search = s, .ranks = ranks, .layer = -1};
    nmlp_mlp_overrides in = {.ctx = &t, .changes = trial_changes, .install = trial_install, .remove = trial_remove};
    return nmlp_heldout_measure_shared(s->heldout, s->engine, n_windows, &in, loss, err);
}

nmlp_status nmlp_search_measure(const nmlp_search *s, const nmlp_layer_ranks *ranks, nmlp_loss *loss, nmlp_err *err) {
    return measure_together(s, ranks, s->heldout->windows->n_heldout, loss, err);
}

/* ---- sensitivities ---- */

struct sensitivity {
    double *gate_up; /* [L] */
    double *down;    /* [L] */
};

static double tall_loss(const nmlp_factor_file *factor_file, const nmlp_layer_ranks *r) {
    if (r->joint) return factor_file->nested[NMLP_NESTED_JOINT].loss[r->rank[0]];
    double gate = r->rank[0] ? factor_file->nested[NMLP_NESTED_GATE].loss[r->rank[0]] : 0;
    double up = r->rank[1] ? factor_file->nested[NMLP_NESTED_UP].loss[r->rank[1]] : 0;
    return gate + up;
}

static double down_loss(const nmlp_factor_file *factor_file, const nmlp_layer_ranks *r) {
    return r->rank[NMLP_MLP_DOWN] ? factor_file->nested[NMLP_NESTED_DOWN].loss[r->rank[NMLP_MLP_DOWN]] : 0;
}

/* The same ranks with one of the two groups dense. */
static nmlp_layer_ranks without(const nmlp_layer_ranks *r, bool tall) {
    nmlp_layer_ranks out = *r;
    if (tall) {
        out.rank[NMLP_MLP_GATE] = out.rank[NMLP_MLP_UP] = 0;
        out.joint = false;
    } else {
        out.rank[NMLP_MLP_DOWN] = 0;
    }
    return out;
}

static nmlp_status tell(const nmlp_search *s, const char *stage, int64_t done, nmlp_err *err) {
    if (nmlp_progress_update(s->progress, stage, (double)done, (double)config_of(s)->n_layers, "layers"))
        return NMLP_OK;
    return nmlp_fail(err, NMLP_E_INTERRUPTED, "probing was stopped");
}

/* Trials are dealt to the processes: each measures whole ones, so none depends on how many there are. */
struct probes {
    const nmlp_search *search;
    const nmlp_layer_ranks *ranks; /* [L]; NULL: all other groups dense */
    const char *stage;
    double *kl; /* [L,2] of the layer's trial with gate and up, and with down; 0: none */
    struct trial (*trial)(const struct probes *probes, int64_t layer, bool tall);
};

static double lost_of(const struct probes *p, int64_t l, bool tall) {
    const nmlp_factor_file *file = &p->search->factor_files[l];
    return tall ? tall_loss(file, &p->ranks[l]) : down_loss(file, &p->ranks[l]);
}

static nmlp_status run_probes(const struct probes *p, bool from_layer, nmlp_err *err) {
    const nmlp_search *s = p->search;
    const nmlp_process_group *group = s->heldout->group;
    for (int64_t l = 0; l < config_of(s)->n_layers; l++) {
        for (int tall = 0; tall < 2; tall++) {
            struct trial t = p->trial(p, l, tall);
            nmlp_loss loss;
            if (!nmlp_group_deals(group, 2 * l + tall) || !(lost_of(p, l, tall) > 0)) continue;
            NMLP_RETURN_IF_FAILED(measure_trial(&t, from_layer ? l : 0, s->heldout->n_probe, &loss, err));
            p->kl[2 * l + tall] = loss.kl;
        }
        NMLP_RETURN_IF_FAILED(tell(s, p->stage, l + 1, err));
    }
    return nmlp_group_gather_dealt(group, p->kl, sizeof *p->kl, 2 * config_of(s)->n_layers, err);
}

static struct trial trial_alone(const struct probes *p, int64_t l, bool tall) {
    return (struct trial){.search = p->search, .layer = l, .other = without(&p->ranks[l], !tall)};
}

static struct trial trial_among(const struct probes *p, int64_t l, bool tall) {
    return (struct trial){.search = p->search, .ranks = p->ranks, .layer = l, .other = without(&p->ranks[l], tall)};
}

/* One group compressed alone, everything else dense. */
static nmlp_status probe_alone(const nmlp_search *s, const nmlp_layer_ranks *ranks, struct sensitivity *out,
                               nmlp_err *err) {
    struct probes p = {.search = s, .ranks = ranks, .stage = "probing", .trial = trial_alone};
    p.kl = nmlp_mem_new(2 * (size_t)config_of(s)->n_layers, sizeof *p.kl, err);
    nmlp_status st = p.kl ? run_probes(&p, true, err) : NMLP_E_NOMEM;
    for (int64_t i = 0; i < 2 * config_of(s)->n_layers && st == NMLP_OK; i++) {
        double lost = lost_of(&p, i / 2, i % 2);
        (i % 2 ? out->gate_up : out->down)[i / 2] = lost > 0 ? p.kl[i] / lost : 0;
    }
    nmlp_mem_free(p.kl);
    return st;
}

nmlp_status nmlp_search_probe(const nmlp_search *s, double *gate_up, double *down, nmlp_err *err) {
    struct sensitivity out = {.gate_up = gate_up, .down = down};
    nmlp_layer_ranks *ranks = nmlp_mem_new((size_t)config_of(s)->n_layers, sizeof *ranks, err);
    if (!ranks) return NMLP_E_NOMEM;
    const nmlp_config *c = config_of(s);
    bool joint = s->joint != NMLP_JOINT_NEVER;
    int64_t tall = nmlp_rank_uniform((joint ? 2 : 1) * c->intermediate, c->hidden, s->ratio, s->tile);
    int64_t down_rank = nmlp_rank_uniform(c->hidden, c->intermediate, s->ratio, s->tile);
    for (int64_t l = 0; l < c->n_layers; l++)
        ranks[l] = (nmlp_layer_ranks){.rank = {tall, tall, down_rank}, .joint = joint};
    nmlp_status st = probe_alone(s, ranks, &out, err);
    nmlp_mem_free(ranks);
    return st;
}

/* One group made dense again, everything else as in `ranks`: what compressing it costs where the rest is compressed
 * too. Groups that are dense there keep their old sensitivity. */
static nmlp_status probe_among(const nmlp_search *s, const nmlp_layer_ranks *ranks, struct sensitivity *out,
                               nmlp_err *err) {
    int64_t n_layers = config_of(s)->n_layers;
    struct probes p = {.search = s, .ranks = ranks, .stage = "probing again", .trial = trial_among};
    nmlp_loss all;
    NMLP_RETURN_IF_FAILED(measure_together(s, ranks, s->heldout->n_probe, &all, err));
    p.kl = nmlp_mem_new(2 * (size_t)n_layers, sizeof *p.kl, err);
    nmlp_status st = p.kl ? run_probes(&p, false, err) : NMLP_E_NOMEM;
    for (int64_t i = 0; i < 2 * n_layers && st == NMLP_OK; i++) {
        double lost = lost_of(&p, i / 2, i % 2), gain = all.kl - p.kl[i];
        double least = 1e-3 * all.kl / (double)(2 * n_layers); /* noise can make it negative */
        if (lost > 0) (i % 2 ? out->gate_up : out->down)[i / 2] = (gain > least ? gain : least) / lost;
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
    int64_t n_layers = config_of(s)->n_layers;
    size_t bytes = (size_t)n_layers * sizeof *ranks;
    for (int i = 0; i < r->n_candidates; i++)
        if (same_ranks(r->candidates[i].ranks, ranks, n_layers)) return NMLP_OK; /* known */
    if (r->n_candidates == NMLP_RANK_CANDIDATES_MAX) return NMLP_OK;
    nmlp_rank_candidate *c = &r->candidates[r->n_candidates];
    *c = (nmlp_rank_candidate){.name = name, .cost = nmlp_ranks_cost(s, ranks)};
    c->ranks = nmlp_mem_new((size_t)n_layers, sizeof *ranks, err);
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
        struct trial t = {.search = s, .ranks = r->candidates[first + i].ranks, .layer = -1};
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
        if (s->gate_up[i] > 0) sum += log(s->gate_up[i]), count++;
        if (s->down[i] > 0) sum += log(s->down[i]), count++;
    }
    return count ? sum / (double)count : 0;
}

/* How far to trust the measured sensitivities, how low ranks may go, how the loss grows with the error. */
static const struct setting {
    const char *name;
    double gamma;
    double floor; /* share of the uniform rank */
    double power;
} settings[] = {
    {"measured", 1, 0, 1},         {"measured, floor 1/2", 1, 0.5, 1},
    {"tempered 0.7", 0.7, 0.5, 1}, {"tempered 0.4", 0.4, 0.5, 1},
    {"equal", 0, 0.5, 1},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

struct scratch {
    struct sensitivity measured, tempered;
    nmlp_layer_ranks *ranks;
};

static nmlp_status try_settings(const nmlp_search *s, nmlp_search_result *r, struct scratch *scratch,
                                const nmlp_layer_ranks *uniform, int n_settings, nmlp_err *err) {
    const nmlp_config *c = config_of(s);
    int first = r->n_candidates;
    double log_mean = mean_log(&scratch->measured, c->n_layers);
    for (int i = 0; i < n_settings; i++) {
        const struct setting *b = &settings[i];
        temper(scratch->tempered.gate_up, scratch->measured.gate_up, c->n_layers, b->gamma, log_mean);
        temper(scratch->tempered.down, scratch->measured.down, c->n_layers, b->gamma, log_mean);
        nmlp_allocation a = {.factor_files = s->factor_files,
                             .n_layers = c->n_layers,
                             .hidden = c->hidden,
                             .intermediate = s->intermediate,
                             .tile = s->tile,
                             .cost = s->cost,
                             .budget = s->budget,
                             .separate = s->joint != NMLP_JOINT_ALWAYS,
                             .joint = s->joint != NMLP_JOINT_NEVER,
                             .dense = true,
                             .floor = b->floor,
                             .uniform = uniform,
                             .cap = INFINITY,
                             .s_gate_up = scratch->tempered.gate_up,
                             .s_down = scratch->tempered.down,
                             .power = b->power};
        nmlp_status st = nmlp_allocate(&a, scratch->ranks, err);
        if (st == NMLP_E_LIMIT && b->floor > 0) continue; /* a floor may ask for more than the budget */
        NMLP_RETURN_IF_FAILED(st);
        NMLP_RETURN_IF_FAILED(add_candidate(s, r, b->name, scratch->ranks, err));
    }
    return measure_candidates(s, r, first, err);
}

static nmlp_status new_scratch(struct scratch *x, nmlp_arena *arena, int64_t n, nmlp_err *err) {
    x->measured.gate_up = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->measured.down = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->tempered.gate_up = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->tempered.down = nmlp_arena_new(arena, (size_t)n, sizeof(double), err);
    x->ranks = nmlp_arena_new(arena, (size_t)n, sizeof *x->ranks, err);
    return x->measured.gate_up && x->measured.down && x->tempered.gate_up && x->tempered.down && x->ranks
               ? NMLP_OK
               : NMLP_E_NOMEM;
}

/* The reference point of the probes and, where it fits the budget, a candidate: the clamped uniform ranks. */
static nmlp_status start_from_uniform(const nmlp_search *s, nmlp_search_result *r, nmlp_layer_ranks *uniform,
                                      nmlp_err *err) {
    const nmlp_config *c = config_of(s);
    for (int joint = s->joint == NMLP_JOINT_ALWAYS; joint <= (s->joint != NMLP_JOINT_NEVER); joint++) {
        for (int64_t l = 0; l < c->n_layers; l++) {
            if (uniform_of(s, l, false).rank[NMLP_MLP_GATE] == 0) return refuse_rounding(s, inner_of(s, l), 0, err);
            uniform[l] = uniform_of(s, l, joint);
        }
        if (nmlp_ranks_cost(s, uniform) > s->budget * (1 + 1e-9)) continue;
        NMLP_RETURN_IF_FAILED(add_candidate(s, r, joint ? "uniform, shared basis" : "uniform", uniform, err));
    }
    return measure_candidates(s, r, 0, err);
}

nmlp_status nmlp_search_adaptive(const nmlp_search *s, nmlp_search_result *r, nmlp_err *err) {
    int64_t n = config_of(s)->n_layers;
    nmlp_arena arena;
    struct scratch scratch;
    nmlp_status st = NMLP_OK;
    *r = (nmlp_search_result){0};
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
    if (st != NMLP_OK) nmlp_search_result_fini(r);
    return st;
}

void nmlp_search_result_fini(nmlp_search_result *r) {
    for (int i = 0; i < r->n_candidates; i++) nmlp_mem_free(r->candidates[i].ranks);
    *r = (nmlp_search_result){0};
}
