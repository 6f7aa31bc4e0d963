/* neuronmlp: finds the command and hands over. */
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"

static const nmlp_command *const commands[] = {
    &nmlp_cmd_info,
    &nmlp_cmd_tokenize,
    &nmlp_cmd_logits,
    &nmlp_cmd_run,
    &nmlp_cmd_synth,
    &nmlp_cmd_compress,
    &nmlp_cmd_recover,
    &nmlp_cmd_expand,
    &nmlp_cmd_eval,
    &nmlp_cmd_plan,
    &nmlp_cmd_simulate,
    &nmlp_cmd_emit,
    &nmlp_cmd_predict,
    &nmlp_cmd_bench,
    &nmlp_cmd_report,
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_commands(FILE *out) {
    fprintf(out, "neuronmlp %s: compress language models with SVD and run them fast\n\n"
                 "usage: neuronmlp COMMAND [options]\n\n", NMLP_VERSION);
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\nneuronmlp COMMAND --help shows options and examples.\n");
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_commands(stderr);
        return NMLP_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_commands(stdout);
        return NMLP_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("neuronmlp %s\n", NMLP_VERSION);
        return NMLP_EXIT_OK;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i]->name) == 0) return commands[i]->run(argc - 1, argv + 1);
    }
    fprintf(stderr, "neuronmlp: unknown command \"%s\"\nhint: neuronmlp --help\n", argv[1]);
    return NMLP_EXIT_USAGE;
}
