/* One run of the program with a fault in it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/personality.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/dir_stage.h"
#include "base/hash64.h"
#include "faults/campaign.h"

enum { LEAST_SECONDS = 120, MOST_SECONDS = 1200, USUAL_TIMES = 6, POLL_NS = 200000 };

static void die(const char *what) {
    fprintf(stderr, "fault campaign: %s: %s\n", what, strerror(errno));
    _exit(3);
}

static void format(char *out, size_t bytes, const char *fmt, const char *a, const char *b, int n) {
    int len = n >= 0 ? snprintf(out, bytes, fmt, a, b, n) : snprintf(out, bytes, fmt, a, b);
    if (len < 0 || (size_t)len >= bytes) die("path too long");
}

void fault_scratch_path(char out[FAULT_PATH_BYTES], const fault_inputs *in, int slot) {
    format(out, FAULT_PATH_BYTES, "%s/%s-%d", in->work, "slot", slot);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

void fault_scratch_reset(const fault_inputs *in, int slot, const char *from) {
    char scratch[FAULT_PATH_BYTES], command[4 * FAULT_PATH_BYTES];
    fault_scratch_path(scratch, in, slot);
    if (nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) die(scratch);
    if (!from) {
        if (mkdir(scratch, 0777) != 0) die(scratch);
        return;
    }
    format(command, sizeof command, "cp -r '%s' '%s'", from, scratch, -1);
    if (system(command) != 0) die(command);
}

/* ---- what a run leaves ---- */

static size_t read_all(char *text, size_t bytes, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    size_t len = 0;
    while (fd >= 0 && len < bytes && (n = read(fd, text + len, bytes - len)) > 0) len += (size_t)n;
    if (fd >= 0) close(fd);
    return len;
}

/* Markers seen: they are no part of a finished folder. */
static int n_markers;

static uint64_t hash_path(const char *path);

static int is_entry(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static uint64_t hash_dir(const char *path) {
    struct dirent **list;
    uint64_t hash = 7;
    int n = scandir(path, &list, is_entry, alphasort);
    for (int i = 0; i < n; i++) {
        char inner[FAULT_PATH_BYTES];
        bool marker = strcmp(list[i]->d_name, NMLP_DIR_STAGE_MARKER) == 0;
        format(inner, sizeof inner, "%s/%s", path, list[i]->d_name, -1);
        n_markers += marker;
        uint64_t file = marker ? 0 : hash_path(inner);
        if (!marker) hash = nmlp_hash64(list[i]->d_name, strlen(list[i]->d_name), hash);
        if (!marker) hash = nmlp_hash64(&file, sizeof file, hash);
        free(list[i]);
    }
    if (n >= 0) free(list);
    return hash;
}

/* Cuts the times out of a JSON file: they are the one thing in results that does not repeat. */
static size_t without_seconds(char *text, size_t len) {
    static const char key[] = "\"seconds\":";
    for (char *at = text; (at = strstr(at, key)); at += sizeof key - 1) {
        char *number = at + sizeof key - 1;
        size_t digits = strspn(number, "0123456789.e-+");
        memmove(number, number + digits, (size_t)(text + len + 1 - (number + digits)));
        len -= digits;
    }
    return len;
}

static uint64_t hash_path(const char *path) {
    static _Thread_local char text[4 * FAULT_TEXT_BYTES];
    struct stat info;
    if (lstat(path, &info) != 0) return 0;
    if (S_ISDIR(info.st_mode)) return hash_dir(path);
    size_t len = read_all(text, sizeof text - 1, path);
    text[len] = '\0';
    return nmlp_hash64(text, without_seconds(text, len), 1);
}

static void list_scratch(fault_result *r, const char *scratch) {
    struct dirent **list;
    int n = scandir(scratch, &list, is_entry, alphasort);
    for (int i = 0; i < n; i++) {
        if (r->n_entries < FAULT_ENTRIES_MAX) {
            char inner[FAULT_PATH_BYTES];
            fault_entry *e = &r->entries[r->n_entries++];
            snprintf(e->name, sizeof e->name, "%s", list[i]->d_name);
            format(inner, sizeof inner, "%s/%s", scratch, list[i]->d_name, -1);
            n_markers = 0;
            e->hash = hash_path(inner);
            e->marked = n_markers > 0;
        }
        free(list[i]);
    }
    if (n >= 0) free(list);
}

const fault_entry *fault_entry_find(const fault_result *r, const char *name) {
    for (size_t i = 0; i < r->n_entries; i++)
        if (strcmp(r->entries[i].name, name) == 0) return &r->entries[i];
    return NULL;
}

static bool is_numeric(char c) { return (c >= '0' && c <= '9') || c == '.' || c == ' ' || c == '-'; }

static void look_at_output(fault_result *r, const char *out_path, const char *err_path) {
    static char text[FAULT_TEXT_BYTES];
    size_t len = read_all(text, sizeof text, out_path), n_masked = 0;
    r->out = nmlp_hash64(text, len, 1);
    for (size_t i = 0; i < len; i++)
        if (!is_numeric(text[i])) text[n_masked++] = text[i];
    r->masked = nmlp_hash64(text, n_masked, 1);
    len = read_all(text, sizeof text - 1, err_path);
    text[len] = '\0';
    /* The second is libgfortran's, when OpenBLAS is loaded. */
    r->explained = strstr(text, "neuronmlp") || strstr(text, "Operating system error: Cannot allocate memory");
    const char *report = strstr(text, "ERROR: "), *from = report ? report : text + (len > 380 ? len - 380 : 0);
    snprintf(r->last, sizeof r->last, "%.390s", from);
}

/* ---- the process ---- */

static void expand_word(char *out, const char *word, size_t len, const fault_inputs *in) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (word[i] != '%' || i + 1 == len) {
            out[n++] = word[i];
            continue;
        }
        i++;
        const char *name = word[i] == 'm' ? "/dense" : word[i] == 'c' ? "/factors" : word[i] == 't' ? "/text" : "";
        n += (size_t)sprintf(out + n, "%s%s", word[i] == 'r' ? in->root : in->work, name);
    }
    out[n] = '\0';
}

