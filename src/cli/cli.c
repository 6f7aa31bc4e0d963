#define _DEFAULT_SOURCE /* getopt_long, nanosleep */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/memory_limit.h"
#include "cli/complete.h"
#include "cli/flags.h"
#include "cli/manual.h"
#include "cli/nearest.h"
#include "cli/stop.h"
#include "cluster/cluster.h"

enum { OPTIONS_MAX = 48, HELP_COLUMN = 28, HELP_WIDTH = 100 };

static void print_option(const nmlp_opt *opt) {
    char head[96];
    char letter[8] = "    ";
    if (opt->letter) snprintf(letter, sizeof letter, "-%c, ", opt->letter);
    snprintf(head, sizeof head, "  %s--%s%s%s", letter, opt->name, opt->arg ? " " : "", opt->arg ? opt->arg : "");
    if (strlen(head) < HELP_COLUMN) {
        printf("%-*s%s\n", HELP_COLUMN, head, opt->help);
    } else {
        printf("%s\n%*s%s\n", head, HELP_COLUMN, "", opt->help);
    }
}

static void print_paragraph(const char *text) {
    size_t used = 0;
    for (const char *word = text; *word;) {
        size_t len = strcspn(word, " ");
        bool wraps = used > 0 && used + 1 + len > HELP_WIDTH;
        printf("%s%.*s", wraps ? "\n" : used ? " " : "", (int)len, word);
        used = wraps || !used ? len : used + 1 + len;
        word += len + (word[len] == ' ');
    }
    printf("\n");
}

static void print_help(const nmlp_command *command, const nmlp_opt *opts, size_t n_opts) {
    printf("usage: neuronmlp %s %s\n\n%s\n\n", command->name, command->usage, command->summary);
    if (command->about) {
        print_paragraph(command->about);
        printf("\n");
    }
    printf("options:\n");
    for (size_t i = 0; i < n_opts; i++) print_option(&opts[i]);
    printf("\nexamples:\n");
    for (const char *line = command->examples; *line;) {
        size_t len = strcspn(line, "\n");
        printf("  %.*s\n", (int)len, line);
        line += len + (line[len] == '\n');
    }
}

static bool store_int(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end) return false;
    *out = number;
    return true;
}

static bool store_number(const char *text, double *out) {
    char *end;
    errno = 0;
    double number = strtod(text, &end);
    if (errno || end == text || *end || !isfinite(number)) return false;
    *out = number;
    return true;
}

static bool store_value(const nmlp_opt *opt, const char *text) {
    switch (opt->kind) {
    case NMLP_OPT_FLAG: *(bool *)opt->value = true; return true;
    case NMLP_OPT_STRING: *(const char **)opt->value = text; return true;
    case NMLP_OPT_INT:
    case NMLP_OPT_SEED: return store_int(text, opt->value);
    case NMLP_OPT_NUMBER: return store_number(text, opt->value);
    }
    return false;
}

static void fill_getopt_tables(const nmlp_opt *all, size_t n, struct option *long_opts, char *letters) {
    size_t at = 0;
    letters[at++] = ':'; /* report a missing argument apart from an unknown option */
    for (size_t i = 0; i < n; i++) {
        int has_arg = all[i].kind == NMLP_OPT_FLAG ? no_argument : required_argument;
        long_opts[i] = (struct option){.name = all[i].name, .has_arg = has_arg, .flag = NULL, .val = (int)i + 256};
        if (!all[i].letter) continue;
        letters[at++] = all[i].letter;
        if (has_arg == required_argument) letters[at++] = ':';
    }
    letters[at] = '\0';
}

static const nmlp_opt *find_option(const nmlp_opt *all, size_t n, int code) {
    if (code >= 256) return &all[code - 256];
    for (size_t i = 0; i < n; i++)
        if (all[i].letter && all[i].letter == code) return &all[i];
    return NULL;
}

