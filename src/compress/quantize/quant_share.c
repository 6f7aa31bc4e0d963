#include "compress/quantize/quant_share.h"

#include <string.h>

#include "base/ints.h"
#include "tensor/quant.h"

/* ---- windows ---- */

nmlp_status nmlp_quant_share_init(nmlp_quant_share *s, const nmlp_process_group *group, const nmlp_calib_windows *all,
                                  nmlp_err *err) {
    int rank = nmlp_group_rank(group), size = nmlp_group_size(group);
    size_t window = (size_t)all->context * sizeof *all->ids;
    *s = (nmlp_quant_share){.group = group, .all = all, .own = *all};
    if (size == 1) return NMLP_OK;
    int64_t first = nmlp_group_share(group, all->n_heldout, rank);
    s->own.n_calib = (all->n_calib - rank + size - 1) / size;
    s->own.n_heldout = nmlp_group_share(group, all->n_heldout, rank + 1) - first;
    s->own.ids = nmlp_mem_new((size_t)nmlp_calib_windows_tokens(&s->own), sizeof *s->own.ids, err);
    if (!s->own.ids) return NMLP_E_NOMEM;
    for (int64_t i = 0; i < s->own.n_calib; i++)
        memcpy(s->own.ids + i * all->context, all->ids + (i * size + rank) * all->context, window);
    memcpy(s->own.ids + s->own.n_calib * all->context, all->ids + (all->n_calib + first) * all->context,
           (size_t)s->own.n_heldout * window);
    return NMLP_OK;
}

void nmlp_quant_share_fini(nmlp_quant_share *s) {
    if (nmlp_group_size(s->group) > 1) nmlp_calib_windows_fini(&s->own);
    *s = (nmlp_quant_share){0};
}

int64_t nmlp_quant_share_turns(const nmlp_quant_share *s, int64_t n) {
    return (n + nmlp_group_size(s->group) - 1) / nmlp_group_size(s->group);
}

int64_t nmlp_quant_share_in_turn(const nmlp_quant_share *s, int64_t n, int64_t turn) {
    return nmlp_min(n - turn * nmlp_group_size(s->group), nmlp_group_size(s->group));
}

/* ---- matrices of a layer ---- */

static nmlp_quant_input input_of(int64_t view) {
    static const nmlp_quant_input inputs[NMLP_QUANT_MATRICES] = {
        NMLP_QUANT_ATTENTION_INPUT, NMLP_QUANT_ATTENTION_INPUT, NMLP_QUANT_ATTENTION_INPUT, NMLP_QUANT_ATTENTION_MIXED,
        NMLP_QUANT_MLP_INPUT,       NMLP_QUANT_MLP_INPUT,       NMLP_QUANT_MLP_ACT};
    return inputs[nmlp_quant_view_matrix(view)];
}

/* How much work the matrices that see an input are: each entry is rounded by all inputs of its row, and the moments are
 * factorised. */
static void count_work(double work[NMLP_QUANT_INPUTS], nmlp_layer *layer, const nmlp_config *c, int64_t index) {
    for (int i = 0; i < NMLP_QUANT_INPUTS; i++) {
        double k = (double)nmlp_quant_input_size(c, (nmlp_quant_input)i);
        work[i] = k * k * k;
    }
    for (int64_t i = 0; i < nmlp_quant_layer_views(c, index); i++) {
        const nmlp_view *view = nmlp_quant_layer_view(layer, i);
        if (!view->data || nmlp_quant_view_first(layer, i) != i) continue;
        work[input_of(i)] += (double)view->shape[0] * (double)view->shape[1] * (double)view->shape[1];
    }
}

void nmlp_quant_share_owners(const nmlp_quant_share *s, nmlp_layer *layer, const nmlp_config *config, int64_t index,
                             int owners[NMLP_QUANT_INPUTS]) {
    double work[NMLP_QUANT_INPUTS], load[NMLP_QUANT_INPUTS] = {0};
    int n = (int)nmlp_min(nmlp_group_size(s->group), NMLP_QUANT_INPUTS); /* more processes have nothing to do */
    count_work(work, layer, config, index);
    for (int taken = 0; taken < NMLP_QUANT_INPUTS; taken++) {
        int next = 0, least = 0;
        for (int i = 1; i < NMLP_QUANT_INPUTS; i++)
            if (work[i] > work[next]) next = i;
        for (int k = 1; k < n; k++)
            if (load[k] < load[least]) least = k;
        owners[next] = least;
        load[least] += work[next];
        work[next] = -1;
    }
}

