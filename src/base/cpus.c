#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpus.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512, TEXT_BYTES = 1024, NODES_MAX = 64 };

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

/* ---- nodes of memory ---- */

bool nmlp_cpus_list_has(const char *list, int cpu) {
    for (const char *at = list; *at;) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at) return false;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        if (cpu >= first && cpu <= last) return true;
        at = *end == ',' ? end + 1 : "";
    }
    return false;
}

/* The usable CPUs of node `number` of the kernel's count; false: there are none. */
static bool usable_of_node(cpu_set_t *of_node, const cpu_set_t *usable, int number) {
    char text[TEXT_BYTES], path[PATH_BYTES];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", number);
    read_text(text, path);
    CPU_ZERO(of_node);
    for (int cpu = 0; text[0] && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, usable) && nmlp_cpus_list_has(text, cpu)) CPU_SET(cpu, of_node);
    return CPU_COUNT(of_node) > 0;
}

/* Counts nodes; the CPUs of the one numbered `wanted` go to `found`. */
static int walk_nodes(int wanted, cpu_set_t *found) {
    cpu_set_t usable, of_node;
    int n = 0;
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) return 0;
    for (int i = 0; i < NODES_MAX; i++) {
        if (!usable_of_node(&of_node, &usable, i)) continue;
        if (n++ == wanted) *found = of_node;
    }
    return n;
}

int nmlp_cpus_nodes(void) {
    cpu_set_t ignored;
    int n = walk_nodes(-1, &ignored);
    return n > 1 ? n : 1;
}

bool nmlp_cpus_stay_on_node(int node) {
    cpu_set_t found;
    if (node < 0 || walk_nodes(node, &found) <= node) return false;
    return sched_setaffinity(0, sizeof found, &found) == 0;
}
