#include "doctor/advice.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void say(nmlp_advice *a, const char *fmt, ...) NMLP_PRINTF(2, 3);

static void say(nmlp_advice *a, const char *fmt, ...) {
    va_list args;
    if (a->n == NMLP_ADVICE_MAX) return;
    va_start(args, fmt);
    vsnprintf(a->lines[a->n++], NMLP_ADVICE_BYTES, fmt, args);
    va_end(args);
}

static void advise_tiles(nmlp_advice *a, const nmlp_survey *s) {
    const nmlp_cpu_amx *t = &s->cpu.amx;
    if (!t->in_cpu) return;
    if (!t->enabled)
        say(a, "this CPU has AMX, but the system does not enable it: Linux 5.16 or later does");
    else if (!t->permitted)
        say(a, "this CPU has AMX, but the system refuses it to this process: allow arch_prctl (seccomp profile of the "
               "container)");
}

static void advise_gpu(nmlp_advice *a, const nmlp_survey *s) {
    if (s->gpu_driver && !s->gpu_built)
        say(a,
            "an NVIDIA driver is loaded, but this build has no GPU backend: put nvcc on PATH, then make clean && make");
    if (s->gpu_built && s->gpu_driver && !s->gpu_usable) say(a, "the GPU cannot be used: %.200s", s->gpu_reason);
}

void nmlp_advise(nmlp_advice *advice, const nmlp_survey *s, const char *build_type) {
    advice->n = 0;
    if (strcmp(build_type, "Release") != 0)
        say(advice, "this is a %s build: cmake -DCMAKE_BUILD_TYPE=Release makes a fast one", build_type);
    if (!s->cpu.avx2_fma)
        say(advice, "AVX2 is not available, so portable kernels run; on a virtual machine choose a CPU model that "
                    "passes it on (host)");
    advise_tiles(advice, s);
    if (s->blas_better)
        say(advice,
            "OpenBLAS takes this CPU for a %s: start programs that compress with OPENBLAS_CORETYPE=%s in the "
            "environment "
            "(neuronmlp compress does so itself)",
            s->blas_core, s->blas_better);
    if (s->huge_pages == NMLP_HUGE_PAGES_NEVER)
        say(advice,
            "weights cannot lie in huge pages: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled");
    if (s->cpu_quota > 0 && s->cpu_quota < s->n_threads)
        say(advice, "the container may use %.3g CPUs on average, but threads for %d are started: use %.0f threads",
            s->cpu_quota, s->n_threads, fmax(1, floor(s->cpu_quota)));
    advise_gpu(advice, s);
}
