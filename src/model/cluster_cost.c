#define _POSIX_C_SOURCE 200809L /* strtok_r */
#include "model/cluster_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/process_group.h"

enum { TEXT_MAX = 256, NODES_MAX = 1 << 16 };

const char *nmlp_cluster_split_name(nmlp_cluster_split split) {
    static const char *const names[] = {"dense", "replicated", "all", "slices"};
    return names[split];
}

nmlp_cluster_split nmlp_cluster_split_find(const char *name) {
    int k = 0;
    while (k < NMLP_CLUSTER_SPLIT_COUNT && strcmp(name, nmlp_cluster_split_name(k)) != 0) k++;
    return k;
}

/* ---- the cluster in words ---- */

static nmlp_status refuse(const char *why, const char *word, nmlp_err *err) {
    nmlp_fail_field(err, NMLP_E_ARG, "cluster", "%s: %.60s", why, word);
    nmlp_fail_hint(err, "for example nodes=8,latency_us=30,gbit=10,read_gbs=100 and, unless it is 16, bits=4.5");
    return NMLP_E_ARG;
}

nmlp_status nmlp_cluster_spec_parse(nmlp_cluster_spec *spec, const char *text, nmlp_err *err) {
    double nodes = 0;
    *spec = (nmlp_cluster_spec){.bits = 16};
    const struct {
        const char *name;
        double *value;
    } keys[] = {{"nodes", &nodes},
                {"latency_us", &spec->latency_us},
                {"gbit", &spec->gbit},
                {"read_gbs", &spec->read_gbs},
                {"bits", &spec->bits}};
    char copy[TEXT_MAX], *rest = NULL;
    if (strlen(text) >= sizeof copy) return refuse("too long", text, err);
    memcpy(copy, text, strlen(text) + 1);
    for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(word, '='), *end = NULL;
        size_t k = 0, n = sizeof keys / sizeof keys[0];
        if (!equals) return refuse("expected key=number", word, err);
        *equals = '\0';
        while (k < n && strcmp(keys[k].name, word) != 0) k++;
        if (k == n) return refuse("unknown key", word, err);
        double value = strtod(equals + 1, &end);
        if (end == equals + 1 || *end || !(value > 0) || !isfinite(value))
            return refuse("must be a positive number", word, err);
        *keys[k].value = value;
    }
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        if (!(*keys[k].value > 0)) return refuse("is missing", keys[k].name, err);
    if (nodes > NODES_MAX || nodes != floor(nodes)) return refuse("must be a whole number up to 65536", "nodes", err);
    spec->nodes = (int64_t)nodes;
    return NMLP_OK;
}

/* ---- times ---- */

/* What a layer's MLP makes a node do: one sum, and gathers. */
struct share {
    double params; /* read by a node */
    double summed; /* floats */
    int n_gathers;
    double gathered; /* floats in all of them */
};

/* What nodes wait for. */
struct traffic {
    double waits;
    double floats; /* that a node receives */
};

static double read_ms(const nmlp_cluster_spec *spec, double bytes) { return bytes / (1e6 * spec->read_gbs); }

/* Parameters of another width than the cluster's count as so many of it. */
static struct share dense_share(const nmlp_cluster_mlp *m, double bits, double h, double i, double p) {
    double wider = m->dense_bits > 0 ? m->dense_bits / bits : 1;
    return (struct share){.params = wider * 3 * h * i / p, .summed = h};
}

/* Parameters on the side of the hidden state and on that of the intermediate one. */
static void count_factors(const nmlp_cluster_mlp *m, double h, double i, double *outer, double *inner) {
    double gate = (double)m->gate, up = (double)m->up, down = (double)m->down;
    *outer = ((m->shared ? gate : gate + up) + down) * h * (m->slices > 0 ? (double)m->slices : 1);
    *inner = (gate + up + down) * i;
    *inner += ((m->gate == 0) + (m->up == 0) + (m->down == 0)) * h * i;
}

