/* A program without edges.
 *
 * A loop whose last iterations are shorter is cut in two: those that are alike stay a loop, the rest is written out
 * with its loop variable as a number. Every size is then a constant, every trip count too; the instructions executed
 * are the same, in the same order. For dialects that have no sizes that depend on a loop variable. */
#ifndef NMLP_TRAINIUM_NEURON_PROGRAM_PEEL_H
#define NMLP_TRAINIUM_NEURON_PROGRAM_PEEL_H

#include "trainium/neuron/program.h"

/* NMLP_E_LIMIT where the text would become too long. */
nmlp_status nmlp_program_peel(nmlp_program **out, const nmlp_program *program, nmlp_err *err);

#endif
