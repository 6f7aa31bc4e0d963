/* Layers with experts on the CPU: every token goes through the few that the router chooses. */
#ifndef NMLP_ENGINE_EXPERTS_CPU_H
#define NMLP_ENGINE_EXPERTS_CPU_H

#include "engine/session.h"
#include "engine/weights_cpu.h"

/* Room for S tokens of k experts each. */
typedef struct nmlp_cpu_experts {
    float *scores;               /* [S,E] */
    float *in;                   /* [S,H] rows of one expert, one after the other */
    float *out;                  /* [S,H] */
    nmlp_expert_choice *choices; /* [S,k] */
    int32_t *tokens;             /* [S] choices that fell on one expert */
    void *workspace;
} nmlp_cpu_experts;

/* choices [S,k] for rows x [S,H]. */
void nmlp_cpu_experts_route(const nmlp_cpu_experts *room, const nmlp_cpu_weights *weights, int64_t layer,
                            const float *x, int64_t s, nmlp_expert_choice *choices);

/* y [S,H] = the experts of a layer, mixed, of rows x [S,H]. Experts are added in their order, so that a row's bits do
 * not depend on the rows that come with it. */
void nmlp_cpu_experts_run(const nmlp_cpu_experts *room, const nmlp_cpu_weights *weights, int64_t layer, float *y,
                          const float *x, int64_t s);

#endif
