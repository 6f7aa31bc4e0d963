#define _POSIX_C_SOURCE 200809L
#include "kernels/caches.h"

#include <pthread.h>
#include <stdio.h>

/* Constant once filled: the files take a while to read, too long for every matrix of a model. What they do not say
 * stays as it is here. */
static nmlp_caches machine = {.l1_bytes = 32 << 10, .l2_bytes = 1 << 20, .l3_bytes = 16 << 20};
static pthread_once_t machine_read = PTHREAD_ONCE_INIT;

enum { N_INDICES = 8 };

/* The first word of a file that describes cache `index` of the first CPU. */
static int read_word(char word[32], int index, const char *name) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int n = fscanf(file, "%31s", word);
    fclose(file);
    return n == 1;
}

static void read_cache(int index) {
    char level[32], type[32], size[32], unit = 0;
    size_t *const sizes[] = {&machine.l1_bytes, &machine.l2_bytes, &machine.l3_bytes};
    unsigned long n = 0;
    if (!read_word(level, index, "level") || !read_word(type, index, "type") || !read_word(size, index, "size")) return;
    if (level[0] < '1' || level[0] > '3' || level[1] || type[0] == 'I' /* instructions */) return;
    if (sscanf(size, "%lu%c", &n, &unit) < 1 || n == 0 || n > 1ul << 30) return;
    *sizes[level[0] - '1'] = n << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0);
}

static void read_machine(void) {
    for (int i = 0; i < N_INDICES; i++) read_cache(i);
}

const nmlp_caches *nmlp_caches_get(void) {
    pthread_once(&machine_read, read_machine);
    return &machine;
}
