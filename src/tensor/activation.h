/* What a gated MLP does to its gate. */
#ifndef NMLP_TENSOR_ACTIVATION_H
#define NMLP_TENSOR_ACTIVATION_H

typedef enum nmlp_activation {
    NMLP_ACTIVATION_SILU,     /* x / (1 + exp(-x)) */
    NMLP_ACTIVATION_GELU_TANH /* x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))), GELU in its tanh form */
} nmlp_activation;

#endif
