/* Training within an optimization: a model that is faster than the bound allows gets its accuracy back. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/ints.h"
#include "service/optimization_internal.h"
#include "train/recover.h"

enum { STEPS_MIN = 10, STEPS_MAX = 100000, FORWARDS_OF_A_TOKEN = 6 /* teacher, student, backward, its own text */ };

/* So many steps as the minutes hold, by the speed of a forward pass. */
static nmlp_status count_steps(const struct nmlp_optimize_job *j, int64_t batch, int64_t *steps, nmlp_err *err) {
    const nmlp_calib_windows *w = &j->models.windows;
    nmlp_session *session = NULL;
    NMLP_RETURN_IF_FAILED(nmlp_session_create(&session, j->models.dense.engine, w->context, w->context, false, err));
    double begin = nmlp_clock_seconds();
    nmlp_status st = nmlp_session_append(session, w->ids, w->context, NULL, NULL, err);
    double window_s = nmlp_clock_seconds() - begin;
    nmlp_session_destroy(session);
    double step_s = fmax(window_s, 1e-6) * (double)batch * FORWARDS_OF_A_TOKEN;
    *steps = (int64_t)fmin(fmax(60 * j->request->minutes / step_s, STEPS_MIN), STEPS_MAX);
    return st;
}

/* Weights, gradients and moments in f32, and logits of teacher and student. */
double nmlp_optimize_train_bytes(const struct nmlp_optimize_job *j) {
    const nmlp_model *m = &j->models.dense.model;
    double tokens = (double)(nmlp_recover_defaults().batch * j->models.windows.context);
    if (!(j->request->minutes > 0)) return 0;
    return 24 * (double)nmlp_model_measure(m).params + 2 * 4 * tokens * (double)m->config.vocab;
}

static nmlp_status train(struct nmlp_optimize_job *j, const nmlp_mix_model *from, nmlp_err *err) {
    nmlp_recover_options o = nmlp_recover_defaults();
    nmlp_recover_report report = {0};
    nmlp_model model = {0};
    const nmlp_calib_windows *w = &j->models.windows;
    nmlp_status st = NMLP_OK;
    NMLP_TRY(nmlp_model_open(&model, from->dir, err));
    o.teacher = &j->models.dense.model;
    o.set = nmlp_mix_has_ranks(&from->mix) ? NMLP_TRAIN_FACTORS : NMLP_TRAIN_MLP;
    o.context = w->context;
    o.isa = j->request->load.isa;
    o.pool = j->models.dense.pool;
    o.progress = j->models.method.progress;
    o.resume = true;
    NMLP_TRY(count_steps(j, o.batch, &o.steps, err));
    o.eval_every = nmlp_max(1, nmlp_min(o.eval_every, o.steps / 4));
    st = nmlp_recover(&model, w->ids, nmlp_calib_windows_calib_tokens(w), j->trained_dir, &o, &report, err);
    if (st == NMLP_E_UNSUPPORTED || st == NMLP_E_FORMAT) { /* the state of other minutes: begin anew */
        o.resume = false;
        st = nmlp_recover(&model, w->ids, nmlp_calib_windows_calib_tokens(w), j->trained_dir, &o, &report, err);
    }
out:
    nmlp_recover_report_fini(&report);
    nmlp_model_close(&model);
    return st;
}

nmlp_status nmlp_optimize_train(struct nmlp_optimize_job *j, nmlp_err *err) {
    const double beyond = 2.5; /* times the bound: what some minutes of training can bring back */
    const nmlp_mix_model *model = NULL;
    const nmlp_calib_windows *w = &j->models.windows;
    nmlp_mix mix;
    char name[48];
    NMLP_RETURN_IF_FAILED(nmlp_mix_within_loss(&j->problem, beyond * j->result->bound / j->nats_per_kl, &mix, err));
    if (!nmlp_mix_has_ranks(&mix) && !nmlp_mix_has_bits(&mix)) {
        nmlp_mix_fini(&mix);
        nmlp_progress_note(j->models.method.progress, "nothing is faster than the dense model: nothing to train");
        return NMLP_OK;
    }
    nmlp_status st = nmlp_mix_models_build(&j->models, "untrained", &mix, &model, err);
    snprintf(name, sizeof name, "trained-%016llx", (unsigned long long)nmlp_mix_hash(&mix));
    nmlp_mix_fini(&mix);
    if (st == NMLP_OK) st = nmlp_path_join(j->trained_dir, sizeof j->trained_dir, j->models.work.temp_path, name, err);
    if (st != NMLP_OK) return st;
    j->trained_from = (int)(model - j->models.list);
    if (!nmlp_file_is_dir(j->trained_dir)) NMLP_RETURN_IF_FAILED(train(j, model, err));
    return nmlp_mix_models_compare(&j->models, j->trained_dir, w->ids + nmlp_calib_windows_calib_tokens(w),
                                   nmlp_calib_windows_heldout_tokens(w), &j->trained_loss, err);
}
