/* Bodies of requests from anywhere, as chats of models that call tools or not and as completions: refused, or numbers
 * inside their ranges. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "server/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const templates[] = {NULL,
                                            "{{ tools }} <tool_call>",
                                            "{{ tools }} \"parameters\": python_tag",
                                            "{{ tools }} [TOOL_CALLS]",
                                            "{{ tools }} [TOOL_CALLS] [CALL_ID] [ARGS]",
                                            "<｜tool▁call▁begin｜> ```json"};
    enum { TEMPLATES = sizeof templates / sizeof templates[0] };
    nmlp_err err;
    for (int i = 0; i < TEMPLATES + 1; i++) {
        nmlp_completion_request request;
        nmlp_status st = nmlp_completion_request_read(&request, i < TEMPLATES, (const char *)data, size, 1,
                                                      templates[i % TEMPLATES], &err);
        if (st == NMLP_OK && (request.n < 1 || request.n_prompts < 1 || request.n_stop > NMLP_STOP_STRINGS_MAX ||
                              !isfinite(request.sampling.temperature) || request.sampling.temperature < 0))
            abort();
        nmlp_completion_request_fini(&request);
    }
    return 0;
}
