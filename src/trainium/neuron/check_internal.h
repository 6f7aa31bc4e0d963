/* Shared by the files of the checker. */
#ifndef NMLP_TRAINIUM_NEURON_CHECK_INTERNAL_H
#define NMLP_TRAINIUM_NEURON_CHECK_INTERNAL_H

#include "trainium/neuron/check.h"

typedef struct nmlp_checker {
    const nmlp_program *p;
    const nmlp_machine *m;
    nmlp_violation *violation;
    nmlp_err *err;
    int instr; /* under check; -1: the program as a whole */
} nmlp_checker;

/* Reports a violation; returns NMLP_E_ILLEGAL. */
nmlp_status nmlp_check_refuse(nmlp_checker *ck, nmlp_rule rule, int64_t found, int64_t allowed, const char *detail);
/* The rules one instruction can break by itself. */
nmlp_status nmlp_check_instr(nmlp_checker *ck, const nmlp_instr *in);

#endif
