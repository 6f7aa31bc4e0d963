/* Progress of long work, as the library reports it: the library calls `update`, whoever runs it draws the bar.
 * `update` may be NULL. Called from one thread at a time. Returning false asks the work to stop; it then ends with
 * NMLP_E_INTERRUPTED and leaves nothing half written. */
#ifndef NMLP_BASE_PROGRESS_H
#define NMLP_BASE_PROGRESS_H

#include <stdbool.h>

typedef struct nmlp_progress {
    bool (*update)(void *ctx, const char *stage, double done, double total, const char *unit);
    void *ctx;
    void (*note)(void *ctx, const char *text); /* something the user should know; may be NULL */
} nmlp_progress;

static inline bool nmlp_progress_update(const nmlp_progress *progress, const char *stage, double done, double total,
                                        const char *unit) {
    return !progress || !progress->update || progress->update(progress->ctx, stage, done, total, unit);
}

static inline void nmlp_progress_note(const nmlp_progress *progress, const char *text) {
    if (progress && progress->note) progress->note(progress->ctx, text);
}

#endif
