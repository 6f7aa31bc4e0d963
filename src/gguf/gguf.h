/* Reading a GGUF file, version 2 or 3, little-endian: a table of metadata and a table of tensors, then the tensors'
 * bytes. The file stays mapped and nothing is copied but names; every length is checked against the file before it is
 * believed. */
#ifndef NMLP_GGUF_GGUF_H
#define NMLP_GGUF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "gguf/gguf_blocks.h"

/* Types of metadata, by the numbers of the file. */
typedef enum nmlp_gguf_kind {
    NMLP_GGUF_U8,
    NMLP_GGUF_I8,
    NMLP_GGUF_U16,
    NMLP_GGUF_I16,
    NMLP_GGUF_U32,
    NMLP_GGUF_I32,
    NMLP_GGUF_F32,
    NMLP_GGUF_BOOL,
    NMLP_GGUF_STRING,
    NMLP_GGUF_ARRAY,
    NMLP_GGUF_U64,
    NMLP_GGUF_I64,
    NMLP_GGUF_F64,
    NMLP_GGUF_KINDS
} nmlp_gguf_kind;

typedef struct nmlp_gguf_value {
    const char *key;
    nmlp_gguf_kind kind;
    nmlp_gguf_kind item_kind;  /* of an array; not an array again */
    uint64_t n;                /* items of an array, bytes of a string, else 1 */
    const unsigned char *data; /* in the file, at any address; of a string its bytes, without length or NUL */
} nmlp_gguf_value;

typedef struct nmlp_gguf_tensor {
    const char *name;
    nmlp_gguf_type type;
    int n_dims;
    int64_t rows; /* outputs; 1 for a vector */
    int64_t cols; /* inputs, one after the other in the file */
    const unsigned char *data;
    size_t bytes;
} nmlp_gguf_tensor;

typedef struct nmlp_gguf {
    const char *origin; /* the file's name, for messages */
    nmlp_file_map map;
    nmlp_arena arena;
    nmlp_gguf_value *values;
    size_t n_values;
    nmlp_gguf_tensor *tensors;
    size_t n_tensors;
} nmlp_gguf;

nmlp_status nmlp_gguf_open(nmlp_gguf *file, const char *path, nmlp_err *err);
/* The same for bytes in memory, which must outlive `file`. */
nmlp_status nmlp_gguf_parse(nmlp_gguf *file, const unsigned char *data, size_t bytes, const char *origin,
                            nmlp_err *err);
void nmlp_gguf_close(nmlp_gguf *file);

/* NULL when absent. */
const nmlp_gguf_value *nmlp_gguf_find(const nmlp_gguf *file, const char *key);
const nmlp_gguf_tensor *nmlp_gguf_find_tensor(const nmlp_gguf *file, const char *name);

/* Numbers of any kind; *out stays as it is where the key is absent. Refuse other kinds, and what is out of range. */
nmlp_status nmlp_gguf_get_int(const nmlp_gguf *file, const char *key, int64_t min, int64_t max, int64_t *out,
                              nmlp_err *err);
nmlp_status nmlp_gguf_get_number(const nmlp_gguf *file, const char *key, double *out, nmlp_err *err);
nmlp_status nmlp_gguf_get_bool(const nmlp_gguf *file, const char *key, bool *out, nmlp_err *err);
/* A copy that ends in NUL, in the file's arena; NULL where absent. */
nmlp_status nmlp_gguf_get_string(nmlp_gguf *file, const char *key, const char **out, nmlp_err *err);

/* Items of an array, front to back. */
typedef struct nmlp_gguf_items {
    const unsigned char *at;
    uint64_t left;
    nmlp_gguf_kind kind;
} nmlp_gguf_items;

/* NMLP_E_MISSING without such an array of that kind of items. */
nmlp_status nmlp_gguf_get_items(const nmlp_gguf *file, const char *key, nmlp_gguf_kind kind, nmlp_gguf_items *items,
                                nmlp_err *err);
/* Of strings; false at the end. */
bool nmlp_gguf_next_string(nmlp_gguf_items *items, const char **text, size_t *len);
/* Of numbers. */
bool nmlp_gguf_next_number(nmlp_gguf_items *items, double *number);

#endif
