#include "bench/energy.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- RAPL ---- */

static bool read_number(const char *path, double *number) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool got = fscanf(file, "%lf", number) == 1;
    fclose(file);
    return got;
}

/* Packages, and the memory that is counted apart from them; cores and the like are parts of packages. */
static bool is_whole(const char *dir) {
    char path[NMLP_ENERGY_PATH_MAX], name[64] = "";
    if (snprintf(path, sizeof path, "%s/name", dir) >= (int)sizeof path) return false;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool got = fscanf(file, "%63s", name) == 1;
    fclose(file);
    return got && (strncmp(name, "package", 7) == 0 || strcmp(name, "dram") == 0);
}

static void add_domain(nmlp_energy *m, const char *dir) {
    char path[NMLP_ENERGY_PATH_MAX];
    nmlp_energy_domain *d = &m->domains[m->n_domains];
    if (m->n_domains == NMLP_ENERGY_DOMAINS_MAX || !is_whole(dir)) return;
    *d = (nmlp_energy_domain){.range_uj = 0};
    if (snprintf(path, sizeof path, "%s/max_energy_range_uj", dir) >= (int)sizeof path) return;
    (void)read_number(path, &d->range_uj);
    if (snprintf(d->path, sizeof d->path, "%s/energy_uj", dir) >= (int)sizeof d->path) return;
    if (read_number(d->path, &d->last_uj)) m->n_domains++;
}

/* Domains and their parts lie side by side: intel-rapl:0, intel-rapl:0:1. */
static void find_domains(nmlp_energy *m, const char *root) {
    const struct dirent *entry;
    DIR *dir = opendir(root);
    if (!dir) return;
    while ((entry = readdir(dir))) {
        char path[NMLP_ENERGY_PATH_MAX];
        if (strncmp(entry->d_name, "intel-rapl:", 11) != 0) continue;
        if (snprintf(path, sizeof path, "%s/%s", root, entry->d_name) < (int)sizeof path) add_domain(m, path);
    }
    closedir(dir);
}

/* ---- NVML, where a driver brings it ---- */

typedef int init_fn(void);
typedef int handle_fn(unsigned index, void **device);

static void *symbol(const nmlp_energy *m, const char *name) { return dlsym(m->library, name); }

static void find_gpu(nmlp_energy *m) {
    init_fn *init;
    handle_fn *handle;
    unsigned long long mj;
    m->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!m->library) return;
    *(void **)&init = symbol(m, "nvmlInit_v2");
    *(void **)&handle = symbol(m, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&m->read_mj = symbol(m, "nvmlDeviceGetTotalEnergyConsumption");
    if (!init || !handle || !m->read_mj || init() != 0 || handle(0, &m->device) != 0 || m->read_mj(m->device, &mj) != 0)
        m->read_mj = NULL;
}

void nmlp_energy_open(nmlp_energy *m, const char *root, bool gpu) {
    *m = (nmlp_energy){0};
    if (gpu)
        find_gpu(m);
    else
        find_domains(m, root);
}

void nmlp_energy_close(nmlp_energy *m) {
    if (m->library) {
        init_fn *shutdown;
        *(void **)&shutdown = symbol(m, "nvmlShutdown");
        if (shutdown) (void)shutdown();
        dlclose(m->library);
    }
    *m = (nmlp_energy){0};
}

double nmlp_energy_joules(nmlp_energy *m) {
    if (m->read_mj) {
        unsigned long long mj;
        return m->read_mj(m->device, &mj) == 0 ? 1e-3 * (double)mj : NAN;
    }
    if (m->n_domains == 0) return NAN;
    for (int i = 0; i < m->n_domains; i++) {
        nmlp_energy_domain *d = &m->domains[i];
        double now;
        if (!read_number(d->path, &now)) return NAN;
        double used = now - d->last_uj;
        m->joules += 1e-6 * (used < 0 ? used + d->range_uj : used);
        d->last_uj = now;
    }
    return m->joules;
}
