#include "base/build_info.h"

#include "neuronmlp/version.h"

#include "nmlp_build.h"
#include "nmlp_commit.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define COMPILER "gcc " TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__) "." TEXT(__GNUC_PATCHLEVEL__)
#endif

static const nmlp_build_library libraries[] = {NMLP_BUILD_LIBRARIES{NULL, NULL}};

static const nmlp_build_info info = {
    .version = NMLP_VERSION_STRING,
    .released = NMLP_BUILD_RELEASED,
    .commit = NMLP_BUILD_COMMIT,
    .compiler = COMPILER,
    .build_type = NMLP_BUILD_TYPE,
    .cuda = NMLP_BUILD_CUDA,
    .cuda_note = NMLP_BUILD_CUDA_NOTE,
    .libraries = libraries,
};

const nmlp_build_info *nmlp_build_info_get(void) { return &info; }
