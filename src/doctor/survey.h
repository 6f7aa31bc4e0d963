/* What this machine offers to the program, read once. */
#ifndef NMLP_DOCTOR_SURVEY_H
#define NMLP_DOCTOR_SURVEY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "cuda/cuda.h"
#include "kernels/caches.h"
#include "base/cpu.h"

typedef enum nmlp_huge_pages {
    NMLP_HUGE_PAGES_UNKNOWN,
    NMLP_HUGE_PAGES_ALWAYS,
    NMLP_HUGE_PAGES_MADVISE, /* where a program asks, as this one does for weights */
    NMLP_HUGE_PAGES_NEVER
} nmlp_huge_pages;

typedef struct nmlp_survey {
    nmlp_cpu cpu;
    const char *set;      /* kernel set that runs unless told otherwise */
    const char *set_bf16; /* with --precision bf16 */
    nmlp_caches caches;
    int n_threads;              /* the program's own choice: CPUs this process may use */
    int n_cores;                /* with several hardware threads each; 0: unknown */
    double cpu_quota;           /* CPUs a container may use on average; 0: no limit */
    int64_t memory_bytes;       /* 0: unknown */
    int64_t available_bytes;    /* 0: unknown */
    int64_t memory_limit_bytes; /* of a container; 0: no limit */
    nmlp_huge_pages huge_pages;
    int64_t n_reserved_huge_pages; /* hugetlb, which this program does not use */
    char blas_core[64];            /* name of the CPU whose kernels OpenBLAS took */
    const char *blas_better;       /* name it should be told; NULL: the choice is right */
    bool gpu_built;                /* the GPU backend is compiled in */
    bool gpu_driver;               /* an NVIDIA driver is loaded */
    bool gpu_usable;
    nmlp_cuda_info gpu;   /* where usable */
    char gpu_reason[256]; /* where not */
} nmlp_survey;

nmlp_status nmlp_survey_take(nmlp_survey *survey, nmlp_err *err);

/* "always [madvise] never": the choice in brackets. */
nmlp_huge_pages nmlp_huge_pages_parse(const char *text);
const char *nmlp_huge_pages_name(nmlp_huge_pages huge_pages);

#endif
