/* For fuzzers of what is read from a path: a folder in memory, and files in it. */
#ifndef NMLP_TESTS_FUZZ_IN_MEMORY_H
#define NMLP_TESTS_FUZZ_IN_MEMORY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The process's own folder, made at the first call in the one that NMLP_FUZZ_DIR names: whoever gives it removes it. */
static inline const char *in_memory_dir(void) {
    static char dir[96];
    const char *above = getenv("NMLP_FUZZ_DIR");
    if (dir[0]) return dir;
    if (!above) above = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    int len = snprintf(dir, sizeof dir, "%s/nmlp-fuzz-%d", above, (int)getpid());
    if (len < 0 || (size_t)len >= sizeof dir || mkdir(dir, 0700) != 0) abort();
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
