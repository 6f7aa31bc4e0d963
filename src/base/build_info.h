/* How this library was built: fixed when it was compiled. */
#ifndef NMLP_BASE_BUILD_INFO_H
#define NMLP_BASE_BUILD_INFO_H

#include <stdbool.h>
#include <stddef.h>

typedef struct nmlp_build_library {
    const char *name;
    const char *version; /* of what it was compiled with, by its pkg-config file */
} nmlp_build_library;

typedef struct nmlp_build_info {
    const char *version;    /* "0.2.0" */
    const char *released;   /* date of the version, "2026-11-16" */
    const char *commit;     /* "1a2b3c4d5e6f", "…-dirty" with changes not committed; "" outside a git checkout */
    const char *compiler;   /* "gcc 12.2.0" */
    const char *build_type; /* "Release" */
    bool cuda;              /* the GPU backend is compiled in */
    const char *cuda_note;  /* "CUDA 12.4", or why it is not there */
    const nmlp_build_library *libraries; /* name NULL at the end */
} nmlp_build_info;

const nmlp_build_info *nmlp_build_info_get(void);

#endif