static size_t split(char words[FAULT_WORDS_MAX][FAULT_PATH_BYTES], size_t n, const char *text, const fault_inputs *in) {
    while (text && *text) {
        size_t len = strcspn(text, " ");
        if (len) expand_word(words[n++], text, len, in);
        text += len + (text[len] == ' ');
    }
    return n;
}

static void set_environment(const fault_inputs *in, const fault *what, const char *count_path) {
    char number[32];
    if (in->preload[0]) setenv("LD_PRELOAD", in->preload, 1);
    setenv("ASAN_OPTIONS", "exitcode=99:allocator_may_return_null=1:detect_leaks=1", 1);
    setenv("UBSAN_OPTIONS", "exitcode=99", 1);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1); /* a report says when it was made */
    if (!what->classes) return;
    char classes[2] = {what->classes, 0};
    setenv("NMLP_FAULT_CLASS", classes, 1);
    snprintf(number, sizeof number, "%ld", what->at);
    setenv("NMLP_FAULT_AT", number, 1);
    snprintf(number, sizeof number, "%ld", what->chance);
    if (what->chance) setenv("NMLP_FAULT_EVERY", number, 1);
    if (what->kill) setenv("NMLP_FAULT_KILL", "9", 1);
    setenv("NMLP_FAULT_COUNT", count_path, 1);
    if (what->places) setenv("NMLP_FAULT_PLACES", what->places, 1);
}

bool fault_is_listed(const char *names, const char *name) {
    size_t len = strlen(name);
    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, len) == 0 && (at[len] == ',' || at[len] == '\0')) return true;
    return false;
}

static void redirect(int to, const char *path, int flags) {
    int fd = open(path, flags, 0666);
    if (fd < 0 || dup2(fd, to) < 0) die(path);
    close(fd);
}

static long passed_us(const struct timespec *since) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - since->tv_sec) * 1000000 + (now.tv_nsec - since->tv_nsec) / 1000;
}

/* Seconds that a run may take. */
static long limit_of(const fault *what) {
    long seconds = what->usual_us ? USUAL_TIMES * (what->usual_us / 1000000) : MOST_SECONDS;
    return seconds < LEAST_SECONDS ? LEAST_SECONDS : seconds > MOST_SECONDS ? MOST_SECONDS : seconds;
}

