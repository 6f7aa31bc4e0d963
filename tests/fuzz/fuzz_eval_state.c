/* Any bytes as the state of an evaluation: refused, or entries that can be found again. */
#include "eval/state.h"
#include "fuzz/in_memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_eval_state state;
    nmlp_err err;
    if (nmlp_eval_state_open(&state, in_memory_file("state", data, size), &err) == NMLP_OK)
        for (size_t i = 0; i < state.n; i++)
            if (!nmlp_eval_state_find(&state, state.entries[i].key)) abort();
    nmlp_eval_state_close(&state);
    return 0;
}
