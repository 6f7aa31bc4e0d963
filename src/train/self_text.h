/* Text a model writes itself: sampled from its own distribution, from a random token on, many pieces at once. A student
 * that imitates its teacher on it sees every kind of text the teacher knows, not only the kinds there are files of. */
#ifndef NMLP_TRAIN_SELF_TEXT_H
#define NMLP_TRAIN_SELF_TEXT_H

#include "base/progress.h"
#include "train/net.h"

typedef struct nmlp_train_self_text {
    const nmlp_model *model;
    int64_t first_window;      /* a window is the same whatever others are written beside it */
    int64_t n_windows, window; /* window: tokens of each */
    uint64_t seed;
    const char *isa;
    nmlp_pool *pool;
    const nmlp_progress *progress;
} nmlp_train_self_text;

/* ids [n_windows * window]. A window is pieces of some 128 tokens one after the other. */
nmlp_status nmlp_train_self_text_write(const nmlp_train_self_text *a, int32_t *ids, nmlp_err *err);

#endif