static void wait_for(fault_result *r, pid_t pid, const fault *what) {
    long limit_us = limit_of(what) * 1000000;
    struct timespec begin, pause = {.tv_nsec = POLL_NS};
    bool killed = false;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (waitpid(pid, &r->status, WNOHANG) == 0) {
        long us = passed_us(&begin);
        r->hung |= us > limit_us && !killed;
        if (!killed && (r->hung || (what->after_us > 0 && us >= what->after_us))) {
            kill(pid, SIGKILL);
            killed = true;
        }
        nanosleep(&pause, NULL);
    }
    r->wall_us = passed_us(&begin);
}

static void run_child(const fault_inputs *in, char words[FAULT_WORDS_MAX][FAULT_PATH_BYTES], size_t n,
                      const fault *what, const char *scratch, const char *prefix) {
    char path[FAULT_PATH_BYTES], self[FAULT_PATH_BYTES] = {0}, beside[FAULT_PATH_BYTES];
    char *argv[FAULT_WORDS_MAX + 5] = {(char *)(uintptr_t)in->program};
    struct rlimit cpu = {(rlim_t)limit_of(what) / 2, (rlim_t)limit_of(what) / 2}, none = {0, 0};
    bool synth = strcmp(words[0], "@synth") == 0; /* a program of its own, beside this one */
    bool serve = strcmp(words[0], "@serve") == 0; /* our own program, without a fault, starts the server */
    redirect(0, "/dev/null", O_RDONLY);
    format(path, sizeof path, "%s%s", prefix, ".out", -1);
    redirect(1, path, O_WRONLY | O_CREAT | O_TRUNC);
    format(path, sizeof path, "%s%s", prefix, ".err", -1);
    redirect(2, path, O_WRONLY | O_CREAT | O_TRUNC);
    format(path, sizeof path, "%s%s", prefix, ".count", -1);
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &none);
    (void)personality(ADDR_NO_RANDOMIZE); /* places have the same hash in every run */
    if (chdir(scratch) != 0 || readlink("/proc/self/exe", self, sizeof self - 1) < 0) die(scratch);
    for (size_t i = 0; i < n; i++) argv[i + 1] = words[i];
    format(beside, sizeof beside, "%s%s", self, "_synth", -1);
    if (synth) argv[0] = beside;
    set_environment(in, what, path);
    if (serve) {
        static char nothing[] = "", command[] = "serve";
        char *preload = in->preload[0] ? (char *)(uintptr_t)in->preload : nothing;
        char *front[] = {self, words[0], preload, argv[0], command};
        memmove(argv + 5, argv + 2, (n - 1) * sizeof *argv);
        memcpy(argv, front, sizeof front);
        (void)unsetenv("LD_PRELOAD");
    }
    execv(argv[0], argv);
    die(argv[0]);
}

void fault_run(fault_result *r, const fault_inputs *in, const char *words, const char *more, const fault *what,
               int slot) {
    static char list[FAULT_WORDS_MAX][FAULT_PATH_BYTES];
    char scratch[FAULT_PATH_BYTES], prefix[FAULT_PATH_BYTES], path[FAULT_PATH_BYTES], number[32] = {0};
    *r = (fault_result){.n_calls = -1};
    size_t n = split(list, split(list, 0, words, in), more, in);
    fault_scratch_path(scratch, in, slot);
    format(prefix, sizeof prefix, "%s%s", scratch, ".run", -1);
    format(path, sizeof path, "%s%s", prefix, ".count", -1);
    unlink(path);
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) die("fork");
    if (pid == 0) run_child(in, list, n, what, scratch, prefix);
    wait_for(r, pid, what);
    if (read_all(number, sizeof number - 1, path) > 0) r->n_calls = atol(number);
    char out_path[FAULT_PATH_BYTES], err_path[FAULT_PATH_BYTES];
    format(out_path, sizeof out_path, "%s%s", prefix, ".out", -1);
    format(err_path, sizeof err_path, "%s%s", prefix, ".err", -1);
    look_at_output(r, out_path, err_path);
    list_scratch(r, scratch);
}
