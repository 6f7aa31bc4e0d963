/* Lets every call that can fail do so once, or kills the program in front of it, and checks what is left.
 *
 * usage: nmlp_faults COMMAND ROOT [--preload LIBRARY] [--mode fail|kill|random|sync] [--class LETTERS] [--sample N]
 *        [--repeats N] [--last N] [--case NAME] [--skip NAMES]
 *
 * fail: exit 0 with the output of an undisturbed run, or exit 1, a message, and no half-written output.
 * kill: whole old output or whole new one at once; the next run ends with the output of an undisturbed one.
 * random: as kill, at random times instead of in front of calls; --sample N kills of each case (20).
 * sync: writes, syncs and renames come in an order that survives a power loss.
 * --minutes N: a soak instead, random cases with about two random faults each.
 * --sample N: at most about N calls of each case and class, spread evenly.
 * --repeats N: of the calls that come through the same functions (8 frames) the first, the last and others between,
 * N in all: they meet the same code. Places that an earlier case came through are left out. --last N: only the last N
 * calls. Without all three, every call. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash64.h"
#include "faults/campaign.h"

enum { SHOWN_MAX = 12, GO_ON_EVERY = 5, RANDOM_KILLS = 20 };

typedef struct counts {
    atomic_long n_injected, n_same, n_refused, n_defects, n_resumed;
    atomic_int n_shown;
    atomic_long n_taken; /* of the list of calls */
} counts;

/* How many calls are disturbed; 0: all. */
typedef struct call_limits {
    long sample;  /* of each case and class */
    long repeats; /* of each place */
    long last;    /* only these */
} call_limits;

typedef struct job {
    const fault_inputs *in;
    const fault_case *c;
    char class;
    bool kill;
    long chance;         /* of a million at each call, with the number of the run as seed; 0: one call fails */
    fault_result want;   /* of an undisturbed run */
    fault_result before; /* what stands there already */
    bool has_before;
    bool exact; /* stdout repeats to the byte */
    char before_path[FAULT_PATH_BYTES];
    char places_path[FAULT_PATH_BYTES]; /* of the undisturbed run */
    counts *counts;
} job;

static void defect(const job *j, long at, const char *what, const fault_result *r) {
    atomic_fetch_add(&j->counts->n_defects, 1);
    if (atomic_fetch_add(&j->counts->n_shown, 1) >= SHOWN_MAX) return;
    printf("DEFECT %s %c %ld: %s (status %#x)\n  %s\n", j->c->name, j->class, at, what, (unsigned)r->status, r->last);
    for (size_t i = 0; i < r->n_entries; i++) printf("  left: %s\n", r->entries[i].name);
    fflush(stdout);
}

static bool is_partial(const char *name) {
    size_t len = strlen(name);
    return len > 8 && strcmp(name + len - 8, ".partial") == 0;
}

static bool same_tree(const fault_result *a, const fault_result *b) {
    if (a->n_entries != b->n_entries) return false;
    for (size_t i = 0; i < a->n_entries; i++)
        if (strcmp(a->entries[i].name, b->entries[i].name) != 0 || a->entries[i].hash != b->entries[i].hash)
            return false;
    return true;
}

static bool is_loose(const job *j) { return j->c->loose && strchr(j->c->loose, j->class); }

static bool was_killed(const fault_result *r) {
    return WIFSIGNALED(r->status) && WTERMSIG(r->status) == SIGKILL && !r->hung;
}

/* Of a file that is being written. With several faults in a run, the one that would remove it may fail too; the next
 * run removes it. */
static bool is_temporary(const char *name) {
    return strncmp(name, NMLP_FILE_TEMP_PREFIX, sizeof NMLP_FILE_TEMP_PREFIX - 1) == 0;
}

