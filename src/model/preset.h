/* Shapes of public models, and checkpoints of those shapes with random weights, for benchmarks and predictions. */
#ifndef NMLP_MODEL_PRESET_H
#define NMLP_MODEL_PRESET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/progress.h"
#include "base/status.h"
#include "base/str.h"
#include "checkpoint/config.h"

/* Fills a config for "llama-3.2-1b", …; the error lists the names. */
nmlp_status nmlp_preset_find(nmlp_config *config, const char *name, nmlp_err *err);
/* "llama-3.2-1b, llama-3.2-3b, …" */
void nmlp_preset_names(nmlp_str *out);

enum { NMLP_RANK_TILE_MAX = 1 << 24 }; /* of whoever asks for one */
/* Rank that removes at least `ratio` of an [rows, cols] matrix, in multiples of `tile`: never below one tile, never
 * above break-even. 0 when no rank saves anything. */
int64_t nmlp_rank_for_ratio(int64_t rows, int64_t cols, double ratio, int64_t tile);

typedef struct nmlp_synth_options {
    double ratio;     /* 0: dense */
    int64_t tile;     /* rank granularity */
    int64_t n_layers; /* 0: the preset's */
    nmlp_dtype dtype; /* of matrices: BF16, Q8 or Q4; those that Q4 does not fit are Q8 */
    int group;        /* Q4 */
    uint64_t seed;
    nmlp_pool *pool;
    const nmlp_progress *progress;
} nmlp_synth_options;

/* Writes a complete model directory (with a byte-level tokenizer, so that it can be run at once). The same bytes for
 * the same options. */
nmlp_status nmlp_synth_write(const char *dir, nmlp_config *config, const nmlp_synth_options *options, int64_t *params,
                             int64_t *bytes, nmlp_err *err);

#endif
