#include "compress/work.h"

#include <stdio.h>
#include <string.h>

#include "base/hash64.h"
#include "linalg/linalg.h"
#include "model/fingerprint.h"
#include "neuronmlp/version.h"

nmlp_status nmlp_compress_fingerprint_of(nmlp_compress_fingerprint *out, const nmlp_engine *engine,
                                         const nmlp_calib_windows *w, const nmlp_compress_options *o, nmlp_err *err) {
    char text[512];
    int n = snprintf(text, sizeof text, "%s %d%d%d%d %.17g %d%d %lld %lld %lld %lld %s %s", NMLP_VERSION_STRING,
                     o->whiten, o->row_weights, o->token_weights, o->shrink, o->cap, o->joint != NMLP_JOINT_NEVER,
                     o->joint != NMLP_JOINT_ALWAYS, (long long)w->context, (long long)w->n_calib,
                     (long long)w->n_heldout, (long long)o->slices, nmlp_engine_isa(engine), nmlp_linalg_core());
    uint64_t hash = nmlp_hash64(text, (size_t)n, 0);
    hash = nmlp_hash64(w->ids, (size_t)nmlp_calib_windows_tokens(w) * sizeof *w->ids, hash);
    NMLP_RETURN_IF_FAILED(nmlp_model_fingerprint(&hash, nmlp_engine_model(engine), nmlp_engine_pool(engine), err));
    out->statistics = hash;
    bool timed = o->budget_ms > 0;
    n = snprintf(text, sizeof text, "%.17g %.17g %.17g %.17g %.17g %.17g %lld %d %d %d", o->ratio, o->budget_ms,
                 timed ? o->time.start_dense_us : 0, timed ? o->time.start_lowrank_us : 0,
                 timed ? o->time.us_per_param : 0, timed ? o->time.start_elems : 0, (long long)o->tile, o->adaptive,
                 (int)o->joint, o->rounds + (o->attention ? 1000 : 0));
    out->search = nmlp_hash64(text, (size_t)n, out->statistics);
    for (int64_t l = 0; o->ranks && l < nmlp_engine_model(engine)->config.n_layers; l++) {
        int64_t ranks[] = {o->ranks[l].rank[0], o->ranks[l].rank[1], o->ranks[l].rank[2], o->ranks[l].joint};
        out->search = nmlp_hash64(ranks, sizeof ranks, out->search);
    }
    out->job = nmlp_hash64(o->refit ? "refit" : "plain", 5, out->search);
    return NMLP_OK;
}

void nmlp_work_tally_note(const nmlp_work_tally *t, const char *what, const nmlp_progress *progress) {
    char text[256];
    if (t->n[NMLP_WORK_OTHER] > 0) {
        snprintf(
            text, sizeof text,
            "%s: %lld of the work folder are of another model, text, kernel set, version or other options, and are "
            "made again",
            what, (long long)t->n[NMLP_WORK_OTHER]);
        nmlp_progress_note(progress, text);
    }
    if (t->n[NMLP_WORK_DAMAGED] > 0) {
        snprintf(text, sizeof text, "%s: %lld of the work folder are damaged, and are made again", what,
                 (long long)t->n[NMLP_WORK_DAMAGED]);
        nmlp_progress_note(progress, text);
    }
}

nmlp_status nmlp_work_agree(const nmlp_process_group *group, int64_t found, const char *work_dir, nmlp_err *err) {
    int64_t first = found;
    NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(group, &first, sizeof first, err));
    bool differs = first != found;
    NMLP_RETURN_IF_FAILED(nmlp_group_any(group, &differs, err));
    if (!differs) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_IO,
                     "%s: does not hold the same files for every process; it must be on a file system "
                     "that all of them share",
                     work_dir);
}
