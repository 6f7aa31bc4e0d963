/* One question: the fastest form of a model for a workload on a target, within a loss. What the command `optimize` and
 * the public API share.
 *
 * Every matrix is measured alone (compress/budget/survey.h), every form of it timed; a knapsack finds the fastest mix
 * within the loss; mixes are built, measured on held-out text and timed as whole models, and the bound on the knapsack
 * is moved until what is built meets the loss asked for. Single formats, ranks alone and the dense model are always
 * among the candidates. The fastest, at least one of each kind, are verified on text that no choice has seen and
 * timed in repeats beside the dense model, and one that is clearly faster is written, or the dense model. */
#ifndef NMLP_SERVICE_OPTIMIZATION_H
#define NMLP_SERVICE_OPTIMIZATION_H

#include "service/form_times.h"
#include "service/mix_models.h"
#include "service/workload.h"

typedef struct nmlp_optimization nmlp_optimization;

typedef struct nmlp_optimization_request {
    nmlp_load_options load; /* its progress is used for all of it */
    const char *target;     /* "cpu" (or NULL), "cuda", a built-in Trainium or a machine file */
    nmlp_workload workload;
    double max_loss;         /* by which share the perplexity may rise: 0.01 */
    double minutes;          /* above 0: for training a faster model until it is within the loss */
    const char *calibration; /* text file; NULL: calib.txt in the model's directory */
    int64_t calib_tokens, heldout_tokens, verify_tokens; /* heldout -1: 8192, or 2048 for large models */
    int64_t context;
    int64_t tile; /* 0: what suits the target */
    bool resume;
    const char *work_dir; /* NULL: "<out_dir>.work" */
    const char *made_by;  /* the command, for the model card; may be NULL */
    /* Before the finished folder appears, for files beside its weights; may be NULL. */
    nmlp_status (*on_write)(void *ctx, const nmlp_optimization *result, const char *dir, nmlp_err *err);
    void *ctx;
} nmlp_optimization_request;

nmlp_optimization_request nmlp_optimization_defaults(void);

typedef enum nmlp_verdict {
    NMLP_VERDICT_DENSE,
    NMLP_VERDICT_BITS,
    NMLP_VERDICT_RANKS,
    NMLP_VERDICT_MIXED
} nmlp_verdict;
const char *nmlp_verdict_text(nmlp_verdict verdict); /* "leave it dense", "bits only", ... */

/* A model that was built, or the dense one. */
typedef struct nmlp_optimized_point {
    char name[40];
    double loss, loss_error; /* rise of the mean log-perplexity on held-out text, and its standard error */
    double kl;
    double ms; /* of a unit of the workload */
    int64_t bytes;
    bool ranks, bits, trained;
    bool within;                      /* the loss and its error are within the bound */
    bool refused;                     /* not so on the text of the verification */
    double speedup_low, speedup_high; /* over the repeats of the last comparison; 0: it was not among those */
} nmlp_optimized_point;

enum { NMLP_OPTIMIZED_POINTS_MAX = NMLP_MIX_MODELS_MAX + 1, NMLP_FRONTIER_MAX = 24 };

struct nmlp_optimization {
    nmlp_config config;
    const char *target;
    nmlp_workload workload;
    double bound; /* of the loss, nats */
    bool simulated;
    nmlp_optimized_point points[NMLP_OPTIMIZED_POINTS_MAX]; /* the dense model first */
    int n_points, chosen;
    int fastest;   /* by the median of the last comparison; another one than the chosen where its lead is in doubt */
    int n_repeats; /* of the last comparison; 0: simulated, or nothing to compare */
    struct {
        double loss, ms, bytes; /* as modelled: loss by the corrected survey, ms scaled to the dense model's time */
    } frontier[NMLP_FRONTIER_MAX];
    int n_frontier;
    nmlp_verdict verdict;
    nmlp_mix mix;             /* of the chosen model */
    nmlp_divergence verified; /* of the chosen model on text that no choice has seen; n_scored 0: none was left */
    int n_stepped_back;       /* models that the verification refused */
    int64_t calib_tokens, heldout_tokens, verify_tokens;
    double expected_seconds, expected_bytes; /* said before the work began */
    double seconds;
};

void nmlp_optimization_fini(nmlp_optimization *result);

/* Fills `result` anew; to be released whatever the status. out_dir is replaced once the new checkpoint is complete; an
 * interrupted run goes on with `resume`. */
nmlp_status nmlp_optimization_run(nmlp_optimization *result, const char *model_dir, const char *out_dir,
                                  const nmlp_optimization_request *request, nmlp_err *err);

/* The model card of a result. */
void nmlp_optimization_card(const nmlp_optimization *result, const char *model_dir, const char *made_by, nmlp_str *out);

#endif
