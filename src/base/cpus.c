#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 512, TEXT_BYTES = 1024 };

int nmlp_cpus_of_quota(const char *text) {
    long long quota, period;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus > 1 << 20 ? 0 : (int)cpus;
}

/* The beginning of a file; "" where there is none. */
static void read_text(char text[TEXT_BYTES], const char *path) {
    text[0] = '\0';
    FILE *file = fopen(path, "r");
    if (!file) return;
    size_t n = fread(text, 1, TEXT_BYTES - 1, file);
    text[n] = '\0';
    fclose(file);
}

/* Of this process's control group and those above it (version 2). */
static int least_quota(void) {
    char text[TEXT_BYTES], group[PATH_BYTES] = "", path[PATH_BYTES + 64];
    int least = 0;
    read_text(text, "/proc/self/cgroup");
    const char *line = strstr(text, "0::");
    if (line) snprintf(group, sizeof group, "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    for (;;) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
        read_text(text, path);
        int cpus = nmlp_cpus_of_quota(text);
        if (cpus > 0 && (least == 0 || cpus < least)) least = cpus;
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

int nmlp_cpus_usable(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = least_quota();
    if (quota > 0 && quota < n) n = quota;
    return n > 0 ? n : 1;
}
