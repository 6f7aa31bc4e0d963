#include "doctor/survey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/build_info.h"
#include "base/file.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "linalg/linalg.h"

enum { LINE_MAX_BYTES = 512, CPUS_MAX = 4096 };

static const char *const huge_page_names[] = {"unknown", "always", "madvise", "never"};

const char *nmlp_huge_pages_name(nmlp_huge_pages huge_pages) { return huge_page_names[huge_pages]; }

nmlp_huge_pages nmlp_huge_pages_parse(const char *text) {
    const char *open = strchr(text, '[');
    for (int i = NMLP_HUGE_PAGES_ALWAYS; open && i <= NMLP_HUGE_PAGES_NEVER; i++) {
        size_t len = strlen(huge_page_names[i]);
        if (strncmp(open + 1, huge_page_names[i], len) == 0 && open[1 + len] == ']') return (nmlp_huge_pages)i;
    }
    return NMLP_HUGE_PAGES_UNKNOWN;
}

/* The first line of `path` that begins with `key`, what follows it into `line`. False where there is none. */
static bool find_line(const char *path, const char *key, char line[LINE_MAX_BYTES]) {
    bool found = false;
    FILE *file = fopen(path, "r");
    if (!file) return false;
    while (!found && fgets(line, LINE_MAX_BYTES, file)) found = strncmp(line, key, strlen(key)) == 0;
    fclose(file);
    if (!found) return false;
    line[strcspn(line, "\n")] = '\0';
    memmove(line, line + strlen(key), strlen(line + strlen(key)) + 1);
    return true;
}

/* "MemTotal:  24682496 kB" */
static int64_t memory_of(const char *key) {
    char line[LINE_MAX_BYTES];
    return find_line("/proc/meminfo", key, line) ? strtoll(line, NULL, 10) * 1024 : 0;
}

static void read_memory(nmlp_survey *s) {
    char line[LINE_MAX_BYTES];
    s->memory_bytes = memory_of("MemTotal:");
    s->available_bytes = memory_of("MemAvailable:");
    if (find_line("/proc/meminfo", "HugePages_Total:", line)) s->n_reserved_huge_pages = strtoll(line, NULL, 10);
    if (find_line("/sys/fs/cgroup/memory.max", "", line))
        s->memory_limit_bytes = strtoll(line, NULL, 10); /* "max" is 0 */
    if (find_line("/sys/kernel/mm/transparent_hugepage/enabled", "", line)) s->huge_pages = nmlp_huge_pages_parse(line);
}

/* A core is counted by the first of its hardware threads. */
static int count_cores(void) {
    char path[96];
    char line[LINE_MAX_BYTES];
    int n = 0;
    for (int cpu = 0; cpu < CPUS_MAX; cpu++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        if (find_line(path, "", line) && strtol(line, NULL, 10) == cpu) n++;
    }
    return n;
}

static nmlp_status read_cpu(nmlp_survey *s, nmlp_err *err) {
    char line[LINE_MAX_BYTES];
    double quota_us, period_us;
    nmlp_pool *pool;
    const nmlp_kernels *set;
    s->cpu = *nmlp_cpu_get();
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select(&set, &s->cpu, NULL, err));
    s->set = nmlp_kernels_name(set);
    NMLP_RETURN_IF_FAILED(nmlp_kernels_select_bf16(&set, &s->cpu, NULL, err));
    s->set_bf16 = nmlp_kernels_name(set);
    s->caches = *nmlp_caches_get();
    NMLP_RETURN_IF_FAILED(nmlp_pool_create(&pool, 0, err));
    s->n_threads = nmlp_pool_threads(pool);
    nmlp_pool_destroy(pool);
    s->n_cores = count_cores();
    if (find_line("/sys/fs/cgroup/cpu.max", "", line) && sscanf(line, "%lf %lf", &quota_us, &period_us) == 2 &&
        period_us > 0)
        s->cpu_quota = quota_us / period_us; /* "max 100000" is no number */
    return NMLP_OK;
}

static void read_gpu(nmlp_survey *s) {
    nmlp_err why;
    s->gpu_built = nmlp_build_info_get()->cuda;
    s->gpu_driver = nmlp_file_exists("/proc/driver/nvidia/version");
    s->gpu_usable = nmlp_cuda_probe(&s->gpu, &why) == NMLP_OK;
    if (!s->gpu_usable) snprintf(s->gpu_reason, sizeof s->gpu_reason, "%.255s", why.message);
}

nmlp_status nmlp_survey_take(nmlp_survey *survey, nmlp_err *err) {
    *survey = (nmlp_survey){0};
    NMLP_RETURN_IF_FAILED(read_cpu(survey, err));
    read_memory(survey);
    snprintf(survey->blas_core, sizeof survey->blas_core, "%s", nmlp_linalg_core());
    survey->blas_better = nmlp_linalg_better_core();
    read_gpu(survey);
    return NMLP_OK;
}
