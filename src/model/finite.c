/* Finding the first NaN or Inf of a tensor, or of all of them; then the pages are unmapped again, because nobody may
 * need them soon. */
#include "model/model.h"

#include <inttypes.h>
#include <stdatomic.h>

#include "base/file.h"

enum { PIECE_ELEMS = 1 << 20 };

struct scan {
    const nmlp_view *view;
    _Atomic int64_t first; /* smallest index found, or elems */
};

static void scan_piece(void *ctx, int64_t begin, int64_t end, int thread) {
    struct scan *scan = ctx;
    (void)thread;
    int64_t elems = nmlp_view_elems(scan->view);
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t start = piece * PIECE_ELEMS;
        nmlp_view part = *scan->view;
        part.data = (const char *)scan->view->data + (size_t)start * nmlp_dtype_bytes(part.dtype);
        part.n_dims = 1;
        part.shape[0] = elems - start < PIECE_ELEMS ? elems - start : PIECE_ELEMS;
        int64_t found = nmlp_view_first_nonfinite(&part);
        if (found < 0) continue;
        int64_t index = start + found;
        int64_t best = atomic_load(&scan->first);
        while (index < best && !atomic_compare_exchange_weak(&scan->first, &best, index)) {
        }
    }
}

static nmlp_status check_codes(const nmlp_model *m, const char *name, const nmlp_view *view, nmlp_err *err) {
    int64_t at = nmlp_view_first_nonfinite(view);
    if (at < 0) return NMLP_OK;
    if (view->dtype == NMLP_DTYPE_FP8 && nmlp_fp8_is_nan(((const uint8_t *)view->data)[at]))
        return nmlp_fail(err, NMLP_E_NUMERIC, "%s: tensor %s holds NaN at element %" PRId64, m->checkpoint.dir, name,
                         at);
    return nmlp_fail(err, NMLP_E_NUMERIC, "%s: tensor %s_scale holds NaN or Inf, for element %" PRId64 " of its weight",
                     m->checkpoint.dir, name, at);
}

static nmlp_status check_view(const nmlp_model *m, const char *name, const nmlp_view *view, nmlp_pool *pool,
                              nmlp_err *err) {
    if (nmlp_dtype_is_quantised(view->dtype)) return check_codes(m, name, view, err);
    int64_t elems = nmlp_view_elems(view);
    struct scan scan = {.view = view, .first = elems};
    nmlp_pool_for(pool, (elems + PIECE_ELEMS - 1) / PIECE_ELEMS, 1, scan_piece, &scan);
    int64_t first = atomic_load(&scan.first);
    if (first == elems) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_NUMERIC, "%s: tensor %s holds NaN or Inf at element %" PRId64, m->checkpoint.dir, name,
                     first);
}

nmlp_status nmlp_model_check_tensor(const nmlp_model *m, const nmlp_view *view, nmlp_pool *pool, nmlp_err *err) {
    const char *name = "without a name";
    if (!view->data) return NMLP_OK;
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++)
        if (nmlp_view_contains(&m->checkpoint.tensors[i].view, view->data)) name = m->checkpoint.tensors[i].name;
    return check_view(m, name, view, pool, err);
}

nmlp_status nmlp_model_check_finite(const nmlp_model *m, nmlp_pool *pool, const nmlp_progress *progress,
                                    nmlp_err *err) {
    double total = (double)nmlp_model_measure(m).bytes;
    double done = 0;
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        NMLP_RETURN_IF_FAILED(check_view(m, t->name, &t->view, pool, err));
        nmlp_file_map_release(t->view.data, nmlp_view_bytes(&t->view));
        done += (double)nmlp_view_bytes(&t->view);
        if (!nmlp_progress_update(progress, "loading", done, total, "B"))
            return nmlp_fail(err, NMLP_E_INTERRUPTED, "loading was stopped");
    }
    return NMLP_OK;
}
