/* Metadata of a GGUF file to be written, as its bytes. */
#ifndef NMLP_GGUF_GGUF_WRITE_H
#define NMLP_GGUF_GGUF_WRITE_H

#include "base/str.h"
#include "gguf/gguf.h"

typedef struct nmlp_gguf_metadata {
    nmlp_str bytes;
    uint64_t n;
} nmlp_gguf_metadata;

void nmlp_gguf_put_int(nmlp_str *out, uint64_t value, int bytes);
/* Length and bytes. */
void nmlp_gguf_put_text(nmlp_str *out, const char *text, size_t len);
void nmlp_gguf_put_f32(nmlp_str *out, float value);

void nmlp_gguf_add_u32(nmlp_gguf_metadata *m, const char *key, int64_t value);
void nmlp_gguf_add_f32(nmlp_gguf_metadata *m, const char *key, double value);
void nmlp_gguf_add_bool(nmlp_gguf_metadata *m, const char *key, bool value);
void nmlp_gguf_add_string(nmlp_gguf_metadata *m, const char *key, const char *text);
/* The front of an array, whose items the caller appends to m->bytes. */
void nmlp_gguf_add_array(nmlp_gguf_metadata *m, const char *key, nmlp_gguf_kind kind, uint64_t n);

#endif
