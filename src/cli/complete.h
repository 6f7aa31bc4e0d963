/* What may come next on a command line, for shells (completions/).
 *
 * The placeholder of an option ("trn1|trn2", "FILE", "KERNEL") and the first word of a command's usage say what kind of
 * value is expected, to the reader of the help and here: in a list a lower-case word stands for itself; FILE, DIR and
 * MODEL are names the shell knows; KERNEL, TARGET, PRESET and the like the lists the program itself works with. Where a
 * placeholder says nothing (NAME), the name of the option or command does: --isa NAME. */
#ifndef NMLP_CLI_COMPLETE_H
#define NMLP_CLI_COMPLETE_H

#include <stddef.h>

#include "cli/cli.h"

/* Asks a command's run function, as its first word, to complete instead. */
#define NMLP_COMPLETE_WORD "__complete"

/* Prints the candidates for the last of `words`, one a line, some with a tab and what they mean; ":file" and ":dir" ask
 * the shell for names. Returns the exit code. */
int nmlp_complete_words(const nmlp_command *command, const nmlp_opt *opts, size_t n_opts, int max_positionals,
                        int n_words, char *const *words);

/* Prints `candidate`, and behind a tab `meaning` unless it is NULL, where it begins with `typed`. */
void nmlp_complete_offer(const char *typed, const char *candidate, const char *meaning);

#endif
