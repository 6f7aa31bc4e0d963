/* Any bytes as a table of measured times: refused by line and column, or kernels that were built, each with a time. */
#include "fuzz/in_memory.h"
#include "service/measured.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static nmlp_machine machine;
    static bool opened;
    nmlp_measured measured;
    nmlp_err err = {0};
    if (!opened && nmlp_machine_open(&machine, "trn1", &err) != NMLP_OK) abort();
    opened = true;
    nmlp_status st = nmlp_measured_read(&measured, in_memory_file("measured.csv", data, size), &machine, &err);
    if (st != NMLP_OK && !err.message[0]) abort();
    for (int64_t i = 0; st == NMLP_OK && i < measured.n; i++)
        if (!measured.list[i].program || !(measured.list[i].measured_us > 0)) abort();
    nmlp_measured_fini(&measured);
    return 0;
}
