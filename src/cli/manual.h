/* Man pages, from the same tables as --help: one of the program and one of each command (scripts/manual writes them).
 */
#ifndef NMLP_CLI_MANUAL_H
#define NMLP_CLI_MANUAL_H

#include <stddef.h>

#include "cli/cli.h"

/* Asks the program, or a command's run function as its first word, for its man page instead. */
#define NMLP_MANUAL_WORD "__manual"

/* The options of a command: its own first, then those of every command. */
typedef struct nmlp_manual_options {
    const nmlp_opt *opts;
    size_t n_own;
    size_t n_common;
} nmlp_manual_options;

/* Print a page to stdout as man(7) source; return the exit code. */
int nmlp_manual_command(const nmlp_cli *cli, const nmlp_manual_options *options);
int nmlp_manual_program(const nmlp_command *const *commands, size_t n);

#endif
