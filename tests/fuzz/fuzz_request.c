/* Any bytes as the body of a request: refused, or a request whose numbers are inside their ranges. The first bit of the
 * first byte chooses between chat and completion. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "server/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_completion_request request;
    nmlp_err err;
    if (size < 1) return 0;
    bool ok =
        nmlp_completion_request_read(&request, data[0] & 1, (const char *)data + 1, size - 1, 7, NULL, &err) == NMLP_OK;
    if (ok && (request.n < 1 || request.n_prompts < 1 || request.n_stop > NMLP_STOP_STRINGS_MAX ||
               !isfinite(request.sampling.temperature) || request.sampling.temperature < 0))
        abort();
    nmlp_completion_request_fini(&request);
    return 0;
}
