/* Model cards: README.md as Hugging Face shows it, beside every checkpoint that was made of another. */
#ifndef NMLP_CHECKPOINT_MODEL_CARD_H
#define NMLP_CHECKPOINT_MODEL_CARD_H

#include "base/status.h"
#include "base/str.h"

/* What runs the checkpoint besides this program. */
typedef enum nmlp_card_use {
    NMLP_CARD_USE_HERE, /* nothing */
    NMLP_CARD_USE_TRANSFORMERS,
    NMLP_CARD_USE_REMOTE_CODE /* transformers with the files beside the weights */
} nmlp_card_use;

/* The last part of a path. */
void nmlp_model_card_put_name(nmlp_str *out, const char *path);
/* Metadata, title and the head of a table of two columns. `base_dir` is the directory of the original, `what` became of
 * it, `tag` may be NULL. */
void nmlp_model_card_begin(nmlp_str *out, const char *base_dir, const char *what, const char *sentence,
                           const char *tag);
/* How to run it, and what the numbers are. */
void nmlp_model_card_end(nmlp_str *out, nmlp_card_use use);
/* DIR/README.md. */
nmlp_status nmlp_model_card_save(const nmlp_str *card, const char *dir, nmlp_err *err);

#endif
