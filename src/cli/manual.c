#include "cli/manual.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/build_info.h"

/* roff takes a minus for a hyphen, a backslash for its own commands and quotes for something prettier. */
static void put_char(nmlp_str *out, char c) {
    switch (c) {
    case '-': nmlp_str_puts(out, "\\-"); break;
    case '\\': nmlp_str_puts(out, "\\e"); break;
    case '\'': nmlp_str_puts(out, "\\(aq"); break;
    case '`': nmlp_str_puts(out, "\\(ga"); break;
    case '^': nmlp_str_puts(out, "\\(ha"); break;
    case '~': nmlp_str_puts(out, "\\(ti"); break;
    default: nmlp_str_putc(out, c);
    }
}

static void put_text(nmlp_str *out, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) put_char(out, text[i]);
}

static bool is_option_char(char c) { return islower((unsigned char)c) || isdigit((unsigned char)c) || c == '-'; }

/* Prose: options in bold, each sentence on a line of its own, a line that begins with a dot or a quote guarded. */
static void put_prose(nmlp_str *out, const char *text) {
    nmlp_str_puts(out, "\\&");
    for (const char *at = text; *at;) {
        bool starts = at == text || at[-1] == ' ' || at[-1] == '(';
        if (starts && at[0] == '-' && at[1] == '-' && islower((unsigned char)at[2])) {
            size_t len = 2;
            while (is_option_char(at[len])) len++;
            nmlp_str_puts(out, "\\fB");
            put_text(out, at, len);
            nmlp_str_puts(out, "\\fR");
            at += len;
        } else if (at[0] == '.' && at[1] == ' ' && isupper((unsigned char)at[2])) {
            nmlp_str_puts(out, ".\n");
            at += 2;
        } else {
            put_char(out, *at++);
        }
    }
    nmlp_str_putc(out, '\n');
}

/* A usage line: options in bold, placeholders in italics, the rest as it is. */
static void put_usage(nmlp_str *out, const char *usage) {
    while (*usage) {
        size_t len = strcspn(usage, " |[]()");
        if (len == 0) {
            nmlp_str_putc(out, *usage++);
            continue;
        }
        bool option = usage[0] == '-';
        bool placeholder = isupper((unsigned char)usage[0]) || isdigit((unsigned char)usage[0]);
        nmlp_str_puts(out, option ? "\\fB" : placeholder ? "\\fI" : "");
        put_text(out, usage, len);
        nmlp_str_puts(out, option || placeholder ? "\\fR" : "");
        usage += len;
    }
    nmlp_str_putc(out, '\n');
}

static void put_options(nmlp_str *out, const nmlp_opt *opts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        nmlp_str_puts(out, ".TP\n");
        if (opts[i].letter) nmlp_str_printf(out, "\\fB\\-%c\\fR, ", opts[i].letter);
        nmlp_str_puts(out, "\\fB\\-\\-");
        put_text(out, opts[i].name, strlen(opts[i].name));
        nmlp_str_puts(out, "\\fR");
        if (opts[i].arg) {
            nmlp_str_puts(out, " \\fI");
            put_text(out, opts[i].arg, strlen(opts[i].arg));
            nmlp_str_puts(out, "\\fR");
        }
        nmlp_str_putc(out, '\n');
        put_prose(out, opts[i].help);
    }
}

static void put_examples(nmlp_str *out, const char *lines) {
    nmlp_str_puts(out, ".SH EXAMPLES\n.nf\n");
    for (const char *line = lines; *line;) {
        size_t len = strcspn(line, "\n");
        put_text(out, line, len);
        nmlp_str_putc(out, '\n');
        line += len + (line[len] == '\n');
    }
    nmlp_str_puts(out, ".fi\n");
}

static void put_head(nmlp_str *out, const char *name, const char *summary) {
    const nmlp_build_info *info = nmlp_build_info_get();
    nmlp_str_puts(out, ".\\\" Written by neuronmlp " NMLP_MANUAL_WORD " from the tables behind \\-\\-help.\n.TH ");
    for (const char *at = name; *at; at++) put_char(out, (char)toupper((unsigned char)*at));
    nmlp_str_printf(out, " 1 \"%s\" \"neuronmlp %s\" \"User Commands\"\n.SH NAME\n", info->released, info->version);
    put_text(out, name, strlen(name));
    nmlp_str_puts(out, " \\- ");
    put_text(out, summary, strlen(summary));
    nmlp_str_puts(out, "\n.SH SYNOPSIS\n");
}

static void put_exit_status(nmlp_str *out) {
    nmlp_str_puts(out, ".SH EXIT STATUS\n"
                       ".TP\n0\nDone.\n"
                       ".TP\n1\nFailed: a file, the machine or a limit of the model is at fault, and one line says "
                       "which.\n"
                       ".TP\n2\nWrong usage: a word is unknown or missing, or a value cannot be right.\n");
}

