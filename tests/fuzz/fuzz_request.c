/* Bodies of requests from anywhere, as chats of models that call tools or not and as completions: refused, or numbers
 * inside their ranges. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "server/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const templates[] = {NULL, "{{ tools }} <tool_call>", "{{ tools }} \"parameters\": python_tag"};
    nmlp_err err;
    for (int i = 0; i < 6; i++) {
        nmlp_completion_request request;
        nmlp_status st =
            nmlp_completion_request_read(&request, i < 3, (const char *)data, size, 1, templates[i % 3], &err);
        if (st == NMLP_OK && (request.n < 1 || request.n_prompts < 1 || request.n_stop > NMLP_STOP_STRINGS_MAX ||
                              !isfinite(request.sampling.temperature) || request.sampling.temperature < 0))
            abort();
        nmlp_completion_request_fini(&request);
    }
    return 0;
}
