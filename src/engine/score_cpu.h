/* Scoring of texts on the CPU: what a text shares with the one before it is run once, and the rows of all texts run
 * side by side in full chunks. */
#ifndef NMLP_ENGINE_SCORE_CPU_H
#define NMLP_ENGINE_SCORE_CPU_H

#include "engine/score.h"
#include "engine/weights_cpu.h"

typedef struct nmlp_cpu_scorer nmlp_cpu_scorer;

/* As the entries of backend.h. */
nmlp_status nmlp_cpu_scorer_create(nmlp_cpu_scorer **out, const nmlp_cpu_weights *weights, int64_t positions,
                                   nmlp_err *err);
void nmlp_cpu_scorer_destroy(nmlp_cpu_scorer *scorer);
int64_t nmlp_cpu_scorer_tokens(const nmlp_cpu_scorer *scorer);
int64_t nmlp_cpu_scorer_rows(const nmlp_score_text *text, const nmlp_score_text *before);
nmlp_status nmlp_cpu_scorer_run(nmlp_cpu_scorer *scorer, const nmlp_score_text *texts, int64_t n,
                                nmlp_score_on_rows *on_rows, void *ctx, nmlp_err *err);

#endif