static int print_page(const nmlp_cli *cli, nmlp_str *page) {
    int code = nmlp_cli_print_text(cli, page);
    nmlp_str_fini(page);
    return code;
}

int nmlp_manual_command(const nmlp_cli *cli, const nmlp_manual_options *options) {
    const nmlp_command *command = cli->command;
    nmlp_str page;
    char name[64];
    nmlp_str_init(&page);
    snprintf(name, sizeof name, "neuronmlp-%s", command->name);
    put_head(&page, name, command->summary);
    nmlp_str_puts(&page, "\\fBneuronmlp ");
    put_text(&page, command->name, strlen(command->name));
    nmlp_str_puts(&page, "\\fR ");
    put_usage(&page, command->usage);
    nmlp_str_puts(&page, ".SH DESCRIPTION\n");
    put_prose(&page, command->about ? command->about : command->summary);
    if (command->clustered)
        nmlp_str_puts(&page, ".PP\nUnder\n.BR mpirun (1)\nseveral processes do its work together.\n");
    nmlp_str_puts(&page, ".SH OPTIONS\n");
    put_options(&page, options->opts, options->n_own);
    if (options->n_own) nmlp_str_puts(&page, ".SS Options of every command\n");
    put_options(&page, options->opts + options->n_own, options->n_common);
    put_exit_status(&page);
    put_examples(&page, command->examples);
    nmlp_str_puts(&page, ".SH SEE ALSO\n.BR neuronmlp (1)\n");
    return print_page(cli, &page);
}

static void put_commands(nmlp_str *out, const nmlp_command *const *commands, size_t n) {
    nmlp_str_puts(out, ".SH COMMANDS\nEach has a page of its own and explains itself with\n.BR \\-\\-help .\n");
    for (size_t i = 0; i < n; i++) {
        nmlp_str_printf(out, ".TP\n.BR neuronmlp\\-%s (1)\n", commands[i]->name);
        put_prose(out, commands[i]->summary);
    }
}

static void put_files(nmlp_str *out) {
    nmlp_str_puts(
        out, ".SH FILES\n"
             "A model is a directory with\n.IR config.json ,\n.I model.safetensors\n(or shards with\n"
             ".IR model.safetensors.index.json )\nand\n.IR tokenizer.json ;\n.I calib.txt\nin it is the default text "
             "of\n.BR neuronmlp\\-compress (1).\n"
             ".SH ENVIRONMENT\n.TP\n.B OPENBLAS_CORETYPE\nRead by OpenBLAS.\n.BR neuronmlp\\-compress (1)\n"
             "starts itself again with it where OpenBLAS does not know the CPU.\n");
}

int nmlp_manual_program(const nmlp_command *const *commands, size_t n) {
    static const nmlp_command program = {.name = "manual"};
    const nmlp_cli cli = {.command = &program};
    nmlp_str page;
    nmlp_str_init(&page);
    put_head(&page, "neuronmlp", "compress language models with SVD and run them fast");
    nmlp_str_puts(&page, ".B neuronmlp\n.I COMMAND\n.RI [ options ]\n.br\n.B neuronmlp\n"
                         ".BR \\-\\-help \" | \" \\-\\-version \" [\" \\-\\-json ]\n.SH DESCRIPTION\n");
    put_prose(&page, "Reads Hugging Face checkpoints, dense or with factorised MLP weights; compresses them, trains "
                     "them, measures them, runs them on CPUs and NVIDIA GPUs, and plans, simulates and prints kernels "
                     "of their MLPs for AWS Trainium. Times of Trainium kernels are simulated.");
    nmlp_str_puts(&page, ".SH OPTIONS\n"
                         ".TP\n.B \\-\\-help\nList the commands; after a command, its options with examples.\n"
                         ".TP\n.B \\-\\-version\nVersion, commit, compiler, kernel sets, GPU backend and libraries of "
                         "this build.\n");
    put_commands(&page, commands, n);
    put_exit_status(&page);
    put_files(&page);
    put_examples(&page, "neuronmlp compress models/tiny -o /tmp/tiny-20 --ratio 0.2\n"
                        "neuronmlp run /tmp/tiny-20 -p \"The old house stood\" -n 40\n"
                        "neuronmlp plan --target trn1 --op mlp --shape 2048,2048,1280,8192\n");
    nmlp_str_puts(&page, ".SH SEE ALSO\n");
    for (size_t i = 0; i < n; i++)
        nmlp_str_printf(&page, ".BR neuronmlp\\-%s (1)%s\n", commands[i]->name, i + 1 < n ? "," : "");
    return print_page(&cli, &page);
}