/* Every entry is whole: the new one, the old one, or work that a later run uses or removes. */
static const char *half_written(const job *j, const fault_result *r) {
    for (size_t i = 0; i < r->n_entries; i++) {
        const fault_entry *e = &r->entries[i], *want = fault_entry_find(&j->want, e->name),
                          *old = fault_entry_find(&j->before, e->name);
        if (is_partial(e->name) || (j->chance && is_temporary(e->name)) || (want && is_loose(j)) ||
            (want && want->hash == e->hash) || (old && old->hash == e->hash))
            continue;
        if (want && j->c->kept && strcmp(j->c->kept, e->name) == 0) continue;
        return want ? "half-written output" : "a stray file";
    }
    for (size_t i = 0; i < j->before.n_entries; i++)
        if (!fault_entry_find(r, j->before.entries[i].name)) return "the old output is gone";
    return NULL;
}

static bool same_output(const job *j, const fault_result *r) {
    if (is_loose(j)) return true;
    return (j->exact ? r->out == j->want.out : r->masked == j->want.masked) && same_tree(r, &j->want);
}

static void go_on(const job *j, long at, int slot) {
    fault_result r;
    fault none = {.usual_us = j->want.wall_us};
    fault_run(&r, j->in, j->c->words, j->c->resume, &none, slot);
    atomic_fetch_add(&j->counts->n_resumed, 1);
    if (r.hung || !WIFEXITED(r.status) || WEXITSTATUS(r.status) != 0) {
        defect(j, at, "the next run fails", &r);
    } else if (!is_loose(j) && !same_tree(&r, &j->want)) {
        defect(j, at, "the next run has another output", &r);
    }
}

static void inject(const job *j, long at, int slot) {
    fault_result r;
    fault what = {.classes = j->class, .at = at, .kill = j->kill, .chance = j->chance, .usual_us = j->want.wall_us};
    const char *half;
    fault_scratch_reset(j->in, slot, j->has_before ? j->before_path : NULL);
    fault_run(&r, j->in, j->c->words, NULL, &what, slot);
    atomic_fetch_add(&j->counts->n_injected, 1);
    bool killed = j->kill && was_killed(&r);
    if (r.hung) {
        defect(j, at, "does not end", &r);
    } else if (!WIFEXITED(r.status) && !killed) {
        defect(j, at, "ends by a signal", &r);
    } else if (!killed && WEXITSTATUS(r.status) == 0) {
        if (same_output(j, &r)) {
            atomic_fetch_add(&j->counts->n_same, 1);
        } else {
            defect(j, at, "exit 0 with another output", &r);
        }
    } else if (!killed && WEXITSTATUS(r.status) != 1) {
        defect(j, at, "another exit code than 0 and 1", &r);
    } else if (!killed && !r.explained) {
        defect(j, at, "exit 1 without a message", &r);
    } else if (!killed && (half = half_written(j, &r))) {
        defect(j, at, half, &r);
    } else {
        atomic_fetch_add(&j->counts->n_refused, 1);
        bool all = j->kill || j->chance || (r.n_entries > j->before.n_entries && at % GO_ON_EVERY == 0);
        /* A killed writer leaves its temporary file; the half of a check that a reader makes is on finished names. */
        if (killed && (half = half_written(j, &r)) && strcmp(half, "a stray file") != 0) defect(j, at, half, &r);
        if (all && j->c->resume) go_on(j, at, slot);
    }
}

/* Killed at a random time, then up to three times more while it goes on, then left to end. */
static void kill_at_random(const job *j, long number, int slot) {
    fault_result r;
    unsigned seed = (unsigned)number * 2654435761u + 1;
    int n_kills = 1 + rand_r(&seed) % 4;
    fault_scratch_reset(j->in, slot, j->has_before ? j->before_path : NULL);
    for (int i = 0; i < n_kills; i++) {
        fault what = {.after_us = 1 + (long)((double)j->want.wall_us * 1.1 * rand_r(&seed) / RAND_MAX)};
        fault_run(&r, j->in, j->c->words, i > 0 ? j->c->resume : NULL, &what, slot);
        if (r.hung) defect(j, number, "does not end", &r);
        if (!was_killed(&r) && r.status != 0) defect(j, number, "fails after a kill", &r);
        if (!was_killed(&r)) {
            atomic_fetch_add(&j->counts->n_same, 1);
            break;
        }
        atomic_fetch_add(&j->counts->n_injected, 1);
        atomic_fetch_add(&j->counts->n_refused, 1);
        const char *half = half_written(j, &r);
        if (half && strcmp(half, "a stray file") != 0) defect(j, number, half, &r);
    }
    go_on(j, number, slot);
}

