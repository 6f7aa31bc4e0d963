#include "cli/predict_cluster.h"

#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"
#include "model/preset.h"
#include "model/cluster_cost.h"
#include "trainium/package/forms.h"

enum { NODE_COUNTS_MAX = 20, MODELS_MAX = 7 };
static const double default_ratio = 0.2;
static const char *const shown_models[MODELS_MAX] = {"llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen3-1.7b",
                                                     "qwen3-4b",     "qwen3-8b",     "llama-3.1-70b"};

/* A model and its times on one number of nodes. */
struct row {
    int64_t nodes;
    double ms[NMLP_CLUSTER_SPLIT_COUNT]; /* every layer by this split; INFINITY: not possible */
    nmlp_cluster_time best;              /* every layer by its best */
    int64_t layers[NMLP_CLUSTER_SPLIT_COUNT];
};

struct shape {
    const char *name;
    nmlp_config config;
    nmlp_cluster_mlp *mlps; /* [n_layers] */
    double ratio;
    bool whole; /* factors of whole matrices: not made for slices */
    bool sliced;
    struct row rows[NODE_COUNTS_MAX];
    int n_rows;
};

static nmlp_status fill_ranks(struct shape *s, bool is_dir, const nmlp_predict_cluster *rq, nmlp_err *err) {
    const nmlp_config *c = &s->config;
    nmlp_model model;
    s->mlps = nmlp_mem_new((size_t)c->n_layers, sizeof *s->mlps, err);
    if (!s->mlps) return NMLP_E_NOMEM;
    if (!is_dir || !c->compressed || rq->ratio > 0) {
        int64_t rank = nmlp_rank_for_ratio(c->intermediate, c->hidden, s->ratio, rq->tile);
        for (int64_t l = 0; l < c->n_layers; l++)
            s->mlps[l] = (nmlp_cluster_mlp){.gate = rank, .up = rank, .down = rank};
        return NMLP_OK;
    }
    NMLP_RETURN_IF_FAILED(nmlp_model_open(&model, s->name, err));
    for (int64_t l = 0; l < c->n_layers; l++) {
        nmlp_mlp_ranks r = nmlp_mlp_layer_ranks(&model.layers[l]);
        s->mlps[l] = (nmlp_cluster_mlp){
            .gate = r.gate, .up = r.up, .down = r.down, .shared = r.shared, .slices = model.layers[l].slices};
    }
    nmlp_model_close(&model);
    s->ratio = c->ratio;
    s->sliced = c->slices > 0;
    s->whole = !s->sliced;
    return NMLP_OK;
}

static nmlp_status open_shape(struct shape *s, const char *name, const nmlp_predict_cluster *rq, nmlp_err *err) {
    bool is_dir = nmlp_file_is_dir(name);
    *s = (struct shape){.name = name, .ratio = rq->ratio > 0 ? rq->ratio : default_ratio};
    if (rq->ratio < 0 || rq->ratio >= 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "ratio", "is %g; expected 0 to below 1", rq->ratio);
    if (rq->prompt < 1 || rq->generate < 1 || rq->prompt > 1 << 20 || rq->generate > 1 << 20)
        return nmlp_fail_field(err, NMLP_E_ARG, "prompt", "%lld and generate %lld: each from 1 to %d",
                               (long long)rq->prompt, (long long)rq->generate, 1 << 20);
    if (rq->tile < 1) return nmlp_fail_field(err, NMLP_E_ARG, "tile", "is %lld; at least 1", (long long)rq->tile);
    NMLP_RETURN_IF_FAILED(is_dir ? nmlp_config_load(&s->config, name, err) : nmlp_preset_find(&s->config, name, err));
    if (s->config.n_experts > 0)
        return nmlp_fail(err, NMLP_E_UNSUPPORTED,
                         "%s: experts are not predicted: which of them a token takes decides what is read", name);
    return fill_ranks(s, is_dir, rq, err);
}

static bool is_possible(const struct shape *s, nmlp_cluster_split split) {
    if (split == NMLP_CLUSTER_SPLIT_SLICES) return !s->whole;
    return split == NMLP_CLUSTER_SPLIT_DENSE || !s->sliced;
}

/* Tokens in the cache in the middle of the answer. */
static struct row row_of(const struct shape *s, const nmlp_cluster_spec *spec, int64_t nodes, int64_t tokens) {
    struct row row = {.nodes = nodes};
    nmlp_cluster_time head = nmlp_cluster_head_time(spec, nodes, &s->config);
    row.best = head;
    for (int k = 0; k < NMLP_CLUSTER_SPLIT_COUNT; k++) row.ms[k] = is_possible(s, k) ? head.ms : INFINITY;
    for (int64_t l = 0; l < s->config.n_layers; l++) {
        nmlp_cluster_time best = {.ms = INFINITY};
        int chosen = 0;
        for (int k = 0; k < NMLP_CLUSTER_SPLIT_COUNT; k++) {
            nmlp_cluster_time t = nmlp_cluster_layer_time(spec, nodes, &s->config, &s->mlps[l], k, tokens);
            row.ms[k] += t.ms;
            if (is_possible(s, k) && t.ms < best.ms) best = t, chosen = k;
        }
        row.layers[chosen]++;
        row.best = nmlp_cluster_time_add(row.best, best);
    }
    return row;
}

static void fill_rows(struct shape *s, const nmlp_cluster_spec *spec, const nmlp_predict_cluster *rq) {
    int64_t tokens = rq->prompt + rq->generate / 2;
    for (int64_t nodes = 1; nodes < spec->nodes && s->n_rows < NODE_COUNTS_MAX - 1; nodes *= 2)
        s->rows[s->n_rows++] = row_of(s, spec, nodes, tokens);
    s->rows[s->n_rows++] = row_of(s, spec, spec->nodes, tokens);
}

