/* Files that are cut short while they are mapped. */
#ifndef NMLP_CLI_MAPPED_H
#define NMLP_CLI_MAPPED_H

/* A read behind the end of a mapped file ends the program with exit code 1 and a line that names the file, where the
 * system would end it by a signal. */
void nmlp_cli_mapped_install(void);

#endif
