/* What all commands share: the option table, help, errors, progress bar and JSON output.
 *
 * A command is one file cmd_<name>.c with one nmlp_command; main.c lists them. Exit codes: 0 done, 1 failed, 2 usage:
 * the words themselves are wrong, whatever the files hold. */
#ifndef NMLP_CLI_CLI_H
#define NMLP_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json_write.h"
#include "base/progress.h"
#include "base/status.h"
#include "base/str.h"

enum { NMLP_EXIT_OK = 0, NMLP_EXIT_FAILED = 1, NMLP_EXIT_USAGE = 2, NMLP_POSITIONALS_MAX = 16 };

typedef enum nmlp_opt_kind {
    NMLP_OPT_FLAG,   /* value: bool */
    NMLP_OPT_STRING, /* value: const char * */
    NMLP_OPT_INT,    /* value: int64_t; a negative one is refused */
    NMLP_OPT_SEED,   /* value: int64_t, any */
    NMLP_OPT_NUMBER  /* value: double */
} nmlp_opt_kind;

typedef struct nmlp_opt {
    const char *name; /* without dashes */
    char letter;      /* short form, or 0 */
    nmlp_opt_kind kind;
    void *value; /* receives the value; keeps its default when the option is absent */
    const char
        *arg; /* placeholder in the help, e.g. "N", "FILE" or "on|off"; says what may be typed (cli/complete.h) */
    const char *help;
} nmlp_opt;

typedef struct nmlp_command {
    const char *name;
    const char *summary;  /* one line for the list of commands */
    const char *usage;    /* after "neuronmlp <name> " */
    const char *about;    /* a few sentences for the help and the man page, one paragraph; NULL: the summary says all */
    const char *examples; /* one command a line; each is run by a test, with models/tiny as the model */
    int (*run)(int argc, char **argv);
    bool clustered; /* several processes under mpirun do its work together */
} nmlp_command;

/* Options every command has, and the words that are not options. */
typedef struct nmlp_cli {
    const nmlp_command *command;
    bool json;
    int64_t n_threads; /* 0: one per CPU */
    const char *positionals[NMLP_POSITIONALS_MAX];
    int n_positionals;
    const nmlp_opt *opts; /* the command's own, borrowed: messages name its flags (cli/flags.h) */
    size_t n_opts;
    uint64_t given; /* bit i: opts[i] was typed */
} nmlp_cli;

/* Parses argv (without program and command name). Returns -1 to go on, or the exit code to return with. */
int nmlp_cli_parse(nmlp_cli *cli, const nmlp_command *command, const nmlp_opt *opts, size_t n_opts, int min_positionals,
                   int max_positionals, int argc, char **argv);

/* For options that would be ignored beside the others: where one of `names` (spaces between them) was typed, says
 * "--NAME why" and returns NMLP_EXIT_USAGE; else -1. */
int nmlp_cli_refuse(const nmlp_cli *cli, const char *names, const char *why);
/* The same for all of the command's options but `names`. */
int nmlp_cli_refuse_others(const nmlp_cli *cli, const char *names, const char *why);

/* Prints "neuronmlp <command>: message" and the hint, fields as the flags they are set by. Returns NMLP_EXIT_USAGE
 * where the command could never have worked as typed (NMLP_E_ARG), else NMLP_EXIT_FAILED. */
int nmlp_cli_fail(const nmlp_cli *cli, const nmlp_err *err);
/* Prints what is wrong with the words given and where help is; returns NMLP_EXIT_USAGE. */
int nmlp_cli_usage(const nmlp_cli *cli, const char *fmt, ...) NMLP_PRINTF(2, 3);

/* A progress bar on stderr, drawn only where stderr is a terminal. Pass the result to the library; call
 * nmlp_cli_progress_end before printing anything else. */
typedef struct nmlp_cli_bar {
    const char *stage;
    double started_s;
    double drawn_s;
    bool enabled;
    bool visible;
} nmlp_cli_bar;

nmlp_progress nmlp_cli_progress(nmlp_cli_bar *bar);
void nmlp_cli_progress_end(nmlp_cli_bar *bar);

/* Writes a text to stdout, whole or, where memory ran out while it was made, not at all; returns the exit code. */
int nmlp_cli_print_text(const nmlp_cli *cli, const nmlp_str *text);
/* Writes the finished JSON object and a newline to stdout; returns the exit code. */
int nmlp_cli_print_json(const nmlp_cli *cli, const nmlp_str *json);

/* The one JSON object of --json, from its opening brace to standard output. */
typedef struct nmlp_json_out {
    nmlp_str text;
    nmlp_json_writer writer;
} nmlp_json_out;

/* The writer to put members with. */
nmlp_json_writer *nmlp_json_out_begin(nmlp_json_out *out);
/* Prints the object and frees it; returns the exit code. */
int nmlp_json_out_end(nmlp_json_out *out, const nmlp_cli *cli);

/* "1.24 GB", "57.8 MB" */
void nmlp_cli_bytes_text(char text[32], double bytes);
/* "1.24 B", "27.8 M" */
void nmlp_cli_count_text(char text[32], double count);

/* Parses "1,2,3" into a new array (free with nmlp_mem_free). `what` names it in the error. */
nmlp_status nmlp_cli_parse_ints(int64_t **out, size_t *n, const char *text, const char *what, nmlp_err *err);

#endif
