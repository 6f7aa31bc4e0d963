/* Results as JSON members of an open object (keys: docs/evaluation.md), and a task's protocol in words. */
#ifndef NMLP_EVAL_RESULT_H
#define NMLP_EVAL_RESULT_H

#include "base/json_write.h"
#include "eval/choice.h"
#include "eval/perplexity.h"
#include "eval/task.h"

void nmlp_ppl_put(nmlp_json_writer *w, const nmlp_ppl_result *result);
/* `details`: predictions and log-likelihoods too. */
void nmlp_choice_put(nmlp_json_writer *w, const nmlp_choice_result *result, bool details);
void nmlp_task_describe(nmlp_str *out, const nmlp_task *task, bool bos);

#endif
