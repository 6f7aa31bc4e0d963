/* What a run of recovery training is made of. */
#ifndef NMLP_TRAIN_TRAINER_H
#define NMLP_TRAIN_TRAINER_H

#include "engine/session.h"
#include "train/adapters.h"
#include "train/optimiser.h"
#include "train/self_text.h"
#include "train/corpus.h"
#include "train/net.h"
#include "train/recover.h"
#include "train/rounded.h"

/* What changes from step to step, and all that a later run needs to go on. */
typedef struct nmlp_progress_state {
    int64_t step; /* done */
    int64_t best_step;
    int64_t n_bad; /* evaluations since the best */
    double best_ppl;
    double first_ppl;
} nmlp_progress_state;

typedef struct nmlp_trainer {
    const nmlp_model *model;
    nmlp_recover_options options; /* defaults filled in */
    nmlp_arena arena;
    nmlp_train_net *net;
    nmlp_train_corpus corpus;
    nmlp_train_trainable *trained; /* [n_trained] */
    float **best;                  /* [n_trained] copies of their best data */
    size_t n_trained;
    nmlp_train_adapter *adapters; /* [n_adapters], mode lora */
    size_t n_adapters;
    nmlp_train_rounded *rounded; /* [n_rounded], trained weights that are quantised */
    size_t n_rounded;
    int64_t micro;          /* sequences computed at once */
    int32_t *ids, *targets; /* [micro*context] */
    nmlp_engine *teacher;
    nmlp_session *session;
    float *teacher_rows;    /* [micro*context, H of the teacher], final norm applied */
    float **teacher_hidden; /* [L+1] of [micro*context, H] when hidden states are matched */
    nmlp_progress_state state;
    nmlp_recover_step *log; /* [steps+1] */
    int64_t n_log;
    uint64_t fingerprint;
    double *member_values; /* [processes] one number of each */
    int64_t *member_first; /* [processes+1] 0, 1, 2, ... */
    double train_seconds;  /* of this run */
    int64_t run_tokens;    /* of this run */
} nmlp_trainer;

nmlp_status nmlp_trainer_init(nmlp_trainer *t, const nmlp_model *model, const int32_t *ids, int64_t n_ids,
                              const nmlp_recover_options *options, nmlp_err *err);
void nmlp_trainer_fini(nmlp_trainer *t);

/* One step: gradients of a batch, clipping, update. NMLP_E_NUMERIC, nothing updated, when the loss or the gradient is
 * not finite. */
nmlp_status nmlp_trainer_step(nmlp_trainer *t, nmlp_recover_step *line, nmlp_err *err);
/* Held-out perplexity of the weights as they are. */
nmlp_status nmlp_trainer_evaluate(nmlp_trainer *t, double *ppl, nmlp_err *err);
/* Copies of the trained arrays, to and from `best`. */
void nmlp_trainer_keep_best(nmlp_trainer *t);
void nmlp_trainer_use_best(nmlp_trainer *t);
/* After a change of what is trained: adapters are added to the weights they belong to, quantised weights rounded. */
void nmlp_trainer_apply(nmlp_trainer *t);
/* Rounds trained tensors to the type they are stored in. */
void nmlp_trainer_round(nmlp_trainer *t);

/* ---- files ---- */

/* Writes the state atomically; reads it back, *found false where there is none. Refuses a state of another run. */
nmlp_status nmlp_trainer_save(const nmlp_trainer *t, const char *path, nmlp_err *err);
nmlp_status nmlp_trainer_load(nmlp_trainer *t, const char *path, bool *found, nmlp_err *err);
/* The leading process's state, as loaded, to all of the group. */
nmlp_status nmlp_trainer_share(nmlp_trainer *t, nmlp_err *err);
/* The model directory with the trained tensors as they are now, and recovery.csv. */
nmlp_status nmlp_trainer_write(const nmlp_trainer *t, const char *out_dir, nmlp_err *err);

#endif
