/* What `neuronmlp synth` does, on a model of a few kilobytes: the command's own have a gigabyte. */
#include "faults/campaign.h"

int main(void) { return fault_model_write("out", 0.3); }
