/* How processes that share a model share each layer's MLP: by arithmetic (model/cluster_cost.h) from what a message and
 * a byte cost between these processes now, and how fast they read memory together. Every one of them measures, and the
 * slowest counts, so all choose the same. */
#ifndef NMLP_ENGINE_SPLIT_CHOICE_H
#define NMLP_ENGINE_SPLIT_CHOICE_H

#include "base/pool.h"
#include "base/process_group.h"
#include "model/model_shard.h"

typedef struct nmlp_split_choice {
    nmlp_cluster_split *splits; /* [n_layers], freed with nmlp_split_choice_fini */
    nmlp_cluster_spec measured; /* in terms of the arithmetic; `nodes` are the processes */
    double token_ms;            /* by it, of one token with an empty cache */
} nmlp_split_choice;

/* Collective. `wanted` is the name of a split, taken by every layer that has factors of whole matrices, or "auto" (or
 * NULL): each layer's best. */
nmlp_status nmlp_split_choose(nmlp_split_choice *out, const nmlp_model *whole, const char *wanted,
                              const nmlp_process_group *group, nmlp_pool *pool, nmlp_err *err);
void nmlp_split_choice_fini(nmlp_split_choice *choice);

/* "24 layers all, 8 replicated; a wait takes 31.2 us, 9.41 Gbit/s, memory 20.3 GB/s; 12.1 ms a token computed" */
void nmlp_split_choice_text(const nmlp_split_choice *choice, int64_t n_layers, nmlp_str *text);

#endif