/* The same for every class. */
static const fault_result *undisturbed_again(const job *j) {
    static fault_result again;
    static const fault_case *of;
    fault none = {0};
    if (of == j->c) return &again;
    fault_scratch_reset(j->in, 0, j->has_before ? j->before_path : NULL);
    fault_run(&again, j->in, j->c->words, NULL, &none, 0);
    of = j->c;
    return &again;
}

static void prepare(job *j) {
    fault none = {0};
    snprintf(j->places_path, sizeof j->places_path, "%.1000s/places", j->in->work);
    if (j->c->before) {
        char scratch[FAULT_PATH_BYTES], command[4 * FAULT_PATH_BYTES];
        fault_scratch_reset(j->in, 0, NULL);
        fault_run(&j->before, j->in, j->c->before, NULL, &none, 0);
        fault_scratch_path(scratch, j->in, 0);
        snprintf(j->before_path, sizeof j->before_path, "%.1000s/before", j->in->work);
        snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", j->before_path, scratch, j->before_path);
        if (system(command) != 0) exit(3);
        j->has_before = true;
    }
    fault_scratch_reset(j->in, 0, j->has_before ? j->before_path : NULL);
    fault_run(&j->want, j->in, j->c->words, NULL, &(fault){.classes = j->class, .places = j->places_path}, 0);
    const fault_result *again = undisturbed_again(j);
    /* Their times are rounded: equal in two runs, another in the third. */
    static const char timed[] =
        "compress,compress-over,compress-threads,compress-train,emit-package,fit,plan,predict,quantize,quantize-budget,"
        "recover,optimize,budget";
    j->exact = j->want.out == again->out && !fault_is_listed(timed, j->c->name);
    if (WIFEXITED(j->want.status) && WEXITSTATUS(j->want.status) == 0 && (is_loose(j) || same_tree(&j->want, again)))
        return;
    printf("DEFECT %s: an undisturbed run fails or does not repeat its files: %s\n", j->c->name, j->want.last);
    exit(1);
}

/* ---- which calls ---- */

typedef struct call {
    uint64_t place;
    long at; /* counted from 1 */
} call;

static int by_place(const void *a, const void *b) {
    const call *x = a, *y = b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static call *read_places(const job *j, long n) {
    call *calls = malloc((size_t)(n + 1) * sizeof *calls);
    FILE *file = fopen(j->places_path, "r");
    if (!calls || !file) exit(3);
    for (long i = 0; i < n; i++) {
        calls[i] = (call){.at = i + 1};
        if (fread(&calls[i].place, sizeof calls[i].place, 1, file) != 1) calls[i].place = 0;
    }
    fclose(file);
    qsort(calls, (size_t)n, sizeof *calls, by_place);
    return calls;
}

/* Places of earlier cases; empty cells are 0. */
enum { SEEN_CELLS = 1 << 18 };
static uint64_t seen_places[SEEN_CELLS];

/* Returns whether it was there already. */
static bool see_place(uint64_t place, char class) {
    uint64_t key = nmlp_hash64(&place, sizeof place, (uint64_t)(unsigned char)class) | 1;
    size_t at = key % SEEN_CELLS;
    for (size_t n = 0; n < SEEN_CELLS && seen_places[at]; n++, at = (at + 1) % SEEN_CELLS)
        if (seen_places[at] == key) return true;
    seen_places[at] = key;
    return false;
}

/* Fills `list` [n] with the calls to be disturbed, the last first; returns how many. */
static long choose_calls(long *list, const job *j, const call_limits *limits, long n) {
    long n_chosen = 0, step = limits->sample > 0 && n > limits->sample ? n / limits->sample : 1;
    if (limits->repeats <= 0 || j->class == 'r') {
        for (long at = n; at > 0 && (!limits->last || at > n - limits->last); at -= step) list[n_chosen++] = at;
        return n_chosen;
    }
    call *calls = read_places(j, n);
    for (long begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && calls[end].place == calls[begin].place;) end++;
        if (see_place(calls[begin].place, j->kill ? 'k' : j->class)) continue;
        long last = end - begin - 1, k = last < limits->repeats ? last + 1 : limits->repeats;
        for (long i = 0; i < k; i++) list[n_chosen++] = calls[begin + (k > 1 ? i * last / (k - 1) : 0)].at;
    }
    free(calls);
    return n_chosen;
}

