/* Text in, text out on one sequence: what a prompt shares at its beginning with the text the session holds is not
 * computed again. A session belongs to one thread at a time. */
#ifndef NMLP_SERVICE_TEXT_SESSION_H
#define NMLP_SERVICE_TEXT_SESSION_H

#include "service/text_answer.h"

typedef struct nmlp_text_session nmlp_text_session;

/* Model and tokenizer (NULL: ids only) are borrowed. `context` in positions, as nmlp_text_context gives it. */
nmlp_status nmlp_text_session_create(nmlp_text_session **out, const nmlp_loaded *loaded,
                                     const nmlp_tokenizer *tokenizer, int64_t context, nmlp_err *err);
void nmlp_text_session_destroy(nmlp_text_session *session); /* NULL is fine */
int64_t nmlp_text_session_context(const nmlp_text_session *session);
/* A smaller model that proposes tokens for this one to verify (engine/speculation.h): the answers stay this model's.
 * Borrowed. Refused unless both have the same tokenizer. */
nmlp_status nmlp_text_session_set_draft(nmlp_text_session *session, const nmlp_loaded *draft, nmlp_err *err);

/* Fills `result` anew. When the caller ends it before the first token, that is no failure: the answer is empty. */
nmlp_status nmlp_text_session_run(nmlp_text_session *session, const nmlp_text_request *request,
                                  nmlp_text_result *result, nmlp_err *err);

/* ---- the model's opinion of given tokens ---- */

/* logits [V] after token `position`; false stops the run with NMLP_E_INTERRUPTED. */
typedef bool nmlp_text_on_logits(void *ctx, int64_t position, const float *logits);

/* Runs n tokens as a new text and hands over the logits of positions first..n-1, in order. */
nmlp_status nmlp_text_session_logits(nmlp_text_session *session, const int32_t *ids, int64_t n, int64_t first,
                                     nmlp_text_on_logits *on_logits, void *ctx, nmlp_err *err);

#endif
