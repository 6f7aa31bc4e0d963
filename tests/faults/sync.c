/* Power loss: what the log of a run (interpose.c) says about the order of writes, syncs and renames.
 *
 * A file is synced after its last write before it gets its final name; of a folder that takes its place every file and
 * then the folder itself; the folder around it afterwards. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults/campaign.h"

enum { FILES_MAX = 512 };

typedef struct tracked {
    char path[FAULT_PATH_BYTES];
    bool dirty; /* written, or renamed into (a folder), since the last sync */
} tracked;

typedef struct log_state {
    tracked files[FILES_MAX];
    size_t n;
    char unsynced_parent[FAULT_PATH_BYTES]; /* of the last folder that took its place; "": was synced */
    const char *name;                       /* of the case */
    long n_renames, n_folders, n_defects;
} log_state;

static tracked *track(log_state *s, const char *path) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->files[i].path, path) == 0) return &s->files[i];
    if (s->n == FILES_MAX) exit(3);
    tracked *t = &s->files[s->n++];
    snprintf(t->path, sizeof t->path, "%s", path);
    t->dirty = false;
    return t;
}

static void parent_of(char out[FAULT_PATH_BYTES], const char *path) {
    snprintf(out, FAULT_PATH_BYTES, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
}

static void defect(log_state *s, const char *what, const char *path) {
    s->n_defects++;
    printf("DEFECT %s sync: %s: %s\n", s->name, what, path);
}

static bool is_below(const char *path, const char *dir) {
    size_t len = strlen(dir);
    return strncmp(path, dir, len) == 0 && path[len] == '/';
}

/* Everything known below `from` has its new name. */
static void move(log_state *s, const char *from, const char *to) {
    for (size_t i = 0; i < s->n; i++) {
        char rest[FAULT_PATH_BYTES], *path = s->files[i].path;
        if (strcmp(path, from) != 0 && !is_below(path, from)) continue;
        snprintf(rest, sizeof rest, "%s", path + strlen(from));
        snprintf(path, FAULT_PATH_BYTES, "%.500s%.500s", to, rest);
    }
}

static void look_at_rename(log_state *s, const char *from, const char *to) {
    char parent[FAULT_PATH_BYTES];
    bool folder = false;
    s->n_renames++;
    for (size_t i = 0; i < s->n; i++) folder |= is_below(s->files[i].path, from);
    if (track(s, from)->dirty)
        defect(s, folder ? "a folder takes its place before it is synced" : "a file before it is synced", from);
    for (size_t i = 0; folder && i < s->n; i++)
        if (is_below(s->files[i].path, from) && s->files[i].dirty)
            defect(s, "a folder takes its place before this file is synced", s->files[i].path);
    move(s, from, to);
    parent_of(parent, to);
    track(s, parent)->dirty = true;
    s->n_folders += folder;
    if (folder) snprintf(s->unsynced_parent, sizeof s->unsynced_parent, "%s", parent);
}

static void look_at_line(log_state *s, char *line) {
    char *a = strchr(line, '\t'), *b = a ? strchr(a + 1, '\t') : NULL;
    if (!b) return;
    *a++ = *b++ = '\0';
    b[strcspn(b, "\n")] = '\0';
    if (line[0] == 'w') track(s, a)->dirty = true;
    if (line[0] == 's') track(s, a)->dirty = false;
    if (line[0] == 's' && strcmp(a, s->unsynced_parent) == 0) s->unsynced_parent[0] = '\0';
    if (line[0] == 'r') look_at_rename(s, a, b);
}

bool fault_sync_check(const fault_inputs *in, const fault_case *c) {
    static log_state s;
    static char line[4 * FAULT_PATH_BYTES];
    char path[FAULT_PATH_BYTES + 8];
    fault_result r;
    s = (log_state){.name = c->name};
    snprintf(path, sizeof path, "%s/log", in->work);
    fault_scratch_reset(in, 0, NULL);
    if (c->before) fault_run(&r, in, c->before, NULL, &(fault){0}, 0);
    setenv("NMLP_FAULT_LOG", path, 1);
    fault_run(&r, in, c->words, NULL, &(fault){0}, 0);
    unsetenv("NMLP_FAULT_LOG");
    FILE *log = fopen(path, "r");
    while (log && fgets(line, sizeof line, log)) look_at_line(&s, line);
    if (log) fclose(log);
    remove(path);
    if (r.status != 0) defect(&s, "the run fails", r.last);
    if (s.n_renames == 0) defect(&s, "nothing was renamed into its place", c->words);
    if (s.unsynced_parent[0])
        defect(&s, "a folder took its place, this one was not synced after it", s.unsynced_parent);
    printf("%-17s sync: %4ld renames, %2ld of folders, %3zu paths, %3ld defects\n", c->name, s.n_renames, s.n_folders,
           s.n, s.n_defects);
    return s.n_defects == 0;
}
