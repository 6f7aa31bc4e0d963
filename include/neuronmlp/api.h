/* What all public headers share.
 *
 * Option and result structs start with their own size, so that a program built against one version runs with another:
 * declare one, hand it to its _init function with sizeof, then change what should not be the default. A newer library
 * gives fields an older program does not know their defaults; an older library refuses fields it does not know unless
 * they are zero. Pointers in options are read during the call only. */
#ifndef NEURONMLP_API_H
#define NEURONMLP_API_H

#include <stddef.h>
#include <stdint.h>

#include "neuronmlp/status.h"
#include "neuronmlp/version.h"

#if defined(__GNUC__)
#define NMLP_API __attribute__((visibility("default")))
#else
#define NMLP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, e.g. "0.2.0"; NMLP_VERSION_STRING is that of the headers. Any thread; no side effects. */
NMLP_API const char *nmlp_version(void);

/* Progress of long work: `done` of `total` `unit`s of a stage. Return 0 to go on; anything else ends the call with
 * NMLP_E_INTERRUPTED. */
typedef int nmlp_on_progress(void *ctx, const char *stage, double done, double total, const char *unit);

#ifdef __cplusplus
}
#endif

#endif
