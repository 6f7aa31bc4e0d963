/* Ctrl-C and SIGTERM for long work: the first asks it to end at the next safe point, with its state saved; the second
 * ends the process at once. */
#ifndef NMLP_CLI_STOP_H
#define NMLP_CLI_STOP_H

#include <stdbool.h>

/* From now on until the process ends; for commands whose work reports progress all the time. */
void nmlp_cli_stop_install(void);
/* Whether a signal has come. */
bool nmlp_cli_stop_asked(void);

#endif
