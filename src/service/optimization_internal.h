/* The parts of one optimization. */
#ifndef NMLP_SERVICE_OPTIMIZATION_INTERNAL_H
#define NMLP_SERVICE_OPTIMIZATION_INTERNAL_H

#include "base/hash64.h"
#include "bench/model.h"
#include "engine/backend.h"
#include "model/expand.h"
#include "service/kernel.h"
#include "service/optimization.h"

/* Of all points once, and of each repeat of the last comparison (service/finalists.h). */
enum { NMLP_FIRST_ROUNDS = 5, NMLP_FINAL_ROUNDS = 3, NMLP_DECODE_SAMPLE_MS = 200 };

struct nmlp_optimize_job {
    const nmlp_optimization_request *request;
    nmlp_optimization *result;
    nmlp_mix_models models;
    nmlp_ids verify; /* tokens that no choice sees */
    nmlp_str calibration_name;
    nmlp_dir_stage output;
    nmlp_form_times times;
    nmlp_mix_cost cost;
    nmlp_mix_problem problem;
    nmlp_workload_timer timer;
    double nats_per_kl; /* rise of the log-perplexity for a unit of divergence, as the references have it */
    int q8, q4;         /* among the models; -1: not built */
    int trained;        /* the point that was trained; -1: none */
    char trained_dir[NMLP_MIX_PATH_BYTES];
    nmlp_divergence trained_loss;
    int trained_from; /* the model it was made from */
};

/* Notes seconds and bytes that it will take, and fills them into the result. */
nmlp_status nmlp_optimize_estimate(struct nmlp_optimize_job *job, nmlp_err *err);
/* Directory of a point of the result. */
const char *nmlp_optimize_dir(const struct nmlp_optimize_job *job, int point);

/* Fills the points of the result: the dense model, all that were built, the trained one; with their times. */
nmlp_status nmlp_optimize_time_models(struct nmlp_optimize_job *job, nmlp_err *err);
/* On a GPU products are not timed alone: times of whole models in each format. */
nmlp_status nmlp_optimize_time_cuda_forms(struct nmlp_optimize_job *job, nmlp_err *err);
/* The fastest of the points within the bound that the verification leaves, the dense model where that is in doubt. */
nmlp_status nmlp_optimize_choose(struct nmlp_optimize_job *job, nmlp_err *err);
/* Modelled loss, time and bytes between the dense model and the fastest mix of all. */
nmlp_status nmlp_optimize_draw_frontier(struct nmlp_optimize_job *job, nmlp_err *err);
/* Trains a mix that is faster than the bound allows, for the minutes given. */
nmlp_status nmlp_optimize_train(struct nmlp_optimize_job *job, nmlp_err *err);
/* Memory that this takes beside the models; 0 without minutes. */
double nmlp_optimize_train_bytes(const struct nmlp_optimize_job *job);

#endif