/* A view on its way: what it is without its memory. */
struct shape {
    int64_t quantised, dtype, group, zeros, rows, cols;
};

/* From the owner to all. */
static nmlp_status give_view(const nmlp_process_group *g, nmlp_view *view, int owner, nmlp_arena *arena,
                             nmlp_err *err) {
    struct shape shape = {.quantised = view->data && nmlp_dtype_is_quantised(view->dtype),
                          .dtype = view->dtype,
                          .group = view->group,
                          .zeros = view->dtype == NMLP_DTYPE_Q4 && view->per_group,
                          .rows = view->shape[0],
                          .cols = view->shape[1]};
    NMLP_RETURN_IF_FAILED(nmlp_group_give(g, &shape, sizeof shape, owner, err));
    if (!shape.quantised) return NMLP_OK;
    if (nmlp_group_rank(g) != owner) {
        nmlp_quant_format format = {
            .dtype = (nmlp_dtype)shape.dtype, .group = (int)shape.group, .zeros = shape.zeros != 0};
        NMLP_RETURN_IF_FAILED(nmlp_quant_view_new(view, arena, &format, shape.rows, shape.cols, err));
    }
    struct {
        const void *at;
        size_t bytes;
    } parts[] = {{view->data, nmlp_view_bytes(view)},
                 {view->scales, nmlp_quant_scale_bytes(view)},
                 {view->per_group, nmlp_quant_per_group_bytes(view)}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].bytes > 0)
            NMLP_RETURN_IF_FAILED(
                nmlp_group_give(g, (void *)(uintptr_t)parts[i].at, (int64_t)parts[i].bytes, owner, err));
    return NMLP_OK;
}

nmlp_status nmlp_quant_share_layer(const nmlp_quant_share *s, nmlp_layer *made, const nmlp_config *config,
                                   int64_t index, const int owners[NMLP_QUANT_INPUTS], nmlp_arena *arena,
                                   nmlp_err *err) {
    if (nmlp_group_size(s->group) == 1) return NMLP_OK;
    for (int64_t i = 0; i < nmlp_quant_layer_views(config, index); i++) {
        nmlp_view *view = nmlp_quant_layer_view(made, i);
        int64_t first = nmlp_quant_view_first(made, i);
        if (!view->data) continue;
        if (first == i)
            NMLP_RETURN_IF_FAILED(give_view(s->group, view, owners[input_of(i)], arena, err));
        else
            *view = *nmlp_quant_layer_view(made, first);
    }
    return NMLP_OK;
}

/* ---- rows of a matrix ---- */

int64_t nmlp_quant_share_row(const nmlp_quant_share *s, int64_t n, int rank) {
    int64_t n_tasks = (n + NMLP_GPTQ_ROWS - 1) / NMLP_GPTQ_ROWS;
    return nmlp_min(n, nmlp_group_share(s->group, n_tasks, rank) * NMLP_GPTQ_ROWS);
}

nmlp_status nmlp_quant_share_rows(const nmlp_quant_share *s, const nmlp_view *view, nmlp_err *err) {
    if (nmlp_group_size(s->group) == 1) return NMLP_OK;
    size_t rows = (size_t)view->shape[0];
    struct {
        const void *at;
        size_t row_bytes;
    } parts[] = {{view->data, nmlp_view_bytes(view) / rows},
                 {view->scales, nmlp_quant_scale_bytes(view) / rows},
                 {view->per_group, nmlp_quant_per_group_bytes(view) / rows}};
    nmlp_status st = NMLP_OK;
    int64_t *first = nmlp_mem_new((size_t)s->group->size + 1, sizeof *first, err);
    if (!first) return NMLP_E_NOMEM;
    for (int k = 0; k <= s->group->size; k++) first[k] = nmlp_quant_share_row(s, view->shape[0], k);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && st == NMLP_OK; i++)
        if (parts[i].row_bytes > 0)
            st = nmlp_group_gather(s->group, (void *)(uintptr_t)parts[i].at, parts[i].row_bytes, first, err);
    nmlp_mem_free(first);
    return st;
}
