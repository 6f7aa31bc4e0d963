/* neuronmlp: finds the command and hands over. */
#define _DEFAULT_SOURCE /* setenv, SIGXFSZ */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/complete.h"
#include "cli/manual.h"
#include "cli/mapped.h"
#include "cli/nearest.h"
#include "cli/version.h"
#include "cluster/cluster.h"
#include "neuronmlp/version.h"

static const nmlp_command *const commands[] = {
    &nmlp_cmd_info,     &nmlp_cmd_tokenize, &nmlp_cmd_logits,  &nmlp_cmd_run,      &nmlp_cmd_serve,  &nmlp_cmd_synth,
    &nmlp_cmd_optimize, &nmlp_cmd_compress, &nmlp_cmd_recover, &nmlp_cmd_quantize, &nmlp_cmd_expand, &nmlp_cmd_import,
    &nmlp_cmd_export,   &nmlp_cmd_eval,     &nmlp_cmd_plan,    &nmlp_cmd_simulate, &nmlp_cmd_emit,   &nmlp_cmd_fit,
    &nmlp_cmd_predict,  &nmlp_cmd_doctor,   &nmlp_cmd_bench,   &nmlp_cmd_report,   &nmlp_cmd_paper,
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_commands(FILE *out) {
    fprintf(out,
            "neuronmlp %s: compress language models with SVD and run them fast\n\n"
            "usage: neuronmlp COMMAND [options]\n\n",
            NMLP_VERSION_STRING);
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out,
            "\nneuronmlp COMMAND --help shows options and examples; neuronmlp --version [--json] what is built in.\n"
            "exit codes: 0 done, 1 failed (one line says why), 2 usage\n");
}

static const nmlp_command *find_command(const char *name) {
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i]->name) == 0) return commands[i];
    return NULL;
}

static int refuse_command(const char *name) {
    nmlp_nearest nearest = nmlp_nearest_begin(name);
    for (size_t i = 0; i < N_COMMANDS; i++) nmlp_nearest_try(&nearest, commands[i]->name);
    fprintf(stderr, "neuronmlp: unknown %s \"%s\"", name[0] == '-' ? "option" : "command", name);
    if (nearest.best) fprintf(stderr, "; did you mean \"%s\"?", nearest.best);
    fprintf(stderr, "\nhint: neuronmlp --help\n");
    return NMLP_EXIT_USAGE;
}

/* argv: __complete and the words typed behind "neuronmlp", the last of them unfinished. */
static int complete(int argc, char **argv) {
    if (argc > 2) {
        const nmlp_command *command = find_command(argv[1]);
        argv[1] = argv[0]; /* a command's words begin with its name, the request stands behind it */
        return command ? command->run(argc, argv) : NMLP_EXIT_OK;
    }
    const char *typed = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < N_COMMANDS; i++) nmlp_complete_offer(typed, commands[i]->name, commands[i]->summary);
    nmlp_complete_offer(typed, "--help", "list the commands");
    nmlp_complete_offer(typed, "--version", "what is built in");
    return NMLP_EXIT_OK;
}

/* argv: __manual and the command whose page is asked for; without one, the program's. */
static int manual(int argc, char **argv) {
    if (argc < 2) return nmlp_manual_program(commands, N_COMMANDS);
    const nmlp_command *command = find_command(argv[1]);
    return command ? command->run(2, (char *[]){argv[1], argv[0], NULL}) : refuse_command(argv[1]);
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_commands(stderr);
        return NMLP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_commands(stdout);
        return NMLP_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) return nmlp_version_print(argc > 2 && strcmp(argv[2], "--json") == 0);
    if (strcmp(argv[1], NMLP_COMPLETE_WORD) == 0) return complete(argc - 1, argv + 1);
    if (strcmp(argv[1], NMLP_MANUAL_WORD) == 0) return manual(argc - 1, argv + 1);
    const nmlp_command *command = find_command(argv[1]);
    if (!command) return refuse_command(argv[1]);
    nmlp_cluster_place place = nmlp_cluster_launched();
    if (place.size > 1 && !command->clustered) {
        if (place.rank == 0)
            fprintf(stderr, "neuronmlp %s: works in one process, %d were started\n", command->name, place.size);
        return NMLP_EXIT_USAGE;
    }
    return command->run(argc - 1, argv + 1);
}

/* Ends without what libraries do at exit: all that matters is written, the system takes the rest back, and some of them
   (the CUDA driver, OpenBLAS) do not survive a lack of memory there. */
static int end_process(int code) {
#ifdef NMLP_SANITIZED
    return code; /* leaks are looked for at exit */
#else
    (void)fflush(NULL);
    _exit(code);
#endif
}

int main(int argc, char **argv) {
    /* Its threads would idle: blocks of matrices are spread over our own (linalg/linalg.h). */
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0);
    (void)signal(SIGXFSZ, SIG_IGN); /* a file-size limit is then an error of the write, which says what to do */
    nmlp_cli_mapped_install();
    int code = run(argc, argv);
    /* Whatever printed it: a result that did not arrive is no result. */
    bool lost_now = fflush(stdout) != 0;
    const char *why = lost_now ? strerror(errno) : "an earlier write failed";
    if ((!lost_now && !ferror(stdout)) || code != NMLP_EXIT_OK) return end_process(code);
    fprintf(stderr, "neuronmlp: stdout: cannot write: %s\n", why);
    return end_process(NMLP_EXIT_FAILED);
}
