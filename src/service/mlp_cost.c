#include "service/mlp_cost.h"

#include <math.h>

#include "service/kernel.h"

enum { N_MATRICES = 3 };

/* Planned time of the MLP, without the launch; rank 0 is dense. */
static nmlp_status mlp_us(double *us, const nmlp_machine *m, const nmlp_config *c, int64_t rows, int64_t rank,
                          nmlp_err *err) {
    nmlp_planner planner = nmlp_kernel_planner(m, NULL);
    nmlp_kernel_request rq = {.shape = {rows, c->hidden, rank, c->intermediate}, .dtype = NMLP_NC_BF16, .machine = m};
    nmlp_kernel_plan plan;
    NMLP_RETURN_IF_FAILED(nmlp_kernel_plan_find(&plan, &planner, NMLP_PLAN_MLP, &rq, err));
    *us = plan.winner.cost.latency_us - m->launch_us;
    return NMLP_OK;
}

nmlp_status nmlp_service_mlp_cost(nmlp_cost_line *line, const char *target, const nmlp_config *c, int64_t rows,
                                  int64_t tile, nmlp_err *err) {
    nmlp_machine m;
    double dense_us, few_us, many_us, dense = (double)(N_MATRICES * c->hidden * c->intermediate);
    int64_t per_rank = c->hidden + c->intermediate, break_even = c->hidden * c->intermediate / per_rank,
            many = break_even / tile * tile, few = tile < many ? tile : 1;
    if (many < 2) many = 2;
    NMLP_RETURN_IF_FAILED(nmlp_machine_open(&m, target, err));
    NMLP_RETURN_IF_FAILED(mlp_us(&dense_us, &m, c, rows, 0, err));
    NMLP_RETURN_IF_FAILED(mlp_us(&few_us, &m, c, rows, few, err));
    NMLP_RETURN_IF_FAILED(mlp_us(&many_us, &m, c, rows, many, err));
    double few_params = (double)(N_MATRICES * few * per_rank), many_params = (double)(N_MATRICES * many * per_rank);
    line->us_per_param = fmax((many_us - few_us) / (many_params - few_params), 0);
    line->start_lowrank_us = fmax(few_us - line->us_per_param * few_params, 0) / N_MATRICES;
    line->start_elems = (double)(c->hidden * c->intermediate);
    line->start_dense_us = (dense_us - line->us_per_param * dense) / N_MATRICES;
    return NMLP_OK;
}
