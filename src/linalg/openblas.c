#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "linalg/openblas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "linalg/linalg.h"

enum { BUFFER_BYTES = 128 << 20 }; /* what it maps for each thread that calls it */

/* Constant once filled. */
static nmlp_openblas functions;
static bool loaded;
static char reason[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A function's address through the only pointer dlsym has. */
static bool find(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static void load(void) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    loaded = library && find(library, "cblas_dgemm", &functions.dgemm) &&
             find(library, "cblas_sgemm", &functions.sgemm) && find(library, "cblas_dtrsm", &functions.dtrsm) &&
             find(library, "openblas_get_num_threads", &functions.get_num_threads) &&
             find(library, "openblas_set_num_threads", &functions.set_num_threads) &&
             find(library, "openblas_get_corename", &functions.get_corename) &&
             find(library, "dsyevd_", &functions.dsyevd) && find(library, "dpotrf_", &functions.dpotrf);
    if (loaded) return;
    const char *why = dlerror();
    snprintf(reason, sizeof reason, "%s", why ? why : "unknown reason");
}

const nmlp_openblas *nmlp_openblas_get(void) {
    pthread_once(&once, load);
    return loaded ? &functions : NULL;
}

static bool buffers_fit(size_t bytes) {
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (block == MAP_FAILED) return false;
    munmap(block, bytes);
    return true;
}

nmlp_status nmlp_linalg_load(int n_threads, nmlp_err *err) {
    size_t bytes = (size_t)(n_threads + 1) * BUFFER_BYTES; /* one while it is loaded */
    if (!buffers_fit(bytes))
        return nmlp_fail(err, NMLP_E_NOMEM, "OpenBLAS needs %zu bytes of address space for %d threads", bytes,
                         n_threads);
    if (nmlp_openblas_get()) return NMLP_OK;
    nmlp_fail(err, NMLP_E_UNSUPPORTED, "OpenBLAS cannot be loaded: %s", reason);
    nmlp_fail_hint(err, "install it (Debian: libopenblas0-pthread), or give the process more memory");
    return NMLP_E_UNSUPPORTED;
}
