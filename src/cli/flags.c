#include "cli/flags.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_BYTES = 64 };

/* Fields whose option is not simply their name with dashes. The first option that the command has is taken. */
static const struct alias {
    const char *field, *option;
} aliases[] = {
    {"n_threads", "threads"},
    {"temperature", "temp"},
    {"repetition_penalty", "repeat-penalty"},
    {"context", "ctx"},
    {"max_new", "n-predict"},
    {"calibration", "calib"},
    {"calibration_tokens", "calib-tokens"},
    {"heldout_tokens", "heldout"},
    {"slices", "shards"},
    {"attention", "modules"},
    {"verify_tokens", "verify"},
    {"target", "for"},
    {"device", "for"},
    {"allocation", "alloc"},
    {"refit", "recover"},
    {"out_dir", "output"},
    {"kernel", "op"},
    {"rate", "lr"},
    {"labels_file", "labels"},
    {"add_bos", "bos"},
};

static bool has_option(const nmlp_cli *cli, const char *name) {
    for (size_t i = 0; i < cli->n_opts; i++)
        if (strcmp(cli->opts[i].name, name) == 0) return true;
    return strcmp(name, "threads") == 0;
}

/* The option for a field of `len` bytes; false where the command has none. */
static bool option_of(char option[NAME_MAX_BYTES], const nmlp_cli *cli, const char *field, size_t len) {
    char name[NAME_MAX_BYTES];
    if (len == 0 || len >= sizeof name) return false;
    memcpy(name, field, len);
    name[len] = '\0';
    snprintf(option, NAME_MAX_BYTES, "%s", name);
    for (char *c = option; *c; c++)
        if (*c == '_') *c = '-';
    if (has_option(cli, option)) return true;
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (strcmp(aliases[i].field, name) != 0 || !has_option(cli, aliases[i].option)) continue;
        snprintf(option, NAME_MAX_BYTES, "%s", aliases[i].option);
        return true;
    }
    return false;
}

static size_t word_len(const char *text) {
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || text[n] == '_') n++;
    return n;
}

void nmlp_flags_text(char *out, size_t out_bytes, const nmlp_cli *cli, const char *text, const char *field) {
    char option[NAME_MAX_BYTES];
    size_t used = 0, first = word_len(text);
    out[0] = '\0';
    if (first && first == strlen(field) && memcmp(text, field, first) == 0 && option_of(option, cli, text, first)) {
        used = (size_t)snprintf(out, out_bytes, "--%s", option);
        text += first;
    }
    while (*text && used + 1 < out_bytes) {
        size_t len = *text == '`' ? word_len(text + 1) : 0;
        if (len && text[len + 1] == '`' && option_of(option, cli, text + 1, len)) {
            used += (size_t)snprintf(out + used, out_bytes - used, "--%s", option);
            text += len + 2;
        } else {
            out[used++] = *text++;
            out[used] = '\0';
        }
    }
}
