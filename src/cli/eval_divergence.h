/* neuronmlp eval MODEL TEXT... --kl REFERENCE */
#ifndef NMLP_CLI_EVAL_DIVERGENCE_H
#define NMLP_CLI_EVAL_DIVERGENCE_H

#include "cli/cli.h"
#include "eval/perplexity.h"
#include "service/loaded_model.h"

/* Compares the model with the checkpoint `reference` on every text and prints a line for each and their mean. The
 * command's positionals are the model and the texts. Returns the exit code. */
int nmlp_eval_divergence(const nmlp_cli *cli, const char *reference, const nmlp_ppl_options *options,
                         const nmlp_load_options *load);

#endif