static void disturb(const job *j, const long *list, long n) {
    int n_workers = (int)sysconf(_SC_NPROCESSORS_ONLN);
    fflush(stdout);
    for (int w = 0; w < n_workers; w++) {
        if (fork() != 0) continue;
        for (long i; (i = atomic_fetch_add(&j->counts->n_taken, 1)) < n;)
            (j->class == 'r' ? kill_at_random : inject)(j, list[i], w);
        fflush(stdout);
        _exit(0);
    }
    while (wait(NULL) > 0) {
    }
}

/* Returns whether there was no defect. */
static bool campaign(const fault_inputs *in, const fault_case *c, char class, bool kill, const call_limits *limits) {
    static job j;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    j = (job){.in = in, .c = c, .class = class, .kill = kill};
    j.counts = mmap(NULL, sizeof *j.counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (j.counts == MAP_FAILED) exit(3);
    prepare(&j);
    long n = class != 'r' ? j.want.n_calls : limits->sample > 0 ? limits->sample : RANDOM_KILLS;
    long *list = malloc((size_t)(n > 0 ? n : 1) * sizeof *list);
    if (!list) exit(3);
    disturb(&j, list, n > 0 ? choose_calls(list, &j, limits, n) : 0);
    free(list);
    clock_gettime(CLOCK_MONOTONIC, &end);
    bool good = j.counts->n_defects == 0 && n >= 0;
    printf("%-17s %c %s: %6ld calls, %6ld injected, %6ld same output, %6ld %s, %5ld went on, %3ld defects, %.1f s\n",
           c->name, class, kill ? "kill" : "fail", n, (long)j.counts->n_injected, (long)j.counts->n_same,
           (long)j.counts->n_refused, kill ? "killed" : "refused", (long)j.counts->n_resumed, (long)j.counts->n_defects,
           (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec));
    fflush(stdout);
    munmap(j.counts, sizeof *j.counts);
    return good;
}

/* One case after the other, chosen at random, until the time is over. */
static bool soak(const fault_inputs *in, double minutes) {
    static job j;
    long n_runs = 0, n_same = 0, n_refused = 0, n_defects = 0;
    unsigned seed = (unsigned)time(NULL);
    time_t end = time(NULL) + (time_t)(60 * minutes);
    counts *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) exit(3);
    printf("soak: seed %u\n", seed);
    while (time(NULL) < end) {
        const fault_case *c = &fault_cases[(size_t)rand_r(&seed) % fault_n_cases];
        if (strstr(c->words, "--device cuda")) continue;
        memset(shared, 0, sizeof *shared);
        j = (job){.in = in, .c = c, .class = "aaft"[rand_r(&seed) % 4], .counts = shared};
        prepare(&j);
        if (j.want.n_calls < 1) continue;
        j.chance = 2000000 / j.want.n_calls + 1;
        for (int i = 0; i < 10 && time(NULL) < end; i++) inject(&j, rand_r(&seed) % 1000000 + 1, 0);
        n_runs += shared->n_injected;
        n_same += shared->n_same;
        n_refused += shared->n_refused;
        n_defects += shared->n_defects;
    }
    printf("soak: %ld runs, %ld same output, %ld refused, %ld defects\n", n_runs, n_same, n_refused, n_defects);
    munmap(shared, sizeof *shared);
    return n_defects == 0;
}

