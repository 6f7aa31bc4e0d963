/* Commands as text somebody can paste: words quoted for a shell where they need it. */
#ifndef NMLP_CLI_COMMAND_TEXT_H
#define NMLP_CLI_COMMAND_TEXT_H

#include "base/str.h"

/* Appends a space, unless the text is empty, and the word. */
void nmlp_command_word(nmlp_str *out, const char *word);

/* Appends "neuronmlp" and argv (command name first), less what does not change the result: where it goes, threads,
 * resuming, --json. To be called before the options are parsed, which reorders them. */
void nmlp_command_made_by(nmlp_str *out, int argc, char **argv);

#endif
