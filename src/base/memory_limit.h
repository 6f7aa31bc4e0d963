/* How much memory this process can still have, so that a block that cannot fit is refused with a number instead of
 * ending the process when it is touched. */
#ifndef NMLP_BASE_MEMORY_LIMIT_H
#define NMLP_BASE_MEMORY_LIMIT_H

#include <stddef.h>

#include "base/status.h"

/* The least of: memory the system calls available, what the control group leaves, what the limits of the process leave
 * (ulimit -v, ulimit -d). SIZE_MAX where nothing is known. */
size_t nmlp_memory_available_bytes(void);

/* What control groups leave: those of `groups` (the text of /proc/self/cgroup) and all around them, of version 1 or 2,
 * below the folder where they are mounted. SIZE_MAX: no limit. */
size_t nmlp_memory_group_bytes(const char *mount, const char *groups);

/* NMLP_E_NOMEM with both numbers where a block of this size cannot fit. Small blocks are not looked at. */
nmlp_status nmlp_memory_check(size_t bytes, nmlp_err *err);

/* NMLP_E_NOMEM with both numbers where work that takes about this much in all cannot fit: asked before it begins. */
nmlp_status nmlp_memory_need(double bytes, nmlp_err *err);

/* From here on the process gets no more than this many bytes of memory of its own; mapped files do not count. */
nmlp_status nmlp_memory_cap(size_t bytes, nmlp_err *err);

#endif
