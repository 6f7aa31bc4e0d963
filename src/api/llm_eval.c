/* Measuring an nmlp_llm: perplexity of a text, accuracy on questions with choices. */
#include "api/llm_internal.h"
#include "api/options.h"
#include "eval/choice.h"
#include "eval/perplexity.h"

/* ---- perplexity ---- */

void nmlp_llm_perplexity_result_init(nmlp_llm_perplexity_result *result, size_t struct_bytes) {
    nmlp_llm_perplexity_result ours = {0};
    nmlp_options_give(result, struct_bytes, &ours, sizeof ours);
}

void nmlp_llm_perplexity_options_init(nmlp_llm_perplexity_options *options, size_t struct_bytes) {
    nmlp_llm_perplexity_options ours = {0};
    nmlp_options_give(options, struct_bytes, &ours, sizeof ours);
}

nmlp_status nmlp_llm_perplexity(nmlp_llm *llm, const char *text, size_t len, const nmlp_llm_perplexity_options *options,
                                nmlp_llm_perplexity_result *result, nmlp_err *err) {
    nmlp_llm_perplexity_options ours = {.struct_bytes = sizeof ours};
    nmlp_llm_perplexity_result out;
    nmlp_ppl_result r;
    if (!llm || !text || !result)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_perplexity needs a model, a text and a place for the result");
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&ours, sizeof ours, options, "nmlp_llm_perplexity_options", err));
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&out, sizeof out, result, "nmlp_llm_perplexity_result", err));
    nmlp_api_progress forward = {ours.on_progress, ours.progress_ctx};
    nmlp_progress progress = nmlp_api_progress_of(&forward);
    nmlp_ppl_options o = {.ctx = ours.context,
                          .stride = ours.stride,
                          .max_tokens = ours.max_tokens,
                          .bos = ours.bos != 0,
                          .progress = &progress};
    NMLP_RETURN_IF_FAILED(nmlp_ppl_options_check(&o, &llm->loaded.model.config, err));
    NMLP_RETURN_IF_FAILED(nmlp_perplexity(&r, llm->loaded.engine, llm->tokenizer, text, len, &o, err));
    out = (nmlp_llm_perplexity_result){.scored_tokens = r.n_scored,
                                       .nll = r.nll,
                                       .ppl = r.ppl,
                                       .word_ppl = r.word_ppl,
                                       .bits_per_byte = r.bits_per_byte,
                                       .seconds = r.seconds};
    nmlp_options_give(result, result->struct_bytes, &out, sizeof out);
    return NMLP_OK;
}

/* ---- multiple choice ---- */

void nmlp_llm_multiple_choice_options_init(nmlp_llm_multiple_choice_options *options, size_t struct_bytes) {
    nmlp_llm_multiple_choice_options ours = {0};
    nmlp_options_give(options, struct_bytes, &ours, sizeof ours);
}

void nmlp_llm_multiple_choice_result_init(nmlp_llm_multiple_choice_result *result, size_t struct_bytes) {
    nmlp_llm_multiple_choice_result ours = {0};
    nmlp_options_give(result, struct_bytes, &ours, sizeof ours);
}

static nmlp_status check_choice(const nmlp_llm_multiple_choice_options *o, nmlp_err *err) {
    if (!o->task == !o->task_file)
        return nmlp_fail_field(err, NMLP_E_ARG, "task", "or `task_file` must be given, and not both");
    if (!o->data) return nmlp_fail_field(err, NMLP_E_ARG, "data", "is missing: the file of questions");
    if (o->limit < 0)
        return nmlp_fail_field(err, NMLP_E_ARG, "limit", "is %lld; it must be 0 or more", (long long)o->limit);
    if (o->bos < -1 || o->bos > 1)
        return nmlp_fail_field(err, NMLP_E_ARG, "bos", "is %d; it must be -1, 0 or 1", o->bos);
    return NMLP_OK;
}

static nmlp_status find_task(const nmlp_task **task, nmlp_task *own, nmlp_arena *arena,
                             const nmlp_llm_multiple_choice_options *o, nmlp_err *err) {
    *task = own;
    if (o->task_file) return nmlp_task_load(own, arena, o->task_file, err);
    *task = nmlp_task_find(o->task);
    return *task ? NMLP_OK
                 : nmlp_fail_field(err, NMLP_E_ARG, "task", "\"%s\" is unknown; describe it in a `task_file`", o->task);
}

static nmlp_status score_questions(nmlp_choice_result *r, const nmlp_llm *llm,
                                   const nmlp_llm_multiple_choice_options *o, nmlp_arena *arena, nmlp_err *err) {
    nmlp_task own;
    const nmlp_task *task;
    nmlp_questions questions = {0};
    nmlp_api_progress forward = {o->on_progress, o->progress_ctx};
    nmlp_progress progress = nmlp_api_progress_of(&forward);
    NMLP_RETURN_IF_FAILED(find_task(&task, &own, arena, o, err));
    nmlp_questions_options which = {.labels_path = o->labels, .limit = o->limit};
    nmlp_choice_options how = {.bos = o->bos > 0   ? NMLP_BOS_ALWAYS
                                      : o->bos < 0 ? NMLP_BOS_NONE
                                                   : NMLP_BOS_TEMPLATE,
                               .stage = task->name,
                               .progress = &progress};
    nmlp_status st = nmlp_questions_load(&questions, task, o->data, &which, err);
    if (st == NMLP_OK) st = nmlp_choice_eval(r, llm->loaded.engine, llm->tokenizer, &questions, &how, err);
    nmlp_questions_free(&questions);
    return st;
}

nmlp_status nmlp_llm_multiple_choice(nmlp_llm *llm, const nmlp_llm_multiple_choice_options *options,
                                     nmlp_llm_multiple_choice_result *result, nmlp_err *err) {
    nmlp_llm_multiple_choice_options o = {.struct_bytes = sizeof o};
    nmlp_llm_multiple_choice_result out;
    nmlp_choice_result r = {0};
    nmlp_arena arena;
    if (!llm || !options || !result)
        return nmlp_fail(err, NMLP_E_ARG, "nmlp_llm_multiple_choice needs a model, options and a place for the result");
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&o, sizeof o, options, "nmlp_llm_multiple_choice_options", err));
    NMLP_RETURN_IF_FAILED(nmlp_options_take(&out, sizeof out, result, "nmlp_llm_multiple_choice_result", err));
    NMLP_RETURN_IF_FAILED(check_choice(&o, err));
    nmlp_arena_init(&arena);
    nmlp_status st = score_questions(&r, llm, &o, &arena, err);
    if (st == NMLP_OK) {
        out = (nmlp_llm_multiple_choice_result){.n = r.n,
                                                .acc = r.acc,
                                                .acc_stderr = r.acc_stderr,
                                                .acc_norm = r.acc_norm,
                                                .acc_norm_stderr = r.acc_norm_stderr,
                                                .n_truncated = r.n_truncated,
                                                .seconds = r.seconds};
        nmlp_options_give(result, result->struct_bytes, &out, sizeof out);
    }
    nmlp_choice_result_free(&r);
    nmlp_arena_fini(&arena);
    return st;
}
