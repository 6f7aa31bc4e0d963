/* Any bytes: a machine file is refused, or every number in it is inside its range. */
#include <math.h>
#include <stdlib.h>

#include "trainium/neuron/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_machine m;
    nmlp_err err;
    if (nmlp_machine_parse(&m, "fuzz", (const char *)data, size, &err) != NMLP_OK) return 0;
    for (int key = 0; key < NMLP_MACHINE_N_KEYS; key++)
        if (!isfinite(nmlp_machine_value(&m, (nmlp_machine_key)key))) abort();
    return 0;
}