/* An option getopt did not understand: unknown, cut off too early, or a flag with a value. */
static int refuse_option(const nmlp_cli *cli, const nmlp_opt *all, size_t n, const char *word) {
    if (optopt >= 256) return nmlp_cli_usage(cli, "--%s takes no value", all[optopt - 256].name);
    if (optopt) return nmlp_cli_usage(cli, "unknown option -%c", optopt);
    const char *name = word + strspn(word, "-");
    size_t len = strcspn(name, "=");
    char typed[64], several[256] = "";
    snprintf(typed, sizeof typed, "%.*s", (int)len, name);
    nmlp_nearest nearest = nmlp_nearest_begin(typed);
    for (size_t i = 0; i < n; i++) {
        size_t used = strlen(several);
        if (strncmp(all[i].name, typed, len) == 0)
            snprintf(several + used, sizeof several - used, " --%s", all[i].name);
        nmlp_nearest_try(&nearest, all[i].name);
    }
    if (several[0]) return nmlp_cli_usage(cli, "option --%s is ambiguous:%s", typed, several);
    if (nearest.best) return nmlp_cli_usage(cli, "unknown option --%s; did you mean --%s?", typed, nearest.best);
    return nmlp_cli_usage(cli, "unknown option --%s", typed);
}

static int parse_options(nmlp_cli *cli, const nmlp_opt *all, size_t n_all, int argc, char **argv) {
    struct option long_opts[OPTIONS_MAX + 1] = {0};
    char letters[2 * OPTIONS_MAX + 2];
    fill_getopt_tables(all, n_all, long_opts, letters);
    optind = 0; /* reset: getopt keeps state between calls */
    int code;
    while ((code = getopt_long(argc, argv, letters, long_opts, NULL)) != -1) {
        if (code == ':') {
            const nmlp_opt *lacking = find_option(all, n_all, optopt);
            return nmlp_cli_usage(cli, "option --%s needs a value: %s", lacking->name, lacking->arg);
        }
        const nmlp_opt *opt = code == '?' ? NULL : find_option(all, n_all, code);
        if (!opt) return refuse_option(cli, all, n_all, argv[optind - 1]);
        if ((size_t)(opt - all) < cli->n_opts) cli->given |= UINT64_C(1) << (opt - all);
        if (!store_value(opt, optarg))
            return nmlp_cli_usage(cli, "--%s: \"%s\" is not a %snumber", opt->name, optarg,
                                  opt->kind == NMLP_OPT_NUMBER ? "" : "whole ");
        if (opt->kind == NMLP_OPT_INT && *(int64_t *)opt->value < 0)
            return nmlp_cli_usage(cli, "--%s is %s; it must be 0 or more", opt->name, optarg);
    }
    return -1;
}