/* The split that most layers take. */
static nmlp_cluster_split best_of(const struct row *row) {
    int best = 0;
    for (int k = 1; k < NMLP_CLUSTER_SPLIT_COUNT; k++)
        if (row->layers[k] > row->layers[best]) best = k;
    return best;
}

static void print_ms(double ms) {
    if (isfinite(ms))
        printf(" %10.2f", ms);
    else
        printf(" %10s", "-");
}

static void print_shape(const struct shape *s) {
    const double one = s->rows[0].ms[NMLP_CLUSTER_SPLIT_DENSE];
    for (int i = 0; i < s->n_rows; i++) {
        const struct row *row = &s->rows[i];
        printf("  %-16s %5lld", i == 0 ? s->name : "", (long long)row->nodes);
        for (int k = 0; k < NMLP_CLUSTER_SPLIT_COUNT; k++) print_ms(row->ms[k]);
        printf("  %-10s %6.2fx\n", nmlp_cluster_split_name(best_of(row)), one / row->best.ms);
    }
}

static void put_shape(nmlp_json_writer *w, const struct shape *s) {
    nmlp_json_begin_object(w, NULL);
    nmlp_json_put_string(w, "model", s->name);
    nmlp_json_put_number(w, "ratio", s->ratio);
    nmlp_json_begin_array(w, "nodes");
    for (int i = 0; i < s->n_rows; i++) {
        const struct row *row = &s->rows[i];
        nmlp_json_begin_object(w, NULL);
        nmlp_json_put_int(w, "nodes", row->nodes);
        for (int k = 0; k < NMLP_CLUSTER_SPLIT_COUNT; k++) {
            char key[32];
            snprintf(key, sizeof key, "%s_ms", nmlp_cluster_split_name(k));
            if (isfinite(row->ms[k])) nmlp_json_put_number(w, key, row->ms[k]);
        }
        nmlp_json_put_string(w, "best_split", nmlp_cluster_split_name(best_of(row)));
        nmlp_json_put_number(w, "tpot_ms", row->best.ms);
        nmlp_json_put_number(w, "read_ms", row->best.read_ms);
        nmlp_json_put_number(w, "wait_ms", row->best.wait_ms);
        nmlp_json_put_number(w, "wire_ms", row->best.wire_ms);
        nmlp_json_put_number(w, "speedup", s->rows[0].ms[NMLP_CLUSTER_SPLIT_DENSE] / row->best.ms);
        nmlp_json_end_object(w);
    }
    nmlp_json_end_array(w);
    nmlp_json_end_object(w);
}

static int print_shapes(const nmlp_cli *cli, const nmlp_cluster_spec *spec, const struct shape *shapes, int n) {
    if (cli->json) {
        nmlp_json_out out;
        nmlp_json_writer *w = nmlp_json_out_begin(&out);
        nmlp_json_begin_object(w, "cluster");
        nmlp_json_put_int(w, "nodes", spec->nodes);
        nmlp_json_put_number(w, "latency_us", spec->latency_us);
        nmlp_json_put_number(w, "gbit", spec->gbit);
        nmlp_json_put_number(w, "read_gbs", spec->read_gbs);
        nmlp_json_put_number(w, "bits", spec->bits);
        nmlp_json_end_object(w);
        nmlp_json_begin_array(w, "models");
        for (int i = 0; i < n; i++) put_shape(w, &shapes[i]);
        nmlp_json_end_array(w);
        return nmlp_json_out_end(&out, cli);
    }
    printf(
        "milliseconds for a token (arithmetic): %g us a message, %g Gbit/s, %g GB/s of each node, %g bits a weight\n\n",
        spec->latency_us, spec->gbit, spec->read_gbs, spec->bits);
    printf("  %-16s %5s", "", "nodes");
    for (int k = 0; k < NMLP_CLUSTER_SPLIT_COUNT; k++) printf(" %10s", nmlp_cluster_split_name(k));
    printf("  %-10s %7s\n", "best", "speed");
    for (int i = 0; i < n; i++) print_shape(&shapes[i]);
    printf(
        "\n  dense: the matrices of the dense model. Factors at ratio %g: replicated: those on the side of the hidden\n"
        "  state whole in every node; all: every factor split, four waits a layer instead of two; slices: factors\n"
        "  for each node's slice (compress --shards), as many parameters. speed: against dense on one node\n",
        shapes[0].ratio);
    return NMLP_EXIT_OK;
}

int nmlp_predict_cluster_run(const nmlp_cli *cli, const nmlp_predict_cluster *rq) {
    static const int all = MODELS_MAX;
    struct shape shapes[MODELS_MAX] = {{0}};
    nmlp_cluster_spec spec;
    nmlp_err err = {0};
    int n = rq->model ? 1 : all, code = NMLP_EXIT_OK;
    nmlp_status st = nmlp_cluster_spec_parse(&spec, rq->spec, &err);
    for (int i = 0; i < n && st == NMLP_OK; i++) {
        st = open_shape(&shapes[i], rq->model ? rq->model : shown_models[i], rq, &err);
        if (st == NMLP_OK) fill_rows(&shapes[i], &spec, rq);
    }
    code = st == NMLP_OK ? print_shapes(cli, &spec, shapes, n) : nmlp_cli_fail(cli, &err);
    for (int i = 0; i < n; i++) nmlp_mem_free(shapes[i].mlps);
    return code;
}
