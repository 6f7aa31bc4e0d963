/* Any bytes: the parser refuses them or prints back what it parsed; the checker takes whatever it parsed. */
#include <stdlib.h>
#include <string.h>

#include "trainium/neuron/check.h"
#include "trainium/neuron/program_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_program *p = NULL, *again = NULL;
    nmlp_err err;
    nmlp_machine m;
    if (nmlp_program_parse(&p, "fuzz", (const char *)data, size, &err) != NMLP_OK) return 0;
    nmlp_str text, text2;
    nmlp_str_init(&text);
    nmlp_str_init(&text2);
    nmlp_program_print(p, &text);
    if (nmlp_program_parse(&again, "printed", nmlp_str_text(&text), text.len, &err) != NMLP_OK) abort();
    nmlp_program_print(again, &text2);
    if (strcmp(nmlp_str_text(&text), nmlp_str_text(&text2)) != 0) abort();
    if (nmlp_machine_open(&m, "trn1", &err) != NMLP_OK) abort();
    (void)nmlp_program_check(p, &m, NULL, &err);
    nmlp_str_fini(&text);
    nmlp_str_fini(&text2);
    nmlp_program_destroy(p);
    nmlp_program_destroy(again);
    return 0;
}