int nmlp_cli_parse(nmlp_cli *cli, const nmlp_command *command, const nmlp_opt *opts, size_t n_opts, int min_positionals,
                   int max_positionals, int argc, char **argv) {
    bool help = false;
    int64_t memory_bytes = 0;
    nmlp_err err;
    *cli = (nmlp_cli){.command = command, .opts = opts, .n_opts = n_opts};
    const nmlp_opt common[] = {
        {"json", 0, NMLP_OPT_FLAG, &cli->json, NULL, "one JSON object on stdout, everything else on stderr"},
        {"threads", 't', NMLP_OPT_INT, &cli->n_threads, "N", "threads to use (default: one per CPU)"},
        {"memory", 0, NMLP_OPT_INT, &memory_bytes, "BYTES",
         "most memory to take, mapped files apart (default: no limit)"},
        {"help", 'h', NMLP_OPT_FLAG, &help, NULL, "show this help"},
    };
    const size_t n_common = sizeof common / sizeof common[0];
    nmlp_opt all[OPTIONS_MAX];
    if (n_opts) memcpy(all, opts, n_opts * sizeof *all);
    memcpy(all + n_opts, common, sizeof common);
    if (argc > 1 && strcmp(argv[1], NMLP_COMPLETE_WORD) == 0)
        return nmlp_complete_words(command, all, n_opts + n_common, max_positionals, argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], NMLP_MANUAL_WORD) == 0)
        return nmlp_manual_command(cli, &(nmlp_manual_options){all, n_opts, n_common});
    int code = parse_options(cli, all, n_opts + n_common, argc, argv);
    if (code >= 0) return code;
    if (help) {
        print_help(command, all, n_opts + n_common);
        return NMLP_EXIT_OK;
    }
    int given = argc - optind;
    if (given < min_positionals)
        return nmlp_cli_usage(cli, "an argument is missing; usage: neuronmlp %s %s", command->name, command->usage);
    if (given > max_positionals)
        return nmlp_cli_usage(cli, "unexpected argument \"%s\"", argv[optind + max_positionals]);
    if (cli->n_threads > 1024) return nmlp_cli_usage(cli, "--threads must be from 0 to 1024");
    if (memory_bytes > 0 && nmlp_memory_cap((size_t)memory_bytes, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    for (int i = 0; i < given; i++) cli->positionals[i] = argv[optind + i];
    cli->n_positionals = given;
    return -1;
}

static bool is_listed(const char *names, const char *name) {
    size_t len = strlen(name);
    for (const char *at = names; (at = strstr(at, name)); at += len)
        if ((at == names || at[-1] == ' ') && (at[len] == ' ' || at[len] == '\0')) return true;
    return false;
}

static int refuse_given(const nmlp_cli *cli, const char *names, bool listed, const char *why) {
    for (size_t i = 0; i < cli->n_opts; i++)
        if ((cli->given >> i & 1) && is_listed(names, cli->opts[i].name) == listed)
            return nmlp_cli_usage(cli, "--%s %s", cli->opts[i].name, why);
    return -1;
}

int nmlp_cli_refuse(const nmlp_cli *cli, const char *names, const char *why) {
    return refuse_given(cli, names, true, why);
}

int nmlp_cli_refuse_others(const nmlp_cli *cli, const char *names, const char *why) {
    return refuse_given(cli, names, false, why);
}

/* What fails on every process of a cluster is said once: the others wait for the signal by which the first one's end
   ends the job. */
static bool is_said_by_another(void) {
    return nmlp_cluster_launched().rank > 0 && nanosleep(&(struct timespec){.tv_sec = 5}, NULL) != 0;
}

static void print_name(const nmlp_cli *cli) {
    nmlp_cluster_place place = nmlp_cluster_launched();
    fprintf(stderr, "neuronmlp %s", cli->command->name);
    if (place.rank > 0) fprintf(stderr, " (process %d of %d)", place.rank, place.size);
}

int nmlp_cli_fail(const nmlp_cli *cli, const nmlp_err *err) {
    char text[2 * NMLP_ERR_MESSAGE_MAX];
    int code = err->code == NMLP_E_ARG ? NMLP_EXIT_USAGE : NMLP_EXIT_FAILED;
    if (is_said_by_another()) return code;
    nmlp_flags_text(text, sizeof text, cli, err->message, err->field);
    print_name(cli);
    fprintf(stderr, ": %s\n", text);
    if (err->hint[0]) {
        nmlp_flags_text(text, sizeof text, cli, err->hint, "");
        fprintf(stderr, "hint: %s\n", text);
    } else if (err->code == NMLP_E_ARG) {
        fprintf(stderr, "hint: neuronmlp %s --help\n", cli->command->name);
    }
    return code;
}

int nmlp_cli_usage(const nmlp_cli *cli, const char *fmt, ...) {
    va_list args;
    if (nmlp_cluster_launched().rank > 0) return NMLP_EXIT_USAGE; /* all were started with the same words */
    fprintf(stderr, "neuronmlp %s: ", cli->command->name);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\nhint: neuronmlp %s --help\n", cli->command->name);
    return NMLP_EXIT_USAGE;
}

static void draw_bar(nmlp_cli_bar *bar, double done, double total, const char *unit, double now) {
    enum { CELLS = 24 };
    char cells[CELLS + 1];
    double share = total > 0 ? done / total : 0;
    if (share > 1) share = 1;
    int full = (int)(share * CELLS);
    memset(cells, '#', (size_t)full);
    memset(cells + full, '.', (size_t)(CELLS - full));
    cells[CELLS] = '\0';
    double elapsed = now - bar->started_s;
    double rate = elapsed > 0 ? done / elapsed : 0;
    fprintf(stderr, "\r%-16.16s [%s] %5.1f%%  %.4g %s/s", bar->stage, cells, 100 * share, rate, unit);
    if (rate > 0 && done < total) fprintf(stderr, "  ETA %.0f s", (total - done) / rate);
    fprintf(stderr, "\033[K");
    fflush(stderr);
    bar->visible = true;
}

static bool update_bar(void *ctx, const char *stage, double done, double total, const char *unit) {
    nmlp_cli_bar *bar = ctx;
    if (nmlp_cli_stop_asked()) return false;
    if (!bar->enabled) return true;
    double now = nmlp_clock_seconds();
    if (!bar->stage || strcmp(bar->stage, stage) != 0) {
        nmlp_cli_progress_end(bar);
        bar->stage = stage;
        bar->started_s = now;
        bar->drawn_s = 0;
    }
    if (now - bar->drawn_s < 0.1 && done < total) return true;
    bar->drawn_s = now;
    draw_bar(bar, done, total, unit, now);
    return true;
}

static void print_note(void *ctx, const char *text) {
    if (nmlp_cluster_launched().rank > 0) return; /* the first process says it */
    nmlp_cli_progress_end(ctx);
    fprintf(stderr, "note: %s\n", text);
}

nmlp_progress nmlp_cli_progress(nmlp_cli_bar *bar) {
    *bar = (nmlp_cli_bar){.enabled = isatty(STDERR_FILENO) == 1 && nmlp_cluster_launched().rank == 0};
    return (nmlp_progress){.update = update_bar, .ctx = bar, .note = print_note};
}

void nmlp_cli_progress_end(nmlp_cli_bar *bar) {
    if (bar->visible) fprintf(stderr, "\r\033[K");
    bar->visible = false;
}

static int print_text(const nmlp_cli *cli, const nmlp_str *text, const char *end) {
    nmlp_err err;
    if (nmlp_str_status(text, &err) != NMLP_OK) return nmlp_cli_fail(cli, &err);
    if (printf("%s%s", nmlp_str_text(text), end) < 0 || fflush(stdout) != 0) {
        nmlp_fail(&err, NMLP_E_IO, "stdout: cannot write: %s", strerror(errno));
        return nmlp_cli_fail(cli, &err);
    }
    return NMLP_EXIT_OK;
}

int nmlp_cli_print_text(const nmlp_cli *cli, const nmlp_str *text) { return print_text(cli, text, ""); }

int nmlp_cli_print_json(const nmlp_cli *cli, const nmlp_str *json) { return print_text(cli, json, "\n"); }

nmlp_json_writer *nmlp_json_out_begin(nmlp_json_out *out) {
    nmlp_str_init(&out->text);
    nmlp_json_writer_init(&out->writer, &out->text);
    nmlp_json_begin_object(&out->writer, NULL);
    return &out->writer;
}

int nmlp_json_out_end(nmlp_json_out *out, const nmlp_cli *cli) {
    nmlp_json_end_object(&out->writer);
    int code = nmlp_cli_print_json(cli, &out->text);
    nmlp_str_fini(&out->text);
    return code;
}

static void scaled_text(char text[32], double value, const char *const *units, int n_units) {
    int unit = 0;
    while (value >= 1000 && unit < n_units - 1) {
        value /= 1000;
        unit++;
    }
    snprintf(text, 32, unit == 0 ? "%.0f%s%s" : "%.4g%s%s", value, units[unit][0] ? " " : "", units[unit]);
}

void nmlp_cli_bytes_text(char text[32], double bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    scaled_text(text, bytes, units, 5);
}

void nmlp_cli_count_text(char text[32], double count) {
    static const char *const units[] = {"", "k", "M", "B", "T"};
    scaled_text(text, count, units, 5);
}

nmlp_status nmlp_cli_parse_ints(int64_t **out, size_t *n, const char *text, const char *what, nmlp_err *err) {
    size_t count = 1;
    for (const char *c = text; *c; c++) count += *c == ',';
    int64_t *values = nmlp_mem_new(count, sizeof *values, err);
    if (!values) return NMLP_E_NOMEM;
    const char *at = text;
    for (size_t i = 0; i < count; i++) {
        char *end;
        errno = 0;
        values[i] = strtoll(at, &end, 10);
        if (errno || end == at || (*end != ',' && *end != '\0')) {
            nmlp_mem_free(values);
            return nmlp_fail(err, NMLP_E_ARG, "%s: \"%s\" is not a list of whole numbers like 1,2,3", what, text);
        }
        at = end + 1;
    }
    *out = values;
    *n = count;
    return NMLP_OK;
}
