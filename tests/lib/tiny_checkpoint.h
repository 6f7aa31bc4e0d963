/* Builds a small random checkpoint in memory and writes it, whole or broken on purpose. */
#ifndef NMLP_TESTS_TINY_CHECKPOINT_H
#define NMLP_TESTS_TINY_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/view.h"

enum { TINY_TENSORS_MAX = 96 };

typedef struct tiny_tensor {
    char name[96];
    int n_dims;
    int64_t shape[2];
    float *data;
} tiny_tensor;

/* hidden 32, intermediate 48, 2 layers, 4 heads, 2 kv heads, vocab 64, Llama, tied. */
typedef struct tiny_checkpoint {
    tiny_tensor tensors[TINY_TENSORS_MAX];
    size_t n;
    char config[8192];
} tiny_checkpoint;

enum { TINY_HIDDEN = 32, TINY_INTERMEDIATE = 48, TINY_LAYERS = 2, TINY_VOCAB = 64, TINY_CONTEXT = 128 };

/* One in memory and an empty directory to write it to: the state of many tests. */
typedef struct tiny_fixture {
    char dir[256];
    tiny_checkpoint c;
} tiny_fixture;

tiny_fixture *tiny_fixture_create(uint64_t seed);
void tiny_fixture_destroy(tiny_fixture *fixture);

void tiny_init(tiny_checkpoint *c, uint64_t seed);
void tiny_fini(tiny_checkpoint *c);
tiny_tensor *tiny_find(tiny_checkpoint *c, const char *name);
void tiny_remove(tiny_checkpoint *c, const char *name);
tiny_tensor *tiny_add(tiny_checkpoint *c, const char *name, int64_t rows, int64_t cols);
/* Replaces layer l's matrix ("gate_proj", "q_proj", …) by random factors of the given rank, and the config by a
 * compressed one. Returns W = u v in the dense tensor's layout through `dense` (may be NULL). */
void tiny_factorise(tiny_checkpoint *c, int layer, const char *matrix, int64_t rank, float *dense);
void tiny_mark_compressed(tiny_checkpoint *c);
/* Writes config.json and model.safetensors in the dtype given. */
void tiny_write(const tiny_checkpoint *c, const char *dir, nmlp_dtype dtype);
/* The same in Q8 or Q4, rounded to nearest; what does not fit that type is bf16. */
void tiny_write_quantised(const tiny_checkpoint *c, const char *dir, nmlp_dtype dtype, int group);

#endif
