#include "train/recover.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dir_stage.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/memory_limit.h"
#include "checkpoint/target.h"
#include "train/trainer.h"

enum { PATH_MAX_BYTES = 4096 };

nmlp_recover_options nmlp_recover_defaults(void) {
    return (nmlp_recover_options){.explore = -1,
                                  .steps = 200,
                                  .batch = 8,
                                  .rate_floor = 0.05,
                                  .warmup = 10,
                                  .clip = 1,
                                  .lora_rank = 16,
                                  .eval_every = 25,
                                  .heldout = 32,
                                  .patience = 8};
}

void nmlp_recover_report_fini(nmlp_recover_report *report) {
    nmlp_mem_free(report->log);
    *report = (nmlp_recover_report){0};
}

/* A run and where its state lies. */
struct run {
    nmlp_trainer trainer;
    nmlp_dir_stage stage; /* never committed: it holds the state while the run lasts */
    char state_path[PATH_MAX_BYTES];
};

static void report_line(const nmlp_trainer *t, const nmlp_recover_step *line) {
    const nmlp_recover_options *o = &t->options;
    nmlp_recover_pace pace = {.steps = o->steps};
    if (!o->on_step) return;
    if (t->train_seconds > 0) pace.tokens_per_s = (double)t->run_tokens / t->train_seconds;
    if (pace.tokens_per_s > 0)
        pace.eta_s = (double)((o->steps - t->state.step) * o->batch * o->context) / pace.tokens_per_s;
    o->on_step(o->ctx, line, &pace);
}

