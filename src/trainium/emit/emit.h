/* Prints a tile program as Python source for Trainium: an NKI kernel, and a PyTorch module that calls one.
 *
 * The source comes from the program alone: its loops, buffers and instructions in order, its comments, and names for
 * tile and block sizes derived from how the loops step through the tensors. Two dialects exist: `nki` (NKI 0.3 and
 * later, trn2 and trn3) and `nki-legacy` (neuronxcc.nki up to SDK 2.26, trn1). The same program and options give the
 * same bytes.
 *
 * What a dialect cannot say is refused with NMLP_E_UNSUPPORTED, never approximated. */
#ifndef NMLP_TRAINIUM_EMIT_EMIT_H
#define NMLP_TRAINIUM_EMIT_EMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "trainium/neuron/machine.h"
#include "trainium/neuron/program.h"

typedef enum nmlp_dialect { NMLP_DIALECT_NKI, NMLP_DIALECT_NKI_LEGACY } nmlp_dialect;

/* Current NKI unrolls every loop; above this many instructions the source carries a warning. */
enum { NMLP_EMIT_UNROLL_ADVICE = 100000 };

typedef struct nmlp_emit_options {
    nmlp_dialect dialect;
    const nmlp_machine *machine; /* the one the program was built for */
    const char *command;         /* how to print the file again, for its first line; NULL: left out */
    double latency_us;           /* simulated; negative: not known */
} nmlp_emit_options;

typedef struct nmlp_emit_result {
    int64_t instructions; /* executed by a core, all loops unrolled */
} nmlp_emit_result;

/* The dialect a machine's compiler takes: legacy for NeuronCore-v2. */
nmlp_dialect nmlp_dialect_for(const nmlp_machine *machine);
const char *nmlp_dialect_name(nmlp_dialect dialect);
/* First and last Neuron SDK whose compiler takes the dialect as it is printed here. */
void nmlp_dialect_sdk(nmlp_dialect dialect, const char **from, const char **to);
/* The dialect for an SDK such as "2.26"; refuses one that takes none, or none for this machine. */
nmlp_status nmlp_dialect_for_sdk(nmlp_dialect *dialect, const nmlp_machine *machine, const char *sdk, nmlp_err *err);
bool nmlp_dialect_parse(const char *name, nmlp_dialect *dialect);

/* Checks the program against the machine, then appends the source. `result` may be NULL. */
nmlp_status nmlp_emit_kernel(nmlp_str *out, const nmlp_program *program, const nmlp_emit_options *options,
                             nmlp_emit_result *result, nmlp_err *err);

/* Appends a PyTorch module that loads the factors of a compressed checkpoint and calls the kernel, which it imports
 * from the Python module `kernel_module`. Current dialect only. */
nmlp_status nmlp_emit_module(nmlp_str *out, const nmlp_program *program, const nmlp_emit_options *options,
                             const char *kernel_module, nmlp_err *err);

#endif
