#include "engine/split_mlp_cpu.h"

#include <string.h>

#include "base/ints.h"
#include "model/model_shard.h"

nmlp_cpu_split_columns nmlp_cpu_split_measure(const nmlp_cpu_weights *w) {
    nmlp_cpu_split_columns most = {0};
    const nmlp_config *c = &w->model->config;
    for (int64_t l = 0; l < c->n_layers; l++) {
        const nmlp_cpu_split_mlp *m = w->layers[l].split;
        if (!m) continue;
        most.message = nmlp_max(most.message, nmlp_max(m->rank[0] + m->rank[1], c->hidden));
        most.thin[0] = nmlp_max(most.thin[0], nmlp_max(m->rank[0], m->rank_down));
        most.thin[1] = nmlp_max(most.thin[1], m->rank[1]);
        most.inner = c->intermediate;
    }
    return most;
}

size_t nmlp_cpu_split_workspace_bytes(const nmlp_cpu_split_mlp *m, int64_t s, int n_threads) {
    const nmlp_linear *linears[] = {m->thin[0], m->thin[1], m->wide[0], m->wide[1], m->down, m->out};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof linears / sizeof linears[0]; i++)
        if (linears[i]) bytes = nmlp_max_size(bytes, nmlp_linear_workspace_bytes(linears[i], s, n_threads));
    return bytes;
}

/* Rows [S,cols] whose columns the processes share evenly; `own` is where this one's lie in the message. */
struct shared_rows {
    float *rows;
    int64_t cols;
    float *own;
};

/* A process's block of the message has its columns of one after the other, each [S,its columns]. */
static void lay_out(struct shared_rows *shared, int n, const nmlp_cpu_split_room *room, const nmlp_process_group *g,
                    int64_t s) {
    for (int k = 0; k <= g->size; k++) {
        room->first[k] = 0;
        for (int i = 0; i < n; i++) room->first[k] += s * nmlp_model_shard_first(shared[i].cols, k, g->size);
    }
    float *next = room->message + room->first[g->rank];
    for (int i = 0; i < n; i++) {
        shared[i].own = next;
        next += s * (nmlp_model_shard_first(shared[i].cols, g->rank + 1, g->size) -
                     nmlp_model_shard_first(shared[i].cols, g->rank, g->size));
    }
}

static nmlp_status gather(const struct shared_rows *shared, int n, const nmlp_cpu_split_room *room,
                          const nmlp_process_group *g, int64_t s, nmlp_err *err) {
    const float *next = room->message;
    NMLP_RETURN_IF_FAILED(nmlp_group_gather(g, room->message, sizeof *room->message, room->first, err));
    for (int k = 0; k < g->size; k++)
        for (int i = 0; i < n; i++) {
            int64_t begin = nmlp_model_shard_first(shared[i].cols, k, g->size);
            int64_t cols = nmlp_model_shard_first(shared[i].cols, k + 1, g->size) - begin;
            for (int64_t row = 0; row < s; row++, next += cols)
                memcpy(shared[i].rows + row * shared[i].cols + begin, next, (size_t)cols * sizeof *next);
        }
    return NMLP_OK;
}

/* gate and up [S,I/P] of rows x: what is dense reads them together with the thin factors. */
static nmlp_status widen(const nmlp_cpu_split_room *room, const nmlp_cpu_weights *w, const nmlp_cpu_split_mlp *m,
                         const float *x, int64_t s, const nmlp_fused *norm, nmlp_err *err) {
    float *const wide[2] = {room->gate, room->up};
    const nmlp_linear *first[2];
    float *made[2];
    struct shared_rows shared[2];
    int n_shared = 0, n_first = 0;
    for (int i = 0; i < 2; i++)
        if (m->thin[i]) shared[n_shared++] = (struct shared_rows){.rows = room->thin[i], .cols = m->rank[i]};
    lay_out(shared, n_shared, room, w->tensor_group, s);
    for (int i = 0, at = 0; i < 2; i++) {
        bool reads_x = m->thin[i] || m->rank[i] == 0;
        if (!reads_x) continue; /* the gate's thin factor is its own too */
        first[n_first] = m->thin[i] ? m->thin[i] : m->wide[i];
        made[n_first++] = m->thin[i] ? shared[at++].own : wide[i];
    }
    nmlp_linear_run_all(first, made, n_first, x, s, norm, room->workspace, w->pool);
    if (n_shared > 0) NMLP_RETURN_IF_FAILED(gather(shared, n_shared, room, w->tensor_group, s, err));
    for (int i = 0; i < 2; i++) {
        const float *thin = m->thin[i] ? room->thin[i] : room->thin[0];
        if (m->rank[i] > 0) nmlp_linear_run(m->wide[i], wide[i], thin, s, room->workspace, w->pool);
    }
    return NMLP_OK;
}

nmlp_status nmlp_cpu_split_run(const nmlp_cpu_split_room *room, const nmlp_cpu_weights *w, const nmlp_cpu_split_mlp *m,
                               float *y, const float *x, int64_t s, const nmlp_fused *norm, nmlp_err *err) {
    const nmlp_config *c = &w->model->config;
    struct shared_rows out = {.rows = y, .cols = c->hidden};
    NMLP_RETURN_IF_FAILED(widen(room, w, m, x, s, norm, err));
    nmlp_glu(w->kernels, c->activation, room->gate, room->gate, room->up, s * c->intermediate, w->pool);
    float *sum = m->out ? room->thin[0] : y;
    nmlp_linear_run(m->down, sum, room->gate, s, room->workspace, w->pool);
    NMLP_RETURN_IF_FAILED(nmlp_group_sum_f32(w->tensor_group, sum, s * (m->out ? m->rank_down : c->hidden), err));
    if (!m->out) return NMLP_OK;
    lay_out(&out, 1, room, w->tensor_group, s);
    nmlp_linear_run(m->out, out.own, sum, s, room->workspace, w->pool);
    return gather(&out, 1, room, w->tensor_group, s, err);
}
