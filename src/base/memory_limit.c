#define _DEFAULT_SOURCE /* setrlimit */
#include "base/memory_limit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { LARGE_BYTES = 64 << 20, TEXT_BYTES = 8192, PATH_BYTES = 4096 };

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

/* How the two versions of control groups name what they know. */
struct group_files {
    const char *limit, *used, *cached;
};
static const struct group_files version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache "};
static const struct group_files version2 = {"memory.max", "memory.current", "file "};

static bool group_number(const char *dir, const char *name, const char *key, size_t *bytes) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n > 0 && (size_t)n < sizeof path && read_number(path, key, 1, bytes);
}

/* A group and those around it, up to `mount`. Files that a group wrote or read count, but can be given up. */
static void look_at_groups(size_t *least, const char *mount, const char *group, size_t len,
                           const struct group_files *names) {
    char dir[PATH_BYTES];
    int n = snprintf(dir, sizeof dir, "%s%.*s", mount, (int)len, group);
    size_t limit, used, front = strlen(mount);
    if (n < 0 || (size_t)n >= sizeof dir) return;
    for (;;) {
        size_t cached = 0;
        if (group_number(dir, names->limit, "", &limit) && group_number(dir, names->used, "", &used)) {
            (void)group_number(dir, "memory.stat", names->cached, &cached);
            lower(least, left_of(limit, left_of(used, cached)));
        }
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < front) return;
        *slash = '\0';
    }
}

size_t nmlp_memory_group_bytes(const char *mount, const char *groups) {
    size_t least = SIZE_MAX;
    char memory[PATH_BYTES];
    snprintf(memory, sizeof memory, "%s/memory", mount);
    for (const char *line = groups; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!group) break;
        size_t len = strcspn(++group, "\n");
        if (strncmp(kinds, "::", 2) == 0) look_at_groups(&least, mount, group, len, &version2);
        if (strncmp(kinds, ":memory:", 8) == 0) look_at_groups(&least, memory, group, len, &version1);
    }
    return least;
}

static void look_at_group(size_t *least) {
    char groups[TEXT_BYTES] = {0};
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return;
    (void)!fread(groups, 1, sizeof groups - 1, file);
    fclose(file);
    lower(least, nmlp_memory_group_bytes("/sys/fs/cgroup", groups));
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

nmlp_status nmlp_memory_need(double bytes, nmlp_err *err) {
    size_t available = nmlp_memory_available_bytes();
    if (bytes <= (double)available) return NMLP_OK;
    nmlp_fail(err, NMLP_E_NOMEM, "out of memory: this needs about %.0f bytes in all, %zu are available", bytes,
              available);
    nmlp_fail_hint(err, "a smaller model, context or batch needs less");
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
