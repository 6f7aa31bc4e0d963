/* What commands that run a model read from their words: the model, with a progress bar, and token ids. */
#ifndef NMLP_CLI_MODEL_ARGS_H
#define NMLP_CLI_MODEL_ARGS_H

#include "cli/cli.h"
#include "service/loaded_model.h"
#include "text/tokenizer.h"

/* The command's --threads and a progress bar are used whatever the options say. */
nmlp_status nmlp_cli_load(nmlp_loaded *loaded, const nmlp_cli *cli, const char *dir, const nmlp_load_options *options,
                          nmlp_err *err);

/* Appends "1,2,3". `what` names the option in the error. */
nmlp_status nmlp_cli_parse_ids(nmlp_ids *ids, const char *text, const char *what, nmlp_err *err);

#endif