static struct share share_of(const nmlp_config *c, const nmlp_cluster_mlp *m, nmlp_cluster_split split, double bits,
                             double p) {
    double h = (double)c->hidden, i = (double)c->intermediate, outer, inner;
    count_factors(m, h, i, &outer, &inner);
    switch (split) {
    case NMLP_CLUSTER_SPLIT_REPLICATED: return (struct share){.params = outer + inner / p, .summed = h};
    case NMLP_CLUSTER_SPLIT_ALL:
        return (struct share){.params = (outer + inner) / p,
                              .summed = m->down > 0 ? (double)m->down : h,
                              .n_gathers = (m->gate > 0 || m->up > 0) + (m->down > 0),
                              .gathered = (double)(m->shared ? m->gate : m->gate + m->up) + (m->down > 0 ? h : 0)};
    case NMLP_CLUSTER_SPLIT_SLICES: return (struct share){.params = (outer + inner) / p, .summed = h};
    default: return dense_share(m, bits, h, i, p);
    }
}

static struct traffic gathers(double p, int n, double floats) {
    return (struct traffic){.waits = n, .floats = (p - 1) / p * floats};
}

static struct traffic sum_of(double p, double floats) {
    if (nmlp_group_sum_is_small((int64_t)p, (int64_t)floats)) return gathers(p, 1, p * floats);
    return gathers(p, 2, 2 * floats);
}

static struct traffic both(struct traffic a, struct traffic b) {
    return (struct traffic){.waits = a.waits + b.waits, .floats = a.floats + b.floats};
}

static nmlp_cluster_time time_of(const nmlp_cluster_spec *spec, double p, double bytes, struct traffic traffic) {
    nmlp_cluster_time t = {.read_ms = read_ms(spec, bytes)};
    if (p > 1) {
        t.wait_ms = 1e-3 * traffic.waits * spec->latency_us;
        t.wire_ms = traffic.floats * (double)sizeof(float) * 8 / (1e6 * spec->gbit);
    }
    t.ms = t.read_ms + t.wait_ms + t.wire_ms;
    return t;
}

nmlp_cluster_time nmlp_cluster_layer_time(const nmlp_cluster_spec *spec, int64_t nodes, const nmlp_config *c,
                                          const nmlp_cluster_mlp *mlp, nmlp_cluster_split split, int64_t tokens) {
    double p = (double)nodes, h = (double)c->hidden, head = (double)c->head_dim;
    double q = (double)c->n_heads * head, kv = (double)c->n_kv_heads * head;
    double kv_nodes = fmin(p, (double)c->n_kv_heads); /* beyond them some nodes hold the same heads */
    struct share mlps = share_of(c, mlp, split, spec->bits, p);
    double weights = 2 * h * q / p + 2 * h * kv / kv_nodes + mlps.params;
    double cache_bytes = 2 * kv / kv_nodes * (double)tokens * (double)sizeof(float);
    struct traffic traffic =
        both(sum_of(p, h), both(sum_of(p, mlps.summed), gathers(p, mlps.n_gathers, mlps.gathered)));
    return time_of(spec, p, weights * spec->bits / 8 + cache_bytes, traffic);
}

nmlp_cluster_time nmlp_cluster_head_time(const nmlp_cluster_spec *spec, int64_t nodes, const nmlp_config *c) {
    double p = (double)nodes, vocab = (double)c->vocab;
    /* Two waits: the gather of the logits, whose bytes pass once, and the message that begins the next token. */
    return time_of(spec, p, vocab * (double)c->hidden / p * spec->bits / 8, gathers(p, 2, vocab));
}

nmlp_cluster_time nmlp_cluster_time_add(nmlp_cluster_time a, nmlp_cluster_time b) {
    return (nmlp_cluster_time){.ms = a.ms + b.ms,
                               .read_ms = a.read_ms + b.read_ms,
                               .wait_ms = a.wait_ms + b.wait_ms,
                               .wire_ms = a.wire_ms + b.wire_ms};
}
