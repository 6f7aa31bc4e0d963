/* The library's messages name fields ("temperature is -1; …", "raise `context`"); people who type commands know flags.
 */
#ifndef NMLP_CLI_FLAGS_H
#define NMLP_CLI_FLAGS_H

#include "cli/cli.h"

/* Writes `text` with fields replaced by the command's flags: `field` (may be "") where the text begins with it, and
 * every word in backquotes. A field that is no option of this command stays as it is. */
void nmlp_flags_text(char *out, size_t out_bytes, const nmlp_cli *cli, const char *text, const char *field);

#endif
