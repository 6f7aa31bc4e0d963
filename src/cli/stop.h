/* Ctrl-C and SIGTERM for long work: the first asks it to end at the next safe point, with its state saved; the second
 * ends the process at once. */
#ifndef NMLP_CLI_STOP_H
#define NMLP_CLI_STOP_H

#include <stdbool.h>

/* From now on until the process ends; for commands whose work reports progress all the time. */
void nmlp_cli_stop_install(void);
/* Ctrl-C of a conversation, as often as it comes: reading from the terminal is interrupted too. */
void nmlp_cli_interrupts_install(void);
/* Whether a signal has come, since the last nmlp_cli_stop_clear. */
bool nmlp_cli_stop_asked(void);
void nmlp_cli_stop_clear(void);

#endif
