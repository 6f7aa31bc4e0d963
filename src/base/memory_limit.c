#define _DEFAULT_SOURCE /* setrlimit */
#include "base/memory_limit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { LARGE_BYTES = 64 << 20, TEXT_BYTES = 8192 };

/* The number behind `key` at the beginning of a line; false where there is none ("max"). */
static bool read_number(const char *path, const char *key, size_t unit, size_t *bytes) {
    char text[TEXT_BYTES];
    FILE *file = fopen(path, "re");
    if (!file) return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    unsigned long long value;
    fclose(file);
    text[n] = '\0';
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, strlen(key)) != 0) continue;
        if (sscanf(line + strlen(key), "%llu", &value) != 1) return false;
        *bytes = (size_t)value * unit;
        return true;
    }
    return false;
}

static size_t left_of(size_t limit, size_t used) { return limit > used ? limit - used : 0; }

static void lower(size_t *least, size_t bytes) {
    if (bytes < *least) *least = bytes;
}

static void look_at_limit(size_t *least, int resource, const char *key) {
    struct rlimit limit;
    size_t used;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    if (read_number("/proc/self/status", key, 1024, &used)) lower(least, left_of((size_t)limit.rlim_cur, used));
}

/* Control groups of version 2; files that the group wrote to disk count, but can be given up. */
static void look_at_group(size_t *least) {
    size_t limit, used, cached = 0;
    if (!read_number("/sys/fs/cgroup/memory.max", "", 1, &limit) ||
        !read_number("/sys/fs/cgroup/memory.current", "", 1, &used))
        return;
    (void)read_number("/sys/fs/cgroup/memory.stat", "file ", 1, &cached);
    lower(least, left_of(limit, left_of(used, cached)));
}

size_t nmlp_memory_available_bytes(void) {
    size_t least = SIZE_MAX, bytes;
    if (read_number("/proc/meminfo", "MemAvailable:", 1024, &bytes)) lower(&least, bytes);
    look_at_group(&least);
    look_at_limit(&least, RLIMIT_AS, "VmSize:");
    look_at_limit(&least, RLIMIT_DATA, "VmData:");
    return least;
}

nmlp_status nmlp_memory_check(size_t bytes, nmlp_err *err) {
    if (bytes < LARGE_BYTES) return NMLP_OK;
    size_t available = nmlp_memory_available_bytes();
    if (bytes <= available) return NMLP_OK;
    nmlp_fail(err, NMLP_E_NOMEM, "out of memory: %zu bytes are needed at once, %zu are available", bytes, available);
    nmlp_fail_hint(err, "a smaller context or batch needs less; so do fewer threads");
    return NMLP_E_NOMEM;
}

nmlp_status nmlp_memory_cap(size_t bytes, nmlp_err *err) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0) return nmlp_fail(err, NMLP_E_IO, "limits: %s", strerror(errno));
    if (limit.rlim_max != RLIM_INFINITY && bytes > (size_t)limit.rlim_max) bytes = (size_t)limit.rlim_max;
    limit.rlim_cur = (rlim_t)bytes;
    if (setrlimit(RLIMIT_DATA, &limit) == 0) return NMLP_OK;
    return nmlp_fail_field(err, NMLP_E_ARG, "memory", "cannot be limited to %zu bytes: %s", bytes, strerror(errno));
}
