/* Token ids on the command line. */
#ifndef NMLP_CLI_TOKEN_IDS_H
#define NMLP_CLI_TOKEN_IDS_H

#include "base/status.h"
#include "text/tokenizer.h"

/* Appends "1,2,3". `what` names the option in the error. */
nmlp_status nmlp_cli_parse_ids(nmlp_ids *ids, const char *text, const char *what, nmlp_err *err);

#endif
