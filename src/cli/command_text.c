#include "cli/command_text.h"

#include <string.h>

static bool is_plain(const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
    return *word && strspn(word, plain) == strlen(word);
}

void nmlp_command_word(nmlp_str *out, const char *word) {
    if (out->len) nmlp_str_putc(out, ' ');
    if (is_plain(word)) {
        nmlp_str_puts(out, word);
        return;
    }
    nmlp_str_putc(out, '\'');
    for (; *word; word++) {
        if (*word == '\'')
            nmlp_str_puts(out, "'\\''");
        else
            nmlp_str_putc(out, *word);
    }
    nmlp_str_putc(out, '\'');
}

/* How many words starting here do not change the result. */
static int n_irrelevant(const char *word) {
    static const char *const with_value[] = {"-o", "--output", "-t", "--threads", "--work"};
    for (size_t i = 0; i < sizeof with_value / sizeof with_value[0]; i++) {
        size_t len = strlen(with_value[i]);
        if (strncmp(word, with_value[i], len) != 0) continue;
        if (word[len] == '\0') return 2;
        if (word[len] == '=' || len == 2) return 1;
    }
    return strcmp(word, "--resume") == 0 || strcmp(word, "--json") == 0;
}

void nmlp_command_made_by(nmlp_str *out, int argc, char **argv) {
    nmlp_command_word(out, "neuronmlp");
    for (int i = 0; i < argc; i++) {
        int skipped = n_irrelevant(argv[i]);
        if (skipped)
            i += skipped - 1;
        else
            nmlp_command_word(out, argv[i]);
    }
}
