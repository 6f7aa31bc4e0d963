/* config.json from the metadata of a GGUF file. */
#ifndef NMLP_GGUF_GGUF_CONFIG_H
#define NMLP_GGUF_GGUF_CONFIG_H

#include "checkpoint/config.h"
#include "gguf/gguf.h"

/* *in_pairs: rows of q and k are in the order of gguf_names.h. Refuses other architectures than llama, qwen2 and qwen3,
 * and rope scalings that cannot be said in config.json. */
nmlp_status nmlp_gguf_config_read(nmlp_config *config, bool *in_pairs, nmlp_gguf *file, nmlp_err *err);

/* By how much llama3's rope scaling divides frequency i of D/2. */
double nmlp_gguf_rope_divisor(const nmlp_rope_config *rope, int64_t head_dim, int64_t i);

/* Its parameters, in files of this program: the format has only the divisors. */
#define NMLP_GGUF_KEY_FACTOR "neuronmlp.rope.factor"
#define NMLP_GGUF_KEY_LOW "neuronmlp.rope.low_freq_factor"
#define NMLP_GGUF_KEY_HIGH "neuronmlp.rope.high_freq_factor"
#define NMLP_GGUF_KEY_ORIGINAL "neuronmlp.rope.original_max_positions"

#endif
