/* Where a checkpoint may be written: what stands there is replaced as a whole, so it must be nothing anyone would miss.
 */
#ifndef NMLP_CHECKPOINT_TARGET_H
#define NMLP_CHECKPOINT_TARGET_H

#include "base/status.h"

/* `dir` may be absent (its parent must be there and writable), empty, or a checkpoint that this program wrote and that
 * holds nothing else; not `source` (NULL: none) under whatever name, and no mount point. To be asked before the work,
 * not after it. */
nmlp_status nmlp_target_check(const char *dir, const char *source, nmlp_err *err);

#endif
