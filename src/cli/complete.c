#define _DEFAULT_SOURCE /* strncasecmp */
#include "cli/complete.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/bench.h"
#include "eval/task.h"
#include "kernels/kernels.h"
#include "model/preset.h"
#include "trainium/neuron/machine.h"
#include "trainium/plan/kernel_table.h"

enum { CANDIDATE_MAX = 64 };

void nmlp_complete_offer(const char *typed, const char *candidate, const char *meaning) {
    if (strncmp(typed, candidate, strlen(typed)) != 0) return;
    printf("%s%s%s\n", candidate, meaning ? "\t" : "", meaning ? meaning : "");
}

static void offer_part(const char *typed, const char *text, size_t len) {
    char word[CANDIDATE_MAX];
    snprintf(word, sizeof word, "%.*s", (int)len, text);
    nmlp_complete_offer(typed, word, NULL);
}

static void offer_files(const char *typed) {
    (void)typed;
    puts(":file");
}

static void offer_dirs(const char *typed) {
    (void)typed;
    puts(":dir");
}

static void offer_targets(const char *typed) {
    for (size_t i = 0; nmlp_machine_builtin_name(i); i++)
        nmlp_complete_offer(typed, nmlp_machine_builtin_name(i), NULL);
    offer_files(typed);
}

static void offer_kernels(const char *typed) {
    for (size_t i = 0; nmlp_kernel_at(i); i++) nmlp_complete_offer(typed, nmlp_kernel_at(i)->name, NULL);
}

static void offer_sets(const char *typed) {
    nmlp_complete_offer(typed, "auto", NULL);
    for (size_t i = 0; nmlp_kernels_name_at(i); i++) nmlp_complete_offer(typed, nmlp_kernels_name_at(i), NULL);
}

static void offer_tasks(const char *typed) {
    for (size_t i = 0; nmlp_task_at(i); i++) nmlp_complete_offer(typed, nmlp_task_at(i)->name, NULL);
}

static void offer_benches(const char *typed) {
    for (size_t i = 0; nmlp_bench_at(i); i++)
        nmlp_complete_offer(typed, nmlp_bench_at(i)->name, nmlp_bench_at(i)->summary);
}

static void offer_presets(const char *typed) {
    nmlp_str names;
    nmlp_str_init(&names);
    nmlp_preset_names(&names);
    for (const char *at = nmlp_str_text(&names); *at;) {
        size_t len = strcspn(at, ", ");
        if (len) offer_part(typed, at, len);
        at += len + (at[len] != '\0');
    }
    nmlp_str_fini(&names);
}

static void offer_list(const char *typed, const char *words);

static void offer_devices(const char *typed) { offer_list(typed, "cpu|cuda|auto"); }
static void offer_precisions(const char *typed) { offer_list(typed, "f32|bf16"); }
static void offer_formats(const char *typed) { offer_list(typed, "text|markdown|csv|json"); }

static const struct kind {
    const char *name;
    void (*offer)(const char *typed);
} kinds[] = {
    {"file", offer_files},     {"dir", offer_dirs},       {"model", offer_dirs},           {"target", offer_targets},
    {"kernel", offer_kernels}, {"preset", offer_presets}, {"task", offer_tasks},           {"isa", offer_sets},
    {"bench", offer_benches},  {"device", offer_devices}, {"precision", offer_precisions}, {"format", offer_formats},
};

static bool offer_kind(const char *typed, const char *name, size_t len) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strlen(kinds[i].name) != len || strncasecmp(kinds[i].name, name, len) != 0) continue;
        kinds[i].offer(typed);
        return true;
    }
    return false;
}

/* "a|b|FILE": words in lower case, kinds in capitals. */
static void offer_list(const char *typed, const char *words) {
    while (*words) {
        size_t len = strcspn(words, "|");
        if (!isupper((unsigned char)*words) || !offer_kind(typed, words, len)) offer_part(typed, words, len);
        words += len + (words[len] == '|');
    }
}

/* A placeholder such as "FILE", "a|b", "MODEL|PRESET", "MODEL...", "NAME"; `owner` is the option or command it belongs
 * to. */
static void offer_values(const char *typed, const char *placeholder, const char *owner) {
    char first[CANDIDATE_MAX];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(placeholder, " ."), placeholder);
    if (strchr(first, '|')) {
        offer_list(typed, first);
    } else if (!isupper((unsigned char)first[0]) || !offer_kind(typed, first, strlen(first))) {
        offer_kind(typed, owner, strlen(owner));
    }
}

static void offer_options(const char *typed, const nmlp_opt *opts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char word[CANDIDATE_MAX];
        snprintf(word, sizeof word, "--%s", opts[i].name);
        nmlp_complete_offer(typed, word, opts[i].help);
        snprintf(word, sizeof word, "-%c", opts[i].letter);
        if (opts[i].letter) nmlp_complete_offer(typed, word, opts[i].help);
    }
}

/* The option a word names, or NULL. */
static const nmlp_opt *option_of(const char *word, const nmlp_opt *opts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool is_long = strncmp(word, "--", 2) == 0 && strcmp(word + 2, opts[i].name) == 0;
        if (is_long || (opts[i].letter && word[0] == '-' && word[1] == opts[i].letter && !word[2])) return &opts[i];
    }
    return NULL;
}

/* Walks to the last word. Returns the option whose value it is, or NULL; counts the positionals in front of it. bash
 * gives "--a=b" as three words. */
static const nmlp_opt *option_pending(const nmlp_opt *opts, size_t n, int n_words, char *const *words,
                                      int *n_positionals) {
    const nmlp_opt *pending = NULL;
    *n_positionals = 0;
    for (int i = 0; i < n_words - 1; i++) {
        if (strcmp(words[i], "=") == 0) continue;
        if (pending) {
            pending = NULL;
            continue;
        }
        const nmlp_opt *option = option_of(words[i], opts, n);
        if (option && option->kind != NMLP_OPT_FLAG) pending = option;
        if (words[i][0] != '-') ++*n_positionals;
    }
    return pending;
}

int nmlp_complete_words(const nmlp_command *command, const nmlp_opt *opts, size_t n_opts, int max_positionals,
                        int n_words, char *const *words) {
    int n_positionals;
    const char *typed = n_words > 0 ? words[n_words - 1] : "";
    const nmlp_opt *pending = option_pending(opts, n_opts, n_words, words, &n_positionals);
    if (strcmp(typed, "=") == 0) typed = "";
    if (pending) {
        offer_values(typed, pending->arg, pending->name);
    } else if (typed[0] == '-') {
        offer_options(typed, opts, n_opts);
    } else if (n_positionals < max_positionals) {
        offer_values(typed, command->usage, command->name);
    } else if (!typed[0]) {
        offer_options(typed, opts, n_opts);
    }
    return NMLP_EXIT_OK;
}
