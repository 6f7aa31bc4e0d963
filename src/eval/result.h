/* Results as JSON members of an open object (keys: docs/evaluation.md), a task's protocol in words, and what a number
 * came from: enough to tell whether two runs looked at the same thing.
 *
 * Hashes are XXH64 (base/hash64.h) as 16 hexadecimal digits. Tokenizer: of tokenizer.json. Model: of config.json, then
 * of every weight file whole, in the order the checkpoint names them, each seeded with the hash before it; one byte
 * changed anywhere changes it. */
#ifndef NMLP_EVAL_RESULT_H
#define NMLP_EVAL_RESULT_H

#include "base/json_write.h"
#include "base/status.h"
#include "engine/engine.h"
#include "eval/choice.h"
#include "eval/perplexity.h"
#include "eval/task.h"

void nmlp_ppl_put(nmlp_json_writer *w, const nmlp_ppl_result *result);
/* `details`: predictions and log-likelihoods too. */
void nmlp_choice_put(nmlp_json_writer *w, const nmlp_choice_result *result, bool details);
void nmlp_task_describe(nmlp_str *out, const nmlp_task *task, nmlp_bos bos);

enum { NMLP_HASH_TEXT = 17 };

typedef struct nmlp_provenance {
    char model_hash[NMLP_HASH_TEXT];
    char tokenizer_hash[NMLP_HASH_TEXT];
    char isa[80]; /* kernel set or device; a copy, since tables outlive the engine */
    const char *version;
} nmlp_provenance;

nmlp_status nmlp_provenance_read(nmlp_provenance *provenance, const nmlp_engine *engine, nmlp_err *err);
/* Puts model_hash, tokenizer_hash, isa and version into an open object. */
void nmlp_provenance_put(nmlp_json_writer *w, const nmlp_provenance *provenance);
/* The hash of one file. */
nmlp_status nmlp_file_hash(char out[NMLP_HASH_TEXT], const char *path, nmlp_err *err);

#endif
