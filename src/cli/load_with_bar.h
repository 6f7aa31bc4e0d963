/* Loading a model with a progress bar. */
#ifndef NMLP_CLI_LOAD_WITH_BAR_H
#define NMLP_CLI_LOAD_WITH_BAR_H

#include "cli/cli.h"
#include "service/loaded_model.h"

nmlp_status nmlp_cli_load(nmlp_loaded *loaded, const nmlp_cli *cli, const char *dir, const nmlp_load_options *options,
                          nmlp_err *err);

#endif
