/* libneuronmlp: compress language models with SVD, run them, and plan their kernels for AWS Trainium.
 *
 * Five headers: llm.h (load, generate, score), compression.h (compress a checkpoint), quantization.h (store it in fewer
 * bits), optimization.h (its fastest form within a loss), neuron_kernel.h (plan, simulate and print a Trainium kernel).
 * Every call that can fail returns nmlp_status and fills an nmlp_err (status.h). The library never prints, exits or
 * reads the environment. */
#ifndef NEURONMLP_NEURONMLP_H
#define NEURONMLP_NEURONMLP_H

#include "neuronmlp/api.h"
#include "neuronmlp/compression.h"
#include "neuronmlp/llm.h"
#include "neuronmlp/neuron_kernel.h"
#include "neuronmlp/optimization.h"
#include "neuronmlp/quantization.h"
#include "neuronmlp/status.h"

#endif
