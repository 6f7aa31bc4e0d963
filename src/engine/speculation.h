/* Speculation: a small draft model proposes some tokens, the target runs them all in one step and keeps those it would
 * have chosen. What comes out has exactly the target's distribution: greedy tokens are the target's own, and of a
 * proposal x drawn from the draft's q the target's p keeps min(1, p(x)/q(x)); where it does not, the token is drawn
 * from the rest of p, max(0, p - q) normalised. Both distributions are those after temperature and filters.
 *
 * One object serves one generation. The number of proposals follows how many were kept. */
#ifndef NMLP_ENGINE_SPECULATION_H
#define NMLP_ENGINE_SPECULATION_H

#include <stdint.h>

#include "base/status.h"
#include "engine/batch.h"
#include "engine/sampler.h"

enum { NMLP_PROPOSALS_MAX = 8 };

typedef struct nmlp_speculation nmlp_speculation;

/* Refuses a draft of another vocabulary, and sampling with a repetition penalty, which changes from token to token. */
nmlp_status nmlp_speculation_check(const nmlp_batch *target, const nmlp_batch *draft, const nmlp_sampling *sampling,
                                   nmlp_err *err);
/* Opens a sequence of the draft for a text that begins with the prompt; `context` bounds the text. */
nmlp_status nmlp_speculation_create(nmlp_speculation **out, nmlp_batch *draft, const nmlp_sampling *sampling,
                                    const int32_t *prompt, int64_t n_prompt, int64_t context, nmlp_err *err);
void nmlp_speculation_destroy(nmlp_speculation *speculation);

/* A token that is part of the text. */
void nmlp_speculation_append(nmlp_speculation *speculation, int32_t id);
/* Proposes up to `most` tokens after the last of the text; fewer, or none, where the draft cannot. */
int64_t nmlp_speculation_propose(nmlp_speculation *speculation, nmlp_sampler *sampler, nmlp_sampler_scratch *scratch,
                                 int64_t most);
/* The last token of the text, then the proposals: what the target runs. */
const int32_t *nmlp_speculation_rows(const nmlp_speculation *speculation);
/* Room for their logits [1 + NMLP_PROPOSALS_MAX, V]. */
float *nmlp_speculation_logits(nmlp_speculation *speculation);
/* After the target's step: the proposals kept, and one more token of the target's. Returns how many tokens. */
int64_t nmlp_speculation_verify(nmlp_speculation *speculation, nmlp_sampler *sampler, nmlp_sampler_scratch *scratch,
                                int32_t tokens[1 + NMLP_PROPOSALS_MAX]);

#endif
