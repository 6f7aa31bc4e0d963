/* Recovery training: a compressed model gets its accuracy back.
 *
 * AdamW on the factors (or on adapters to them) against the next token or, with a teacher, against the teacher's
 * distribution. Part of the text is held out; the weights with the lowest held-out perplexity, the untrained ones
 * included, are what is written. While it runs,
 * "<out_dir>.recover.partial" holds the state, so that a killed run goes on to the same bytes. Same input, same bytes,
 * whatever the number of threads. */
#ifndef NMLP_TRAIN_RECOVER_H
#define NMLP_TRAIN_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/process_group.h"
#include "base/progress.h"
#include "base/status.h"
#include "model/model.h"
#include "train/train_set.h"

typedef enum nmlp_recover_mode { NMLP_RECOVER_FACTORS, NMLP_RECOVER_LORA } nmlp_recover_mode;

/* One line of the log. */
typedef struct nmlp_recover_step {
    int64_t step;   /* steps done */
    int64_t tokens; /* trained on so far */
    double rate;
    double loss;        /* mean over the step's tokens, before its update; NaN in the line before training */
    double grad_norm;   /* before clipping */
    double heldout_ppl; /* NaN where it was not measured */
} nmlp_recover_step;

/* How fast it goes, for whoever watches. */
typedef struct nmlp_recover_pace {
    int64_t steps;
    double tokens_per_s; /* of this run so far, held-out text not counted */
    double eta_s;
} nmlp_recover_pace;

typedef struct nmlp_recover_options {
    const nmlp_model *teacher; /* NULL: next-token loss */
    nmlp_recover_mode mode;
    nmlp_train_set set;
    double
        explore;  /* share of the training windows that the teacher writes; below 0: a third where there is a teacher */
    double match; /* weight of the distance from the teacher's hidden states; needs a teacher of the same shape */
    int64_t steps;
    int64_t batch;     /* sequences of a step */
    int64_t context;   /* tokens of a sequence; 0: the model's maximum, at most 512 */
    double rate;       /* peak; 0: a default for the mode */
    double rate_floor; /* fraction of the peak at the end */
    int64_t warmup;
    double clip; /* largest gradient norm; 0: none */
    double weight_decay;
    int64_t lora_rank;
    uint64_t seed;
    int64_t eval_every; /* steps between held-out evaluations and saved states */
    int64_t heldout;    /* windows */
    int64_t patience;   /* evaluations without improvement before it stops; 0: never */
    bool resume;
    const char *isa;
    nmlp_pool *pool;
    const nmlp_process_group *group; /* data parallel: each member takes a share of every batch; files are those of rank
                                        0. May be NULL */
    const nmlp_progress *progress;   /* false stops it, state saved */
    /* After each step, and before the first with step 0; may be NULL. */
    void (*on_step)(void *ctx, const nmlp_recover_step *step, const nmlp_recover_pace *pace);
    /* Before the finished folder appears, for files beside its weights; may be NULL. */
    nmlp_status (*on_write)(void *ctx, const nmlp_recover_step *log, int64_t n_log, const char *dir, nmlp_err *err);
    void *ctx;
} nmlp_recover_options;

nmlp_recover_options nmlp_recover_defaults(void);

typedef struct nmlp_recover_report {
    nmlp_recover_step *log; /* [n_log]: the start, then every step */
    int64_t n_log;
    int64_t steps; /* done; fewer than asked for after an early stop */
    int64_t tokens;
    int64_t trained_params;
    double loss_first, loss_last;
    double heldout_ppl_before, heldout_ppl_after; /* after: as written, rounded to the checkpoint's type */
    int64_t best_step;
    bool stopped_early;
    double seconds;
    double tokens_per_s;
} nmlp_recover_report;

void nmlp_recover_report_fini(nmlp_recover_report *report);

/* Trains `model` on the token ids of a text and writes it to out_dir, with recovery.csv beside the weights. A loss that
 * is not finite ends in NMLP_E_NUMERIC; out_dir then holds the best weights before it. */
nmlp_status nmlp_recover(const nmlp_model *model, const int32_t *ids, int64_t n_ids, const char *out_dir,
                         const nmlp_recover_options *options, nmlp_recover_report *report, nmlp_err *err);

#endif