/* In memory where there is room: what a sync costs on a disk is nothing that is tested here. */
static const char *work_place(void) {
    enum { ROOM_BYTES = 1 << 30 };
    struct statvfs info;
    const char *given = getenv("TMPDIR");
    if (given) return given;
    bool room = access("/dev/shm", W_OK) == 0 && statvfs("/dev/shm", &info) == 0 &&
                (double)info.f_bavail * (double)info.f_bsize >= ROOM_BYTES;
    return room ? "/dev/shm" : "/tmp";
}

/* Runs begin in folders of their own, so names given here must hold from anywhere. */
static void absolute(char whole[FAULT_PATH_BYTES], const char *path) {
    char *found = realpath(path, NULL);
    if (!found || strlen(found) >= FAULT_PATH_BYTES) {
        perror(path);
        exit(2);
    }
    strcpy(whole, found);
    free(found);
}

static bool is_case(const char *name) {
    for (size_t i = 0; i < fault_n_cases; i++)
        if (strcmp(fault_cases[i].name, name) == 0) return true;
    return false;
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "@serve") == 0) return fault_serve(argv[2], argv + 3);
    if (argc < 3) return 2;
    fault_inputs in = {0};
    const char *classes = NULL, *only = NULL, *skip = "";
    bool kill = false, sync = false, good = true;
    call_limits limits = {0};
    double minutes = 0;
    absolute(in.program, argv[1]);
    absolute(in.root, argv[2]);
    for (int i = 3; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--preload") == 0) absolute(in.preload, argv[i + 1]);
        if (strcmp(argv[i], "--class") == 0) classes = argv[i + 1];
        if (strcmp(argv[i], "--skip") == 0) skip = argv[i + 1];
        if (strcmp(argv[i], "--case") == 0) only = argv[i + 1];
        if (strcmp(argv[i], "--sample") == 0) limits.sample = atol(argv[i + 1]);
        if (strcmp(argv[i], "--repeats") == 0) limits.repeats = atol(argv[i + 1]);
        if (strcmp(argv[i], "--last") == 0) limits.last = atol(argv[i + 1]);
        if (strcmp(argv[i], "--minutes") == 0) minutes = atof(argv[i + 1]);
        if (strcmp(argv[i], "--mode") != 0) continue;
        sync = strcmp(argv[i + 1], "sync") == 0;
        kill = strcmp(argv[i + 1], "kill") == 0 || strcmp(argv[i + 1], "random") == 0;
        if (strcmp(argv[i + 1], "random") == 0) classes = "r";
    }
    if (only && !is_case(only)) {
        fprintf(stderr, "no case \"%s\" in tests/faults/cases.c\n", only);
        return 2;
    }
    if (!classes) classes = kill ? "c" : "aft";
    snprintf(in.work, sizeof in.work, "%.900s/nmlp-faults-XXXXXX", work_place());
    if (!mkdtemp(in.work)) return 3;
    fault_inputs_make(&in);
    if (minutes > 0) good = soak(&in, minutes);
    for (size_t i = 0; minutes <= 0 && i < fault_n_cases; i++) {
        const fault_case *c = &fault_cases[i];
        if ((only && strcmp(only, c->name) != 0) || (kill && !c->resume) || fault_is_listed(skip, c->name)) continue;
        if (!only && strstr(c->words, "--device cuda")) continue;
        if (sync && c->resume) good &= fault_sync_check(&in, c);
        if (sync) continue;
        for (const char *class = classes; *class; class ++) good &= campaign(&in, c, *class, kill, &limits);
    }
    char command[2 * FAULT_PATH_BYTES];
    snprintf(command, sizeof command, "rm -rf '%s'", in.work);
    return system(command) == 0 && good ? 0 : 1;
}
