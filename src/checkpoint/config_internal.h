/* What the files of config.json share. */
#ifndef NMLP_CHECKPOINT_CONFIG_INTERNAL_H
#define NMLP_CHECKPOINT_CONFIG_INTERNAL_H

#include "base/json_write.h"
#include "checkpoint/config.h"

/* A compressed model has an architecture of its own, so that programs that do not know factors refuse it instead of
 * running it with random MLPs; what it was made from stands in a key of its own. Checkpoints of before name the
 * original. */
#define NMLP_COMPRESSED_ARCHITECTURE "NeuronmlpForCausalLM"
#define NMLP_COMPRESSED_MODEL_TYPE "neuronmlp"

/* Sizes must have been read. */
nmlp_status nmlp_config_read_rope(nmlp_config *config, const nmlp_json_doc *doc, nmlp_err *err);
void nmlp_config_write_rope(const nmlp_config *config, nmlp_json_writer *w);
nmlp_status nmlp_config_read_layers(nmlp_config *config, const nmlp_json_doc *doc, nmlp_err *err);
nmlp_status nmlp_config_read_experts(nmlp_config *config, const nmlp_json_doc *doc, nmlp_err *err);
void nmlp_config_write_experts(const nmlp_config *config, nmlp_json_writer *w);
void nmlp_config_write_layers(const nmlp_config *config, nmlp_json_writer *w);

#endif
