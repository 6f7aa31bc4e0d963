#include "compress/fingerprint.h"

#include <stdio.h>
#include <string.h>

enum { SAMPLE_BYTES = 64 };

/* FNV-1a */
static uint64_t mix(uint64_t hash, const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

/* Names, shapes and a sample of every tensor's bytes from its middle. */
static uint64_t mix_model(uint64_t hash, const nmlp_model *m) {
    for (size_t i = 0; i < m->checkpoint.n_tensors; i++) {
        const nmlp_named_tensor *t = &m->checkpoint.tensors[i];
        size_t bytes = nmlp_view_bytes(&t->view);
        const char *data = t->view.data;
        hash = mix(hash, t->name, strlen(t->name));
        hash = mix(hash, t->view.shape, sizeof t->view.shape);
        if (bytes > 2 * SAMPLE_BYTES) {
            data += bytes / 2;
            bytes = SAMPLE_BYTES;
        }
        hash = mix(hash, data, bytes);
    }
    return hash;
}

nmlp_fingerprint nmlp_job_fingerprint(const nmlp_engine *engine, const nmlp_calib_windows *w,
                                      const nmlp_compress_options *o) {
    nmlp_fingerprint out;
    char text[512];
    int n = snprintf(text, sizeof text, "%d%d%d%d %.17g %d%d %lld %lld %lld %s", o->whiten, o->row_weights,
                     o->token_weights, o->shrink, o->cap, o->joint != NMLP_JOINT_NEVER, o->joint != NMLP_JOINT_ALWAYS,
                     (long long)w->context, (long long)w->n_calib, (long long)w->n_heldout, nmlp_engine_isa(engine));
    uint64_t hash = mix(0xcbf29ce484222325u, text, (size_t)n);
    hash = mix(hash, w->ids, (size_t)nmlp_calib_windows_tokens(w) * sizeof *w->ids);
    out.statistics = mix_model(hash, nmlp_engine_model(engine));
    bool timed = o->budget_ms > 0;
    n = snprintf(text, sizeof text, "%.17g %.17g %.17g %.17g %.17g %lld %d %d %d", o->ratio, o->budget_ms,
                 timed ? o->time.start_dense_us : 0, timed ? o->time.start_lowrank_us : 0,
                 timed ? o->time.us_per_param : 0, (long long)o->tile, o->adaptive, (int)o->joint, o->rounds);
    out.search = mix(out.statistics, text, (size_t)n);
    out.job = mix(out.search, o->refit ? "refit" : "plain", 5);
    return out;
}
