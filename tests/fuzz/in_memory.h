/* For fuzzers of what is read from a path: a folder in memory, and files in it. */
#ifndef NMLP_TESTS_FUZZ_IN_MEMORY_H
#define NMLP_TESTS_FUZZ_IN_MEMORY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The process's own folder, made at the first call. */
static inline const char *in_memory_dir(void) {
    static char dir[64];
    if (dir[0]) return dir;
    snprintf(dir, sizeof dir, "%s/nmlp-fuzz-%d", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
    if (mkdir(dir, 0700) != 0) abort();
    return dir;
}

static inline const char *in_memory_file(const char *name, const void *bytes, size_t len) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", in_memory_dir(), name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, len, file) != len || fclose(file) != 0) abort();
    return path;
}

#endif