/* Opens the folder of the state, and reads it where the run is resumed. */
static nmlp_status open_files(struct run *r, const char *out_dir, bool *found, nmlp_err *err) {
    char dir[PATH_MAX_BYTES];
    nmlp_trainer *t = &r->trainer;
    size_t len = strlen(out_dir);
    *found = false;
    while (len > 1 && out_dir[len - 1] == '/') len--;
    if (snprintf(dir, sizeof dir, "%.*s.recover", (int)len, out_dir) >= (int)sizeof dir)
        return nmlp_fail(err, NMLP_E_ARG, "%s: the path is too long", out_dir);
    NMLP_RETURN_IF_FAILED(nmlp_dir_stage_open(&r->stage, dir, t->options.resume, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(r->state_path, sizeof r->state_path, r->stage.temp_path, "state", err));
    return t->options.resume ? nmlp_trainer_load(t, r->state_path, found, err) : NMLP_OK;
}

static nmlp_status save(const struct run *r, nmlp_err *err) {
    return nmlp_group_leads(r->trainer.options.group) ? nmlp_trainer_save(&r->trainer, r->state_path, err) : NMLP_OK;
}

static nmlp_status open_state(struct run *r, const char *out_dir, nmlp_err *err) {
    nmlp_trainer *t = &r->trainer;
    const nmlp_process_group *group = t->options.group;
    bool found = false;
    if (nmlp_group_leads(group)) NMLP_RETURN_IF_FAILED(open_files(r, out_dir, &found, err));
    NMLP_RETURN_IF_FAILED(nmlp_group_broadcast(group, &found, sizeof found, err));
    if (found) return nmlp_trainer_share(t, err);
    NMLP_RETURN_IF_FAILED(nmlp_trainer_evaluate(t, &t->state.first_ppl, err));
    t->state.best_ppl = t->state.first_ppl;
    if (!isfinite(t->state.first_ppl))
        return nmlp_fail(err, NMLP_E_NUMERIC, "%s: held-out perplexity is %g before training", t->model->checkpoint.dir,
                         t->state.first_ppl);
    nmlp_trainer_keep_best(t);
    t->log[t->n_log++] = (nmlp_recover_step){.loss = NAN, .grad_norm = NAN, .heldout_ppl = t->state.first_ppl};
    report_line(t, &t->log[0]);
    return save(r, err);
}

/* Measures, keeps the best, saves. */
static nmlp_status evaluate(struct run *r, nmlp_recover_step *line, nmlp_err *err) {
    nmlp_trainer *t = &r->trainer;
    NMLP_RETURN_IF_FAILED(nmlp_trainer_evaluate(t, &line->heldout_ppl, err));
    if (!isfinite(line->heldout_ppl))
        return nmlp_fail(err, NMLP_E_NUMERIC, "step %lld: held-out perplexity is %g", (long long)line->step,
                         line->heldout_ppl);
    if (line->heldout_ppl < t->state.best_ppl) {
        t->state.best_ppl = line->heldout_ppl;
        t->state.best_step = line->step;
        t->state.n_bad = 0;
        nmlp_trainer_keep_best(t);
    } else {
        t->state.n_bad++;
    }
    return NMLP_OK;
}

static bool stops_early(const nmlp_trainer *t) {
    return t->options.patience > 0 && t->state.n_bad >= t->options.patience;
}

static nmlp_status train(struct run *r, nmlp_err *err) {
    nmlp_trainer *t = &r->trainer;
    const nmlp_recover_options *o = &t->options;
    while (t->state.step < o->steps && !stops_early(t)) {
        nmlp_recover_step line;
        NMLP_RETURN_IF_FAILED(nmlp_trainer_step(t, &line, err));
        bool measured = line.step % o->eval_every == 0 || line.step == o->steps;
        if (measured) NMLP_RETURN_IF_FAILED(evaluate(r, &line, err));
        t->log[t->n_log++] = line;
        if (measured) NMLP_RETURN_IF_FAILED(save(r, err));
        report_line(t, &line);
        bool stop = !nmlp_progress_update(o->progress, "training", (double)line.step, (double)o->steps, "steps");
        NMLP_RETURN_IF_FAILED(nmlp_group_any(o->group, &stop, err)); /* all stop behind the same step */
        if (stop) {
            NMLP_RETURN_IF_FAILED(save(r, err));
            nmlp_fail(err, NMLP_E_INTERRUPTED, "training was stopped after step %lld", (long long)line.step);
            nmlp_fail_hint(err, "the same again with `resume` goes on from there");
            return NMLP_E_INTERRUPTED;
        }
    }
    return NMLP_OK;
}

static nmlp_status fill_report(nmlp_trainer *t, nmlp_recover_report *report, double after, double seconds,
                               nmlp_err *err) {
    *report = (nmlp_recover_report){.n_log = t->n_log,
                                    .steps = t->state.step,
                                    .tokens = t->state.step * t->options.batch * t->options.context,
                                    .loss_first = t->n_log > 1 ? t->log[1].loss : NAN,
                                    .loss_last = t->log[t->n_log - 1].loss,
                                    .heldout_ppl_before = t->state.first_ppl,
                                    .heldout_ppl_after = after,
                                    .best_step = t->state.best_step,
                                    .stopped_early = t->state.step < t->options.steps,
                                    .seconds = seconds};
    for (size_t i = 0; i < t->n_trained; i++) report->trained_params += t->trained[i].n;
    if (t->train_seconds > 0) report->tokens_per_s = (double)t->run_tokens / t->train_seconds;
    report->log = nmlp_mem_new((size_t)t->n_log, sizeof *report->log, err);
    if (!report->log) return NMLP_E_NOMEM;
    memcpy(report->log, t->log, (size_t)t->n_log * sizeof *report->log);
    return NMLP_OK;
}

static void say_where_best_is(nmlp_err *err, const nmlp_trainer *t, const char *out_dir) {
    nmlp_fail_hint(err, "the weights of step %lld, held-out perplexity %.4g, are in %s; try a lower `rate`",
                   (long long)t->state.best_step, t->state.best_ppl, out_dir);
}

/* All weights in f32; of trained factors the gradient, two moments and the best copy; the teacher as it is stored. */
static nmlp_status check_memory(const nmlp_model *model, const nmlp_recover_options *o, nmlp_err *err) {
    nmlp_model_size size = nmlp_model_measure(model);
    bool factors = o->mode == NMLP_RECOVER_FACTORS && size.n_lowrank > 0;
    double teacher = o->teacher ? (double)nmlp_model_measure(o->teacher).bytes : 0;
    return nmlp_memory_need(4.0 * (double)size.params + (factors ? 16.0 * (double)size.mlp_params : 0) + teacher, err);
}

nmlp_status nmlp_recover(const nmlp_model *model, const int32_t *ids, int64_t n_ids, const char *out_dir,
                         const nmlp_recover_options *options, nmlp_recover_report *report, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_status trained = NMLP_OK;
    double started = nmlp_clock_seconds();
    struct run *r = nmlp_mem_new(1, sizeof *r, err);
    *report = (nmlp_recover_report){0};
    if (!r) return NMLP_E_NOMEM;
    nmlp_trainer *t = &r->trainer;
    bool leads = nmlp_group_leads(options->group);
    if (leads) NMLP_TRY(nmlp_target_check(out_dir, options->teacher ? options->teacher->checkpoint.dir : NULL, err));
    NMLP_TRY(check_memory(model, options, err));
    NMLP_TRY(nmlp_trainer_init(t, model, ids, n_ids, options, err));
    NMLP_TRY(open_state(r, out_dir, err));
    trained = train(r, err);
    if (trained != NMLP_OK && trained != NMLP_E_NUMERIC) {
        st = trained;
        goto out;
    }
    nmlp_trainer_use_best(t);
    nmlp_trainer_round(t);
    if (leads) NMLP_TRY(nmlp_trainer_write(t, out_dir, trained == NMLP_OK ? err : NULL));
    NMLP_TRY(nmlp_dir_stage_discard(&r->stage, trained == NMLP_OK ? err : NULL));
    st = trained;
    if (trained == NMLP_OK) {
        double after;
        NMLP_TRY(nmlp_trainer_evaluate(t, &after, err));
        st = fill_report(t, report, after, nmlp_clock_seconds() - started, err);
    } else {
        say_where_best_is(err, t, out_dir);
    }
out:
    nmlp_dir_stage_keep(&r->stage); /* what did not end well can be resumed */
    nmlp_trainer_fini(t);
    nmlp_mem_free(r);
    return st;
}
