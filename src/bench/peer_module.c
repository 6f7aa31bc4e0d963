#define _GNU_SOURCE /* readlink, setenv */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "bench/peer.h"

/* Below the folder of the program: as built, and as installed. */
static const char *const places[] = {"bench/" NMLP_PEER_MODULE_FILE, "../lib/neuronmlp/" NMLP_PEER_MODULE_FILE};

static nmlp_status program_folder(char *folder, size_t bytes, nmlp_err *err) {
    ssize_t n = readlink("/proc/self/exe", folder, bytes - 1);
    if (n <= 0) return nmlp_fail(err, NMLP_E_IO, "/proc/self/exe cannot be read, so the peers' module is not found");
    folder[n] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
    return NMLP_OK;
}

static nmlp_status open_at(const nmlp_peer_maker **makers, const char *path, nmlp_err *err) {
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    *makers = module ? dlsym(module, NMLP_PEER_MODULE_SYMBOL) : NULL;
    if (*makers) return NMLP_OK;
    return nmlp_fail(err, NMLP_E_UNSUPPORTED, "%s cannot be opened: %s", path, dlerror());
}

nmlp_status nmlp_peer_module_open(const nmlp_peer_maker **makers, int n_threads, nmlp_err *err) {
    char folder[2048];
    char path[4096];
    char threads[16];
    snprintf(threads, sizeof threads, "%d", n_threads);
    /* OpenMP, which comes with the module, looks once, when it is loaded. Its threads spin for many milliseconds after
     * their work unless told otherwise, and would take the processors from whoever comes next. */
    setenv("OMP_NUM_THREADS", threads, 1);
    setenv("GOMP_SPINCOUNT", "10000", 0);
    NMLP_RETURN_IF_FAILED(program_folder(folder, sizeof folder, err));
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, folder, places[i], err));
        if (nmlp_file_exists(path)) return open_at(makers, path, err);
    }
    nmlp_fail(err, NMLP_E_MISSING, "%s is neither in %s/bench nor in %s/../lib/neuronmlp", NMLP_PEER_MODULE_FILE,
              folder, folder);
    nmlp_fail_hint(err,
                   "`make bench` builds it with the peers that are installed (Debian: libdnnl-dev, libopenblas-dev)");
    return NMLP_E_MISSING;
}
