/* What an optimization takes, said before it begins. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/ints.h"
#include "service/finalists.h"
#include "service/optimization_internal.h"

enum { DECODE_PROMPT = 16 }; /* tokens that a sequence has before its decoding is timed */

/* Seconds of a forward pass over a window, the unit of the estimate. */
static nmlp_status time_window(const nmlp_mix_models *m, double *seconds, nmlp_err *err) {
    nmlp_session *session = NULL;
    const nmlp_calib_windows *w = &m->windows;
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&session, m->dense.engine, w->context, w->context, false, err));
    nmlp_status st = NMLP_OK;
    for (int i = 0; i < 2 && st == NMLP_OK; i++) { /* the first warms up */
        double begin = nmlp_clock_seconds();
        nmlp_session_truncate(session, 0);
        st = nmlp_session_append(session, w->ids, w->context, NULL, NULL, err);
        *seconds = nmlp_clock_seconds() - begin;
    }
    nmlp_session_destroy(session);
    return st;
}

/* Models are timed side by side, mapped and packed, beside the dense one that the losses were measured with. */
static double timing_bytes(const struct nmlp_optimize_job *j, double weights) {
    const double dense = 3, together = 6; /* in units of the dense model's weights; packed in f32, mapped */
    const nmlp_workload *w = &j->result->workload;
    const nmlp_config *c = &j->models.dense.model.config;
    int64_t positions = nmlp_min(c->max_positions, 2048) + (w->batch > 1 ? 256 * w->batch : 0);
    double cache = (double)nmlp_engine_cache_bytes(j->models.dense.engine, positions);
    if (j->result->simulated) return dense * weights;
    return (together * weights <= NMLP_WORKLOAD_TOGETHER_BYTES ? dense + 2 * together : dense + 4) * weights +
           NMLP_BENCH_MODELS_MAX * cache;
}

/* All models once beside the dense one, then the fastest in repeats: each is opened, warmed up and sampled.
 */
static double timing_seconds(const struct nmlp_optimize_job *j, double models, double token_s, double weights) {
    const nmlp_workload *w = &j->result->workload;
    const double packed_bytes_s = 0.5e9, finalists = 7, warm_up_tokens = 512;
    double decode_s = 1e-3 * NMLP_DECODE_SAMPLE_MS + token_s * DECODE_PROMPT * (double)w->batch;
    double sample_s = (w->prompt ? token_s * NMLP_WORKLOAD_PROMPT : 0) + (w->generate ? decode_s : 0);
    double open_s = weights / packed_bytes_s + token_s * warm_up_tokens + (w->generate ? decode_s : 0);
    if (j->result->simulated) return 0;
    return 2 * models * (open_s + NMLP_FIRST_ROUNDS * sample_s) +
           finalists * NMLP_FINAL_REPEATS * (open_s + NMLP_FINAL_ROUNDS * sample_s);
}

/* Passes over windows that an optimization makes, and what is in memory at most. The factor is for what is no pass:
 * decompositions and rounding, as measured on 4 and 8 cores. */
nmlp_status nmlp_optimize_estimate(struct nmlp_optimize_job *j, nmlp_err *err) {
    const nmlp_mix_models *m = &j->models;
    const nmlp_config *c = &m->dense.model.config;
    double window_s, calib = (double)m->windows.n_calib, heldout = (double)m->windows.n_heldout;
    double layers = (double)c->n_layers, h = (double)c->hidden, i = (double)c->intermediate;
    const double beside = 1.7, models = nmlp_target_is_trainium(j->result->target) ? 4 : 8;
    char text[200];
    NMLP_RETURN_IF_FAILED(time_window(m, &window_s, err));
    double probes = layers * (NMLP_QUANT_MATRICES + 2) * fmin(heldout, 8) * 0.6;
    double survey = 3 * calib + heldout + probes, builds = models * (2 * calib + 4 * heldout);
    double weights = (double)nmlp_model_measure(&m->dense.model).bytes, context = (double)m->windows.context;
    double verification = 2 * 5 * (double)j->verify.len / context;
    j->result->expected_seconds = beside * window_s * (survey + builds + verification) + 10 +
                                  timing_seconds(j, models, window_s / context, weights) + 60 * j->request->minutes;
    double logits = fmin(heldout * context * (double)c->vocab * 4, 400e6);
    double building =
        3 * weights + logits + 8 * (3 * h * h + 2 * i * i) + 4 * h * (double)nmlp_calib_windows_tokens(&m->windows) * 2;
    j->result->expected_bytes = 60e6 + fmax(building + nmlp_optimize_train_bytes(j), timing_bytes(j, weights));
    snprintf(text, sizeof text,
             "this takes about %.0f minutes%s and %.1f GB of memory; it can be interrupted and resumed",
             ceil(j->result->expected_seconds / 60), j->request->resume ? ", less what an earlier run has done," : "",
             j->result->expected_bytes / 1e9);
    nmlp_progress_note(m->method.progress, text);
    return NMLP_OK;
}
